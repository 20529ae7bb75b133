"""Make a plan and its program from public facts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, over_parts
from tacit.fitting.plan import CHAINS, CLIP, EXACT_STAGES, LEARNING_RATE, SAMPLING_RATE, STEPS, FitMethod, FitPlan
from tacit.fitting.policy import PLAIN, Policy, default_policy
from tacit.fitting.program import FACTOR_CLIP, FACTOR_STEPS, Outcome, run
from tacit.links import LINKS, link_of
from tacit.privacy import accounting
from tacit.privacy.events import Adjacency
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.tables.standardising import PRIOR_DEVIATION, bounds_of, model_of
from tacit.tables.table import Table

MOST_COLUMNS = 400  # with more, a curvature matrix is mostly noise, so a diagonal q is fitted

START_SD = 0.1  # of the start, where curvature is not released or the method is Langevin dynamics

LEAST_BATCH = 200  # records of a sample, on average

STEP_SHARES = 0.5, 2.0  # least and most learning rate of Langevin dynamics, in units of 1 / the largest curvature


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
) -> tuple[FitPlan, Callable[[Array, Access], Released[Outcome]]]:
    """The plan, and the program `(key, access) -> Released[Outcome]` that carries it out, from public facts alone.

    Only the form of `access` is used. key: draws the start, if it is random. given: those of method, steps, clip,
    sampling_rate and learning_rate that are not left to the rule.
    """
    plan = _plan(model, table, access, math.isfinite(epsilon), scaling, given, optimiser, policy or default_policy())
    if isinstance(model, str):
        assert table is not None
        model = model_of(link_of(plan.link), table, prior_deviation)
        start = model.prior
        if not plan.has_curvature:
            start = start.of(jnp.zeros_like(start.mean), START_SD)
    elif start is None:
        start = model.start(key) if hasattr(model, "start") else model.prior
    if plan.method == "sgld":  # chains start close to each other, so that cluster labels agree between them
        start = over_parts(start, lambda part: DiagonalGaussian.of(part.mean, START_SD))
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


def _plan(
    model: Any,
    table: Table | None,
    access: Access,
    is_private: bool,
    scaling: Literal["moments", "bounds"],
    given: Mapping[str, Any],
    optimiser: Any,
    policy: Policy,
) -> FitPlan:
    """Choose settings from public sizes alone. `prepare` sets the clip of a regression's gradients after the noise."""
    steps, rate, clip, learning_rate = (given.get(name) for name in ("steps", "sampling_rate", "clip", "learning_rate"))
    method, is_adaptive = given.get("method") or "vi", clip == "adaptive"
    _check_optimiser(method, clip, learning_rate, optimiser)
    clip = None if is_adaptive else clip
    is_table = isinstance(model, str)
    link = model if is_table else next((name for name, link in LINKS.items() if isinstance(model, link.model)), "")
    regression = LINKS.get(link)
    numbers = table.numbers if is_table and table is not None else ()
    unknown = _unbounded(table, link, scaling) if is_table and table is not None else ()
    most_records = access.present.shape[1]
    common: dict[str, Any] = {"is_table": is_table, "most_records": most_records, "scaling": scaling}
    rule = policy.rule(link) if is_private else PLAIN
    common |= {"numbers": numbers, "unknown": unknown, "rule": rule}
    columns = len(table.names) + 1 if table is not None else _width(model, access)
    has_one = regression is not None and not regression.is_multiclass  # a single linear predictor
    is_natural = has_one and columns <= MOST_COLUMNS
    typical = 1 + len(table.numbers) + table.categories if table is not None else max(1, columns)
    per_unit = math.sqrt(most_records)  # contributions of a unit's records add up
    if is_natural and method != "sgld" and optimiser is None and learning_rate is None and not is_adaptive:
        stages = (rule.steps if is_private else EXACT_STAGES) if steps is None else _halves(steps)
        clips = math.sqrt(typical) * per_unit if clip is None else clip, typical * per_unit
        settings = {"sampling_rate": 1.0 if rate is None else rate, "learning_rate": 0.0, "has_curvature": True}
        return FitPlan("natural" if method == "vi" else method, link, stages, *clips, **settings, **common)
    if method == "sgld" and steps is not None and steps < 2:
        raise ValueError(f"steps={steps}; expected at least 2 for method='sgld'")
    if method in ("ep", "sep") and not (is_natural or hasattr(model, "match") or has_one):
        raise ValueError(f"method={method!r} needs moments, which this model does not have; use method='vi' or 'sgld'")
    if clip is None:
        other = FACTOR_CLIP if method in ("ep", "sep") else CLIP
        clip = math.sqrt(typical) * regression.least_clip if regression else other
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
    return FitPlan(method, link, (steps,), clip, **settings, **common)


def _check_optimiser(method: str, clip: Any, learning_rate: Any, optimiser: Any) -> None:
    is_adaptive = clip == "adaptive"
    if method != "vi" and (is_adaptive or optimiser is not None or (method != "sgld" and learning_rate is not None)):
        raise ValueError(f"method={method!r} takes neither clip='adaptive' nor an optimiser; use method='vi'")
    if isinstance(clip, str) and not is_adaptive:
        raise ValueError(f"clip={clip!r}; expected a number above 0, 'adaptive', or None for the rule")


def _unbounded(table: Table, link: str, scaling: str) -> tuple[int, ...]:
    """Positions of the numbers (and, last, of a numeric target) that have no public bounds."""
    ends = [*table.low[:-1], *([table.low[-1]] if link_of(link).target.is_number else [])]
    found = tuple(j for j, end in enumerate(ends) if math.isnan(end))
    if scaling == "bounds" and found:
        raise ValueError("scaling='bounds' needs public bounds of every number (and of a numeric target); give bounds")
    return found


def _share(plan: FitPlan, slots: int) -> float:
    """The learning rate of Langevin dynamics at which privacy's noise in a step equals the dynamics' own noise."""
    link = plan.regression
    slope, curvature = (1.0, 1.0) if link is None else (link.slope, link.curvature)
    noise = plan.mechanisms()["gradients"][0].standard_deviation * slope
    return min(max(4 * slots * plan.curvature_clip * curvature / noise**2, STEP_SHARES[0]), STEP_SHARES[1])


def _width(model: Any, access: Access) -> int:
    return access.records[0].shape[-1] if hasattr(model, "of_linear") else 0


def _halves(steps: int) -> tuple[int, int]:
    if steps < 2:
        raise ValueError(f"steps={steps}; expected at least 2, one after each release of curvature")
    return steps // 2, steps - steps // 2


def _means(q: Any) -> Any:
    return jax.tree.map(lambda part: part.precision_mean, q, is_leaf=lambda part: hasattr(part, "precision_mean"))


def check_method(method: str) -> None:
    """Refuse an unknown method."""
    if method not in get_args(FitMethod):
        raise ValueError(f"method={method!r}; expected one of {', '.join(get_args(FitMethod))}")
