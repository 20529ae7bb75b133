"""Accounting: what events cost. The only file that knows dp-accounting.

An event is first folded, once, into a count of distinct **parts** (`parts`), each a Gaussian or Laplace mechanism,
bare, Poisson-sampled, or Poisson-sampled with truncation. Each accountant prices those parts or refuses; none guesses.

| accountant | prices                                   | how                                                        |
|------------|------------------------------------------|------------------------------------------------------------|
| `pld`      | all but fixed-size samples               | loss distributions (`losses`), refined until ε settles     |
| `rdp`      | bare; sampled Gaussian; fixed-size       | Rényi divergences, best order                              |
| `moments`  | Gaussian, bare or sampled                | Abadi et al. as published: integer moments, integration    |
| `zcdp`     | bare (no amplification exists)           | ρ adds up; best conversion                                 |
| `tcdp`     | bare; sampled Gaussian                   | (ρ, ω) that covers the Rényi curve of what was run         |
| `advanced` | bare or sampled                          | amplification, then advanced composition                   |
| `basic`    | bare or sampled                          | amplification, then sums                                   |

Under replace-one only `pld` prices Poisson samples, and of those with Gaussian noise.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant as rdp_accountant
from scipy import optimize, special, stats

from tacit.privacy import events, losses
from tacit.privacy.events import Adjacency, Event, check_adjacency, check_number

Accountant = Literal["pld", "rdp", "moments", "zcdp", "tcdp", "advanced", "basic"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

# Halving the grid of `pld` changes ε by less than this, relatively: for a few distinct parts, and for a long schedule.
TOLERANCE, SCHEDULE_TOLERANCE = 1e-4, 1e-3
FEW_PARTS = 16
# How far one draw is from its ideal (`noise`, `sampling`), in total variation.
NOISE_DRAW_ERROR, GAP_DRAW_ERROR = 2.0**-48, 2.0**-52
_RELATIONS = {
    "add-remove": privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": privacy_accountant.NeighboringRelation.REPLACE_ONE,
}


# --- Fold an event into parts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One mechanism as an accountant sees it.

    `noise_multiplier` is relative to the clip where there is a sampling rate, and to the sensitivity under the asked
    adjacency where there is none. `slots` and `buffer` say where a Poisson sample is truncated.
    """

    noise: Literal["gaussian", "laplace"]
    noise_multiplier: float
    rate: float | None = None
    slots: int | None = None
    buffer: int | None = None
    fixed_size: bool = False
    coordinates: int = 0

    @property
    def truncation(self) -> float:
        """P(at least `buffer` of the other slots are chosen): only then can one unit's choice displace another."""
        if self.slots is None or self.buffer is None or self.rate is None:
            return 0.0
        return float(stats.binom.sf(self.buffer - 1, self.slots - 1, self.rate))

    @property
    def ideal(self) -> "Part":
        """The same in theory: a sample without end, noise without error."""
        return replace(self, slots=None, buffer=None, coordinates=0)

    @property
    def imperfection(self) -> float:
        """Total variation between one step as it runs and in theory: its draws of noise and of gaps."""
        gaps = 0 if self.slots is None or self.buffer is None else self.buffer + self.slots / 4095 + 1
        return self.coordinates * NOISE_DRAW_ERROR + gaps * GAP_DRAW_ERROR


def parts(event: Event, adjacency: Adjacency) -> Counter[Part] | None:
    """How often each part occurs, with bare multipliers relative to the sensitivity under `adjacency`.

    None stands for no guarantee at all. Refuses what is not an event of ours, mixed units, and an adjacency that the
    event does not determine.
    """
    found: Counter[Part] = Counter()
    units: set[str] = set()
    private = True

    def visit(event: Event, count: int) -> None:
        nonlocal private
        match event:
            case events.NonPrivate():
                private = False
            case events.Repeated(inner, steps):
                visit(inner, count * steps)
            case events.Composed(inner):
                for e in inner:
                    visit(e, count)
            case events.Gaussian() | events.Laplace():
                found[leaf(event, None)] += count
            case events.PoissonSampled(rate, inner):
                found[leaf(inner, rate)] += count
            case events.FixedSizeSampled(dataset_size, sample_size, inner):
                if adjacency != "replace-one":
                    raise ValueError("fixed-size samples have a price under replace-one only; ask for replace-one")
                # As without sampling, the noise is taken relative to replace-one: the theorem is stated so.
                found[replace(leaf(inner, None), rate=sample_size / dataset_size, fixed_size=True)] += count
            case events.TruncatedPoissonSampled(rate, slots, buffer, inner):
                part = leaf(inner, rate)
                if part.noise != "gaussian":
                    raise ValueError("a truncated sample is priced for Gaussian noise only, not for Laplace noise")
                found[replace(part, slots=slots, buffer=buffer) if rate < 1 else part] += count
            case _:
                raise ValueError(f"no accountant knows the event {event}")

    def leaf(event: Event, rate: float | None) -> Part:
        if not isinstance(event, events.Gaussian | events.Laplace):
            raise ValueError(f"sampling is priced around one Gaussian or Laplace mechanism, not around {event}")
        units.add(event.unit)
        rate = None if rate == 1 else rate
        multiplier = float(event.noise_multiplier)
        if event.adjacency != adjacency:
            if event.adjacency == "replace-one":
                raise ValueError("noise relative to replace-one says nothing about add-remove; ask for replace-one")
            if rate is None:
                multiplier /= 2  # replacing moves a sum by twice the clip
        elif event.adjacency == "replace-one" and rate is not None:
            raise ValueError("sampling under replace-one needs noise relative to add-remove (the clip)")
        name: Literal["gaussian", "laplace"] = "gaussian" if isinstance(event, events.Gaussian) else "laplace"
        return Part(name, multiplier, rate, coordinates=event.coordinates)

    visit(event, 1)
    if len(units) > 1:
        raise ValueError(f"events of different units do not add up: {', '.join(sorted(units))}; price each unit alone")
    return found if private else None


