"""Ranges, means and variances, paid for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import Released
from tacit.tables.scaling import (
    BINS,
    GUESSED_SPREAD,
    Range,
    Scaling,
    histogram_clip,
    moments_clip,
    range_of,
    release_histogram,
    release_moments,
    scaling_of,
)


def ranged(key: jax.Array, access: Access) -> Released[Range]:
    """The range of each column, from a noised histogram."""
    return release_histogram(key, access).map(lambda counts: range_of(counts, access.mechanism.standard_deviation))


def scaled(key: jax.Array, access: Access, ends: Range) -> Scaling:
    """Location and scale of each column, from noised moments."""
    sums = release_moments(key, access, ends).value
    return scaling_of(sums, ends, access.mechanism.standard_deviation)


def columns(records: int = 4000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [
        rng.normal(50, 10, records),
        rng.uniform(-1e6, 0, records),
        np.full(records, 0.25),
        rng.normal(0, 1e-3, records),
    ]
    return np.column_stack(parts).astype(np.float32)


@pytest.mark.parametrize("mechanism", [Exact(), SubsampledGaussian(histogram_clip(4), 10.0)])
def test_ranges_hold_almost_all_records_and_are_not_much_wider(key, mechanism):
    x = columns()
    found = ranged(key, Access.of(x, mechanism)).value
    low, high = np.asarray(found.low), np.asarray(found.high)
    assert np.mean((x >= low) & (x <= high), axis=0).min() > 0.95  # bins with few records do not show
    assert np.all(high[:2] - low[:2] <= 4 * np.abs(x[:, :2]).max(axis=0))


def test_nothing_shows_where_there_is_only_noise():
    """Empty tables: a bin shows in one of a hundred; more than 4 of 50 do with probability below 1e-3."""
    access = Access.of(np.zeros((0, 4), np.float32), SubsampledGaussian(histogram_clip(4), 5.0), slots=100)
    keys = jax.random.split(tacit.insecure_key(0), 50)
    found = jax.jit(jax.vmap(lambda key: ranged(key, access).value))(keys)
    shown = np.any((np.asarray(found.low) != -1) | (np.asarray(found.high) != 1), axis=1)
    assert shown.sum() <= 4


def test_one_record_fills_one_bin_of_each_column_whatever_its_values():
    worst = np.array([[1e38, -1e38, 0.0, 1.0]], np.float32)
    for x in (worst, np.array([[np.nan, np.inf, -np.inf, 2.0]], np.float32)):
        access = Access.of(x, SubsampledGaussian(histogram_clip(4), 1e-2))
        release = ranged(tacit.insecure_key(0), access)
        assert release.event == Gaussian(1e-2, coordinates=4 * BINS)
        assert np.all(np.isfinite(np.asarray(release.value.low)))


def test_scales_are_those_of_the_records(key):
    x = columns()[:, :2]
    ends = Range(jnp.array([0.0, -1e6]), jnp.array([100.0, 0.0]))
    exact = scaled(key, Access.of(x, Exact()), ends)
    assert np.asarray(exact.location) == pytest.approx(x.mean(axis=0), rel=1e-3)
    assert np.asarray(exact.scale) == pytest.approx(x.std(axis=0), rel=1e-2)
    noised = scaled(jax.random.fold_in(key, 1), Access.of(x, SubsampledGaussian(moments_clip(2), 5.0)), ends)
    assert np.asarray(noised.location) == pytest.approx(x.mean(axis=0), rel=0.02)
    assert np.asarray(noised.scale) == pytest.approx(x.std(axis=0), rel=0.1)
    assert np.asarray(exact(jnp.asarray(x))).std(axis=0) == pytest.approx(1, abs=0.01)


def test_no_record_is_clipped_by_the_moments():
    """(u, u² - ½, 1) has its largest norm at u = ±1, for every number of columns and of records in a unit."""
    u = np.linspace(-1, 1, 101)
    assert np.sqrt(u**2 + (u**2 - 0.5) ** 2 + 1).max() == pytest.approx(moments_clip(1))
    assert moments_clip(3, 2) == pytest.approx(2 * np.sqrt(3 * 1.25 + 1))


def test_noise_alone_blows_up_no_column(key):
    x = np.full((50, 2), 0.5, np.float32)
    ends = Range(jnp.zeros(2), jnp.ones(2))
    found = scaled(key, Access.of(x, SubsampledGaussian(moments_clip(2), 20.0)), ends)
    assert np.asarray(found.scale) == pytest.approx(0.5 * GUESSED_SPREAD, rel=0.2)  # half the range, times the guess
    assert np.all(np.abs(np.asarray(found.location) - 0.5) < 0.5)
    quiet = scaled(jax.random.fold_in(key, 1), Access.of(x, SubsampledGaussian(moments_clip(2), 1.0)), ends)
    least = 0.5 * np.sqrt(
        0.9 * moments_clip(2) / 50
    )  # the count is noised too; a variance below the noise is taken for the noise
    assert np.all(np.asarray(quiet.scale) >= min(least, 0.5 * GUESSED_SPREAD) * (1 - 1e-5))


def test_units_of_several_records_are_counted(key):
    x = columns(900)[:, :2]
    groups = np.arange(900) // 3
    access = Access.of(x, SubsampledGaussian(moments_clip(2, 3), 0.5), groups=groups, most_records=3)
    found = scaled(key, access, Range(jnp.array([0.0, -1e6]), jnp.array([100.0, 0.0])))
    assert np.asarray(found.location) == pytest.approx(x.mean(axis=0), rel=0.05)
    assert np.asarray(found.scale) == pytest.approx(x.std(axis=0), rel=0.15)
