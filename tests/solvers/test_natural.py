"""Natural-gradient inference: the variational optimum without noise, and honest intervals with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.families import power
from tacit.models import GaussianMixture, LinearRegression, LogisticRegression
from tacit.privacy.events import Composed, Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.solvers import NaturalVI, Target
from tacit.solvers.natural import NaturalStep
from tacit.solvers.quadrature import NODES

DIMENSION, RECORDS = 4, 1500


def made_up(seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(RECORDS, DIMENSION)).astype(np.float32)
    x[:, 0] = 1
    truth = np.array([0.4, -1.0, 0.7, 0.2])
    y = (rng.uniform(size=RECORDS) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    return x, y, truth


def logistic():
    model = LogisticRegression(tacit.DiagonalGaussian.standard(DIMENSION, 2.0))
    return Target(model.prior, model.prior.full(), model)


def exact_optimum(x, y):
    """The fixed point by plain NumPy: Newton steps with a Gauss-Hermite rule, in double precision."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    mean, covariance = np.zeros(DIMENSION), np.zeros((DIMENSION, DIMENSION))
    for _ in range(60):
        spread = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
        p = 1 / (1 + np.exp(-((x @ mean)[:, None] + spread[:, None] * nodes)))
        precision = (x * (p * (1 - p) @ weights)[:, None]).T @ x + np.eye(DIMENSION) / 4
        covariance = np.linalg.inv(precision)
        mean = mean + covariance @ (x.T @ (y - p @ weights) - mean / 4)
    return mean, covariance


def test_without_noise_it_reaches_the_full_variational_optimum(key):
    x, y, _ = made_up()
    q = jax.jit(NaturalVI(Exact(), (5, 5, 5)).__call__)(key, logistic(), Access.of((x, y), Exact())).value
    mean, covariance = exact_optimum(x.astype(float), y)
    assert np.asarray(q.mean) == pytest.approx(mean, abs=0.01 * np.sqrt(covariance.diagonal().min()))
    assert np.asarray(q.covariance) == pytest.approx(covariance, rel=0.01, abs=1e-5)


def test_a_linear_regression_is_solved_exactly_in_one_step(key):
    x, y, _ = made_up()
    model = LinearRegression(tacit.FullGaussian.standard(DIMENSION), 0.7)
    release = NaturalVI(Exact(), (1,))(key, Target(model.prior, model.prior, model), Access.of((x, y), Exact()))
    exact = model.exact_posterior((jnp.asarray(x), jnp.asarray(y)))
    assert np.asarray(release.value.mean) == pytest.approx(np.asarray(exact.mean), abs=1e-4)
    assert np.asarray(release.value.standard_deviation) == pytest.approx(np.asarray(exact.standard_deviation), rel=1e-3)


def test_a_diagonal_start_gives_the_mean_field_optimum(key):
    x, y, _ = made_up()
    target = logistic()
    access = Access.of((x, y), Exact())
    full = NaturalVI(Exact(), (6, 6))(key, target, access).value
    diagonal = NaturalVI(Exact(), (6, 6))(key, Target(target.cavity, full.diagonal(), target.likelihood), access).value
    assert isinstance(diagonal, tacit.DiagonalGaussian)
    assert np.asarray(diagonal.precision) == pytest.approx(np.diagonal(full.precision), rel=0.01)


def test_the_receipt_is_the_price_of_curvature_and_gradients(key):
    x, y, _ = made_up()
    access = Access.of((x, y), SubsampledGaussian(2.0, 5.0))
    solver = NaturalVI(SubsampledGaussian(1.0, 7.0), (2, 3))
    gradient, curvature = Gaussian(5.0, coordinates=DIMENSION), Gaussian(7.0, coordinates=DIMENSION**2)
    expected = Composed((curvature, Repeated(gradient, 2), curvature, Repeated(gradient, 3)))
    assert tacit.price(solver, key, logistic(), access) == expected
    assert solver(key, logistic(), access).event == expected


RUNS = 300


def fits(solver: NaturalVI, mechanism: SubsampledGaussian):
    x, y, _ = made_up()
    access = Access.of((x, y), mechanism)
    keys = jax.random.split(tacit.insecure_key(5), RUNS)
    mean, covariance = jax.jit(jax.vmap(lambda k: solver.moments(k, logistic(), access).value))(keys)
    exact, spread = exact_optimum(x.astype(float), y)
    return np.asarray(mean, float), np.asarray(covariance, float), exact, spread


def covers(mean, covariance, exact, spread) -> bool:
    """Whether the noise in the mean is what the covariance adds to the exact one's, coordinate by coordinate.

    The mean over runs of (m - exact)² / added variance is a χ² over RUNS; the linear recursion is an approximation, so
    30 % off is allowed on either side, far outside of which the broken version lies.
    """
    added = np.array([np.diagonal(c) for c in covariance]) - np.diagonal(spread)
    ratio = np.mean((mean - mean.mean(axis=0)) ** 2, axis=0) / np.mean(added, axis=0)
    return bool(np.all((ratio > 0.5) & (ratio < 1.3)))


