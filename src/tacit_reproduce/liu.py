"""Liu's thesis (2019): what its figures share: made-up records, its noised descent, runs over seeds, and prices.

Every row has a plan: `published` has the thesis's settings, `tacit` spends a small budget on the same records in our
way. The records are made up: x = (1, x₁), x₁ ~ N(0, 1), y ~ N(x·θ, σ_e²), θ = (-1, 2), prior N(0, 1).

Taken from the code that the thesis names (MrinankSharma/DP-PVI on GitHub): gradients are of means and log-variances,
clipped together, and noise is added to both; the noised sum of a lot is divided by the lot; a run stops after the
first update at which ε is above 100.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.engines import local, schedule
from tacit.families import DiagonalGaussian, FullGaussian, is_proper, quotient
from tacit.federated.pvi import PVI, CoordinatorState
from tacit.federated.simulated import unledgered
from tacit.models import LinearRegression
from tacit.privacy import accounting, parts
from tacit.privacy.clipping import Dense
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.mechanism import Access, Exact, PricedMechanism
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Level, Released, price, repeat
from tacit.solvers import Adaptive, Target
from tacit_reproduce import Row, mean_and_error

DELTA = 1e-4
TRUTH = (-1.0, 2.0)
PUBLISHED_ACCOUNTANT: accounting.Accountant = "moments"
LIMIT = 100.0  # ε at which figure 4.2 stops
QUICK_UPDATES = 40  # the most in a quick run
ACCOUNTING_NOTES = [
    "epsilon is by PLD (by Rényi divergences above 300), epsilon_published_accountant by the moments accountant with "
    "whole λ from 1 to 32, as published: λ = 1 is best at these ε, the edge of that grid (docs/errata.md, 12 and 13).",
    "Published rows are priced in theory. What runs has no bound above ε of about 14: a draw of noise is within 2⁻⁴⁸ "
    "of its ideal, and e^ε times that is more than δ. Tacit rows are priced as they were run.",
    "Samples are Poisson, as was accounted, and the noised sum is divided by the public L, where the thesis divides by "
    "the lot that was drawn (docs/errata.md, 5 and 6). Our sums are scaled by 1 / rate: a step α / N on them is the "
    "thesis's α / L on the lot's. Cavity and entropy are in the clip, 1/N in each record, as published.",
]


# --- Records and posteriors --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Study:
    """Made-up records (sites, records, ...) and the standard deviation σ_e of their targets."""

    x: np.ndarray
    y: np.ndarray
    noise_scale: float

    @property
    def sites(self) -> int:
        return self.x.shape[0]

    @property
    def records(self) -> int:
        """The number of records of each site."""
        return self.x.shape[1]

    def exact(self) -> FullGaussian:
        """The posterior of all records together, in double precision."""
        x, y = self.x.reshape(-1, len(TRUTH)).astype(float), self.y.reshape(-1).astype(float)
        return FullGaussian(x.T @ y / self.noise_scale**2, np.eye(len(TRUTH)) + x.T @ x / self.noise_scale**2)  # type: ignore[arg-type]

    def model(self, prior: DiagonalGaussian | FullGaussian) -> LinearRegression:
        return LinearRegression(prior, self.noise_scale)


@cache
def study(sites: int, records: int, noise_scale: float, seed: int, truth: tuple[float, float] = TRUTH) -> Study:
    """Section 4.1.5: the same distribution at every site."""
    rng = np.random.default_rng(seed)
    x = np.stack([np.ones((sites, records)), rng.normal(size=(sites, records))], axis=-1)
    y = x @ np.array(truth) + noise_scale * rng.normal(size=(sites, records))
    return Study(x.astype(np.float32), y.astype(np.float32), noise_scale)


def log_kl(q: Any, exact: FullGaussian) -> np.ndarray:
    """log KL(q ‖ exact) of Gaussians with any axes in front, in double precision; inf where q is not finite."""
    h, precision = np.asarray(q.precision_mean, float), np.asarray(q.precision, float)
    with np.errstate(all="ignore"):
        if isinstance(q, DiagonalGaussian):
            mean, variance, log_determinant = h / precision, 1 / precision, np.sum(np.log(precision), axis=-1)
            trace = variance @ np.diagonal(exact.precision)
        else:
            covariance = np.linalg.inv(precision)
            mean, log_determinant = (covariance @ h[..., None])[..., 0], np.linalg.slogdet(precision)[1]
            trace = np.trace(exact.precision @ covariance, axis1=-2, axis2=-1)
        gap = mean - np.linalg.solve(np.asarray(exact.precision), np.asarray(exact.precision_mean))
        away = np.einsum("...i,ij,...j->...", gap, exact.precision, gap)
        ratio = log_determinant - np.linalg.slogdet(np.asarray(exact.precision))[1]
        found = np.log((trace + away - gap.shape[-1] + ratio) / 2)
    return np.where(np.isnan(found), np.inf, found)


# --- The published local solver ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DPSGD:
    """Algorithm 2 on (4.21) and (4.22): plain descent on a diagonal q's means and log-variances.

        g_i = ∇[-log p(y_i | x_i, θ)] averaged over q, plus 1/N of the gradients of cavity and entropy
        step = learning_rate / L · (Σ_lot clip(g_i) + noise)

    L is the expected size of a lot; our sums are scaled by 1 / sampling rate, so the step on them is learning_rate / N.
    Cavity and entropy are inside the clip here, as published; `VI` has them outside (docs/errata.md, 5). `records` is
    the N of (4.21), taken to be public.

    adaptive: a clip that is moved, and paid for. The two remedies that 4.2.2 proposes: `threshold`, the longest noised
    gradient that is followed, and `decay`, the number of steps after which the learning rate is halved (and then goes
    as one over the steps).
    """

    steps: int
    learning_rate: float
    records: int
    adaptive: Adaptive | None = None
    threshold: float = math.inf
    decay: float = math.inf

    def gradients(self, target: Target, mean: Array, log_variance: Array, records: Any) -> tuple[Array, Array]:
        """g_i of means and log-variances, for a batch of records."""
        cavity, weight = target.cavity, target.likelihood.noise_scale**-2  # type: ignore[attr-defined]
        variance = jnp.exp(log_variance)
        shared_mean = (cavity.precision * mean - cavity.precision_mean) / self.records
        shared_variance = (cavity.precision * variance - 1) / (2 * self.records)
        x, y = records
        of_mean = weight * (x @ mean - y)[:, None] * x + shared_mean
        return of_mean, weight / 2 * x**2 * variance + shared_variance

    def memory(self, target: Target) -> Any:
        """The state kept between updates: that of the clip, and the number of steps."""
        mean = target.start.mean
        clip = () if self.adaptive is None else self.adaptive.begin((mean, mean))
        return clip, jnp.int32(0)

    def __call__(self, key: Array, target: Target, access: Access) -> Released[DiagonalGaussian]:
        return self.resume(key, target, access, self.memory(target)).map(lambda found: found[0])

    def resume(self, key: Array, target: Target, access: Access, memory: Any) -> Released[tuple[DiagonalGaussian, Any]]:
        def step(key: Array, level: Level, state: Any) -> Released[Any]:
            mean, log_variance, (clip, count) = state

            def contribution(records: Any) -> Dense:
                return Dense(self.gradients(target, mean, log_variance, records))

            def descend(total: tuple[Array, Array], clip: Any) -> Any:
                means = self.descended(mean, log_variance, total, count)
                return *means, (clip, count + 1)

            if self.adaptive is None:
                return access.at(level).sum(key, contribution).map(lambda total: descend(total, clip))
            found = self.adaptive.sum(key, access.at(level), contribution, clip)
            return found.map(lambda pair: descend(*pair))

        def end(state: Any) -> tuple[DiagonalGaussian, Any]:
            mean, log_variance, memory = state
            precision = jnp.exp(-log_variance)
            return DiagonalGaussian(precision * mean, precision), memory

        start = (target.start.mean, -jnp.log(target.start.precision), memory)
        return repeat(key, self.steps, step, start).map(end)

    def descended(self, mean: Array, log_variance: Array, total: tuple[Array, Array], count: Array) -> Any:
        """Means and log-variances after a step on a noised sum of gradients over all records."""
        of_mean, of_variance = (part / self.records for part in total)
        length = jnp.sqrt(jnp.sum(of_mean**2) + jnp.sum(of_variance**2))
        size = self.learning_rate / (1 + count.astype(mean.dtype) / self.decay)
        size = size * jnp.minimum(1, self.threshold / jnp.maximum(length, 1e-30))
        return mean - size * of_mean, log_variance - size * of_variance


# --- Running -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The result of `simulate`, seeds and updates in front, and the receipts of a site's first and later updates.

    improper: whether the product of all factors has been improper by then.
    """

    q: Any
    improper: np.ndarray
    first: Event
    later: Event
    log_kl: np.ndarray

    def event(self, updates: int) -> Event:
        """The event that a site has paid for after `updates` updates, as it was run."""
        return compose(self.first, *([Repeated(self.later, updates - 1)] if updates > 1 else []))


