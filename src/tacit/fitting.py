"""One site, one call: `fit(model, data, epsilon, delta)`. Every other setting is decided by a policy, or is given.

For regressions on a table (`policy.Rule`; docs/policies.md says how it was learned and what it reaches):

| release             | how often                    | clip, in units of a typical record          |
|---------------------|------------------------------|---------------------------------------------|
| ranges of numbers   | once, without public bounds  | none: a record fills one bin of each column |
| means and variances | once, if there are numbers   | none: bounded by the ranges                 |
| residual variance   | once, linear regression      | 4 variances of the target                   |
| curvature Σ w xxᵀ   | once a stage                 | r², with r² = 1 + numbers + categories      |
| gradients Σ a x     | several times a stage        | r times what the rule says                  |

Each has a share of the budget by the rule, in 1/σ², which adds up over Gaussian releases. Nothing is sampled: with so
few steps, using all records at each is the better bargain. Other models are fitted by `VI` with Adam on Poisson samples
of a tenth.

`method` swaps what stands for a record and nothing else of the table above: "vi", the variational bound; "ep" and
"sep", expectation propagation with a factor for each record or an average one; other models then need their own
`match`, and 40 steps on all records. "sgld" samples by Langevin dynamics, chains side by side, on Poisson samples.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tacit.data.datasets import Dataset
from tacit.data.tables import Table
from tacit.families import DiagonalGaussian, over_parts
from tacit.policy import PLAIN, Policy, Rule, default_policy
from tacit.posterior import Posterior
from tacit.privacy import accounting
from tacit.privacy.clipping import Dense
from tacit.privacy.events import Adjacency, Event, Repeated, check_number, compose
from tacit.privacy.mechanism import Access, Exact, Mechanism, SubsampledGaussian, Trial
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.privacy.released import Released, price
from tacit.privacy.statement import Statement
from tacit.regression import (
    LINKS,
    PRIOR_DEVIATION,
    REACH,
    block,
    bounds_of,
    check_target,
    clip_of,
    in_units,
    measured,
    model_of,
    scales_target,
    standardise,
    without_tails,
)
from tacit.scaling import BINS, Range, Scaling, histogram_clip, moments_clip, release_range, release_scaling
from tacit.solvers import EP, SEP, SGLD, VI, Adaptive, NaturalVI, Target
from tacit.solvers.sgld import moments
from tacit.spending import UNCOUNTED, Budget, BudgetEpsilon, Charge, Place, charge

Tree = Any
Method = Literal["vi", "ep", "sep", "sgld"]
EXACT_STAGES = (3, 3, 4, 4, 6, 10)
MOST_RESIDUAL, LEAST_RESIDUAL = 4.0, 1e-3  # variances of the target: noise may leave nothing of a small residual
MOST_COLUMNS = 400  # above, a matrix of curvature is mostly noise, and a diagonal q is fitted
STEPS, SAMPLING_RATE, LEARNING_RATE, CLIP = 1000, 0.1, 0.02, 1.0  # of models that are not regressions
START_DEVIATION = 0.1  # of where they begin
LEAST_BATCH = 200  # records of a sample, on average
FACTOR_STEPS, FACTOR_CLIP, DAMPING, LATE, FACTOR_REACH = 40, 6.0, 0.3, 0.3, 0.4  # of EP where curvature is not apart
HEAT = 16.0  # at which models with a temperature begin: clusters four times as wide
CHAINS, MOST_SAMPLES, FIRST_SHARE = (
    4,
    250,
    0.2,
)  # of Langevin dynamics: samples kept of a chain, steps before a residual
STEP_SHARES = 0.5, 2.0  # its learning rate, a step as a share of the inverse of the largest curvature: least and most


@dataclass(frozen=True)
class Plan:
    """All public settings of a fit: what is released, how often, and with what noise.

    noise_multiplier is that of all releases together, 0 for none; each release has its share of it by the rule, which
    is the policy's. numbers: columns
    of the table that are measured; unknown: which of them (and of the target, in the end) have no public bounds.
    is_adaptive: whether the clip only begins as `clip` and follows the gradients. has_curvature: whether that is
    released apart from gradients. learning_rate: of Adam; of Langevin dynamics, a share of what curvature allows.
    """

    method: Literal["natural", "vi", "ep", "sep", "sgld"]
    link: str
    steps: tuple[int, ...]
    clip: float
    curvature_clip: float = 1.0
    sampling_rate: float = 1.0
    learning_rate: float = LEARNING_RATE
    optimiser: Any = None
    is_adaptive: bool = False
    has_curvature: bool = False
    is_table: bool = False
    most_records: int = 1
    numbers: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    scaling: Literal["moments", "bounds"] = "moments"
    rule: Rule = PLAIN
    noise_multiplier: float = 0.0

    @property
    def scales_target(self) -> bool:
        """Whether the target is a number whose range and mean are needed."""
        return self.is_table and scales_target(self.link)

    @property
    def columns(self) -> int:
        """How many columns are rescaled."""
        return len(self.numbers) + self.scales_target

    def counts(self) -> dict[str, int]:
        """How often each kind of release is made."""
        is_paid = self.is_table and self.scaling == "moments" and self.columns > 0
        found = {
            "ranges": int(is_paid and bool(self.unknown)),
            "moments": int(is_paid),
            "residual": int(self.is_table and self.link == "linear" and (self.has_curvature or self.method == "sgld")),
            "curvature": len(self.steps) if self.has_curvature else 0,
            "gradients": sum(self.steps),
        }
        return {name: count for name, count in found.items() if count}

    def shares(self) -> dict[str, float]:
        """The part of the budget that each kind of release has."""
        found = {name: getattr(self.rule, name, 0.0) for name in self.counts()}
        return found | {"gradients": 1 - sum(found.values())}

    def mechanisms(self, is_trial: bool = False) -> dict[str, tuple[Mechanism, ...]]:
        """How each kind of release is made; of gradients, at each stage. is_trial: on public records, for learning."""
        clips = {
            "ranges": histogram_clip(len(self.unknown), self.most_records),
            "moments": moments_clip(self.columns, self.most_records),
            "residual": self.most_records * math.hypot(MOST_RESIDUAL, 1),
            "curvature": self.curvature_clip,
            "gradients": self.clip,
        }
        shares, found = self.shares(), {}
        for name, count in self.counts().items():
            rate, steps, relative = 1.0, (count,), (1.0,)
            if name == "gradients":
                rate, steps, relative = self.sampling_rate, self.steps, self.relative_noise()
            if not is_trial and self.noise_multiplier == 0:
                found[name] = (Exact(rate),) * len(steps)
                continue
            # Budgets add up in 1/σ²: those of all stages are the share.
            scale = (
                self.noise_multiplier
                * (sum(n / r**2 for n, r in zip(steps, relative, strict=True)) / shares[name]) ** 0.5
            )
            made = Trial if is_trial else partial(SubsampledGaussian, sampling_rate=rate)
            found[name] = tuple(made(clips[name], r * scale) for r in relative)
        return found

    def relative_noise(self) -> tuple[float, ...]:
        """Of gradients at each stage."""
        return self.rule.noise if len(self.rule.noise) == len(self.steps) else (1.0,) * len(self.steps)

    def clip_for(self, slots: int, parameters: int) -> Any:
        """The clip of a regression's gradients by the rule, from that of a typical record, which `clip` is before."""
        rule, noise = self.rule, self.noise_multiplier / self.shares()["gradients"] ** 0.5
        return clip_of(
            self.clip, noise, slots, parameters, rule.clip_least, rule.clip_most, rule.clip_slope, rule.clip_power
        )

    def event(self, slots: int, unit: str, parameters: int) -> Event:
        """What the plan costs; the receipt of the run is the same but for the number of coordinates."""
        gradients = 2 * parameters
        if self.method == "sgld":
            gradients = CHAINS * parameters
        elif not self.has_curvature and self.method in ("ep", "sep"):
            gradients = parameters * (parameters + 1)
        sizes = {
            "ranges": BINS * len(self.unknown),
            "moments": 2 * self.columns + 1,
            "residual": 2,
            "curvature": parameters**2,
            "gradients": gradients,
        }
        counts = {name: (count,) for name, count in self.counts().items()} | {"gradients": self.steps}
        return compose(
            *(
                Repeated(mechanism.level_events(slots, unit, sizes[name])[0], count)
                for name, made in self.mechanisms().items()
                for mechanism, count in zip(made, counts[name], strict=True)
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        plain = asdict(replace(self, optimiser=None)) | {"optimiser": "given" if self.optimiser else "default"}
        noise = {
            name: {"releases": self.counts()[name], "share": round(self.shares()[name], 6), **_plain(made)}
            for name, made in self.mechanisms().items()
        }
        return plain | {"releases": noise}


def _plain(made: tuple[Mechanism, ...]) -> dict[str, Any]:
    """Clip and noise; a list of the noise of each stage, where it changes."""
    noise = [mechanism.noise_multipliers[0] for mechanism in made if isinstance(mechanism, SubsampledGaussian)]
    if not noise:
        return {"noise_multiplier": 0.0}
    assert isinstance(made[0], SubsampledGaussian)
    return {"clip": made[0].clips[0], "noise_multiplier": noise[0] if len(set(noise)) == 1 else noise}


# --- The program -------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What a run releases: q over standardised coefficients, and the scalings and noise that lead back from there.

    q is a family or a dict of them, or (mean, covariance). samples: of θ, (samples, chains, ...), where there are any.
    """

    q: Any
    scaling: Scaling | None = None
    noise_scale: Array | None = None
    samples: Any = None


@partial(jax.jit, static_argnums=0)
def run(plan: Plan, key: Array, access: Access, model: Any, start: Any, bounds: Range | None) -> Released[Outcome]:
    """The plan, as one compiled program. Everything that reads records goes through a mechanism of the plan."""
    return carry_out(plan, plan.mechanisms(), key, access, model, start, bounds)


def carry_out(
    plan: Plan,
    mechanisms: dict[str, tuple[Mechanism, ...]],
    key: Array,
    access: Access,
    model: Any,
    start: Any,
    bounds: Range | None,
) -> Released[Outcome]:
    """What `run` compiles."""
    if not plan.is_table:
        return _solve(plan, mechanisms, key, access, model, start)
    assert bounds is not None
    range_key, moments_key, solver_key = jax.random.split(key, 3)
    numbers = access.map(lambda record: measured(plan.link, plan.numbers, record))
    release = Released(bounds)
    if "ranges" in mechanisms:
        places = np.array(plan.unknown)
        found = release_range(range_key, numbers.map(lambda x: x[places]).through(mechanisms["ranges"][0]))
        release = found.map(lambda r: Range(bounds.low.at[places].set(r.low), bounds.high.at[places].set(r.high)))
    if plan.link == "poisson":  # a count is at least 0
        release = release.map(lambda r: Range(r.low.at[-1].set(0), r.high.at[-1].max(1)))
    if "moments" in mechanisms:
        through = numbers.through(mechanisms["moments"][0])
        scalings = release.then(lambda found: release_scaling(moments_key, through, found))
    else:
        scalings = release.map(lambda r: Scaling(r, (r.low + r.high) / 2, (r.high - r.low) / 2))
    scalings = scalings.map(lambda scaling: without_tails(len(plan.numbers), scaling))

    def solve(scaling: Scaling) -> Released[Outcome]:
        ready = access.map(lambda record: standardise(plan.link, plan.numbers, scaling, record))
        release = _solve(plan, mechanisms, solver_key, ready, model, start, scaling)
        return release.map(lambda found: replace(found, scaling=scaling))

    return scalings.then(solve)


def attempt(plan: Plan, key: Array, access: Access, model: Any, start: Any, bounds: Range | None) -> Outcome:
    """The outcome of a plan on public or simulated records, with settings that may be arrays. Nothing is promised."""
    release = carry_out(plan, plan.mechanisms(is_trial=True), key, access, model, start, bounds)
    if accounting.epsilon(release.event, 0.5) != math.inf:
        raise RuntimeError("a trial that has a price: this is a bug in tacit")
    return release.value


def _solve(
    plan: Plan,
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
    link = LINKS.get(plan.link)
    units: tuple[Any, Any] = (1.0, 1.0) if link is None else (link.slope, link.bend)
    if plan.link == "linear" and scaling is not None:
        keys = jax.random.split(key, 3)
        first, rest = _parts(plan, mechanisms)
        noised = access.through(mechanisms["residual"][0])

        def again(mean: Array) -> Released[Outcome]:
            def finish(noise_scale: Array) -> Released[Outcome]:
                known = replace(model, noise_scale=noise_scale)
                near = start.of(mean, start.covariance if start.precision.ndim == 2 else start.deviation)
                scaled = units[0] / noise_scale, units[1] / noise_scale**2
                found = rest(keys[2], Target(model.prior, near, known), gradients, scaled)
                return found.map(lambda outcome: replace(outcome, noise_scale=noise_scale))

            return _residual_scale(keys[1], noised, mean).then(finish)

        begun = first(keys[0], target, gradients, units)
        return begun.map(lambda found: found.q[0] if isinstance(found.q, tuple) else found.q.mean).then(again)
    if plan.link == "linear":
        units = (units[0] / model.noise_scale, units[1] / model.noise_scale**2)
    if plan.link == "poisson" and scaling is not None:
        mean = jnp.maximum(scaling.location[-1], 1 / access.slots)
        units = (units[0] * jnp.sqrt(mean), units[1] * mean)
        moved = jnp.zeros_like(model.prior.mean).at[0].set(jnp.log(mean))
        model = replace(model, prior=DiagonalGaussian(moved * model.prior.precision, model.prior.precision))
        start = start.of(moved, start.covariance if start.precision.ndim == 2 else start.deviation)
        target = Target(model.prior, start, model)
    return _parts(plan, mechanisms)[-1](key, target, gradients, units)


def _parts(plan: Plan, mechanisms: dict[str, tuple[Mechanism, ...]]) -> tuple[Callable[..., Released[Outcome]], ...]:
    """What solves, as `(key, target, access, units)`: in two parts if the residual is found between them, or whole."""
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
        trust=plan.rule.trust,
        reach=REACH if plan.is_table else math.inf,
        caution=LINKS[plan.link].caution,
        expansion="vi" if plan.method == "natural" else plan.method,  # type: ignore[arg-type]
    )

    def staged(stages: slice) -> Callable[..., Released[Outcome]]:
        part = replace(solver, steps=plan.steps[stages], gradients=mechanisms["gradients"][stages])
        return lambda key, target, access, units: part.moments(key, target, access, units).map(Outcome)

    return tuple(staged(stages) for stages in ((slice(1), slice(1, None)) if is_parted else (slice(None),)))


def _langevin(plan: Plan, steps: int) -> Callable[..., Released[Outcome]]:
    """Langevin dynamics with a step size by the largest curvature that records may have, and what it leaves."""

    def solve(key: Array, target: Target, access: Access, units: Any) -> Released[Outcome]:
        size = plan.learning_rate / (access.slots * plan.curvature_clip)
        solver = SGLD(steps, size, thinning=max(1, steps // 2 // MOST_SAMPLES), chains=CHAINS)
        drawn = solver.samples(key, target, access, units)
        return drawn.map(lambda found: Outcome(moments(found, target.start), samples=found))

    return solve


def _residual_scale(key: Array, access: Access, mean: Array) -> Released[Array]:
    """The deviation of y - x·m, from a noised sum of squares and a count; y is standardised, so it is at most 1."""

    def squares(records: Tree) -> Dense:
        x, y = records
        residuals = jnp.minimum((y - x @ mean) ** 2, MOST_RESIDUAL)
        return Dense(jnp.stack([residuals, jnp.ones_like(residuals)], axis=1))

    noise = access.mechanism.deviation

    def root(total: Array) -> Array:
        # What noise could have made of more is raised to the noise: a narrow guess costs far more than a wide one.
        count = jnp.maximum(total[1], 1)
        return jnp.sqrt(jnp.clip(total[0] / count, jnp.clip(noise / count, LEAST_RESIDUAL, 1), 1))

    return access.sum(key, squares).map(root)


# --- The front ---------------------------------------------------------------------------------------------------


def fit(
    model: Any,
    data: Any,
    epsilon: float,
    delta: float,
    *,
    bounds: Any = None,
    target_bounds: tuple[float, float] | None = None,
    indicators: Any = (),
    names: Any = None,
    classes: Any = None,
    scaling: Literal["moments", "bounds"] = "moments",
    method: Method = "vi",
    groups: Any = None,
    most_records: int | None = None,
    slots: int | None = None,
    prior_deviation: float = PRIOR_DEVIATION,
    steps: int | None = None,
    clip: float | Literal["adaptive"] | None = None,
    sampling_rate: float | None = None,
    learning_rate: float | None = None,
    optimiser: Any = None,
    start: Any = None,
    adjacency: Adjacency = "add-remove",
    policy: Policy | None = None,
    ledger: Place | None = None,
    budget_epsilon: BudgetEpsilon | None = None,
    budget_delta: float | None = None,
    allow_large_delta: bool = False,
    insecure_seed: int | None = None,
    notes: tuple[str, ...] = (),
) -> Posterior:
    """A private posterior. ε and δ are all that must be given.

    model: "linear", "logistic", "probit", "poisson" or "softmax", a regression on a table; or any model of
    `tacit.models`, on records as they are. data: (features, target), a `tacit.data` set or a `Table`; for other models
    a tree of arrays with the records in front. epsilon may be infinite: the same code without clip and noise.

    What is public, for tables: `bounds` of the features, (low, high) or a dict by name, and `target_bounds`; which
    columns are `indicators` (0 or 1); `classes`, the labels behind 0, 1, ... Numbers are standardised, and part of the
    budget pays for their means and variances, and for their ranges where there are no bounds; scaling="bounds" takes
    the middle and half-width of the bounds instead and pays nothing. The statement says which.

    `groups` (an id for each record) makes all records of one id the unit of privacy, of which the first `most_records`
    are used. `slots` is the public number of places for units, at least as many as there are, and clips and noise
    follow from it; by default it is the number of units, which is then taken as public. The prior is
    N(0, prior_deviation²) on the coefficients of standardised features. `notes` are added to the statement. The answer
    is in the units of the data.

    method: "vi", variational inference; "ep" or "sep", expectation propagation with a factor for each record or an
    average one; "sgld", samples by Langevin dynamics, which `posterior.chains` holds and `to_arviz` hands on.
    clip="adaptive" fits by `VI` with a clip that follows the gradients, within the same price. policy: what decides
    all that is not given, from public sizes; by default the one that comes with tacit (`tacit.policy`).

    ledger: a path, or a `tacit.privacy.ledger.Ledger`, in which the whole price is charged before a record is read, or
    the fit refused; fits of the same data must share one. It is made at its first use with `budget_epsilon` ("first":
    what this fit costs) and `budget_delta` (this fit's if None). Without one the statement says that other analyses are
    not counted. An infinite epsilon charges none. δ of 1 / records or more is refused unless `allow_large_delta`.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 400)[:, None]
    >>> posterior = fit("logistic", (x, (x[:, 0] > 0.1) * 1.0), epsilon=8, delta=1e-5, bounds=(-1, 1), insecure_seed=1)
    >>> posterior.epsilon <= 8, posterior.predict([[-0.9], [0.9]]).round().tolist()
    (True, [0.0, 1.0])
    """
    accounting.check_delta(delta)
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon={epsilon}; expected a number above 0, or infinity for no privacy")
    if isinstance(model, str) and model not in LINKS:
        raise ValueError(f"model={model!r}; expected one of {', '.join(LINKS)}, or a model of tacit.models")
    check_method(method)
    budget = Budget(budget_epsilon, budget_delta)
    _check_budget(ledger, budget, epsilon)
    table, records = _records(model, data, names, indicators, bounds, target_bounds, classes)
    if groups is None and table is not None:
        groups = table.groups
    _check_slots(slots, records, groups)
    access = Access.of(records, Exact(), groups=groups, most_records=most_records, capacity=slots)
    if math.isfinite(epsilon):
        accounting.check_delta_of(delta, access.slots, allow_large_delta)
    given = {"method": method, "steps": steps, "clip": clip, "sampling_rate": sampling_rate}
    given |= {"learning_rate": learning_rate}
    key = secure_key() if insecure_seed is None else insecure_key(insecure_seed)
    start_key = key
    if start is None and not isinstance(model, str):
        key, start_key = jax.random.split(key)
    plan, program = prepare(
        start_key,
        model,
        table,
        access,
        epsilon,
        delta,
        scaling=scaling,
        prior_deviation=prior_deviation,
        given=given,
        optimiser=optimiser,
        start=start,
        adjacency=adjacency,
        policy=policy,
    )
    promised = price(program, key, access)
    if math.isfinite(epsilon) and accounting.epsilon(promised, delta, adjacency=adjacency) > epsilon:
        raise ValueError(f"epsilon={epsilon} would be passed by this plan; ask for a little more, or set fewer steps")
    charged = None
    if ledger is not None:
        is_seeded = insecure_seed is not None
        whose: dict[str, Any] = {"slots": access.slots, "unit": access.unit, "adjacency": adjacency}
        whose |= {"epsilon": epsilon, "delta": delta, "allow_large_delta": allow_large_delta}
        charged = charge(ledger, promised, budget, seeded=is_seeded, **whose)
    release = program(key, access)
    if release.event != promised:
        raise RuntimeError("the receipt is not the price: this is a bug in tacit; do not use the result")
    counted = (UNCOUNTED,) if charged is None else charged.notes
    notes = (
        *_notes(plan, table, access, most_records, slots is not None),
        *(table.notes if table else ()),
        *notes,
        *counted,
    )
    if math.isfinite(epsilon) and delta >= 1 / access.slots:
        notes += (
            f"δ = {delta!r} is 1 / {access.slots} or more, which was ALLOWED: it does not rule out that some "
            f"{access.unit} is published as it is.",
        )
    if policy is not None:
        notes += (f"Settings are by a policy that was given ({policy.words}), which is treated as public.",)
    statement = Statement.of(release.event, delta, seeded=release.seeded, adjacency=adjacency, notes=notes)
    posterior = _posterior(plan, table, release.value, statement)
    posterior.statement["ledger"] = None if charged is None else charged.to_dict()
    if not all(np.all(np.isfinite(part)) for b in posterior.blocks.values() for part in (b.mean, b.covariance)):
        raise ValueError(
            f"the posterior is not finite, and ε = {posterior.epsilon:.3g} was spent on it{_kept(charged)}; "
            "give a prior_deviation, a clip and a learning_rate of ordinary size"
        )
    return posterior


def _check_budget(ledger: Place | None, budget: Budget, epsilon: float) -> None:
    budget.check()
    if ledger is None and (budget.epsilon, budget.delta) != (None, None):
        raise ValueError("budget_epsilon and budget_delta are of a ledger; expected ledger, a path, with them")
    if ledger is not None and math.isinf(epsilon):
        raise ValueError(
            "epsilon=inf with a ledger, which cannot count what is published exactly; expected a finite epsilon, or no "
            "ledger"
        )


def _kept(charged: Charge | None) -> str:
    return "" if charged is None else f", which the ledger {charged.ledger.path.name} has as {charged.entry.study}"


def _check_slots(slots: int | None, records: Tree, groups: Any) -> None:
    """Refuse too few places for all units. The words say nothing of how many there are."""
    if slots is None:
        return
    check_number("slots", slots, "a whole number of at least 1", isinstance(slots, int) and slots >= 1)
    units = jax.tree.leaves(records)[0] if groups is None else np.unique(np.asarray(groups))
    if len(units) > slots:
        raise ValueError(f"slots={slots} and more units of privacy than that; give a public number with room for all")


def check_method(method: str) -> None:
    """Refuse a word that names no method."""
    if method not in get_args(Method):
        raise ValueError(f"method={method!r}; expected one of {', '.join(get_args(Method))}")


def prepare(
    key: Array,
    model: Any,
    table: Table | None,
    access: Access,
    epsilon: float,
    delta: float,
    *,
    scaling: Literal["moments", "bounds"] = "moments",
    prior_deviation: float = PRIOR_DEVIATION,
    given: Mapping[str, Any] = MappingProxyType({}),
    optimiser: Any = None,
    start: Any = None,
    adjacency: Adjacency = "add-remove",
    policy: Policy | None = None,
) -> tuple[Plan, Callable[[Array, Access], Released[Outcome]]]:
    """The plan, and the program `(key, access) -> Released[Outcome]` that carries it out, from public facts alone.

    Of `access` only its form counts. key: for a start that is drawn. given: method, steps, clip, sampling_rate and
    learning_rate, where they are not left to the rule.
    """
    plan = _plan(model, table, access, math.isfinite(epsilon), scaling, given, optimiser, policy or default_policy())
    if isinstance(model, str):
        assert table is not None
        model = model_of(plan.link, table, prior_deviation)
        start = model.prior
        if not plan.has_curvature:
            start = start.of(jnp.zeros_like(start.mean), START_DEVIATION)
    elif start is None:
        start = model.start(key) if hasattr(model, "start") else model.prior
    if plan.method == "sgld":  # chains begin close to each other: labels of clusters should be the same in all
        start = over_parts(start, lambda part: DiagonalGaussian.of(part.mean, START_DEVIATION))
    if plan.method != "vi" and not isinstance(start, dict) and len(start.precision_mean) <= MOST_COLUMNS:
        start = start.full()
    size = sum(leaf.size for leaf in jax.tree.leaves(_means(start)))
    if math.isfinite(epsilon):
        noise = accounting.calibrate(
            epsilon,
            delta,
            plan=lambda noise: replace(plan, noise_multiplier=noise).event(access.slots, access.unit, size),
            adjacency=adjacency,
        ).noise_multiplier
        plan = replace(plan, noise_multiplier=noise)
        if plan.has_curvature and given.get("clip") is None:
            plan = replace(plan, clip=plan.clip_for(access.slots, size))
        if plan.method == "sgld" and given.get("learning_rate") is None:
            plan = replace(plan, learning_rate=_share(plan, access.slots))
    limits = bounds_of(table, plan.columns) if table is not None and plan.is_table else None
    return plan, lambda key, access: run(plan, key, access, model, start, limits)


def _records(
    model: Any, data: Any, names: Any, indicators: Any, bounds: Any, target_bounds: Any, classes: Any
) -> tuple[Table | None, Tree]:
    """The data as a table, if it is one, and as records."""
    if isinstance(data, Dataset):
        data = Table.of_dataset(data)
    if isinstance(model, str):
        if not isinstance(data, Table):
            if not isinstance(data, tuple | list) or len(data) != 2:
                raise ValueError(f"data is a {type(data).__name__}; expected (features, target), a Dataset or a Table")
            public = {"bounds": bounds, "target_bounds": target_bounds, "classes": classes}
            data = Table.of(*data, names=names, indicators=indicators, **public)
        check_target(model, data)
        return data, (data.features, data.target.astype(np.float32))
    if isinstance(data, Table):  # a model of one's own sees the table with an intercept
        ones = np.ones((len(data.features), 1), np.float32)
        return data, (np.concatenate([ones, data.features], axis=1), data.target)
    return None, data


def _plan(
    model: Any,
    table: Table | None,
    access: Access,
    is_private: bool,
    scaling: Literal["moments", "bounds"],
    given: Mapping[str, Any],
    optimiser: Any,
    policy: Policy,
) -> Plan:
    """The rule: settings from public sizes alone. The clip of a regression's gradients waits for the noise."""
    steps, rate, clip, learning_rate = (given.get(name) for name in ("steps", "sampling_rate", "clip", "learning_rate"))
    method, is_adaptive = given.get("method") or "vi", clip == "adaptive"
    if method != "vi" and (is_adaptive or optimiser is not None or (method != "sgld" and learning_rate is not None)):
        raise ValueError(f"method={method!r} takes neither clip='adaptive' nor an optimiser; use method='vi'")
    if isinstance(clip, str) and not is_adaptive:
        raise ValueError(f"clip={clip!r}; expected a number above 0, 'adaptive', or None for the rule")
    clip = None if isinstance(clip, str) else clip
    is_table = isinstance(model, str)
    kinds = {name: link.model for name, link in LINKS.items()}
    link = model if is_table else next((name for name, kind in kinds.items() if isinstance(model, kind)), "")
    numbers, unknown = (), ()
    if is_table:
        assert table is not None
        numbers = table.numbers
        ends = [*table.low[:-1], *([table.low[-1]] if link in ("linear", "poisson") else [])]
        unknown = tuple(j for j, end in enumerate(ends) if math.isnan(end))
        if scaling == "bounds" and unknown:
            raise ValueError(
                "scaling='bounds' needs public bounds of every number (and of a numeric target); give bounds"
            )
    most_records = access.present.shape[1]
    common: dict[str, Any] = {"is_table": is_table, "most_records": most_records, "scaling": scaling}
    rule = policy.rule(link) if is_private else PLAIN
    common |= {"numbers": numbers, "unknown": unknown, "rule": rule}
    columns = len(table.names) + 1 if table is not None else _width(model, access)
    is_natural = link not in ("", "softmax") and columns <= MOST_COLUMNS
    typical = 1 + len(table.numbers) + table.categories if table is not None else max(1, columns)
    per_unit = math.sqrt(most_records)  # a unit's records add up
    if is_natural and method != "sgld" and optimiser is None and learning_rate is None and not is_adaptive:
        stages = (rule.steps if is_private else EXACT_STAGES) if steps is None else _halves(steps)
        clips = math.sqrt(typical) * per_unit if clip is None else clip, typical * per_unit
        settings = {"sampling_rate": 1.0 if rate is None else rate, "learning_rate": 0.0, "has_curvature": True}
        return Plan("natural" if method == "vi" else method, link, stages, *clips, **settings, **common)
    if method == "sgld" and steps is not None and steps < 2:
        raise ValueError(f"steps={steps}; expected at least 2 for method='sgld'")
    if method in ("ep", "sep") and not (is_natural or hasattr(model, "match") or (link and link != "softmax")):
        raise ValueError(f"method={method!r} has no moments to match of this model; use method='vi' or 'sgld'")
    if clip is None:
        clip = math.sqrt(typical) * LINKS[link].least if link else FACTOR_CLIP if method in ("ep", "sep") else CLIP
        clip *= per_unit * (math.sqrt(CHAINS) if method == "sgld" else 1)
    if rate is None:
        rate = 1.0 if method in ("ep", "sep") else min(1.0, max(SAMPLING_RATE, LEAST_BATCH / access.slots))
    if learning_rate is None:
        learning_rate = {"vi": LEARNING_RATE, "sgld": STEP_SHARES[1]}.get(method, 0.0)
    if steps is None:
        steps = FACTOR_STEPS if method in ("ep", "sep") else STEPS
    settings = {"sampling_rate": rate, "learning_rate": learning_rate, "optimiser": optimiser}
    settings |= {"is_adaptive": is_adaptive}
    if method == "sgld":
        settings["curvature_clip"] = typical * per_unit
    return Plan(method, link, (steps,), clip, **settings, **common)


def _share(plan: Plan, slots: int) -> float:
    """The learning rate of Langevin dynamics at which privacy's noise in a step is what the posterior asks for."""
    slope, bend = (LINKS[plan.link].slope, LINKS[plan.link].bend) if plan.link else (1.0, 1.0)
    noise = plan.mechanisms()["gradients"][0].deviation * slope
    return min(max(4 * slots * plan.curvature_clip * bend / noise**2, STEP_SHARES[0]), STEP_SHARES[1])


def _width(model: Any, access: Access) -> int:
    return access.records[0].shape[-1] if hasattr(model, "of_linear") else 0


def _halves(steps: int) -> tuple[int, int]:
    if steps < 2:
        raise ValueError(f"steps={steps}; expected at least 2, one after each release of curvature")
    return steps // 2, steps - steps // 2


def _means(q: Any) -> Any:
    return jax.tree.map(lambda part: part.precision_mean, q, is_leaf=lambda part: hasattr(part, "precision_mean"))


def _notes(
    plan: Plan, table: Table | None, access: Access, most_records: int | None, has_slots: bool
) -> tuple[str, ...]:
    """What the guarantee takes for granted, and where scales come from."""
    found = [f"The number of {access.unit}s, {access.slots}, is treated as public: a removed one leaves its place."]
    if has_slots:
        found = [f"The number of slots for {access.unit}s, {access.slots}, is public; how many are filled is not told."]
    if most_records is not None:
        found.append(f"At most {most_records} records of one {access.unit} are used, the first ones.")
    if plan.is_table and plan.columns:
        shares, names = plan.shares(), ["numeric columns", *(["the target"] if plan.scales_target else [])]
        what = " and ".join(names)
        if "ranges" in shares:
            known = plan.columns - len(plan.unknown)
            found.append(
                f"Ranges of {len(plan.unknown)} of {plan.columns} {what} are private releases "
                f"({_percent(shares['ranges'])} of the budget); those of {known} are public bounds."
            )
        else:
            found.append(f"Ranges of {what} are public bounds.")
        if "moments" in shares:
            paid = f"are private releases ({_percent(shares['moments'])} of the budget)"
        else:
            paid = "are the middle and half-width of the bounds, which are public"
        found.append(f"Locations and scales of {what} {paid}.")
    elif not plan.is_table:
        found.append("Records are used as they are given; what was done to them before is not covered.")
    if plan.is_table and plan.link in ("logistic", "probit", "softmax"):
        found.append("The list of classes is treated as public.")
    if plan.has_curvature:
        found.append("Posterior intervals include the noise that was added to gradients.")
        if plan.rule.trust and plan.noise_multiplier:
            found.append(
                f"Of the curvature that noise hides, {plan.rule.trust:.0%} of a guess is believed: intervals are too "
                "narrow where records tell less."
            )
    elif plan.method == "sgld":
        found.append(
            "Intervals are of samples: each step has the larger of the noise that the posterior asks for and that of "
            "privacy. Whether the chains have mixed is not checked; look at them."
        )
    else:
        found.append("Posterior intervals do not include the noise that was added.")
    return tuple(found)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _posterior(plan: Plan, table: Table | None, outcome: Outcome, statement: Statement) -> Posterior:
    """The outcome in the units of the data."""
    words = {"statement": statement.to_dict(), "statement_text": statement.text()}
    common: dict[str, Any] = words | {"plan": plan.to_dict()}
    samples = jax.tree.map(lambda leaf: np.asarray(leaf, float).swapaxes(0, 1), outcome.samples)  # chains in front
    if isinstance(outcome.q, dict):
        blocks = {
            name: block(q, tuple(f"{name}[{j}]" for j in range(len(q.precision)))) for name, q in outcome.q.items()
        }
        return Posterior(blocks, "", **common, chains=samples)
    if not plan.is_table:
        size = len(jax.tree.leaves(outcome.q)[0])
        names = ("intercept", *table.names) if table is not None else tuple(f"theta[{j}]" for j in range(size))
        common["chains"] = None if samples is None else {"coefficients": samples}
        return Posterior({"coefficients": block(outcome.q, names)}, plan.link if table is not None else "", **common)
    assert table is not None
    assert outcome.scaling is not None
    return in_units(plan.link, plan.numbers, table, outcome.q, outcome.scaling, outcome.noise_scale, common, samples)
