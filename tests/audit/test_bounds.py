"""The bounds of an audit hold with their confidence.

Statistical tests are seeded and say their false-alarm rates.
"""

import math

import numpy as np
import pytest
from scipy import special, stats

from tacit.audit.bounds import bound, one_run_bound, one_run_epsilon, one_run_p_value
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian

DELTA = 1e-5


def normal(mu: float, runs: int, seed: int) -> np.ndarray:
    """Scores without and with a canary that is a shift by μ."""
    return np.random.default_rng(seed).normal(size=(2, runs)) + np.array([[0.0], [mu]])


# --- Bounds from scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assumption", ["nothing", "gaussian"])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_a_bound_passes_the_truth_no_more_often_than_it_says(assumption, mu):
    # At most 10 % of 200 trials; 36 or more of them have a probability below 3e-4 for a bound that holds.
    truth = accounting.epsilon(Gaussian(1 / mu), DELTA)
    found = [bound(*normal(mu, 400, seed), DELTA, 0.9, assumption).epsilon for seed in range(200)]
    assert sum(epsilon > truth for epsilon in found) < 36


def test_a_bound_without_its_intervals_would_pass_the_truth():
    # The same scores, with counted rates taken for probabilities and the best of all thresholds: what bounds are for.
    mu = 0.3
    truth = accounting.epsilon(Gaussian(1 / mu), DELTA)
    passed = 0
    for seed in range(50):
        out, inside = np.sort(normal(mu, 400, seed))
        rates = [1 - np.searchsorted(part, out[:-1], side="right") / 400 for part in (inside, out)]
        passed += np.max(rates[0] / rates[1]) > math.exp(truth)
    assert passed > 5


def test_bounds_grow_tight_with_runs_and_more_so_if_a_gaussian_is_assumed():
    truth = accounting.epsilon(Gaussian(1.0), DELTA)
    few, many = (bound(*normal(1.0, runs, 0), DELTA).epsilon for runs in (1_000, 100_000))
    assumed = bound(*normal(1.0, 100_000, 0), DELTA, assumption="gaussian").epsilon
    assert few < many < assumed < truth
    assert many > 0.5 * truth
    assert assumed > 0.95 * truth


def test_either_side_may_tell():
    # Half of the runs with the canary score very low, and none very high: only a test of low scores tells.
    rng = np.random.default_rng(0)
    inside = np.where(rng.random(4000) < 0.5, -50.0, rng.normal(size=4000))
    found = bound(rng.normal(size=4000), inside, DELTA)
    assert found.epsilon > 4
    assert not found.is_above
    assert bound(inside, rng.normal(size=4000), DELTA).epsilon > 4, "whichever world it is"


def test_a_rate_of_one_half_each_shows_nothing_and_the_interval_is_the_exact_one():
    same = np.random.default_rng(0).normal(size=(2, 2000))
    assert bound(*same, DELTA).epsilon < 0.1
    # Perfectly told apart: no false alarm and no miss in 800 runs of each kind.
    found = bound(np.zeros(1000), np.ones(1000), DELTA, 0.99)
    most = 1 - 0.005 ** (1 / 800)  # the exact bound on a probability that showed nothing in 800 trials
    assert found.epsilon == pytest.approx(math.log((1 - most - DELTA) / most), rel=1e-9)


