"""A site's session: a message is answered once, or refused at no cost, whatever a coordinator sends or a crash took."""

import json
import os
import re
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.network.conftest import NORTH, full, log_of, note_of

from tacit.basics import durable
from tacit.families import FullGaussian
from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.federated.responder import NO_LEDGER, NO_ROOM
from tacit.files.site_file import read_site
from tacit.network import site_session
from tacit.network.scales import asdict_of
from tacit.network.site_session import UNWRITABLE
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import is_secure
from tacit.study.folder import name_of, shortened

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once


# --- Messages -------------------------------------------------------------------------------------------------------


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
        "an update": (encode(Update(phase, NORTH, 0, {"content": np.zeros(3)})), "it is not a broadcast"),
        "a refusal": (encode(Refusal(phase, NORTH, 0, "no")), "it is not a broadcast"),
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
    session = clinics.open(NORTH)
    for case, (request, words) in messages(clinics).items():
        answer = decode(session(request)[0])
        assert isinstance(answer, Refusal), case
        assert words in answer.reason, case
        assert answer.site == NORTH
        assert str(clinics.folder) not in answer.reason
        assert clinics.charged(NORTH) == 0, case
    lines = [json.loads(line) for line in log_of(clinics).path.read_text().splitlines()]
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
    session, request = clinics.open(NORTH), clinics.request()
    first, _ = session(request)
    assert isinstance(decode(first), Update)
    head = clinics.ledger(NORTH).head()
    for _ in range(3):
        assert session(request)[0] == first
    assert session(clinics.request(content=proper(2.0, 1.0)))[0] == first  # whatever the coordinator says it was
    assert clinics.ledger(NORTH).head() == head
    assert clinics.charged(NORTH) == 1


def test_a_coordinator_that_lies_about_rounds_gets_no_second_answer(clinics: Any) -> None:
    session = clinics.open(NORTH)
    answers = {round: session(clinics.request(round))[0] for round in (3, 5)}
    assert all(isinstance(decode(answer), Update) for answer in answers.values())
    assert len(set(answers.values())) == 2
    head = clinics.ledger(NORTH).head()
    for round in (4, 3, 0):
        back = decode(session(clinics.request(round))[0])
        assert isinstance(back, Refusal)
        assert f"round={round} is before round 5, which was answered" in back.reason
    assert session(clinics.request(5))[0] == answers[5]
    assert clinics.ledger(NORTH).head() == head


def test_there_are_no_more_updates_than_the_plan_has(clinics: Any) -> None:
    clinics.set(NORTH, epsilon=20.0)  # the budget alone would pay for more
    session = clinics.open(NORTH)
    for round in (0, 7, 2**62):
        assert isinstance(clinics.ask(NORTH, round), Update)
    last = session(clinics.request(2**62))[0]
    more = clinics.ask(NORTH, 2**62 + 1)
    assert isinstance(more, Refusal)
    assert "the plan has 3 updates, and all were made" in more.reason
    assert isinstance(clinics.ask(NORTH, phase="scaling"), Update)
    more = clinics.ask(NORTH, 1, phase="scaling")
    assert isinstance(more, Refusal)
    assert "the plan has 1 updates, and all were made" in more.reason
    assert session(clinics.request(2**62))[0] == last
    assert clinics.charged(NORTH) == 4


def test_a_hello_is_answered_by_the_note_alone(clinics: Any) -> None:
    session = clinics.open(NORTH)
    note = note_of(session)
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
    note = note_of(session)
    assert (note["rounds"], note["updates"], note["seeded"]) == ({"inference": 4}, {"inference": 1}, True)
    assert note["spent"] == note["ledger_spent"] == clinics.ledger(NORTH).spent() > 0
    clinics.set(NORTH, spent=False)
    note = note_of(clinics.open(NORTH))
    assert not {"ledger_spent", "budget", "first_budget"} & set(note), "what others spent is told if the site shares it"
    assert note["spent"] == clinics.ledger(NORTH).spent(), "which follows from the events, that are always told"
    assert note["rounds"] == {"inference": 4}
    assert clinics.charged(NORTH) == 1


