"""Schedules: how noise, sampling rate and clip change over the steps of a run. All of it is public.

A schedule is a *shape*: its noise is relative, and `accounting.calibrate(ε, δ, plan=schedule.event)` finds the scale at
which the whole run costs ε. Settings of single steps (arrays, by the functions below) become at most 32 levels, so that
heterogeneous accounting stays cheap; `Schedule.error` says how much that loses.

| function                    | settings of steps t = 1 ... T                                                    |
|-----------------------------|----------------------------------------------------------------------------------|
| `constant`                  | s                                                                                |
| `linear`, `polynomial`      | s + (e - s) ((t - 1) / (T - 1))^power                                            |
| `exponential`               | s (e / s)^((t - 1) / (T - 1))                                                    |
| `stepwise`                  | `exponential` on a few equal stages                                              |
| `optimal(influence)`        | σ_t = √(Σ_i √(q_i / q_t)), the least Σ q_t σ_t² at Σ 1/σ_t² = 1 (Hong, eq. 10)   |

The influence q_t of a step's noise on the final loss is γ^(T-t) where each step contracts errors by γ
(`contraction_influence`), smoothed by momentum (`momentum_influence`, Hong's theorem 3.4), or that of descent on a
public model's curvature (`curvature_influence`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.basics.shapes import MOST_RATIO, check_shape
from tacit.privacy.events import Event, Gaussian, PoissonSampled, Repeated, check_number, check_steps, compose
from tacit.privacy.mechanism import MOST_LEVELS, SubsampledGaussian

MOST_BLOCKS = 1024  # of steps that are kept apart while levels are chosen

# --- Settings of single steps ------------------------------------------------------------------------------------


def shaped(shape: str, steps: int, **given: Any) -> np.ndarray:
    """The noise of each step by the name of a shape, relative to the first step's. given: the shape's settings.

    >>> shaped("linear", 3, noise_end=2.0).tolist()
    [1.0, 1.5, 2.0]
    """
    check_shape(shape, given)
    if shape == "influence":
        found = optimal(momentum_influence(steps, given["contraction"], given.get("momentum", 0.0)))
        return found / found[0]
    return between(shape, steps, 1.0, given.get("noise_end", 1.0), **given)


def between(shape: str, steps: int, start: float, end: float, **given: Any) -> np.ndarray:
    """Settings from start to end by the name of a shape; those of shapes without an end of their own are linear."""
    match shape:
        case "polynomial":
            return polynomial(steps, start, end, given.get("power", 2.0))
        case "exponential":
            return exponential(steps, start, end)
        case "stepwise":
            return stepwise(steps, start, end, given.get("stages", min(4, steps)))
    return linear(steps, start, end)


def constant(steps: int, value: float = 1.0) -> np.ndarray:
    """The same at every step."""
    return linear(steps, value, value)


def linear(steps: int, start: float = 1.0, end: float = 1.0) -> np.ndarray:
    """From start to end in equal differences.

    >>> linear(5, 1.0, 3.0).tolist()
    [1.0, 1.5, 2.0, 2.5, 3.0]
    """
    return polynomial(steps, start, end, 1.0)


def polynomial(steps: int, start: float = 1.0, end: float = 1.0, power: float = 2.0) -> np.ndarray:
    """From start to end; with a power above 1 most of the change comes late."""
    check_number("power", power, "a finite number above 0", 0 < power < np.inf)
    _check_ends(start, end)
    return start + (end - start) * _progress(steps) ** power


def exponential(steps: int, start: float = 1.0, end: float = 1.0) -> np.ndarray:
    """From start to end in equal ratios."""
    _check_ends(start, end)
    return start * (end / start) ** _progress(steps)


def stepwise(steps: int, start: float = 1.0, end: float = 1.0, stages: int = 4) -> np.ndarray:
    """From start to end in equal ratios, changed only between stages of equally many steps.

    >>> stepwise(6, 8.0, 2.0, stages=3).tolist()
    [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]
    """
    check_count(steps)
    valid = isinstance(stages, int) and 1 <= stages <= steps  # with more of them the end would not be reached
    check_number("stages", stages, f"a whole number from 1 to steps={steps}", valid)
    return exponential(stages, start, end)[np.arange(steps) * stages // steps]


def _progress(steps: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, check_count(steps))  # one step is at the start


def check_count(steps: int) -> int:
    """Refuse a number of steps that is invalid or too large for a list of settings."""
    check_steps(steps)
    check_number("steps", steps, "at most a million steps for a schedule", steps <= 10**6)
    return steps


def _check_ends(start: float, end: float) -> None:
    for name, value in (("start", start), ("end", end)):
        check_number(name, value, "a finite number above 0", bool(np.isfinite(value)) and value > 0)


# --- By influence ------------------------------------------------------------------------------------------------


def optimal(influence: Any) -> np.ndarray:
    """σ_t = √(Σ_i √(q_i / q_t)): of all noise with Σ 1/σ_t² = 1, that with the least Σ q_t σ_t² (Hong, eq. 10).

    The least is (Σ √q_t)², by Cauchy and Schwarz. Steps of less influence have more noise; of none, as much as
    MOST_RATIO allows.

    >>> optimal([1.0, 16.0]).round(4).tolist()
    [2.2361, 1.118]
    """
    q = np.asarray(influence, float)
    if q.ndim != 1 or not q.size or not np.all(np.isfinite(q)) or q.min() < 0 or q.max() == 0:
        raise ValueError("influence must be a list of finite numbers of at least 0, not all of them 0")
    root = np.sqrt(np.maximum(q / q.max(), MOST_RATIO**-4.0))
    return np.sqrt(root.sum() / root)


def contraction_influence(steps: int, contraction: float) -> np.ndarray:
    """q_t = γ^(T-t): what each later step leaves of a step's noise, in the loss (Hong, theorem 3.2: γ = 1 - μ/M)."""
    check_number("contraction", contraction, "a number above 0 and below 1", 0 < contraction < 1)
    return contraction ** np.arange(check_count(steps) - 1, -1, -1.0)


