"""A site's ledger: the budget is the site's, a study spends its own part of it, and an older ledger is refused."""

import json
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.network.conftest import NORTH, check_refused, log_of, note_of

from tacit.engines.coordinator import aggregate
from tacit.federated.messages import Refusal, Update
from tacit.federated.responder import NO_BUDGET
from tacit.files.site_file import read_site
from tacit.network import audit_log
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian, compose

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once


# --- The budget -----------------------------------------------------------------------------------------------------


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
    assert "a ledger's budget is not changed" in log_of(clinics).path.read_text()


def test_two_studies_share_the_budget_of_a_site(clinics: Any) -> None:
    """The second is not begun, since it could not be paid for to its end; what the first has begun goes on."""
    clinics.set(NORTH, epsilon=2.05, studies=None)
    clinics.open(NORTH)
    assert isinstance(clinics.ask(NORTH, phase="scaling"), Update)
    assert isinstance(clinics.ask(NORTH), Update)
    spent = clinics.ledger(NORTH).spent()
    assert spent > 0.5
    first, clinics.study = clinics.study, clinics.read(name="second")
    session = clinics.open(NORTH)
    assert "what is left of this site's budget does not pay for the study" in session.refusal
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
    assert any(isinstance(answer, Refusal) and "exceeded by this update" in answer.reason for answer in answers)
    assert ledger.spent() <= ledger.epsilon
    clinics.set(NORTH, spent=False)
    clinics.open(NORTH)
    last = [answer.round for answer in answers if isinstance(answer, Refusal)][-1]
    answer = clinics.ask(NORTH, last)
    assert isinstance(answer, Refusal)
    assert answer.reason == NO_BUDGET  # what is spent is not told


def test_a_refusal_for_want_of_budget_tells_what_is_spent_only_where_that_is_shared(clinics: Any) -> None:
    for spent in (True, False):
        clinics.set(NORTH, spent=spent)
        session = clinics.open(NORTH)
        session.allowance = replace(session.allowance, epsilon=1e-6)
        part = clinics.ask(NORTH, phase="scaling")
        assert isinstance(part, Refusal)
        assert (part.reason == NO_BUDGET) is not spent


def settled(clinics: Any) -> Any:
    """The first q as a coordinator sends it."""
    algorithm = clinics.setup().algorithm("inference", 0)
    return jax.tree.map(np.asarray, aggregate(algorithm, algorithm.coordinator_init(3))[1])


def test_a_study_spends_no_more_than_its_own_part_of_a_budget(clinics: Any) -> None:
    """Whatever else the site has, and however many updates the coordinator asks for: by vi, that end by the ledger."""
    clinics.study = clinics.read(
        method="vi", epsilon=0.3, rounds=30, vi={"noise_multiplier": 20.0, "steps": 5, "sampling_rate": 0.4}
    )
    clinics.set(NORTH, epsilon=5.0)
    clinics.open(NORTH)
    answers = [clinics.ask(NORTH, round, content=settled(clinics)) for round in range(30)]
    made = sum(isinstance(answer, Update) for answer in answers)
    assert 0 < made < 30
    last = answers[-1]
    assert isinstance(last, Refusal)
    assert "of this study is spent" in last.reason
    spent = clinics.sessions[NORTH].allowance.spent()
    assert 0 < spent <= 0.3 * (1 + 1e-9)
    assert spent == note_of(clinics.sessions[NORTH])["spent"]
    entries = clinics.ledger(NORTH).entries()
    whole = compose(*(entry.event for entry in entries))
    assert accounting.epsilon(whole, 1e-4) == pytest.approx(spent)


def test_vi_makes_no_more_updates_than_the_plan_has_rounds(clinics: Any) -> None:
    clinics.study = clinics.read(method="vi", epsilon=5.0, rounds=2)
    clinics.set(NORTH)
    clinics.open(NORTH)
    answers = [clinics.ask(NORTH, round, content=settled(clinics)) for round in range(3)]
    assert [isinstance(answer, Update) for answer in answers] == [True, True, False]


RULES = {"natural": "gaussian(", "ep": "gaussian(", "vi": "renyi("}


@pytest.mark.parametrize("method", RULES)
def test_a_site_counts_by_a_rule_that_is_proved_and_says_which(clinics: Any, method: str) -> None:
    clinics.study = clinics.read(method=method)
    clinics.set(NORTH)
    session = clinics.open(NORTH)
    assert session.refusal == ""
    assert clinics.ledger(NORTH).accountant.startswith(RULES[method])
    assert note_of(session)["rule"] == clinics.ledger(NORTH).accountant


def test_an_example_of_a_site_file_has_the_budget_that_its_rule_asks_for_a_study_of_samples(clinics: Any) -> None:
    """A rule that also holds for studies chosen later prices samples above the study's own ε."""
    clinics.study = clinics.read(method="vi")
    clinics.set(NORTH)
    session = clinics.open(NORTH)
    budget = read_site(clinics.path(NORTH)).settings.limits.epsilon
    assert session.refusal == ""
    assert 2.0 < budget == clinics.ledger(NORTH).epsilon < 2.6
    clinics.study = clinics.read()
    assert read_site(clinics.path(NORTH)).settings.limits.epsilon == budget
    clinics.set(NORTH)
    assert read_site(clinics.path(NORTH)).settings.limits.epsilon == 2.0, "without samples nothing is added"


def test_a_rule_of_a_ledger_is_not_changed(clinics: Any) -> None:
    clinics.open(NORTH)
    clinics.set(NORTH, methods=["natural"])
    text = clinics.path(NORTH).read_text().replace("[limits]", '[limits]\nrule = "renyi"')
    clinics.path(NORTH).write_text(text)
    assert "not ready" in clinics.open(NORTH).refusal
    assert "a ledger's rule is not changed" in log_of(clinics).path.read_text()


def test_a_ledger_of_another_adjacency_is_not_used(clinics: Any) -> None:
    clinics.open(NORTH)
    clinics.ask(NORTH, phase="scaling")
    clinics.study = clinics.read(adjacency="replace-one")
    clinics.set(NORTH)
    assert "not ready" in clinics.open(NORTH).refusal
    assert clinics.charged(NORTH) == 1


# --- A ledger that has forgotten ------------------------------------------------------------------------------------


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


def test_a_round_that_only_an_older_part_of_the_log_has_is_still_missed_in_a_ledger(
    clinics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinics.open(NORTH)
    path = clinics.state(NORTH) / "ledger.sqlite"
    older = path.read_bytes()
    clinics.ask(NORTH, phase="scaling")
    monkeypatch.setattr(audit_log, "PART", 10)
    clinics.open(NORTH)
    assert b'"answered"' not in log_of(clinics).path.read_bytes()
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
