"""Liu's thesis (2019): figure 3.3, what algorithm 3 costs, and figures 4.1 and 4.2.

The latter are partitioned inference with noised gradients (data-point level DP-PVI).
Every row is of a plan: `published` has the thesis's settings, `tacit` spends a small budget on the same records in our
way. The records are made up: x = (1, x₁), x₁ ~ N(0, 1), y ~ N(x·θ, σ_e²), θ = (-1, 2), prior N(0, 1).

Taken from the code that the thesis names (MrinankSharma/DP-PVI on GitHub): gradients are of means and log-variances,
clipped together, and noise is added to both; the noised sum of a lot is divided by the lot; a run stops after the
first update at which ε is above 100.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tacit.engines import local, schedule
from tacit.families import DiagonalGaussian, FullGaussian, is_proper, quotient
from tacit.federated.pvi import PVI, CoordinatorState
from tacit.federated.site import unledgered
from tacit.models import LinearRegression
from tacit.privacy import accounting
from tacit.privacy.clipping import Dense
from tacit.privacy.events import Event, Gaussian, Repeated, compose
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Level, Released, price, repeat
from tacit.report.style import COLOURS, logarithmic, panels
from tacit.reproduce import Outcome, Row, Track, mean_and_error
from tacit.solvers import VI, Adaptive, NaturalStep, Target, conjugate

DELTA = 1e-4
TRUTH = (-1.0, 2.0)
PUBLISHED_ACCOUNTANT: accounting.Accountant = "moments"
LIMIT = 100.0  # ε at which figure 4.2 stops
Mechanism = SubsampledGaussian | Exact


# --- Records and posteriors --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Study:
    """Made-up records (sites, records, ...) and the deviation σ_e of their targets."""

    x: np.ndarray
    y: np.ndarray
    noise_scale: float

    @property
    def sites(self) -> int:
        return self.x.shape[0]

    @property
    def records(self) -> int:
        """Of each site."""
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
        """What is kept from update to update: where the clip is, and the number of steps."""
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
    """What `simulate` found, seeds and updates in front, and the receipt of one site's first and later updates.

    improper: whether the product of all factors has lost its precision by then.
    """

    q: Any
    improper: np.ndarray
    first: Event
    later: Event
    log_kl: np.ndarray

    def event(self, updates: int) -> Event:
        """What a site has paid after so many updates, as it was run."""
        return compose(self.first, *([Repeated(self.later, updates - 1)] if updates > 1 else []))


def _observed(state: CoordinatorState) -> Any:
    return state.q, ~is_proper(quotient(state.q, state.own))


def simulate(data: Study, algorithm: PVI, mechanism: Mechanism, updates: int, seeds: int) -> Run:
    """All sites asked in every update, for many seeds at once."""
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
    δ = 1e-4 on what was *run*. Published prices are of the ideal, and compared as such.
    """
    found = accounting.parts(event, "add-remove")
    if found is None:
        return event
    ideal = [
        accounting.subsampled_plan(part.noise_multiplier, 1.0 if part.rate is None else part.rate, count)
        for part, count in found.items()
    ]
    return ideal[0] if len(ideal) == 1 else compose(*ideal)


HUGE = 300.0  # above, Rényi divergences do: they are close by then, and PLD overflows near e^709


def prices(event: Event) -> Row:
    """What an event costs, tightly and by the published accountant."""
    bound = accounting.epsilon(event, DELTA, "rdp")
    return {
        "epsilon": bound if bound > HUGE else accounting.epsilon(event, DELTA),
        "epsilon_published_accountant": accounting.epsilon(event, DELTA, PUBLISHED_ACCOUNTANT),
        "delta": DELTA,
    }


def settings_of(mechanism: Mechanism) -> Row:
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


def _text(rate: float, steps: int, updates: int, published: float, said: str, **more: Any) -> Row:
    """What the thesis says of ε beside the two prices of the same steps."""
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


# --- The tacit plan ----------------------------------------------------------------------------------------------

CURVATURE_SHARE = 0.2  # of the budget of natural steps
GRADIENT_CLIP, CURVATURE_CLIP = 3.0, 5.0  # of |e| ‖x‖ with e ~ N(0, 1), and of ‖x‖²: 95 % of the model's records
ROUNDS, FAR = 2, 2.0  # of natural steps; by how much larger clips are at the prior's mean, far from the answer
VI_STEPS, VI_RATE = 200, 0.1


