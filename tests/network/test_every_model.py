"""Every kind of model, and persons, between machines: the bits of one process, by all phases of a study."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

from tests.network.conftest import RECORDS, SEED, records
from tests.network.test_remote import of_study, plain
from tests.network.test_secure_sums import introduce

from tacit.federated.messages import Refusal, Update
from tacit.network.agreement import Agreement
from tacit.network.scales import asdict_of
from tacit.study.front import federate
from tacit.study.statements import TWICE

pytestmark = pytest.mark.xdist_group("clinics")

BOUNDS = "\n[facts.bounds]\nage = [0, 110]\ndose = [-10, 10]\nvisits = [0, 20]\n"
PAID = BOUNDS.replace("[0, 110]", '"paid"').replace("[-10, 10]", '"paid"')
SEX = '\n[facts.categories]\nsex = ["F", "M"]\n'
COLUMNS = {"columns": ["age", "sex"], "rounds": 6}
LINEAR: dict[str, Any] = {"model": "linear", "target": "dose", **COLUMNS}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear, ranges and residual learned": (PAID + SEX, LINEAR),
    "linear, residual learned": (BOUNDS + SEX, LINEAR),
    "linear, site effects": (BOUNDS + SEX, LINEAR | {"site_effects": ["intercept", "age"]}),
    "linear by expectation propagation": (BOUNDS + SEX, LINEAR | {"method": "sep"}),
    "poisson": (BOUNDS + SEX, {"model": "poisson", "target": "visits", **COLUMNS}),
    "probit": ('\n[facts]\nclasses = ["no", "yes"]\n' + BOUNDS + SEX, {"model": "probit", **COLUMNS}),
    "softmax": (
        '\n[facts]\nclasses = ["a", "b", "c"]\n' + BOUNDS + SEX,
        {"model": "softmax", "target": "ward", "columns": ["age", "sex"], "rounds": 2, "vi": {"steps": 10}},
    ),
    "persons, and scores": (
        '\n[facts]\nclasses = ["no", "yes"]\n' + BOUNDS + SEX,
        {"unit": "person", "most_records": 2, "person": "patient", "evaluation": 0.2, **COLUMNS},
    ),
}
FIRST = "linear, ranges and residual learned"


def more(name: str) -> pd.DataFrame:
    """The records of a clinic with a number, a count, a ward, and who they are of."""
    frame = records(name)
    rng = np.random.default_rng(len(name))
    frame["dose"] = (0.05 * (frame["age"] - 50) + rng.normal(size=len(frame))).round(3)
    frame["visits"] = rng.poisson(2.0, len(frame))
    frame["ward"] = rng.choice(["a", "b", "c"], len(frame))
    return frame.assign(patient=[f"{name}-{j % 25:02d}" for j in range(len(frame))])


def prepare(clinics: Any, case: str) -> None:
    clinics.facts, settings = CASES[case]
    for name in RECORDS:
        for place in (clinics.folder, clinics.folder / name):
            more(name).to_csv(place / f"{name}.csv", index=False)
    clinics.study = clinics.read(**settings)
    for name in RECORDS:
        clinics.set(name)


@pytest.mark.parametrize(
    "case", [FIRST, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != FIRST)]
)
def test_it_is_the_study_of_one_process_bit_for_bit(clinics: Any, case: str) -> None:
    prepare(clinics, case)
    found = clinics.coordinate()
    sites, _ = clinics.study.gather()
    alone = federate(clinics.study.plan, sites, out=clinics.folder / "alone", insecure_seed=SEED)
    assert plain(found) == plain(alone)
    assert of_study(found.sites) == of_study(alone.sites)
    assert found.released == alone.released
    assert (found.posterior.site_effects is not None) == ("site effects" in case)
    assert [row["updates"] for row in found.sites] == [clinics.setup().program.rounds] * 3
    for name in RECORDS:
        ledger = clinics.ledger(name)
        assert ledger.verify()
        assert 0 < ledger.spent() <= ledger.epsilon


@pytest.mark.slow
def test_so_it_is_by_secure_sums_with_a_residual(clinics: Any) -> None:
    prepare(clinics, "linear, ranges and residual learned")
    introduce(clinics, **LINEAR)
    found = clinics.coordinate()
    sites, _ = clinics.study.gather()
    alone = federate(clinics.study.plan, sites, insecure_seed=SEED)
    assert plain(found) == plain(alone)
    assert [row["updates"] for row in found.sites] == [6] * 3


# --- The residual ---------------------------------------------------------------------------------------------------


def test_a_residual_is_sent_once_it_is_known_and_stays(clinics: Any) -> None:
    """Scales may differ from those of before by the residual alone, and only where the plan has it."""
    prepare(clinics, "linear, residual learned")
    clinics.open("north")
    known = {name: np.asarray(value) for name, value in asdict_of(clinics.setup().public_scaling()).items()}
    residual = np.asarray(0.5, np.float32)
    early = clinics.ask("north", scaling=known | {"residual": residual})
    assert isinstance(early, Refusal)
    assert "not of this study's form" in early.reason
    assert isinstance(clinics.ask("north", scaling=known), Update)
    odd = [{}, {"residual": -residual}, {"residual": residual * 0}, {"residual": residual[None]}]
    odd += [{"residual": residual * np.float32("nan")}, {"residual": np.asarray(0.5)}]
    for wrong in odd:
        answer = clinics.ask("north", 0, "refinement", scaling=known | wrong)
        assert isinstance(answer, Refusal), wrong
        assert "not of this study's form" in answer.reason
    moved = known | {"residual": residual, "location": known["location"] + np.float32(1)}
    answer = clinics.ask("north", 0, "refinement", scaling=moved)
    assert isinstance(answer, Refusal)
    assert "differ from those that this study began with" in answer.reason
    assert clinics.charged("north") == 1
    assert isinstance(clinics.ask("north", 0, "refinement", scaling=known | {"residual": residual}), Update)
    clinics.open("north")
    answer = clinics.ask("north", 1, "refinement", scaling=known | {"residual": residual * 2})
    assert isinstance(answer, Refusal)
    assert "differ from those that this study began with" in answer.reason
    assert isinstance(clinics.ask("north", 1, "refinement", scaling=known | {"residual": residual}), Update)
    assert clinics.charged("north") == 3


def test_a_mean_that_is_sent_is_checked_and_enters_no_price(clinics: Any) -> None:
    prepare(clinics, "linear, residual learned")
    prices = []
    for name, mean in (("north", 0.0), ("south", 1e30)):
        clinics.open(name)
        for wrong in (np.zeros(2, np.float32), np.full(3, np.nan, np.float32), np.zeros(3)):
            assert isinstance(clinics.ask(name, 0, "residual", content={"mean": wrong}), Refusal)
        assert clinics.charged(name) == 0
        sent = {"mean": np.full(3, mean, np.float32)}
        assert isinstance(clinics.ask(name, 0, "residual", content=sent), Update)
        assert isinstance(clinics.ask(name, 1, "residual", content=sent), Refusal), "once"
        prices.append([entry.event for entry in clinics.ledger(name).entries()])
    assert prices[0] == prices[1]


# --- Persons --------------------------------------------------------------------------------------------------------


def test_no_study_is_told_the_name_of_the_column_of_persons(clinics: Any) -> None:
    prepare(clinics, "persons, and scores")
    assert "patient" not in Agreement.of(clinics.study).to_json().decode()
    session = clinics.open("north")
    assert session.refusal == ""
    assert "patient" not in str(session(b"hello"))
    own = clinics.path("north").read_text()
    clinics.path("north").write_text(own.replace('person = "patient"', 'person = "nhs"'))
    frame = more("north").rename(columns={"patient": "nhs"})
    frame.to_csv(clinics.folder / "north" / "north.csv", index=False)
    assert clinics.open("north").refusal == "", "each site has its own name for it"


def test_a_site_of_more_persons_than_slots_tells_no_number(clinics: Any) -> None:
    prepare(clinics, "persons, and scores")
    frame = more("north")
    crowd = pd.concat([frame, frame]).assign(patient=[f"p{j}" for j in range(2 * len(frame))])
    crowd.to_csv(clinics.folder / "north" / "north.csv", index=False)
    session = clinics.open("north")
    assert session.refusal == "the records do not fit the site's own file; its log says why"
    log = (clinics.state("north") / "audit.jsonl").read_text()
    assert "slots=40 and more persons; expected a slot for each" in log
    assert "80" not in log.rpartition('"words"')[2]


@pytest.mark.slow
def test_a_statement_says_that_a_person_at_two_sites_is_outside_the_promise(clinics: Any) -> None:
    prepare(clinics, "persons, and scores")
    found = clinics.coordinate()
    for words in found.statements.values():
        assert TWICE in " ".join(words.split())
        assert "At most 2 records of one person are used" in " ".join(words.split())
