"""Simulated tasks: what they say of themselves is true."""

import numpy as np
import pytest

import tacit
from tacit.data.simulated import Task, simulate


@pytest.mark.parametrize(
    "model", ["logistic", *(pytest.param(model, marks=pytest.mark.slow) for model in ("linear", "probit", "poisson"))]
)
def test_the_truth_is_behind_the_records(model):
    """Without privacy 5,000 records find it: within five deviations in all coefficients (a false alarm in 1e5)."""
    task = Task(model, 5000, 3, (3,), signal=0.8, balance=2.0 if model == "poisson" else 0.3, skew=0.0)
    found = simulate(task, seed=2, tests=500)
    block = tacit.fit(model, found.table, np.inf, 1e-5).blocks["coefficients"]
    distance = (block.mean - found.truth) / np.sqrt(np.diag(block.covariance))
    assert np.max(np.abs(distance)) < 5
    assert np.max(np.abs(block.mean / np.sqrt(np.diag(block.covariance)))) > 10  # it could have been otherwise
    rows = np.concatenate([np.ones((500, 1)), found.test_features], axis=1)
    z = rows @ found.truth
    assert np.corrcoef(z, found.test_target)[0, 1] > 0.3


def test_sizes_bounds_and_shares_are_as_asked():
    found = simulate(Task("logistic", 4000, 5, (4, 2), balance=0.2, bounds=6.0), seed=0)
    table = found.table
    assert table.features.shape == (4000, 5 + 3 + 1)
    assert found.test_features.shape == (2000, 9)
    assert len(table.numbers) == 5
    assert table.categories == 2
    assert abs(float(np.mean(table.target)) - 0.2) < 0.03
    low, high = table.low[:5], table.high[:5]
    inside = (table.features[:, :5] >= low) & (table.features[:, :5] <= high)
    assert inside.mean() > 0.999
    unbounded = simulate(Task("linear", 100, 2, bounds=0.0), seed=0).table
    assert np.isnan(unbounded.low).all()


def test_a_seed_repeats_and_another_does_not():
    first, again, other = (simulate(Task("probit", 50, 2), seed, 10).table.features for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "settings", [{"model": "cubic"}, {"records": 0}, {"numbers": 0}, {"numbers": -1}, {"categories": (1,)}]
)
def test_what_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        Task(**({"model": "linear", "records": 10, "numbers": 1} | settings))