def conjugate_clip(noise_scale: float, epsilon: float) -> float:
    """A clip of (xy, xxᵀ)/σ_e² that the model's own records, drawn with θ from the prior, seldom reach.

    Less noise makes a rarer clip worth while: a share of 0.05 / max(1, ε) is clipped.
    """
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(100_000), rng.normal(size=100_000)], axis=1)
    y = np.sum(x * rng.normal(size=x.shape), axis=1) + noise_scale * rng.normal(size=len(x))
    length = np.sum(x**2, axis=1)
    norms = np.sqrt(length * y**2 + length**2) / noise_scale**2
    return float(np.quantile(norms, 1 - 0.05 / max(1.0, epsilon)))


def conjugate_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, Mechanism]:
    """One release of Σ clip(xy, xxᵀ) by each site. Releasing it again could only be averaged: one is enough."""
    prior = FullGaussian.standard(len(TRUTH))
    noise = accounting.calibrate(epsilon, DELTA).noise_multiplier
    mechanism = SubsampledGaussian(conjugate_clip(data.noise_scale, epsilon), noise)
    return simulate(data, PVI(prior, data.model(prior), (conjugate,)), mechanism, 1, seeds), mechanism


def natural_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, Mechanism]:
    """Curvature and gradient at the prior's mean, then one gradient where that led: residuals are small there.

    Clips are in units of what the model expects of a record: |y - x·m| is about √(σ_e² + E‖x‖²) at the prior's mean,
    here times FAR, and σ_e later.
    """
    prior = FullGaussian.standard(len(TRUTH))
    noise = accounting.calibrate(epsilon, DELTA).noise_multiplier
    curvature = SubsampledGaussian(CURVATURE_CLIP, noise / math.sqrt(CURVATURE_SHARE))
    mechanism = SubsampledGaussian(GRADIENT_CLIP, noise * math.sqrt(ROUNDS / (1 - CURVATURE_SHARE)))
    away, bend = FAR * math.sqrt(data.noise_scale**2 + len(TRUTH)), data.noise_scale**-2
    first = NaturalStep(curvature, spread=False, units=(away * bend, bend))
    later = NaturalStep(None, units=(1 / data.noise_scale, bend))
    algorithm = PVI(prior, data.model(prior), (first, later), kinds=(0, 1))
    return simulate(data, algorithm, mechanism, ROUNDS, seeds), mechanism


def vi_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, Mechanism]:
    """Noised gradients on Poisson samples, like the thesis, but with Adam, averaging, and all that is exact exact."""
    prior = DiagonalGaussian.standard(len(TRUTH))
    found = accounting.calibrate(epsilon, DELTA, sampling_rate=VI_RATE, steps=VI_STEPS)
    mechanism = SubsampledGaussian(GRADIENT_CLIP / data.noise_scale, found.noise_multiplier, VI_RATE)
    # The first gradients are a thousand times the last: Adam has to forget them soon.
    solver = VI(VI_STEPS, optax.adam(0.1, b2=0.9), path="linear")
    return simulate(data, PVI(prior, data.model(prior), (solver,)), mechanism, 1, seeds), mechanism


TACIT: dict[str, Callable[[Study, float, int], tuple[Run, Mechanism]]] = {
    "conjugate": conjugate_run,
    "natural steps": natural_run,
    "VI": vi_run,
}


def _tacit_rows(data: Study, method: str, epsilon: float, seeds: int) -> list[Row]:
    """One row for each round. ε and noise are those that were run, errors of draws included."""
    run, mechanism = TACIT[method](data, epsilon, seeds)
    updates = run.log_kl.shape[1]
    return [
        {
            "plan": "tacit",
            "method": method,
            "budget": epsilon,
            **settings_of(mechanism),
            "server_updates": update,
            "communications": data.sites * update,
            **prices(run.event(update)),
            **scores(run, update),
        }
        for update in range(1, updates + 1)
    ]


