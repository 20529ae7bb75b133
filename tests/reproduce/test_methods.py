"""Methods by one word: what is scored, and how the published claim is judged."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tacit.posterior.posterior import Block
from tacit_reproduce import methods


def clusters(means: np.ndarray, sd: float = 0.01) -> SimpleNamespace:
    """A posterior over the five means."""
    variance = np.full(2, sd**2)
    blocks = {str(k + 1): Block(("a", "b"), mean, variance) for k, mean in enumerate(means)}
    return SimpleNamespace(blocks=blocks, epsilon=1.0)


def test_clusters_are_scored_whatever_their_labels_are():
    _, scored = methods._of_clusters()
    accuracy, log_likelihood, error = scored(clusters(methods.CENTRES))
    assert accuracy > 0.95
    assert error < 0.02
    _, test, _ = methods._mixture()
    squares = ((test[:, None] - methods.CENTRES) ** 2).sum(axis=2)
    density = np.exp(-squares / (2 * 0.5)).mean(axis=1) / (2 * math.pi * 0.5)
    assert log_likelihood == pytest.approx(np.log(density).mean(), abs=1e-3)
    assert scored(clusters(methods.CENTRES[[3, 1, 0, 4, 2]])) == pytest.approx((accuracy, log_likelihood, error))
    assert scored(clusters(methods.CENTRES / 2))[1] < log_likelihood - 0.1


def test_the_claim_that_dpvi_is_ahead_is_judged_at_each_epsilon(monkeypatch):
    scores = {"vi": -0.5, "sep": -0.6, "sgld": -0.4}

    def stand_in(*_):
        return lambda method, epsilon, seed: SimpleNamespace(method=method, epsilon=epsilon), lambda q: (
            0.8,
            scores[q.method],
            0.05,
        )

    monkeypatch.setattr(methods, "_of_classes", stand_in)
    monkeypatch.setattr(methods, "_of_clusters", stand_in)
    outcome = methods.methods(False, 2, list)
    assert len(outcome.rows) == 3 * 3 * 6
    ahead = [row["dpvi_ahead_by"] for row in outcome.rows if row["method"] == "DP-SGLD"]
    assert ahead == pytest.approx([-0.1] * 18)
    assert not any("dpvi_ahead_by" in row for row in outcome.rows if row["method"] != "DP-SGLD")
    assert len(outcome.axes.figure.axes) == 12


def test_simulated_coefficients_are_those_of_the_outcomes():
    x, y, truth = methods.simulated("logistic", 20_000, 3)
    z = truth[0] + x @ truth[1:]
    assert np.mean(y) == pytest.approx(np.mean(1 / (1 + np.exp(-z))), abs=0.02)
    assert np.abs(x).max() <= 3


def test_coverage_counts_truths_within_intervals(monkeypatch):
    def stand_in(link, data, epsilon, delta, *, method, insecure_seed, **_):
        truth = methods.simulated(link, len(data[1]), insecure_seed)[2]
        width = 1.0 if method == "ep" else 0.0
        return SimpleNamespace(
            interval=lambda level: (truth - width, truth + width) if width else (truth + 1, truth + 2)
        )

    monkeypatch.setattr(methods.tacit, "fit", stand_in)
    rows = methods.coverage(True, 2, list).rows
    assert {row["method"]: row["coverage"] for row in rows} == {"VI": 0.0, "EP": 1.0, "SEP": 0.0}
