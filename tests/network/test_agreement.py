"""The agreement: one text for one study, and a refusal in one sentence for anything else."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.network.agreement import MOST_ROUNDS, Agreement, TableForm
from tacit.study.folder import name_of
from tacit.study.plan import Plan

SENTENCE = r"^the study that was sent cannot be read \(.+\); use the same version of tacit$"


def test_an_agreement_is_the_same_at_both_ends(clinics: Any) -> None:
    sent = Agreement.of(clinics.study)
    found = Agreement.from_json(sent.to_json())
    assert found == sent
    assert found.to_json() == sent.to_json()
    table = clinics.study.outline()[0][0].table
    assert found.table == TableForm.of(table)
    assert name_of(found.setup(table)) == name_of(sent.setup(table))


def test_it_holds_no_path_no_code_and_no_record(clinics: Any) -> None:
    """Its texts are names of public settings, sites, columns and classes."""
    text = Agreement.of(clinics.study).to_json().decode()
    assert str(clinics.folder) not in text
    assert ".csv" not in text
    _, *lines = (clinics.folder / "north.csv").read_text().split()
    assert not any(line in text for line in lines)


def test_other_plans_columns_budgets_and_slots_are_other_studies(clinics: Any) -> None:
    def renamed(change: Any) -> str:
        plain = clinics.agreement()
        change(plain)
        agreement = Agreement.from_json(json.dumps(plain).encode())
        return name_of(agreement.setup(clinics.study.outline()[0][0].table))

    names = {
        renamed(lambda plain: None),
        renamed(lambda plain: plain["plan"].update(rounds=2)),
        renamed(lambda plain: plain["plan"].update(prior_deviation=2.0)),
        renamed(lambda plain: plain["sites"][2].update(epsilon=1.0)),
        renamed(lambda plain: plain["sites"][2].update(slots=41)),
        renamed(lambda plain: plain["sites"].pop()),
    }
    assert len(names) == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"unit": "site"}, "needs a coordinator that is trusted with sums"),
        ({"epsilon": math.inf}, "which no site's ledger can pay"),
        ({"name": "../evil"}, "its name cannot name a folder, over a network"),
        ({"rounds": MOST_ROUNDS + 1}, f"its rounds are more than {MOST_ROUNDS}, over a network"),
        ({"columns": None}, "there is no columns"),
    ],
)
def test_a_study_that_is_none_for_a_network_is_refused_before_anything_is_sent(
    clinics: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        Agreement.of(clinics.read(**settings))
    assert f"study={clinics.folder / 'study.toml'}" in str(refusal.value)


# --- What came from elsewhere -------------------------------------------------------------------------------------


def put(plain: dict[str, Any], value: Any, *places: Any) -> bytes:
    """The text of an agreement with something else at one place."""
    inner = plain
    for place in places[:-1]:
        inner = inner[place]
    inner[places[-1]] = value
    return json.dumps(plain).encode()


FORGED: list[tuple[Any, tuple[Any, ...]]] = [
    (1, ("format",)),
    ("import os", ("code",)),
    ("import os", ("plan", "code")),
    (None, ("plan",)),
    ([], ("plan",)),
    ("3", ("plan", "rounds")),
    (3.0, ("plan", "rounds")),
    (True, ("plan", "rounds")),
    (0, ("plan", "rounds")),
    (MOST_ROUNDS + 1, ("plan", "rounds")),
    (10**30, ("plan", "rounds")),
    (math.nan, ("plan", "evaluation")),
    (math.inf, ("plan", "prior_deviation")),
    (0.0, ("plan", "prior_deviation")),
    (-1.0, ("plan", "prior_deviation")),
    (0.0, ("plan", "noise_scale")),
    (-3, ("plan", "vi", "steps")),
    (10**400, ("plan", "vi", "clip")),
    ("cox", ("plan", "model")),
    ("..outside:model", ("plan", "model")),
    ("os/path:join", ("plan", "model")),
    ("my_models:sepsis", ("plan", "model")),
    ("sha256:" + "0" * 64, ("source",)),
    ("em", ("plan", "method")),
    ("nobody", ("plan", "unit")),
    (1, ("plan", "vi", "is_adaptive")),
    ("", ("plan", "name")),
    ("..", ("plan", "name")),
    ("../../evil", ("plan", "name")),
    ("/tmp/evil", ("plan", "name")),
    ("a\0b", ("plan", "name")),
    ("a\nb", ("plan", "name")),
    ("\ud800", ("plan", "name")),
    ("a" * 101, ("plan", "name")),
    (None, ("sites",)),
    (3, ("sites",)),
    ("ab", ("sites",)),
    (["north"], ("sites", 0)),
    (["north", 2.0, 1e-4, 40], ("sites", 0)),
    (1, ("sites", 0, "more")),
    (7, ("sites", 0, "name")),
    ("", ("sites", 0, "name")),
    ("a\x1b[2J", ("sites", 0, "name")),
    ("a" * 201, ("sites", 0, "name")),
    ("2", ("sites", 0, "epsilon")),
    (True, ("sites", 0, "epsilon")),
    (0, ("sites", 0, "epsilon")),
    (-1.0, ("sites", 0, "epsilon")),
    (math.nan, ("sites", 0, "epsilon")),
    (math.inf, ("sites", 0, "epsilon")),
    (10**400, ("sites", 0, "epsilon")),
    (0.0, ("sites", 0, "delta")),
    (1.0, ("sites", 0, "delta")),
    (math.nan, ("sites", 0, "delta")),
    (40.0, ("sites", 0, "slots")),
    (True, ("sites", 0, "slots")),
    (0, ("sites", 0, "slots")),
    (10**400, ("sites", 0, "slots")),
    ([1], ("columns",)),
    (["a\nb"], ("columns",)),
    (3, ("columns",)),
    ({}, ("target",)),
    (None, ("table",)),
    ({}, ("table",)),
    ([], ("table",)),
]


@pytest.mark.parametrize(("value", "places"), FORGED, ids=[f"{places}-{str(v)[:12]!a}" for v, places in FORGED])
def test_what_is_no_agreement_is_refused_in_one_sentence(clinics: Any, value: Any, places: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=SENTENCE):
        Agreement.from_json(put(clinics.agreement(), value, *places))


NONE = [b"", b"\xff\xfe\0", b"null", b"[]", b"3", b'"text"', b"{}", b"[" * 10**5, b'{"a":' * 10**5, b"9" * 5000, b"\0"]


@pytest.mark.parametrize("data", NONE, ids=[str(data[:8]) for data in NONE])
def test_bytes_that_are_no_agreement_are_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match=SENTENCE):
        Agreement.from_json(data)


PLAIN = {
    "format": 3,
    "source": None,
    "columns": ["age"],
    "target": "ill",
    "table": {"names": [], "numbers": [], "low": [], "high": [], "classes": None},
    "sites": [{"name": "north", "epsilon": 2.0, "delta": 1e-4, "slots": 40}],
    "plan": Plan("logistic").model_dump(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.data())
def test_a_value_anywhere_makes_an_agreement_or_a_sentence(data: st.DataObject) -> None:
    """Nothing else is raised, and what is read is written as it was sent."""
    plain = copy.deepcopy(PLAIN)
    where = data.draw(st.sampled_from([*plain]))
    inner = plain[where]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        inner[data.draw(st.sampled_from([*inner]))] = data.draw(JSON)
    elif isinstance(inner, list) and data.draw(st.booleans()):
        inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(JSON)
    else:
        plain[where] = data.draw(JSON)
    try:
        found = Agreement.from_json(json.dumps(plain).encode())
    except ValueError:
        return
    assert Agreement.from_json(found.to_json()).to_json() == found.to_json()
