"""Hong's schedules: eq. (10) against constant noise, in the bound and measured, at equal ε."""

import csv
import json
import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import jax

import tacit_reproduce as reproduce
from tacit.data import datasets
from tacit.privacy import accounting
from tacit.privacy.schedules import Schedule, constant, contraction_influence, optimal
from tacit_reproduce import hong
from tacit_reproduce.hong import BY_CURVATURE, DYNAMIC, MOMENTUM, RULES, SMALL_STEPS, UNIFORM, NoiseRule


def at_unit_cost(name: str, steps: int, kappa: float) -> np.ndarray:
    """Noise of each step with Σ 1/σ² as for one step at the quadratic's ε."""
    return hong._together(hong.EPSILON) * optimal(RULES[name].influence(steps, kappa))


def least(name: str, kappa: int, value) -> float:
    steps = hong.best_steps(RULES[name], kappa, value)
    return value(RULES[name], kappa, at_unit_cost(name, steps, kappa))


# --- In theory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [2, 5, 20, 50])
@pytest.mark.parametrize("value", [NoiseRule.bound, NoiseRule.expected])
def test_equation_10_beats_every_constant_schedule(kappa, value):
    """Each at its best of all numbers of steps; in the bound also at every one, as Cauchy and Schwarz have it."""
    assert least(DYNAMIC, kappa, value) < 0.95 * least(UNIFORM, kappa, value)
    if value is NoiseRule.bound:
        for steps in range(2, 12 * kappa, max(1, kappa // 4)):
            dynamic, uniform = (value(RULES[n], kappa, at_unit_cost(n, steps, kappa)) for n in (DYNAMIC, UNIFORM))
            assert dynamic < uniform
            backwards = value(RULES[DYNAMIC], kappa, at_unit_cost(DYNAMIC, steps, kappa)[::-1])
            assert backwards > uniform  # the other way round it is worse than none


def test_all_noise_of_a_comparison_costs_the_same():
    for kappa, steps in ((2, 7), (20, 60)):
        costs = [np.sum(at_unit_cost(name, steps, kappa) ** -2.0) for name in RULES]
        assert costs == pytest.approx([costs[0]] * len(costs), rel=1e-12)


@pytest.mark.parametrize("name", list(RULES))
def test_the_bound_is_above_the_closed_form_where_there_is_one(name):
    rule = RULES[name]
    for kappa in (2, 5, 20):
        for steps in (1, kappa, 4 * kappa, 40 * kappa):
            noise = at_unit_cost(name, steps, kappa)
            bound = rule.bound(kappa, noise)
            assert (bound is None) == (name == MOMENTUM)
            if bound is not None:
                assert rule.expected(kappa, noise) < bound


def test_the_theorems_influence_is_not_the_one_that_counts():
    """The true one is about its square, so that eq. (10) with it does better still."""
    for kappa in (2, 5, 20, 50):
        assert least(BY_CURVATURE, kappa, NoiseRule.expected) < 0.75 * least(DYNAMIC, kappa, NoiseRule.expected)


def test_the_condition_of_theorem_34_does_not_always_make_its_momentum_effect_negative():
    for kappa in (2, 20, 100):
        assert hong.momentum_effect(hong.longest_step(0.3), kappa, 0.3) < 0
        assert hong.momentum_effect(hong.longest_step(0.9), kappa, 0.9) > 10
    assert hong.momentum_effect(1.0, 2, 0.5) == math.inf
    for decay in (0.1, 0.3, 0.45, 0.48):
        gamma = 1 - hong.longest_step(decay) / 50
        assert decay * (1 + math.sqrt(gamma)) <= gamma
        assert hong.momentum_effect(hong.longest_step(decay), 50, decay) < 0


def test_the_closed_form_is_that_of_descent_with_noise():
    """By 4,000 runs of a plain loop, within five standard errors (a false alarm in a million)."""
    rng = np.random.default_rng(0)
    kappa, steps = 5, 12
    for name in (DYNAMIC, MOMENTUM):
        rule, noise = RULES[name], at_unit_cost(name, steps, kappa)
        slopes, centre = hong.eigenvalues(kappa), hong.points().mean(axis=0, dtype=float)
        theta, velocity = np.zeros((4000, hong.DIMENSION)), np.zeros((4000, hong.DIMENSION))
        for t, sigma in enumerate(noise, 1):
            gradient = slopes * (theta - centre) + sigma * hong.CLIP / hong.RECORDS * rng.normal(size=theta.shape)
            velocity = rule.decay * velocity + (1 - rule.decay) * gradient
            theta = theta - rule.learning_rate * velocity / (1 - rule.decay**t)
        found = hong.excess(theta, kappa)
        assert abs(found.mean() - rule.expected(kappa, noise)) < 5 * found.std() / math.sqrt(len(found))


# --- Measured ----------------------------------------------------------------------------------------------------


def test_measured_through_the_mechanism_dynamic_beats_uniform_below_the_bound():
    """At 4 κ steps closed forms are 2.3 apart in ratio; 30 seeds leave errors of a tenth."""
    found = {name: hong.quadratic_row(name, 5, 20, 30) for name in (UNIFORM, DYNAMIC)}
    for row in found.values():
        assert 0.999 * hong.EPSILON <= row["epsilon_spent"] <= hong.EPSILON
        assert row["excess_risk"] < row["bound"]
        assert abs(row["excess_risk"] - row["expected"]) < 5 * row["excess_risk_standard_error"]
        assert row["largest_gradient"] <= hong.CLIP  # nothing was clipped
    uniform, dynamic = found[UNIFORM], found[DYNAMIC]
    errors = math.hypot(uniform["excess_risk_standard_error"], dynamic["excess_risk_standard_error"])
    assert uniform["excess_risk"] - dynamic["excess_risk"] > 3 * errors


def test_clipping_on_the_quadratic_is_refused(monkeypatch):
    monkeypatch.setattr(hong, "CLIP", 1.2)
    with pytest.raises(ValueError, match="raise BALL"):
        hong.quadratic_row(UNIFORM, 2, 2, 2)


def test_every_schedule_of_a_learnt_problem_costs_epsilon():
    problem = hong._digits()
    for method in hong.COMPARED:
        schedule, _ = problem.schedule(method)
        assert schedule.total == problem.steps
        for epsilon in (0.1, 4.0):
            mechanism = hong.calibrated(schedule, epsilon, problem.clip, len(problem.records[1]), 73)
            noise = hong.of_steps(schedule, mechanism)
            assert len(noise) == problem.steps
            bare = Schedule.of(noise).event(1.0)
            assert 0.998 * epsilon < accounting.epsilon(bare, hong.DELTA) <= epsilon


def test_the_gradients_of_adult_are_within_its_clip():
    assert np.linalg.norm(datasets.adult().features, axis=1).max() <= hong.ADULT_CLIP


def test_the_least_loss_has_no_slope():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 3)), (rng.uniform(size=200) < 0.3).astype(float)
    found = hong._least_loss(x, y, 0.1)
    for _ in range(50):
        theta = rng.normal(size=3)
        z = x @ theta
        assert found < np.mean(np.logaddexp(0, z) - y * z) + 0.05 * theta @ theta
    assert found < math.log(2)


