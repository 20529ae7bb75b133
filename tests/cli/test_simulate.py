"""`tacit simulate`: what it writes, what it spends, how it goes on after a stop, and how it refuses.

One study of three small sites is run once; others have its shapes, so that nothing is compiled again.
"""

import base64
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import tacit
from tacit.basics import durable
from tacit.cli.app import main
from tacit.posterior.posterior import Posterior
from tacit.privacy.events import Gaussian
from tacit.privacy.ledger import Ledger
from tacit.privacy.statement import rounded_up
from tacit.report import dashboard, findings, page, studied
from tacit.report.progress import Watch

pytestmark = pytest.mark.xdist_group("simulate")  # one process, so that its study is run once

RECORDS = {"north": 40, "south": 36, "west": 32, "public": 50}
BUDGETS = {"north": 4.0, "south": 2.0, "west": 4.0}
ROUNDS, DELTA = 3, 1e-4
STUDY = f"""
name = "clinics"
model = "logistic"
target = "ill"
rounds = {ROUNDS}
epsilon = 4.0
delta = {DELTA}
facts = "facts.toml"

[[site]]
name = "north"
file = "north.csv"

[[site]]
name = "south"
file = "south.csv"
epsilon = 2.0

[[site]]
name = "west"
file = "west.csv"
"""
TEST = '\n[test]\nfile = "public.csv"\n'
FACTS = 'classes = ["no", "yes"]\n[bounds]\nage = [0, 110]\n[categories]\nsex = ["F", "M"]\n'
FILES = ["result.json", "posterior.json", "statement.txt", "statement.json", "forest.png", "curve.png", "report.html"]
SEED = ("--insecure-seed", "1")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study file and what belongs to it."""
    found = tmp_path_factory.mktemp("clinics")
    rng = np.random.default_rng(5)
    for name, count in RECORDS.items():
        age, sex = rng.integers(18, 90, count), rng.choice(["F", "M"], count)
        ill = rng.random(count) < 1 / (1 + np.exp(-0.08 * (age - 50)))
        columns = {"age": age, "sex": sex, "ill": np.where(ill, "yes", "no")}
        pd.DataFrame(columns).to_csv(found / f"{name}.csv", index=False)
    (found / "facts.toml").write_text(FACTS)
    (found / "study.toml").write_text(STUDY + TEST)
    return found


@pytest.fixture(scope="module")
def done(folder: Path) -> Path:
    """The folder of the study, finished."""
    pytest.importorskip("matplotlib")
    out = folder / "made" / "here"
    with pytest.raises(SystemExit) as stop:
        main(["simulate", str(folder / "study.toml"), "--out", str(out), *SEED])
    assert stop.value.code == 0
    return out


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    """A finished study's folder to work on."""
    return shutil.copytree(done, tmp_path / "copy")


def result_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "result.json").read_text())


def ledgers(out: Path) -> dict[str, Ledger]:
    return {path.parent.name: Ledger.open(path) for path in sorted(out.glob("sites/*/ledger.sqlite"))}


def heads(out: Path) -> dict[str, str]:
    return {name: ledger.verify() for name, ledger in ledgers(out).items()}


def counts(out: Path) -> dict[str, int]:
    return {name: len(ledger.entries()) for name, ledger in ledgers(out).items()}


# --- What is written ---------------------------------------------------------------------------------------------


def test_a_study_writes_result_posterior_statement_figures_and_page(done: Path) -> None:
    assert {*FILES, "sites"} <= {path.name for path in done.iterdir()}
    assert not list(done.rglob("*.new"))
    found = result_of(done)
    assert found["files"] == FILES
    assert (found["version"], found["name"], found["model"]) == (tacit.__version__, "clinics", "logistic")
    assert (found["communications"], found["delta"], found["randomness"]) == (3 * ROUNDS, DELTA, "seeded")
    assert found["plan"]["rounds"] == ROUNDS
    assert [row["name"] for row in found["sites"]] == list(BUDGETS)
    assert all((row["updates"], row["refused"]) == (ROUNDS, None) for row in found["sites"])
    assert found["epsilon"] == max(row["spent"] for row in found["sites"])
    assert [(row["round"], row["communications"]) for row in found["history"]] == [(1, 3), (2, 6), (3, 9)]
    assert found["scores"]["test_set"] == "public"
    assert found["scores"]["records"] == RECORDS["public"]
    assert 0 <= found["scores"]["accuracy"] == found["history"][-1]["accuracy"] <= 1
    assert found["released"] is None
    assert [row["name"] for row in found["summary"]] == ["intercept", "age", "sex=M"]
    for name in ("forest.png", "curve.png"):
        assert (done / name).read_bytes().startswith(b"\x89PNG")