def _observed(state: CoordinatorState) -> Any:
    return state.q, ~is_proper(quotient(state.q, state.own))


def simulate(data: Study, algorithm: PVI, mechanism: PricedMechanism, updates: int, seeds: int) -> Run:
    """Run all sites in every update, for many seeds at once."""
    accesses = [Access.of((x, y), mechanism) for x, y in zip(data.x, data.y, strict=True)]
    keys = jnp.stack([insecure_key(seed) for seed in range(seeds)])
    steps = schedule.synchronous(data.sites, updates)
    _, found = local.simulate_many(algorithm, unledgered, keys, local.stacked(accesses), [steps] * seeds, _observed)
    q, improper = jax.tree.map(np.asarray, found)

    def paid(kind: int) -> Event:
        def update(key: Array, state: Any, content: Any, access: Access) -> Released[Any]:
            return algorithm.site_step(key, state, content, access, kind)

        return price(update, insecure_key(0), algorithm.site_init(), algorithm.prior, accesses[0])

    first = paid(algorithm.kind(0))
    later = first if algorithm.kind(1) == algorithm.kind(0) else paid(algorithm.kind(1))
    return Run(q, np.logical_or.accumulate(improper, axis=1), first, later, log_kl(q, data.exact()))


def in_theory(event: Event) -> Event:
    """The event without the error of its draws.

    A draw of noise is within 2⁻⁴⁸ of its ideal, and e^ε multiplies that: above ε of about 14 there is no bound left at
    δ = 1e-4 on what was *run*. Published prices are those of the ideal, and are compared as such.
    """
    found = parts.parts(event, "add-remove")
    if found is None:
        return event
    ideal = [
        accounting.subsampled_plan(part.noise_multiplier, 1.0 if part.rate is None else part.rate, count)
        for part, count in found.items()
    ]
    return ideal[0] if len(ideal) == 1 else compose(*ideal)


