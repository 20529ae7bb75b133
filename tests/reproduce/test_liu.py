"""Figures 4.1 and 4.2 of Liu: one quick run of each, prices by an oracle of our own, and the published statements.

The oracle shares nothing with `tacit.privacy.accounting`: dp-accounting's own PLD accountant, and the moments in closed
form.
"""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import tacit
import tacit_reproduce as reproduce
from tacit.families import DiagonalGaussian, FullGaussian, kl_up_to_constant
from tacit.posterior.diagnostics import kl_to_exact

pytest.importorskip("matplotlib")

from tacit_reproduce import liu, liu_budgets, liu_sites

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("liu")]  # one process, so that its study is run once

Rows = list[dict[str, Any]]
COLUMNS = {
    "plan",
    "method",
    "clip",
    "noise_multiplier",
    "sampling_rate",
    "server_updates",
    "communications",
    "epsilon",
    "epsilon_published_accountant",
    "delta",
    "log_kl",
    "log_kl_standard_error",
    "log_kl_median",
    "improper_runs",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """The rows of a quick run of each figure, which wrote its three files."""
    found = {}
    for name in ("liu-fig41", "liu-fig42"):
        out: Path = tmp_path_factory.mktemp(name)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            reproduce.run(name, out, quick=True, seeds=None, as_json=True)
        result = json.loads(printed.getvalue())
        assert {path.name for path in out.iterdir()} == {f"{name}.{ending}" for ending in ("csv", "json", "png")}
        assert json.loads((out / f"{name}.json").read_text(encoding="utf-8")) == result
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert len((out / f"{name}.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(result["rows"])
        assert any("errata.md, 5 and 6" in note for note in result["notes"])
        found[name] = result["rows"]
    return found


def of(rows: Rows, **wanted: Any) -> Rows:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def texts(rows: Rows) -> Rows:
    return [row for row in rows if "published_epsilon" in row]


# --- Prices ------------------------------------------------------------------------------------------------------


def moments(rate: float, noise: float, steps: int, delta: float = 1e-4) -> float:
    """ε by Liu (2.23) and (2.29) with λ = 1, ..., 32: E₂ is a polynomial, by Mironov et al. (2019), and E₁ is less."""

    def log_moment(order: int) -> float:
        terms = (
            [
                math.lgamma(order + 1)
                - math.lgamma(k + 1)
                - math.lgamma(order - k + 1)
                + (order - k) * math.log1p(-rate)
                + k * math.log(rate)
                + (k * k - k) / (2 * noise**2)
                for k in range(order + 1)
            ]
            if rate < 1
            else [(order**2 - order) / (2 * noise**2)]
        )
        return float(np.logaddexp.reduce(terms))

    return min((steps * log_moment(moment + 1) - math.log(delta)) / moment for moment in range(1, 33))


def pld(rate: float, noise: float, steps: int, delta: float = 1e-4) -> float:
    step: Any = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        step = dp_accounting.PoissonSampledDpEvent(rate, step)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(step, steps).get_epsilon(delta))


def test_both_prices_of_every_published_row_are_the_oracles(rows: dict[str, Rows]) -> None:
    seen = set()
    for row in [row for found in rows.values() for row in found if row.get("steps")]:
        setting = (row["sampling_rate"], row["noise_multiplier"], row["steps"])
        if setting not in seen:
            seen.add(setting)
            assert row["epsilon_published_accountant"] == pytest.approx(moments(*setting), rel=1e-3)
            assert row["epsilon"] == pytest.approx(pld(*setting), rel=5e-3)
            assert row["epsilon"] < row["epsilon_published_accountant"]
    assert len(seen) >= 12


def test_a_tacit_row_meets_its_budget_with_what_was_run(rows: dict[str, Rows]) -> None:
    found = [row for name in rows for row in rows[name] if row.get("budget")]
    assert {row["method"] for row in found} == {"conjugate", "natural steps"}
    for row in found:
        assert row["plan"] == "tacit"
        assert row["epsilon"] <= row["budget"]
    ends = [row for row in found if row["method"] == "conjugate" or row["server_updates"] == liu_budgets.ROUNDS]
    assert all(row["epsilon"] == pytest.approx(row["budget"], rel=2e-3) for row in ends)
    conjugate = of(found, method="conjugate")[0]
    assert conjugate["epsilon"] == pytest.approx(pld(1.0, conjugate["noise_multiplier"], 1), rel=2e-3)


def test_figure_41_costs_what_the_text_says_and_less_by_pld(rows: dict[str, Rows]) -> None:
    early, late = texts(rows["liu-fig41"])
    assert (early["server_updates"], late["server_updates"]) == (100, 500)
    assert (early["published_epsilon"], late["published_epsilon"]) == (100.0, 400.0)
    assert early["epsilon_published_accountant"] == pytest.approx(94.4, abs=0.05)  # "about 100"
    assert late["epsilon_published_accountant"] == pytest.approx(435.1, abs=0.05)  # "above 400"
    assert early["epsilon"] == pytest.approx(70.2, abs=0.1)
    assert late["epsilon"] == pytest.approx(257, abs=0.5)


def test_figure_42_stops_where_the_text_says(rows: dict[str, Rows]) -> None:
    found = texts(rows["liu-fig42"])
    bounds, ends = found[:4], found[4:]
    assert all(row["epsilon_published_accountant"] < row["published_epsilon"] for row in bounds)
    # 5000 steps are far below the bounds of the text; 50,000 come near them.
    shares = [row["epsilon_published_accountant"] / row["published_epsilon"] for row in bounds]
    assert shares == pytest.approx([0.19, 0.96, 0.23, 0.89], abs=0.01)
    assert [row["server_updates"] for row in ends] == [107, 2, 91]  # "about 110", "only 2", "less than 100"
    assert [row["published_server_updates"] for row in ends] == [110, 2, 100]
    assert all(100 < row["epsilon_published_accountant"] < 110 for row in ends)


@pytest.mark.parametrize(("limit", "most"), [(100.0, 1000), (20.0, 1000), (100.0, 7)])
def test_a_run_stops_after_the_first_update_above_the_limit(limit: float, most: int) -> None:
    updates = liu.updates_until(limit, 0.1, 50, most)
    if updates < most:
        assert moments(0.1, 1.0, 50 * (updates - 1)) <= limit < moments(0.1, 1.0, 50 * updates)
    else:
        assert moments(0.1, 1.0, 50 * most) <= limit


# --- Runs --------------------------------------------------------------------------------------------------------


def test_rows_have_the_columns_of_the_figures(rows: dict[str, Rows]) -> None:
    for name, found in rows.items():
        run = [row for row in found if row.get("noise_multiplier") and "published_epsilon" not in row]
        assert all(set(row) >= COLUMNS for row in run)
        assert {row["plan"] for row in run} == {"published", "tacit"}
        sites = 5 if name == "liu-fig41" else 1
        assert all(row["communications"] == sites * row["server_updates"] for row in run)
        assert all(row["log_kl_standard_error"] >= 0 for row in run)
    steps = of(rows["liu-fig42"], method="DP-SGD", sampling_rate=1.0)
    assert all(row["steps"] == row["server_updates"] for row in steps)  # one step for each update
    assert all(row["steps"] == 50 * row["server_updates"] for row in of(rows["liu-fig41"], method="DP-SGD"))


def test_kl_falls_and_a_small_budget_well_spent_beats_a_large_one(rows: dict[str, Rows]) -> None:
    for rate in (0.1, 1.0):
        # Without wobble at these rates: the runs are hardly random.
        curve = [row["log_kl"] for row in of(rows["liu-fig42"], method="DP-SGD", sampling_rate=rate)]
        assert curve == sorted(curve, reverse=True)
        assert curve[-1] < curve[0] - 1
    published = of(rows["liu-fig42"], method="DP-SGD", sampling_rate=0.1)[-1]
    ours = of(rows["liu-fig42"], method="conjugate")[0]
    assert ours["epsilon"] < 1.001 < 36 < published["epsilon"]
    assert ours["log_kl"] < published["log_kl"]
    natural = of(rows["liu-fig41"], method="natural steps")
    assert natural[-1]["log_kl"] < min(row["log_kl"] for row in of(rows["liu-fig41"], method="DP-SGD"))


def test_the_analytic_update_of_the_thesis_has_the_wrong_mean(rows: dict[str, Rows]) -> None:
    (best,) = of(rows["liu-fig41"], method="mean field, optimum")
    (theirs,) = of(rows["liu-fig41"], method="mean field, (4.12)")
    exact = liu.study(5, 200, 3.0, 41).exact()
    mean = np.linalg.solve(np.asarray(exact.precision), np.asarray(exact.precision_mean))
    for row, within in ((best, 1e-9), (theirs, 0.05)):
        found = np.array([row[f"precision_mean_{j}"] / row[f"precision_{j}"] for j in range(2)])
        assert found == pytest.approx(mean, abs=within)
    assert theirs["log_kl"] > best["log_kl"] + 5


@pytest.mark.slow
def test_figure_41_as_printed_does_not_settle_and_with_less_noise_does() -> None:
    data, mechanisms = liu.study(5, 200, 3.0, 41), liu_sites.site_mechanisms()
    printed, small = (
        liu_sites.site_run(data, mechanisms[name], 300, 8) for name in (liu_sites.PRINTED, liu_sites.SMALL)
    )
    assert np.median(printed.log_kl[:, -1]) > 6 > np.median(printed.log_kl[:, 0])  # worse than the prior
    assert printed.improper[:, -1].sum() >= 3 > 0 == small.improper[:, -1].sum()
    assert np.median(small.log_kl[:, 100:]) < 1


# --- Parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_site() -> tuple[Any, Any, Any]:
    """Records, cavity and q of a site in the middle of a run."""
    rng = np.random.default_rng(3)
    x = np.stack([np.ones(40), rng.normal(size=40)], axis=1).astype(np.float32)
    y = (x @ np.array([-1.0, 2.0]) + 3 * rng.normal(size=40)).astype(np.float32)
    cavity = DiagonalGaussian.of(jnp.array([0.5, -0.2]), jnp.array([0.7, 1.3]))
    return (x, y), cavity, DiagonalGaussian.of(jnp.array([-0.3, 0.9]), jnp.array([0.4, 0.6]))


def test_a_published_step_descends_the_local_free_energy(one_site: tuple[Any, Any, Any]) -> None:
    (x, y), cavity, q = one_site
    model = tacit.LinearRegression(cavity, 3.0)

    def loss(parameters: tuple[jax.Array, jax.Array]) -> jax.Array:
        """-F_m / N (4.15), from the families alone."""
        mean, log_variance = parameters
        at = DiagonalGaussian(mean * jnp.exp(-log_variance), jnp.exp(-log_variance))
        squares = jnp.sum((y - x @ mean) ** 2) + jnp.sum(x**2 @ jnp.exp(log_variance))
        return (squares / (2 * 3.0**2) + kl_up_to_constant(at, cavity)) / 40

    start = (q.mean, -jnp.log(q.precision))
    slope = jax.grad(loss)(start)
    access = tacit.Access.of((x, y), tacit.Exact())
    end = liu.DPSGD(1, 0.1, 40)(tacit.insecure_key(0), tacit.Target(cavity, q, model), access).value
    np.testing.assert_allclose(end.mean, start[0] - 0.1 * slope[0], rtol=1e-5)
    np.testing.assert_allclose(-jnp.log(end.precision), start[1] - 0.1 * slope[1], rtol=1e-5)


def test_noise_of_a_published_step_is_that_of_the_lots_mean(one_site: tuple[Any, Any, Any]) -> None:
    """α σ C / L on means and log-variances. 1600 draws: their deviation is off by 2 %, the bound is six times that."""
    records, cavity, q = one_site
    model, solver = tacit.LinearRegression(cavity, 3.0), liu.DPSGD(1, 0.1, 40)
    access = tacit.Access.of(records, tacit.SubsampledGaussian(5.0, 1.0))
    target = tacit.Target(cavity, q, model)
    ends = jax.vmap(lambda key: solver(key, target, access).value)(jax.random.split(tacit.insecure_key(1), 800))
    for found in (ends.mean, jnp.log(ends.precision)):
        assert np.std(np.asarray(found), axis=0) == pytest.approx(np.full(2, 0.1 * 5 / 40), rel=0.12)


def test_log_kl_is_that_of_diagnostics() -> None:
    exact = liu.study(1, 1000, 1.0, 42).exact()
    means, precisions = np.array([[-1.0, 1.9], [0.3, 0.0]]), np.array([[900.0, 1100.0], [1.0, 3.0]])
    diagonal = DiagonalGaussian(jnp.asarray(means * precisions), jnp.asarray(precisions))
    matrices = np.array([[[900.0, -20.0], [-20.0, 1100.0]], [[2.0, 0.5], [0.5, 1.0]]])
    full = FullGaussian(jnp.asarray((matrices @ means[..., None])[..., 0]), jnp.asarray(matrices))
    for q in (diagonal, full):
        each = [type(q)(q.precision_mean[j], q.precision[j]) for j in range(2)]
        expected = [math.log(kl_to_exact(one, exact)) for one in each]
        assert liu.log_kl(q, exact) == pytest.approx(expected, rel=1e-9)
    lost = DiagonalGaussian(jnp.array([math.nan, 1.0]), jnp.array([1.0, 1.0]))
    assert liu.log_kl(lost, exact) == math.inf


def test_checkpoints_begin_at_the_first_update_and_end_at_the_last() -> None:
    assert liu.checkpoints(500, 10)[0] == 1
    assert liu.checkpoints(500, 10)[-1] == 500
    assert liu.checkpoints(1, 10) == [1]
    assert liu.checkpoints(2, 10) == [1, 2]


def test_the_clip_of_statistics_is_seldom_reached_and_more_seldom_with_a_larger_budget() -> None:
    clips = [liu_budgets.conjugate_clip(3.0, epsilon) for epsilon in (0.3, 1.0, 10.0)]
    assert clips[0] == clips[1] < clips[2]
    data = liu.study(5, 200, 3.0, 41)
    length = np.sum(data.x**2, axis=-1)
    norms = np.sqrt(length * data.y**2 + length**2) / 9
    assert 0.02 < np.mean(norms > clips[1]) < 0.15  # θ is farther out than the prior's typical one


# --- Figure 3.3 --------------------------------------------------------------------------------------------------


def test_algorithm_3_costs_more_with_every_site_and_is_claimed_not_to(tmp_path, capsys):
    reproduce.run("liu-fig33", tmp_path, quick=True, seeds=None, as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    real = {(row["sites"], row["rounds"]): row for row in rows if row["method"] == "as it is"}
    claimed = {row["rounds"]: row["epsilon"] for row in rows if row["method"] != "as it is"}
    assert claimed[50] == real[1, 50]["epsilon"]
    # Ten sites in one round have the noise of one in ten: only the sum of 1/σ² counts.
    assert real[10, 1]["epsilon"] == pytest.approx(real[1, 10]["epsilon"], rel=1e-3)
    assert all(row["epsilon"] <= row["epsilon_published_accountant"] for row in rows if row["epsilon"] < 300)
    assert real[10, 50]["epsilon"] > 5 * claimed[50]
