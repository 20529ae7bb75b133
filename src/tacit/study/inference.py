"""The algorithm of inference for a plan: its solvers, its start and its noise."""

import math
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax

from tacit.families import DiagonalGaussian, over_parts
from tacit.federated.pvi import PRIOR_STEPS, PVI, Noise
from tacit.federated.sampling import Sampling
from tacit.federated.site_effects import SiteEffects
from tacit.federated.tied import Central, Whole
from tacit.privacy.mechanism import Exact, PricedMechanism
from tacit.privacy.randomness import insecure_key
from tacit.solvers import EP, SEP, SGLD, VI, Adaptive, NaturalStep
from tacit.study.releases import CHAINS
from tacit.tables.scaling import Scaling
from tacit.tables.standardising import REACH

if TYPE_CHECKING:
    from tacit.study.setup import Setup

LEARNING_RATE, PUBLISHED_LEARNING_RATE = 0.02, 0.5
LEAST_DAMPING = 0.2  # of many sites that refine their factors at once; 1 / sites where that is more
PUBLISHED_DAMPING = 0.1
START_SD = 0.1  # of the start, where curvature is not released
MOST_SAMPLES = 250  # of Langevin dynamics, kept of each chain
STEP_SHARES = 0.5, 2.0  # least and most learning rate of Langevin dynamics, in units of 1 / the largest curvature
FACTOR_DAMPING, LATE, FACTOR_REACH = 0.3, 0.3, 0.4  # of expectation propagation with a model's own moments
HEAT = 16.0  # the start of models with a temperature: clusters four times as wide


