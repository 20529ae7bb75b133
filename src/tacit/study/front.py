"""One posterior from one table or from many sites: `fit` and `federate`, the same program."""

import math
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tacit.engines.coordinator import Progress
from tacit.posterior.posterior import Posterior
from tacit.privacy.checks import check_delta
from tacit.privacy.ledger import Ledger
from tacit.study.charging import Budget, BudgetEpsilon, Place, charged, ready
from tacit.study.coordinator import StudyResult, coordinate
from tacit.study.host import Observer, Snapshot, Watcher
from tacit.study.local import LocalHost
from tacit.study.plan import Plan
from tacit.study.settings import Settings, plan_of, words_of
from tacit.study.setup import Setup
from tacit.study.sites import Site, check_apart
from tacit.tables.table import Table

NAME, DATA = "fit", "data"  # of a fit as a study, and of its only site
MARK = 12  # letters after a fit's name by which its charges are told from others


def fit(
    model: Any,
    data: Any,
    epsilon: float,
    delta: float,
    *,
    names: Any = None,
    indicators: Any = (),
    bounds: Any = None,
    target_bounds: tuple[float, float] | None = None,
    classes: Any = None,
    groups: Any = None,
    slots: int | None = None,
    ledger: Place | None = None,
    budget_epsilon: BudgetEpsilon | None = None,
    budget_delta: float | None = None,
    insecure_seed: int | None = None,
    notes: tuple[str, ...] = (),
    observe: Observer = lambda phase, done, total, spent: None,
    **settings: Unpack[Settings],
) -> Posterior:
    """Fit a private posterior to one table: a study with one site. Only ε and δ must be given beside model and data.

    Parameters
    ----------
    model : the name of a regression on a table, such as "logistic" (`tacit.links.LINKS` has all); any model of
        `tacit.models`, on records as they are; or a `Plan`.
    data : (features, target), a `tacit.data` set or a `Table`; for other models a tree of arrays with the records on
        the first axis.
    epsilon, delta : the budget of this fit. An infinite epsilon is the same code without clip and noise.
    names, indicators, bounds, target_bounds, classes : public facts of a table: names of the columns; those that are 0
        or 1; limits of the features, (low, high) or a dict by name, and of the target; the labels behind 0, 1, ...
    groups : an id for each record. All records of one id are then the unit of privacy, and the first `most_records` of
        each are used.
    slots : the public number of slots for units, at least as many as there are. Clips and noise follow from it. By
        default it is the number of units, which is then treated as public.
    ledger : a path, or a `tacit.privacy.ledger.Ledger`, made at its first use with `budget_epsilon` ("first": the price
        of this fit) and `budget_delta` (this fit's if None). The fit is refused before it begins if the ledger cannot
        pay for all of it; then each release is charged before records are read for it. Fits of the same data must share
        a ledger. Without one the statement says that other analyses are not counted.
    insecure_seed : repeatable noise from a seed, which is not private.
    notes : added to the statement.
    observe : called as `observe(phase, done, total, spent)` as the fit moves on.
    settings : the settings of a `Plan`, and shorter words for those of its solver (`tacit.study.Settings`), such as
        `scaling`, `method`, `steps`, `clip`, `prior_deviation`, `evaluation`, `policy` and `allow_large_delta`.

    Returns
    -------
    The posterior in the units of the data, with its statement. Scores on held-out records, if `evaluation` pays for
    them, are in `posterior.details["released"]`.

    Raises
    ------
    ValueError : the ledger cannot pay for the fit (`BudgetExceeded`), or arguments do not fit together; in one
        sentence, before anything is charged.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 400)[:, None]
    >>> posterior = fit("logistic", (x, (x[:, 0] > 0.1) * 1.0), epsilon=8, delta=1e-5, bounds=(-1, 1), insecure_seed=1)
    >>> posterior.epsilon <= 8, posterior.predict([[-0.9], [0.9]]).round().tolist()
    (True, [0.0, 1.0])
    """
    _check_asked(epsilon, delta)
    budget = Budget(budget_epsilon, budget_delta)
    _check_budget(ledger, budget, epsilon)
    facts = {"names": names, "indicators": indicators, "bounds": bounds}
    facts |= {"target_bounds": target_bounds, "classes": classes}
    records = _records(model.model if isinstance(model, Plan) else model, data, **facts)
    site = Site(DATA, records, float(epsilon), delta, slots=slots, groups=groups)
    if site.groups is not None and not isinstance(model, Plan):
        settings.setdefault("unit", "person")
    plan = plan_of(model, settings, NAME)
    if ledger is not None:
        plan, site = _charging(plan, site, ledger, budget, insecure_seed is not None)
    notes += words_of(settings.get("policy"))
    with _host(plan, [site], None, insecure_seed, notes) as host:
        found = coordinate(host.setup, host.folder, host, observe=_watching(observe))
        return _checked(found, site.ledger, host)