@pytest.mark.slow
def test_the_covariance_knows_of_the_noise():
    mechanism, curvature = SubsampledGaussian(3.0, 10.0), SubsampledGaussian(1.0, 10.0)
    assert covers(*fits(NaturalVI(curvature, (8, 8)), mechanism))
    assert not covers(*fits(NaturalVI(curvature, (8, 8), noise_aware=False), mechanism))


def test_nothing_but_noise_gives_back_the_prior_or_something_wider(key):
    """At noise far above the data the curvature is disbelieved, and the intervals are at least the prior's."""
    x, y, _ = made_up()
    solver = NaturalVI(SubsampledGaussian(1.0, 1e5), (8, 8))
    _, covariance = jax.jit(solver.moments)(key, logistic(), Access.of((x, y), SubsampledGaussian(3.0, 1e5))).value
    assert np.all(np.diagonal(covariance) > 3.9)  # the prior's variance is 4


def test_sums_in_parts_change_nothing(key, monkeypatch):
    """Also a guard: XLA's CPU compiler once miscompiled a product with a constant matrix inside the loop over parts."""
    x, y, _ = made_up()
    access = Access.of((x, y), Exact())
    whole = jax.jit(NaturalVI(Exact(), (2, 2)).moments)(key, logistic(), access).value
    monkeypatch.setattr("tacit.privacy.mechanism.MOST_NUMBERS", 200)
    parts = jax.jit(NaturalVI(Exact(), (2, 2)).moments)(key, logistic(), access).value
    for a, b in zip(whole, parts, strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), rel=1e-3, abs=1e-5)


def test_a_model_without_a_linear_predictor_is_refused(key):
    model = GaussianMixture(2, 2)
    access = Access.of(np.zeros((5, 2), np.float32), Exact())
    with pytest.raises(ValueError, match="use VI"):
        NaturalVI(Exact(), (2,))(key, Target(model.prior, model.start(key), model), access)