def momentum_influence(steps: int, contraction: float, decay: float) -> np.ndarray:
    """q_t = (β^(2k) - γ^k) / (β² - γ), k = T - t + 1: the same where gradients are averaged with decay β (theorem 3.4).

    It is Σ_{j<k} β^(2j) γ^(k-1-j), which is also its limit where β² = γ.
    """
    check_number("contraction", contraction, "a number above 0 and below 1", 0 < contraction < 1)
    check_number("decay", decay, "a number of at least 0 and below 1", 0 <= decay < 1)
    k = np.arange(check_count(steps), 0, -1.0)
    square = decay**2
    if abs(square - contraction) < 1e-9:
        return k * contraction ** (k - 1)
    return (square**k - contraction**k) / (square - contraction)


def curvature_influence(steps: int, eigenvalues: Any, learning_rate: float) -> np.ndarray:
    """q_t = Σ_i λ_i (1 - ηλ_i)^(2(T-t)): what a step's noise adds to the last loss of descent at rate η.

    eigenvalues: of the loss's curvature at a *public* or simulated model; those of private records are private.
    """
    found = np.asarray(eigenvalues, float)
    check_number("learning_rate", learning_rate, "a finite number above 0", 0 < learning_rate < np.inf)
    if found.ndim != 1 or not found.size or not np.all(np.isfinite(found)) or found.min() < 0 or found.max() == 0:
        raise ValueError("eigenvalues must be a list of finite numbers of at least 0, not all of them 0")
    if learning_rate * found.max() >= 2:
        raise ValueError(
            f"learning_rate={learning_rate} diverges at curvature {found.max():.4g}; "
            f"expected below {2 / found.max():.4g}"
        )
    left = np.arange(check_count(steps) - 1, -1, -1.0)[:, None]
    return np.sum(found * np.abs(1 - learning_rate * found) ** (2 * left), axis=1)


