"""Limits are the site's: whatever a coordinator asks for beyond them is refused before a charge and a read."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.network.conftest import NORTH, check_refused, log_of

from tacit.federated.messages import Broadcast, Update, encode
from tacit.files.site_file import read_site
from tacit.network.agreement import Agreement
from tacit.study.folder import name_of

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once


def of_site(**values: Any) -> Callable[[Any], Any]:
    """A change of the first site's name, ε, δ or slots in what is sent."""
    return lambda plain: plain["sites"][0].update(values)


def of_plan(vi: dict[str, Any] | None = None, **values: Any) -> Callable[[Any], Any]:
    def change(plain: Any) -> None:
        plain["plan"].update(values)
        plain["plan"]["vi"].update(vi or {})

    return change


def of_table(**values: Any) -> Callable[[Any], Any]:
    return lambda plain: plain["table"].update(values)


def twice(plain: Any) -> None:
    plain["sites"].append(plain["sites"][0])


FACTS = "columns, bounds, categories or classes are not this site's"
OBJECTIONS: dict[str, tuple[dict[str, Any], Callable[[Any], Any], str]] = {
    "more ε": ({}, of_site(epsilon=2.01), "epsilon=2.01 is asked for; expected at most 2 here"),
    "far more ε": ({}, of_site(epsilon=1e300), "epsilon=1e+300 is asked for; expected at most 2 here"),
    "less δ": ({}, of_site(delta=1e-5), "delta=1e-05 is asked for; expected 0.0001"),
    "more δ": ({}, of_site(delta=1e-3), "delta=0.001 is asked for; expected 0.0001"),
    "less noise": (
        {"least_noise": 99.0},
        of_plan(),
        "times its clip; expected at least 99 here: lower epsilon or raise rounds",
    ),
    "less noise in steps": (
        {"methods": ["vi"]},
        of_plan(method="vi", vi={"noise_multiplier": 0.4}),
        "the noise of gradients would be 0.4 times its clip; expected at least 0.5 here",
    ),
    "model": ({}, of_plan(model="probit"), "model='probit' is not allowed here; expected one of logistic"),
    "method": ({}, of_plan(method="ep"), "method='ep' is not allowed here; expected one of natural"),
    "unit": ({}, of_plan(unit="site", noise="per-site"), "unit='site' is not allowed here; expected one of record"),
    "adjacency": ({}, of_plan(adjacency="replace-one"), "adjacency='replace-one' is not allowed here"),
    "study": ({}, of_plan(name="another"), "study 'another' is not among those that this site takes part in"),
    "rounds": ({}, of_plan(rounds=4), "rounds=4; expected at most 3 here"),
    "evaluation": ({"evaluation": False}, of_plan(evaluation=0.1), "scores on held-out records are not shared here"),
    "slots": ({}, of_site(slots=41), "slots=41 in the study; expected 40, this site's public number"),
    "trusted coordinator": (
        {"unit": "site"},
        of_plan(unit="site", noise="tied"),
        "this study trusts the coordinator with sums",
    ),
    "bounds": ({}, of_table(low=[-1000.0, None]), FACTS),
    "categories": ({}, of_table(names=["age", "sex=F"]), FACTS),
    "classes": ({}, of_table(classes=["yes", "no"]), FACTS),
    "no bounds": ({}, of_table(low=[None, None]), FACTS),
    "bounds of another type": ({}, of_table(low="NaN"), "table: low='NaN'; expected"),
    "fewer columns": ({}, lambda plain: plain.update(columns=["age"]), FACTS),
    "a column twice": ({}, lambda plain: plain.update(columns=["age", "age"]), "columns are empty, or name one twice"),
    "column": ({}, lambda plain: plain.update(columns=["age", "hiv"]), "columns name 'hiv', which the site does not"),
    "target": ({}, lambda plain: plain.update(target="sex"), "target='sex' is not the site's"),
    "not named": ({}, of_site(name="east"), "the study does not name north"),
    "named twice": ({}, twice, "the study does not name north"),
    "another field": ({}, lambda plain: plain.update(code="print()"), "it has other fields than this version"),
    "another type": ({}, of_plan(rounds="3"), "plan: rounds='3'; expected a whole number"),
    "NaN": ({}, of_site(epsilon=float("nan")), "the study that was sent cannot be read"),
    "infinity": ({}, of_site(epsilon=float("inf")), "the study that was sent cannot be read"),
    "beyond all floats": ({}, of_site(epsilon=10**400), "sites 1: epsilon=1000"),
    "more rounds than a list": ({"most_rounds": None}, of_plan(rounds=10**9), "its rounds are more than"),
    "more steps than end": ({}, of_plan(method="vi", vi={"steps": 10**6}), "its steps are more than"),
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
    session = clinics.open(NORTH)
    check_refused(clinics, session, "the records do not fit the site's own file; its log says why")
    assert "No such file" in log_of(clinics).path.read_text()
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


def test_a_large_delta_is_allowed_by_the_site_or_not_at_all(clinics: Any) -> None:
    clinics.study = clinics.read(delta=0.05, allow_large_delta=True)
    clinics.set(NORTH)
    assert "allow_large_delta" in clinics.path(NORTH).read_text(), "as its example has it"
    assert clinics.open(NORTH).refusal == ""
    text = clinics.path(NORTH).read_text()
    clinics.path(NORTH).write_text("\n".join(line for line in text.splitlines() if "allow_large" not in line))
    assert clinics.open(NORTH).refusal == "allow_large_delta is not allowed here; leave it out"


@pytest.mark.parametrize("release", ["scaling", "curvature", "gradients", "evaluation"])
def test_every_release_has_the_noise_that_the_site_asks_for(clinics: Any, release: str) -> None:
    """Of a site that is not the first, and whose own budget is another."""
    clinics.set("south", epsilon=1.0)
    plain = clinics.agreement()
    plain["plan"]["evaluation"] = 0.1
    plain["sites"][1]["epsilon"] = 1.0
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
    clinics.sessions["south"](encode(Broadcast(f"{name_of(setup)}/scaling", 0, sent)))
    (entry,) = clinics.ledger("south").entries()
    event: Any = entry.event
    assert event.noise_multiplier == pytest.approx(float(np.min(setup.mechanisms[1]["scaling"].noise_multiplier)))


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


# --- What little a study costs, it cannot fill a site with ----------------------------------------------------------


def test_a_site_takes_part_in_so_many_studies_and_no_more(clinics: Any) -> None:
    clinics.set("north", studies=None)
    path = clinics.path("north")
    path.write_text(path.read_text().replace("most_rounds", "most_studies = 2\nmost_rounds"))
    for number, is_open in enumerate([True, True, False]):
        clinics.study = clinics.read(name=f"study-{number}", epsilon=0.1)
        session = clinics.open("north")
        assert (session.refusal == "") == is_open, session.refusal
        if is_open:
            assert isinstance(clinics.ask("north", phase="scaling"), Update)
    assert "as many studies as it allows" in clinics.sessions["north"].refusal
    clinics.study = clinics.read(name="study-1", epsilon=0.1)
    assert clinics.open("north").refusal == "", "one that was begun goes on"


def test_a_study_of_a_thousand_budgets_is_not_calibrated(clinics: Any) -> None:
    sent = clinics.agreement()
    more = [{"name": f"site-{j}", "epsilon": 1 + j / 1000, "delta": 1e-4, "slots": 40} for j in range(200)]
    sent["sites"] += more
    assert "more than 100 different budgets" in clinics.open("north", sent).refusal