HUGE = 300.0  # above it Rényi divergences are used: they are close there, and PLD overflows near e^709


def prices(event: Event) -> Row:
    """Prices of an event, tight and by the published accountant."""
    bound = accounting.epsilon(event, DELTA, "rdp")
    return {
        "epsilon": bound if bound > HUGE else accounting.epsilon(event, DELTA),
        "epsilon_published_accountant": accounting.epsilon(event, DELTA, PUBLISHED_ACCOUNTANT),
        "delta": DELTA,
    }


def settings_of(mechanism: PricedMechanism) -> Row:
    """Columns of a mechanism's settings."""
    exact = isinstance(mechanism, Exact)
    return {
        "clip": None if exact else mechanism.clips[0],
        "noise_multiplier": None if exact else mechanism.noise_multipliers[0],
        "sampling_rate": mechanism.sampling_rates[0],
    }


def scores(run: Run, update: int) -> Row:
    """Columns of log KL after an update, over seeds; inf where a run is lost to overflow."""
    values = run.log_kl[:, update - 1]
    found = mean_and_error("log_kl", values) if np.all(np.isfinite(values)) else {"log_kl": math.inf}
    return {
        "log_kl": found["log_kl"],
        "log_kl_standard_error": found.get("log_kl_standard_error"),
        "log_kl_median": float(np.median(values)),
        "improper_runs": int(run.improper[:, update - 1].sum()),
    }


def checkpoints(updates: int, count: int) -> list[int]:
    """About `count` updates from the first to the last, equally far apart on a logarithmic scale."""
    return sorted({round(float(update)) for update in np.geomspace(1, updates, count)})


def wobble(run: Run, update: int) -> float | None:
    """The mean change of log KL from update to update, over the later half."""
    late = run.log_kl[:, update // 2 : update]
    return float(np.mean(np.abs(np.diff(late)))) if late.shape[1] > 1 else None


def text_row(rate: float, steps: int, updates: int, published: float, said: str, **more: Any) -> Row:
    """The ε in the thesis's text, beside the two prices of the same steps."""
    event = accounting.subsampled_plan(1.0, rate, steps * updates)
    return {
        "plan": "published",
        "method": f"text, {said}",
        "noise_multiplier": 1.0,
        "sampling_rate": rate,
        "server_updates": updates,
        "steps": steps * updates,
        **prices(event),
        "published_epsilon": published,
        **more,
    }


def updates_until(limit: float, rate: float, steps: int, most: int) -> int:
    """The first update after which the published accountant is above `limit`, or `most`."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        event = accounting.subsampled_plan(1.0, rate, steps * middle)
        above = accounting.epsilon(event, DELTA, PUBLISHED_ACCOUNTANT) > limit
        low, high = (low, middle) if above else (middle, high)
    return high
