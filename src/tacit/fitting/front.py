"""One site, one call: `fit(model, data, epsilon, delta)`. A policy chooses every setting that is not given."""

import math
from typing import Any, Literal

import jax
import numpy as np

from tacit.basics.trees import Tree
from tacit.data.datasets import Dataset
from tacit.fitting.charging import UNCOUNTED, Budget, BudgetEpsilon, Charge, Place, charge
from tacit.fitting.plan import FitMethod, FitPlan
from tacit.fitting.policy import Policy
from tacit.fitting.prepare import check_method, prepare
from tacit.fitting.program import Outcome
from tacit.links import LINKS, link_of
from tacit.posterior.posterior import Posterior
from tacit.privacy import accounting
from tacit.privacy.checks import check_delta, check_delta_of
from tacit.privacy.events import Adjacency, check_number
from tacit.privacy.mechanism import Access, Exact
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.privacy.released import price
from tacit.privacy.statement import Statement
from tacit.tables.standardising import PRIOR_DEVIATION, block, check_target, in_units
from tacit.tables.table import Table


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
    method: FitMethod = "vi",
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
    """Fit a private posterior. Only ε and δ must be given beside model and data.

    model: the name of a regression on a table, such as "logistic" (`tacit.links.LINKS` has all); or any model of
    `tacit.models`, on records as they are. data: (features, target), a `tacit.data` set or a `Table`; for other models
    a tree of arrays with the records on the first axis. epsilon may be infinite: the same code without clip and noise.

    Public facts of tables: `bounds` of the features, (low, high) or a dict by name, and `target_bounds`; the columns
    that are `indicators` (0 or 1); `classes`, the labels behind 0, 1, ... Numbers are standardised. Part of the budget
    pays for their means and variances, and for ranges that have no bounds; scaling="bounds" uses the middle and
    half-width of the bounds instead, which is free. The statement says which.

    `groups` (an id for each record) makes all records of one id the unit of privacy; the first `most_records` of each
    are used. `slots` is the public number of places for units, at least as many as there are; clips and noise follow
    from it. By default it is the number of units, which is then treated as public. The prior is
    N(0, prior_deviation²) on the coefficients of standardised features. `notes` are added to the statement. The answer
    is in the units of the data.

    method: "vi", variational inference; "ep" or "sep", expectation propagation with a factor for each record or an
    average one; "sgld", samples by Langevin dynamics, held in `posterior.chains` and exported by `to_arviz`.
    clip="adaptive" fits by `VI` with a clip that follows the gradients, at the same price. policy: chooses all settings
    that are not given, from public sizes; by default the one that comes with tacit (`tacit.policy`).

    ledger: a path, or a `tacit.privacy.ledger.Ledger`. The whole price is charged there before a record is read, or
    the fit is refused; fits of the same data must share one. It is made at its first use with `budget_epsilon`
    ("first": the price of this fit) and `budget_delta` (this fit's if None). Without a ledger the statement says that
    other analyses are not counted. An infinite epsilon cannot be charged to a ledger. δ of 1 / records or more is
    refused unless `allow_large_delta`.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 400)[:, None]
    >>> posterior = fit("logistic", (x, (x[:, 0] > 0.1) * 1.0), epsilon=8, delta=1e-5, bounds=(-1, 1), insecure_seed=1)
    >>> posterior.epsilon <= 8, posterior.predict([[-0.9], [0.9]]).round().tolist()
    (True, [0.0, 1.0])
    """
    _check_asked(model, epsilon, delta, method)
    budget = Budget(budget_epsilon, budget_delta)
    _check_budget(ledger, budget, epsilon)
    table, records = _records(model, data, names, indicators, bounds, target_bounds, classes)
    if groups is None and table is not None:
        groups = table.groups
    _check_slots(slots, records, groups)
    access = Access.of(records, Exact(), groups=groups, most_records=most_records, slots=slots)
    if math.isfinite(epsilon):
        check_delta_of(delta, access.slots, allow_large_delta)
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
        raise ValueError(f"epsilon={epsilon} would be exceeded by this plan; ask for a little more, or set fewer steps")
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
    own = _notes(plan, table, access, most_records, slots is not None)
    notes = (*own, *(table.notes if table else ()), *notes, *counted)
    notes += _warnings(access, delta, policy, is_private=math.isfinite(epsilon))
    statement = Statement.of(release.event, delta, seeded=release.seeded, adjacency=adjacency, notes=notes)
    posterior = _posterior(plan, table, release.value, statement)
    posterior.statement["ledger"] = None if charged is None else charged.to_dict()
    _check_finite(posterior, charged)
    return posterior


def _check_asked(model: Any, epsilon: float, delta: float, method: str) -> None:
    check_delta(delta)
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon={epsilon}; expected a number above 0, or infinity for no privacy")
    if isinstance(model, str) and model not in LINKS:
        raise ValueError(f"model={model!r}; expected one of {', '.join(LINKS)}, or a model of tacit.models")
    check_method(method)