_ACCOUNTING_NOTES = [
    "epsilon is by PLD (by Rényi divergences above 300), epsilon_published_accountant by the moments accountant with "
    "whole λ from 1 to 32, as published: λ = 1 is best at these ε, the edge of that grid (docs/errata.md, 12 and 13).",
    "Published rows are priced in theory. What runs has no bound above ε of about 14: a draw of noise is within 2⁻⁴⁸ "
    "of its ideal, and e^ε times that is more than δ. Tacit rows are priced as they were run.",
    "Samples are Poisson, as was accounted, and the noised sum is divided by the public L, where the thesis divides by "
    "the lot that was drawn (docs/errata.md, 5 and 6). Our sums are scaled by 1 / rate: a step α / N on them is the "
    "thesis's α / L on the lot's. Cavity and entropy are in the clip, 1/N in each record, as published.",
]
_TACIT_NOTES = [
    "tacit: 'conjugate' releases Σ clip(xy, xxᵀ)/σ_e² once; its clip is a quantile under the model with θ from the "
    f"prior, 1 - .05 / max(1, ε). 'natural steps' releases Σ clip(xxᵀ) once ({CURVATURE_SHARE:.0%} of the budget) and "
    f"gradients {ROUNDS} times, at the prior's mean and where that led. All records, full q. The clips need no data, "
    "but that these rules do well was seen on these records.",
    "As in the thesis, q is what the data say alone: KL to the exact posterior rewards no honest widening for noise.",
]


# --- Figure 3.3 --------------------------------------------------------------------------------------------------

SHARED_NOISE, SITE_COUNTS, ROUNDS33 = 1.0, (1, 2, 5, 10), 50


def fig33(quick: bool, seeds: int, track: Track) -> Outcome:
    """ε of algorithm 3 against rounds: noise σC shared over M sites is noise σC/√M on each message, which is seen."""
    del seeds
    counts = SITE_COUNTS[::3] if quick else SITE_COUNTS
    rounds = [1, *range(10, ROUNDS33 + 1, 20 if quick else 10)]
    rows: list[Row] = []
    for sites in track(counts):
        for t in rounds:
            event = Repeated(Gaussian(SHARED_NOISE / math.sqrt(sites), "site"), t)
            rows.append({"method": "as it is", "sites": sites, "rounds": t, **prices(event)})
    claims = [{**row, "method": "as claimed, for any M"} for row in rows if row["sites"] == 1]
    (axes,) = panels(("Algorithm 3, σ = 1, δ = 1e-4", "rounds", "ε of a site (moments accountant, as published)"))
    for sites, colour in zip(counts, COLOURS, strict=False):
        own = [row for row in rows if row["sites"] == sites]
        label = f"M = {sites}" + (" (claimed for all)" if sites == 1 else "")
        axes.plot(*_columns(own, "rounds", "epsilon_published_accountant"), color=colour, label=label)
    axes.legend()
    notes = [
        "The published claim is the curve of M = 1 for every M. Priced is what an eavesdropper sees: each message has "
        "noise σC/√M. Where only the sum is seen, taking one's share back breaks the claim too (docs/errata.md, 3).",
        "ε is by PLD, or by Rényi divergences above 300; moments is the published accountant.",
        "Guessed: the number of rounds on the axis.",
    ]
    shown = {
        "method": "",
        "sites": "sites",
        "rounds": "rounds",
        "epsilon": "ε",
        "epsilon_published_accountant": "moments",
    }
    return Outcome([*claims, *rows], notes, shown, axes)


# --- Figure 4.1: five sites --------------------------------------------------------------------------------------

SITES, SITE_RECORDS, SITE_NOISE, SITE_RATE, SITE_STEPS = 5, 200, 3.0, 0.1, 50
UPDATES, QUICK_UPDATES = 500, 40
PRINTED, SMALL, PLAIN = "DP-SGD", "DP-SGD, noise σ", "DP-SGD, no noise"
_NATURAL = ("precision_mean_0", "precision_mean_1", "precision_0", "precision_1")


def site_mechanisms() -> dict[str, Mechanism]:
    """σ = 1 relative to the clip of 5, as printed; σ = 1 absolutely; and none."""
    return {
        PRINTED: SubsampledGaussian(5.0, 1.0, SITE_RATE),
        SMALL: SubsampledGaussian(5.0, 0.2, SITE_RATE),
        PLAIN: Exact(SITE_RATE),
    }


