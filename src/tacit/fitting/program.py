"""The program of a fit: one compiled function from records to released numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian
from tacit.fitting.plan import CHAINS, FIRST_SHARE, LEAST_RESIDUAL, MOST_RESIDUAL, MOST_SAMPLES, FitPlan
from tacit.links import COUNT, link_of
from tacit.privacy import accounting
from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access, Mechanism
from tacit.privacy.released import Released
from tacit.solvers import EP, SEP, SGLD, VI, Adaptive, NaturalVI, Target
from tacit.solvers.sgld import moments
from tacit.tables.scaling import Range, Scaling, release_range, release_scaling
from tacit.tables.standardising import REACH, measured, standardise, without_tails


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """The released values of a run: q over standardised coefficients, with the scaling and noise scale to undo it.

    q is a family or a dict of them, or (mean, covariance). samples: of θ, (samples, chains, ...), if any.
    """

    q: Any
    scaling: Scaling | None = None
    noise_scale: Array | None = None
    samples: Any = None


FACTOR_STEPS, FACTOR_CLIP, DAMPING, LATE, FACTOR_REACH = 40, 6.0, 0.3, 0.3, 0.4  # of EP without releases of curvature

HEAT = 16.0  # the start of models with a temperature: clusters four times as wide


@partial(jax.jit, static_argnums=0)
def run(plan: FitPlan, key: Array, access: Access, model: Any, start: Any, bounds: Range | None) -> Released[Outcome]:
    """Run the plan as one compiled program. Records are read only through mechanisms of the plan."""
    return carry_out(plan, plan.mechanisms(), key, access, model, start, bounds)


def carry_out(
    plan: FitPlan,
    mechanisms: dict[str, tuple[Mechanism, ...]],
    key: Array,
    access: Access,
    model: Any,
    start: Any,
    bounds: Range | None,
) -> Released[Outcome]:
    """The function that `run` compiles."""
    if not plan.is_table:
        return _solve(plan, mechanisms, key, access, model, start)
    assert bounds is not None
    range_key, moments_key, solver_key = jax.random.split(key, 3)
    link = link_of(plan.link)
    numbers = access.map(lambda record: measured(link, plan.numbers, record))
    release = Released(bounds)
    if "ranges" in mechanisms:
        places = np.array(plan.unknown)
        found = release_range(range_key, numbers.map(lambda x: x[places]).through(mechanisms["ranges"][0]))
        release = found.map(lambda r: Range(bounds.low.at[places].set(r.low), bounds.high.at[places].set(r.high)))
    if link.target is COUNT:  # at least 0
        release = release.map(lambda r: Range(r.low.at[-1].set(0), r.high.at[-1].max(1)))
    if "moments" in mechanisms:
        through = numbers.through(mechanisms["moments"][0])
        scalings = release.then(lambda found: release_scaling(moments_key, through, found))
    else:
        scalings = release.map(lambda r: Scaling(r, (r.low + r.high) / 2, (r.high - r.low) / 2))
    scalings = scalings.map(lambda scaling: without_tails(len(plan.numbers), scaling))

    def solve(scaling: Scaling) -> Released[Outcome]:
        ready = access.map(lambda record: standardise(link, plan.numbers, scaling, record))
        release = _solve(plan, mechanisms, solver_key, ready, model, start, scaling)
        return release.map(lambda found: replace(found, scaling=scaling))

    return scalings.then(solve)


def attempt(plan: FitPlan, key: Array, access: Access, model: Any, start: Any, bounds: Range | None) -> Outcome:
    """The outcome of a plan on public or simulated records, without privacy. Settings may be arrays."""
    release = carry_out(plan, plan.mechanisms(is_trial=True), key, access, model, start, bounds)
    if accounting.epsilon(release.event, 0.5) != math.inf:
        raise RuntimeError("a trial that has a price: this is a bug in tacit")
    return release.value


def _solve(
    plan: FitPlan,
    mechanisms: dict[str, tuple[Mechanism, ...]],
    key: Array,
    access: Access,
    model: Any,
    start: Any,
    scaling: Scaling | None = None,
) -> Released[Outcome]:
    """The posterior of the records behind `access`, and the noise scale of a linear regression that learns it."""
    gradients = access.through(mechanisms["gradients"][0])
    target = Target(model.prior, start, model)
    if plan.method == "vi":
        optimiser = plan.optimiser or optax.adam(plan.learning_rate)
        steps = plan.steps[0] if len(plan.steps) == 1 else plan.steps
        adaptive = Adaptive(start=plan.clip) if plan.is_adaptive else None
        return VI(steps, optimiser, adaptive=adaptive)(key, target, gradients).map(Outcome)
    if plan.method in ("ep", "sep") and not plan.has_curvature:
        heat = HEAT if "temperature" in signature(getattr(model, "match", EP)).parameters else 1.0
        solver = {"ep": EP, "sep": SEP}[plan.method](plan.steps[0], DAMPING, LATE, reach=FACTOR_REACH, heat=heat)
        return solver(key, target, gradients).map(Outcome)
    link = plan.regression
    units: tuple[Any, Any] = (1.0, 1.0) if link is None else (link.slope, link.curvature)
    if link is not None and link.learns_scale and scaling is not None:
        keys = jax.random.split(key, 3)
        first, rest = _parts(plan, mechanisms)
        noised = access.through(mechanisms["residual"][0])

        def again(mean: Array) -> Released[Outcome]:
            def finish(noise_scale: Array) -> Released[Outcome]:
                known = replace(model, noise_scale=noise_scale)
                near = start.of(mean, start.covariance if start.precision.ndim == 2 else start.standard_deviation)
                scaled = units[0] / noise_scale, units[1] / noise_scale**2
                found = rest(keys[2], Target(model.prior, near, known), gradients, scaled)
                return found.map(lambda outcome: replace(outcome, noise_scale=noise_scale))

            return _residual_scale(keys[1], noised, mean).then(finish)

        begun = first(keys[0], target, gradients, units)
        return begun.map(lambda found: found.q[0] if isinstance(found.q, tuple) else found.q.mean).then(again)
    if link is not None and link.learns_scale:
        units = (units[0] / model.noise_scale, units[1] / model.noise_scale**2)
    if link is not None and link.start is not None and scaling is not None:
        mean = jnp.maximum(scaling.location[-1], 1 / access.slots)
        units = (units[0] * jnp.sqrt(mean), units[1] * mean)
        moved = jnp.zeros_like(model.prior.mean).at[0].set(link.start(mean))
        model = replace(model, prior=DiagonalGaussian(moved * model.prior.precision, model.prior.precision))
        start = start.of(moved, start.covariance if start.precision.ndim == 2 else start.standard_deviation)
        target = Target(model.prior, start, model)
    return _parts(plan, mechanisms)[-1](key, target, gradients, units)


def _parts(plan: FitPlan, mechanisms: dict[str, tuple[Mechanism, ...]]) -> tuple[Callable[..., Released[Outcome]], ...]:
    """Solvers `(key, target, access, units)`: one, or two if the residual is released between them."""
    is_parted = "residual" in mechanisms
    if plan.method == "sgld":
        total = plan.steps[0]
        early = max(1, round(FIRST_SHARE * total))
        return tuple(_langevin(plan, steps) for steps in ((early, total - early) if is_parted else (total,)))
    solver = NaturalVI(
        mechanisms["curvature"][0],
        learning_rate=plan.rule.learning_rate,
        average=plan.rule.average,
        floor=plan.rule.floor,
        shrinkage=plan.rule.shrinkage,
        reach=REACH if plan.is_table else math.inf,
        caution=0.0 if plan.regression is None else plan.regression.caution,
        expansion="vi" if plan.method == "natural" else plan.method,  # type: ignore[arg-type]
    )

    def staged(stages: slice) -> Callable[..., Released[Outcome]]:
        part = replace(solver, steps=plan.steps[stages], gradients=mechanisms["gradients"][stages])
        return lambda key, target, access, units: part.moments(key, target, access, units).map(Outcome)

    return tuple(staged(stages) for stages in ((slice(1), slice(1, None)) if is_parted else (slice(None),)))


def _langevin(plan: FitPlan, steps: int) -> Callable[..., Released[Outcome]]:
    """Langevin dynamics with a step size set by the largest curvature that records may have."""

    def solve(key: Array, target: Target, access: Access, units: Any) -> Released[Outcome]:
        size = plan.learning_rate / (access.slots * plan.curvature_clip)
        solver = SGLD(steps, size, thinning=max(1, steps // 2 // MOST_SAMPLES), chains=CHAINS)
        drawn = solver.samples(key, target, access, units)
        return drawn.map(lambda found: Outcome(moments(found, target.start), samples=found))

    return solve


def _residual_scale(key: Array, access: Access, mean: Array) -> Released[Array]:
    """The sd of y - x·m, from a noised sum of squares and a count; y is standardised, so it is at most 1."""

    def squares(records: Tree) -> Dense:
        x, y = records
        residuals = jnp.minimum((y - x @ mean) ** 2, MOST_RESIDUAL)
        return Dense(jnp.stack([residuals, jnp.ones_like(residuals)], axis=1))

    noise = access.mechanism.standard_deviation

    def root(total: Array) -> Array:
        # A value below the noise is raised to it: too narrow a guess costs far more than too wide a one.
        count = jnp.maximum(total[1], 1)
        return jnp.sqrt(jnp.clip(total[0] / count, jnp.clip(noise / count, LEAST_RESIDUAL, 1), 1))

    return access.sum(key, squares).map(root)