def test_every_site_has_spent_at_most_its_budget_by_its_own_ledger(done: Path) -> None:
    rows = {row["name"]: row for row in result_of(done)["sites"]}
    for name, ledger in ledgers(done).items():
        ledger.verify()
        assert ledger.epsilon == rows[name]["budget"] == rows[name]["epsilon"] == BUDGETS[name]
        assert 0.9 * BUDGETS[name] < ledger.spent() <= BUDGETS[name]
        assert rows[name]["spent"] == ledger.spent()
    assert counts(done) == dict.fromkeys(BUDGETS, 1 + ROUNDS)


def test_the_statement_is_that_of_each_site(done: Path) -> None:
    text = (done / "statement.txt").read_text()
    statement = json.loads((done / "statement.json").read_text())
    assert list(statement["sites"]) == list(BUDGETS)
    assert text.count("Randomness: SEEDED") == 3
    assert statement["epsilon"] == result_of(done)["epsilon"]


def test_the_posterior_predicts_for_new_records(run: Run, done: Path, folder: Path, tmp_path: Path) -> None:
    assert Posterior.load(done / "posterior.json").classes == ("no", "yes")
    out = tmp_path / "predictions.csv"
    code, _, error = run("predict", done, folder / "public.csv", "--out", out)
    assert (code, error) == (0, "")
    assert len(pd.read_csv(out)) == RECORDS["public"]


def test_the_page_holds_sites_scores_pictures_and_statement_and_needs_nothing_else(done: Path) -> None:
    page, found = (done / "report.html").read_text(), result_of(done)
    for row in found["sites"]:
        spent, budget = rounded_up(row["spent"]), f"{row['budget']:g}"
        assert f">{row['name']}</th><td>{row['slots']:,}</td><td>{spent}</td><td>{budget}</td>" in page
    assert "public test set" in page
    assert f"<td>{found['scores']['accuracy']:.4g}</td>" in page
    assert (done / "statement.txt").read_text() in unescape(page)
    pictures = [base64.b64decode(p) for p in re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)]
    assert len(pictures) == 2 + 1 + 2 + 1 + 2  # privacy, forest, densities of age and sex, calibration, training
    assert all(picture.startswith(b"<?xml") and b"</svg>" in picture for picture in pictures)
    assert not re.search(r"<script|https?://|<link", page)


# --- Again and after a stop --------------------------------------------------------------------------------------


def test_a_finished_study_gives_its_result_again_and_charges_nothing(
    run: Run, folder: Path, done: Path, copy: Path
) -> None:
    before = heads(copy)
    code, out, error = run("simulate", folder / "study.toml", "--out", copy, *SEED, "--json")
    assert (code, error) == (0, "")
    assert out.count("\n") == 1
    assert json.loads(out) == result_of(copy) == result_of(done)
    assert heads(copy) == before == heads(done)
    assert (copy / "posterior.json").read_bytes() == (done / "posterior.json").read_bytes()


def test_a_study_that_began_with_a_seed_is_never_called_secure(run: Run, folder: Path, copy: Path) -> None:
    code, out, error = run("simulate", folder / "study.toml", "--out", copy)
    assert (code, error) == (0, "")
    assert "Randomness: SEEDED" in out
    assert result_of(copy)["randomness"] == "seeded"
    assert (copy / "statement.txt").read_text().count("Randomness: SEEDED") == 3


