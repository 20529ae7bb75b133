"""A station: nothing that a coordinator sends overrules the site's own file, and nothing is charged for a refusal."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare")

from tacit.config import read_site
from tacit.engines.coordinator import settle
from tacit.families import FullGaussian
from tacit.federated import site as site_module
from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.federated.site import NO_BUDGET, NO_LEDGER, NO_ROOM
from tacit.network import station as station_module
from tacit.network.agreement import Agreement
from tacit.network.station import HELLO, UNWRITABLE, Journal, asdict_of
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian, compose
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import is_secure
from tacit.study import name_of, shortened

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once

NORTH = "north"
STRANGE = 987654.321  # the value of a record, to be looked for where no record may be


def note_of(station: Any) -> dict[str, Any]:
    answer, note = station(HELLO)
    assert answer == b""
    return json.loads(note)


def journal_of(clinics: Any, name: str = NORTH) -> Journal:
    return Journal(clinics.state(name) / "audit.jsonl")


def check_refused(clinics: Any, station: Any, words: str) -> None:
    """It says why, also to messages; nothing was charged, and what it says has no path in it."""
    assert words in station.refusal
    told = [station.refusal, json.dumps(note_of(station))]
    for phase in ("scaling", "inference"):
        answer = clinics.ask(NORTH, phase=phase)
        assert isinstance(answer, Refusal)
        assert words in answer.reason
        told.append(answer.reason)
    assert clinics.charged(NORTH) == 0
    for text in told:
        assert not any(part in text for part in (str(clinics.folder), "site.toml", ".csv", "/tmp", str(STRANGE)))


# --- Limits are the site's ----------------------------------------------------------------------------------------


def of_site(**values: Any) -> Callable[[Any], Any]:
    """A change of the first site's place, ε, δ or places in what is sent."""
    places = {"name": 0, "epsilon": 1, "delta": 2, "places": 3}
    return lambda plain: [plain["sites"][0].__setitem__(places[name], value) for name, value in values.items()]


def of_plan(**values: Any) -> Callable[[Any], Any]:
    return lambda plain: plain["plan"].update(values)


def of_form(**values: Any) -> Callable[[Any], Any]:
    return lambda plain: plain["form"].update(values)


def twice(plain: Any) -> None:
    plain["sites"].append(plain["sites"][0])


FACTS = "columns, bounds, categories or classes are not this site's"
OBJECTIONS: dict[str, tuple[dict[str, Any], Callable[[Any], Any], str]] = {
    "more ε": ({}, of_site(epsilon=2.01), "epsilon=2.01 is asked for; expected at most 2 here"),
    "far more ε": ({}, of_site(epsilon=1e300), "epsilon=1e+300 is asked for; expected at most 2 here"),
    "less δ": ({}, of_site(delta=1e-5), "delta=1e-05 is asked for; expected 0.0001"),
    "more δ": ({}, of_site(delta=1e-3), "delta=0.001 is asked for; expected 0.0001"),
    "less noise": ({"least_noise": 3.6}, of_plan(), "the noise of gradients would be 3.47 times its clip; expected"),
    "less noise in steps": (
        {"methods": ["vi"]},
        of_plan(method="vi", noise_multiplier=0.4),
        "the noise of gradients would be 0.4 times its clip; expected at least 0.5 here",
    ),
    "model": ({}, of_plan(link="probit"), "model='probit' is not allowed here; expected one of logistic"),
    "method": ({}, of_plan(method="ep"), "method='ep' is not allowed here; expected one of natural"),
    "unit": ({}, of_plan(unit="site", noise="per-site"), "unit='site' is not allowed here; expected one of record"),
    "adjacency": ({}, of_plan(adjacency="replace-one"), "adjacency='replace-one' is not allowed here"),
    "study": ({}, of_plan(name="another"), "study 'another' is not among those that this site takes part in"),
    "rounds": ({}, of_plan(rounds=4), "rounds=4; expected at most 3 here"),
    "evaluation": ({"evaluation": False}, of_plan(evaluation=0.1), "scores on held-out records are not shared here"),
    "places": ({}, of_site(places=41), "places=41 in the study; expected 40, this site's public number"),
    "trusted coordinator": (
        {"unit": "site"},
        of_plan(unit="site", noise="tied"),
        "this study trusts the coordinator with sums",
    ),
    "bounds": ({}, of_form(low=[-1000.0, None]), FACTS),
    "categories": ({}, of_form(names=["age", "sex=F"]), FACTS),
    "classes": ({}, of_form(classes=["yes", "no"]), FACTS),
    "form of another type": ({}, of_form(low="NaN"), FACTS),
    "fewer columns": ({}, lambda plain: plain.update(columns=["age"]), FACTS),
    "a column twice": ({}, lambda plain: plain.update(columns=["age", "age"]), "columns are none, or name one twice"),
    "column": ({}, lambda plain: plain.update(columns=["age", "hiv"]), "columns name 'hiv', which the site does not"),
    "target": ({}, lambda plain: plain.update(target="sex"), "target='sex' is not the site's"),
    "not named": ({}, of_site(name="east"), "the study does not name north"),
    "named twice": ({}, twice, "the study does not name north"),
    "another field": ({}, lambda plain: plain.update(code="print()"), "it has other fields than this version"),
    "another type": ({}, of_plan(rounds="3"), "its rounds is of another type"),
    "NaN": ({}, of_site(epsilon=float("nan")), "the budget or the places of a site are no sensible numbers"),
    "infinity": ({}, of_site(epsilon=float("inf")), "the budget or the places of a site are no sensible numbers"),
    "beyond all floats": ({}, of_site(epsilon=10**400), "the budget or the places of a site are no sensible numbers"),
    "more rounds than a list": ({"most_rounds": None}, of_plan(rounds=10**9), "its rounds are more than"),
    "more steps than end": ({}, of_plan(steps=10**6), "its steps are more than"),
}


