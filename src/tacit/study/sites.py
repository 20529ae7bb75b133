"""The sites of a study: their records and budgets, who has an account, and what must hold between them."""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tacit.basics import durable
from tacit.privacy.checks import check_delta
from tacit.study.plan import Plan
from tacit.tables.standardising import check_target
from tacit.tables.table import Table

MOST_UNEVEN = 8  # sites of sizes within this factor are padded to one, so that they share a compiled program
COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Site:
    """A site of a study: its records and its budget for this study.

    Parameters
    ----------
    name : the site's name, which can name a folder.
    table : its records, encoded by the same public facts at all sites.
    epsilon, delta : the budget of this study at the site; an infinite epsilon is no privacy.
    ledger : the data set's ledger, if it has one already, such as from other studies. What is left there must suffice
        too, or the site refuses the study. By default the study makes a ledger with this budget.
    slots : the public number of slots for records; given for all sites or for none.
    """

    name: str
    table: Table
    epsilon: float
    delta: float
    ledger: Path | None = None
    slots: int | None = None


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
    first = sites[0].table
    for site in sites:
        _check_site(plan, site, sites[0])
    _check_accounts(plan, sites)
    if plan.unit == "site" and not is_remote and any(len(site.table.target) == 0 for site in sites):
        raise ValueError("a site has no records, and is the unit of privacy; leave it out")
    private = [math.isfinite(site.epsilon) for site in sites]
    if any(private) and not all(private):
        raise ValueError("some sites have an infinite epsilon and others not; give all a budget, or none")
    ends = [*first.low[: len(first.numbers)], *(first.low[-1:] if plan.link.target.is_number else [])]
    if any(math.isnan(end) for end in ends):
        raise ValueError("a number (or a numeric target) has no public bounds; give bounds of every one")


def _check_site(plan: Plan, site: Site, first: Site) -> None:
    if site.name in ("", ".", "..") or any(letter in site.name for letter in "/\\\0"):
        raise ValueError(f"name={site.name!r}; expected a site's name that can name a folder")
    if not site.epsilon > 0:
        raise ValueError(f"epsilon={site.epsilon} of {site.name}; expected a number above 0, or infinity")
    check_delta(site.delta)
    if plan.secure_sum and math.isinf(site.epsilon):
        raise ValueError("secure_sum with an infinite epsilon: the sums would have no noise; give a budget")
    table, other = site.table, first.table
    same = (table.names, table.numbers) == (other.names, other.numbers)
    if not same or not np.array_equal([table.low, table.high], [other.low, other.high], equal_nan=True):
        raise ValueError(f"{site.name} has other columns or bounds than {first.name}; encode both by the same facts")
    if table.groups is not None:
        raise ValueError(
            f"{site.name} has several records of a person; so far, a study takes one record of each person"
        )
    check_target(plan.link, table)


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
    sizes = Counter(len(site.table.target) for site in sites)
    seen: dict[bytes, str] = {}
    for site in sites:
        size = len(site.table.target)
        if size < 2 or sizes[size] < 2:  # no other site has as many records: no need to compare contents
            continue
        contents = hashlib.sha256(b"".join(sorted(row.tobytes() for row in site.table.contents()))).digest()
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


def slots_of(sites: Sequence[Site], slots: int | None, is_site: bool) -> list[int]:
    """The public number of slots of each site, with room for all of its records. is_site: a site is the unit."""
    sizes = [len(site.table.target) for site in sites]
    given = [site.slots for site in sites if site.slots is not None]
    if given:
        for site, size, own in zip(sites, sizes, given, strict=True):
            if own < 1:
                raise ValueError(f"slots={own} of {site.name}; expected a whole number of at least 1")
            if size > own:  # the message must not reveal how many records there are
                raise ValueError(
                    f"{site.name} has more records than its slots={own}; raise slots, or leave records out"
                )
        return given
    if slots is None:
        return slots_by_size(sizes)
    if is_site and max(sizes) > slots:
        raise ValueError(f"slots={slots} for {max(sizes)} records of a site; expected room for all of them")
    for size in sizes:
        if slots < max(1, size):
            raise ValueError(f"slots={slots} for {size} records; expected room for all of them, and at least 1")
    return [slots] * len(sizes)


def slots_by_size(sizes: Sequence[int]) -> list[int]:
    """A public number of slots for each site: the size of the largest site of similar size."""
    found: dict[int, int] = {}
    for size in sorted(set(sizes), reverse=True):
        near = [top for top in found.values() if top <= MOST_UNEVEN * max(1, size)]
        found[size] = near[-1] if near else max(1, size)
    return [found[size] for size in sizes]
