"""Measures of posteriors: against closed forms, chance and linear regression, and shown to move when they should."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from tacit.families import DiagonalGaussian, FullGaussian
from tacit.posterior.diagnostics import (
    accuracy,
    calibration,
    calibration_error,
    coverage,
    factor_gap,
    free_energy,
    kl_to_exact,
    local_free_energy,
    log_likelihood,
)

seeds = st.integers(0, 2**32 - 1)
predictions = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


def full(mean, covariance) -> FullGaussian:
    """A Gaussian in double precision."""
    precision = np.linalg.inv(np.atleast_2d(covariance))
    return FullGaussian(precision @ np.atleast_1d(mean), precision)


def random_full(rng: np.random.Generator, dimension: int) -> FullGaussian:
    root = rng.normal(size=(dimension, dimension + 2))
    return FullGaussian(rng.normal(size=dimension), root @ root.T / dimension)


def random_diagonal(rng: np.random.Generator, shape) -> DiagonalGaussian:
    return DiagonalGaussian(rng.normal(size=shape), rng.uniform(0.2, 5, size=shape))


def log_partition(q: DiagonalGaussian | FullGaussian) -> float:
    """A(η) in double precision, by the general formula."""
    matrix = np.diag(q.precision) if isinstance(q, DiagonalGaussian) else q.precision
    h = np.asarray(q.precision_mean)
    return (h @ np.linalg.solve(matrix, h) - np.linalg.slogdet(matrix)[1] + len(h) * math.log(2 * math.pi)) / 2


def plus(*parts):
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *parts)


# --- Predictions ---------------------------------------------------------------------------------------------------


def test_a_tie_counts_as_class_1():
    assert accuracy([0.5, 0.5], [1, 0]) == 0.5
    assert accuracy([0.5], [1]) == 1
    assert accuracy([np.nextafter(0.5, 0)], [1]) == 0


@given(pairs=predictions)
def test_accuracy_turned_round_adds_up_to_one(pairs):
    p, y = map(np.array, zip(*pairs, strict=True))
    assert accuracy(p, y) + accuracy(p, 1 - y) == pytest.approx(1)


def test_log_likelihood_is_the_mean_log_probability_of_what_was_seen():
    expected = (math.log(0.9) + math.log(0.7) + math.log(0.2)) / 3
    assert log_likelihood([0.9, 0.3, 0.2], [1, 0, 1]) == pytest.approx(expected, rel=1e-12)
    assert log_likelihood(jnp.array([0.5]), jnp.array([True])) == pytest.approx(math.log(0.5), rel=1e-12)


@pytest.mark.parametrize(("p", "y"), [(0.0, 1), (1.0, 0)])
def test_what_was_held_impossible_costs_the_log_of_the_least(p, y):
    assert log_likelihood([p], [y]) == pytest.approx(math.log(1e-12), rel=1e-12)
    assert log_likelihood([p], [y], least=0.01) == pytest.approx(math.log(0.01), rel=1e-12)
    assert log_likelihood([p], [1 - y], least=0.01) == pytest.approx(math.log(0.99), rel=1e-12)


@given(pairs=predictions, bins=st.integers(1, 30))
def test_every_record_is_in_the_one_bin_that_holds_its_probability(pairs, bins):
    p, y = map(np.array, zip(*pairs, strict=True))
    rows = calibration(p, y, bins)
    assert [row["low"] for row in rows] == [b / bins for b in range(bins)]
    assert [row["high"] for row in rows] == [(b + 1) / bins for b in range(bins)]
    for row in rows:
        inside = (p >= row["low"]) & ((p < row["high"]) | (row["high"] == 1))
        assert row["count"] == inside.sum()
        if row["count"]:
            assert row["mean_probability"] == pytest.approx(p[inside].mean())
            assert row["share"] == pytest.approx(y[inside].mean())
        else:
            assert row["mean_probability"] is None
            assert row["share"] is None


def test_a_calibrated_predictor_has_a_small_calibration_error_and_an_overconfident_one_a_large_one():
    rng, count, bins = np.random.default_rng(3), 40_000, 10
    p = rng.uniform(size=count)
    y = rng.uniform(size=count) < p
    by_chance = 0.31 * math.sqrt(bins / count)  # √(2/π) · E√(p(1 − p)) · √(B/n), with sd of about a third of it
    assert calibration_error(p, y, bins) < 3 * by_chance  # 6 sd over the mean: under 1e-8 false alarms
    logit = np.log(p / (1 - p))
    overconfident, timid = (1 / (1 + np.exp(-scale * logit)) for scale in (3, 1 / 3))
    for wrong in (overconfident, timid):  # the same ranking, the same accuracy
        assert accuracy(wrong, y) == accuracy(p, y)
        assert calibration_error(wrong, y, bins) > 0.1


@given(pairs=predictions)
def test_calibration_error_of_one_bin_is_the_gap_of_the_means_and_more_bins_never_lower_it(pairs):
    p, y = map(np.array, zip(*pairs, strict=True))
    one = calibration_error(p, y, bins=1)
    assert one == pytest.approx(abs(p.mean() - y.mean()))
    assert one <= calibration_error(p, y, bins=2) + 1e-12 <= calibration_error(p, y, bins=4) + 2e-12


@pytest.mark.parametrize("measure", [accuracy, log_likelihood, calibration, calibration_error])
@pytest.mark.parametrize(
    ("p", "y", "words"),
    [
        ([], [], r"shapes \(0,\) and \(0,\) where \(n,\) is expected"),
        ([0.5], [0, 1], r"shapes \(1,\) and \(2,\)"),
        ([[0.5, 0.5]], [[0, 1]], r"shapes \(1, 2\)"),
        ([0.5, 1.1], [0, 1], r"from 0.5 to 1.1 are not within \[0, 1\]: give no scores"),
        ([0.5, float("nan")], [0, 1], r"not within \[0, 1\]"),
        ([0.5, 0.5], [-1, 1], r"target has -1.0 where 0 or 1 is expected: recode"),
        ([0.5, 0.5], [float("nan"), 1], "target has nan"),
    ],
)
def test_what_is_no_prediction_is_refused(measure, p, y, words):
    with pytest.raises(ValueError, match=words):
        measure(p, y)


def test_a_probability_that_rounding_took_over_1_counts_as_1():
    over = np.nextafter(np.float32(1), np.float32(2))
    assert log_likelihood([over], [1]) == log_likelihood([1.0], [1])
    assert calibration([over], [1])[-1]["mean_probability"] == 1


@pytest.mark.parametrize("least", [0, 0.5, -1, float("nan")])
def test_a_least_that_keeps_nothing_or_everything_is_refused(least):
    with pytest.raises(ValueError, match=r"^least=.* is not in \(0, 0.5\): take 1e-12"):
        log_likelihood([0.5], [1], least)


@pytest.mark.parametrize("bins", [0, 2.0, True, None])
def test_bins_that_are_no_whole_number_are_refused(bins):
    with pytest.raises(ValueError, match=r"^bins=.* is not a whole number of at least 1: take"):
        calibration_error([0.5], [1], bins)


# --- KL ------------------------------------------------------------------------------------------------------------


@given(m=st.floats(-5, 5), s=st.floats(0.1, 10), n=st.floats(-5, 5), t=st.floats(0.1, 10), kind=st.sampled_from("dfmx"))
def test_kl_in_one_dimension_is_the_closed_form(m, s, n, t, kind):
    closed = math.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5
    q, p = (
        full(mean, sd**2) if is_full else DiagonalGaussian(np.array([mean / sd**2]), np.array([sd**-2]))
        for mean, sd, is_full in ((m, s, kind in "fm"), (n, t, kind in "fx"))
    )
    assert kl_to_exact(q, p) == pytest.approx(closed, rel=1e-9, abs=1e-12)


def test_kl_is_the_mean_log_ratio_over_draws_and_not_that_of_the_other_direction():
    rng, draws = np.random.default_rng(0), 100_000
    q, p = (random_full(rng, 3) for _ in range(2))
    laws = [
        multivariate_normal(np.linalg.solve(f.precision, f.precision_mean), np.linalg.inv(f.precision)) for f in (q, p)
    ]
    x = laws[0].rvs(size=draws, random_state=rng)
    ratio = laws[0].logpdf(x) - laws[1].logpdf(x)
    error = ratio.std() / math.sqrt(draws)
    assert abs(kl_to_exact(q, p) - ratio.mean()) < 5 * error  # 6e-7 false alarms
    assert abs(kl_to_exact(p, q) - ratio.mean()) > 5 * error


@given(seed=seeds, dimension=st.integers(1, 6))
def test_kl_is_zero_for_the_same_and_positive_for_another_and_diagonal_or_full_makes_no_difference(seed, dimension):
    rng = np.random.default_rng(seed)
    q, p = random_diagonal(rng, dimension), random_diagonal(rng, dimension)
    dense = [FullGaussian(f.precision_mean, np.diag(f.precision)) for f in (q, p)]
    assert 0 <= kl_to_exact(q, q) < 1e-12
    assert 0 <= kl_to_exact(dense[0], q) < 1e-12
    assert kl_to_exact(q, p) > 0
    for a, b in ((dense[0], dense[1]), (q, dense[1]), (dense[0], p)):
        assert kl_to_exact(a, b) == pytest.approx(kl_to_exact(q, p), rel=1e-9)


def test_kl_does_not_lose_to_single_precision_what_it_is_handed_in_double():
    mean, scale = np.array([3.0, -2.0]), 1e5  # as after 100,000 records: parts of 1e6 that cancel
    q = DiagonalGaussian(scale * mean, np.full(2, scale))
    p = DiagonalGaussian(scale * (mean + 1e-4), np.full(2, scale))
    assert kl_to_exact(q, p) == pytest.approx(scale * 1e-8, rel=1e-6)


def test_kl_of_a_product_is_the_sum_and_takes_jax_arrays_of_any_shape():
    rng = np.random.default_rng(1)
    q, p = ({"a": random_full(rng, 2), "b": {"c": random_diagonal(rng, (2, 3))}} for _ in range(2))
    parts = kl_to_exact(q["a"], p["a"]) + kl_to_exact(q["b"]["c"], p["b"]["c"])
    assert kl_to_exact(q, dict(reversed(p.items()))) == pytest.approx(parts)
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), q)
    assert kl_to_exact(single, p) == pytest.approx(parts, rel=1e-5)


UNIT = DiagonalGaussian(np.zeros(2), np.ones(2))


@pytest.mark.parametrize(
    ("q", "exact", "words"),
    [
        (DiagonalGaussian(np.zeros(2), np.array([1.0, 0.0])), UNIT, "q is improper.*families.project"),
        (UNIT, FullGaussian(np.zeros(2), np.diag([1.0, -1.0])), "exact is improper"),
        (UNIT, DiagonalGaussian(np.zeros(2), np.array([1.0, np.nan])), "exact has NaN or inf"),
        (UNIT, DiagonalGaussian(np.zeros(3), np.ones(3)), "q has 2 coordinates and exact 3"),
        ({"a": UNIT}, {"b": UNIT}, r"q has \[\"q\['a'\]\"\] where exact has"),
        ({"a": UNIT}, UNIT, "give both the same names"),
        ({"a": UNIT}, {"a": 3.0}, r"exact\['a'\] is of type float: give a diagonal or full Gaussian"),
    ],
)
def test_what_has_no_kl_is_refused(q, exact, words):
    with pytest.raises(ValueError, match=words):
        kl_to_exact(q, exact)
    with pytest.raises(ValueError, match=words.replace("exact", "prior")):
        free_energy(0.0, q, exact)


# --- Coverage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_honest_deviations_cover_at_the_level_and_small_ones_below_it(level):
    rng, count = np.random.default_rng(2), 20_000
    mean, sd = rng.normal(size=count), rng.uniform(0.1, 3, size=count)
    truth = mean + sd * rng.normal(size=count)
    chance = 5 * math.sqrt(level * (1 - level) / count)  # 6e-7 false alarms
    assert abs(coverage(mean, sd, truth, level) - level) < chance
    assert coverage(mean, 0.9 * sd, truth, level) < level - chance
    assert coverage(mean, sd / 0.9, truth, level) > level + chance


def test_an_interval_is_closed_and_central():
    assert coverage([0.0, 0.0, 0.0, 0.0], [1.0] * 4, [-1.64, 1.64, -1.65, 1.65]) == 0.5
    assert coverage([1.0], [0.0], [1.0]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0.0], [1.0, 1.0], [0.0]), r"shapes \(1,\), \(2,\) and \(1,\), where equal shapes"),
        (([], [], []), "not empty"),
        (([0.0], [-1.0], [0.0]), "negative sd: leave"),
        (([float("nan")], [1.0], [0.0]), "NaN, inf or"),
        (([0.0], [1.0], [0.0], 1), r"level=1 is not in \(0, 1\): take"),
        (([0.0], [1.0], [0.0], float("nan")), "level=nan"),
    ],
)
def test_what_has_no_coverage_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        coverage(*arguments)


# --- Factor gap ----------------------------------------------------------------------------------------------------


@given(seed=seeds, sites=st.integers(1, 5), off=st.floats(-1, 1).filter(lambda x: abs(x) > 1e-6))
def test_a_product_has_no_gap_and_a_part_that_is_off_is_seen_in_proportion(seed, sites, off):
    rng = np.random.default_rng(seed)
    parts = [{"a": random_full(rng, 2), "b": random_diagonal(rng, (2, 3))} for _ in range(sites)]
    q = plus(*parts)
    assert factor_gap(q, parts) < 1e-15 * sites
    off_by = {"a": FullGaussian(np.array([0.0, off]), np.zeros((2, 2))), "b": jax.tree.map(np.zeros_like, q["b"])}
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves([q, parts]))
    gap = factor_gap(plus(q, off_by), parts)
    assert gap == pytest.approx(abs(off) / largest, rel=0.5)  # the largest may move by `off`
    scaled = jax.tree.map(lambda leaf: 1024 * leaf, (plus(q, off_by), parts))
    assert factor_gap(*scaled) == gap


def test_parts_that_cancel_count_for_the_size():
    def of(number):
        return DiagonalGaussian(np.array([0.0]), np.array([number]))

    assert factor_gap(of(2.0), [of(1000.0), of(-999.0)]) == 1 / 1000


def test_single_precision_arrays_are_added_up_in_double():
    tiny = 2.0**-30  # lost beside 1 in single precision
    parts = [DiagonalGaussian(jnp.ones(1), jnp.ones(1)), DiagonalGaussian(jnp.full(1, tiny), jnp.zeros(1))]
    assert factor_gap(parts[0], parts) == tiny
    assert factor_gap(parts[0] + parts[1], parts) == tiny


def test_nothing_has_no_gap_and_what_is_not_finite_an_infinite_one():
    zero = DiagonalGaussian(np.zeros(2), np.zeros(2))
    assert factor_gap(zero, [zero, zero]) == 0
    assert factor_gap(UNIT, []) == 1
    for bad in (np.nan, np.inf):
        wrong = DiagonalGaussian(np.zeros(2), np.array([1.0, bad]))
        assert factor_gap(wrong, [wrong]) == math.inf
        assert factor_gap(UNIT, [UNIT, wrong]) == math.inf


@pytest.mark.parametrize(
    ("q", "parts", "words"),
    [
        (UNIT, UNIT, "parts is one DiagonalGaussian where a list is expected"),
        ({"a": UNIT}, {"a": UNIT}, "parts is one dict where a list is expected"),
        (
            UNIT,
            [UNIT, FullGaussian(np.zeros(2), np.eye(2))],
            r"parts\[1\] is .*FullGaussian.*: give all of the same families",
        ),
        (UNIT, [DiagonalGaussian(np.zeros(1), np.ones(1))], r"shapes \(1,\) where q has \(2,\)"),
    ],
)
def test_parts_of_another_kind_are_refused(q, parts, words):
    with pytest.raises(ValueError, match=words):
        factor_gap(q, parts)


# --- Free energies -------------------------------------------------------------------------------------------------


@given(seed=seeds, sites=st.integers(1, 5), dimension=st.integers(1, 4), is_full=st.booleans())
def test_local_free_energies_and_log_z_add_up_to_the_global_one(seed, sites, dimension, is_full):
    rng = np.random.default_rng(seed)
    random = random_full if is_full else random_diagonal
    prior, factors = random(rng, dimension), [random(rng, dimension) for _ in range(sites)]
    q = plus(prior, *factors)
    # Of two more that cancel, one is improper, as noise can leave it.
    factors += [jax.tree.map(np.negative, factors[0]), factors[0]]
    expected = rng.normal(size=len(factors)) * 10
    local = sum(local_free_energy(e, q, factor) for e, factor in zip(expected, factors, strict=True))
    log_z = log_partition(q) - log_partition(prior)
    assert free_energy(expected.sum(), q, prior) == pytest.approx(local + log_z, rel=1e-9, abs=1e-9)


def test_free_energies_of_products_and_of_mixed_kinds_are_those_of_one_full_gaussian():
    rng = np.random.default_rng(4)
    q, p = ({"a": random_diagonal(rng, 2), "b": random_diagonal(rng, 1)} for _ in range(2))

    def joined(product):
        h, precision = (
            np.concatenate([getattr(f, name) for f in product.values()]) for name in ("precision_mean", "precision")
        )
        return DiagonalGaussian(h, precision), FullGaussian(h, np.diag(precision))

    for measure in (free_energy, local_free_energy):
        for a in joined(q):
            for b in joined(p):
                assert measure(1.0, q, p) == pytest.approx(measure(1.0, a, b), rel=1e-12)


NOISE = 0.7


def regression(sites: int):
    """Records of linear regression at sites of different size, and a prior."""
    rng = np.random.default_rng(5)
    records = []
    for count in (4, 9, 20)[:sites]:
        x = rng.normal(size=(count, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])
        records.append((x, x @ np.array([1.0, -2.0, 0.5]) + NOISE * rng.normal(size=count)))
    return records, FullGaussian(np.array([0.1, 0.0, -0.2]), np.diag([1.0, 0.5, 2.0]))


def expected_log_likelihood(q: DiagonalGaussian | FullGaussian, x: np.ndarray, y: np.ndarray) -> float:
    """E_q[log p(y | x, θ)] = −n/2 · log 2πσ² − (‖y − xμ‖² + tr(xΣxᵀ)) / 2σ²."""
    matrix = np.diag(q.precision) if isinstance(q, DiagonalGaussian) else q.precision
    covariance = np.linalg.inv(matrix)
    squares = np.sum((y - x @ covariance @ q.precision_mean) ** 2) + np.trace(x @ covariance @ x.T)
    return -len(y) / 2 * math.log(2 * math.pi * NOISE**2) - squares / (2 * NOISE**2)


def exact_factor(x: np.ndarray, y: np.ndarray) -> FullGaussian:
    return FullGaussian(x.T @ y / NOISE**2, x.T @ x / NOISE**2)


def test_in_linear_regression_the_free_energy_of_the_exact_posterior_is_the_log_evidence_and_others_have_less():
    records, prior = regression(3)
    x, y = (np.concatenate(columns) for columns in zip(*records, strict=True))
    exact = plus(prior, exact_factor(x, y))
    covariance = np.linalg.inv(prior.precision)
    evidence = multivariate_normal(
        x @ covariance @ prior.precision_mean, x @ covariance @ x.T + NOISE**2 * np.eye(len(y))
    ).logpdf(y)
    assert free_energy(expected_log_likelihood(exact, x, y), exact, prior) == pytest.approx(evidence, rel=1e-10)
    for q in (prior, plus(exact, prior), FullGaussian(exact.precision_mean, 1.1 * exact.precision)):
        below = free_energy(expected_log_likelihood(q, x, y), q, prior)
        assert below == pytest.approx(evidence - kl_to_exact(q, exact), rel=1e-10)
        assert below < evidence - 1e-3


@pytest.mark.parametrize("kind", ["exact", "damped", "mean-field"])
def test_in_linear_regression_over_three_sites_the_parts_add_up_at_convergence_and_before(kind):
    records, prior = regression(3)
    factors = [exact_factor(*site) for site in records]
    if kind == "damped":
        factors = [
            jax.tree.map(lambda leaf, d=damping: d * leaf, t)
            for damping, t in zip((0.2, 0.5, 0.9), factors, strict=True)
        ]
    if kind == "mean-field":
        factors = [DiagonalGaussian(t.precision_mean, np.diagonal(t.precision)) for t in factors]
        prior = DiagonalGaussian(prior.precision_mean, np.diagonal(prior.precision))
    q = plus(prior, *factors)
    each = [expected_log_likelihood(q, *site) for site in records]
    local = [local_free_energy(e, q, t) for e, t in zip(each, factors, strict=True)]
    log_z = log_partition(q) - log_partition(prior)
    assert free_energy(sum(each), q, prior) == pytest.approx(sum(local) + log_z, rel=1e-10)
    assert abs(log_z) > 1  # without it, or with its sign turned, the parts would not add up


def test_an_exact_factor_leaves_a_free_energy_that_does_not_depend_on_q():
    (x, y), prior = regression(1)[0][0], regression(1)[1]
    constant = -len(y) / 2 * math.log(2 * math.pi * NOISE**2) - y @ y / (2 * NOISE**2)
    rng = np.random.default_rng(6)
    for q in (prior, random_full(rng, 3), random_diagonal(rng, 3)):
        e = expected_log_likelihood(q, x, y)
        assert local_free_energy(e, q, exact_factor(x, y)) == pytest.approx(constant, rel=1e-10)
        assert local_free_energy(e, q, prior) != pytest.approx(constant, rel=1e-3)


def test_a_local_free_energy_needs_a_proper_q_but_no_proper_factor():
    improper = DiagonalGaussian(np.ones(2), np.array([0.0, -1.0]))
    assert local_free_energy(1.0, UNIT, improper) == pytest.approx(1 - 0.5)  # E[log t] = ½ E[θ₂²]
    with pytest.raises(ValueError, match=r"q is improper.*families.project"):
        local_free_energy(1.0, improper, UNIT)