def departure(event: Event, adjacency: Adjacency = "add-remove") -> float:
    """How far `event` as it runs is from its theory, in total variation: cut-off samples, draws of noise and gaps.

    >>> departure(events.Repeated(events.Gaussian(1.0, coordinates=4), 8)) == 32 * NOISE_DRAW_ERROR
    True
    """
    found = parts(event, adjacency) or Counter()
    return sum(n * (part.truncation + part.imperfection) for part, n in found.items())


# --- The public functions ----------------------------------------------------------------------------------------


def check_delta(delta: Any) -> None:
    """Refuse a δ outside (0, 1)."""
    valid = isinstance(delta, int | float) and 0 < delta < 1
    check_number("delta", delta, "a number above 0 and below 1", valid)


def check_delta_of(delta: float, records: int, allowed: bool = False) -> None:
    """Refuse a δ of 1 / records or more, unless it is `allowed`: it may mean that some record is published as it is.

    records: the public number of units (slots) that δ is promised to.

    >>> check_delta_of(1e-5, 99_999)
    >>> check_delta_of(1e-2, 100)
    Traceback (most recent call last):
    ValueError: delta=0.01 for 100 records; expected less than 1 / records = 0.01, for ...
    """
    check_delta(delta)
    if not allowed and records > 0 and delta >= 1 / records:
        raise ValueError(
            f"delta={delta!r} for {records} records; expected less than 1 / records = {1 / records:.3g}, for a larger "
            "one allows that a record is published; lower delta, or allow it (allow_large_delta, --allow-large-delta)"
        )


def check_epsilon(epsilon: Any) -> None:
    """Refuse an ε that is not a finite number above 0."""
    valid = isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon > 0
    check_number("epsilon", epsilon, "a finite number above 0", valid)


def _check(accountant: Any, adjacency: Any, tolerance: float | None = None) -> None:
    check_number("accountant", repr(accountant), "one of " + ", ".join(ACCOUNTANTS), accountant in ACCOUNTANTS)
    check_adjacency(adjacency)
    valid = tolerance is None or 1e-9 <= tolerance <= 0.1
    check_number("tolerance", tolerance, "a number from 1e-9 to 0.1", valid)


@functools.lru_cache(maxsize=4096)
def epsilon(
    event: Event,
    delta: float,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float | None = None,
) -> float:
    """The ε for which `event` is (ε, δ)-differentially private: an upper bound, inf if there is none.

    `tolerance` is for `pld`: the grid is refined until halving it changes ε by less, relatively (1e-4 by default, 1e-3
    for a schedule of many levels). It is never optimistic: a coarser grid gives a larger ε. Up to 10⁶ sampled Gaussian
    steps the price was within 1e-3 of the exact value wherever it was compared (`losses`), in seconds.

    >>> round(epsilon(events.Repeated(events.PoissonSampled(0.02, events.Gaussian(5.0)), 1000), 1e-4), 3)
    0.367
    """
    check_delta(delta)
    _check(accountant, adjacency, tolerance)
    found = parts(event, adjacency)
    if found is None:
        return math.inf
    if not found:
        return 0.0
    return _less_imperfection(found, delta, lambda ideal, left: _price(accountant, ideal, left, adjacency, tolerance))


def _price(
    accountant: Accountant, found: Counter[Part], delta: float, adjacency: Adjacency, tolerance: float | None
) -> float:
    """ε of parts in theory, truncation included."""
    if accountant != "pld":
        return _closed_form(accountant, found, delta, adjacency)
    if (sigma := _single_gaussian(found)) is not None:
        return _gaussian_epsilon(delta, sigma)
    if delta < losses.LEAST_FOUND and not math.isfinite(_pure_epsilon(found)):
        raise ValueError(f"delta={delta} is below what pld can resolve; use a larger delta or the accountant rdp")
    value = _worst(
        found,
        adjacency,
        lambda steps: losses.view_for_delta(steps, delta),
        lambda loss: loss.epsilon(delta),
        tolerance,
    )
    return min(value, _pure_epsilon(found))


