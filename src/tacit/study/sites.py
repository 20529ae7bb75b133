"""The sites of a study: their records and budgets, who has an account, and what must hold between them."""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.basics import durable
from tacit.federated.site_effects import LEAST_SITES
from tacit.privacy.checks import check_delta
from tacit.study.plan import Plan
from tacit.study.reading import check_records, contents_of, size_of, units_of
from tacit.tables.persons import persons_of
from tacit.tables.table import Table

MOST_UNEVEN = 8  # sites of sizes within this factor are padded to one, so that they share a compiled program
COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Site:
    """A site of a study: its records and its budget for this study.

    Parameters
    ----------
    name : the site's name, which can name a folder.
    table : its records: a `Table`, encoded by the same public facts at all sites; or, for a model given as an object, a
        tree of arrays with the records in front.
    epsilon, delta : the budget of this study at the site; an infinite epsilon is no privacy.
    ledger : the data set's ledger, if it has one already, such as from other studies. What is left there must suffice
        too, or the site refuses the study. By default the study makes a ledger with this budget.
    slots : the public number of slots for records, or for persons; given for all sites or for none.
    groups : with persons as the unit, the person of each record; by default the table's.
    """

    name: str
    table: Any
    epsilon: float
    delta: float
    ledger: Path | None = None
    slots: int | None = None
    groups: Any = None

    def __post_init__(self) -> None:
        given = self.table.groups if self.groups is None and isinstance(self.table, Table) else self.groups
        try:
            object.__setattr__(self, "groups", persons_of(given))
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def accounts(plan: Plan, sites: Sequence[Site]) -> list[Site]:
    """The holders of a budget and a ledger: each site, or a trusted coordinator for all, with their common budget."""
    return [replace(sites[0], name=COORDINATOR)] if plan.trusts_coordinator else list(sites)


# --- What must hold between sites ---------------------------------------------------------------------------------


def check_sites(plan: Plan, sites: Sequence[Site], is_remote: bool) -> None:
    """Refuse sites that do not fit the plan or each other. is_remote: their records are elsewhere."""
    if not sites:
        raise ValueError("a study without sites; expected at least one")
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise ValueError(f"sites={names}; expected names that differ")
    for site in sites:
        _check_site(plan, site)
        try:
            check_records(plan, site.table)
        except ValueError as error:
            raise ValueError(f"{site.name}: {error}" if len(sites) > 1 else str(error)) from None
        _check_same(site, sites[0])
    _check_accounts(plan, sites)
    if plan.unit == "site" and not is_remote and any(size_of(site.table) == 0 for site in sites):
        raise ValueError("a site has no records, and is the unit of privacy; leave it out")
    private = [math.isfinite(site.epsilon) for site in sites]
    if any(private) and not all(private):
        raise ValueError("some sites have an infinite epsilon and others not; give all a budget, or none")
    _check_method(plan, sites)
    _check_effects(plan, sites)


def _check_site(plan: Plan, site: Site) -> None:
    if site.name in ("", ".", "..") or any(letter in site.name for letter in "/\\\0"):
        raise ValueError(f"name={site.name!r}; expected a site's name that can name a folder")
    if not site.epsilon > 0:
        raise ValueError(f"epsilon={site.epsilon} of {site.name}; expected a number above 0, or infinity")
    check_delta(site.delta)
    if plan.secure_sum and math.isinf(site.epsilon):
        raise ValueError("secure_sum with an infinite epsilon: the sums would have no noise; give a budget")
    if plan.unit == "person" and site.groups is None and size_of(site.table):
        raise ValueError(f"{site.name} does not say which person each record is of; give groups, or another unit")
    if site.groups is not None and len(site.groups) != size_of(site.table):
        raise ValueError(
            f"{site.name} has groups of {len(site.groups)} records and {size_of(site.table)} records; expected an id "
            "for each"
        )
    if plan.unit != "person" and site.groups is not None:
        raise ValueError(
            f"{site.name} has several records of a person; expected unit='person' with most_records, so that all of "
            "them are protected together"
        )


def _check_same(site: Site, first: Site) -> None:
    """Refuse records of another form than the first site's."""
    table, other = site.table, first.table
    words = f"{site.name} has other columns or bounds than {first.name}; encode both by the same facts"
    if isinstance(table, Table) != isinstance(other, Table):
        raise ValueError(words)
    if not isinstance(table, Table):
        forms = [
            (jax.tree.structure(one), [np.shape(leaf)[1:] for leaf in jax.tree.leaves(one)]) for one in (table, other)
        ]
        if forms[0] != forms[1]:
            raise ValueError(f"{site.name} has records of another form than {first.name}; give both the same arrays")
        return
    same = (table.names, table.numbers) == (other.names, other.numbers)
    if not same or not np.array_equal([table.low, table.high], [other.low, other.high], equal_nan=True):
        raise ValueError(words)


