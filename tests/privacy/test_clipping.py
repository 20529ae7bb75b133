"""Bounded contributions for every input that a table can hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.privacy.clipping import Dense, Linear, Outer, clip_to, clip_weights, per_record, rounding_margin

any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
vectors = hnp.arrays(np.float32, (3, 5), elements=any_float)


@given(vectors, st.sampled_from([1e-12, 0.1, 1.0, 1e6]))
def test_a_clipped_contribution_is_finite_and_within_the_bound(batch, bound):
    for row in batch:
        clipped = np.asarray(clip_to(jnp.asarray(row), bound), np.float64)
        assert np.all(np.isfinite(clipped))
        assert np.linalg.norm(clipped) <= bound * (1 + rounding_margin(5, jnp.float32))
        if not np.all(np.isfinite(row)):
            assert np.all(clipped == 0)


@pytest.mark.parametrize(
    ("row", "clipped"),
    [
        ([3.0, 4.0], [0.6, 0.8]),
        ([0.3, 0.4], [0.3, 0.4]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([np.nan, 1.0], [0.0, 0.0]),
        ([np.inf, 1.0], [0.0, 0.0]),
        ([1e30, 1.0], [0.0, 0.0]),  # its square overflows
        ([-3e18, 4e18], [-0.6, 0.8]),
    ],
)
def test_the_table_of_the_docstring(row, clipped):
    assert np.asarray(clip_to(jnp.array(row, jnp.float32), 1.0)) == pytest.approx(clipped, rel=1e-6)


def test_a_tree_is_clipped_as_one_vector():
    clipped = clip_to({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}, 1.0)
    assert float(clipped["a"][0]) == pytest.approx(0.6)
    assert float(clipped["b"][0, 0]) == pytest.approx(0.8)


@given(hnp.arrays(np.float32, (4,), elements=any_float), hnp.arrays(np.float32, (4, 3), elements=any_float))
def test_a_linear_contribution_is_within_the_bound_whatever_its_factors(coefficients, features):
    batch = Linear(jnp.asarray(coefficients), jnp.asarray(features))
    for i in range(4):
        alone = Linear(batch.coefficients[i : i + 1], batch.features[i : i + 1])
        total = np.asarray(alone.weighted_sum(clip_weights(alone.norms(), 1.0)), np.float64)
        assert np.all(np.isfinite(total))
        assert np.linalg.norm(total) <= 1 + rounding_margin(3, jnp.float32)


@pytest.mark.parametrize(("a", "x"), [(1e25, 1e-25), (1e30, 1e-38), (1e-30, 1e30), (3e38, 1e-45), (1e38, 1e38)])
def test_a_huge_coefficient_does_not_hide_behind_a_feature_that_underflows(a, x):
    """‖x‖² = 0 in single precision would give norm 0 and weight 1: the attack that `Linear.norms` refuses."""
    batch = Linear(jnp.full((1,), a, jnp.float32), jnp.full((1, 100), x, jnp.float32))
    total = np.asarray(batch.weighted_sum(clip_weights(batch.norms(), 1.0)), np.float64)
    assert np.linalg.norm(total) <= 1 + rounding_margin(100, jnp.float32)


def test_a_weight_that_underflows_is_zero():
    assert np.asarray(clip_weights(jnp.array([3e38, 1.0]), 1e-9)) == pytest.approx([0.0, 1e-9])


def test_the_plain_norm_would_let_that_through():
    """The power of the test above."""
    a, x = jnp.float32(1e25), jnp.full((100,), 1e-25, jnp.float32)
    assert float(a * jnp.sqrt(jnp.sum(x**2))) < 1
    assert float(jnp.linalg.norm(np.asarray(a * x, np.float32))) > 5


def random_batch(shape=(6, 3), seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape), jnp.float32), jnp.asarray(rng.normal(size=shape[0]), jnp.float32)


def test_linear_is_dense_of_the_products():
    features, coefficients = random_batch()
    linear, dense = Linear(coefficients, features), Dense(coefficients[:, None] * features)
    weights = jnp.array([1.0, 0.5, 0.0, 1.0, 0.25, 0.0])
    assert np.allclose(linear.norms(), dense.norms(), rtol=1e-6)
    assert np.allclose(linear.weighted_sum(weights), dense.weighted_sum(weights), rtol=1e-5, atol=1e-6)
    for bits in (0, 7):
        high, low = linear.rounded_sum(weights, 1e-5, bits)
        high2, low2 = dense.rounded_sum(weights, 1e-5, bits)
        totals = [np.asarray(h, np.int64) * 2**bits + np.asarray(w, np.int64) for h, w in ((high, low), (high2, low2))]
        assert np.all(np.abs(totals[0] - totals[1]) <= 6)  # one rounding each


@pytest.mark.parametrize("bits", [0, 5, 11])
def test_sums_of_integers_are_exact(bits):
    rng = np.random.default_rng(1)
    whole = rng.integers(-(2**23), 2**23, (500, 4))
    high, low = Dense(jnp.asarray(whole, jnp.float32)).rounded_sum(jnp.ones(500), 1.0, bits)
    assert np.array_equal(np.asarray(high, np.int64) * 2**bits + np.asarray(low, np.int64), whole.sum(axis=0))


def test_a_unit_is_the_sum_of_its_records_and_of_no_others():
    features, coefficients = random_batch()
    present = jnp.array([[True, True, False], [True, False, False]])
    for batch in (Linear(coefficients, features), Dense(coefficients[:, None] * features)):
        grouped = batch.group(present)
        products = np.asarray(coefficients)[:, None] * np.asarray(features)
        assert np.allclose(grouped.weighted_sum(jnp.array([1.0, 0.0])), products[0] + products[1], rtol=1e-5)
        assert np.allclose(grouped.weighted_sum(jnp.array([0.0, 1.0])), products[3], rtol=1e-5)


def test_absent_records_are_silent_even_if_they_are_not_numbers():
    batch = Linear(jnp.array([1.0, jnp.nan]), jnp.array([[1.0], [jnp.inf]]))
    for grouped in (batch.group(jnp.array([[True], [False]])), batch.group(jnp.array([[True, False]]))):
        norms = grouped.norms()
        total = grouped.weighted_sum(clip_weights(norms, 1.0))
        assert np.asarray(total) == pytest.approx([1.0])


def test_per_record_maps_one_record_at_a_time():
    batch = per_record(lambda r: {"g": r[0] * r[1]})((jnp.ones((4, 2)), jnp.arange(4.0)))
    assert np.asarray(batch.weighted_sum(jnp.ones(4))["g"]) == pytest.approx([6.0, 6.0])
    assert jax.tree.leaves(batch.tree)[0].shape == (4, 2)


@pytest.mark.parametrize("bound", [1e-8, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("size", [1e-19, 1e-10, 1.0, 1e10, 9e18])
def test_outer_products_stay_within_the_clip(bound, size):
    """‖a x xᵀ‖ = |a|‖x‖²; a weight that underflows beside a huge x counts as 0."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(5, 3)) * size, jnp.float32)
    a = jnp.asarray(rng.normal(size=5), jnp.float32)
    for i in range(5):
        batch = Outer(a[i : i + 1], x[i : i + 1])
        clipped = np.asarray(batch.weighted_sum(clip_weights(batch.norms(), bound)), np.float64)
        assert np.linalg.norm(clipped) <= bound * (1 + rounding_margin(9, jnp.float32))