def fig41(quick: bool, seeds: int, track: Track) -> Outcome:
    """Natural parameters, log KL and ε against server updates at five sites, and two releases in place of 25,000."""
    data = study(SITES, SITE_RECORDS, SITE_NOISE, 41)
    updates = QUICK_UPDATES if quick else UPDATES
    published = list(site_mechanisms().items())[: 1 if quick else None]
    ours = [("natural steps", 1.0)] if quick else [(m, e) for m in ("conjugate", "natural steps") for e in (1.0, 10.0)]
    jobs: list[Any] = [*published, *ours]
    runs: dict[str, Run] = {}
    rows: list[Row] = []
    for method, setting in track(jobs):
        if isinstance(setting, float):
            rows += _tacit_rows(data, method, setting, seeds)
        else:
            runs[method] = site_run(data, setting, updates, seeds)
            rows += _site_rows(method, setting, runs[method], 6 if quick else 10)
    rows += _closed_forms(data)
    rows += [_text(SITE_RATE, SITE_STEPS, n, e, f"ε {s} {e:g}") for n, e, s in ((100, 100.0, "≈"), (500, 400.0, ">"))]

    lost = {method: f"{int(run.improper[:, -1].sum())} of {seeds}" for method, run in runs.items()}
    notes = [
        *_ACCOUNTING_NOTES,
        *_TACIT_NOTES,
        "As printed, with noise σC = 5 on the sum of a lot, runs do not settle: in 50 steps noise moves a site's "
        "log-variances by about .18, five sites' changes add up to some 40 % of q's precision, and an update pulls "
        f"back by 1 %. In {lost[PRINTED]} runs the product of factors was improper within {updates} updates, which "
        "ends the thesis's program; here q is then held proper. The ε's are those of the text.",
        "'mean field, (4.12)' is the thesis's analytic update without noise: its mean is wrong (docs/errata.md, 1), by "
        "little here, where XᵀX is nearly diagonal. DP-SGD follows gradients and is not concerned.",
        "Guessed: the records (drawn once, seed 41), no damping, and that an update starts at q.",
    ]
    if SMALL in lost:
        notes.append(
            "Nearest to what the text describes (near its end after 100 updates, then moving slightly) is noise of "
            f"deviation σ = 1 on the lot's sum ('{SMALL}', {lost[SMALL]} runs improper), or none. That such noise was "
            "run is a guess; the one sign is that the code's option is the absolute deviation. Its price is ε in the "
            "thousands, not 100."
        )
    shown = {
        "method": "",
        "server_updates": "updates",
        "communications": "messages",
        "epsilon": "ε",
        "epsilon_published_accountant": "moments",
        "log_kl": "log KL",
        "improper_runs": "improper",
    }
    return Outcome(rows, notes, shown, _draw41(rows, runs, data, updates))


def site_run(data: Study, mechanism: Mechanism, updates: int, seeds: int) -> Run:
    """Figure 4.1 with this noise."""
    prior = DiagonalGaussian.standard(len(TRUTH))
    algorithm = PVI(prior, data.model(prior), (DPSGD(SITE_STEPS, 0.1, SITE_RECORDS),))
    return simulate(data, algorithm, mechanism, updates, seeds)


def _site_rows(method: str, mechanism: Mechanism, run: Run, count: int) -> list[Row]:
    """The published plan after some of its updates; natural parameters are means over seeds."""
    rows = []
    for update in checkpoints(run.log_kl.shape[1], count):
        at = (run.q.precision_mean[:, update - 1], run.q.precision[:, update - 1])
        natural = np.concatenate([np.mean(part.astype(float), axis=0) for part in at])
        rows.append(
            {
                "plan": "published",
                "method": method,
                **settings_of(mechanism),
                "server_updates": update,
                "communications": SITES * update,
                "steps": SITE_STEPS * update,
                **prices(in_theory(run.event(update))),
                **scores(run, update),
                **dict(zip(_NATURAL, map(float, natural), strict=True)),
            }
        )
    return rows