def _less_imperfection(found: Counter[Part], delta: float, price: Callable[[Counter[Part], float], float]) -> float:
    """ε of what runs from the price of its ideal.

    If every data set's output is within η of the ideal one and the ideal is (ε, δ')-private, what runs is
    (ε, δ' + (1 + e^ε)η)-private. A thousandth of δ is set aside for it, and more only if that does not do.
    """
    eta = sum(n * part.imperfection for part, n in found.items())
    ideal: Counter[Part] = Counter()
    for part, n in found.items():
        ideal[replace(part, coordinates=0)] += n
    reserve = delta / 1000 if eta > 0 else 0.0
    while reserve < delta:
        value = price(ideal, delta - reserve)
        needed = (1 + math.exp(min(value, 700.0))) * eta
        if needed <= reserve:
            return value
        reserve = max(2 * reserve, 1.1 * needed)
    return math.inf  # this δ does not pay for so many draws


@functools.lru_cache(maxsize=4096)
def delta(
    event: Event,
    epsilon: float,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float | None = None,
) -> float:
    """The δ for which `event` is (ε, δ)-differentially private: an upper bound, 1 if there is none.

    >>> round(delta(events.Gaussian(1.0), 1.0), 4)
    0.1269
    """
    valid = isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon >= 0
    check_number("epsilon", epsilon, "a finite number of at least 0", valid)
    _check(accountant, adjacency, tolerance)
    found = parts(event, adjacency)
    if found is None:
        return 1.0
    if not found:
        return 0.0
    eta = (1 + math.exp(min(epsilon, 700.0))) * sum(n * part.imperfection for part, n in found.items())
    return min(1.0, eta + _delta(accountant, found, epsilon, adjacency, tolerance))


def _delta(
    accountant: Accountant, found: Counter[Part], epsilon: float, adjacency: Adjacency, tolerance: float | None
) -> float:
    """δ of parts in theory, truncation included."""
    if accountant == "pld":
        if (sigma := _single_gaussian(found)) is not None:
            return _gaussian_delta(epsilon, sigma)
        if epsilon >= _pure_epsilon(found):
            return 0.0
        return _worst(
            found,
            adjacency,
            lambda steps: losses.view_for_epsilon(steps, epsilon),
            lambda loss: float(loss.delta(np.array([epsilon]))[0]),
            tolerance,
        )
    low, high = -700.0, 0.0  # of log δ; the smallest δ whose ε is small enough
    for _ in range(60):
        middle = (low + high) / 2
        enough = _closed_form(accountant, found, math.exp(middle), adjacency) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


@dataclass(frozen=True)
class Calibration:
    """Noise found for a target: the multiplier, the ε it reaches (at most the target), and the event it makes."""

    noise_multiplier: float
    epsilon: float
    event: Event


def calibrate(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    steps: int = 1,
    plan: Callable[[float], Event] | None = None,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float = 1e-3,
) -> Calibration:
    """The least noise for which a plan is (ε, δ)-differentially private, and never more than ε.

    `plan` makes the event from a noise multiplier; without it, `steps` Poisson-sampled Gaussian steps. The ε reached
    is within `tolerance` (relatively) of a target above 1e-6, from below.

    >>> found = calibrate(1.0, 1e-5, sampling_rate=0.01, steps=2000)
    >>> 0.999 <= found.epsilon <= 1.0
    True
    """
    check_epsilon(epsilon)
    check_delta(delta)
    events.check_sampling_rate(sampling_rate)
    events.check_steps(steps)
    _check(accountant, adjacency)
    make = plan or (lambda noise: subsampled_plan(noise, sampling_rate, steps))

    def reached(noise_multiplier: float) -> float:
        return price_of(make(noise_multiplier), delta, accountant, adjacency)

    low, high, least = 0.5, 1.0, epsilon * (1 - tolerance / 2)  # the aim lies between what low and high reach
    while reached(high) > least:
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"epsilon={epsilon} with delta={delta} is not reached by any noise multiplier up to 1e6")
    while reached(low) <= least:
        low, high = low / 2, low
        if low < 1e-3:
            return Calibration(high, reached(high), make(high))

    aim = math.log(least)
    noise_multiplier = math.exp(
        _root(lambda x: math.log(max(reached(math.exp(x)), 1e-12)) - aim, math.log(low), math.log(high), tolerance / 16)
    )
    while reached(noise_multiplier) > epsilon:
        noise_multiplier *= 1 + tolerance / 8
    return Calibration(noise_multiplier, reached(noise_multiplier), make(noise_multiplier))


def price_of(event: Event, delta: float, accountant: Accountant, adjacency: Adjacency) -> float:
    """`epsilon` under a name that the arguments called epsilon do not hide."""
    return epsilon(event, delta, accountant, adjacency)


def subsampled_plan(noise_multiplier: float, sampling_rate: float, steps: int) -> Event:
    """`steps` Poisson-sampled Gaussian steps: the event behind most figures in the literature."""
    mechanism: Event = events.Gaussian(noise_multiplier)
    if sampling_rate != 1:
        mechanism = events.PoissonSampled(sampling_rate, mechanism)
    return events.Repeated(mechanism, steps)