def test_after_an_interrupt_the_same_command_goes_on_to_the_same_result(
    run: Run, folder: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Watch.step

    def interrupt(self: Watch, phase: str, made: int, *rest: Any) -> None:
        step(self, phase, made, *rest)
        if (phase, made) == ("inference", 2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Watch, "step", interrupt)
    command = ("simulate", folder / "study.toml", "--out", tmp_path, *SEED)
    code, out, error = run(*command)
    assert (code, out) == (130, "")
    assert error.splitlines()[-1] == "tacit: interrupted; run the same command again to resume"
    assert not (tmp_path / "result.json").exists()
    assert counts(tmp_path) == dict.fromkeys(BUDGETS, 1 + 2)
    monkeypatch.undo()
    assert run(*command)[0] == 0
    assert counts(tmp_path) == counts(done)
    assert result_of(tmp_path) == result_of(done)
    assert (tmp_path / "posterior.json").read_bytes() == (done / "posterior.json").read_bytes()


def test_a_kill_between_charge_and_answer_costs_that_update_and_no_more(
    run: Run, folder: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, made = durable.write, []

    def killed(path: Path, data: bytes | str) -> None:
        made.extend([path] * (path.suffix == ".store"))
        if len(made) == 5:  # the second site in the first round, after three of means and variances
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(durable, "write", killed)
    command = ("simulate", folder / "study.toml", "--out", tmp_path, *SEED)
    assert run(*command)[0] == 130
    assert counts(tmp_path) == {"north": 2, "south": 2, "west": 1}
    monkeypatch.undo()
    assert run(*command)[0] == 0
    whole = counts(done)
    assert all(count <= whole[name] + 1 for name, count in counts(tmp_path).items())
    assert {name: counts(tmp_path)[name] for name in ("north", "west")} == {"north": 4, "west": 4}
    for name, ledger in ledgers(tmp_path).items():
        ledger.verify()
        assert ledger.spent() <= BUDGETS[name]
    assert result_of(tmp_path)["sites"][0]["updates"] == ROUNDS


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (f"rounds = {ROUNDS}", "rounds = 4", "another rounds, 3 and not 4, whose budget is spent; take a new folder"),
        ('"ill"', '"sex"\ncolumns = ["age"]', "another target, 'ill' and not 'sex'"),
        ("epsilon = 4.0", "epsilon = 5.0", "another epsilon, 4.0 and not 5.0"),
        ("facts.toml", "flipped.toml", "another facts"),
    ],
)
def test_a_folder_with_another_study_is_refused_and_nothing_is_charged(
    run: Run, folder: Path, copy: Path, old: str, new: str, words: str
) -> None:
    before = heads(copy)
    (folder / "flipped.toml").write_text(FACTS.replace('["no", "yes"]', '["yes", "no"]'))
    (folder / "sexes.toml").write_text('classes = ["F", "M"]\n[bounds]\nage = [0, 110]\n')
    text = (STUDY + TEST).replace(old, new, 1)
    (folder / "changed.toml").write_text(text.replace("facts.toml", "sexes.toml") if '"sex"' in new else text)
    code, out, error = run("simulate", folder / "changed.toml", "--out", copy, *SEED)
    assert (code, out) == (2, "")
    assert words in error
    assert error.count("\n") == 1
    assert heads(copy) == before


# --- Budgets -----------------------------------------------------------------------------------------------------