@dataclass(frozen=True)
class Inference:
    """The algorithm of a phase of inference. Sites differ only in the noise they add; the coordinator uses any site's.

    mechanisms: a respondent's. scaling: the study's so far, whose released mean and residual set the model's units.
    """

    setup: "Setup"
    mechanisms: dict[str, PricedMechanism]
    scaling: Scaling
    phase: str

    def algorithm(self, near: Any = None) -> Any:
        """The algorithm. near: the mean at which the coordinator begins; by default the prior's."""
        plan = self.setup.plan
        if plan.is_natural:
            return self._natural(near)
        if plan.method_used == "sgld":
            return self._sampling(near)
        return self._general()

    # --- Curvature and gradients ------------------------------------------------------------------------------------

    def _natural(self, near: Any) -> PVI | SiteEffects:
        plan, program = self.setup.plan, self.setup.program
        model, units = self._model_and_units()
        solvers = self._site_solvers() if plan.unit == "site" else self._solvers()
        kinds = program.kinds(self.phase)
        # Without noise there is nothing to average.
        damping = (1.0,) if isinstance(self.mechanisms["curvature"], Exact) else program.damping(self.phase)
        noise, prior = self._noise(units), model.prior.full()
        if plan.unit == "site" and plan.noise == "central":
            more = {"rounds": program.rounds, "reset": plan.reset}
            return Central(prior, model, solvers, kinds, damping, noise, **more)
        if plan.site_effects:
            return self._site_effects(PVI(prior, model, solvers, kinds, damping, noise, units=units), near)
        return PVI(prior, model, solvers, kinds, damping, noise, units=units, near=near)

    def _site_effects(self, pvi: PVI, near: Any) -> SiteEffects:
        """The same at the sites, with a deviation of each. near: the means of all sites' coefficients."""
        setup, slope, curvature = self.setup, *pvi.units
        early = "early" if "early" in self.mechanisms and self.phase == "inference" else "gradients"
        gradients, first, curvatures = (
            unit * jnp.asarray([made[name].standard_deviation for made in setup.added], slope.dtype)
            for name, unit in (("gradients", slope), (early, slope), ("curvature", curvature))
        )
        scale = jnp.asarray(setup.plan.prior_deviation, slope.dtype)
        return SiteEffects(pvi, setup.effect_places, gradients, first, curvatures, scale, near)

    def _model_and_units(self) -> tuple[Any, tuple[Any, Any]]:
        """The model, and the sizes of a typical record's slope and curvature, from what was released so far.

        Without a standardised target, units are those of a target of one; a residual divides them. Counts are measured
        by their mean, and their intercept begins at its logarithm.
        """
        plan, link, model = self.setup.plan, self.setup.plan.link, self.setup.model
        units: tuple[Any, Any] = (1.0, 1.0) if link is None else (link.slope, link.curvature)
        if link is not None and link.learns_scale:
            known = plan.noise_scale if self.scaling.residual is None else self.scaling.residual
            residual = (1.0 if known is None else known) if plan.is_table else model.noise_scale
            model = replace(model, noise_scale=jnp.asarray(residual, jnp.result_type(float)))
            units = (units[0] / residual, units[1] / residual**2)
        if link is not None and link.start is not None and plan.is_table:
            mean = jnp.maximum(self.scaling.location[-1], 1 / self.setup.units)
            units = (units[0] * jnp.sqrt(mean), units[1] * mean)
            moved = jnp.zeros_like(model.prior.mean).at[0].set(link.start(mean))
            model = replace(model, prior=DiagonalGaussian(moved * model.prior.precision, model.prior.precision))
        if plan.unit == "site":
            units = (1.0, 1.0)
        return model, (jnp.asarray(units[0], jnp.result_type(float)), jnp.asarray(units[1], jnp.result_type(float)))

    def _solvers(self) -> tuple[Any, ...]:
        """A solver for each of `Program.kinds`."""
        method = self.setup.plan.method_used
        expansion: Any = "vi" if method == "natural" else method
        curvature, early = self.mechanisms["curvature"], self.mechanisms.get("early")
        if self.phase == "refinement":
            early = None
        made: dict[str, Any] = {"expansion": expansion}
        return (
            NaturalStep(curvature, False, gradients=early, **made),
            NaturalStep(None, True, gradients=early, **made),
            NaturalStep(curvature, True, **made),
            *(() if early is None else (NaturalStep(None, True, **made),)),
        )

    def _site_solvers(self) -> tuple[Any, ...]:
        """Solvers of whole sites, which release a clipped update of their own."""
        curvature, noise = self.mechanisms["curvature"], self.setup.plan.noise
        steps = NaturalStep(Exact(), spread=False), NaturalStep(None), NaturalStep(Exact())
        through, clips = (curvature, None, curvature), "update" if noise == "central" else "factor"
        return tuple(Whole(step, made, "centred", clips) for step, made in zip(steps, through, strict=True))

    def _noise(self, units: tuple[Any, Any]) -> Noise:
        """The noise in the sum of all factors."""
        plan, rule, program = self.setup.plan, self.setup.program.rule, self.setup.program
        slope, bend = units
        gradient, curvature = self._added("gradients") * slope, self._added("curvature") * bend
        reach = REACH if plan.is_table else math.inf
        noise = Noise(gradient, curvature, rule.floor, reach, rule.shrinkage, pull=rule.pull)
        if self.phase == "inference" and plan.unit != "site":
            early = self._added("early") * slope if program.early else None
            caution = 0.0 if plan.link is None else plan.link.caution
            noise = replace(noise, early=early, until=program.stages[-1], caution=caution)
        return noise

    def _added(self, name: str) -> Any:
        """The standard deviation of the noise of a kind of release in the sum over all sites."""
        return sum(made[name].standard_deviation ** 2 for made in self.setup.added) ** 0.5

    # --- Other methods ----------------------------------------------------------------------------------------------

    def _general(self) -> PVI:
        plan, program, vi = self.setup.plan, self.setup.program, self.setup.plan.vi
        model, sites = self.setup.model, self.setup.program.sites
        start = self._start()
        if plan.method_used in ("ep", "sep"):
            start = over_parts(start, lambda part: part.full()) if isinstance(start, dict) else start.full()
            heat = HEAT if "temperature" in signature(getattr(model, "match", EP)).parameters else 1.0
            made = {"ep": EP, "sep": SEP}[plan.method_used]
            solver: Any = made(program.steps, FACTOR_DAMPING, LATE, reach=FACTOR_REACH, heat=heat)
            prior = over_parts(model.prior, lambda part: part.full())
            return PVI(prior, model, (solver,), damping=(self._damping(sites),), start=start)
        rate = vi.learning_rate or (PUBLISHED_LEARNING_RATE if plan.is_published else LEARNING_RATE)
        adaptive = None
        if vi.is_adaptive:
            adaptive = Adaptive(start=self.setup.releases.own_clip, per_coordinate=vi.per_coordinate)
        average = 0.0 if plan.is_published else 0.5
        levels = None if isinstance(self.mechanisms["gradients"], Exact) else self.setup.releases.levels
        steps = program.steps if levels is None else levels.steps
        solver = VI(steps, _optimiser(vi.optimiser, rate), average=average, adaptive=adaptive)
        damping, prior_steps = (self._damping(sites),), 0 if sites == 1 else PRIOR_STEPS
        return PVI(model.prior, model, (solver,), damping=damping, prior_steps=prior_steps, start=start)

    def _damping(self, sites: int) -> float:
        if self.setup.plan.vi.damping is not None:
            return self.setup.plan.vi.damping
        if self.setup.plan.is_published:
            return PUBLISHED_DAMPING
        return max(1 / sites, LEAST_DAMPING)

    def _start(self) -> Any:
        """Where a site's solver begins before anything is known: public, and the same at all sites."""
        plan, model = self.setup.plan, self.setup.model
        if plan.is_table:
            return None if plan.is_published else model.prior.of(jnp.zeros_like(model.prior.mean), START_SD)
        if hasattr(model, "start"):
            return model.start(insecure_key(plan.schedule_seed))
        return over_parts(model.prior, _narrow)

    def _sampling(self, near: Any) -> Sampling:
        """Langevin dynamics, with a step size set by the largest curvature that records may have."""
        setup, plan = self.setup, self.setup.plan
        model, units = self._model_and_units()
        steps = setup.program.steps_in(self.phase)
        largest = setup.releases.typical**2 * math.sqrt(setup.releases.most_records)
        size = self._step_share(largest) / (setup.units * largest)
        solver = SGLD(steps, size, thinning=max(1, steps // 2 // MOST_SAMPLES), chains=CHAINS)
        start = self._start() if near is None or not plan.is_table else model.prior.of(near, START_SD)
        # Chains begin close to each other, so that cluster labels agree between them.
        start = over_parts(start, lambda part: DiagonalGaussian.of(part.mean, START_SD))
        full = over_parts(model.prior, lambda part: part.full()) if not isinstance(model.prior, dict) else model.prior
        return Sampling(full, model, solver, start, units)

    def _step_share(self, largest: float) -> float:
        """The learning rate at which privacy's noise in a step equals the dynamics' own noise."""
        if self.setup.plan.vi.learning_rate is not None:
            return self.setup.plan.vi.learning_rate
        link = self.setup.plan.link
        slope, curvature = (1.0, 1.0) if link is None else (link.slope, link.curvature)
        noise = self.mechanisms["gradients"].standard_deviation * slope
        if noise == 0:
            return STEP_SHARES[1]
        return min(max(4 * self.setup.units * largest * curvature / noise**2, STEP_SHARES[0]), STEP_SHARES[1])


def _narrow(part: Any) -> Any:
    """A family around its mean: a wide prior, of a logarithm above all, is too steep to begin at."""
    narrow = DiagonalGaussian.of(part.mean, jnp.minimum(part.standard_deviation, START_SD))
    return narrow if isinstance(part, DiagonalGaussian) else narrow.full()


@cache
def _optimiser(name: str, learning_rate: float) -> Any:
    """One object for each rate: compiled functions compare optimisers by identity."""
    return {"adam": optax.adam, "adagrad": optax.adagrad}[name](learning_rate)