def true_positive_rate(event: Event, false_positive_rate: float, adjacency: Adjacency = "add-remove") -> float:
    """The most often an attacker can be right about a unit that is there, if wrong this often about one that is not.

    Whatever the attack, P(right) ≤ e^ε · P(wrong) + δ(ε) and P(right) ≤ 1 - e^-ε (1 - δ(ε) - P(wrong)) for every ε.

    >>> round(true_positive_rate(events.Gaussian(1.0), 0.01), 3)
    0.092
    """
    return true_positive_rates(event, (false_positive_rate,), adjacency)[0]


def true_positive_rates(
    event: Event, false_positive_rates: Sequence[float], adjacency: Adjacency = "add-remove"
) -> list[float]:
    """`true_positive_rate` at each of several rates, for hardly more than the time of the first.

    >>> [round(rate, 3) for rate in true_positive_rates(events.Gaussian(1.0), (0.01, 0.1))]
    [0.092, 0.389]
    """
    for rate in false_positive_rates:
        check_number("false_positive_rate", rate, "a number from 0 to 1", 0 <= rate <= 1)
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is None:
        return [1.0] * len(false_positive_rates)
    if not found:
        return list(false_positive_rates)
    bounds = [1.0] * len(false_positive_rates)
    least = min(false_positive_rates)
    directions = _directions(found, adjacency)
    views = [losses.view_for_delta(steps, 1e-15 + 1e-3 * least) for steps in directions]

    def best(composed: Sequence[losses.Loss], rates: Sequence[float]) -> list[float]:
        limit = min(max(loss.epsilon(1e-15 + 1e-6 * min(rates)) for loss in composed), 700.0)
        grid = np.linspace(0.0, limit, 4001)
        imperfection = (1 + np.exp(grid)) * sum(n * part.imperfection for part, n in found.items())
        deltas = np.maximum.reduce([loss.delta(grid) for loss in composed]) + imperfection
        by_ratio = (np.exp(grid) * rate + deltas for rate in rates)
        by_complement = (1 - np.exp(-grid) * (1 - deltas - rate) for rate in rates)
        return [float(min(*map(np.min, pair), 1.0)) for pair in zip(by_ratio, by_complement, strict=True)]

    def read(scale: float) -> float:
        """All of them are bounds, on any grid; the first decides how fine it has to be."""
        grids = [seen.first_grid(TOLERANCE) * scale for seen in views]
        composed = [losses.compose(*each) for each in zip(directions, views, grids, strict=True)]
        first, *others = false_positive_rates
        now = best(composed, [first]) + (best(composed, others) if others else [])
        bounds[:] = map(min, bounds, now)
        return now[0]

    finest = max(seen.finest / seen.first_grid(TOLERANCE) for seen in views)
    _settled(1.0, finest, read, TOLERANCE if len(found) <= FEW_PARTS else SCHEDULE_TOLERANCE)
    return bounds


# --- Closed forms ------------------------------------------------------------------------------------------------


def _single_gaussian(found: Counter[Part]) -> float | None:
    """Bare Gaussian mechanisms are together one, with 1/σ² the sum of theirs; None if there is anything else."""
    if any(part.rate is not None or part.noise != "gaussian" for part in found):
        return None
    return sum(n / part.noise_multiplier**2 for part, n in found.items()) ** -0.5


def _gaussian_delta(epsilon: float, sigma: float) -> float:
    """δ of one Gaussian mechanism of sensitivity 1 (Balle & Wang 2018, theorem 8)."""
    upper = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
    return max(0.0, float(upper - math.exp(epsilon + stats.norm.logcdf(-0.5 / sigma - epsilon * sigma))))


def _gaussian_epsilon(delta: float, sigma: float) -> float:
    """The inverse of `_gaussian_delta`, rounded up: the difference of its two terms keeps some nine digits."""
    delta = delta * (1 - 1e-8)
    if _gaussian_delta(0.0, sigma) <= delta:
        return 0.0
    high = 1.0
    while _gaussian_delta(high, sigma) > delta:
        high *= 2
    return _root(lambda e: _gaussian_delta(e, sigma) - delta, 0.0, high, 1e-13) * (1 + 1e-12)


def _root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    return optimize.brentq(function, low, high, xtol=tolerance)  # type: ignore[return-value]  # without full_output


def _pure_epsilon(found: Counter[Part]) -> float:
    """The ε at which δ is 0: Laplace noise has one, Σ log(1 + q(e^{1/b} - 1)); Gaussian noise has none."""
    if any(part.noise != "laplace" for part in found):
        return math.inf
    return sum(n * _amplified(1 / part.noise_multiplier, part.rate or 1.0) for part, n in found.items())


def _amplified(epsilon: float, rate: float) -> float:
    """ε of a mechanism on a Poisson sample: log(1 + q(e^ε - 1)) (Jälkö 2.25)."""
    if epsilon > 1:
        return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + epsilon))
    return math.log1p(rate * math.expm1(epsilon))


# --- pld ---------------------------------------------------------------------------------------------------------