@pytest.mark.parametrize("case", OBJECTIONS)
def test_what_a_site_does_not_allow_is_refused_before_a_charge_and_before_records_are_opened(
    clinics: Any, case: str
) -> None:
    """Records that are not there would be another refusal, as the next test shows."""
    limits, change, words = OBJECTIONS[case]
    clinics.set(NORTH, **limits)
    (clinics.folder / NORTH / "north.csv").unlink()
    sent = clinics.agreement()
    change(sent)
    check_refused(clinics, clinics.open(NORTH, sent), words)
    assert not (clinics.state(NORTH) / "ledger.sqlite").exists()


def test_records_are_opened_last(clinics: Any) -> None:
    (clinics.folder / NORTH / "north.csv").unlink()
    station = clinics.open(NORTH)
    check_refused(clinics, station, "the records do not fit the site's own file; its log says why")
    assert "No such file" in journal_of(clinics).path.read_text()
    clinics.set(NORTH, epsilon=1.9)
    check_refused(clinics, clinics.open(NORTH), "epsilon=2 is asked for; expected at most 1.9 here")


@pytest.mark.parametrize("data", [b"", b"\xff\0", b"[" * 10**5, b'{"format":' * 10**5, b"{}", b"null", b"9" * 5000])
def test_a_study_of_any_bytes_is_refused(clinics: Any, data: bytes) -> None:
    check_refused(clinics, clinics.open(NORTH, data), "the study that was sent cannot be read")
    assert not (clinics.state(NORTH) / "ledger.sqlite").exists()


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", "a/b"])
def test_the_name_of_a_study_is_no_way_out_of_the_folder(clinics: Any, name: str) -> None:
    clinics.set(NORTH, studies=None)
    sent = clinics.agreement()
    sent["plan"]["name"] = name
    before = set(clinics.folder.rglob("*")) | set(clinics.folder.parent.iterdir())
    check_refused(clinics, clinics.open(NORTH, sent), "its name cannot name a folder")
    new = (set(clinics.folder.rglob("*")) | set(clinics.folder.parent.iterdir())) - before
    assert {place.relative_to(clinics.state(NORTH)).name for place in new} <= {"state", "", "lock", "audit.jsonl"}


def test_the_ledger_has_the_site_s_budget_and_not_the_study_s(clinics: Any) -> None:
    clinics.set(NORTH, epsilon=5.0)
    assert not clinics.open(NORTH).refusal
    ledger = clinics.ledger(NORTH)
    assert (ledger.epsilon, ledger.delta, ledger.unit, ledger.adjacency) == (5.0, 1e-4, "record", "add-remove")


def test_a_budget_that_was_changed_behind_the_ledger_s_back_is_not_the_ledger_s(clinics: Any) -> None:
    clinics.open(NORTH)
    clinics.set(NORTH, epsilon=50.0)
    check_refused(clinics, clinics.open(NORTH), "the site is not ready for this study; ask those who run it")
    assert clinics.ledger(NORTH).epsilon == 2.0
    assert "a ledger's budget is not changed" in journal_of(clinics).path.read_text()


def test_two_studies_share_the_budget_of_a_site(clinics: Any) -> None:
    """The second is not begun, since it could not be paid for to its end; what the first has begun goes on."""
    clinics.set(NORTH, epsilon=2.5, studies=None)
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH, phase="scaling"), Update)
    assert isinstance(clinics.ask(NORTH), Update)
    spent = clinics.ledger(NORTH).spent()
    assert spent > 0.5
    first, clinics.study = clinics.study, clinics.read(name="second")
    station = clinics.open(NORTH)
    assert "what is left of this site's budget does not pay for the study" in station.refusal
    assert isinstance(clinics.ask(NORTH), Refusal)
    assert clinics.ledger(NORTH).spent() == spent
    clinics.study = first
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH, 1), Update)
    assert clinics.charged(NORTH) == 3


def test_a_round_beyond_the_budget_is_refused(clinics: Any) -> None:
    """Such as after another study has spent what was left, on the same records."""
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH), Update)
    ledger = clinics.ledger(NORTH)
    left = ledger.epsilon - ledger.spent()
    size = next(x for x in np.linspace(2, 60, 200) if accounting.epsilon(Gaussian(float(x)), 1e-4) < 0.7 * left)
    ledger.charge(Gaussian(float(size)), study="other/inference", round=0)
    answers = [clinics.ask(NORTH, round) for round in (1, 2)]
    assert any(isinstance(answer, Refusal) and "would be passed by this update" in answer.reason for answer in answers)
    assert ledger.spent() <= ledger.epsilon
    clinics.set(NORTH, spent=False)
    clinics.open(NORTH)
    last = [answer.round for answer in answers if isinstance(answer, Refusal)][-1]
    answer = clinics.ask(NORTH, last)
    assert isinstance(answer, Refusal)
    assert answer.reason == NO_BUDGET  # what is spent is not told


# --- Messages -----------------------------------------------------------------------------------------------------


def proper(precision: float = 1.0, mean: float = 0.0) -> FullGaussian:
    """A q of three coefficients."""
    diagonal = np.diag(np.full(3, precision, np.float32))
    return FullGaussian(np.full(3, mean, np.float32), diagonal)  # type: ignore[arg-type]