@pytest.mark.parametrize("settings", [{"steps": ()}, {"steps": (0, 2)}, {"average": 0.0}, {"average": 1.5}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        NaturalVI(Exact(), **settings)


@pytest.mark.slow
def test_intervals_cover_the_truth_over_fresh_data_and_noise():
    """90 % intervals of 200 data sets: between 84 % and 96 %, which chance alone leaves with probability below 1 %."""
    solver = NaturalVI(SubsampledGaussian(1.0, 10.0), (8, 8))
    run = jax.jit(lambda k, a: solver.moments(k, logistic(), a).value)
    hits = []
    for seed in range(200):
        x, y, truth = made_up(seed)
        mean, covariance = run(tacit.insecure_key(seed), Access.of((x, y), SubsampledGaussian(3.0, 10.0)))
        width = stats.norm.ppf(0.95) * np.sqrt(np.diagonal(covariance))
        hits.append(np.abs(np.asarray(mean) - truth) < width)
    assert np.all(np.mean(hits, axis=0) > 0.84)
    assert np.mean(hits) < 0.97


# --- One step, for sites of many ---------------------------------------------------------------------------------

FEW = 40  # records


def site_target(family: type, likelihood=None) -> Target:
    """A q in the middle of a study: it holds a factor of this site's, so the cavity is not the prior."""
    prior = family.standard(DIMENSION, 2.0)
    likelihood = likelihood or LogisticRegression(prior)
    factor = power(family.of(np.linspace(-0.5, 0.5, DIMENSION), np.eye(DIMENSION) if family is FULL else 1.0), 3.0)
    return Target(prior, prior + factor, likelihood, corrects_prior=False)


FULL, DIAGONAL = tacit.FullGaussian, tacit.DiagonalGaussian


def few(mechanism=None, count: int = FEW, dtype: type = np.float64) -> Access:
    x, y, _ = made_up()
    return Access.of((x[:count].astype(dtype), y[:count].astype(dtype)), mechanism or Exact(), slots=FEW)


def expansion(q, spread: bool = True):
    """Σ E[f'] x and Σ E[-f''] xxᵀ by plain NumPy."""
    x, y, _ = made_up()
    x, y = x[:FEW].astype(float), y[:FEW]
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    covariance = np.asarray(q.full().covariance) * spread
    width = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
    p = 1 / (1 + np.exp(-((x @ np.asarray(q.mean))[:, None] + width[:, None] * nodes)))
    weights = weights / weights.sum()
    return x.T @ (y - p @ weights), (x * (p * (1 - p) @ weights)[:, None]).T @ x


@pytest.mark.parametrize("spread", [True, False], ids=["over q", "at its mean"])
@pytest.mark.parametrize("family", [FULL, DIAGONAL])
def test_a_step_makes_the_factor_the_second_order_expansion_at_q(key, family, spread):
    """In units that are not 1, for they are the clip's: the answer is cavity times factor, in natural parameters."""
    with jax.enable_x64():
        target = site_target(family)
        gradient, curvature = expansion(target.start, spread)
        mean = np.asarray(target.start.mean)
        if family is DIAGONAL:
            curvature = np.diagonal(curvature)
        step = NaturalStep(Exact(), spread=spread, units=(0.5, 0.25))
        t = jax.jit(step.__call__)(key, target, few()).value - target.cavity
        np.testing.assert_allclose(t.precision, curvature, atol=1e-9)
        inner = curvature @ mean if family is FULL else curvature * mean
        np.testing.assert_allclose(t.precision_mean, gradient + inner, atol=1e-9)


def test_without_curvature_the_factor_keeps_its_precision(key):
    with jax.enable_x64():
        target = site_target(FULL)
        old = target.start - target.cavity
        t = jax.jit(NaturalStep(None).__call__)(key, target, few()).value - target.cavity
        gradient, _ = expansion(target.start)
        np.testing.assert_allclose(t.precision, old.precision, atol=1e-12)
        np.testing.assert_allclose(t.precision_mean, gradient + old.precision @ target.start.mean, atol=1e-9)


GRADIENT, CURVATURE = Gaussian(5.0, coordinates=DIMENSION), Gaussian(7.0, coordinates=DIMENSION**2)
PRICES = {
    "full": (
        FULL,
        NaturalStep(SubsampledGaussian(1.0, 7.0)),
        SubsampledGaussian(2.0, 5.0),
        Composed((GRADIENT, CURVATURE)),
    ),
    "no curvature": (FULL, NaturalStep(None), SubsampledGaussian(2.0, 5.0), GRADIENT),
    "diagonal": (DIAGONAL, NaturalStep(), SubsampledGaussian(2.0, 5.0), Gaussian(5.0, coordinates=2 * DIMENSION)),
    "sampled": (
        FULL,
        NaturalStep(SubsampledGaussian(1.0, 7.0), units=(0.5, 0.25)),
        SubsampledGaussian(2.0, 5.0, sampling_rate=0.5, buffer=30),
        Composed((TruncatedPoissonSampled(0.5, FEW, 30, GRADIENT), CURVATURE)),
    ),
}


@pytest.mark.parametrize("case", PRICES)
def test_the_price_of_a_step_counts_all_that_it_releases(key, case):
    """From shapes alone. Curvature is released through a mechanism of its own."""
    family, step, mechanism, expected = PRICES[case]
    access = few(mechanism)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), access)
    assert tacit.price(step, key, site_target(family), shapes) == expected


@pytest.mark.parametrize("case", ["sampled", pytest.param("diagonal", marks=pytest.mark.slow)])
def test_the_receipt_of_a_step_is_its_price_on_the_cached_call_too(key, case):
    family, step, mechanism, expected = PRICES[case]
    compiled = jax.jit(step.__call__)
    for each in jax.random.split(key):
        release = compiled(each, site_target(family), few(mechanism))
        assert release.event == expected
        assert release.seeded


def test_gradient_and_curvature_of_a_step_have_noise_of_their_own():
    """Without records both are noise. Were it one and the same, they would correlate at 1.

    200 keys: a correlation of independent noises is beyond 0.35 with probability 5e-7.
    """
    model = LogisticRegression(FULL.standard(1))
    target = Target(model.prior, FULL(jnp.array([0.5]), jnp.array([[2.0]])), model)
    access = Access.of((np.zeros((0, 1), np.float32), np.zeros(0, np.float32)), SubsampledGaussian(1.0, 1.0))
    step = NaturalStep(SubsampledGaussian(1.0, 1.0))
    keys = jax.random.split(tacit.insecure_key(1), 200)
    factors = jax.jit(jax.vmap(lambda key: step(key, target, access).value))(keys)
    curvature = np.ravel(factors.precision) - 1
    gradient = np.ravel(factors.precision_mean) - curvature * 0.25
    assert np.std(curvature) == pytest.approx(1, rel=0.25)
    assert np.std(gradient) == pytest.approx(1, rel=0.25)
    assert abs(np.corrcoef(gradient, curvature)[0, 1]) < 0.35


def test_a_step_of_a_model_without_a_linear_predictor_is_refused(key):
    model = GaussianMixture(2, 2)
    access = Access.of(np.zeros((5, 2), np.float32), Exact())
    with pytest.raises(ValueError, match="use VI"):
        NaturalStep(Exact())(key, Target(model.prior, model.start(key), model), access)
