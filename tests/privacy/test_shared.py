"""Sums to which each site adds a share of the noise: exact on the lattice, with noise of all, and worth 0 at a site."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.privacy import accounting, events, noise, shared
from tacit.privacy.clipping import per_record, rounding_margin
from tacit.privacy.events import DistributedGaussian, Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, repeat
from tacit.privacy.shared import Layout, SharedGaussian, contributed, integers, layout, told

SITES, HONEST, COLUMNS = 4, 3, 5
MECHANISM = SharedGaussian(1.0, 2.0, sites=SITES, honest=HONEST)
SECOND = SharedGaussian(3.0, 1.5, sites=SITES, honest=HONEST)
sum_up = per_record(lambda record: record)


def access(rows: int, seed: int, mechanism: SubsampledGaussian = MECHANISM, slots: int = 12) -> Access:
    vectors = np.random.default_rng(seed).normal(size=(rows, COLUMNS)).astype(np.float32)
    return Access.of(vectors, mechanism, slots=slots)


def program(key: Any, other: SharedGaussian = SECOND) -> Any:
    """Two sums, through two mechanisms."""

    def run(own: Access) -> Released[Any]:
        first, second = jax.random.split(key)
        return own.sum(first, sum_up).join(own.through(other).sum(second, sum_up))

    return run


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """For mechanisms that no other test has: what is compiled here stays without noise."""
    monkeypatch.setattr(noise, "lattice_gaussian", lambda key, shape: jnp.zeros(shape, jnp.int32))


def test_integers_of_sites_add_up_to_those_of_one_that_has_all_records(monkeypatch):
    silent(monkeypatch)
    own, other = replace(MECHANISM, noise_multiplier=2.1), replace(SECOND, noise_multiplier=1.6)
    parts = [access(rows, seed, own) for seed, rows in enumerate((3, 12, 1, 7))]
    every = np.concatenate([np.asarray(one.records)[np.asarray(one.present)] for one in parts])
    total = sum(integers(contributed(program(insecure_key(j), other), one, 48)) for j, one in enumerate(parts))
    alone = contributed(program(insecure_key(9), other), Access.of(every, own, slots=48), 48)
    np.testing.assert_array_equal(total, integers(alone))
    plan = layout(program(insecure_key(9), other), shared.empty(parts[0]), 48)
    first, second = plan.values(total)
    clipped = every / np.maximum(1, np.linalg.norm(every, axis=1, keepdims=True))
    np.testing.assert_allclose(first, clipped.sum(axis=0), atol=1e-5)
    assert plan.size == 2 * COLUMNS
    assert not np.allclose(first, second)


@pytest.mark.parametrize("bits", [0, 1, 7, 30])
def test_halves_of_integers_are_those_of_64_bits(monkeypatch, bits):
    silent(monkeypatch)
    high = np.array([0, 1, -1, 12345, -(2**29), 2**29], np.int32)
    low = np.array([0, 1, 0, 3, 1, 0], np.uint32) % 2 ** max(bits, 1)
    lattice = noise.Lattice((1.0,), bits, 1)
    if bits == 0:
        low[:] = 0
    halves = lattice.words(insecure_key(0), jnp.asarray(high), jnp.asarray(low))
    np.testing.assert_array_equal(integers(Released(halves)), high.astype(np.int64) * 2**bits + low)


def test_what_a_site_sums_up_is_worth_nothing_to_it():
    """So nothing it does later can depend on its own noise (docs/errata.md, 3)."""
    seen = []

    def run(own: Access) -> Released[Any]:
        found = own.sum(insecure_key(1), sum_up)
        return found.map(lambda total: seen.append(total) or total)

    contributed(run, access(5, 0), 12)
    np.testing.assert_array_equal(seen[0], np.zeros(COLUMNS))


def test_who_knows_the_totals_runs_the_same_program():
    parts = [access(6, seed) for seed in range(SITES)]
    releases = [contributed(program(insecure_key(j)), one, 48) for j, one in enumerate(parts)]
    total = sum(integers(one) for one in releases)
    plan = layout(program(insecure_key(0)), parts[0], 48)
    values = plan.values(total)
    found = told(program(insecure_key(0)), shared.empty(parts[0]), 48, [jnp.asarray(value) for value in values])
    for a, b in zip(found, values, strict=True):
        np.testing.assert_array_equal(a, b)
    assert plan.event == releases[0].event


def test_the_price_names_the_shares_and_counts_the_numbers():
    release = contributed(program(insecure_key(0)), access(5, 0), 48)
    more: dict[str, Any] = {"coordinates": COLUMNS * math.ceil(SITES / 4), "sites": SITES, "honest": HONEST}
    assert release.event == events.compose(DistributedGaussian(2.0, **more), DistributedGaussian(1.5, **more))
    assert events.from_json(events.to_json(release.event)) == release.event
    plain = events.compose(*(Gaussian(s, coordinates=COLUMNS) for s in (2.0, 1.5)))
    assert accounting.epsilon(release.event, 1e-5) == accounting.epsilon(plain, 1e-5)
    many = SharedGaussian(1.0, 2.0, sites=5000, honest=4000).level_events(1, "record", COLUMNS)[0]
    assert many.coordinates == 1250 * COLUMNS  # type: ignore[attr-defined]


def test_numbers_of_a_sum_err_by_no_more_than_is_counted():
    """For each four sites: that a rounded Gaussian differs from a discrete one, and what tables err by."""
    table = len(noise._table().alias) * 2.0**-64  # `randomness.Discrete`
    for sites in (1, 2, 4, 5, 8, 31, 2048, 10_000):
        rounded = stats.norm.expect(lambda z: abs(z * z - 1)) / (48 * sites * noise.SCALE**2)
        event = SharedGaussian(1.0, 2.0, sites=sites, honest=sites).level_events(1, "record", 1)[0]
        assert rounded + sites * (3 * table + 2.0**-60) <= event.coordinates * noise.DRAW_ERROR  # type: ignore[attr-defined]


def test_a_sum_that_is_made_and_not_handed_on_is_refused():
    """A site would send it, and nothing would be paid for it."""

    def careless(own: Access) -> Released[Any]:
        own.sum(insecure_key(2), sum_up)
        return own.sum(insecure_key(3), sum_up)

    for run in (contributed, layout):
        with pytest.raises(ValueError, match="receipt does not list all its sums"):
            run(careless, access(3, 0), 12)


def test_shares_of_the_honest_sites_are_enough_and_hardly_more():
    lattice = MECHANISM._lattice(COLUMNS, 12)
    spread = noise.SCALE * math.sqrt(HONEST) * lattice.spacings[0]
    margin = rounding_margin(COLUMNS, jnp.result_type(float))
    sensitivity = (1 + margin) * 1.0 + lattice.spacings[0] * math.sqrt(COLUMNS) / 2
    assert spread == pytest.approx(2.0 * sensitivity, rel=1e-12)
    assert 2.0 <= spread < 2.0 * 1.001
    assert MECHANISM.standard_deviation == pytest.approx(2.0 * math.sqrt(SITES / HONEST))


def test_noise_in_the_total_is_that_of_all_sites_and_of_the_honest_alone_that_of_the_claim():
    """Kolmogorov-Smirnov with 20,000 draws; each false alarm in a thousand seeds. Two thirds of the noise are seen."""
    width = 20_000
    empty = Access.of(np.zeros((1, width), np.float32), MECHANISM)
    draws = [integers(contributed(lambda own, j=j: own.sum(insecure_key(j), sum_up), empty, 1)) for j in range(SITES)]
    spacing = MECHANISM._lattice(width, 1).spacings[0]
    for count, sd in ((SITES, MECHANISM.standard_deviation), (HONEST, 2.0)):
        total = sum(draws[:count]) * spacing
        assert stats.kstest(total / sd, "norm").pvalue > 1e-3
        assert stats.kstest(total / (1.5 * sd), "norm").pvalue < 1e-6
    together = Access.of(np.zeros((1, width), np.float32), MECHANISM).sum(insecure_key(7), sum_up)
    assert stats.kstest(np.asarray(together.value) / MECHANISM.standard_deviation, "norm").pvalue > 1e-3


def test_a_sum_of_discrete_gaussians_is_one_of_their_variance_to_the_last_digit():
    """Kairouz, Liu & Steinke (2021), theorem 11, with a deviation at which the bound can be seen, and ours."""

    def gaussian(scale: float) -> np.ndarray:
        weights = np.exp(-(np.arange(-80, 81) ** 2) / (2 * scale**2))
        return weights / weights.sum()

    for scale, least in ((0.5, 1e-3), (1.0, 0.0)):
        two, one = np.convolve(gaussian(scale), gaussian(scale)), gaussian(math.sqrt(2) * scale)
        gap = np.max(np.abs(np.log(two[156:165]) - np.log(one[76:85])))
        bound = 10 * math.exp(-2 * math.pi**2 * scale**2 / 2)
        assert least < gap <= bound
    assert 10 * math.exp(-(math.pi**2) * noise.TABLE_SCALE**2) == 0.0


def test_sums_that_could_wrap_are_refused():
    plan = Layout((shared._Sum(1.0, 3, 2**30, Gaussian(1.0)),), Gaussian(1.0))
    plan.check(2**32, 1000)
    with pytest.raises(ValueError, match="could pass 64 bits"):
        plan.check(2**33, 1000)
    with pytest.raises(ValueError, match="could pass 64 bits"):
        Layout((shared._Sum(1.0, 3, 1, Gaussian(1.0)),), Gaussian(1.0)).check(1, 2**63 // noise.LARGEST + 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SharedGaussian(1.0, 2.0, sites=3, honest=4), "honest=4"),
        (lambda: SharedGaussian(1.0, 2.0, 0.5, sites=3, honest=2), "takes all units"),
        (lambda: SharedGaussian(1.0, (2.0, 1.0), sites=3, honest=2), "takes all units"),
        (lambda: contributed(lambda own: own.through(Exact()).sum(insecure_key(0), sum_up), access(3, 0), 12), "Exact"),
        (
            lambda: contributed(
                lambda own: repeat(
                    insecure_key(0), 2, lambda key, level, _: own.at(level).sum(key, sum_up), jnp.zeros(COLUMNS)
                ),
                access(3, 0),
                12,
            ),
            "no site alone knows",
        ),
        (lambda: Layout((), Gaussian(1.0)).values(np.zeros(3, np.int64)), "expected int64"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