def _directions(found: Counter[Part], adjacency: Adjacency) -> list[Counter[losses.Step]]:
    """What `losses` composes: the steps of each direction that can be the worst. Bare Gaussians are one."""
    sampled = any(part.rate is not None for part in found)
    names: tuple[losses.Direction, ...] = ("replace",) if adjacency == "replace-one" else ("remove", "add")
    directions = []
    for direction in names if sampled else names[:1]:
        steps: Counter[losses.Step] = Counter()
        bare: Counter[Part] = Counter()
        for part, count in found.items():
            if part.rate is None and part.noise == "gaussian":
                bare[part] += count
            else:
                steps[_step(part, direction)] += count
        if bare and (sigma := _single_gaussian(bare)) is not None:
            steps[((1.0, losses.Pair("gaussian", sigma)),)] += 1
        directions.append(steps)
    return directions


def _step(part: Part, direction: losses.Direction) -> losses.Step:
    """The pair of laws that a step's loss is about, or a mixture of two for a truncated sample.

    Let the unit's slot be i. Condition on the choice among the other slots, which does not depend on the data, and
    reveal it. If fewer than `buffer` others are chosen, nothing is cut: the pair is that of Poisson sampling. Else
    choosing i may push out one other unit j: the sum is a with probability 1 - rate, and a - x_j + x_i (slot filled)
    or a - x_j (slot empty; a, if the others move up to fill it) with probability rate; for replace-one a - x_j + x'_i.
    All alternatives lie within 2C of a, and such pairs are dominated by the one that lies 2C apart on either side: the
    replace-one pair of a sampled Gaussian with twice the clip. Revealing which case holds makes the loss a mixture of
    the two, with the probability of the second as its weight.
    """
    if part.fixed_size:
        raise ValueError("pld does not price fixed-size samples; use the accountant rdp")
    if part.rate is None:  # the multiplier is already relative to the sensitivity under the adjacency
        return ((1.0, losses.Pair(part.noise, part.noise_multiplier)),)
    if part.noise == "laplace" and direction == "replace":
        raise ValueError("pld does not price sampled Laplace noise under replace-one; ask for add-remove")
    pair = losses.Pair(part.noise, part.noise_multiplier, part.rate, direction)
    if part.truncation == 0:
        return ((1.0, pair),)
    displaced = losses.Pair("gaussian", part.noise_multiplier / 2, part.rate, "replace")
    return ((1 - part.truncation, pair), (part.truncation, displaced))


def _settled(grid: float, finest: float, read: Callable[[float], float], tolerance: float) -> float:
    """`read` of a grid, which is refined until halving it changes little.

    Every answer is an upper bound; the least is returned. The error falls with the square of the grid, so a halving
    that changes too much tells how fine the next grid must be.
    """
    while True:
        coarse, fine = read(grid), read(grid / 2)
        change, allowed = abs(coarse - fine), tolerance * max(abs(fine), 1e-300)
        if not math.isfinite(fine) or change <= allowed or grid / 2 <= finest:
            return min(coarse, fine)
        grid = max(grid * min(max(0.8 * math.sqrt(allowed / change), 1 / 16), 1 / 2), finest)


def _worst(
    found: Counter[Part],
    adjacency: Adjacency,
    view: Callable[[losses.Steps], losses.View],
    read: Callable[[losses.Loss], float],
    tolerance: float | None,
) -> float:
    """The largest `read` of the directions. One that is the lesser on a first grid is refined only if it must be."""
    tolerance = tolerance or (TOLERANCE if len(found) <= FEW_PARTS else SCHEDULE_TOLERANCE)
    looked = []
    for steps in _directions(found, adjacency):
        seen = view(steps)
        grid = seen.first_grid(tolerance)
        looked.append((read(losses.compose(steps, seen, grid)), grid, steps, seen))
    worst = 0.0
    for first, grid, steps, seen in sorted(looked, key=lambda each: -each[0]):
        if first <= worst:
            break  # also a first bound is a bound
        known = {grid: first}

        def at(grid: float, known: dict[float, float] = known, steps: Any = steps, seen: Any = seen) -> float:
            return known[grid] if grid in known else read(losses.compose(steps, seen, grid))

        worst = max(worst, _settled(grid, seen.finest, at, tolerance))
    return worst


# --- The other accountants ---------------------------------------------------------------------------------------


