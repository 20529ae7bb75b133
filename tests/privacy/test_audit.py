"""An audit's bounds hold with their confidence, its attacker knows the exact likelihood, and it reads as everyone does.

Statistical tests are seeded and say their false-alarm rates.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import tacit
from tacit import auditing
from tacit.privacy import accounting, audit
from tacit.privacy.audit import Bound, Canaried, bound, one_run_bound, one_run_epsilon, one_run_p_value
from tacit.privacy.clipping import Dense, Linear, Outer, per_record
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.noise import Lattice
from tacit.privacy.released import Released, price, repeat

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
        (lambda: Canaried.on(ACCESS, 99), "canaries=99"),
        (lambda: subject().audit(10, seed=0), "runs=10"),
        (
            lambda: replace(subject(), access=Canaried.on(ACCESS, 2)).audit(100, seed=0),
            "canaries=2; a claim is about one",
        ),
        (lambda: subject().audit(100, seed=0, confidence=2.0), "confidence=2.0"),
        (lambda: one_run_bound([1.0], [True], DELTA, 2.0), "confidence=2.0"),
        (lambda: auditing.named("everything", 1.0, DELTA, "worst"), "what='everything'"),
        (lambda: auditing.named("fit", 1.0, DELTA, "yellow"), "canary='yellow'"),
        (lambda: auditing.named("fit", 1.0, DELTA, "worst", steps=3), "settings of vi and mechanism"),
        (lambda: auditing.named("mechanism", 1.0, DELTA, "outlying"), "a mechanism alone has no records"),
        (lambda: auditing.membership(1.0, runs=1, seed=0), "runs=1"),
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


# --- The attacker's access ---------------------------------------------------------------------------------------

RECORDS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
ACCESS = Access.of(RECORDS, SubsampledGaussian(1.0, 2.0, 0.4))
CONTRIBUTIONS = {
    "dense": per_record(lambda record: {"a": record, "b": record[:1] ** 2}),
    "linear": lambda records: Linear({"a": records[:, 0], "b": records[:, 1]}, {"a": records, "b": records**2}),
    "outer": lambda records: Outer(records[:, 0], records),
}


@pytest.mark.parametrize("contribution", CONTRIBUTIONS.values(), ids=CONTRIBUTIONS)
def test_a_canary_that_speaks_for_itself_changes_no_bit_of_a_release(contribution, key):
    plain = ACCESS.sum(key, contribution)
    looked_at = Canaried.on(ACCESS, 2, is_worst=False).sum(jax.random.clone(key), contribution)
    jax.tree.map(np.testing.assert_array_equal, plain.value, looked_at.value)
    assert plain.event == looked_at.event
    assert plain.trace == ()
    assert looked_at.trace[0].shape == (2,)


@pytest.mark.parametrize("contribution", CONTRIBUTIONS.values(), ids=CONTRIBUTIONS)
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_score_is_the_log_likelihood_ratio(contribution, rate, key):
    # By hand: what is left of a release without all others is N(0, σ²) or, with the chance `rate`, N(v, σ²).
    mechanism = SubsampledGaussian(0.7, 2.0, rate)
    access = Canaried.on(Access.of(RECORDS, mechanism))
    release = access.sum(key, contribution)
    sampling_key = jax.random.split(jax.random.clone(key))[0]
    sampler = mechanism.sampler(len(RECORDS))
    taken = np.arange(8)
    if sampler is not None:
        indices, chosen = sampler.draw(sampling_key)
        taken = np.asarray(indices)[np.asarray(chosen)]

    def clipped(rows: np.ndarray) -> np.ndarray:
        batch = contribution(jnp.asarray(rows))
        one = [
            np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(batch.weighted_sum(jnp.eye(len(rows))[j]))])
            for j in range(len(rows))
        ]
        vectors = np.array(one, float).reshape(len(rows), -1)
        return vectors * np.minimum(1, 0.7 / np.linalg.norm(vectors, axis=1, keepdims=True))

    total = np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(release.value)]) * rate
    others = clipped(RECORDS)[[j for j in taken if j != 0]].sum(axis=0)
    canary = np.zeros(len(total))
    canary[0] = 0.7  # the first coordinate, as much as the clip allows
    left, sigma = total - others, 2.0 * 0.7
    ratio = rate * np.exp((left @ canary - canary @ canary / 2) / sigma**2) + 1 - rate
    assert float(release.trace[0][0]) == pytest.approx(math.log(ratio), rel=1e-3, abs=1e-4)


def test_a_canary_of_the_worst_kind_moves_a_sum_by_the_whole_clip(key):
    access = Canaried.on(Access.of(RECORDS, SubsampledGaussian(1.0, 1.0)))
    for contribution in CONTRIBUTIONS.values():
        sums = [access.having([there]).sum(jax.random.clone(key), contribution).value for there in (True, False)]
        moved = jax.tree.leaves(jax.tree.map(lambda a, b: np.asarray(a - b).ravel(), *sums))
        assert np.linalg.norm(np.concatenate(moved)) == pytest.approx(1.0, rel=1e-4)


def test_a_canary_with_fewer_records_than_others_keeps_to_its_own(key):
    groups = np.array([0, 0, 1, 1, 1, 2, 2, 2])
    access = Access.of(RECORDS, SubsampledGaussian(1.0, 2.0), groups=groups, most_records=3)
    for is_worst in (True, False):
        canaried = Canaried.on(access, is_worst=is_worst)
        np.testing.assert_array_equal(canaried.having([True]).present, access.present)
        assert not np.any(canaried.having([False]).present[0])
    plain = access.sum(key, CONTRIBUTIONS["dense"]).value
    found = Canaried.on(access, is_worst=False).having([True]).sum(jax.random.clone(key), CONTRIBUTIONS["dense"]).value
    jax.tree.map(np.testing.assert_array_equal, plain, found)


def test_a_canary_that_is_not_finite_has_a_score_that_is_a_number(key):
    records = RECORDS.copy()
    records[0] = np.inf
    access = Canaried.on(Access.of(records, SubsampledGaussian(1.0, 2.0)), is_worst=False)
    score = access.sum(key, per_record(lambda record: record)).trace[0]
    assert float(score[0]) == 0.0, "it contributes nothing, so nothing tells"


def test_many_canaries_point_in_directions_of_their_own(key):
    batch = audit._point(Dense(jnp.zeros((5, 40))), jnp.array([1, 2, 3, 0, 2]), 3)
    rows = np.asarray(batch.tree) / audit.HUGE
    np.testing.assert_array_equal(rows[1], rows[4])
    np.testing.assert_array_equal(rows[3], 0)
    cosines = np.corrcoef(rows[:3])[np.triu_indices(3, 1)]
    assert np.all(np.abs(cosines) < 0.6)


def test_a_trace_survives_all_that_is_done_with_a_release(key):
    access = Canaried.on(Access.of(RECORDS, SubsampledGaussian(1.0, 2.0)))
    contribution = per_record(lambda record: record)

    def twice(key: Any) -> Released[Any]:
        first = access.sum(key, contribution)
        steps = repeat(
            jax.random.fold_in(key, 1), 3, lambda key, level, _: access.at(level).sum(key, contribution), jnp.zeros(3)
        )
        return first.then(lambda _: steps).map(jnp.sum).join(Released(0.0))

    release = jax.jit(twice)(key)
    assert [leaf.shape for leaf in release.trace] == [(1,), (3, 1)]
    assert audit.total_score(release).shape == (1,)
    many = jax.vmap(twice)(jax.random.split(key, 5))
    assert [leaf.shape for leaf in many.trace] == [(5, 1), (5, 3, 1)]


def test_without_noise_there_is_no_trace_and_an_audit_says_so(key):
    access = Canaried.on(Access.of(RECORDS, Exact()))
    assert access.sum(key, per_record(lambda record: record)).trace == ()
    with pytest.raises(ValueError, match="left no trace"):
        audit.audit(lambda key, access: access.sum(key, per_record(lambda r: r)), access, DELTA, 100, seed=0)


# --- Whole audits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfNoise(SubsampledGaussian):
    """Claims its noise and adds half of it."""

    def _lattice(self, coordinates: int, units: int) -> Lattice:
        sound = super()._lattice(coordinates, units)
        return replace(sound, spacings=tuple(spacing / 2 for spacing in sound.spacings))

    def release(self, key: Any, sums: Any, level: Any, coordinates: int, units: int) -> Any:
        return jax.tree.map(lambda leaf: leaf, SubsampledGaussian.release(self, key, sums, level, coordinates, units))


def subject(rate: float = 1.0, noise: float = 1.5, cls: Any = SubsampledGaussian, steps: int = 2) -> auditing.Subject:
    return auditing.of_mechanism(cls(1.0, noise, rate), DELTA, steps, slots=10)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(1.0, 1.5, 2), (0.3, 1.0, 2), (0.05, 0.7, 10)])
def test_the_mechanism_keeps_its_claim_at_several_rates_and_half_the_noise_does_not(rate, noise, steps):
    # False alarm of each audit: 0.1 %.
    sound, broken = (subject(rate, noise, cls, steps).audit(20_000, seed=1) for cls in (SubsampledGaussian, HalfNoise))
    assert sound.claimed_epsilon == broken.claimed_epsilon
    assert not sound.is_refuted
    assert sound.best.epsilon > 0.1 * sound.claimed_epsilon
    assert broken.best.epsilon > 1.2 * sound.best.epsilon
    if rate == 1:
        assert broken.is_refuted


def test_a_gaussian_shift_is_a_test_of_the_claim_only_where_it_is_the_claim():
    plain, sampled = (subject(rate).audit(1_000, seed=1) for rate in (1.0, 0.3))
    bounds = {
        (look, kind): Bound(1e3 if kind == "gaussian" else 0.1, kind, 0.999, 0.0, True, 0.0, 0.0)
        for look in ("trace", "value")
        for kind in ("nothing", "gaussian")
    }
    assert replace(plain, bounds=bounds).is_refuted
    assert not replace(sampled, bounds=bounds).is_refuted


def test_all_runs_are_one_program_that_is_compiled_once():
    before = audit._one_batch._cache_size()
    seen: list[tuple[int, int]] = []
    found = subject(noise=3.25).audit(5_000, seed=1, batch=500, observe=lambda done, runs: seen.append((done, runs)))
    assert audit._one_batch._cache_size() == before + 1
    assert found.runs == len(found.without) + len(found.within) == 5_000
    assert seen[0] == (500, 5_000)
    assert seen[-1] == (5_000, 5_000)


def test_an_audit_repeats_by_its_seed_and_no_two_runs_share_their_noise():
    first, again, other = (subject().audit(1_000, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.without, again.without)
    assert len(np.unique(np.concatenate([first.without, first.within, other.without]))) == 1_500


def test_the_claim_is_the_price_of_the_program():
    found = subject(noise=2.0, steps=4)
    assert found.event == price(found.program, tacit.insecure_key(0), found.access)
    assert found.audit(200, seed=0).claimed_epsilon == accounting.epsilon(found.event, DELTA)
