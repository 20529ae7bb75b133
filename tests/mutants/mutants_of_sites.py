"""Mutants of a site: its keys, what it does and when, its ledger, and the rule of the ledger."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from tests.mutants.attacks_on_sites import OVER_AND_OVER, Asking, by_opposites, by_refusals, north
from tests.mutants.judging import Mutant
from tests.mutants.mutants_of_mechanisms import GUARD, MARK
from tests.mutants.operators import calling, deciding, moving, swallowing
from tests.mutants.planting import broken, replaced

from tacit.federated.responder import Responder
from tacit.privacy import accounting
from tacit.privacy.filters import Filter, in_theory
from tacit.privacy.ledger import Ledger

ADAPTIVE = "an analyst who chooses by results: computed exactly in the test, and no program of one run"

# --- The keys of a site ------------------------------------------------------------------------------------------


def key_without_site(words_of):
    return lambda study, name, round: words_of(study, round)


def key_without_round(words_of):
    return lambda study, name, round: words_of(study, name)


def key_of_a_short_round(words_of):
    return lambda study, name, round: words_of(study, name, str(int(round) % 2**32))


def key_without_study(words_of):
    return lambda study, name, round: words_of(name, round)


def key_with_count(words_of, site):
    return lambda *words: words_of(*words, str(site.updates))


KEYS = [
    Mutant(
        "noise key reused across sites",
        "responder",
        broken("responder", "__call__", calling("words_of", key_without_site)),
        Asking((*north(0), ("south", "heart", 0, -1.0))),
    ),
    Mutant(
        "noise key reused across rounds",
        "responder",
        broken("responder", "__call__", calling("words_of", key_without_round)),
        Asking((*north(0), *north(1, scale=-1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across rounds 2³² apart",
        "responder",
        broken("responder", "__call__", calling("words_of", key_of_a_short_round)),
        Asking((*north(0), *north(2**32, scale=-1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across studies",
        "responder",
        broken("responder", "__call__", calling("words_of", key_without_study)),
        Asking((*north(0), ("north", "lung", 0, -1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across retries",
        "responder",
        broken("responder", "__call__", swallowing("AlreadyCharged")),
        Asking((*north(0), *north(0, scale=-1.0)), is_restarted=True),
    ),
]

# --- What a site does, and when ----------------------------------------------------------------------------------

RUNS_AGAIN = (
    deciding("last.round", becomes=False),
    swallowing("AlreadyCharged"),
    calling("words_of", key_with_count, "self"),
)
SENDS_ANYWAY = swallowing("BudgetExceeded")


def with_the_noise_that_is_asked_for(step, site):
    def asked(key, state, content, access):
        """With as much less noise as the coordinator's largest number is below 1."""
        largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(content))
        noise = tuple(m * min(1.0, max(largest, 0.01)) for m in access.mechanism.noise_multipliers)
        return step(key, state, content, access.through(replace(access.mechanism, noise_multiplier=noise)))

    return asked


NOT_COMPARED = deciding("release.event", "promised", becomes=False)


class Counting(Responder):
    """A refusal says how many records there are."""

    def _refuse(self, broadcast, reason):
        return super()._refuse(broadcast, f"{reason}; {int(self.access.present.sum())} records")


ORDER = [
    Mutant(
        "retry that runs again",
        "responder",
        broken("responder", "__call__", *RUNS_AGAIN),
        Asking(north(*[0] * OVER_AND_OVER)),
    ),
    Mutant(
        "charged after reading",
        "responder",
        broken("responder", "__call__", moving("release", after="promised")),
        unseen="the answers are the same; only a crash tells",
    ),
    Mutant(
        "refused update sent all the same",
        "responder",
        broken("responder", "__call__", SENDS_ANYWAY),
        Asking(north(*range(OVER_AND_OVER))),
    ),
    Mutant(
        "limits read from the coordinator's message",
        "responder",
        broken("responder", "__call__", calling("step", with_the_noise_that_is_asked_for, "self"), NOT_COMPARED),
        Asking(north(0, scale=1e-3)),
    ),
    Mutant(
        "receipt not compared with the price",
        "responder",
        broken("responder", "__call__", NOT_COMPARED),
        unseen=GUARD,
    ),
    Mutant(
        "note on seeded noise missing in the ledger",
        "responder",
        broken("responder", "__call__", calling("is_secure", lambda is_secure: lambda key: True)),
        unseen=MARK,
    ),
    Mutant("refusal that counts the records", "responder", replaced(responder=Counting), by_refusals),
]

# --- The ledger --------------------------------------------------------------------------------------------------


class Generous(Ledger):
    """Everything fits."""

    def _fits(self, total, budget):
        return True


class AddRemove(Ledger):
    """A price by the other adjacency."""

    def price_of(self, counts, budget):
        return Ledger.price_of(replace(self, adjacency="add-remove"), counts, budget)


def of_one_study(counts_of, study):
    return lambda entries: counts_of([entry for entry in entries if entry.study == study])


def of_the_whole_delta(_paid, rule):
    """What imperfect draws cost is compared with δ, and no more with the reserve."""
    return lambda departure, epsilon: rule.reserve * _paid(departure, epsilon)


class BestOrder(Filter):
    """A Rényi filter prices at the order that turns out best."""

    def price(self, event, epsilon, delta, adjacency="add-remove"):
        sound = super().price(event, epsilon, delta, adjacency)
        if self.order is None or sound in (0, math.inf):
            return sound
        return accounting.epsilon(in_theory(event), delta * (1 - self.reserve), "rdp", adjacency)


SPENDING = [
    Mutant("budget that refuses nothing", "ledger", replaced(ledger=Generous), Asking(north(*range(OVER_AND_OVER)))),
    Mutant("replace-one priced as add-remove", "ledger", replaced(ledger=AddRemove), by_opposites),
    Mutant(
        "budget of each study by itself",
        "ledger",
        broken("ledger", "charge", calling("counts_of", of_one_study, "study", times=2)),
        Asking(tuple(("north", f"study {number}", 0, 1.0) for number in range(OVER_AND_OVER))),
    ),
    Mutant(
        "a Gaussian filter that takes samples",
        "filter",
        broken("filter", "price", deciding("self.name", becomes=False)),
        unseen=ADAPTIVE,
    ),
    Mutant(
        "imperfect draws paid by whatever noise leaves",
        "filter",
        broken("filter", "price", calling("_paid", of_the_whole_delta, "self")),
        unseen=ADAPTIVE,
    ),
    Mutant("a Rényi filter at the best order after the fact", "filter", replaced(filter=BestOrder), unseen=ADAPTIVE),
]

MUTANTS = [*KEYS, *ORDER, *SPENDING]