def _closed_form(accountant: str, found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """ε by an accountant other than `pld`, with truncated samples paid out of δ.

    Truncation changes a step's output only if more than `buffer` slots are chosen. If that has probability at most τ
    over all steps, and the untruncated steps are (ε, δ')-private, the truncated ones are (ε, δ' + (1 + e^ε)τ)-private.
    """
    ideal: Counter[Part] = Counter()
    tau = 0.0
    for part, count in found.items():
        ideal[part.ideal] += count
        tau += count * part.truncation
    price = _PRICES[accountant]
    value = price(ideal, delta, adjacency)
    while tau > 0:
        left = delta - (1 + math.exp(min(value, 700.0))) * tau
        if left <= 0:
            return math.inf  # this δ does not pay for such a small buffer
        paid = price(ideal, left, adjacency)
        if paid <= value * (1 + 1e-12):
            break
        value = paid
    return value


# --- rdp, moments, zcdp, tcdp ------------------------------------------------------------------------------------

ORDERS: tuple[float, ...] = (
    *(1 + x / 1000 for x in range(5, 100, 5)),
    *(1 + x / 100 for x in range(10, 1000, 5)),
    *(float(x) for x in range(11, 64)),
    *(64.0, 72.0, 80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
)


def _refuse_sampled_replacement(part: Part, adjacency: Adjacency, accountant: str) -> None:
    if part.fixed_size:
        raise ValueError(f"{accountant} does not price fixed-size samples; use the accountant rdp")
    if part.rate is not None and adjacency == "replace-one":
        raise ValueError(f"{accountant} does not price sampling under replace-one; use the accountant pld")


def rdp(event: Event, orders: Iterable[float] = ORDERS, adjacency: Adjacency = "add-remove") -> np.ndarray:
    """The Rényi divergence bound of `event` at each order α > 1, in theory: truncated samples are refused."""
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is not None:
        _refuse_truncated(found)
    chosen = np.asarray(tuple(orders), float)
    return np.full(chosen.shape, math.inf) if found is None else _rdp(found, tuple(chosen.tolist()), adjacency, "rdp")


def _refuse_truncated(found: Counter[Part]) -> None:
    if any(part.truncation > 0 for part in found):
        raise ValueError("a truncated sample has no useful Rényi divergence; ask epsilon, which pays for it out of δ")


def _rdp(found: Counter[Part], orders: tuple[float, ...], adjacency: Adjacency, accountant: str) -> np.ndarray:
    total = np.zeros(len(orders))
    for part, count in found.items():
        if not part.fixed_size or accountant != "rdp":
            _refuse_sampled_replacement(part, adjacency, accountant)
        if part.noise == "laplace" and part.rate is not None:
            raise ValueError(f"{accountant} does not price sampled Laplace noise; use the accountant pld")
        total += count * _part_rdp(part, orders)
    return total


@functools.lru_cache(maxsize=512)
def _part_rdp(part: Part, orders: tuple[float, ...]) -> np.ndarray:
    """dp-accounting's divergences; fractional orders of sampled Gaussians by integration, for its series is loose."""
    alphas = np.asarray(orders)
    sampled = part.rate is not None and not part.fixed_size
    if sampled and part.noise_multiplier < LEAST_INTEGRATED:
        alphas = np.ceil(alphas)  # a divergence never falls with its order
    integrate = (alphas != np.round(alphas)) & sampled
    divergence = np.empty(len(orders))
    divergence[integrate] = [_log_moment(part, alpha) / (alpha - 1) for alpha in alphas[integrate]]
    if integrate.all():
        return divergence
    relation = _RELATIONS["replace-one" if part.fixed_size else "add-remove"]
    accountant = rdp_accountant.RdpAccountant(alphas[~integrate].tolist(), relation)
    mechanism = dp_event.GaussianDpEvent if part.noise == "gaussian" else dp_event.LaplaceDpEvent
    event: Any = mechanism(part.noise_multiplier)
    if part.fixed_size:
        event = dp_event.SampledWithoutReplacementDpEvent(1, part.rate, event)  # type: ignore[arg-type]  # a ratio
    elif part.rate is not None:
        event = dp_event.PoissonSampledDpEvent(part.rate, event)
    accountant.compose(event)
    divergence[~integrate] = accountant.rdp
    return divergence


LEAST_INTEGRATED = 0.1  # the integrand bends within σ², so less noise takes too many points; its ε is huge anyway


def _log_moment(part: Part, alpha: float) -> float:
    """ln max(E₁, E₂) of one Gaussian step by numerical integration (Liu 2.25-2.29), with α = λ + 1.

    E₁ = E_{z~μ₁}[(μ₀/μ₁)^α], E₂ = E_{z~μ₀}[(μ₁/μ₀)^α], μ₀ = N(0, σ²), μ₁ = (1 - q) N(0, σ²) + q N(1, σ²).
    """
    sigma, rate = part.noise_multiplier, part.rate or 1.0
    if rate == 1:
        return alpha * (alpha - 1) / (2 * sigma**2)
    # Bumps of width σ from 0 to α and a bend of width σ²: the trapezoid rule is exact to rounding at an eighth.
    spacing = min(sigma, sigma**2) / 8
    z = np.arange(-40 * sigma, alpha + 1 + 40 * sigma, spacing)
    log_zero = -((z / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi) / spacing)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))

    def log_mean(log_density: np.ndarray, power: np.ndarray) -> float:
        total = special.logsumexp(log_density + power)
        if total > 1e-3:
            return float(total)
        # Near 1 the mean is taken of the excess over 1, which keeps its digits.
        small = np.abs(power) < 1
        excess = np.exp(log_density[small]) * np.expm1(power[small])
        rest = np.exp(log_density[~small] + power[~small]) - np.exp(log_density[~small])
        return math.log1p(max(float(excess.sum() + rest.sum()), 0.0))

    return max(log_mean(log_zero, alpha * log_ratio), log_mean(log_zero + log_ratio, -alpha * log_ratio))