def _closed_forms(data: Study) -> list[Row]:
    """Without noise: the mean-field optimum, and what the thesis's analytic update (4.12) makes of the same sums."""
    exact = data.exact()
    diagonal = np.diagonal(np.asarray(exact.precision))
    mean = np.linalg.solve(np.asarray(exact.precision), np.asarray(exact.precision_mean))
    found = {"mean field, optimum": diagonal * mean, "mean field, (4.12)": np.asarray(exact.precision_mean)}
    return [
        {
            "plan": "published" if "4.12" in method else "tacit",
            "method": method,
            "server_updates": 1,
            "communications": data.sites,
            "epsilon": math.inf,
            "epsilon_published_accountant": math.inf,
            "delta": DELTA,
            "log_kl": float(log_kl(DiagonalGaussian(h, diagonal), exact)),  # type: ignore[arg-type]  # of numpy
            **dict(zip(_NATURAL, (*map(float, h), *map(float, diagonal)), strict=True)),
        }
        for method, h in found.items()
    ]


def _draw41(rows: list[Row], runs: dict[str, Run], data: Study, updates: int) -> Any:
    drawn = {PRINTED: "as printed, noise σC = 5", SMALL: "noise σ = 1"}
    traced = [method for method in drawn if method in runs]
    *natural, distance, cost = panels(
        *((f"(a) {drawn[method]}: first seed", "server updates", "natural parameters of q") for method in traced),
        ("(b) distance to the exact posterior", "messages to the coordinator", "log KL(q ‖ exact)"),
        ("(c) price of one site", "server updates", f"ε at δ = {DELTA:g}"),
        width=4.7,
        height=4.2,
    )
    exact = data.exact()
    ends = [*np.asarray(exact.precision_mean), *np.diagonal(np.asarray(exact.precision))]
    names = ("(Λμ)₀", "(Λμ)₁", "Λ₀₀", "Λ₁₁")
    for axes, method in zip(natural, traced, strict=True):
        q = runs[method].q
        traces = np.concatenate([q.precision_mean[0], q.precision[0]], axis=1).astype(float)
        for trace, end, name, colour in zip(traces.T, ends, names, COLOURS[:4], strict=True):
            axes.plot(np.arange(1, updates + 1), trace, color=colour, linewidth=1.0, label=name)
            axes.axhline(end, color=colour, linestyle="--", linewidth=0.8)
        axes.plot([], [], color="grey", linestyle="--", linewidth=0.8, label="exact")
        axes.set_ylim(-500, 900)
        axes.legend(edgecolor="none", fontsize=8, ncols=3, loc="upper left")

    for method, colour in ((PRINTED, COLOURS[1]), (SMALL, COLOURS[4]), (PLAIN, COLOURS[6])):
        if method not in runs:
            continue
        mine = [row for row in rows if row["method"] == method]
        places, medians = _columns(mine, "communications", "log_kl_median")
        distance.plot(places, medians, "o-", color=colour, markersize=3, label=f"{method} (median)")
        price = next((row["epsilon"] for row in reversed(mine) if math.isfinite(row["epsilon"])), None)
        if price is not None:
            distance.annotate(f"ε = {price:,.0f}", (places[-1], medians[-1]), fontsize=8, ha="right", va="bottom")
    for method, marker, colour, side in (("conjugate", "s", COLOURS[0], -1), ("natural steps", "D", COLOURS[2], 1)):
        for budget in dict.fromkeys(row.get("budget") for row in rows if row["method"] == method):
            mine = [row for row in rows if row["method"] == method and row["budget"] == budget]
            places, means = _columns(mine, "communications", "log_kl")
            label = f"tacit: {method}" if budget == 1 else None
            distance.plot(places, means, marker + "-", color=colour, markersize=5, label=label)
            beside: dict[str, Any] = {"xytext": (6 * side, 0), "textcoords": "offset points", "va": "center"}
            beside["ha"] = "left" if side > 0 else "right"
            distance.annotate(f"ε = {budget:g}", (places[-1], means[-1]), color=colour, fontsize=8, **beside)
    logarithmic(distance, "x")
    distance.set_xlim(left=2)
    start = float(log_kl(DiagonalGaussian.standard(len(TRUTH)), exact))
    distance.axhline(start, color="grey", linestyle=":", linewidth=1, label="prior")
    distance.set_ylim(-6, 14)
    distance.legend(frameon=False, fontsize=8, loc="upper left")

    mine = [row for row in rows if row["method"] == PRINTED]
    for column, label, style in (
        ("epsilon_published_accountant", "moments, as published", "--"),
        ("epsilon", "PLD (tight)", "-"),
    ):
        cost.plot(*_columns(mine, "server_updates", column), style, color=COLOURS[1], label=label)
    texts = [row for row in rows if "published_epsilon" in row]
    places, said = _columns(texts, "server_updates", "published_epsilon")
    cost.plot(places, said, "D", color="black", markerfacecolor="none", label="the text")
    for budget, style in zip(
        dict.fromkeys(row["budget"] for row in rows if "budget" in row), (":", "-."), strict=False
    ):
        cost.axhline(budget, color=COLOURS[2], linestyle=style, label=f"tacit, ε = {budget:g}")
    for which in "xy":
        logarithmic(cost, which)
    cost.legend(frameon=False, fontsize=8)
    return cost