def federate(
    plan: Any,
    sites: Sequence[Any] | Mapping[str, Any],
    epsilon: float | None = None,
    delta: float | None = None,
    *,
    out: Path | None = None,
    test: Table | None = None,
    groups: Any = None,
    slots: int | None = None,
    insecure_seed: int | None = None,
    observe: Observer = lambda phase, done, total, spent: None,
    show: Callable[[Snapshot], None] | None = None,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda words: None,
    notes: tuple[str, ...] = (),
    names: Any = None,
    indicators: Any = (),
    bounds: Any = None,
    target_bounds: tuple[float, float] | None = None,
    classes: Any = None,
    **settings: Unpack[Settings],
) -> StudyResult:
    """One posterior from many sites' records, each site within its own budget and with its own ledger.

    Parameters
    ----------
    plan : a model as for `fit`, or a `Plan`.
    sites : a `Site` for each; or the data of each, as for `fit`, in a list or by name.
    epsilon, delta : the budget of every site, if `sites` are data. With an infinite epsilon at all sites there is no
        privacy and there are no ledgers.
    out : the folder of the study, in which it can be resumed; each site has a folder there with its ledger and store.
    test : public records to score the posterior on after every round.
    groups : an id for each record, by site or in the order of the sites, if `sites` are data. All records of one id at
        a site are then the unit of privacy.
    slots : the public number of slots of each site; by default the size of the largest site of similar size.
    insecure_seed : repeatable noise from a seed, which is not private.
    observe : called as `observe(phase, done, total, spent)` as the study moves on.
    show : called with a `Snapshot`, before `observe`.
    at_least : how many sites must be able to pay for their whole part before any is charged; all by default.
    say : called with a sentence on sites that do not take part.
    notes : added to every statement.
    names, indicators, bounds, target_bounds, classes : public facts of the data, as for `fit`.
    settings : the settings of a `Plan`, as for `fit`.

    Returns
    -------
    The posterior, a row for each site and each round, scores and statements, as a `StudyResult`.

    Raises
    ------
    ValueError : sites, plan or folder do not fit together; in one sentence, before anything is charged.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 400)[:, None]
    >>> y = (x[:, 0] > 0.1) * 1.0
    >>> hospitals = {"north": (x[::2], y[::2]), "south": (x[1::2], y[1::2])}
    >>> found = federate("logistic", hospitals, epsilon=8, delta=1e-5, bounds=(-1, 1), classes=(0, 1), insecure_seed=1)
    >>> found.posterior.predict([[-0.9], [0.9]]).round().tolist()
    [0.0, 1.0]
    """
    facts = {"names": names, "indicators": indicators, "bounds": bounds}
    facts |= {"target_bounds": target_bounds, "classes": classes}
    clinics = _sites(plan.model if isinstance(plan, Plan) else plan, sites, epsilon, delta, groups, facts)
    if groups is not None and not isinstance(plan, Plan):
        settings.setdefault("unit", "person")
    plan = plan_of(plan, settings)
    notes += words_of(settings.get("policy"))
    with _host(plan, clinics, out, insecure_seed, notes, slots) as host:
        watched: dict[str, Any] = {"observe": _watching(observe), "show": show}
        return coordinate(host.setup, host.folder, host, test=test, at_least=at_least, say=say, **watched)