def test_scores_are_released_once(clinics: Any) -> None:
    clinics.study = clinics.read(evaluation=0.1)
    clinics.set(NORTH)
    session = clinics.open(NORTH)
    q = clinics.setup().evaluation().posterior
    assert isinstance(clinics.ask(NORTH, 0, "evaluation", content=q), Update)
    refused = clinics.ask(NORTH, 1, "evaluation", content=q)
    assert isinstance(refused, Refusal)
    assert "1 updates" in refused.reason
    assert clinics.charged(NORTH) == 1
    assert session.refusal == ""


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


# --- What survives --------------------------------------------------------------------------------------------------


def test_a_session_that_begins_again_gives_the_same_answers(clinics: Any) -> None:
    """At any point: a new process before every message, and each message twice."""
    asked = [("scaling", 0), ("inference", 0), ("inference", 1), ("inference", 2)]
    once = []
    for phase, round in asked:
        clinics.open(NORTH)
        first = clinics.sessions[NORTH](clinics.request(round, phase))[0]
        again = clinics.open(NORTH)
        assert again(clinics.request(round, phase))[0] == first
        assert note_of(again)["rounds"][phase] == round
        assert isinstance(decode(first), Update)
        once.append(first)
    assert clinics.charged(NORTH) == len(asked)
    assert log_of(clinics).verify() == 4 * len(asked)
    (clinics.folder / "other").mkdir()
    other = type(clinics)(clinics.folder / "other")  # where nothing ends
    other.open(NORTH)
    assert [other.sessions[NORTH](other.request(round, phase))[0] for phase, round in asked] == once
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
    monkeypatch.setattr(site_session, "LOCK_PATIENCE", 0.0)
    first = clinics.open(NORTH)
    lines = log_of(clinics).verify()
    second = clinics.SiteSession(read_site(clinics.path(NORTH)), json.dumps(clinics.agreement()).encode())
    assert second.refusal == "the site is not ready for this study; ask those who run it"
    assert isinstance(decode(second(clinics.request())[0]), Refusal)
    assert clinics.charged(NORTH) == 0
    assert isinstance(decode(first(clinics.request())[0]), Update)
    assert log_of(clinics).verify() == lines + 1
    first.close()
    second = clinics.open(NORTH)
    assert not second.refusal


@pytest.mark.parametrize("place", ["store", "scales", "ledger"])
def test_a_full_disk_refuses_before_a_charge_and_the_round_can_be_asked_again(
    clinics: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    clinics.open(NORTH)
    with monkeypatch.context() as patch:
        if place == "store":
            patch.setattr(durable, "reserve", full)
        elif place == "scales":
            patch.setattr(durable, "write", full)
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
    session = clinics.open(NORTH)
    with monkeypatch.context() as patch:
        patch.setattr(session.log, "write", full)
        answer = clinics.ask(NORTH)
    assert isinstance(answer, Refusal)
    assert answer.reason == UNWRITABLE
    assert isinstance(clinics.ask(NORTH), Update)
    assert clinics.charged(NORTH) == 1
    line = json.loads(log_of(clinics).path.read_text().splitlines()[-1])
    assert (line["kind"], line["round"]) == ("answered", 0)


def test_a_study_that_was_only_proposed_leaves_nothing_but_a_line_in_the_log(clinics: Any) -> None:
    clinics.open(NORTH)
    assert {path.name for path in clinics.state(NORTH).iterdir()} == {"audit.jsonl", "ledger.sqlite", "lock"}


# --- Secrets and names ----------------------------------------------------------------------------------------------


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
    """Made where a study asks for scores and the noise is not seeded; a session that begins again splits alike."""
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
    clinics.sessions["north"].close()
    key.unlink()
    setup = clinics.open("north").setup
    assert np.any(np.asarray(setup.access("evaluation", 0, setup.public_scaling()).present) != found[0])
    clinics.open("south")
    assert not (clinics.state("south") / "held-out.key").exists(), "a seed is a secret's place"


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
