"""Mutants of a site between machines: its session, the gate of its channel, and how it takes requests."""

from tests.mutants.judging import Mutant
from tests.mutants.mutants_of_sites import RUNS_AGAIN, SENDS_ANYWAY
from tests.mutants.operators import Operator, becoming, calling, deciding, dropping, rewritten
from tests.mutants.planting import (
    Plant,
    World,
    broken,
    broken_function,
    made,
    overriding,
    replaced,
    rewritten_in,
    with_method,
)

from tacit.federated.responder import Responder
from tacit.network.scales import Scales
from tacit.network.site_session import SiteSession

UNDER = "attacked as a mutant of the site and the ledger that a session is made of; a whole study is one sample"
OPEN = "what a job could do then is anything, and no release"

# --- A session ---------------------------------------------------------------------------------------------------


def with_the_study_s_budget(create, session):
    return lambda path, **terms: create(path, **terms | {"epsilon": session.epsilon})


def budget_that_is_asked_for() -> World:
    accepting = rewritten(SiteSession._objections, deciding("self.epsilon", "limits.epsilon", becomes=False))
    making = rewritten(SiteSession._ledger, calling("Ledger.create", with_the_study_s_budget, "self"))
    return World(session=overriding(SiteSession, _objections=accepting, _ledger=making))


class WithoutObjections(SiteSession):
    def _objections(self, slots):
        return iter(())


class Unpaid(SiteSession):
    """Begins what cannot be paid for."""

    def _check_budget(self):
        return None


def with_responder(*operators: Operator) -> Plant:
    """A session that makes a broken responder."""

    def make() -> World:
        other = with_method(Responder, "__call__", *operators)
        return World(session=with_method(SiteSession, "_site", calling("Responder", lambda Responder: other)))

    return made(make)


def of_this_study(path, session):
    """A ledger's file for each study; the study of the tests has the usual name, by which they find it."""
    return path.with_stem(session.plan.name.replace("clinics", path.stem))


def with_all_of_the_ledger(Allowance):
    return lambda ledger, study, epsilon: Allowance(ledger, study, ledger.epsilon)


def for_a_new_ledger_alone(check_complete):
    return lambda path, entries, traces: check_complete(path, entries, traces) if entries is None else None


SESSION = [
    Mutant("a session's budget is the one that is asked for", "session", made(budget_that_is_asked_for), unseen=UNDER),
    Mutant(
        "a site's least noise is not looked at",
        "session",
        broken("session", "_check_noise", deciding("noise", "least", becomes=False)),
        unseen=UNDER,
    ),
    Mutant(
        "a plan that is refused and begun all the same",
        "session",
        replaced(session=WithoutObjections),
        unseen=UNDER,
    ),
    Mutant("a session that runs a repeated round again", "session", with_responder(*RUNS_AGAIN), unseen=UNDER),
    Mutant(
        "a session that does not store its answers",
        "session",
        broken("session", "_site", becoming("store", lambda store: None)),
        unseen="the ledger knows the round, so it is lost and not run again",
    ),
    Mutant("a session that sends a refused update", "session", with_responder(SENDS_ANYWAY), unseen=UNDER),
    Mutant(
        "a session with a ledger for each study",
        "session",
        broken("session", "_ledger", becoming("path", of_this_study, "self")),
        unseen=UNDER,
    ),
    Mutant("a session that begins what cannot be paid for", "session", replaced(session=Unpaid), unseen=UNDER),
    Mutant(
        "a session whose study may take all of a ledger",
        "session",
        broken("session", "_open", calling("Allowance", with_all_of_the_ledger)),
        unseen=UNDER,
    ),
    Mutant(
        "a session that goes on with an older copy of its ledger",
        "session",
        broken("session", "_ledger", calling("check_complete", for_a_new_ledger_alone, times=2)),
        unseen="what was released before the copy was put back is on no ledger",
    ),
    Mutant(
        "scales of columns from every message",
        "session",
        rewritten_in((Scales, "checked", deciding("path.exists", becomes=False))),
        unseen="records are clipped after they are scaled: it spoils a result and not its privacy",
    ),
]

# --- The channel -------------------------------------------------------------------------------------------------

CHANNEL = [
    Mutant(
        "FLARE's own requests reach a site",
        "gate",
        broken_function("gate", dropping("MessageHeaderKey.CHANNEL")),
        unseen=OPEN,
    ),
    Mutant(
        "objects are decoded by FLARE",
        "gate",
        broken_function("gate", dropping("MessageHeaderKey.PAYLOAD_ENCODING")),
        unseen=OPEN,
    ),
    Mutant(
        "an answer in another site's name",
        "gate",
        broken_function("gate", dropping("MessageHeaderKey.ORIGIN")),
        unseen=OPEN,
    ),
    Mutant(
        "messages are passed on for others",
        "gate",
        broken_function("gate", dropping("MessageHeaderKey.DESTINATION")),
        unseen=OPEN,
    ),
    Mutant(
        "a request that is worked on is begun again",
        "answerer",
        broken("answerer", "_answer", deciding("self._latest", "done", becomes=True)),
        unseen="its site answers the second from the store: it costs time",
    ),
]

MUTANTS = [*SESSION, *CHANNEL]
