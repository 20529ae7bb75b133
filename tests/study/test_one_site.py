"""One table is a study of one site: the same plan gives the same bits by `fit`, by `federate` and from a study file."""

import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.cli.app import main
from tacit.models import GaussianMixture
from tacit.posterior.posterior import Posterior
from tacit.privacy.ledger import Ledger
from tacit.study.front import DATA, NAME
from tacit.study.plan import Plan
from tacit.study.settings import SHORTER, Settings
from tacit.study.sites import Site

RECORDS, ROUNDS, SEED = 240, 6, 5
PUBLIC: dict[str, Any] = {"bounds": ([0.0, -1.0], [100.0, 1.0])}
NAMES = ("age", "dose")

rng = np.random.default_rng(0)
X = np.column_stack([rng.normal(50, 10, RECORDS), rng.uniform(-1, 1, RECORDS)])
Z = -2.0 + X @ [0.05, 2.0]
LABELS = (rng.random(RECORDS) < 1 / (1 + np.exp(-Z))) * 1.0
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "logistic": ("logistic", (X, LABELS), PUBLIC | {"rounds": ROUNDS}),
    "ranges paid, scores": ("logistic", (X, LABELS), {"rounds": ROUNDS, "evaluation": 0.2}),
    "linear, residual learned": (
        "linear",
        (X, Z + rng.normal(size=RECORDS)),
        PUBLIC | {"target_bounds": (-6, 8), "rounds": ROUNDS},
    ),
    "poisson": ("poisson", (X, rng.poisson(np.exp(Z / 2)) * 1.0), PUBLIC | {"target_bounds": (0, 40), "steps": ROUNDS}),
    "softmax": ("softmax", (X, rng.integers(0, 3, RECORDS) * 1.0), PUBLIC | {"classes": (0, 1, 2), "steps": 15}),
    "mixture": (GaussianMixture(2, 2), rng.normal(size=(RECORDS, 2)).astype(np.float32), {"steps": 15}),
    "persons": ("logistic", (X, LABELS), PUBLIC | {"rounds": ROUNDS, "most_records": 2}),
}


def assert_same_bits(one: Posterior, other: Posterior) -> None:
    assert one.blocks.keys() == other.blocks.keys()
    for name, block in one.blocks.items():
        assert block.names == other.blocks[name].names
        np.testing.assert_array_equal(block.mean, other.blocks[name].mean)
        np.testing.assert_array_equal(block.covariance, other.blocks[name].covariance)
    assert one.noise_scale == other.noise_scale
    assert one.plan == other.plan
    assert one.statement["event"] == other.statement["event"]
    assert one.statement_text == other.statement_text


@pytest.mark.parametrize("case", CASES)
def test_a_fit_is_a_study_of_one_site_bit_for_bit(case: str) -> None:
    model, data, settings = CASES[case]
    facts = {name: settings[name] for name in ("bounds", "target_bounds", "classes") if name in settings}
    plain = {name: value for name, value in settings.items() if name not in facts}
    budget = {"epsilon": 2.0, "delta": 1e-5}
    if case == "persons":
        groups = np.arange(RECORDS) // 3
        one = tacit.fit(model, data, **budget, **settings, groups=groups, insecure_seed=SEED)
        table = tacit.Table.of(*data, **facts)
        sites = [Site(DATA, table, **budget, groups=groups)]
        many = tacit.federate(model, sites, name=NAME, unit="person", insecure_seed=SEED, **plain)
    else:
        one = tacit.fit(model, data, **budget, **settings, insecure_seed=SEED)
        many = tacit.federate(model, {DATA: data}, **budget, **settings, name=NAME, insecure_seed=SEED)
    assert_same_bits(one, many.posterior)
    assert one.epsilon <= 2
    if case == "ranges paid, scores":
        assert "ranges" in one.plan["releases"]
        assert one.details["released"] == many.released
        assert one.details["released"]["accuracy_sd"] > 0
        assert "Scores on held-out records, one in 5 on average, are private releases (20 % of" in one.statement_text
    assert ("residual" in one.plan["releases"]) == (case == "linear, residual learned")
    # Other noise gives other bits: the comparison can fail.
    with pytest.raises(AssertionError):
        assert_same_bits(one, _again(case, one))