def scales(clinics: Any, **changes: Any) -> dict[str, Any]:
    own = clinics.setup().public_scaling()
    found = {"low": own.range.low, "high": own.range.high, "location": own.location, "scale": own.scale}
    return {name: np.asarray(value) for name, value in (found | changes).items()}


def single(*numbers: float) -> np.ndarray:
    return np.asarray(numbers, np.float32)


def messages(clinics: Any) -> dict[str, tuple[bytes, str]]:
    """Messages that are not answered, and what is said to each."""
    study, form = name_of(clinics.setup()), "the scales of columns are not of this study's form"
    phase = f"{study}/inference"
    shape = "the broadcast has another shape than this site's plan"
    return {
        "nothing": (b"", "the message cannot be read"),
        "garbage": (b"tacit\0" + os.urandom(100), "the message cannot be read"),
        "half a message": (clinics.request()[:-1], "the message cannot be read"),
        "a damaged message": (clinics.request()[:-40] + bytes(40), "the message cannot be read"),
        "an update": (encode(Update(phase, NORTH, 0, {"content": np.zeros(3)})), "it is no broadcast"),
        "a refusal": (encode(Refusal(phase, NORTH, 0, "no")), "it is no broadcast"),
        "another study": (clinics.request(study="clinics-000000000000/inference"), "this site takes part in"),
        "the study's name alone": (clinics.request(study=study), "this site takes part in"),
        "no such phase": (clinics.request(study=f"{study}/records"), "this site takes part in"),
        "a phase that the plan has not": (clinics.request(study=f"{study}/evaluation"), "the plan has no evaluation"),
        "a study inside": (clinics.request(study=f"{study}/inference/inference"), "this site takes part in"),
        "no content": (encode(Broadcast(phase, 0, {"scaling": scales(clinics)})), "has another form than this"),
        "more than a content": (
            encode(Broadcast(phase, 0, {"content": proper(), "scaling": scales(clinics), "more": single(1)})),
            "has another form than this",
        ),
        "a bare posterior": (encode(Broadcast(phase, 0, proper())), "has another form than this"),
        "no scales": (encode(Broadcast(phase, 0, {"content": proper()})), form),
        "scales of another shape": (clinics.request(scaling=scales(clinics, scale=single(1, 1))), form),
        "scales of another type": (clinics.request(scaling=scales(clinics, scale=np.ones(1))), form),
        "a scale that is NaN": (clinics.request(scaling=scales(clinics, scale=single(np.nan))), form),
        "a location that is infinite": (clinics.request(scaling=scales(clinics, location=single(np.inf))), form),
        "a scale of 0": (clinics.request(scaling=scales(clinics, scale=single(0))), form),
        "a scale below 0": (clinics.request(scaling=scales(clinics, scale=single(-1))), form),
        "more than scales": (clinics.request(scaling=scales(clinics, clip=single(1))), form),
        "a posterior that is NaN": (clinics.request(content=proper(mean=np.nan)), "the broadcast is not finite"),
        "a posterior that is infinite": (clinics.request(content=proper(np.inf)), "the broadcast is not finite"),
        "an improper posterior": (clinics.request(content=proper(-1.0)), "is not proper"),
        "a flat posterior": (clinics.request(content=proper(0.0)), "is not proper"),
        "another dimension": (
            clinics.request(content=FullGaussian(single(0, 0), np.eye(2, dtype=np.float32))),  # type: ignore[arg-type]
            shape,
        ),
        "a posterior with settings": (clinics.request(content={"q": proper(), "epsilon": single(9)}), shape),
        "no posterior": (clinics.request(content={}), shape),
    }


def test_a_message_that_is_not_of_the_study_is_refused_and_costs_nothing(clinics: Any) -> None:
    station = clinics.open(NORTH)
    for case, (request, words) in messages(clinics).items():
        answer = decode(station(request)[0])
        assert isinstance(answer, Refusal), case
        assert words in answer.reason, case
        assert answer.site == NORTH
        assert str(clinics.folder) not in answer.reason
        assert clinics.charged(NORTH) == 0, case
    lines = [json.loads(line) for line in journal_of(clinics).path.read_text().splitlines()]
    assert [line["kind"] for line in lines[1:]] == ["refused"] * len(messages(clinics))
    assert isinstance(clinics.ask(NORTH), Update)  # and none of them has left anything behind
    assert clinics.charged(NORTH) == 1


def test_the_scales_of_a_study_are_those_that_it_began_with(clinics: Any) -> None:
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH), Update)
    for scale in (54.0, 1e-6, 1e30):
        for _ in range(2):
            answer = clinics.ask(NORTH, 1, scaling=scales(clinics, scale=single(scale)))
            assert isinstance(answer, Refusal)
            assert "the scales of columns differ from those that this study began with" in answer.reason
            clinics.open(NORTH)  # a new process has no other ones
    assert clinics.charged(NORTH) == 1
    assert isinstance(clinics.ask(NORTH, 1), Update)


def test_the_same_request_is_answered_once_more_by_the_same_bytes_and_charged_once(clinics: Any) -> None:
    station, request = clinics.open(NORTH), clinics.request()
    first, _ = station(request)
    assert isinstance(decode(first), Update)
    head = clinics.ledger(NORTH).head()
    for _ in range(3):
        assert station(request)[0] == first
    assert station(clinics.request(content=proper(2.0, 1.0)))[0] == first  # whatever the coordinator says it was
    assert clinics.ledger(NORTH).head() == head
    assert clinics.charged(NORTH) == 1