def _epsilon_of_rdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    divergence = _rdp(found, ORDERS, adjacency, "rdp").tolist()
    value, _ = rdp_accountant.compute_epsilon(ORDERS, divergence, delta)
    return float(value)


MOMENTS = range(1, 33)  # λ, integers as published


@functools.lru_cache(maxsize=512)
def _log_moments(part: Part) -> np.ndarray:
    """α(λ) of one step at each λ."""
    if part.noise_multiplier < LEAST_INTEGRATED:
        return np.array(MOMENTS) * _part_rdp(part, tuple(moment + 1.0 for moment in MOMENTS))
    return np.array([_log_moment(part, moment + 1) for moment in MOMENTS])


def _epsilon_of_moments(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """ε = min_λ (Σ α(λ) - ln δ) / λ (Liu 2.20, 2.23)."""
    total = np.zeros(len(MOMENTS))
    for part, count in found.items():
        _refuse_sampled_replacement(part, adjacency, "moments")
        if part.noise == "laplace":
            raise ValueError("moments prices Gaussian noise only; use the accountant pld for Laplace noise")
        total += count * _log_moments(part)
    return float(np.min((total - math.log(delta)) / np.array(MOMENTS)))


def renyi_spread(alpha: Any, delta: float) -> Any:
    """What a divergence at order α leaves to add: ε = D_α + this (Canonne, Kamath & Steinke 2020, proposition 12)."""
    return (math.log(1 / delta) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (alpha - 1)


def zcdp_rho(event: Event, adjacency: Adjacency = "add-remove") -> float:
    """The ρ for which `event` is ρ-zCDP, in theory: D_α ≤ ρα for all α > 1. It adds up; inf if there is none.

    1/(2σ²) for Gaussian noise σ relative to the sensitivity, and for Laplace noise of that scale. Refuses samples. The
    error of drawn noise is no part of ρ: `epsilon` pays for it out of δ.

    >>> zcdp_rho(events.Repeated(events.Gaussian(2.0), 4))
    0.5
    """
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    return math.inf if found is None else _zcdp_rho(found)


def _zcdp_rho(found: Counter[Part]) -> float:
    for part in found:
        if part.rate is not None:
            raise ValueError("zcdp has no amplification by sampling; use the accountant tcdp or, tightly, pld")
    return sum(count * _bare_rho(part) for part, count in found.items())


def _bare_rho(part: Part) -> float:
    """ρ of the mechanism without sampling: Gaussian; and (1/b)²/2 for Laplace, the same formula."""
    return 1 / (2 * part.noise_multiplier**2)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least ε for which ρ-zCDP is known to be (ε, δ)-private (Canonne, Kamath & Steinke 2020).

    ε = min over α > 1 of ρα + (ln(1/δ) + (α - 1) ln(1 - 1/α) - ln α) / (α - 1)

    >>> round(zcdp_epsilon(0.5, 1e-5), 3)
    4.728
    """
    return tcdp_epsilon(rho, math.inf, delta)


def tcdp_epsilon(rho: float, omega: float, delta: float) -> float:
    """The least ε for which (ρ, ω)-tCDP is known to be (ε, δ)-private: `zcdp_epsilon` with orders 1 < α < ω only.

    >>> round(tcdp_epsilon(0.5, 3.0, 1e-5), 3)
    6.302
    """
    check_number("rho", rho, "a number of at least 0", rho >= 0)
    if omega != math.inf:
        check_omega(omega)
    check_delta(delta)
    if rho in (0, math.inf):
        return float(rho)  # two equal distributions, or no guarantee at all

    def bound(log_excess: Any) -> Any:
        alpha = 1 + np.exp(log_excess)
        return rho * alpha + renyi_spread(alpha, delta)

    # A valley in log(α - 1): find it on a grid, then its bottom. At α = ω it is the limit from below.
    grid = np.linspace(LEAST_LOG_EXCESS, min(30.0, math.log(omega - 1)), 400)
    best = int(np.argmin(bound(grid)))
    ends = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    valley = optimize.minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 1e-12})
    return max(0.0, min(float(valley.fun), float(bound(grid[best]))))


LEAST_LOG_EXCESS = -30.0  # of the order α: nearer to 1 floats do not tell it from 1


def check_omega(omega: Any) -> None:
    """Refuse an ω that is not a finite number of at least 1.001: closer to 1, floats lose the divergence."""
    valid = isinstance(omega, int | float) and math.isfinite(omega) and omega >= 1.001
    check_number("omega", omega, "a finite number of at least 1.001", valid)


def _epsilon_of_zcdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    del adjacency  # bare multipliers are relative to it already
    return zcdp_epsilon(_zcdp_rho(found), delta)


def tcdp_rho(event: Event, omega: float, adjacency: Adjacency = "add-remove") -> float:
    """A ρ for which `event` is (ρ, ω)-tCDP, in theory: D_α ≤ ρα for 1 < α < ω. It adds up; inf if there is none.

    Of each part it covers the Rényi curve, to about 1 %, from above; the sum over parts covers that of all. Refuses
    truncated samples, as `rdp` does.

    >>> step = events.PoissonSampled(0.02, events.Gaussian(5.0))
    >>> f"{tcdp_rho(step, 12.0):.1e}, and {tcdp_rho(events.Gaussian(5.0), 12.0):.1e} without sampling"
    '8.2e-06, and 2.0e-02 without sampling'
    """
    check_omega(omega)
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is None:
        return math.inf
    _refuse_truncated(found)
    return sum(count * _part_tcdp_rho(part, float(omega), adjacency) for part, count in found.items())


@functools.lru_cache(maxsize=4096)
def _part_tcdp_rho(part: Part, omega: float, adjacency: Adjacency) -> float:
    part = part.ideal
    # Without sampling D_α/α is ρ for Gaussian noise, and about ρ for much Laplace noise, whose divergence floats lose.
    if part.rate is None and (part.noise == "gaussian" or part.noise_multiplier > 100 or omega > ORDERS[-1]):
        return _bare_rho(part)
    expected = f"at most {ORDERS[-1]:g}, the largest order that is computed for samples"
    check_number("omega", omega, expected, omega <= ORDERS[-1])
    orders = (*(order for order in ORDERS if order < omega), omega)
    covering = _covering(orders, _rdp(Counter([part]), orders, adjacency, "tcdp"))
    # A divergence is the logarithm of a number that may be near 1, of which floats keep 16 digits. And a sample tells
    # no more than all records.
    return min(float(covering[-1]) + 1e-15, _bare_rho(part))


def _covering(orders: tuple[float, ...], divergence: np.ndarray) -> np.ndarray:
    """For each ω of the orders, a ρ with D_α ≤ ρα for all 1 < α ≤ ω, also between orders.

    f(α) = (α - 1) D_α is convex, and 0 at 1, so that between two orders it is at most its chord c + sα. The chord over
    α(α - 1) is largest at an end or where sα² + 2cα = c.
    """
    above = np.asarray(orders)
    below = np.concatenate([[1.0], above[:-1]])
    moment = (above - 1) * divergence
    before = np.concatenate([[0.0], moment[:-1]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # beyond floats; no root; the pole at 1
        slope = (moment - before) / (above - below)
        shift = before - slope * below
        ratio = shift / slope
        places = [below, above, *(sign * np.sqrt(ratio**2 + ratio) - ratio for sign in (1, -1))]
        heights = [
            np.where((a >= below) & (a <= above) & (a > 1), (shift + slope * a) / (a * (a - 1)), -np.inf)
            for a in places
        ]
    heights[0][0] = divergence[0]  # up to the first order D_α only grows, and α is at least 1
    highest = np.maximum.reduce(heights)
    return np.maximum.accumulate(np.where(np.isnan(highest), np.inf, highest))


def _epsilon_of_tcdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """The best (ρ, ω) that covers the Rényi curve: D_α ≤ ρα for 1 < α < ω."""
    rhos = _covering(ORDERS, _rdp(found, ORDERS, adjacency, "tcdp"))
    orders = np.array(ORDERS)
    return max(0.0, float(np.min(rhos * orders + renyi_spread(orders, delta))))  # α at its limit ω: ρ only grows with ω


# --- advanced, basic ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _single(part: Part, delta: float, adjacency: Adjacency, accountant: str) -> float:
    """ε of one step at δ: the exact Gaussian or Laplace mechanism, amplified by sampling (δ divides by the rate)."""
    _refuse_sampled_replacement(part, adjacency, accountant)
    rate = part.rate or 1.0
    if part.noise == "laplace":
        return _amplified(1 / part.noise_multiplier, rate)
    return _amplified(_gaussian_epsilon(min(delta / rate, 0.5), part.noise_multiplier), rate)


def _epsilon_of_basic(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """Σ ε_i, with δ in equal parts (Jälkö 2.26)."""
    steps = sum(found.values())
    return sum(count * _single(part, delta / steps, adjacency, "basic") for part, count in found.items())


def _epsilon_of_advanced(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """√(2 ln(1/δ') Σ ε_i²) + Σ ε_i (e^ε_i - 1), the best of several splits of δ (Jälkö 2.27); basic if it is less."""
    steps = sum(found.values())
    best = _epsilon_of_basic(found, delta, adjacency)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        each = [(_single(part, (1 - share) * delta / steps, adjacency, "advanced"), n) for part, n in found.items()]
        if max(e for e, _ in each) > 300:
            continue
        squares = sum(n * e * e for e, n in each)
        drift = sum(n * e * math.expm1(e) for e, n in each)
        best = min(best, math.sqrt(2 * math.log(1 / (share * delta)) * squares) + drift)
    return best


_PRICES: dict[str, Callable[[Counter[Part], float, Adjacency], float]] = {
    "rdp": _epsilon_of_rdp,
    "moments": _epsilon_of_moments,
    "zcdp": _epsilon_of_zcdp,
    "tcdp": _epsilon_of_tcdp,
    "advanced": _epsilon_of_advanced,
    "basic": _epsilon_of_basic,
}