# --- The schedule ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How many steps at each level, and each level's relative noise multiplier, sampling rate and relative clip.

    error: how much the levels raise Σ q_t σ_t² above its value for the settings they replace, at the same Σ 1/σ_t², for
    the influence q_t = σ_t⁻⁴ for which those settings are optimal; 0 where nothing was merged. largest: the largest
    relative difference between one step's noise, rate or clip and its level's.
    """

    steps: tuple[int, ...]
    noise: tuple[float, ...]
    sampling_rate: tuple[float, ...]
    clip: tuple[float, ...]
    error: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, noise: Any, sampling_rate: Any = 1.0, clip: Any = 1.0, levels: int = MOST_LEVELS) -> "Schedule":
        """From settings of single steps, arrays or numbers.

        Levels are runs of steps, chosen to minimise `error` together with differences of rate and clip.

        >>> Schedule.of(stepwise(6, 8.0, 2.0, stages=3), sampling_rate=0.1).steps
        (2, 2, 2)
        """
        check_number("levels", levels, f"a whole number from 1 to {MOST_LEVELS}", 1 <= levels <= MOST_LEVELS)
        settings = {"noise": noise, "sampling_rate": sampling_rate, "clip": clip}
        arrays = {name: np.atleast_1d(np.asarray(value, float)) for name, value in settings.items()}
        count = max(len(array) for array in arrays.values())
        for name, array in arrays.items():
            if array.ndim != 1 or len(array) not in (1, count):
                raise ValueError(
                    f"{name} has {array.size} settings and another {count}; give one, or one for each step"
                )
            if not np.all(np.isfinite(array)) or array.min() <= 0:
                raise ValueError(f"{name} has settings that are not finite numbers above 0; give such")
        check_number("sampling_rate", arrays["sampling_rate"].max(), "at most 1", arrays["sampling_rate"].max() <= 1)
        values = np.stack([np.broadcast_to(array, count) for array in arrays.values()])
        ends = _ends(values, levels)
        found = [_merged(part) for part in np.split(values, ends[:-1], axis=1)]
        counts = np.diff([0, *ends])
        least = np.repeat(np.array(found).T, counts, axis=1)
        together = sum(np.sqrt(part.size * np.sum(part**-4.0)) for part in np.split(values[0], ends[:-1]))
        is_merged = bool(np.any(least[0] != values[0]))
        return cls(
            tuple(int(n) for n in counts),
            *(tuple(float(v) for v in row) for row in zip(*found, strict=True)),  # type: ignore[arg-type]
            error=max(0.0, float((together / np.sum(values[0] ** -2.0)) ** 2 - 1)) if is_merged else 0.0,
            largest=float(np.max(np.abs(least / values - 1))),
        )

    @property
    def total(self) -> int:
        """How many steps there are."""
        return sum(self.steps)

    def noise_multipliers(self, scale: float) -> tuple[float, ...]:
        """The noise multiplier of each level: its relative noise times `scale`."""
        return tuple(scale * noise for noise in self.noise)

    def event(self, noise_multiplier: float) -> Event:
        """What the run costs in theory, where `noise_multiplier` is the scale of the relative noise.

        >>> from tacit.privacy.accounting import calibrate
        >>> found = calibrate(1.0, 1e-5, plan=Schedule.of(linear(50, 2.0, 1.0), sampling_rate=0.1).event)
        >>> 0.999 <= found.epsilon <= 1.0
        True
        """
        return compose(*self.events(noise_multiplier))

    def events(self, noise_multiplier: float) -> tuple[Event, ...]:
        """The event of each level; together they make `event`."""
        found: list[Event] = []
        levels = zip(self.steps, self.noise_multipliers(noise_multiplier), self.sampling_rate, strict=True)
        for count, multiplier, rate in levels:
            step: Event = Gaussian(multiplier)
            found.append(Repeated(step if rate == 1 else PoissonSampled(rate, step), count))
        return tuple(found)

    def plan(self, slots: int, unit: str, coordinates: int) -> Callable[[float], Event]:
        """What the actual run costs, as a function of the scale: for `calibrate(ε, δ, plan=schedule.plan(...))`.

        Guarantee: equal to the receipt of `repeat(key, schedule.steps, ...)` where each step makes one sum of that many
        coordinates, over that many slots of that unit, through `schedule.mechanism`. It includes truncated samples and
        the error of drawn noise, which `event` does not.

        >>> Schedule.of(linear(2, 2.0, 1.0)).plan(100, "record", 3)(5.0)
        Composed(events=(Gaussian(noise_multiplier=10.0, ..., coordinates=3), Gaussian(noise_multiplier=5.0, ...)))
        """

        def event(noise_multiplier: float) -> Event:
            levels = self.mechanism(1.0, noise_multiplier).level_events(slots, unit, coordinates)
            counts = zip(levels, self.steps, strict=True)
            return compose(*(step if count == 1 else Repeated(step, count) for step, count in counts))

        return event

    def mechanism(self, clip: float, noise_multiplier: float) -> SubsampledGaussian:
        """The mechanism that runs it: read at `access.at(level)` in `repeat(key, schedule.steps, ...)`."""
        clips = tuple(clip * relative for relative in self.clip)
        return SubsampledGaussian(clips, self.noise_multipliers(noise_multiplier), self.sampling_rate)

    def first(self, steps: int) -> "Schedule | None":
        """The schedule of the first `steps` steps, or of all if there are fewer; None if there are none."""
        kept, left = [], steps
        for count in self.steps:
            kept.append(min(count, left))
            left -= kept[-1]
        levels = sum(count > 0 for count in kept)
        if levels == 0:
            return None
        noise, rates, clips = (part[:levels] for part in (self.noise, self.sampling_rate, self.clip))
        return Schedule(tuple(kept[:levels]), noise, rates, clips, self.error, self.largest)


def _merged(settings: np.ndarray) -> np.ndarray:
    """One level's noise, rate and clip in place of its steps'; noise by eq. 10 for their common influence."""
    noise, rate, clip = settings
    weights = (noise / noise.min()) ** -2.0
    means = (np.exp(np.average(np.log(part), weights=weights)) for part in (rate, clip))
    found = np.array([noise.min() * np.mean((noise / noise.min()) ** -4.0) ** -0.25, *means])
    return np.clip(found, settings.min(axis=1), settings.max(axis=1))  # a setting that does not change stays exact


def _ends(values: np.ndarray, levels: int) -> list[int]:
    """Where each level ends, in the cheapest way to cut the steps into that many runs.

    A run of n steps with influences q = σ⁻⁴ costs √(n Σ q), as one level, out of (Σ √q)² in all, plus the variance of
    the logarithms of rate and clip in it, weighted by √q.
    """
    changes = np.flatnonzero(np.any(np.diff(values, axis=1) != 0, axis=0)) + 1
    ends = np.append(changes, values.shape[1])
    if len(ends) <= levels:
        return [int(end) for end in ends]
    if len(ends) > MOST_BLOCKS:
        ends = np.unique(np.round(np.linspace(0, len(ends), MOST_BLOCKS + 1)[1:]).astype(int) - 1)
        ends = np.append(changes, values.shape[1])[ends]
    noise = values[0] / values[0].min()
    logs = np.log(values[1:] / values[1:, :1])
    weight = noise**-2.0
    sums = [np.ones_like(noise), noise**-4.0, weight, *(weight * logs), *(weight * logs**2)]
    totals = np.stack([np.concatenate([[0.0], np.cumsum(part)[ends - 1]]) for part in sums])
    n, q, w, r, c, rr, cc = totals[:, None, :] - totals[:, :, None]  # of the run between two positions
    spread = rr + cc - (r**2 + c**2) / np.where((n > 0) & (w > 0), w, np.inf)
    cost = np.sqrt(np.maximum(n * q, 0)) + np.maximum(spread, 0)
    cost[n <= 0] = np.inf
    best, choices = cost[0], []
    for _ in range(levels - 1):
        through = best[:, None] + cost
        choice = np.argmin(through, axis=0)
        choices.append(choice)
        best = np.minimum.reduce(through, axis=0)
    place, found = len(ends), []
    for choice in reversed(choices):
        found.append(place)
        place = int(choice[place])
    return [int(ends[p - 1]) for p in (place, *reversed(found))]