def test_a_study_is_not_begun_where_a_site_cannot_pay_for_it_unless_fewer_sites_are_enough(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    ledger = Ledger.create(folder / "west.ledger", data_set="west", epsilon=3.0, delta=DELTA)
    ledger.charge(Gaussian(6.0), study="an earlier one", round=0)
    (folder / "little.toml").write_text(STUDY + 'ledger = "west.ledger"\n')  # no test set either
    command = ("simulate", folder / "little.toml", "--out", tmp_path, *SEED)
    code, out, error = run(*command)
    assert (code, out) == (2, "")
    assert error.startswith("tacit: 2 of 3 sites accept the study and at least 3 must, so nothing was charged (west: ")
    assert error.count("\n") == 1
    assert set(counts(tmp_path).values()) == {0}
    assert len(ledger.entries()) == 1
    changed = STUDY + 'ledger = "west.ledger"\nepsilon = 3.5\n'
    (folder / "little.toml").write_text(changed)
    code, out, error = run(*command)
    assert code == 2
    assert "2 of 3 sites accept" in error, "nothing was charged, so there is room for what was changed"
    (folder / "little.toml").write_text(STUDY + 'ledger = "west.ledger"\n')
    code, out, error = run(*command, "--at-least", 2)
    assert code == 0
    reason = "what is left of this site's budget does not pay for the study (epsilon=3 would be exceeded by "
    assert error.startswith(f"tacit: 2 of 3 sites take part (west does not: {reason}")
    words = " ".join(out.split())
    assert "2 of 3 sites are in the result" in words
    assert f"west refused: {reason}" in words
    assert f"count all studies; with this one: west ε = {rounded_up(ledger.spent())} of 3." in words
    assert "test set" not in words
    found = result_of(tmp_path)
    rows = {row["name"]: row for row in found["sites"]}
    assert rows["west"]["refused"].startswith(reason)
    assert (rows["west"]["updates"], rows["west"]["spent"], rows["west"]["is_present"]) == (0, 0, False)
    assert (rows["west"]["epsilon"], rows["west"]["ledger_spent"], rows["west"]["budget"]) == (4, ledger.spent(), 3)
    assert len(ledger.entries()) == 1
    assert [(rows[name]["updates"], rows[name]["refused"]) for name in ("north", "south")] == [(ROUNDS, None)] * 2
    assert found["scores"] is None
    assert "curve.png" not in found["files"]
    assert rows["west"]["refused"] in unescape((tmp_path / "report.html").read_text())
    assert not (tmp_path / "sites" / "west" / "ledger.sqlite").exists()
    text = (tmp_path / "statement.txt").read_text()
    assert "west\n----\nwest took no part in this study and released nothing.\n" in text
    (folder / "little.toml").write_text(changed)
    assert "whose budget is spent; take a new folder" in run(*command, "--at-least", 2)[2]
    assert text.count("What was released") == 2


# --- On the screen -----------------------------------------------------------------------------------------------


def test_the_terminal_shows_sites_scores_and_files(capsys: pytest.CaptureFixture[str], done: Path) -> None:
    found = result_of(done)
    studied.show(done, found)
    out = capsys.readouterr().out
    words = " ".join(out.split())
    for row in found["sites"]:
        assert re.search(rf"{row['name']} +│ +{row['spent']:.4g} │ +{row['budget']:g} │ 0.0001 │ +{ROUNDS} │", out)
    assert f"On the public test set (50 records): accuracy {found['scores']['accuracy']:.4g}" in words
    assert all(name in words for name in FILES)
    assert max(map(len, out.splitlines())) <= 80


RELEASED = {
    "records": 812.3,
    "accuracy": 0.8123,
    "accuracy_sd": 0.0123,
    "log_likelihood": -0.45,
    "log_likelihood_sd": 0.031,
    "least_log_likelihood": -5.0,
    "calibration": [{"low": 0.1, "high": 0.2, "count": 90.0, "share": 0.2, "mean_probability": 0.15, "sd": 0.11}],
    "calibration_error": 0.05,
}


def test_scores_that_were_paid_for_are_shown_with_the_deviation_of_their_noise(
    capsys: pytest.CaptureFixture[str], done: Path
) -> None:
    result = result_of(done) | {"scores": None, "released": RELEASED}
    studied.show(done, result)
    words = " ".join(capsys.readouterr().out.split())
    assert "accuracy 0.8123 ± 0.012, mean log-likelihood -0.45 ± 0.031, calibration error 0.05; ± is" in words
    text = page.render(findings.of(result, done))
    assert '<th scope="row">accuracy</th><td>0.8123</td><td>0.012</td></tr>' in text
    assert '<th scope="row">0.1 to 0.2</th><td>0.150</td><td>0.200</td><td>0.110</td></tr>' in text
    few = result | {"released": {"records": None, "note": "too few held-out records to tell them from the noise"}}
    studied.show(done, few)
    assert "too few held-out records" in capsys.readouterr().out
    assert "Too few held-out records to tell them from the noise." in page.render(findings.of(few, done))


# --- Whole sites as the unit -------------------------------------------------------------------------------------

POOLED = 'unit = "site"\nparticipation = 0.9\n' + STUDY.replace("epsilon = 2.0\n", "")


def test_a_coordinator_that_is_trusted_has_one_ledger_for_whole_sites(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "whole.toml").write_text(POOLED + TEST)
    out = tmp_path / "whole"
    command = ("simulate", str(folder / "whole.toml"), "--out", str(out), *SEED)
    code, printed, _ = run(*command)
    assert code == 0
    assert "at 3 sites" in printed
    found, ledger = result_of(out), Ledger.open(out / "coordinator" / "ledger.sqlite")
    assert not (out / "sites").exists()
    assert ledger.unit == "site"
    assert [row["name"] for row in found["sites"]] == ["coordinator"]
    assert 0.9 * 4 < ledger.spent() == found["epsilon"] <= 4
    assert {entry.event.unit for entry in ledger.entries() if isinstance(entry.event, Gaussian)} == {"site"}
    assert len(ledger.entries()) == 1 + ROUNDS
    assert found["communications"] == round(3 * 0.9 * ROUNDS)
    text = (out / "statement.txt").read_text()
    assert "for each site" in text
    assert "The coordinator is trusted" in text
    assert "must stay secret" in text
    assert "other studies of the same sites are not counted" in text
    head = ledger.verify()
    assert run(*command)[0] == 0  # again: nothing is charged
    assert Ledger.open(out / "coordinator" / "ledger.sqlite").verify() == head
    assert result_of(out)["summary"] == found["summary"]


def test_a_coordinators_own_ledger_counts_all_studies_of_its_sites(run: Run, folder: Path, tmp_path: Path) -> None:
    own = Ledger.create(folder / "own.ledger", data_set="clinics", epsilon=7.0, delta=DELTA, unit="site")
    spent, codes = [], []
    for name in ("first", "second", "third"):
        text = 'ledger = "own.ledger"\n' + POOLED.replace('"clinics"', f'"{name}"')
        (folder / "shared.toml").write_text(text)
        codes.append(run("simulate", str(folder / "shared.toml"), "--out", str(tmp_path / name), *SEED)[0])
        spent.append(own.spent())
    assert codes == [0, 0, 2], "the third could not be paid for to its end, so it is not begun"
    assert 0.9 * 4 < spent[0] < spent[1] == spent[2] <= 7.0
    (row,) = result_of(tmp_path / "second")["sites"]
    assert row["spent"] == pytest.approx(spent[0])
    assert (row["ledger_spent"], row["budget"]) == (spent[1], 7.0)
    words = (tmp_path / "second" / "statement.txt").read_text()
    assert "The ε above is of this analysis alone" in " ".join(words.split())
    assert "at most the budget, ε = 7 at δ = " in words, "and no total of several studies"
    assert result_of(tmp_path / "second")["epsilon"] == pytest.approx(row["spent"])


@pytest.mark.parametrize("method", ["ep", "sep"])
def test_sites_may_solve_by_expectation_propagation_for_the_same_price(
    run: Run, folder: Path, tmp_path: Path, done: Path, method: str
) -> None:
    (folder / "matched.toml").write_text(f'method = "{method}"\n' + STUDY)
    assert run("simulate", str(folder / "matched.toml"), "--out", str(tmp_path), *SEED)[0] == 0
    found, plain = result_of(tmp_path), result_of(done)
    assert [row["epsilon"] for row in found["sites"]] == [row["epsilon"] for row in plain["sites"]]
    assert [row["mean"] for row in found["summary"]] != [row["mean"] for row in plain["summary"]]


@pytest.mark.parametrize("options", ['noise = "central"\nreset = 2\n', 'noise = "per-site"\n'])
def test_the_other_ways_of_adding_noise_run_under_ledgers_of_their_own(
    run: Run, folder: Path, tmp_path: Path, options: str
) -> None:
    text = ('unit = "site"\n' + options + STUDY).replace("epsilon = 2.0\n", "")
    (folder / "other.toml").write_text(text)
    assert run("simulate", str(folder / "other.toml"), "--out", str(tmp_path), *SEED)[0] == 0
    own = ["coordinator"] if "central" in options else [f"sites/{name}" for name in BUDGETS]
    for name in own:
        ledger = Ledger.open(tmp_path / name / "ledger.sqlite")
        assert ledger.unit == "site"
        assert 0.9 * 4 < ledger.spent() <= 4
    assert ("The coordinator is trusted" in (tmp_path / "statement.txt").read_text()) == ("central" in options)


def shown(watch: Watch) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    console.print(watch)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_progress_has_a_bar_for_each_of_few_sites_and_a_summary_of_many() -> None:
    watch = Watch()
    watch.say("Starting")
    assert "Starting" in shown(watch)
    watch.budgets = {"north": 2.0, "south": 4.0}
    watch.step("inference", 3, 20, {"north": 0.5, "south": 3.0})
    lines = shown(watch).splitlines()
    assert "Inference" in lines[0]
    assert "3 of 20 rounds" in lines[1]
    assert [line.split("ε")[1].rstrip() for line in lines[2:4]] == [" = 0.5 of 2", " = 3 of 4"]
    watch.budgets = {f"site-{j}": 2.0 for j in range(13)}
    watch.step("scaling", 1, 1, {f"site-{j}": 0.1 * j for j in range(13)})
    assert "ε spent by 13 sites: at least 0%, median 30%, at most 60% of their budgets" in shown(watch)
    watch.budgets = dict.fromkeys(watch.budgets, float("inf"))
    assert "ε" not in shown(watch)


# --- Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roundz = 3\n" + STUDY, "'roundz' is not known there; expected rounds"),
        (STUDY.replace("rounds = 3", 'rounds = "3"'), "rounds='3'; expected a whole number"),
        (STUDY.replace("rounds = 3", "rounds = 0"), "rounds=0"),
        (STUDY.replace("epsilon = 4.0", "epsilon = 0"), "epsilon=0; expected a number above 0"),
        (STUDY + '[data]\ndataset = "adult"\nsplit = "E"\n', "data: split='E'"),
        (STUDY + '[data]\ndataset = "adult"\nsplit = "A"\nsites = 2\n', "both [data] and [[site]]"),
        ("evaluation = 0.1\n" + STUDY.replace("logistic", "linear"), "evaluation=0.1; expected it with two classes"),
        (STUDY.replace("west.csv", "east.csv"), "site west: file="),
    ],
)
def test_a_bad_study_is_refused_in_one_sentence_and_nothing_is_made(
    run: Run, folder: Path, tmp_path: Path, text: str, words: str
) -> None:
    path = folder / "bad.toml"
    path.write_text(text)
    code, out, error = run("simulate", path, "--out", tmp_path / "out", *SEED)
    assert (code, out) == (2, "")
    assert error.startswith("tacit: study=")
    assert words in error
    assert error.count("\n") == 1
    assert not re.search(r"[.!?]\s\S", error), f"more than one sentence: {error}"
    assert not list(tmp_path.glob("out/*"))