def _columns(rows: Sequence[Row], *names: str) -> list[list[float]]:
    return [[row[name] for row in rows] for name in names]


# --- Figure 4.2: one site, four sampling rates -------------------------------------------------------------------

RECORDS, ONE_RATE = 1000, 0.03  # of the one site, and α
CLIPS, RATES = (2.0, 5.0, 8.0), (0.01, 0.03, 0.1, 1.0)
MOST_UPDATES, STEPS = 1000, 50


def steps_of(rate: float) -> int:
    """Of one update."""
    return 1 if rate == 1 else STEPS


def fig42(quick: bool, seeds: int, track: Track) -> Outcome:
    """Log KL against ε at one site by sampling rate and clip, and what small budgets can reach."""
    data = study(1, RECORDS, 1.0, 42)
    clips, rates = (CLIPS[1:2], RATES[2:]) if quick else (CLIPS, RATES)
    jobs: list[Any] = [(clip, rate) for clip in clips for rate in rates]
    methods, budgets = (("conjugate",), (1.0,)) if quick else (TACIT, (0.3, 1.0, 3.0, 10.0))
    jobs += [(method, epsilon) for method in methods for epsilon in budgets]
    runs: dict[tuple[float, float], Run] = {}
    rows: list[Row] = []
    for job in track(jobs):
        if isinstance(job[0], str):
            rows += _tacit_rows(data, job[0], job[1], seeds)[-1:]
            continue
        clip, rate = job
        most = QUICK_UPDATES if quick else MOST_UPDATES
        updates = updates_until(LIMIT, rate, steps_of(rate), most)
        runs[clip, rate], mechanism = _mini_batch_run(data, clip, rate, updates, seeds)
        rows += _mini_batch_rows(mechanism, runs[clip, rate], 4 if quick else 7)
    rows += _mini_batch_texts()

    notes = [
        *_ACCOUNTING_NOTES,
        *_TACIT_NOTES,
        f"'VI' takes {VI_STEPS} noised gradients on Poisson samples of {VI_RATE:g}, clip {GRADIENT_CLIP:g}: cavity and "
        "entropy outside the clip (docs/errata.md, 5), Adam, the late half averaged, noise by PLD.",
        "What takes so long is the variance v: a step of plain descent changes log v by α v / 2, so v falls like "
        f"2 / (α t) and needs some 60,000 steps to 1 / {RECORDS}. Rates .1 and 1 stop long before: stable, and far "
        "off. At .01 and .03 v gets near, and noise moves it about (wobble: the mean change of log KL from update to "
        "update, over the later half).",
        "The text's 5000 steps are 50 · 100; its bounds on ε fit 50 · 1000, the most that is run (docs/errata.md, 13), "
        "in the rows with ×10. It has 100 reached after about 110, 2 (of 50 steps) and less than 100 updates.",
        "Guessed: the records (drawn once, seed 42), and that an update starts at q.",
    ]
    shown = {
        "method": "",
        "clip": "C",
        "sampling_rate": "rate",
        "server_updates": "updates",
        "epsilon": "ε",
        "epsilon_published_accountant": "moments",
        "log_kl": "log KL",
    }
    return Outcome(rows, notes, shown, _draw42(rows, runs))


def _mini_batch_run(data: Study, clip: float, rate: float, updates: int, seeds: int) -> tuple[Run, Mechanism]:
    prior = DiagonalGaussian.standard(len(TRUTH))
    algorithm = PVI(prior, data.model(prior), (DPSGD(steps_of(rate), ONE_RATE, RECORDS),))
    mechanism = SubsampledGaussian(clip, 1.0, rate)
    return simulate(data, algorithm, mechanism, updates, seeds), mechanism


