"""`tacit fit` and `tacit predict`: what they write, that they agree with Python, and how they refuse."""

import base64
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.cli.app import main
from tacit.posterior.posterior import Posterior
from tacit.privacy.ledger import Ledger
from tacit.report import forest, style
from tacit.report.progress import Watch
from tacit.study.charging import beside
from tacit.tables.encoding import encode
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table

RECORDS = 300
FEATURES = "age,bmi,smoker,region"
PUBLIC = ("--columns", FEATURES, "--categories", "region=north,south,NA", "--bounds", "bmi=10:60")
BUDGET = ("--epsilon", "2", "--delta", "1e-5", "--steps", "4", "--insecure-seed", "1", "--no-ledger")
LABELS = ("--target", "ill", "--classes", "no,yes")
FILES = ["result.json", "posterior.json", "statement.txt", "statement.json", "forest.png", "report.html"]
SECRET = "s3cret"

Run = Callable[..., tuple[int, str, str]]


def records() -> pd.DataFrame:
    """Made-up patients, two visits each."""
    rng = np.random.default_rng(3)
    age, bmi = rng.integers(18, 90, RECORDS), rng.normal(27, 4, RECORDS).round(1)
    smoker, region = rng.random(RECORDS) < 0.3, rng.choice(["north", "south", "NA"], RECORDS)
    z = 0.05 * (age - 50) + 0.1 * (bmi - 27) + 0.8 * smoker
    columns = {
        "patient": [f"{i // 2:04d}" for i in range(RECORDS)],
        "age": age,
        "bmi": bmi,
        "smoker": smoker,
        "region": region,
        "ill": np.where(rng.random(RECORDS) < 1 / (1 + np.exp(-z)), "yes", "no"),
        "visits": rng.poisson(np.exp(0.4 * z)),
        "pressure": (120 + 8 * z + rng.normal(0, 10, RECORDS)).round(1),
        "stage": np.select([z > 1, z > 0], ["late", "mid"], "early"),
    }
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "visits.csv"
    records().to_csv(path, index=False)
    return path


