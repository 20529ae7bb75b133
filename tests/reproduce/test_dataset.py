"""Whole sites as the unit, four ways: each spends the same ε, and they rank as theory says."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import tacit_reproduce as reproduce
from tacit_reproduce import dataset
from tacit_reproduce.liu import log_kl


@pytest.mark.parametrize("variant", ["tied", "per-site (3.8)"])
def test_a_variant_stays_within_its_epsilon_and_begins_at_the_prior(variant):
    members, _ = dataset.made_up(6, is_even=True)
    path, epsilon = dataset.paths(variant, members, rounds=2, seeds=2)
    assert path.precision.shape == (2, 3, 2, 2)
    assert 0.99 * dataset.EPSILON < epsilon <= dataset.EPSILON
    np.testing.assert_array_equal(path.precision[:, 0], np.broadcast_to(np.eye(2), (2, 2, 2)))
    assert np.all(np.isfinite(path.precision_mean))


def test_the_exact_posterior_is_that_of_all_records():
    members, exact = dataset.made_up(5, is_even=False)
    x, y = (np.concatenate([site[j] for site in members]).astype(float) for j in (0, 1))
    np.testing.assert_allclose(exact.precision, np.eye(2) + x.T @ x, rtol=1e-4)
    np.testing.assert_allclose(exact.precision_mean, x.T @ y, rtol=1e-4)


@pytest.mark.slow
def test_tied_factors_stay_bounded_where_algorithm_4_walks(tmp_path, capsys):
    # 20 seeds: a deviation is within a third of its expectation but in 1 of a thousand cases.
    members, exact = dataset.made_up(200, is_even=True)
    found = {name: dataset.paths(name, members, dataset.ROUNDS, 20)[0] for name in dataset.VARIANTS}
    noise = {name: np.asarray(path.precision_mean).std(axis=0).mean(axis=1) for name, path in found.items()}
    kl = {name: np.median(log_kl(path, exact)[:, -1]) for name, path in found.items()}
    assert noise["tied"][40] < 1.4 * noise["tied"][10]
    assert noise["central (alg. 4)"][40] > 1.5 * noise["central (alg. 4)"][10]
    assert kl["tied"] < kl["central (alg. 4)"] < kl["per-site (3.8)"]
    reproduce.run("dataset-level", tmp_path, quick=True, seeds=None, as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"variant", "sites", "round", "kl", "epsilon"} <= rows[0].keys()
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".png"}