def test_a_network_learns_digits_and_merged_levels_are_few():
    row = hong.learnt_row("digits", DYNAMIC, 4.0, 4)
    assert 0.999 * 4 <= row["epsilon_spent"] <= 4
    assert row["accuracy"] > 0.9
    schedule = Schedule.of(optimal(contraction_influence(300, 0.98)))
    assert len(schedule.steps) <= 32
    assert schedule.error < 1e-2
    assert Schedule.of(constant(300)).steps == (300,)


def test_a_quick_run_writes_its_files(tmp_path, monkeypatch, capsys):
    """Less than quick: two schedules at one T, and one on digits."""
    kept = [job for job in hong._quadratic_jobs(True) if job[0] in (UNIFORM, DYNAMIC) and job[3]["is_best"]]
    assert len(kept) == 2
    monkeypatch.setattr(hong, "_quadratic_jobs", lambda quick: kept)
    monkeypatch.setattr(hong, "COMPARED", (UNIFORM,))
    reproduce.run("hong-schedules", tmp_path, quick=True, seeds=2, as_json=False)
    printed = capsys.readouterr().out
    assert "excess risk" in printed
    found = json.loads((tmp_path / "hong-schedules.json").read_text(encoding="utf-8"))
    assert [(row["dataset"], row["method"]) for row in found["rows"]] == [
        ("quadratic", UNIFORM),
        ("quadratic", DYNAMIC),
        ("digits", UNIFORM),
        ("digits", hong.NOT_PRIVATE),
    ]
    assert found["rows"][1]["least_bound"] < found["rows"][0]["least_bound"]
    with (tmp_path / "hong-schedules.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 4
    assert (tmp_path / "hong-schedules.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_measured_over_fifty_seeds_equation_10_beats_the_best_constant_schedule():
    """Each at its own best number of steps, and at the same one, in all curvatures; beyond twice the errors."""
    for kappa in hong.CURVATURES:
        best = {name: hong.best_steps(RULES[name], kappa, NoiseRule.expected) for name in (UNIFORM, DYNAMIC)}
        for steps in (best, dict.fromkeys(best, 4 * kappa)):
            rows = {name: hong.quadratic_row(name, kappa, steps[name], 50) for name in best}
            errors = math.hypot(*(row["excess_risk_standard_error"] for row in rows.values()))
            assert rows[UNIFORM]["excess_risk"] - rows[DYNAMIC]["excess_risk"] > 2 * errors
            assert all(row["excess_risk"] < row["bound"] for row in rows.values())


@pytest.mark.slow
def test_momentum_at_the_theorems_step_stays_below_its_bound():
    steps = hong.best_steps(RULES[SMALL_STEPS], 5, NoiseRule.expected)
    with jax.numpy_dtype_promotion("standard"):  # optax's average raises a float to a whole power
        row = hong.quadratic_row(SMALL_STEPS, 5, steps, 50)
    assert row["excess_risk"] < row["bound"]
    assert abs(row["excess_risk"] - row["expected"]) < 5 * row["excess_risk_standard_error"]


@pytest.mark.slow
def test_adult_is_learnt_at_every_schedule_within_epsilon():
    with jax.numpy_dtype_promotion("standard"):
        rows = [hong.learnt_row("adult", method, 1.0, 2) for method in hong.COMPARED]
    for row in rows:
        assert 0.999 <= row["epsilon_spent"] <= 1
        assert row["accuracy"] > 0.8
        assert 0 < row["excess_risk"] < 0.05