def _check_method(plan: Plan, sites: Sequence[Site]) -> None:
    """Refuse a method that needs other sites, or bounds of columns that have none."""
    if plan.method_used == "sgld" and len(sites) > 1:
        raise ValueError(
            f"method='sgld' with {len(sites)} sites; expected one, since samples of sites do not combine; use "
            "'natural' or 'vi'"
        )
    if not plan.is_table or not isinstance(sites[0].table, Table):
        return
    assert plan.link is not None
    first = sites[0].table
    ends = [*first.low[: len(first.numbers)], *(first.low[-1:] if plan.link.target.is_number else [])]
    is_free = plan.scaling == "bounds" or plan.is_published
    if any(math.isnan(end) for end in ends) and (is_free or plan.unit == "site"):
        why = "scaling='bounds'" if is_free else "unit='site'"
        raise ValueError(f"{why} needs public bounds of every number (and of a numeric target); give bounds")


def _check_effects(plan: Plan, sites: Sequence[Site]) -> None:
    """Refuse site effects at too few sites, or of columns that there are not."""
    if not plan.site_effects:
        return
    if len(sites) < LEAST_SITES:
        raise ValueError(
            f"site_effects={plan.site_effects} with {len(sites)} site{'s' * (len(sites) != 1)}; expected at least "
            f"{LEAST_SITES}, from which a spread between sites can be learned"
        )
    names = ("intercept", *sites[0].table.names)
    for name in plan.site_effects:
        if name not in names:
            raise ValueError(
                f"site_effects={plan.site_effects}: there is no column {name!r}; expected some of {', '.join(names)}"
            )


def _check_accounts(plan: Plan, sites: Sequence[Site]) -> None:
    if plan.trusts_coordinator:
        if len({(site.epsilon, site.delta) for site in sites}) > 1:
            raise ValueError("sites have different budgets and one noise is added for all; give all the same")
        if len({site.ledger for site in sites}) > 1:
            raise ValueError("sites have ledgers of their own, and the coordinator's is charged; give all the same one")
        return
    for one, other in itertools.combinations([site for site in sites if site.ledger is not None], 2):
        if durable.is_same(one.ledger, other.ledger):
            raise ValueError(f"{one.name} and {other.name} share one ledger, {one.ledger}; give each site its own")


def check_apart(sites: Sequence[Site]) -> None:
    """Refuse two sites with the same records, in whatever order: neither's budget alone would protect them.

    A single record may be equal to another person's.
    """
    sizes = Counter(size_of(site.table) for site in sites)
    seen: dict[bytes, str] = {}
    for site in sites:
        size = size_of(site.table)
        if size < 2 or sizes[size] < 2:  # no other site has as many records: no need to compare contents
            continue
        contents = hashlib.sha256(b"".join(sorted(row.tobytes() for row in contents_of(site.table)))).digest()
        other = seen.setdefault(contents, site.name)
        if other != site.name:
            raise ValueError(
                f"{site.name} holds the same records as {other}, by another file or in another order; expected each "
                "site's own records"
            )


# --- Slots --------------------------------------------------------------------------------------------------------


def has_own_slots(sites: Sequence[Site], slots: int | None, is_remote: bool) -> bool:
    """Whether sites say how many slots they have. slots: one number for all of them, if it is given."""
    given = [site.slots is not None for site in sites]
    if any(given) and not all(given):
        name = next(site.name for site in sites if site.slots is None)
        raise ValueError(f"{name} has no number of slots and others have one; give slots= of all sites, or of none")
    if any(given) and slots is not None:
        raise ValueError(f"slots={slots} for sites that have slots= of their own; leave one of them out")
    if is_remote and not any(given):
        raise ValueError("remote sites without slots=; give the public number of slots for records of each")
    return all(given)


def slots_of(plan: Plan, sites: Sequence[Site], slots: int | None) -> list[int]:
    """The public number of slots of each site, with room for all of its records or persons."""
    sizes = [units_of(plan, site.table, site.groups) for site in sites]
    what = "persons" if plan.unit == "person" else "records"
    given = [site.slots for site in sites if site.slots is not None]
    if given:
        for site, size, own in zip(sites, sizes, given, strict=True):
            if own < 1:
                raise ValueError(f"slots={own} of {site.name}; expected a whole number of at least 1")
            if size > own:  # the message must not reveal how many records there are
                raise ValueError(f"{site.name} has more {what} than its slots={own}; raise slots, or leave {what} out")
        return given
    if slots is None:
        return slots_by_size(sizes)
    if plan.unit == "site" and max(sizes) > slots:
        raise ValueError(f"slots={slots} and a site with more records; expected room for all of them")
    if slots < max(1, *sizes):
        raise ValueError(f"slots={slots} and more {what} at a site; expected room for all of them, and at least 1")
    return [slots] * len(sizes)


def slots_by_size(sizes: Sequence[int]) -> list[int]:
    """A public number of slots for each site: the size of the largest site of similar size."""
    found: dict[int, int] = {}
    for size in sorted(set(sizes), reverse=True):
        near = [top for top in found.values() if top <= MOST_UNEVEN * max(1, size)]
        found[size] = near[-1] if near else max(1, size)
    return [found[size] for size in sizes]