def _again(case: str, one: Posterior) -> Posterior:
    model, data, settings = CASES[case]
    more: dict[str, Any] = {"groups": np.arange(RECORDS) // 3} if case == "persons" else {}
    found = tacit.fit(model, data, 2.0, 1e-5, **settings, **more, insecure_seed=SEED + 1)
    assert found.plan == one.plan
    return found


def test_a_plan_can_be_given_to_both() -> None:
    plan = Plan("logistic", name="ward", rounds=ROUNDS)
    one = tacit.fit(plan, (X, LABELS), 2.0, 1e-5, **PUBLIC, insecure_seed=SEED)
    many = tacit.federate(plan, {DATA: (X, LABELS)}, 2.0, 1e-5, **PUBLIC, insecure_seed=SEED)
    assert_same_bits(one, many.posterior)


STUDY = """
name = "fit"
model = "logistic"
target = "ill"
columns = ["age", "dose"]
epsilon = 2
delta = 1e-5
rounds = 6
evaluation = 0.2
[facts]
classes = ["no", "yes"]
[facts.bounds]
age = [0, 100]
dose = [-1, 1]
[[site]]
name = "data"
file = "visits.csv"
"""


def test_the_commands_for_one_table_and_for_a_study_of_one_site_write_the_same_posterior(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame(X.round(3), columns=list(NAMES)).assign(ill=np.where(LABELS == 1, "yes", "no"))
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "study.toml").write_text(STUDY)

    def done(*words: object) -> dict[str, Any]:
        with pytest.raises(SystemExit) as stop:
            main([*map(str, words), "--insecure-seed", str(SEED), "--json"])
        shown = capsys.readouterr()
        assert stop.value.code == 0, shown.err
        return json.loads(shown.out)

    public = ("--target", "ill", "--classes", "no,yes", "--bounds", "age=0:100", "--bounds", "dose=-1:1")
    asked = ("--epsilon", 2, "--delta", "1e-5", "--steps", ROUNDS, "--evaluation", 0.2, "--no-ledger")
    one = done("fit", tmp_path / "visits.csv", *public, *asked, "--out", tmp_path / "one")
    many = done("simulate", tmp_path / "study.toml", "--out", tmp_path / "many")
    for name in ("summary", "plan", "released", "epsilon", "delta"):
        assert one[name] == many[name], name
    found = [Posterior.load(tmp_path / folder / "posterior.json") for folder in ("one", "many")]
    np.testing.assert_array_equal(found[0].coefficients.covariance, found[1].coefficients.covariance)
    assert found[0].statement["event"] == found[1].statement["event"]
    assert "accuracy" in one["released"]
    assert "On held-out records" in (tmp_path / "one" / "report.html").read_text()


# --- One schema --------------------------------------------------------------------------------------------------


def test_the_settings_of_a_call_are_those_of_a_plan_and_some_shorter_words() -> None:
    """A field that is added to `Plan` is added to `Settings`, so that editors and type checkers know it."""
    assert set(typing.get_type_hints(Settings)) == (set(Plan.model_fields) - {"model"}) | set(SHORTER)


def of_one_site(model: Any, data: Any, *budget: float, **settings: Any) -> Any:
    return tacit.federate(model, [data], *budget, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rouds": 3}, "'rouds' is not known there; expected rounds"),
        ({"steps": 3, "rounds": 3}, "steps=3 with rounds=3; expected one of them"),
        ({"method": "natural", "clip": "adaptive"}, "give method='vi'"),
        ({"method": "natural", "learning_rate": 0.1}, "give method='vi'"),
        ({"secure_sum": True}, "sites"),
        ({"evaluation": 0.9}, "evaluation=0.9; expected a number of at least 0 and below 0.75"),
        ({"most_records": 2}, 'unit = "person"'),
    ],
)
@pytest.mark.parametrize(
    "ask", [tacit.fit, lambda model, data, *rest, **more: tacit.federate(model, [data], *rest, **more)]
)
def test_both_refuse_the_same_settings_in_the_same_words(ask: Callable, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask("logistic", (X, LABELS), 2.0, 1e-5, **PUBLIC, **settings, insecure_seed=SEED)


def test_a_fit_and_the_studies_of_its_records_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ward.ledger.sqlite"
    tacit.fit("logistic", (X, LABELS), 1.0, 1e-5, **PUBLIC, rounds=3, ledger=path, budget_epsilon=1.6, insecure_seed=1)
    table = tacit.Table.of(X, LABELS, **PUBLIC)
    tacit.federate("logistic", [Site("ward", table, 1.0, 1e-5, ledger=path)], rounds=3, insecure_seed=1)
    found = Ledger.open(path)
    assert {entry.study.partition("-")[0] for entry in found.entries()} == {"fit", "study"}
    with pytest.raises(ValueError, match="is spent and"):
        tacit.fit("logistic", (X, LABELS), 1.0, 1e-5, **PUBLIC, rounds=3, ledger=path, insecure_seed=1)


def test_persons_of_data_by_site_are_those_of_sites() -> None:
    """`federate` takes ids beside data, by site or in order, as `fit` does."""
    parts = {"north": (X[:30], LABELS[:30]), "south": (X[30:60], LABELS[30:60])}
    ids = {name: [f"p{j // 2}" for j in range(30)] for name in parts}
    more: dict[str, Any] = PUBLIC | {"rounds": 2, "most_records": 2, "insecure_seed": 1}
    by_name = tacit.federate("logistic", parts, 2.0, 1e-3, groups=ids, **more).posterior
    in_order = tacit.federate("logistic", parts, 2.0, 1e-3, groups=list(ids.values()), **more).posterior
    np.testing.assert_array_equal(by_name.coefficients.mean, in_order.coefficients.mean)
    assert by_name.statement["unit"] == "person"
    with pytest.raises(ValueError, match="groups are of"):
        tacit.federate("logistic", parts, 2.0, 1e-3, groups={"north": ids["north"]}, **more)