@contextmanager
def _host(
    plan: Plan,
    sites: Sequence[Site],
    out: Path | None,
    insecure_seed: int | None,
    notes: tuple[str, ...],
    slots: int | None = None,
) -> Iterator[LocalHost]:
    """The host of a study in this process, in a folder that stays if it is given."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else out
        setup = Setup(plan, sites, slots)
        check_apart(sites)
        yield LocalHost(setup, folder, insecure_seed, is_kept=out is not None, notes=notes)


def _watching(observe: Observer) -> Watcher:
    def watch(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
        del progress
        observe(phase, done, total, spent)

    return watch


# --- What is given --------------------------------------------------------------------------------------------------


def _sites(
    model: Any, sites: Any, epsilon: float | None, delta: float | None, groups: Any, facts: dict[str, Any]
) -> list[Site]:
    """The sites, from sites or from the data of each."""
    if not isinstance(sites, Mapping):
        sites = list(sites)
        if all(isinstance(site, Site) for site in sites):
            if (epsilon, delta, groups) != (None, None, None):
                raise ValueError(
                    "epsilon, delta and groups with sites that have their own; leave them out, or give data"
                )
            return sites
        width = len(str(len(sites)))
        sites = {f"site-{m + 1:0{width}d}": data for m, data in enumerate(sites)}
    if epsilon is None or delta is None:
        raise ValueError("sites without a budget; give epsilon and delta for all of them, or a Site for each")
    _check_asked(epsilon, delta)
    persons = groups if isinstance(groups, Mapping) else dict(zip(sites, groups or (), strict=False))
    if groups is not None and set(persons) != set(sites):
        raise ValueError(f"groups are of {sorted(map(str, persons))}; expected those of {', '.join(map(str, sites))}")
    return [
        Site(str(name), _records_of(name, model, data, facts), float(epsilon), delta, groups=persons.get(name))
        for name, data in sites.items()
    ]


def _records_of(name: Any, model: Any, data: Any, facts: dict[str, Any]) -> Table | Any:
    """`_records` of one of many sites, which a refusal names."""
    try:
        return _records(model, data, **facts)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _records(
    model: Any, data: Any, names: Any, indicators: Any, bounds: Any, target_bounds: Any, classes: Any
) -> Table | Any:
    """The data as a table, if they are one, or as arrays."""
    if hasattr(data, "to_table"):
        data = data.to_table()
    if isinstance(data, Table) or not isinstance(model, str) or ":" in model:
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"data is a {type(data).__name__}; expected (features, target), a Dataset or a Table")
    public = {"bounds": bounds, "target_bounds": target_bounds, "classes": classes}
    return Table.of(*data, names=names, indicators=indicators, **public)


# --- The ledger of a fit --------------------------------------------------------------------------------------------


def _check_asked(epsilon: Any, delta: Any) -> None:
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not isinstance(value, Real):
            raise ValueError(f"{name}={value!r}; expected a number")
    check_delta(delta)
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon={epsilon}; expected a number above 0, or infinity for no privacy")


def _check_budget(ledger: Place | None, budget: Budget, epsilon: float) -> None:
    budget.check()
    if ledger is None and (budget.epsilon, budget.delta) != (None, None):
        raise ValueError("budget_epsilon and budget_delta belong to a ledger; expected ledger, a path, with them")
    if ledger is not None and math.isinf(epsilon):
        raise ValueError(
            "epsilon=inf with a ledger, which cannot count an exact result; expected a finite epsilon, or no ledger"
        )


def _charging(plan: Plan, site: Site, ledger: Place, budget: Budget, is_seeded: bool) -> tuple[Plan, Site]:
    """Plan and site with a ledger that can pay for the fit, and a name that no other fit has there."""
    setup = Setup(
        plan.replace(name=f"{plan.name}-{'0' * MARK}"), [site]
    )  # a name too long is refused before a ledger is made
    event = setup.least(0)
    whose: dict[str, Any] = {"unit": plan.unit, "adjacency": plan.adjacency, "slots": setup.slots[0]}
    whose |= {"epsilon": site.epsilon, "delta": site.delta, "allow_large_delta": plan.allow_large_delta}
    path = ready(ledger, event, budget, **whose)
    mark = f"{len(Ledger.open(path).entries())}" if is_seeded else secrets.token_hex(MARK // 2)
    return plan.replace(name=f"{plan.name}-{mark}"), replace(site, ledger=path)


def _checked(found: StudyResult, ledger: Path | None, host: LocalHost) -> Posterior:
    """The posterior of a fit, with its charge. Refused if the fit did not end, or not in finite numbers."""
    posterior, counts = found.posterior, None
    if ledger is not None:
        counts = charged(Ledger.open(ledger), f"{found.name}/inference")
    why = found.sites[0]["refused"]
    if why and not host.setup.plan.is_published:  # that form goes on until its budget refuses
        spent = f"ε = {posterior.epsilon:.3g} was spent on it" + ("" if counts is None else f", by {counts['name']}")
        raise ValueError(f"the fit ended before its last release ({why}), and {spent}")
    parts = [part for block in posterior.blocks.values() for part in (block.mean, block.covariance)]
    if host.dropped() or not all(np.all(np.isfinite(part)) for part in parts):
        kept = "" if counts is None else f", which the ledger {counts['name']} has as {counts['charge']}"
        raise ValueError(
            f"the posterior is not finite, and ε = {posterior.epsilon:.3g} was spent on it{kept}; "
            "give a prior_deviation, a clip and a learning_rate of ordinary size"
        )
    posterior.statement["ledger"] = counts
    if found.released is not None:
        posterior.details["released"] = found.released
    return posterior