def test_a_study_that_is_not_there_is_refused_and_so_are_folders_and_seeds(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    for study, options, words in (
        ("no.toml", ("--out", tmp_path / "out"), "study=no.toml: No such file"),
        (folder / "study.toml", ("--out", tmp_path / "taken"), "can be written to"),
        (folder / "study.toml", ("--out", tmp_path / "out", "--insecure-seed", -1), "seed"),
        (folder / "study.toml", (), "--out"),
    ):
        code, out, error = run("simulate", study, *options)
        assert (code, out) == (2, "")
        assert words in error
        assert error.count("\n") == 1


# --- Watched -----------------------------------------------------------------------------------------------------


class Reader(threading.Thread):
    """Somebody who reads the events of a dashboard until they end."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.states: list[dict[str, Any]] = []

    def run(self) -> None:
        with urlopen(f"{self.address}events") as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    self.states.append(json.loads(line[6:]))


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """One for each dashboard that is opened."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    found: list[Reader] = []

    class Read(dashboard.Server):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(Reader(self.address))
            found[-1].start()

    monkeypatch.setattr(dashboard, "Server", Read)
    monkeypatch.setattr(dashboard, "BEAT", 0.005)
    return found


def test_a_study_can_be_watched_from_the_first_round_to_the_last_and_comes_out_the_same(
    run: Run, done: Path, folder: Path, tmp_path: Path, readers: list[Reader]
) -> None:
    code, out, error = run("simulate", folder / "study.toml", "--out", tmp_path / "seen", "--watch", *SEED, "--json")
    assert code == 0
    assert error == f"tacit: watch it at {readers[0].address}\n"
    seen, unseen = ({**found, "files": None} for found in (json.loads(out), result_of(done)))
    assert seen == unseen
    readers[0].join(10)
    states = readers[0].states
    rounds = [state["done"] for state in states if state["phase"] == "inference"]
    assert rounds == sorted(rounds)
    assert rounds[-1] == ROUNDS
    assert states[-1]["title"] == "clinics: a logistic regression of ill at 3 sites"
    assert (states[-1]["state"], states[-1]["words"]) == (
        "finished",
        f"Finished: report.html is in {tmp_path / 'seen'}",
    )
    parts = ("name", "epsilon", "spent", "ledger_spent", "budget")
    shown_of, left_of = (
        [{part: row[part] for part in parts} for row in one] for one in (states[-1]["sites"], unseen["sites"])
    )
    assert shown_of == left_of
    assert states[-1]["seeded"]
    text = json.dumps(states)
    for name in BUDGETS:  # not even how many there are
        assert str(folder / name) not in text
    assert [row["name"] for row in states[-1]["posterior"]["rows"]] == ["age", "sex=M"]


def test_what_is_wrong_with_records_is_not_shown_on_the_page(
    run: Run, folder: Path, tmp_path: Path, readers: list[Reader]
) -> None:
    for name in ("facts.toml", "study.toml", *(f"{name}.csv" for name in RECORDS)):
        shutil.copy(folder / name, tmp_path / name)
    rows = (tmp_path / "north.csv").read_text().splitlines()
    (tmp_path / "north.csv").write_text("\n".join([*rows, "forty-one,F,yes"]) + "\n")
    code, _, error = run("simulate", tmp_path / "study.toml", "--out", tmp_path / "out", "--watch")
    assert code != 0
    assert "north" in error.splitlines()[-1]
    readers[0].join(10)
    assert readers[0].states[-1]["words"] == "Failed. The terminal says why."
    assert "age" not in json.dumps(readers[0].states)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, tacit.cli.app\ntry:\n    tacit.cli.app.main(['simulate', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--insecure-seed" in done.stdout


def test_secure_sums_that_protect_nobody_are_refused_before_a_folder_is_claimed(run: Any, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    top = 'model = "logistic"\nepsilon = 1\ndelta = 1e-5\nsecure_sum = true\nabsent = 2\n'
    study.write_text(top + '[data]\ndataset = "abalone"\nsplit = "equal"\nsites = 5\n')
    code, _, words = run("simulate", study, "--out", tmp_path / "out")
    assert code == 2
    assert "2 may be absent and 1 may" in words
    assert not (tmp_path / "out" / "settings.json").exists()


# --- Models of one's own, and persons ----------------------------------------------------------------------------

OWN = """
from tacit.families import DiagonalGaussian
from tacit.models import LogisticRegression

def made():
    return LogisticRegression(DiagonalGaussian.standard(3, 0.1))
"""


def test_a_model_of_ones_own_is_known_by_its_name_and_the_hash_that_a_command_prints(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_of_cli.py").write_text(OWN)
    code, line, _ = run("study", "hash", "own_of_cli:made")
    assert code == 0
    name, _, digest = line.strip().partition(" = ")
    assert (name, len(digest)) == ('"own_of_cli:made"', len('"sha256:"') + 64)
    assert "own_of_cli" not in sys.modules, "it is read and not run"
    study, out = folder / "own.toml", tmp_path / "out"
    study.write_text(STUDY.replace('"logistic"', '"own_of_cli:made"'))
    assert run("simulate", study, "--out", out, *SEED)[0] == 0
    found = result_of(out)
    assert (found["model"], found["plan"]["method"]) == ("own_of_cli:made", "natural")
    assert [row["name"] for row in found["summary"]] == ["intercept", "age", "sex=M"]
    assert json.loads((out / "settings.json").read_text())["source"] == digest.strip('"')
    assert "Records are used as they are given" in " ".join((out / "statement.txt").read_text().split())
    for odd, words in (
        ("nowhere_at_all:made", "install it first"),
        ("own_of_cli:OWN", "is no model; expected an object"),
    ):
        study.write_text(STUDY.replace('"logistic"', f'"{odd}"'))
        code, _, told = run("simulate", study, "--out", tmp_path / "none", *SEED)
        assert code == 2
        assert words in told
    assert not (tmp_path / "none").exists()


def test_persons_of_a_study_are_its_unit_and_no_feature(run: Run, folder: Path, tmp_path: Path) -> None:
    for name in BUDGETS:
        frame = pd.read_csv(folder / f"{name}.csv")
        frame.assign(patient=[f"{name}-{j % 20}" for j in range(len(frame))]).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    (tmp_path / "facts.toml").write_text(FACTS)
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text('unit = "person"\nmost_records = 2\nperson = "patient"\n' + STUDY.lstrip())
    assert run("simulate", study, "--out", out, *SEED)[0] == 0
    found = result_of(out)
    assert [row["name"] for row in found["summary"]] == ["intercept", "age", "sex=M"]
    assert [row["slots"] for row in found["sites"]] == [20, 20, 20]
    words = " ".join((out / "statement.txt").read_text().split())
    assert "A person with records at two sites is protected at each site by itself" in words
    assert all(ledger.unit == "person" for ledger in ledgers(out).values())
    assert "A person with records at two sites" in unescape((out / "report.html").read_text())