def test_a_coordinator_that_lies_about_rounds_gets_no_second_answer(clinics: Any) -> None:
    station = clinics.open(NORTH)
    answers = {round: station(clinics.request(round))[0] for round in (3, 5)}
    assert all(isinstance(decode(answer), Update) for answer in answers.values())
    assert len(set(answers.values())) == 2
    head = clinics.ledger(NORTH).head()
    for round in (4, 3, 0):
        back = decode(station(clinics.request(round))[0])
        assert isinstance(back, Refusal)
        assert f"round={round} is before round 5, which was answered" in back.reason
    assert station(clinics.request(5))[0] == answers[5]
    assert clinics.ledger(NORTH).head() == head


def test_there_are_no_more_updates_than_the_plan_has(clinics: Any) -> None:
    clinics.set(NORTH, epsilon=20.0)  # the budget alone would pay for more
    station = clinics.open(NORTH)
    for round in (0, 7, 2**62):
        assert isinstance(clinics.ask(NORTH, round), Update)
    last = station(clinics.request(2**62))[0]
    more = clinics.ask(NORTH, 2**62 + 1)
    assert isinstance(more, Refusal)
    assert "the plan has 3 updates, and all were made" in more.reason
    assert isinstance(clinics.ask(NORTH, phase="scaling"), Update)
    more = clinics.ask(NORTH, 1, phase="scaling")
    assert isinstance(more, Refusal)
    assert "the plan has 1 updates, and all were made" in more.reason
    assert station(clinics.request(2**62))[0] == last
    assert clinics.charged(NORTH) == 4


def test_a_hello_is_answered_by_the_note_alone(clinics: Any) -> None:
    station = clinics.open(NORTH)
    note = note_of(station)
    assert note == {
        "study": name_of(clinics.setup()),
        "refusal": "",
        "seeded": False,
        "events": [],
        "rounds": {},
        "updates": {},
        "spent": 0.0,
        "rule": "gaussian(reserve=0.001)",
        "raised": False,
        "ledger_spent": 0.0,
        "budget": 2.0,
        "first_budget": 2.0,
    }
    clinics.ask(NORTH, 4)
    note = note_of(station)
    assert (note["rounds"], note["updates"], note["seeded"]) == ({"inference": 4}, {"inference": 1}, True)
    assert note["spent"] == note["ledger_spent"] == clinics.ledger(NORTH).spent() > 0
    clinics.set(NORTH, spent=False)
    note = note_of(clinics.open(NORTH))
    assert not {"ledger_spent", "budget", "first_budget"} & set(note), "what others spent is told if the site shares it"
    assert note["spent"] == clinics.ledger(NORTH).spent(), "which follows from the events, that are always told"
    assert note["rounds"] == {"inference": 4}
    assert clinics.charged(NORTH) == 1


# --- What survives ------------------------------------------------------------------------------------------------


def test_a_station_that_begins_again_gives_the_same_answers(clinics: Any) -> None:
    """At any point: a new process before every message, and each message twice."""
    asked = [("scaling", 0), ("inference", 0), ("inference", 1), ("inference", 2)]
    once = []
    for phase, round in asked:
        clinics.open(NORTH)
        first = clinics.stations[NORTH](clinics.request(round, phase))[0]
        again = clinics.open(NORTH)
        assert again(clinics.request(round, phase))[0] == first
        assert note_of(again)["rounds"][phase] == round
        assert isinstance(decode(first), Update)
        once.append(first)
    assert clinics.charged(NORTH) == len(asked)
    assert journal_of(clinics).verify() == 4 * len(asked)
    (clinics.folder / "other").mkdir()
    other = type(clinics)(clinics.folder / "other")  # where nothing ends
    other.open(NORTH)
    assert [other.stations[NORTH](other.request(round, phase))[0] for phase, round in asked] == once
    other.close()


def test_a_store_that_was_lost_is_no_reason_to_run_a_round_again(clinics: Any) -> None:
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH), Update)
    for store in clinics.state(NORTH).glob("*/inference.store"):
        store.unlink()
    clinics.open(NORTH)
    answer = clinics.ask(NORTH)
    assert isinstance(answer, Refusal)
    assert "this round was charged and its answer lost" in answer.reason
    assert clinics.charged(NORTH) == 1


def test_a_second_process_of_a_site_is_refused_and_leaves_the_log_alone(
    clinics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station_module, "LOCK_PATIENCE", 0.0)
    first = clinics.open(NORTH)
    lines = journal_of(clinics).verify()
    second = clinics.Station(read_site(clinics.path(NORTH)), json.dumps(clinics.agreement()).encode())
    assert second.refusal == "the site is not ready for this study; ask those who run it"
    assert isinstance(decode(second(clinics.request())[0]), Refusal)
    assert clinics.charged(NORTH) == 0
    assert isinstance(decode(first(clinics.request())[0]), Update)
    assert journal_of(clinics).verify() == lines + 1
    first.close()
    second = clinics.open(NORTH)
    assert not second.refusal


