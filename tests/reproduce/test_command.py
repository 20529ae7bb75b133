"""Reproductions: the command, the three files, and the claims that hold at any size.

Figures 5.1 to 5.5 run here on less than `--quick` has: each different noise is a program to compile.
"""

import csv
import importlib
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tacit
from tacit_reproduce import REPRODUCTIONS, Result, mean_and_error, tables_of

pytest.importorskip("matplotlib")

from tacit_reproduce import jalko, jalko_composition, jalko_logistic, jalko_mixture

NAMES = [f"jalko-fig{number}" for number in (21, 22, 51, 52, 53, 54, 55)]
LOGISTIC = {
    "dataset",
    "plan",
    "method",
    "accountant",
    "adjacency",
    "epsilon",
    "delta",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "clip",
    "clip_per_record",
    "epsilon_pld",
    "epsilon_pld_replace_one",
    "epsilon_in_truth",
    "scaling",
    "accuracy",
    "accuracy_standard_error",
    "log_likelihood",
    "log_likelihood_standard_error",
    "published_accuracy",
}

Run = Callable[..., tuple[int, str, str]]
Rows = list[dict[str, Any]]


@pytest.fixture
def run(run: Run) -> Run:
    """The command `tacit reproduce`."""
    return lambda *arguments: run("reproduce", *arguments)