def done(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 0


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def fitted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one logistic fit."""
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("fit") / "made" / "here"
    done("fit", data, *LABELS, *PUBLIC, *BUDGET, "--out", out)
    return out


# --- What is written ---------------------------------------------------------------------------------------------


def test_fit_writes_result_posterior_statement_figure_and_page(fitted: Path) -> None:
    assert sorted(path.name for path in fitted.iterdir()) == sorted(FILES)
    found = result_of(fitted)
    assert found["files"] == FILES
    assert (found["version"], found["model"], found["target"]) == (tacit.__version__, "logistic", "ill")
    assert (found["records"], found["delta"], found["epsilon_asked"]) == (RECORDS, 1e-5, 2)
    assert 1.9 < found["epsilon"] <= 2
    assert (found["plan"]["rounds"], found["method"]) == (4, "natural")
    assert found["plan"]["releases"]["curvature"]["releases"] == 1
    names = ["intercept", "age", "bmi", "smoker", "region=south", "region=NA"]
    assert [row["name"] for row in found["summary"]] == names
    assert all(row["low"] < row["mean"] < row["high"] for row in found["summary"])
    statement = json.loads((fitted / "statement.json").read_text())
    assert (statement["epsilon"], statement["randomness"]) == (found["epsilon"], found["randomness"])
    assert any("their kinds and their categories are treated as public" in note for note in statement["notes"])
    assert "SEEDED" in (fitted / "statement.txt").read_text()
    assert (fitted / "forest.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_holds_the_table_the_statement_and_the_picture_and_needs_nothing_else(fitted: Path) -> None:
    page = (fitted / "report.html").read_text()
    assert (fitted / "statement.txt").read_text() in unescape(page)
    rows = result_of(fitted)["summary"]
    assert all(f'<th scope="row">{row["name"]}</th>' in page for row in rows)
    images = [base64.b64decode(found) for found in re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)]
    assert len(images) == 2 + 1 + min(6, len(rows) - 1)  # privacy, forest, densities
    assert all(b"</svg>" in image for image in images)
    assert not re.search(r"<script|https?://|<link", page)


def test_the_posterior_is_what_python_finds_with_the_same_seed(fitted: Path, data: Path) -> None:
    facts = Facts.given(None, ["bmi=10:60"], ["region=north,south,NA"], "no,yes")
    frame = read_frame(data, facts.listed("ill"))
    table = Table.of_frame(frame, "ill", "logistic", columns=FEATURES.split(","), facts=facts)
    expected = tacit.fit("logistic", table, 2.0, 1e-5, steps=4, insecure_seed=1)
    found = Posterior.load(fitted / "posterior.json")
    np.testing.assert_array_equal(found.coefficients.mean, expected.coefficients.mean)
    assert found.details["schema"] == table.schema
    assert found.classes == ("no", "yes")


def test_parquet_and_a_schema_file_give_the_same_result_as_csv_and_options(
    run: Run, fitted: Path, tmp_path: Path
) -> None:
    path, schema = tmp_path / "visits.parquet", tmp_path / "schema.toml"
    records().to_parquet(path)
    schema.write_text(
        'classes = ["no", "yes"]\n[bounds]\nbmi = [10, 60]\n[categories]\nregion = ["north", "south", "NA"]\n'
    )
    options = ("--target", "ill", "--columns", FEATURES, "--schema", schema, *BUDGET, "--out", tmp_path / "out")
    code, out, err = run("fit", path, *options, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert json.loads(out) == result_of(tmp_path / "out") == {**result_of(fitted), "file": "visits.parquet"}
    assert (tmp_path / "out" / "posterior.json").read_bytes() == (fitted / "posterior.json").read_bytes()


def test_fit_prints_coefficients_the_guarantee_and_where_the_files_are(run: Run, data: Path, tmp_path: Path) -> None:
    code, out, err = run("fit", data, *LABELS, *PUBLIC, *BUDGET, "--out", tmp_path, "--level", 0.5)
    assert (code, err) == (0, "")
    assert f"A logistic regression of ill on {RECORDS} records" in out
    assert all(name in out for name in ("intercept", "age", "region=NA", "50 %"))
    words = " ".join(out.split())
    assert "-differentially private for each record." in words
    assert "Randomness: SEEDED" in words
    assert "forest.png, report.html" in words
    assert max(map(len, out.splitlines())) <= 80
    wide = Posterior.load(tmp_path / "posterior.json").summary(0.95)
    for row, whole in zip(result_of(tmp_path)["summary"], wide, strict=True):
        assert whole["low"] < row["low"] < row["high"] < whole["high"]


def test_persons_are_the_unit_and_the_number_of_records_is_not_told(run: Run, data: Path, tmp_path: Path) -> None:
    options = ("--unit", "patient", "--most-records", 2, *LABELS, *PUBLIC[2:], *BUDGET, "--out", tmp_path)
    chosen = "age,bmi,smoker,region"
    code, out, err = run("fit", data, *options, "--columns", chosen, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["persons"] == RECORDS // 2
    assert "records" not in found
    text = (tmp_path / "statement.txt").read_text()
    assert "differentially private for each person" in text
    assert "At most 2 records of one person are used" in text
    assert not any("patient" in row["name"] for row in found["summary"])


def test_a_number_of_slots_is_told_in_place_of_the_number_of_records(run: Run, data: Path, tmp_path: Path) -> None:
    code, printed, error = run("fit", data, *LABELS, *BUDGET, *PUBLIC, "--slots", 500, "--out", tmp_path, "--json")
    assert code == 0, error
    result = json.loads(printed)
    assert result["slots"] == 500
    assert not {"records", "persons"} & set(result)
    for name in ("result.json", "statement.txt", "posterior.json"):
        assert not re.search(rf"\b{RECORDS}\b", (tmp_path / name).read_text()), name
    assert "on 500 slots" in (tmp_path / "report.html").read_text()


def test_scores_on_held_out_records_are_paid_for_and_shown(run: Run, data: Path, tmp_path: Path) -> None:
    options = (*LABELS, *PUBLIC, *BUDGET, "--evaluation", 0.2, "--out", tmp_path)
    code, out, err = run("fit", data, *options, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert 1.9 < found["epsilon"] <= 2
    assert found["plan"]["releases"]["evaluation"] == {
        **found["plan"]["releases"]["evaluation"],
        "releases": 1,
        "share": 0.2,
    }
    assert 0 <= found["released"]["accuracy"] <= 1 < found["released"]["records"]
    assert found["released"] == Posterior.load(tmp_path / "posterior.json").details["released"]
    assert "private releases (20 % of the budget)" in (tmp_path / "statement.txt").read_text()
    assert "<h3>On held-out records</h3>" in (tmp_path / "report.html").read_text()


def test_without_privacy_the_result_says_so_and_is_json(run: Run, data: Path, tmp_path: Path) -> None:
    options = (*LABELS, *PUBLIC, "--epsilon", "inf", "--delta", 1e-5, "--steps", 4, "--out", tmp_path)
    code, out, _ = run("fit", data, *options, "--json")
    assert code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for text in (out, *(path.read_text() for path in tmp_path.glob("*.json"))):
        json.loads(text, parse_constant=refuse)
    assert json.loads(out)["epsilon"] is None
    assert "NOT differentially private" in (tmp_path / "statement.txt").read_text()


def test_without_matplotlib_all_but_the_picture_is_written(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("fit", data, *LABELS, *PUBLIC, *BUDGET, "--out", tmp_path, "--json")
    assert (code, err) == (0, "")
    files = [name for name in FILES if name != "forest.png"]
    assert json.loads(out)["files"] == files
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    assert "<img" not in (tmp_path / "report.html").read_text()


def test_names_are_text_and_never_markup(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    odd = {"age": "[red]<b>&", "bmi": "$x_1$ bmi", "ill": "<i>ill</i>"}
    records().rename(columns=odd).to_csv(path, index=False)
    options = ("--target", odd["ill"], "--classes", "no,yes", *PUBLIC[2:4], "--bounds", f"{odd['bmi']}=10:60")
    columns = f"{odd['age']},{odd['bmi']},smoker,region"
    code, out, err = run("fit", path, *options, "--columns", columns, *BUDGET, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert odd["age"] in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<th scope="row">[red]&lt;b&gt;&amp;</th>' in page
    assert "<i>" not in page


# --- Predictions -------------------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_posterior_and_the_target_is_not_read(
    run: Run, fitted: Path, tmp_path: Path
) -> None:
    new = records().assign(ill="unheard of")[["ill", "region", "smoker", "age", "bmi"]].iloc[:20]
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "predictions.csv"
    code, text, err = run("predict", fitted, tmp_path / "new.csv", "--out", out, "--level", 0.8, "--json")
    assert (code, err) == (0, "")
    columns = ["probability", "low", "high", "predicted"]
    assert json.loads(text) == {"records": 20, "columns": columns, "out": str(out)}
    posterior = Posterior.load(fitted / "posterior.json")
    features = encode(new, posterior.details["schema"])
    found = pd.read_csv(out)
    assert list(found) == columns
    expected = posterior.predict(features)
    low, high = posterior.predict_interval(features, 0.8)
    np.testing.assert_allclose(found["probability"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["low"], low, rtol=1e-12)
    np.testing.assert_allclose(found["high"], high, rtol=1e-12)
    assert found["predicted"].tolist() == np.where(expected >= 0.5, "yes", "no").tolist()


@pytest.mark.parametrize(
    ("model", "target", "columns"),
    [
        ("linear", "pressure", ["mean", "low", "high"]),
        pytest.param("poisson", "visits", ["mean", "low", "high"], marks=pytest.mark.slow),
        ("softmax", "stage", ["probability_early", "probability_mid", "probability_late", "predicted"]),
    ],
)
def test_every_kind_of_model_is_fitted_and_predicts(
    run: Run, data: Path, tmp_path: Path, model: str, target: str, columns: list[str]
) -> None:
    classes = ("--classes", "early,mid,late") if model == "softmax" else ()
    done("fit", data, "--model", model, "--target", target, *classes, *PUBLIC, *BUDGET, "--out", tmp_path)
    assert (tmp_path / "forest.png").exists()
    out = tmp_path / "predictions.csv"
    assert run("predict", tmp_path, data, "--out", out)[0] == 0
    found = pd.read_csv(out)
    assert list(found) == columns
    assert len(found) == RECORDS
    assert ("leave out the privacy noise" in (tmp_path / "report.html").read_text()) == (model == "softmax")
    if model == "softmax":
        np.testing.assert_allclose(found[columns[:-1]].sum(axis=1), 1)
        assert set(found["predicted"]) <= {"early", "mid", "late"}
    else:
        assert np.all(found["low"] < found["high"])


def test_prediction_needs_the_columns_of_the_fit(run: Run, fitted: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "new.csv", tmp_path / "out.csv"
    cases = (
        (records().drop(columns="age"), "the file has no column 'age'"),
        (records().assign(region=SECRET), "column 'region' has values outside its categories north, south, NA"),
        (records().assign(age=SECRET), "column 'age' held numbers in the fit"),
        (records().assign(age=np.nan), "column 'age' holds missing values"),
    )
    for frame, words in cases:
        frame.to_csv(path, index=False)
        assert_refused(run("predict", fitted, path, "--out", out), words)
        assert not out.exists()


def test_prediction_refuses_what_is_not_there(run: Run, fitted: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert_refused(run("predict", tmp_path, data, "--out", out), "posterior.json", "tacit fit")
    assert_refused(run("predict", fitted / "result.json", data, "--out", out), "is not a saved posterior")
    assert_refused(run("predict", fitted, tmp_path / "no.csv", "--out", out), "No such file")
    assert_refused(run("predict", fitted, data, "--out", out, "--level", 1), "level=1.0")
    assert_refused(run("predict", fitted, data, "--out", tmp_path / "no" / "out.csv"), "out=")


# --- Refusals ----------------------------------------------------------------------------------------------------


def assert_refused(outcome: tuple[int, str, str], *named: str) -> None:
    """Exit code 2, nothing on standard output, and one sentence with all the words and no value of a record."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert not re.search(r"[.!?]\s\S", err), f"more than one sentence: {err}"
    assert SECRET not in err
    for word in named:
        assert word in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "forest"), "model='forest'; expected one of logistic, linear"),
        (("--epsilon", "0"), "epsilon=0.0; expected a number above 0"),
        (("--epsilon", "-1"), "epsilon=-1.0"),
        (("--epsilon", "nan"), "epsilon=nan"),
        (("--delta", "0"), "delta=0.0; expected a number above 0 and below 1"),
        (("--delta", "1"), "delta=1.0"),
        (("--adjacency", "near"), "adjacency='near'; expected one of add-remove, replace-one"),
        (("--scaling", "best"), "scaling='best'; expected one of moments, bounds"),
        (("--scaling", "bounds"), "give bounds"),
        (("--unit", "patient"), "--unit patient without --most-records"),
        (("--unit", "patient", "--most-records", "0"), "--most-records 0"),
        (("--most-records", "2"), "without --unit"),
        (("--unit", "person", "--most-records", "2"), "unit='person' is not a column"),
        (("--steps", "0"), "steps=0; expected"),
        (("--method", "mcmc"), "method='mcmc'; expected one of natural, vi, ep, sep, sgld"),
        (("--clip", "-1"), "clip=-1.0; expected"),
        (("--prior-deviation", "0"), "prior_deviation=0.0; expected"),
        (("--prior-deviation", "1e30"), "prior_deviation=1e+30; expected a number from 1e-06 to 1e+06"),
        (("--evaluation", "1"), "evaluation=1.0; expected a number of at least 0 and below 0.75"),
        (("--noise-scale", "1"), 'noise_scale with model="logistic"; expected it for a linear model only'),
        (("--level", "95"), "level=95.0; expected"),
        (("--insecure-seed", "-1"), "insecure_seed=-1"),
        (("--target", "sick"), "target='sick' is not a column; expected one of patient, age, bmi"),
        (("--columns", "age,height"), "columns name 'height'"),
        (("--bounds", "age"), "column=low:high"),
        (("--categories", "region"), "column=a,b"),
        (("--classes", "yes"), "at least two"),
        (("--classes", "no,maybe"), "labels outside the classes no, maybe"),
        (("--schema", "no.toml"), "schema=no.toml: No such file"),
        (("--model", "poisson"), "classes are for a target of labels"),
    ],
)
def test_fit_refuses_options_by_name_and_remedy(
    run: Run, data: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert_refused(run("fit", data, *LABELS, *PUBLIC, *BUDGET, "--out", tmp_path / "out", *options), words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": SECRET}, "column 'age' holds text; give the public list of categories, as in --categories"),
        ({"age": np.nan}, "column 'age' holds missing values; fill or drop them"),
        ({"age": np.inf}, "column 'age' holds numbers that are not finite"),
        ({"region": SECRET}, "column 'region' has values outside its categories north, south, NA"),
        ({"ill": SECRET}, "target 'ill' has labels outside the classes"),
    ],
)
def test_fit_refuses_records_by_column_and_never_by_value(
    run: Run, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tmp_path / "odd.csv"
    records().assign(**changes).to_csv(path, index=False)
    assert_refused(run("fit", path, *LABELS, *PUBLIC, *BUDGET, "--out", tmp_path / "out"), words)


def test_a_constant_column_is_told_to_the_holder_and_to_nobody_else(run: Run, tmp_path: Path) -> None:
    """Whether there are results must not depend on one record that differs."""
    path, out = tmp_path / "constant.csv", tmp_path / "out"
    records().assign(age=3).to_csv(path, index=False)
    code, output, error = run("fit", path, *LABELS, *PUBLIC, *BUDGET, "--out", out)
    assert code == 0
    assert "column 'age' has one value in all records" in error
    assert "one value" not in output + "".join(p.read_text() for p in out.iterdir() if p.suffix != ".png")


# --- The ledger beside the data, and what is refused before anything is spent --------------------------------------


OPEN = (*LABELS, *PUBLIC, *BUDGET[:-1])  # charges a ledger


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of records in a folder of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    records().to_csv(folder / "visits.csv", index=False)
    return folder / "visits.csv"


def test_a_fit_charges_a_ledger_beside_the_data_and_a_second_one_is_refused_until_the_budget_is_raised(
    run: Run, own: Path, tmp_path: Path
) -> None:
    path, out = own.with_name("visits.csv.ledger.sqlite"), tmp_path / "out"
    code, text, err = run("fit", own, *OPEN, "--out", out, "--json")
    assert code == 0
    assert f"made the ledger {path}" in err
    assert "ε = 2 at δ = 1e-05" in err
    assert "'tacit ledger extend'" in err
    entries = Ledger.open(path).entries()
    entry = entries[-1]
    assert [one.study.rpartition("/")[2] for one in entries] == ["ranges", "scaling", *["inference"] * 4]
    found = json.loads(text)["ledger"]
    assert found["name"] == path.name
    assert (found["charge"], found["spent"]) == (entry.study, entry.spent)
    assert entry.spent == pytest.approx(json.loads(text)["epsilon"], rel=1e-6)
    assert entry.note.startswith("noise from a seed")
    words = (out / "statement.txt").read_text()
    assert "The ledger visits.csv.ledger.sqlite counts all analyses of these records" in words
    assert "All analyses in the ledger, including those chosen after seeing results of others: covered, by" in words
    assert "not counted" not in words
    assert str(tmp_path) not in words + text.replace(str(out), "")

    link = tmp_path / "link.csv"
    link.symlink_to(own)
    for data in (own, link):  # a link is the same data
        outcome = run("fit", data, *OPEN, "--out", tmp_path / "second")
        assert_refused(outcome, "is spent and", "is left; this fit costs", "tacit ledger extend")
    assert not (tmp_path / "second" / "result.json").exists()
    assert Ledger.open(path).entries() == entries

    assert run("ledger", "extend", path, "--epsilon", 3, "--note", "by the board")[0] == 0
    code, text, err = run("fit", link, *OPEN, "--out", out)
    assert (code, err) == (0, "")
    assert re.search(r"In total ε = 2\.\d+ of 3 is spent, by the ledger visits", " ".join(text.split()))
    assert "raised from ε = 2 to 3" in (out / "statement.txt").read_text()
    assert [entry.budget for entry in Ledger.open(path).entries()] == [*[None] * 6, 3.0, *[None] * 6]
    code, text, _ = run("ledger", "show", path)
    assert code == 0
    assert "budget raised to ε = 3 (by the board)" in text
    assert "Analyses chosen after seeing results: covered, by the Gaussian-DP filter" in text
    code, text, _ = run("ledger", "verify", path)
    assert code == 0
    assert "(gaussian(reserve=0.001))" in text


def test_a_ledger_may_be_made_beforehand_or_somewhere_else_with_a_budget_for_several_fits(
    run: Run, own: Path, tmp_path: Path
) -> None:
    there = tmp_path / "all.sqlite"
    given = ("--ledger", there)
    assert_refused(run("fit", own, *OPEN, "--out", tmp_path / "a", *given), "does not exist", "--budget-epsilon")
    assert run("fit", own, *OPEN, "--out", tmp_path / "a", *given, "--budget-epsilon", 1)[0] == 2
    assert not there.exists()  # too little for this fit: nothing is made
    for name, budget in (("a", ("--budget-epsilon", 5, "--budget-delta", 1e-4)), ("b", ())):
        assert run("fit", own, *OPEN, "--out", tmp_path / name, *given, *budget)[0] == 0
    found = Ledger.open(there)
    assert (found.epsilon, found.delta, len(found.entries())) == (5.0, 1e-4, 12)
    assert_refused(
        run("fit", own, *OPEN, "--out", tmp_path / "a", *given, "--budget-epsilon", 9), "budget_epsilon=9", "extend"
    )
    path = own.with_name("visits.csv.ledger.sqlite")
    assert not path.exists()
    made = run("ledger", "create", path, "--epsilon", 4, "--delta", 1e-5, "--rule", "renyi")
    assert made[0] == 0
    assert run("fit", own, *OPEN, "--out", tmp_path / "c")[0] == 0
    assert Ledger.open(path).rule_words.startswith("covered, by the Rényi filter")
    assert run("ledger", "create", path, "--epsilon", 4, "--delta", 1e-5)[0] == 2
    assert_refused(run("ledger", "create", tmp_path / "x", "--epsilon", 4, "--delta", 1e-5, "--rule", "pld"), "rule=")


def test_an_interrupted_fit_keeps_its_charges_and_says_what_the_ledger_counts(
    run: Run, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Watch.step

    def interrupt(self: Watch, phase: str, done: int, *rest: Any) -> None:
        step(self, phase, done, *rest)
        if (phase, done) == ("inference", 2):
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "step", interrupt)
    code, out, err = run("fit", own, *OPEN, "--out", tmp_path / "out")
    assert (code, out) == (130, "")
    spent = Ledger.open(beside(own)).spent()
    assert 0 < spent < 2
    assert f"tacit: interrupted; the ledger {beside(own)} counts ε = {spent:.4g} of 2 as spent" in err
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_sampled_fit_makes_a_ledger_with_a_renyi_filter_that_it_fits_into(
    run: Run, own: Path, tmp_path: Path
) -> None:
    options = ("--model", "softmax", "--target", "stage", "--classes", "early,mid,late", *PUBLIC, *BUDGET[:-1])
    code, text, err = run("fit", own, *options, "--out", tmp_path / "out", "--json")
    assert code == 0
    found = Ledger.open(own.with_name("visits.csv.ledger.sqlite"))
    assert found.accountant.startswith("renyi(order=")
    assert 2 <= found.epsilon < 2.6
    assert f"ε = {found.epsilon:g} at δ" in err
    assert json.loads(text)["epsilon"] <= 2 < found.spent() <= found.epsilon


def test_without_a_ledger_the_statement_says_that_others_are_not_counted(run: Run, own: Path, tmp_path: Path) -> None:
    code, text, err = run("fit", own, *OPEN, "--no-ledger", "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "other analyses of the same data are not counted" in " ".join(text.split())
    assert (
        "No ledger was charged: other analyses of the same data are not" in (tmp_path / "a/statement.txt").read_text()
    )
    assert result_of(tmp_path / "a")["ledger"] is None
    infinite = (*LABELS, *PUBLIC, "--epsilon", "inf", "--delta", "1e-5", "--steps", "4", "--out", tmp_path / "b")
    assert run("fit", own, *infinite)[0] == 0
    assert [path.name for path in own.parent.iterdir()] == ["visits.csv"]
    Ledger.create(beside(own), data_set="visits", epsilon=1.0, delta=1e-5)
    assert_refused(run("fit", own, *infinite, "--force"), "epsilon=inf with the ledger ", "or --no-ledger")
    assert run("fit", own, *infinite, "--force", "--no-ledger")[0] == 0
    assert_refused(
        run("fit", own, *OPEN, "--no-ledger", "--budget-epsilon", 3), "--no-ledger with --ledger or a budget"
    )


def test_a_folder_that_holds_no_ledger_is_refused_before_anything_is_read(
    run: Run, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tempfile.TemporaryFile

    def refuse(*arguments: Any, dir: Any = None, **settings: Any) -> Any:
        if Path(dir or ".") == own.parent:
            raise PermissionError(13, "Permission denied")
        return whole(*arguments, dir=dir, **settings)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    own.write_text("not a table")
    outcome = run("fit", own, *OPEN, "--out", tmp_path / "out")
    assert_refused(outcome, "Permission denied; give --ledger", "--no-ledger")


def test_a_delta_of_one_in_the_number_of_records_is_refused_or_said(run: Run, own: Path, tmp_path: Path) -> None:
    options = (*OPEN, "--delta", repr(1 / RECORDS), "--out", tmp_path / "out")
    assert_refused(run("fit", own, *options), f"for {RECORDS} records; expected less than 1 / records", "lower delta")
    assert [path.name for path in own.parent.iterdir()] == ["visits.csv"]
    assert run("fit", own, *options, "--allow-large-delta")[0] == 0
    assert (
        f"is 1 / {RECORDS} or more, for {RECORDS} slots for records (allow_large_delta)"
        in (tmp_path / "out" / "statement.txt").read_text()
    )


@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_column_that_looks_like_an_id_is_refused_and_a_measured_one_is_not(run: Run, own: Path, kind: str) -> None:
    ids = [f"{1000 + 7 * i}" for i in range(RECORDS)] if kind == "text" else [1000 + 7 * i for i in range(RECORDS)]
    measured = np.linspace(0.5, 9.7, RECORDS)
    records().assign(code=ids, level=measured).to_csv(own, index=False)
    public = ("--categories", f"code={','.join(ids)}") if kind == "text" else ()
    options = (*LABELS, "--columns", "age,level,code", *public, *BUDGET, "--out", own.parent / "out")
    assert_refused(run("fit", own, *options), "'code': every record has a different value, as ids have", "--force")
    if kind == "number":
        code, _, err = run("fit", own, *options, "--force")
        assert code == 0
        assert "for your eyes only: 'code'" in err
        assert not any("as ids have" in path.read_text() for path in (own.parent / "out").glob("*.txt"))


def test_results_of_other_data_are_not_written_over(run: Run, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wide = ("--out", out, "--budget-epsilon", 9)
    assert run("fit", own, *OPEN, *wide)[0] == 0
    before = (out / "result.json").read_bytes()
    (tmp_path / "elsewhere").mkdir()
    other, same = own.with_name("others.csv"), tmp_path / "elsewhere" / "visits.csv"
    for path in (other, same):  # of another name, and of the same
        path.write_bytes(own.read_bytes())
    assert_refused(run("fit", other, *OPEN, *wide), f"out={out} holds results of visits.csv", "--force")
    assert_refused(run("fit", same, *OPEN, *wide), "they are of other data, or charged to another ledger", "--force")
    assert not list(same.parent.glob("*.sqlite"))
    assert not list(own.parent.glob("others*.sqlite"))
    assert (out / "result.json").read_bytes() == before
    assert run("fit", own, *OPEN, *wide)[0] == 0  # the same data again
    assert run("fit", other, *OPEN, *wide, "--force")[0] == 0
    assert result_of(out)["file"] == "others.csv"
    (out / "result.json").write_text("[]")
    assert_refused(run("fit", own, *OPEN, *wide), "holds results of another command")


def test_fit_refuses_files_that_are_no_table(run: Run, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    for name, content, words in (
        ("no.csv", None, "No such file or directory"),
        ("empty.csv", "", "is empty"),
        ("header.csv", "age,ill\n", "has no records"),
        ("one.csv", "age,ill\n3,0\n", "has 1 record; expected at least 2"),
        ("twice.csv", "age,ill,age\n3,0,1\n", "more than one column 'age'"),
        ("data.xls", "x", ".csv or .parquet"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        assert_refused(run("fit", path, "--target", "ill", *BUDGET, *out), words)


def test_fit_refuses_a_folder_that_cannot_be_made_before_it_reads(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        assert_refused(run("fit", "no.csv", *LABELS, *BUDGET, "--out", out), f"out={out}", "can be written to")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, tacit.cli.app\ntry:\n    tacit.cli.app.main(['fit', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--most-records" in done.stdout


# --- The forest plot ---------------------------------------------------------------------------------------------


def made_up(count: int, link: str = "logistic", classes: tuple[str, ...] = ("a", "b")) -> Any:
    """Stands in for a posterior: an intercept and `count` coefficients for each class but the first."""
    free = classes[1:] if link == "softmax" else classes[:1]
    names = [f"{label}: {name}" for label in free for name in ("intercept", *(f"x{j}" for j in range(count)))]
    rows = [
        {"name": name, "mean": float(j), "sd": 1.0, "low": j - 2.0, "high": j + 2.0} for j, name in enumerate(names)
    ]
    plan, details = {"numbers": [0]}, {"scale": [10.0]}
    return SimpleNamespace(summary=lambda level: rows, link=link, classes=classes, plan=plan, details=details)


def test_effects_leave_out_intercepts_and_scale_numbers() -> None:
    found = forest.effects(made_up(2, "softmax", ("a", "b", "c")))
    assert [row.name for row in found] == ["b: x0", "b: x1", "c: x0", "c: x1"]
    assert [row.per for row in found] == [10, 1, 10, 1]
    assert [row.mean for row in found] == [10, 2, 40, 5]
    assert [row.is_clear for row in found] == [False, False, True, True]


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_a_forest_grows_with_its_coefficients_up_to_a_limit(tmp_path: Path, count: int) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "forest.png"
    style.save(forest.axes_of(made_up(count)), path)
    width, height = (int.from_bytes(path.read_bytes()[at : at + 4]) for at in (16, 20))
    drawn = min(count, forest.MOST_ROWS)
    assert height == pytest.approx(150 * (1.3 + 0.19 * drawn), abs=2)
    assert 600 < width < 1500
