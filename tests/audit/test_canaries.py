"""An attacker knows the exact likelihood, and reads as everyone does."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.audit import canaries, runs
from tacit.audit.canaries import Canaried
from tacit.privacy import clipping, mechanism
from tacit.privacy.clipping import Dense, Linear, Outer, per_record
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import Released, repeat

DELTA = 1e-5


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
    batch = canaries._point(Dense(jnp.zeros((5, 40))), jnp.array([1, 2, 3, 0, 2]), 3)
    rows = np.asarray(batch.tree) / canaries.HUGE
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
    assert canaries.total_score(release).shape == (1,)
    many = jax.vmap(twice)(jax.random.split(key, 5))
    assert [leaf.shape for leaf in many.trace] == [(5, 1), (5, 3, 1)]


def test_without_noise_there_is_no_trace_and_an_audit_says_so(key):
    access = Canaried.on(Access.of(RECORDS, Exact()))
    assert access.sum(key, per_record(lambda record: record)).trace == ()
    with pytest.raises(ValueError, match="left no trace"):
        runs.audit(lambda key, access: access.sum(key, per_record(lambda r: r)), access, DELTA, 100, seed=0)


def test_the_score_of_a_row_is_that_of_the_gaussian_between_the_two_sums(key):
    """By hand, at one sum of vectors that are not clipped: (⟨d, z⟩ ± ‖d‖²/2)/σ²."""
    vectors = np.array([[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
    noise = mechanism.SubsampledGaussian(4.0, 2.0)
    without, within = (mechanism.Access.of(part, noise, slots=3) for part in (vectors[1:], vectors))
    each = clipping.per_record(lambda record: record)
    paired = canaries.Paired.of_both(without, within)
    for is_within, rest in ((True, vectors), (False, vectors[1:])):
        release = paired.having([is_within]).sum(jax.random.clone(key), each)
        assert release.event == within.sum(jax.random.clone(key), each).event
        z = np.asarray(release.value, float) - rest.sum(axis=0)
        by_hand = (3 * z[0] + (0.5 if is_within else -0.5) * 9) / 8**2
        assert canaries.total_score(release)[0] == pytest.approx(by_hand, abs=1e-4)
