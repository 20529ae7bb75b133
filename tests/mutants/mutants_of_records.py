"""Mutants upstream of a sum: what a record is, which records are held out, and what a front reads off the data."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from tests.mutants.attacks_on_sites import by_deleting_a_row
from tests.mutants.judging import Mutant
from tests.mutants.operators import calling, deciding, rewritten
from tests.mutants.planting import patched, rewritten_in

from tacit.federated import tied
from tacit.privacy.mechanism import Access
from tacit.study import coordinator
from tacit.study.setup import Setup
from tacit.tables import digests, table

SPLITS = "attacked above: records cross from one side to the other, as by position"
READ_OFF = "an audit begins with a table, and these with the file"
PAST = "an audit is given what mechanisms release, and this goes past them"

# --- Which records are held out ----------------------------------------------------------------------------------


def by_position(self, site):
    """Every fifth row of the file is held out."""
    return (np.arange(len(site.table.target)) % 5 == 4) & bool(self.plan.evaluation)


def by_count(self, site, sound=Setup._held_out):
    """Held out under a secret that is made of the number of records."""
    return sound(self.splitting({site.name: str(len(site.table.target)).encode()}), site)


def with_the_column_s_type(_cell, column):
    return lambda value: _cell(f"{column.dtype} {value}")


def as_it_is(_single):
    return lambda column: column


HELD_OUT = [
    Mutant(
        "held out by position", "split", patched((Setup, "_held_out", by_position)), by_deleting_a_row, is_long=True
    ),
    Mutant(
        "held out under a secret made of the number of records",
        "split",
        patched((Setup, "_held_out", by_count)),
        by_deleting_a_row,
        is_long=True,
    ),
    Mutant(
        "a record is what pandas makes of its columns",
        "split",
        rewritten_in(
            (
                digests,
                "_cells",
                deciding("column.dtype.kind", becomes=False),
                calling("_cell", with_the_column_s_type, "column", times=2),
            )
        ),
        unseen=SPLITS,
    ),
    Mutant(
        "a record is what numpy makes of a list",
        "lists",
        rewritten_in(
            (table.Table, "of", deciding("y.dtype", becomes=True)),
            (table.Table, "contents", calling("_single", as_it_is)),
        ),
        unseen=SPLITS,
    ),
    Mutant(
        "row numbers are part of a record",
        "row numbers",
        patched(*((module, "bookkeeping", lambda frame: []) for module in (digests, table))),
        unseen=SPLITS,
    ),
]

# --- What a front reads off the data -----------------------------------------------------------------------------


def leaking(setup, play, sound=coordinator.conduct):
    """A posterior as it should be, and moved by the exact sum of all records."""
    found = sound(setup, play)
    access, (mean, *rest) = setup.records(0), found.found
    (features, _), _ = access.records
    exact = jnp.sum(jnp.where(access.present[..., None], features, 0))
    return replace(found, found=(mean + exact, *rest))


def by_the_number_of_records(slots_of):
    return lambda plan, sites, slots: slots_of(plan, [replace(site, slots=None) for site in sites], None)


def each_record_alone(of):
    """A person's records, each as a unit of its own."""

    def alone(records, mechanism, groups=None, most_records=None, slots=None):
        return of(records, mechanism, unit=None if groups is None else "person", slots=slots)

    return alone


def of_those_seen(public_kind, frame):
    """The categories that a column has, in place of those that it may have."""

    def kind_of(name, facts):
        kind = public_kind(name, facts)
        if kind is None or "categories" not in kind:
            return kind
        return {**kind, "categories": [one for one in kind["categories"] if one in set(frame[name])]}

    return kind_of


def of_those_reached(public_kind, frame):
    """The bounds that a column reaches, in place of those that it may reach."""

    def kind_of(name, facts):
        kind = public_kind(name, facts)
        if kind is None or "bounds" not in kind:
            return kind
        return {**kind, "bounds": [float(frame[name].min()), float(frame[name].max())]}

    return kind_of


def numbered(self, sound=Access.whole):
    """Each unit with its number."""
    found = sound(self)
    return replace(found, records=(found.records, jnp.arange(len(self.present))[:, None]))


def drawn_by_number(solver, likelihood, q, factor, site, sound=tied._update):
    """A site's update whose draws are those of its number."""
    plain, number = site
    own = calling("insecure_key", lambda insecure_key: lambda seed: jax.random.fold_in(insecure_key(seed), number))
    return rewritten(sound, own)(solver, likelihood, q, factor, plain)


READ = [
    Mutant("an exact sum in the posterior", "table", patched((coordinator, "conduct", leaking)), unseen=PAST),
    Mutant(
        "a site draws by its place in the study",
        "order of sites",
        patched((Access, "whole", numbered), (tied, "_update", drawn_by_number)),
        unseen="a row of a site is no unit there, and made-up sites do not move up",
    ),
    Mutant(
        "slots that follow the number of records",
        "table",
        rewritten_in((Setup, "__init__", calling("slots_of", by_the_number_of_records))),
        unseen="the audit of a fit has as many slots in both worlds",
    ),
    Mutant(
        "a person's records are units of their own",
        "persons",
        rewritten_in((Setup, "_records", calling("Access.of", each_record_alone, times=2))),
        unseen="attacked above, at one sum: records of a person clipped one by one",
    ),
    Mutant(
        "categories read off the data",
        "table",
        rewritten_in((table, "kinds_of", calling("public_kind", of_those_seen, "frame"))),
        unseen=READ_OFF,
    ),
    Mutant(
        "bounds read off the data",
        "table",
        rewritten_in((table, "kinds_of", calling("public_kind", of_those_reached, "frame"))),
        unseen=READ_OFF,
    ),
]

MUTANTS = [*HELD_OUT, *READ]