def full(*arguments: Any, **settings: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["store", "scales", "ledger"])
def test_a_full_disk_refuses_before_a_charge_and_the_round_can_be_asked_again(
    clinics: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    clinics.open(NORTH)
    with monkeypatch.context() as patch:
        if place == "store":
            patch.setattr(site_module, "_reserve", full)
        elif place == "scales":
            patch.setattr(station_module, "_write", full)
        else:
            patch.setattr(Ledger, "charge", full)
        answer = clinics.ask(NORTH)
    assert isinstance(answer, Refusal)
    assert answer.reason == (NO_LEDGER if place == "ledger" else NO_ROOM)
    assert clinics.charged(NORTH) == 0
    assert isinstance(clinics.ask(NORTH), Update)
    assert clinics.charged(NORTH) == 1


def test_no_answer_leaves_that_is_not_in_the_log(clinics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the store then, and is sent when there is room again."""
    station = clinics.open(NORTH)
    with monkeypatch.context() as patch:
        patch.setattr(station.journal, "write", full)
        answer = clinics.ask(NORTH)
    assert isinstance(answer, Refusal)
    assert answer.reason == UNWRITABLE
    assert isinstance(clinics.ask(NORTH), Update)
    assert clinics.charged(NORTH) == 1
    line = json.loads(journal_of(clinics).path.read_text().splitlines()[-1])
    assert (line["kind"], line["round"]) == ("answered", 0)


# --- The audit log ------------------------------------------------------------------------------------------------


def filled(path: Path, lines: int = 4) -> Journal:
    journal = Journal(path)
    for number in range(lines):
        journal.write("answered", "heart/inference", number, b"asked", b"answered", "")
    return journal


def test_a_changed_line_of_the_log_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert Journal(path).verify() == 0
    assert filled(path).verify() == 4
    lines = path.read_text().splitlines(keepends=True)
    for number in range(3):
        changed = [*lines]
        changed[number] = changed[number].replace("answered", "refused", 1)
        for others in (changed, lines[:number] + lines[number + 1 :], lines[: number + 1] + lines[number:]):
            path.write_text("".join(others))
            with pytest.raises(ValueError, match="does not follow the one before"):
                Journal(path).verify()
    path.write_text("".join(lines))
    assert filled(path).verify() == 8


def test_what_a_crash_or_a_full_disk_left_of_a_line_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    journal = filled(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.write("answered", "heart/inference", 4, b"", b"", "")
    assert journal.verify() == 4
    journal.write("answered", "heart/inference", 4, b"", b"", "")
    assert journal.verify() == 5
    with path.open("ab") as file:
        file.write(b'{"time": "2026-')  # a crash
    assert filled(path, 1).verify() == 6


class Clock:
    """A time that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr(station_module.time, "time", lambda: self.now)


def flood(journal: Journal, clock: Clock, count: int, apart: float, words: str = "no") -> None:
    """So many refusals, some seconds apart."""
    for number in range(count):
        clock.now += apart
        journal.write("refused", "heart/inference", number, b"asked", b"refusal", words)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("audit*"))


def test_refusals_that_are_asked_for_without_end_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of them, and every first answer among them is there."""
    clock, path = Clock(monkeypatch), tmp_path / "audit.jsonl"
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(station_module, "MOST_ELSE", 60_000)
    monkeypatch.setattr(station_module, "PART", 20_000)
    journal = Journal(path)
    flood(journal, clock, 20_000, 0.001)
    one_burst = size(tmp_path)
    assert one_burst < 60_000
    assert (
        len(path.read_bytes().splitlines()) + sum(len(part.read_bytes().splitlines()) for part in journal.parts()[:-1])
        <= 2 * station_module.A_MINUTE
    )
    answered = []
    for day in range(365):
        flood(journal, clock, 300, 288.0, f"no {day % 3}")
        if day % 10 == 0:
            journal = Journal(path)  # a new process knows what was written
            journal.write("answered", "heart/inference", day, b"asked", f"{day}".encode(), "")
            answered.append(("heart/inference", day))
            for _ in range(50):  # the same answer, again
                journal.write("answered", "heart/inference", day, b"asked", f"{day}".encode(), "")
    assert size(tmp_path) < 60_000 + 20_000 + 365 * 2 * 450
    assert list(dict.fromkeys(journal.answered())) == answered
    assert journal.verify() > 400
    words = [json.loads(line)["words"] for line in journal.lines() if b'"summary"' in line]
    assert any("x refused: no 1" in text for text in words)


def test_a_log_is_put_aside_when_it_is_long_and_its_chain_goes_on_over_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station_module, "PART", 1500)
    path = tmp_path / "audit.jsonl"
    journal = Journal(path)
    for number in range(40):
        journal.write("answered", "heart/inference", number, b"asked", f"{number}".encode(), "")
    parts = journal.parts()
    assert len(parts) > 5
    assert path == parts[-1]
    assert {part.name for part in parts[:2]} == {"audit-0001.jsonl", "audit-0002.jsonl"}
    assert max(part.stat().st_size for part in parts) < 1500 + 600
    assert Journal(path).verify() == 40
    assert Journal(path).answered() == [("heart/inference", number) for number in range(40)]
    path.unlink()  # a crash between the old file's new name and the first line of the new one
    kept = Journal(path).verify()
    Journal(path).write("answered", "heart/inference", 40, b"", b"x", "")
    assert Journal(path).verify() == kept + 1
    lines = parts[1].read_bytes().splitlines(keepends=True)
    parts[1].write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ValueError, match="does not follow the one before"):
        Journal(path).verify()
    parts[1].unlink()
    with pytest.raises(ValueError, match="does not follow the one before"):
        Journal(path).verify()
    names = {part.name for part in journal.parts()[:-1]}
    for number in range(50, 60):
        journal.write("answered", "heart/inference", number, b"asked", f"{number}".encode(), "")
    assert names < {part.name for part in journal.parts()}, "no part takes the place of another"


def test_a_round_that_only_an_older_part_of_the_log_has_is_still_missed_in_a_ledger(
    clinics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinics.open(NORTH)
    path = clinics.state(NORTH) / "ledger.sqlite"
    older = path.read_bytes()
    clinics.ask(NORTH, phase="scaling")
    monkeypatch.setattr(station_module, "PART", 10)
    clinics.open(NORTH)
    assert b'"answered"' not in journal_of(clinics).path.read_bytes()
    for store in clinics.state(NORTH).glob("*/*.store"):
        store.unlink()
    path.write_bytes(older)
    assert "not ready" in clinics.open(NORTH).refusal


def test_a_store_alone_shows_that_a_ledger_forgot_a_round(clinics: Any) -> None:
    """Also one of another study, and where the audit log was lost with the ledger."""
    clinics.set(NORTH, epsilon=6.0, studies=None)
    clinics.open(NORTH)
    path = clinics.state(NORTH) / "ledger.sqlite"
    older = path.read_bytes()
    clinics.ask(NORTH, phase="scaling")
    path.write_bytes(older)
    (clinics.state(NORTH) / "audit.jsonl").unlink()
    assert "not ready" in clinics.open(NORTH).refusal
    clinics.study = clinics.read(name="second")
    (clinics.state(NORTH) / "audit.jsonl").unlink()
    assert "not ready" in clinics.open(NORTH).refusal


RULES = {"natural": "gaussian(", "ep": "gaussian(", "vi": "renyi("}


@pytest.mark.parametrize("method", RULES)
def test_a_site_counts_by_a_rule_that_is_proved_and_says_which(clinics: Any, method: str) -> None:
    clinics.study = clinics.read(method=method)
    clinics.set(NORTH)
    station = clinics.open(NORTH)
    assert station.refusal == ""
    assert clinics.ledger(NORTH).accountant.startswith(RULES[method])
    assert note_of(station)["rule"] == clinics.ledger(NORTH).accountant


def test_a_rule_of_a_ledger_is_not_changed(clinics: Any) -> None:
    clinics.open(NORTH)
    clinics.set(NORTH, methods=["natural"])
    text = clinics.path(NORTH).read_text().replace("[limits]", '[limits]\nrule = "renyi"')
    clinics.path(NORTH).write_text(text)
    assert "not ready" in clinics.open(NORTH).refusal
    assert "a ledger's rule is not changed" in journal_of(clinics).path.read_text()


def test_a_large_delta_is_allowed_by_the_site_or_not_at_all(clinics: Any) -> None:
    clinics.study = clinics.read(delta=0.05, allow_large_delta=True)
    clinics.set(NORTH)
    assert "allow_large_delta" in clinics.path(NORTH).read_text(), "as its example has it"
    assert clinics.open(NORTH).refusal == ""
    text = clinics.path(NORTH).read_text()
    clinics.path(NORTH).write_text("\n".join(line for line in text.splitlines() if "allow_large" not in line))
    assert clinics.open(NORTH).refusal == "allow_large_delta is not allowed here; leave it out"


def test_no_value_of_a_record_is_in_the_log_the_notes_or_refusals(clinics: Any) -> None:
    """Also where records do not fit, and the holder is told why."""
    path = clinics.folder / NORTH / "north.csv"
    sound = path.read_text()
    told = []

    def session() -> None:
        station = clinics.open(NORTH)
        for phase in ("scaling", "inference"):
            data, note = station(clinics.request(phase=phase))
            told.extend([data.decode("latin-1"), note, station.refusal])

    for column, value in (("age", str(STRANGE)), ("age", f"a{STRANGE}"), ("sex", str(STRANGE)), ("ill", str(STRANGE))):
        header, first, *rest = sound.splitlines()
        cells = dict(zip(header.split(","), first.split(","), strict=True)) | {column: value}
        path.write_text("\n".join([header, ",".join(cells.values()), *rest]))
        session()
    refused = sum("the records do not fit" in text for text in told)
    assert refused == 3 * 2 * 3  # note, refusal and message, of both phases; to be outside of bounds is no fault
    for text in (*told, journal_of(clinics).path.read_text()):
        assert "987654" not in text
    stored = [place.read_bytes() for place in clinics.state(NORTH).rglob("*") if place.is_file()]
    assert not any(b"987654" in data for data in stored)


def test_a_log_is_of_hashes_and_its_folder_is_the_site_s_own(clinics: Any) -> None:
    station, request = clinics.open(NORTH), clinics.request()
    data, _ = station(request)
    assert clinics.state(NORTH).stat().st_mode & 0o777 == 0o700
    line = json.loads(journal_of(clinics).path.read_text().splitlines()[-1])
    assert line["request"] == hashlib.sha256(request).hexdigest()
    assert line["answer"] == hashlib.sha256(data).hexdigest()
    assert set(line) == {"time", "kind", "study", "round", "request", "answer", "words", "previous"}


# --- What a review found -------------------------------------------------------------------------------------------


def test_noise_is_the_operating_system_s_where_no_seed_is_given(clinics: Any) -> None:
    clinics.set(NORTH, insecure_seed=None)
    first = clinics.open(NORTH)
    assert is_secure(first.key)
    clinics.ask(NORTH, phase="scaling")
    assert [entry.note for entry in clinics.ledger(NORTH).entries()] == [""]
    assert note_of(first)["seeded"] is False
    words = np.asarray(jax.random.key_data(first.key))
    again = clinics.open(NORTH)
    assert not np.array_equal(words, np.asarray(jax.random.key_data(again.key)))  # of its own for each process


@pytest.mark.parametrize("release", ["scaling", "curvature", "gradients", "evaluation"])
def test_every_release_has_the_noise_that_the_site_asks_for(clinics: Any, release: str) -> None:
    """Of a site that is not the first, and whose own budget is another."""
    clinics.set("south", epsilon=1.0)
    plain = clinics.agreement()
    plain["plan"]["evaluation"] = 0.1
    plain["sites"][1][1] = 1.0
    table = clinics.study.outline()[0][0].table
    setup = Agreement.from_json(json.dumps(plain).encode()).setup(table)
    own, first = (float(np.min(setup.mechanisms[place][release].noise_multiplier)) for place in (1, 0))
    assert own > 1.5 * first
    clinics.set("south", epsilon=1.0, least_noise=own * 1.01)
    assert "times its clip" in clinics.open("south", plain).refusal
    least = min(float(np.min(made.noise_multiplier)) for made in setup.mechanisms[1].values())
    clinics.set("south", epsilon=1.0, least_noise=least * 0.99)
    assert clinics.open("south", plain).refusal == ""
    sent = {"content": setup.algorithm("scaling", 0).broadcast(setup.algorithm("scaling", 0).coordinator_init(3))[1]}
    clinics.stations["south"](encode(Broadcast(f"{name_of(setup)}/scaling", 0, sent)))
    (entry,) = clinics.ledger("south").entries()
    event: Any = entry.event
    assert event.noise_multiplier == pytest.approx(float(np.min(setup.mechanisms[1]["scaling"].noise_multiplier)))


def test_scores_are_released_once(clinics: Any) -> None:
    clinics.study = clinics.read(evaluation=0.1)
    clinics.set(NORTH)
    station = clinics.open(NORTH)
    q = clinics.setup().evaluation().posterior
    assert isinstance(clinics.ask(NORTH, 0, "evaluation", content=q), Update)
    refused = clinics.ask(NORTH, 1, "evaluation", content=q)
    assert isinstance(refused, Refusal)
    assert "1 updates" in refused.reason
    assert clinics.charged(NORTH) == 1
    assert station.refusal == ""


@pytest.mark.parametrize("damage", ["lost", "another"])
def test_a_study_goes_on_only_with_the_secret_by_which_it_held_out_records(clinics: Any, damage: str) -> None:
    """Under another one it would be judged by records that it learned from."""
    clinics.study = clinics.read(evaluation=0.1)
    clinics.set(NORTH, insecure_seed=None)
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH, 0), Update)
    key = clinics.state(NORTH) / "held-out.key"
    secret = key.read_bytes()
    key.unlink()
    if damage == "another":
        key.write_bytes(secret[::-1])
    assert clinics.open(NORTH).refusal == "the site is not ready for this study; ask those who run it"
    words = "is gone, by which" if damage == "lost" else "is not the key that"
    assert words in (clinics.state(NORTH) / "audit.jsonl").read_text()
    assert isinstance(clinics.ask(NORTH, 1), Refusal)
    key.write_bytes(secret)
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH, 1), Update)


def test_records_are_held_out_by_a_secret_of_the_site_that_stays(clinics: Any) -> None:
    """Made where a study asks for scores and the noise is not seeded; a station that begins again splits alike."""
    clinics.study = clinics.read(evaluation=0.1)
    clinics.set("north", insecure_seed=None)
    key = clinics.state("north") / "held-out.key"
    found = []
    for _ in range(2):
        setup = clinics.open("north").setup
        found.append(np.asarray(setup.access("evaluation", 0, setup.public_scaling()).present))
    np.testing.assert_array_equal(*found)
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o777 == 0o600
    clinics.stations["north"].close()
    key.unlink()
    setup = clinics.open("north").setup
    assert np.any(np.asarray(setup.access("evaluation", 0, setup.public_scaling()).present) != found[0])
    clinics.open("south")
    assert not (clinics.state("south") / "held-out.key").exists(), "a seed is a secret's place"


def test_a_refusal_for_want_of_budget_tells_what_is_spent_only_where_that_is_shared(clinics: Any) -> None:
    for spent in (True, False):
        clinics.set(NORTH, spent=spent)
        station = clinics.open(NORTH)
        station.allowance = replace(station.allowance, epsilon=1e-6)
        part = clinics.ask(NORTH, phase="scaling")
        assert isinstance(part, Refusal)
        assert (part.reason == NO_BUDGET) is not spent


def test_a_ledger_of_another_adjacency_is_not_used(clinics: Any) -> None:
    clinics.open(NORTH)
    clinics.ask(NORTH, phase="scaling")
    clinics.study = clinics.read(adjacency="replace-one")
    clinics.set(NORTH)
    assert "not ready" in clinics.open(NORTH).refusal
    assert clinics.charged(NORTH) == 1


def settled(clinics: Any) -> Any:
    """The first q as a coordinator sends it."""
    algorithm = clinics.setup().algorithm("inference", 0)
    return jax.tree.map(np.asarray, settle(algorithm, algorithm.coordinator_init(3))[1])


def test_a_study_spends_no_more_than_its_own_part_of_a_budget(clinics: Any) -> None:
    """Whatever else the site has, and however many updates the coordinator asks for: by vi, that end by the ledger."""
    clinics.study = clinics.read(method="vi", epsilon=0.3, rounds=30)
    clinics.set(NORTH, epsilon=5.0)
    clinics.open(NORTH)
    answers = [clinics.ask(NORTH, round, content=settled(clinics)) for round in range(30)]
    made = sum(isinstance(answer, Update) for answer in answers)
    assert 0 < made < 30
    last = answers[-1]
    assert isinstance(last, Refusal)
    assert "of this study is spent" in last.reason
    spent = clinics.stations[NORTH].allowance.spent()
    assert 0 < spent <= 0.3 * (1 + 1e-9)
    assert spent == note_of(clinics.stations[NORTH])["spent"]
    entries = clinics.ledger(NORTH).entries()
    whole = compose(*(entry.event for entry in entries))
    assert accounting.epsilon(whole, 1e-4) == pytest.approx(spent)


def test_vi_makes_no_more_updates_than_the_plan_has_rounds(clinics: Any) -> None:
    clinics.study = clinics.read(method="vi", epsilon=5.0, rounds=2)
    clinics.set(NORTH)
    clinics.open(NORTH)
    answers = [clinics.ask(NORTH, round, content=settled(clinics)) for round in range(3)]
    assert [isinstance(answer, Update) for answer in answers] == [True, True, False]


def test_whether_records_fit_does_not_depend_on_the_columns_that_a_study_asks_for(clinics: Any) -> None:
    """A missing value is a fact about one record: every study is refused alike, and `tacit join` would not begin."""
    place = clinics.folder / NORTH / "north.csv"
    lines = place.read_text().splitlines()
    age, _, ill = lines[1].split(",")
    place.write_text("\n".join([lines[0], f"{age},,{ill}", *lines[2:]]) + "\n")
    reasons = set()
    for columns in (["age"], ["sex"], ["age", "sex"]):
        clinics.study = clinics.read(columns=columns)
        reasons.add(clinics.open(NORTH, Agreement.of(clinics.study).to_json()).refusal)
    assert len(reasons) == 1
    assert reasons != {""}
    with pytest.raises(ValueError, match="sex"):
        read_site(clinics.path(NORTH)).check()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_ledger_that_is_older_than_what_was_answered_is_not_used(clinics: Any, is_gone: bool) -> None:
    clinics.open(NORTH)
    clinics.ask(NORTH, phase="scaling")
    path = clinics.state(NORTH) / "ledger.sqlite"
    older = path.read_bytes()
    clinics.ask(NORTH, 0)
    if is_gone:
        path.unlink()
    else:
        path.write_bytes(older)
    assert "not ready" in clinics.open(NORTH).refusal
    words = json.loads((clinics.state(NORTH) / "audit.jsonl").read_text().splitlines()[-1])["words"]
    assert "go back to a" in words


def test_a_study_that_was_only_proposed_leaves_nothing_but_a_line_in_the_log(clinics: Any) -> None:
    clinics.open(NORTH)
    assert {path.name for path in clinics.state(NORTH).iterdir()} == {"audit.jsonl", "ledger.sqlite", "lock"}


# --- What little a study costs, it cannot fill a site with ---------------------------------------------------------


def test_a_message_that_is_not_sound_leaves_nothing_at_a_site(clinics: Any) -> None:
    """Neither a folder nor scales: those of the first message that is answered are the study's."""
    clinics.open("north")
    folders = set(clinics.state("north").iterdir())
    scales = asdict_of(clinics.setup().public_scaling())
    other = {name: np.asarray(value) + np.float32(1) for name, value in scales.items()}
    found = clinics.ask("north", phase="inference", scaling=other, content=np.zeros(3, np.float32))
    assert isinstance(found, Refusal)
    assert set(clinics.state("north").iterdir()) <= {*folders, clinics.state("north") / "audit.jsonl"}
    assert isinstance(clinics.ask("north", phase="inference"), Update), "other scales than those of what was refused"
    assert clinics.charged("north") == 1


def test_a_site_takes_part_in_so_many_studies_and_no_more(clinics: Any) -> None:
    clinics.set("north", studies=None)
    path = clinics.path("north")
    path.write_text(path.read_text().replace("most_rounds", "most_studies = 2\nmost_rounds"))
    for number, is_open in enumerate([True, True, False]):
        clinics.study = clinics.read(name=f"study-{number}", epsilon=0.1)
        station = clinics.open("north")
        assert (station.refusal == "") == is_open, station.refusal
        if is_open:
            assert isinstance(clinics.ask("north", phase="scaling"), Update)
    assert "as many studies as it allows" in clinics.stations["north"].refusal
    clinics.study = clinics.read(name="study-1", epsilon=0.1)
    assert clinics.open("north").refusal == "", "one that was begun goes on"


def test_a_study_of_a_thousand_budgets_is_not_calibrated(clinics: Any) -> None:
    sent = clinics.agreement()
    more = [[f"site-{j}", 1 + j / 1000, 1e-4, 40] for j in range(200)]
    sent["sites"] += more
    assert "more than 100 different budgets" in clinics.open("north", sent).refusal


def test_a_study_s_name_has_the_whole_hash_of_what_sites_agree_on(clinics: Any) -> None:
    """Sites sign it where sums are secure: of a short one a coordinator could find two plans with one name."""
    name = name_of(clinics.setup())
    assert re.fullmatch("clinics-[0-9a-f]{64}", name)
    assert shortened(f"{name}/inference") == f"{name[:20]}/inference"
    names = {name}
    for change in ({"schedule_seed": 1}, {"rounds": 2}, {"epsilon": 1.0}, {"delta": 1e-5}, {"prior_deviation": 2.0}):
        clinics.study, clinics._setup = clinics.read(**change), None
        names.add(name_of(clinics.setup()))
    assert len(names) == 6