def test_outer_products_add_up_as_dense_ones_do():
    rng = np.random.default_rng(1)
    x, a = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((7, 3), (7,)))
    outer, dense = Outer(a, x), Dense(a[:, None, None] * x[:, :, None] * x[:, None, :])
    assert np.asarray(outer.norms()) == pytest.approx(np.asarray(dense.norms()), rel=1e-5)
    weights = clip_weights(outer.norms(), 0.7)
    for ours, theirs in zip(outer.rounded_sum(weights, 1e-3, 8), dense.rounded_sum(weights, 1e-3, 8), strict=True):
        assert np.abs(np.asarray(ours, np.int64) - np.asarray(theirs, np.int64)).max() <= 256
    present = jnp.asarray([[True], [False], [True], [True], [True], [True], [True]])
    kept = outer.group(present).weighted_sum(jnp.ones(7))
    assert np.asarray(kept) == pytest.approx(np.asarray(dense.group(present).weighted_sum(jnp.ones(7))), abs=1e-4)
    pairs = jnp.asarray([[True, False], [True, True], [False, True]])
    both = Outer(a[:6], x[:6]).group(pairs).norms()
    assert np.asarray(both) == pytest.approx(np.asarray(Dense(dense.tree[:6]).group(pairs).norms()), rel=1e-5)