def test_scores_that_are_not_numbers_count_as_high():
    out, inside = normal(0.0, 1000, 0)
    assert bound(out, np.full(1000, np.nan), DELTA).epsilon > 4
    assert bound(np.full(1000, np.nan), np.full(1000, np.nan), DELTA).epsilon == 0
    assert bound(inside, np.full(1000, -np.inf), DELTA).epsilon > 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bound([0.0] * 5, [1.0] * 5, DELTA), "5 runs"),
        (lambda: bound([0.0] * 50, [1.0] * 50, 0.0), "delta=0.0"),
        (lambda: bound([0.0] * 50, [1.0] * 50, DELTA, 1.0), "confidence=1.0"),
        (lambda: one_run_bound([1.0], [True], DELTA, 2.0), "confidence=2.0"),
    ],
)
def test_bad_settings_are_refused_with_their_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- One run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_the_p_value_of_one_run_is_the_published_sum(epsilon, delta):
    canaries, guesses, chance = 200, 60, special.expit(epsilon)
    for correct in (0, 20, 45, 60):
        tail = stats.binom.sf(correct - 1, guesses, chance)
        worst = max(
            (
                sum(stats.binom.pmf(correct - j, guesses, chance) for j in range(1, i + 1)) / i
                for i in range(1, correct + 1)
            ),
            default=0.0,
        )
        expected = min(1.0, tail + 2 * canaries * delta * worst)
        assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("mu", "assumption", "published"),
    [
        (1.0, "gaussian", 2.164749),
        (2.0, "nothing", 2.311945),
        (2.0, "gaussian", 4.7218075),
        (4.0, "nothing", 4.395568),
        (4.0, "gaussian", 9.133752),
    ],
)
def test_published_audits_of_one_run_are_met(mu, assumption, published):
    # google-deepmind/jax_privacy at 8967688, tests/auditing_test.py, to a relative 1e-5.
    # As published: 10,000 scores of each kind at the quantiles of a normal distribution; "in" is guessed from a
    # threshold on, the best of all corners of the concave ROC curve, each with its part of the significance.
    count, delta = 10_000, 1e-6
    levels = (np.arange(count) + 0.5) / count
    out, inside = stats.norm.ppf(levels), stats.norm.ppf(levels) + mu
    thresholds = np.union1d(out, inside)
    right = count - np.searchsorted(inside, thresholds)
    wrong = count - np.searchsorted(out, thresholds)
    corners = _hull(np.concatenate([wrong, [0]]), np.concatenate([right, [0]]))
    confidence = 1 - 0.05 / len(corners)
    best, chance = 0.0, 0.5
    order = sorted((pair for pair in corners if sum(pair)), key=lambda pair: _precision(*pair))
    for false, true in order:
        if true / (true + false) <= chance:
            continue
        found = one_run_epsilon(2 * count, int(true + false), int(true), delta, confidence, assumption)
        best = max(best, found)
        chance = special.expit(best)  # fewer right guesses than this cannot show more
    assert best == pytest.approx(published, rel=1e-5)


def _precision(false: int, true: int) -> float:
    """The published order: by an upper bound on the share of wrong guesses."""
    return float(stats.beta.ppf(0.95, false + 1, true)) if true else 1.0


def _hull(x: np.ndarray, y: np.ndarray) -> list[tuple[int, int]]:
    """Corners of the upper hull of points, from right to left."""
    kept: list[tuple[int, int]] = []
    for point in sorted(set(zip(x.tolist(), y.tolist(), strict=True))):
        while len(kept) > 1 and (kept[-1][1] - kept[-2][1]) * (point[0] - kept[-1][0]) <= (point[1] - kept[-1][1]) * (
            kept[-1][0] - kept[-2][0]
        ):
            kept.pop()
        kept.append(point)
    return kept


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_of_randomised_response_passes_its_epsilon_no_more_often_than_it_says(epsilon):
    # Randomised response is the worst that ε allows. At most 10 % of 100 trials; 22 have a probability below 3e-4.
    passed, shown = 0, []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        included = rng.random(500) < 0.5
        scores = np.where(rng.random(500) < special.expit(epsilon), included, ~included) + 1e-6 * rng.random(500)
        found, guesses, correct = one_run_bound(scores, included, 1e-9, 0.9)
        assert correct <= guesses <= 500
        passed += found > epsilon
        shown.append(found)
    assert passed < 22
    assert np.mean(shown) > 0.6 * epsilon


def test_one_run_shows_more_of_a_gaussian_shift_if_it_may_assume_one():
    rng = np.random.default_rng(0)
    included = rng.random(5000) < 0.5
    scores = rng.normal(size=5000) + included
    truth = accounting.epsilon(Gaussian(1.0), DELTA)
    plain, assumed = (one_run_bound(scores, included, DELTA, 0.95, kind)[0] for kind in ("nothing", "gaussian"))
    assert 0.5 < plain < assumed < truth