@pytest.fixture
def rows_of(run: Run, tmp_path: Path) -> Callable[..., Rows]:
    """The rows of a quick run, which wrote the three files, said the same in all of them, and printed nothing else."""

    def rows_of(name: str, *options: object) -> Rows:
        out = tmp_path / "made"
        code, printed, err = run(name, "--quick", "--out", out, "--json", *options)
        assert (code, err) == (0, "")
        found = json.loads(printed)
        assert set(found) == {"name", "source", "quick", "seeds", "notes", "rows"}
        assert (found["name"], found["quick"]) == (name, True)
        assert any("Quick" in note for note in found["notes"])
        assert any("seeded" in note for note in found["notes"]) == (found["seeds"] > 0)
        assert {path.name for path in out.iterdir()} == {f"{name}.{ending}" for ending in ("csv", "json", "png")}
        assert json.loads((out / f"{name}.json").read_text(encoding="utf-8")) == found
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        with (out / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == len(found["rows"]) > 0
        for line, row in zip(lines, found["rows"], strict=True):
            for key, value in row.items():
                if isinstance(value, float):
                    assert float(line[key]) == value
        return found["rows"]

    return rows_of


def only(rows: Rows, **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


# --- The command -------------------------------------------------------------------------------------------------


def test_the_list_has_every_name_and_what_it_is(run: Run) -> None:
    code, out, err = run("--list")
    assert (code, err) == (0, "")
    assert set(NAMES) <= set(REPRODUCTIONS)
    assert [line.split()[0] for line in out.splitlines()] == list(REPRODUCTIONS)
    code, out, _ = run("--list", "--json")
    assert code == 0
    assert list(json.loads(out)) == list(REPRODUCTIONS)


def test_the_list_loads_nothing_heavy() -> None:
    code = "import sys, tacit_reproduce\nassert not {'jax', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_wide_table_is_printed_as_several_and_no_column_is_squeezed(width: int) -> None:
    row = {"method": "natural steps", **{f"column {j}": 1.2345 + j for j in range(12)}}
    outcome = Result([row] * 2, [], {"method": "method", **{f"column {j}": f"column {j}" for j in range(12)}}, None)
    console = Console(width=width, file=io.StringIO())
    made = tables_of("wide", outcome, width)
    for table in made:
        console.print(table)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    assert all(f"column {j} " in printed and f"{1.2345 + j:.4g}" in printed for j in range(12))
    assert printed.count("natural steps") == 2 * len(made)
    assert (len(made) == 1) == (width == 300)


def test_every_name_has_a_function() -> None:
    for name, found in REPRODUCTIONS.items():
        stem = found.module.partition("_")[0]
        assert name == (stem if found.function == stem else f"{stem}-{found.function}")
        assert callable(getattr(importlib.import_module(f"tacit_reproduce.{found.module}"), found.function))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(("jalko-fig99",), "name='jalko-fig99'", id="unknown"),
        pytest.param((), "no name given", id="none"),
        pytest.param(("jalko-fig21", "--seeds", "0"), "seeds=0", id="no-seeds"),
        pytest.param(("jalko-fig22", "--seeds", "3"), "draws nothing at random", id="seeds-without-chance"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert not re.search(r"[.!?]\s+\S", err)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, _, err = run("jalko-fig22", "--out", tmp_path / "taken")
    assert code == 2
    assert f"out={tmp_path / 'taken'}" in err


def test_help_explains_the_command(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(option in out for option in ("--list", "--quick", "--seeds", "--out", "--json"))


def test_the_mean_of_one_seed_has_no_error() -> None:
    assert mean_and_error("x", [2.0]) == {"x": 2.0, "x_standard_error": None}
    found = mean_and_error("x", np.array([1.0, 3.0], np.float32))
    assert found == {"x": 2.0, "x_standard_error": pytest.approx(1.0)}


# --- Figures 2.1 and 2.2 -----------------------------------------------------------------------------------------


def test_advanced_composition_beats_basic_and_pld_beats_both(rows_of: Callable[..., Rows]) -> None:
    rows = rows_of("jalko-fig21")
    for epsilon in (1.0, 4.0, 16.0):
        basic, advanced, tight = (only(rows, method=method, epsilon=epsilon) for method in ("BCT", "ACT", "PLD"))
        assert basic["laplace_scale"] > advanced["laplace_scale"] > tight["laplace_scale"]
        # By how much: threefold at least between BCT and ACT, so 20 runs do not reverse it.
        assert basic["error"] > 2 * advanced["error"]
        assert basic["laplace_scale"] == pytest.approx(500 / epsilon, rel=2e-3)  # 2C = 1, ε / 500 for each step
    assert only(rows, method="no noise")["error"] < 0.1


def test_a_seeded_run_repeats_and_prints_a_table(run: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        code, out, err = run("jalko-fig21", "--quick", "--seeds", 2, "--out", tmp_path / folder)
        assert (code, err) == (0, "")
        assert "BCT" in out
        assert "error of w" in out
    one, two = ((tmp_path / folder / "jalko-fig21.csv").read_bytes() for folder in ("one", "two"))
    assert one == two


def test_advanced_needs_more_noise_than_moments_and_moments_more_than_pld(
    rows_of: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jalko_composition, "QUICK_PASSES", (1,))
    rows = rows_of("jalko-fig22")
    methods = ["ACT, textbook", "ACT", "moments", "PLD", "PLD, replace-one"]
    assert [row["method"] for row in rows] == methods
    sigmas = [row["sigma"] for row in rows]
    assert sigmas == sorted(sigmas, reverse=True)
    assert [row["sigma_relative_to"] for row in rows] == ["C"] * 4 + ["2C"]
    assert rows[0]["published_sigma"] == 2.0


def test_the_textbook_noise_rises_to_the_published_six() -> None:
    assert jalko_composition.textbook_sigma(1.0, 1e-3, 0.005, 2000) == pytest.approx(6.0, abs=0.2)


# --- Figures 5.1 to 5.3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "columns"), [("abalone", 8), ("adult", 14)])
def test_published_features_are_standardised_codes_without_a_constant(name: str, columns: int) -> None:
    data = jalko_logistic._published_records(name)
    assert data.features.shape[1] == data.test_features.shape[1] == columns
    exact = data.features.astype(float)
    assert exact.mean(axis=0) == pytest.approx(np.zeros(columns), abs=1e-5)
    assert exact.std(axis=0) == pytest.approx(np.ones(columns), abs=1e-5)
    if name == "abalone":  # I, F, M in equal steps
        assert np.diff(np.unique(data.features[:, 0])) == pytest.approx([1.2, 1.2], abs=0.05)


@pytest.mark.slow
def test_figure_51_runs_the_published_plan_and_any_further_entry(
    rows_of: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_two(name: str, quick: bool) -> list[Any]:
        return jalko_logistic._published_plan(name, quick)[:2] if name == "abalone" else []

    def another(name: str, quick: bool) -> list[Any]:
        assert quick
        row = dict.fromkeys(LOGISTIC) | {"dataset": name, "plan": "another", "method": "another", "epsilon": 1.0}
        return [lambda seeds: row | mean_and_error("accuracy", [0.7] * seeds)]

    monkeypatch.setattr(jalko_logistic, "_PLANS", (first_two, another))
    rows = rows_of("jalko-fig51", "--seeds", 2)
    assert all(set(row) == LOGISTIC for row in rows)
    assert [(row["dataset"], row["plan"]) for row in rows] == [
        ("abalone", "published"),
        ("abalone", "published"),
        ("abalone", "another"),
        ("adult", "another"),
    ]
    plain, private = rows[:2]
    assert plain["method"] == "not private"
    assert (plain["epsilon"], plain["epsilon_pld"], plain["noise_multiplier"], plain["clip"]) == (None,) * 4
    assert private["noise_multiplier"] == pytest.approx(2 * 6.0496)  # σ is relative to 2C
    assert private["clip_per_record"] == pytest.approx(0.25)  # 5 · .05
    # The price claimed is far above the tight one of the same run, under either adjacency.
    assert private["epsilon_pld"] < private["epsilon_pld_replace_one"] < private["epsilon"]
    assert private["published_accuracy"] == 0.7604
    for row in (plain, private):
        assert (row["epsilon_in_truth"], row["scaling"]) == (None, "from the data, unpaid")
        assert row["accuracy"] == pytest.approx(0.775, abs=0.02)
        assert -0.7 < row["log_likelihood"] < -0.4


@pytest.mark.slow
def test_langevin_as_published_pays_far_more_noise_than_its_claim_needs() -> None:
    (job,) = jalko_logistic._langevin_plan("abalone", quick=True)
    row = job(2)
    assert set(row) >= {"noise_multiplier", "epsilon_pld", "accuracy", "log_likelihood"}
    assert (row["epsilon"], row["steps"], row["method"]) == (0.94, 20, "DP-SGLD, as published")
    assert row["epsilon_pld"] < 0.1 * row["epsilon"]
    assert 0.6 < row["accuracy"] < 0.77
    assert len(jalko_logistic._langevin_plan("adult", quick=False)) == 8


def test_the_full_plan_has_every_method_on_both_data_sets() -> None:
    for name in ("abalone", "adult"):
        settings = [job.args[0] for job in jalko_logistic._published_plan(name, quick=False)]
        methods = {setting.method for setting in settings}
        assert methods == {"not private", "as published", "clip as printed", "pld", "moments", "advanced"}
        assert {setting.dataset for setting in settings} == {name}


@pytest.mark.parametrize(("figure", "swept"), [("52", "sampling_rate"), ("53", "clip")])
def test_figures_52_and_53_sweep_rate_and_clip(
    rows_of: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch, figure: str, swept: str
) -> None:
    """The settings and files; what a setting runs is tested above."""
    seen = []

    def stand_in(setting: Any, seeds: int) -> dict[str, Any]:
        seen.append(setting)
        columns = {"dataset": setting.dataset, "method": setting.method, "published_accuracy": setting.published}
        epsilon = math.inf if setting.sigma is None else 1 / setting.sigma
        columns |= {"epsilon": epsilon, "sampling_rate": setting.sampling_rate, "clip": setting.clip}
        return columns | mean_and_error("accuracy", np.linspace(0.7, 0.8, seeds))

    monkeypatch.setattr(jalko_logistic, "_logistic_row", stand_in)
    rows = rows_of(f"jalko-fig{figure}")
    for name in ("abalone", "adult"):
        private = [row for row in rows if row["dataset"] == name and row["method"] == "as published"]
        assert len({row[swept] for row in private}) == len(private) == 2
    headline = {"52": ("adult", 0.005, 50.0, 0.8142), "53": ("abalone", 0.01, 5.0, 0.7531)}[figure]
    assert headline in [(s.dataset, s.sampling_rate, s.clip, s.published) for s in seen]


def test_windowed_adagrad_divides_by_the_last_ten_gradients() -> None:
    import jax.numpy as jnp

    optimiser = jalko_logistic._windowed_adagrad()
    gradients = np.arange(1, 16, dtype=np.float32)
    state, steps = optimiser.init(jnp.float32(0)), []
    for gradient in gradients:
        step, state = optimiser.update(jnp.asarray(gradient), state)
        steps.append(float(step))
    sums = [np.sum(gradients[max(0, i - 9) : i + 1] ** 2) for i in range(15)]
    assert steps == pytest.approx(-0.1 * gradients / np.sqrt(np.array(sums) + 0.1), rel=1e-5)


def test_scores_of_certain_predictions_are_finite() -> None:
    accuracy, log_likelihood = jalko_logistic.scores(np.float32([1, 0, 1, 0.2]), np.float32([1, 0, 0, 0]))
    assert float(accuracy) == 0.75
    assert math.isfinite(float(log_likelihood))


# --- Figures 5.4 and 5.5 -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figure_54_compares_a_private_mixture_with_the_true_one(
    rows_of: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = jalko_mixture._mixtures(quick=True)[:2]
    assert [setting.method for setting in kept] == ["not private", "pld"]
    monkeypatch.setattr(jalko_mixture, "_mixtures", lambda quick: kept)
    plain, private, true = rows_of("jalko-fig54", "--seeds", 2)
    assert private["epsilon"] == 1.0
    assert private["epsilon_pld"] == pytest.approx(1.0, rel=2e-3)
    assert (private["sampling_rate"], private["steps"], private["clip"]) == (0.03, 1000, 1.0)
    assert (plain["sampling_rate"], plain["steps"]) == (0.01, 2000)
    assert true["method"] == "the true mixture"
    for row in (plain, private):  # a single Gaussian is at -4.1
        assert -4.05 < row["log_likelihood"] < true["log_likelihood"] + 0.02


def test_the_full_figure_54_asks_of_each_accountant_what_it_can_reach() -> None:
    settings = jalko_mixture._mixtures(quick=False)
    assert min(s.epsilon for s in settings if s.accountant == "moments") > -math.log(jalko.DELTA) / 32
    accountants = {"not private", "as published", "pld", "moments", "advanced"}
    assert {s.method for s in settings} == accountants | {jalko.LANGEVIN, jalko.LANGEVIN_PLD}
    row, mechanism = jalko_mixture._Mixture("as published", "moments", 1.0).row()
    plain, _ = jalko_mixture._Mixture("moments", "moments", 1.0).row()
    assert row["noise_multiplier"] == 2 * plain["noise_multiplier"]
    assert isinstance(mechanism, tacit.SubsampledGaussian)


def test_figure_55_draws_five_components_of_each(rows_of: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(setting: Any, mechanism: Any, steps: int, seeds: int) -> Any:
        means = np.tile(jalko_mixture._CENTRES + 0.1, (seeds, 1, 1))
        theta = {"weights": np.full((seeds, 5), 0.2), "means": means, "scales": np.full((seeds, 5), 0.7)}
        return np.full(seeds, -3.7), theta, tacit.events.NonPrivate()

    monkeypatch.setattr(jalko_mixture, "_mixture_run", stand_in)
    rows = rows_of("jalko-fig55")
    methods = ("DPVI", jalko.LANGEVIN_PLD, jalko.LANGEVIN, "not private")
    assert [row["method"] for row in rows] == [method for method in methods for _ in range(5)]
    assert all(row["distance_to_nearest_true_mean"] == pytest.approx(math.hypot(0.1, 0.1)) for row in rows)
