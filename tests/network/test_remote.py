"""The coordinator's view of sites elsewhere: a whole study through sessions, and sites of which nothing is believed."""

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare")

from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.network.agreement import Agreement
from tacit.network.channel import Failed, Lost, Reply
from tacit.network.coordinator_session import CoordinatorSession
from tacit.network.remote import MOST_NOTE, Remote
from tacit.network.site_session import HELLO
from tacit.network.status import Status, withdrawn
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian, NonPrivate
from tacit.privacy.ledger import Ledger
from tacit.privacy.statement import Statement
from tacit.report import studied
from tacit.report.dashboard import Board
from tacit.study.coordinator import StudyResult
from tacit.study.front import federate

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once

NAMES, ROUNDS, DELTA = ("north", "south", "west"), 3, 1e-4


def plain(found: StudyResult) -> dict[str, Any]:
    """A posterior as its file has it, but for who keeps the ledgers."""
    with tempfile.TemporaryDirectory() as folder:
        found.posterior.save(Path(folder) / "posterior.json")
        whole = json.loads((Path(folder) / "posterior.json").read_text())
    return {name: value for name, value in whole.items() if name not in ("statement", "statement_text")}


def of_study(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of sites without their ledgers, which count samples by another rule where other studies may follow."""
    return [{name: row[name] for name in row if name not in ("ledger_spent", "budget")} for row in rows]


def row(found: StudyResult, name: str) -> dict[str, Any]:
    return next(row for row in found.sites if row["name"] == name)


def check(clinics: Any, found: StudyResult, *honest: str) -> None:
    """The honest ones made all their updates, within their budgets; q is the product of its factors."""
    for name in honest:
        assert (row(found, name)["updates"], row(found, name)["refused"]) == (ROUNDS, None)
        ledger = clinics.ledger(name)
        assert ledger.verify()
        assert len(ledger.entries()) == 1 + ROUNDS
        assert row(found, name)["spent"] == ledger.spent() <= ledger.epsilon
    assert all(past["factor_gap"] < 1e-4 for past in found.history)
    assert np.all(np.isfinite(found.posterior.blocks["coefficients"].mean))


KNOWN: dict[str, Any] = {}


def honest(clinics: Any) -> dict[str, Any]:
    """The posterior of the study in one process."""
    if "all" not in KNOWN:
        sites, _ = clinics.study.gather()
        KNOWN["all"] = plain(federate(clinics.study.plan, sites, insecure_seed=3))
    return KNOWN["all"]


def honest_two(clinics: Any) -> dict[str, Any]:
    """That of north and south, where west is never there."""
    if "two" not in KNOWN:
        (clinics.folder / "two").mkdir()
        others = type(clinics)(clinics.folder / "two")
        host = others.hosted()
        host.post.sites.remove("west")
        KNOWN["two"] = plain(others.coordinate(host, at_least=2))
        others.close()
    return KNOWN["two"]


# --- All are honest -----------------------------------------------------------------------------------------------


def test_a_study_between_stations_is_that_of_one_process_bit_for_bit(clinics: Any) -> None:
    found = clinics.coordinate()
    sites, _ = clinics.study.gather()
    alone = federate(clinics.study.plan, sites, out=clinics.folder / "alone", insecure_seed=3)
    assert plain(found) == plain(alone)
    assert found.sites == alone.sites
    assert all("spent" in row for row in alone.history), "which sites elsewhere tell the coordinator alone"
    assert found.history == [{name: row[name] for name in row if name != "spent"} for row in alone.history]
    assert found.communications == alone.communications == 3 * ROUNDS
    check(clinics, found, *NAMES)
    for name in NAMES:
        here = clinics.ledger(name).entries()
        there = Ledger.open(clinics.folder / "alone" / "sites" / name / "ledger.sqlite").entries()
        both = ([(e.event, e.study, e.round, e.spent, e.note) for e in entries] for entries in (here, there))
        assert next(both) == next(both)
        statement = found.posterior.statement["sites"][name]
        assert statement["epsilon"] == pytest.approx(clinics.ledger(name).spent())
        assert statement["randomness"] == "seeded"


OTHERS: dict[str, dict[str, Any]] = {
    "scores": {"evaluation": 0.1},
    "whole sites": {"unit": "site", "noise": "per-site"},
    "expectation propagation": {"method": "ep"},
    "many steps": {"method": "vi"},
    "one after the other": {"schedule": "sequential"},
    "replace-one": {"adjacency": "replace-one"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_so_is_every_kind_of_study(clinics: Any, case: str) -> None:
    clinics.study = clinics.read(**OTHERS[case])
    for name in NAMES:
        clinics.set(name)
    found = clinics.coordinate()
    sites, _ = clinics.study.gather()
    alone = federate(clinics.study.plan, sites, out=clinics.folder / "alone", insecure_seed=3)
    assert plain(found) == plain(alone)
    assert found.released == alone.released
    assert of_study(found.sites) == of_study(alone.sites)
    for name in NAMES:
        statement = found.posterior.statement["sites"][name]
        assert statement["epsilon"] == pytest.approx(clinics.sessions[name].allowance.spent(), rel=1e-3)
        ledger = clinics.ledger(name)
        assert statement["epsilon"] <= ledger.spent() <= ledger.epsilon  # by a rule that costs more, of samples


def test_a_study_that_goes_on_in_another_sitting_gives_the_same(clinics: Any) -> None:

    class Stop(Exception):
        pass

    def stop_after(phase: str, done: int, *rest: Any) -> None:
        if (phase, done) == ("inference", 2):
            raise Stop

    with pytest.raises(Stop):
        clinics.coordinate(observe=stop_after)
    spent = {name: clinics.charged(name) for name in NAMES}
    assert set(spent.values()) == {1 + 2}
    found = clinics.coordinate()
    check(clinics, found, *NAMES)
    assert plain(found) == honest(clinics)


def test_a_coordinator_that_lost_its_state_charges_nobody_again(clinics: Any) -> None:
    first = clinics.coordinate()
    heads = {name: clinics.ledger(name).head() for name in NAMES}
    for place in (clinics.folder / "out").iterdir():
        place.unlink()
    (clinics.folder / "notes.json").unlink()
    again = clinics.coordinate()
    assert heads == {name: clinics.ledger(name).head() for name in NAMES}
    assert again.communications == 3  # of each site its last answer, from its store
    assert all(past["factor_gap"] < 1e-4 for past in again.history)
    assert again.posterior.details == first.posterior.details  # the same locations and scales


def test_sites_that_answer_when_they_like_finish_too(clinics: Any) -> None:
    clinics.study = clinics.read(schedule="asynchronous")
    found = clinics.coordinate()
    check(clinics, found, *NAMES)
    assert found.communications == 3 * ROUNDS


def test_a_site_that_withdraws_is_divided_out_and_asked_no_more(clinics: Any) -> None:
    host, out = clinics.hosted(), clinics.folder / "out"

    def observe(phase: str, done: int, *rest: Any) -> None:
        if (phase, done) == ("inference", 1):
            (out / "withdraw").mkdir()
            (out / "withdraw" / "west").touch()
            (out / "withdraw" / "nobody").touch()

    found = clinics.coordinate(host, observe=observe, withdrawn=lambda: withdrawn(out, host.names))
    check(clinics, found, "north", "south")
    assert row(found, "west")["refused"] == "withdrawn on request"
    assert clinics.charged("west") == 2


def test_one_that_is_not_connected_is_away_and_the_others_go_on(clinics: Any) -> None:
    host = clinics.hosted()
    host.post.sites.remove("west")
    found = clinics.coordinate(host, at_least=2)
    check(clinics, found, "north", "south")
    assert row(found, "west")["refused"] == "it is not connected"
    assert clinics.charged("west") == 0
    assert found.communications == 2 * ROUNDS


# --- One is not ---------------------------------------------------------------------------------------------------

SiteSession = Callable[[bytes], tuple[bytes, str]]
Liar = Callable[[SiteSession, bytes], Any]


def changed(session: SiteSession, request: bytes, change: Callable[[Update], Any]) -> Any:
    """What a session answers, with its update replaced."""
    data, note = session(request)
    if request == HELLO or not isinstance(answer := decode(data), Update):
        return data, note
    made = change(answer)
    return (made if isinstance(made, bytes) else encode(made)), note


def larger(answer: Update) -> Update:
    return replace(answer, content=jax.tree.map(lambda leaf: leaf * np.float32(1e12), answer.content))


def of_nan(answer: Update) -> Update:
    return replace(answer, content=jax.tree.map(lambda leaf: leaf * np.float32("nan"), answer.content))


def padded(answer: Update) -> Update:
    return replace(answer, content={"more": np.zeros(10**5)})


LIARS: dict[str, tuple[Liar, str]] = {
    "too large": (lambda s, r: changed(s, r, larger), "its answer is larger than the study allows"),
    "not finite": (lambda s, r: changed(s, r, of_nan), "its answer is not finite"),
    "too many bytes": (lambda s, r: changed(s, r, padded), "bytes, more than the study's"),
    "no bytes": (lambda s, r: changed(s, r, lambda a: b""), "its answer cannot be read"),
    "garbage": (lambda s, r: changed(s, r, lambda a: b"tacit\0" + bytes(99)), "its answer cannot be read"),
    "a question": (
        lambda s, r: changed(s, r, lambda a: Broadcast(a.study, a.round, {"x": np.zeros(1)})),
        "it sent a message that is not an answer",
    ),
    "another's name": (lambda s, r: changed(s, r, lambda a: replace(a, site="north")), "its answer is signed 'north'"),
    "another study": (lambda s, r: changed(s, r, lambda a: replace(a, study="lung/inference")), "of lung/inference"),
    "another shape": (
        lambda s, r: changed(s, r, lambda a: replace(a, content={"x": np.zeros(1)})),
        "its answer has another shape",
    ),
    "a later round": (lambda s, r: changed(s, r, lambda a: replace(a, round=a.round + 9)), "it answered round"),
    "always refuses": (lambda s, r: changed(s, r, lambda a: Refusal(a.study, a.site, a.round, "no")), "no"),
    "fails": (lambda s, r: s(r) if r == HELLO else Failed(), "it failed to make an answer"),
    "goes away": (lambda s, r: s(r) if r == HELLO else Lost("it did not answer"), "it did not answer"),
    "was never there": (lambda s, r: Lost("it did not answer"), "it did not answer"),
}


def with_liar(clinics: Any, lie: Liar) -> Remote:
    """West is one; its session is sound, and stands behind it."""
    session = clinics.open("west")
    return clinics.hosted(west=lambda request: lie(session, request))


@pytest.mark.parametrize("case", LIARS)
def test_the_study_finishes_without_a_site_that_answers_wrongly(clinics: Any, case: str) -> None:
    """It is named with what was wrong, and q is what the honest ones alone would have come to."""
    lie, words = LIARS[case]
    found = clinics.coordinate(with_liar(clinics, lie), at_least=2)
    check(clinics, found, "north", "south")
    assert words in row(found, "west")["refused"]
    assert found.communications == 2 * ROUNDS
    assert plain(found) == honest_two(clinics)


def test_an_old_answer_counts_for_nothing(clinics: Any) -> None:
    """A site that sends its first answer again and again is passed over; a transport gives up on it in the end."""
    session, kept = clinics.open("west"), []

    def lie(request: bytes) -> Any:
        data, note = session(request)
        if request == HELLO or "scaling" in decode(request).study:
            return data, note
        kept.append(data)
        if len(kept) == 1:
            return data, note
        clinics.host.post.asked.append(("west", b""))  # what comes after it
        return (kept[0], note) if request else Lost("it did not answer")

    clinics.host = clinics.hosted(west=lambda request: lie(request) if request else Lost("it did not answer"))
    found = clinics.coordinate(clinics.host)
    check(clinics, found, "north", "south")
    assert found.communications == 2 * ROUNDS + 1
    assert row(found, "west")["refused"] == "it did not answer"


# --- Notes are lies -----------------------------------------------------------------------------------------------

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 3.0, "unit": "record", "adjacency": "add-remove", "coordinates": 3}


def events(count: Any, **changes: Any) -> dict[str, Any]:
    return {"events": [[GAUSSIAN | changes, count]], "seeded": False}


NOTES: dict[str, Any] = {
    "nothing": "",
    "garbage": "\0\ud800{",
    "no object": "[1, 2]",
    "a number": "3",
    "huge": json.dumps({"refusal": "a" * MOST_NOTE}),
    "deep": "[" * 10**5,
    "numbers that are none": '{"spent": NaN, "epsilon": Infinity, "rounds": {"inference": NaN}}',
    "far ahead": {"rounds": {"scaling": 10**18, "inference": 10**18}, "updates": {"inference": 10**18}},
    "at the end": {"rounds": {"scaling": 0, "inference": ROUNDS - 1}},
    "beyond integers": {"rounds": {"inference": 10**400}, "updates": {"inference": 10**400}, "spent": 10**400},
    "below 0": {"rounds": {"scaling": -(10**18), "inference": -2}, "updates": {"inference": -5}, "spent": -1.0},
    "strings": {"rounds": {"inference": "2"}, "updates": "3", "spent": "0", "events": "ab", "seeded": "no"},
    "lists": {"rounds": [2, 2], "updates": {"inference": [3]}, "spent": [0], "events": [[1, 2], [3]], "refusal": {}},
    "truth": {"rounds": {"inference": True}, "updates": {"inference": True}, "spent": True, "events": True},
    "another adjacency": events(1, adjacency="replace-one"),
    "another unit": events(1, unit="person"),
    "noise of another plan": events(1, noise_multiplier=1e6),
    "an accountant's year": events(10**12, type="laplace"),
    "more than a plan has": events(10**9),
    "beyond coordinates": events(1, coordinates=10**400),
    "many kinds": {"events": [[GAUSSIAN | {"noise_multiplier": 3 + j / 100}, 1] for j in range(500)], "seeded": True},
}


def text_of(case: str) -> str:
    return NOTES[case] if isinstance(NOTES[case], str) else json.dumps(NOTES[case])


def test_of_a_note_nothing_is_kept_that_an_honest_site_would_not_say(clinics: Any) -> None:
    host = clinics.hosted()
    host.greet = lambda: None  # type: ignore[method-assign]  # or it would be told the truth
    planned = accounting.epsilon(host.setup.cost(2) or NonPrivate(), DELTA)
    assert 1.99 < planned <= 2
    for case in NOTES:
        host.note("west", Reply(b"", text_of(case)))
        assert len(host.place.read_text()) < 10_000, case
        assert -1 <= host.last_rounds("inference")[2] <= 10**18, case
        assert math.isnan(host.spent()["west"]) or host.spent()["west"] >= 0, case
        assert 0 <= host.updates()["west"] <= 10**18, case
        stated = host.statements({"west"})["west"]
        assert isinstance(stated, Statement)
        assert stated.epsilon == pytest.approx(planned, rel=1e-9), case
        assert isinstance(host.statements(())["west"], str), case  # nothing of it was taken in


@pytest.mark.parametrize(
    "case", ["garbage", "huge", "far ahead", "at the end", "beyond integers", "below 0", "strings"]
)
def test_a_note_that_lies_changes_only_what_is_said_of_its_site(clinics: Any, case: str) -> None:
    """Beside honest answers: the posterior is the same to the bit, and the study neither stops nor ends early."""
    note = text_of(case)
    found = clinics.coordinate(with_liar(clinics, lambda session, request: (session(request)[0], note)), at_least=2)
    assert plain(found) == honest(clinics)
    check(clinics, found, "north", "south")
    assert found.communications == 3 * ROUNDS
    assert clinics.charged("west") == 1 + ROUNDS
    statement = found.posterior.statement["sites"]["west"]
    assert statement["epsilon"] == pytest.approx(clinics.ledger("west").spent(), rel=1e-6)  # what the plan has
    west = row(found, "west")
    assert west["refused"] is None
    assert west["spent"] is None or west["spent"] >= 0
    json.dumps(found.sites, allow_nan=False)


def test_a_note_as_deep_as_can_be_read_can_be_written_too(clinics: Any) -> None:
    """Python reads a little deeper than it writes: every depth about its limit."""
    host = clinics.hosted()
    for depth in range(850, 1010):
        host.note("west", Reply(b"", '{"rounds":' * depth + "1" + "}" * depth))
        assert json.loads(host.place.read_text())["west"]["rounds"] == {}


def test_two_of_three_that_lie_about_rounds_do_not_stop_the_third(clinics: Any) -> None:
    """They can shorten the study, if they are most of its sites; each still answers within its plan."""
    lies = json.dumps({"rounds": {"scaling": 10**18, "inference": 10**18}})
    sessions = {name: clinics.open(name) for name in ("south", "west")}
    host = clinics.hosted(**{name: lambda r, s=session: (s(r)[0], lies) for name, session in sessions.items()})
    found = clinics.coordinate(host, at_least=1)
    assert found.communications == 3
    assert row(found, "north")["updates"] == 1


# --- What is shown ------------------------------------------------------------------------------------------------


def test_a_status_is_plain_and_says_where_each_site_is(clinics: Any) -> None:
    host = clinics.hosted()
    out = clinics.folder / "shown"
    out.mkdir()
    status = Status(out, "clinics", host.setup)
    host.note("west", Reply(b"", '{"spent": NaN}'))
    status.show(host, "inference", 1, 3, {"south": "it is late"}, {"west": "it lied"})
    found = json.loads((out / "status.json").read_text(), parse_constant=pytest.fail)
    assert (found["phase"], found["done"], found["of"]) == ("inference", 1, 3)
    assert {name: site["state"] for name, site in found["sites"].items()} == {
        "north": "here",
        "south": "away",
        "west": "left out",
    }
    assert (found["sites"]["west"]["spent"], found["sites"]["north"]["spent"]) == (None, 0.0)
    status.show(host, "inference", 2, 3, {}, {"west": "it lied"})
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [(line.get("site"), line.get("state")) for line in lines if line["event"] == "site"] == [
        ("south", "away"),
        ("west", "left out"),
        ("south", "here"),
    ]
    assert math.isnan(host.spent()["west"])


def test_a_session_keeps_what_a_dashboard_shows(clinics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = clinics.folder / "out"
    out.mkdir()
    monkeypatch.setattr(studied, "write", lambda *_: None)  # is not what takes part here
    post: Any = clinics.hosted(south=lambda request: Lost("it is not connected")).post
    statuses: list[Any] = []
    CoordinatorSession(clinics.study, Agreement.of(clinics.study), out, 2, is_watched=True, watch=statuses.append).hold(
        post
    )
    assert [found["done"] for found in statuses if found["phase"] == "inference"] == list(range(1, ROUNDS + 1))
    board = Board()
    board.follow(out)
    state = json.loads(board.event()[1])
    assert (state["phase"], state["done"], state["of"]) == ("inference", ROUNDS, ROUNDS)
    north, south, _ = state["sites"]
    assert north["spent"] == clinics.ledger("north").spent()
    assert (north["state"], north["epsilon"]) == ("here", 2.0)
    assert (south["state"], south["reason"], south["updates"]) == ("away", "it is not connected", 0)
    assert [row["name"] for row in state["posterior"]["rows"]] == ["age", "sex=M"]
    assert state["seeded"], "as the clinics' own files say"


def stated(host: Remote, name: str) -> Statement:
    found = host.statements(NAMES)[name]
    assert isinstance(found, Statement)
    return found


def test_what_a_site_said_that_it_released_stays_said(clinics: Any) -> None:
    """One that refuses now, or is away at the end, has released what it has."""
    host = clinics.hosted()
    clinics.coordinate(host)
    before = {name: stated(host, name) for name in NAMES}
    assert all(statement.seeded for statement in before.values())
    host.note("north", Reply(b"", json.dumps({"study": "x", "refusal": "no more"})))
    assert host.notes["north"]["updates"] == {"scaling": 1, "inference": 3}
    host.post.answers["north"] = lambda data: Lost("away")
    after = stated(host, "north")
    assert after.seeded
    assert after.epsilon >= before["north"].epsilon
    assert any("away at the end" in note for note in after.notes)


# --- All are asked first --------------------------------------------------------------------------------------------


def poor(clinics: Any, *names: str) -> None:
    """Clinics where an earlier study has spent so much that this one cannot be paid for."""
    for name in names:
        clinics.set(name, studies=None)
        clinics.open(name)
        clinics.ledger(name).charge(Gaussian(2.5), study="earlier/inference", round=0)


@pytest.mark.parametrize("schedule", [None, "asynchronous"])
def test_nothing_is_charged_at_any_site_where_too_few_accept(clinics: Any, schedule: str | None) -> None:
    """One site's budget once paid for a study of one."""
    clinics.study = clinics.read(schedule=schedule)
    poor(clinics, "south")
    clinics.set("west", epsilon=1.5)
    with pytest.raises(ValueError, match="1 of 3 sites accept the study and at least 3 must, so nothing was") as error:
        clinics.coordinate()
    assert "south: what is left of this site's budget does not pay for the study" in str(error.value)
    assert "west: epsilon=2 is asked for; expected at most 1.5 here" in str(error.value)
    assert [clinics.charged(name) for name in NAMES] == [0, 1, 0]
    with pytest.raises(ValueError, match="1 of 3 sites accept the study and at least 2 must"):
        clinics.coordinate(at_least=2)
    assert [clinics.charged(name) for name in NAMES] == [0, 1, 0]


def test_a_site_that_refused_has_no_part_and_no_statement_of_releases(clinics: Any, tmp_path: Path) -> None:
    """It was told to have released what the plan has, and to have spent it, with nothing of it in its ledger."""
    poor(clinics, "south")
    asked: list[str] = []
    south = clinics.open("south")

    def counted(request: bytes) -> Any:
        asked.append("hello" if request == HELLO else "message")
        return south(request)

    said: list[str] = []
    found = clinics.coordinate(clinics.hosted(south=counted), at_least=2, say=said.append)
    check(clinics, found, "north", "west")
    assert clinics.charged("south") == 1
    assert "message" not in asked
    assert said[0].startswith("2 of 3 sites take part (south does not: what is left of this site's budget")
    south_row = row(found, "south")
    assert (south_row["spent"], south_row["updates"], south_row["is_present"]) == (0.0, 0, False)
    assert "does not pay for the study" in south_row["refused"]
    assert set(found.posterior.statement["sites"]) == {"north", "west"}
    assert found.statements["south"] == "south took no part in this study and released nothing."
    about = {"name": "clinics", "model": "logistic", "target": "ill", "data": "", "version": ""}
    (tmp_path / "written").mkdir()
    result = studied.write(tmp_path / "written", found, about, 0)
    text = (tmp_path / "written" / "statement.txt").read_text()
    assert "south\n-----\nsouth took no part in this study and released nothing.\n" in text
    assert text.count("What was released") == 2
    assert {one["name"]: one["spent"] > 0 for one in result["sites"]} == {"north": True, "south": False, "west": True}
    assert result["epsilon"] == max(one["spent"] for one in result["sites"])


def test_a_site_whose_budget_was_spent_since_it_accepted_says_so_in_its_note(clinics: Any) -> None:
    """By a study, or anything else, that charges the same ledger; but not of a study that it has begun."""
    session = clinics.open("north")
    assert json.loads(session(HELLO)[1])["refusal"] == ""
    clinics.ledger("north").charge(Gaussian(2.5), study="earlier/inference", round=0)
    assert "does not pay for the study" in json.loads(session(HELLO)[1])["refusal"]
    clinics.set("north", spent=False)
    told = json.loads(clinics.open("north")(HELLO)[1])["refusal"]
    assert told == "what is left of this site's budget does not pay for the study; lower epsilon or leave it out"
    south = clinics.open("south")
    clinics.ask("south", phase="scaling")
    clinics.ledger("south").charge(Gaussian(2.5), study="earlier/inference", round=0)
    assert json.loads(south(HELLO)[1])["refusal"] == ""


def test_one_that_is_away_at_the_beginning_does_not_accept_and_may_come_later(clinics: Any) -> None:
    session = clinics.open("west")
    host = clinics.hosted(west=lambda request: Lost("it did not answer"))
    with pytest.raises(ValueError, match=r"2 of 3 sites accept.*\(west: it did not answer\)"):
        clinics.coordinate(host)
    assert [clinics.charged(name) for name in NAMES] == [0, 0, 0]

    def observe(phase: str, done: int, *rest: Any) -> None:
        if (phase, done) == ("inference", 1):
            host.post.answers["west"] = session

    found = clinics.coordinate(host, at_least=2, observe=observe)
    assert [row(found, name)["updates"] for name in NAMES] == [3, 3, 2]
    assert clinics.charged("west") == 2


def test_who_refused_is_asked_again_when_the_command_is_given_again_and_else_never(clinics: Any) -> None:
    clinics.set("west", epsilon=1.5)

    class Stop(Exception):
        pass

    def stop_after(phase: str, done: int, *rest: Any) -> None:
        if (phase, done) == ("inference", 1):
            raise Stop

    with pytest.raises(Stop):
        clinics.coordinate(at_least=2, observe=stop_after)
    (clinics.state("west") / "ledger.sqlite").unlink(missing_ok=True)
    clinics.set("west")
    with pytest.raises(Stop):
        clinics.coordinate(observe=lambda phase, done, *rest: stop_after(phase, done - 1))
    assert clinics.charged("west") == 0
    host = clinics.hosted()
    host.forgives = True
    found = clinics.coordinate(host)
    assert [row(found, name)["updates"] for name in NAMES] == [3, 3, 1]


def test_a_statement_says_that_a_sites_budget_was_raised(clinics: Any) -> None:
    for name in ("north", "west"):
        clinics.set(name, epsilon=4.0)
        clinics.open(name)
        clinics.ledger(name).extend(6.0)
    clinics.set("north", epsilon=6.0)
    clinics.set("west", epsilon=6.0, spent=False)
    stated = clinics.coordinate(clinics.hosted()).posterior.statement["sites"]
    said = {name: " ".join(stated[name]["notes"]) for name in NAMES}
    assert "the budget, ε = 6 at δ" in said["north"]
    assert "the budget was raised from ε = 4 to 6, which is covered if" in said["north"]
    assert "the budget was raised, which is covered if" in said["west"], "a site may keep from what to what to itself"
    assert "raised" not in said["south"]


def test_a_status_names_what_the_study_spent_and_what_the_ledger_has_in_all(
    clinics: Any, run: Any, tmp_path: Path
) -> None:
    """1.097 of 1 read as a breach: it was the ledger's total beside the study's ε."""
    clinics.set("north", epsilon=6.0, studies=None)
    clinics.open("north")
    clinics.ledger("north").charge(Gaussian(2.0), study="earlier/inference", round=0)
    clinics.set("west", spent=False)
    host = clinics.hosted()
    found = clinics.coordinate(host)
    status = Status(tmp_path, "clinics", host.setup)
    status.show(host, "inference", 3, 3, {}, {})
    sites = json.loads((tmp_path / "status.json").read_text())["sites"]
    ledger, north = clinics.ledger("north"), sites["north"]
    assert 1.9 < north["spent"] <= north["epsilon"] == 2.0 < north["ledger_spent"] == ledger.spent() <= 6.0
    assert north["budget"] == 6.0
    assert (sites["south"]["ledger_spent"], sites["south"]["budget"]) == (sites["south"]["spent"], 2.0)
    assert (sites["west"]["ledger_spent"], sites["west"]["budget"]) == (None, None)
    assert 1.9 < sites["west"]["spent"] <= 2.0
    assert (row(found, "north")["ledger_spent"], row(found, "north")["budget"]) == (ledger.spent(), 6.0)
    code, printed, _ = run("network", "status", tmp_path)
    words = " ".join(printed.split())
    assert code == 0
    assert f"{north['spent']:.4g} of 2" in words
    assert f"{ledger.spent():.4g} of 6" in words
    assert "not told" in words