def wobble(run: Run, update: int) -> float | None:
    """The mean change of log KL from update to update, over the later half."""
    late = run.log_kl[:, update // 2 : update]
    return float(np.mean(np.abs(np.diff(late)))) if late.shape[1] > 1 else None


def _mini_batch_rows(mechanism: SubsampledGaussian | Exact, run: Run, count: int) -> list[Row]:
    rows = []
    for update in checkpoints(run.log_kl.shape[1], count):
        settings = settings_of(mechanism)
        rows.append(
            {
                "plan": "published",
                "method": "DP-SGD",
                **settings,
                "server_updates": update,
                "communications": update,
                "steps": steps_of(settings["sampling_rate"]) * update,
                **prices(in_theory(run.event(update))),
                **scores(run, update),
                "wobble": wobble(run, update),
            }
        )
    return rows


def _mini_batch_texts() -> list[Row]:
    """What section 4.2.2 says of ε; where it names steps that do not fit, with those that do."""
    rows = []
    for rate, bound in ((0.03, 90.0), (0.01, 20.0)):
        rows.append(_text(rate, STEPS, 100, bound, f"ε < {bound:g}"))
        rows.append(_text(rate, STEPS, MOST_UPDATES, bound, f"ε < {bound:g}, ×10"))
    for rate, steps, updates in ((0.1, STEPS, 110), (1.0, STEPS, 2), (1.0, 1, 100)):
        reached = updates_until(LIMIT, rate, steps, MOST_UPDATES)
        rows.append(_text(rate, steps, reached, LIMIT, f"ε = {LIMIT:g}", published_server_updates=updates))
    return rows


def _draw42(rows: list[Row], runs: dict[tuple[float, float], Run]) -> Any:
    clips = list(dict.fromkeys(clip for clip, _ in runs))
    found = panels(
        *((f"clip C = {clip:g}", f"ε at δ = {DELTA:g}", "log KL(q ‖ exact)") for clip in clips), width=5.2, height=4.6
    )
    colours = dict(zip(RATES, (COLOURS[3], COLOURS[1], COLOURS[4], COLOURS[5]), strict=True))
    for axes, clip in zip(found, clips, strict=True):
        for rate in dict.fromkeys(rate for c, rate in runs if c == clip):
            mine = [
                row for row in rows if row["method"] == "DP-SGD" and (row["clip"], row["sampling_rate"]) == (clip, rate)
            ]
            updates, tight, loose, means = _columns(
                mine, "server_updates", "epsilon", "epsilon_published_accountant", "log_kl"
            )
            trace = runs[clip, rate].log_kl[0]
            every = np.exp(np.interp(np.log(np.arange(1, len(trace) + 1)), np.log(updates), np.log(tight)))
            axes.plot(every, trace, color=colours[rate], linewidth=0.5, alpha=0.5)
            axes.plot(tight, means, "o-", color=colours[rate], markersize=3, label=f"DP-SGD, rate {rate:g}")
            axes.plot(loose, means, ":", color=colours[rate], linewidth=1)
        for method, marker, colour in (
            ("VI", "^", COLOURS[6]),
            ("conjugate", "s", COLOURS[0]),
            ("natural steps", "D", COLOURS[2]),
        ):
            mine = [row for row in rows if row["method"] == method]
            if mine:
                places, means = _columns(mine, "epsilon", "log_kl")
                errors = [row["log_kl_standard_error"] or 0.0 for row in mine]
                axes.errorbar(
                    places,
                    means,
                    errors,
                    fmt=marker + "-",
                    color=colour,
                    markersize=4,
                    capsize=2,
                    label=f"tacit: {method}",
                )
        logarithmic(axes, "x")
    found[0].plot([], [], ":", color="grey", linewidth=1, label="the same, ε as published")
    found[0].plot([], [], color="grey", linewidth=0.5, label="first seed")
    handles, labels = found[0].get_legend_handles_labels()
    found[0].figure.legend(
        handles, labels, loc="outside lower center", ncols=5 if len(found) > 1 else 2, frameon=False, fontsize=9
    )
    return found[0]
