"""Sharma's table 5 and figure 1, on a part of Adult; the slow tests are on all of it."""

import json
import math
import statistics
from dataclasses import replace

import pytest

from tacit.privacy import accounting
from tacit_reproduce import sharma

COLUMNS = {
    "distribution",
    "method",
    "plan",
    "epsilon_max",
    "epsilon_spent",
    "accuracy",
    "log_likelihood",
    "communications",
    "published_accuracy",
    "published_log_likelihood",
}


@pytest.fixture
def small(monkeypatch):
    """A tenth of Adult, fewer updates."""
    table, test = sharma.adult_tables()
    part = replace(table, features=table.features[:4000], target=table.target[:4000])
    few = replace(test, features=test.features[:1000], target=test.target[:1000])
    monkeypatch.setattr(sharma, "adult_tables", lambda: (part, few))
    monkeypatch.setattr(sharma, "ROUNDS", 3)
    monkeypatch.setattr(sharma, "EXACT_UPDATES", 20)
    monkeypatch.setattr(sharma, "GLOBAL_UPDATES", 60)
    monkeypatch.setattr(sharma, "_limit", lambda epsilon, delta: 2)


def test_the_published_budgets_stop_where_the_moments_accountant_does():
    """Errata 7 and 12: one update fewer than published, and much cheaper by PLD."""
    assert [sharma._limit(epsilon, 1e-4) for epsilon in sharma.EPSILONS] == [30, 70, 124]
    assert sharma._limit(0.5, 1e-3) == 41
    for epsilon, tight in zip(sharma.EPSILONS, (0.313, 0.501, 0.690), strict=True):
        limit = sharma._limit(epsilon, 1e-4)
        assert accounting.epsilon(sharma._step_event(limit), 1e-4, "moments") <= epsilon
        assert accounting.epsilon(sharma._step_event(limit + 1), 1e-4, "moments") > epsilon
        assert sharma._spent("C", epsilon) == pytest.approx(tight, abs=1e-3)


@pytest.mark.slow
def test_the_quick_table_has_both_plans_beside_the_published_figures(small, run, tmp_path):
    code, out, err = run("reproduce", "sharma-table5", "--quick", "--out", tmp_path, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert all(set(row) >= COLUMNS for row in rows)
    assert {(row["method"], row["plan"]) for row in rows} >= {
        ("PVI", "published"),
        ("global VI", "published"),
        ("DP-PVI", "published"),
        ("DP-PVI", "tacit"),
        ("product", "tacit"),
    }
    ours = next(row for row in rows if row["plan"] == "tacit" and row["epsilon_max"] == 1)
    assert (ours["published_accuracy"], ours["published_log_likelihood"]) == (0.8246, -0.4070)
    assert ours["epsilon_spent"] <= 1
    assert ours["communications"] == 10 * (3 + 1), "one message of each site for the scaling"
    assert (tmp_path / "sharma-table5.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("distribution", "ABCD")
@pytest.mark.parametrize(("epsilon", "accuracy", "log_likelihood"), [(0.5, 0.847, -0.333), (1.0, 0.849, -0.327)])
def test_the_tacit_plan_reaches_its_figures_on_every_distribution(distribution, epsilon, accuracy, log_likelihood):
    """The mean of 5 seeds after 210 messages; on A 85.26 % and -.3306 at ε = .5, 85.39 % and -.3250 at ε = 1."""
    curves = [sharma._tacit(distribution, seed, epsilon) for seed in range(5)]
    assert statistics.fmean(curve.accuracy[-1] for curve in curves) >= accuracy
    assert statistics.fmean(curve.log_likelihood[-1] for curve in curves) >= log_likelihood
    assert max(curve.communications[-1] for curve in curves) <= 1000


@pytest.mark.slow
@pytest.mark.parametrize("distribution", "ABCD")
def test_pvi_without_privacy_is_the_same_on_every_split(distribution):
    """It was not: a product with a matrix of zeros was miscompiled for the shapes of A and B."""
    assert sharma._tacit(distribution, 0, math.inf).log_likelihood[-1] == pytest.approx(-0.3203, abs=3e-4)


@pytest.mark.slow
def test_pvi_without_privacy_does_not_mind_the_split_and_global_vi_does():
    """Table 5 on C: 85.1 % against 54 % published."""
    assert sharma._tacit("C", 0, math.inf).accuracy[-1] > 0.85
    assert sharma._published_global("C", 0, 5000, 1).accuracy[-1] < 0.75