def _check_finite(posterior: Posterior, charged: Charge | None) -> None:
    if not all(np.all(np.isfinite(part)) for b in posterior.blocks.values() for part in (b.mean, b.covariance)):
        raise ValueError(
            f"the posterior is not finite, and ε = {posterior.epsilon:.3g} was spent on it{_kept(charged)}; "
            "give a prior_deviation, a clip and a learning_rate of ordinary size"
        )


def _check_budget(ledger: Place | None, budget: Budget, epsilon: float) -> None:
    budget.check()
    if ledger is None and (budget.epsilon, budget.delta) != (None, None):
        raise ValueError("budget_epsilon and budget_delta belong to a ledger; expected ledger, a path, with them")
    if ledger is not None and math.isinf(epsilon):
        raise ValueError(
            "epsilon=inf with a ledger, which cannot count an exact result; expected a finite epsilon, or no ledger"
        )


def _kept(charged: Charge | None) -> str:
    return "" if charged is None else f", which the ledger {charged.ledger.path.name} has as {charged.entry.study}"


def _check_slots(slots: int | None, records: Tree, groups: Any) -> None:
    """Refuse fewer slots than units. The message does not say how many units there are."""
    if slots is None:
        return
    check_number("slots", slots, "a whole number of at least 1", isinstance(slots, int) and slots >= 1)
    units = jax.tree.leaves(records)[0] if groups is None else np.unique(np.asarray(groups))
    if len(units) > slots:
        raise ValueError(f"slots={slots} and more units of privacy than that; give a public number with room for all")


def _records(
    model: Any, data: Any, names: Any, indicators: Any, bounds: Any, target_bounds: Any, classes: Any
) -> tuple[Table | None, Tree]:
    """The data as a table, if it is one, and as records."""
    if isinstance(data, Dataset):
        data = data.to_table()
    if isinstance(model, str):
        if not isinstance(data, Table):
            if not isinstance(data, tuple | list) or len(data) != 2:
                raise ValueError(f"data is a {type(data).__name__}; expected (features, target), a Dataset or a Table")
            public = {"bounds": bounds, "target_bounds": target_bounds, "classes": classes}
            data = Table.of(*data, names=names, indicators=indicators, **public)
        check_target(link_of(model), data)
        return data, (data.features, data.target.astype(np.float32))
    if isinstance(data, Table):  # models given as objects get the table with an intercept column
        ones = np.ones((len(data.features), 1), np.float32)
        return data, (np.concatenate([ones, data.features], axis=1), data.target)
    return None, data


def _notes(
    plan: FitPlan, table: Table | None, access: Access, most_records: int | None, has_slots: bool
) -> tuple[str, ...]:
    """Notes for the statement: assumptions of the guarantee, and where scales come from."""
    found = [f"The number of {access.unit}s, {access.slots}, is treated as public: removing one leaves its slot empty."]
    if has_slots:
        found = [f"The number of slots for {access.unit}s, {access.slots}, is public; how many are filled is not."]
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
        found.append("Records are used as they are given; earlier processing of them is not covered.")
    if plan.is_table and not link_of(plan.link).target.is_number:
        found.append("The list of classes is treated as public.")
    if plan.has_curvature:
        found.append("Posterior intervals include the noise that was added to gradients.")
        if plan.rule.shrinkage and plan.noise_multiplier:
            found.append(
                f"Where noise hides the curvature, {plan.rule.shrinkage:.0%} of a guess takes its place. Intervals are "
                "too narrow where the records say less than the guess."
            )
    elif plan.method == "sgld":
        found.append(
            "Intervals come from samples: each step adds the larger of the noise of Langevin dynamics and the noise of "
            "privacy. Whether the chains have mixed is not checked; look at them."
        )
    else:
        found.append("Posterior intervals do not include the noise that was added.")
    return tuple(found)


def _warnings(access: Access, delta: float, policy: Policy | None, *, is_private: bool) -> tuple[str, ...]:
    """Notes for the statement about a large δ that was allowed, and a policy that was given."""
    found = []
    if is_private and delta >= 1 / access.slots:
        found.append(
            f"δ = {delta!r} is 1 / {access.slots} or more, which was ALLOWED: it does not rule out that some "
            f"{access.unit} is published as it is."
        )
    if policy is not None:
        found.append(f"Settings come from a policy that was given ({policy.words}), which is treated as public.")
    return tuple(found)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _posterior(plan: FitPlan, table: Table | None, outcome: Outcome, statement: Statement) -> Posterior:
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
    return in_units(
        link_of(plan.link), plan.numbers, table, outcome.q, outcome.scaling, outcome.noise_scale, common, samples
    )
