"""Linear regression, the judge of every solver: judged here by numpy alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.families import DiagonalGaussian, FullGaussian, kl
from tacit.models import LinearRegression

NOISE_SCALE = 0.7
_rng = np.random.default_rng(11)
# Correlated columns, off centre: a diagonal answer is then visibly not the full one.
FEATURES = _rng.normal(size=(15, 3)) @ np.array([[1.0, 0.8, -0.5], [0.0, 0.6, 0.4], [0.0, 0.0, 0.7]]) + 0.3
TARGETS = FEATURES @ np.array([1.0, -2.0, 0.5]) + NOISE_SCALE * _rng.normal(size=15)
PRIOR_MEAN = np.array([0.5, -1.0, 2.0])
PRIOR_COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])


@pytest.fixture(autouse=True, scope="module")
def _double_precision():
    with jax.enable_x64():
        yield


@pytest.fixture(params=["full", "diagonal"])
def model(request) -> LinearRegression:
    if request.param == "full":
        return LinearRegression(FullGaussian.of(PRIOR_MEAN, PRIOR_COVARIANCE), NOISE_SCALE)
    return LinearRegression(DiagonalGaussian.of(PRIOR_MEAN, np.sqrt(np.diag(PRIOR_COVARIANCE))), NOISE_SCALE)


@pytest.fixture
def records():
    return jnp.asarray(FEATURES), jnp.asarray(TARGETS)


def by_hand(model: LinearRegression) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the posterior."""
    is_full = isinstance(model.prior, FullGaussian)
    prior_precision = np.linalg.inv(PRIOR_COVARIANCE if is_full else np.diag(np.diag(PRIOR_COVARIANCE)))
    covariance = np.linalg.inv(prior_precision + FEATURES.T @ FEATURES / NOISE_SCALE**2)
    return covariance @ (prior_precision @ PRIOR_MEAN + FEATURES.T @ TARGETS / NOISE_SCALE**2), covariance


def test_the_exact_posterior_is_the_one_numpy_solves_for(model, records):
    mean, covariance = by_hand(model)
    posterior = model.exact_posterior(records)
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance, covariance, rtol=0, atol=1e-8)


def test_without_records_the_posterior_is_the_prior(model, records):
    posterior = model.exact_posterior(jax.tree.map(lambda leaf: leaf[:0], records))
    np.testing.assert_array_equal(posterior.precision, model.prior.full().precision)
    np.testing.assert_array_equal(posterior.precision_mean, model.prior.full().precision_mean)


def test_two_posteriors_in_sequence_are_one_posterior_of_all_records(model, records):
    first, rest = (jax.tree.map(lambda leaf, part=part: leaf[part], records) for part in (slice(6), slice(6, None)))
    in_sequence = LinearRegression(model.exact_posterior(first), NOISE_SCALE).exact_posterior(rest)
    at_once = model.exact_posterior(records)
    np.testing.assert_allclose(in_sequence.precision, at_once.precision, rtol=1e-12)
    np.testing.assert_allclose(in_sequence.precision_mean, at_once.precision_mean, rtol=1e-12)


def test_the_log_likelihood_is_that_of_scipy(model):
    theta = np.array([0.2, -0.4, 1.1])
    for x, y in zip(FEATURES[:3], TARGETS[:3], strict=True):
        expected = stats.norm.logpdf(y, x @ theta, NOISE_SCALE)
        assert float(model.log_likelihood(theta, (x, y))) == pytest.approx(expected, rel=1e-12)


def test_a_factor_is_the_log_likelihood_up_to_a_constant_in_theta(model):
    thetas = np.random.default_rng(3).normal(size=(20, 3)) * 2
    for x, y in zip(FEATURES[:3], TARGETS[:3], strict=True):
        factor = model.factor((jnp.asarray(x), jnp.asarray(y)))
        natural = thetas @ factor.precision_mean - np.einsum("ni,ij,nj->n", thetas, factor.precision, thetas) / 2
        likelihood = [float(model.log_likelihood(theta, (x, y))) for theta in thetas]
        np.testing.assert_allclose(np.ptp(np.asarray(likelihood) - natural), 0, atol=1e-10)


def test_the_mean_field_optimum_has_the_mean_of_the_posterior(model, records):
    mean, covariance = by_hand(model)
    best = model.mean_field_optimum(records)
    assert isinstance(best, DiagonalGaussian)
    np.testing.assert_allclose(best.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(best.precision, np.diag(np.linalg.inv(covariance)), rtol=1e-8)


def test_every_step_away_from_the_mean_field_optimum_raises_kl(model, records):
    """100 random steps, from tiny to large, in means and log-deviations."""
    exact, best = model.exact_posterior(records), model.mean_field_optimum(records)
    least = float(kl(best.full(), exact))
    rng = np.random.default_rng(5)
    steps = rng.normal(size=(100, 2, 3)) * 10 ** rng.uniform(-2, 0, size=(100, 1, 1))

    @jax.jit
    @jax.vmap
    def divergence(step):
        moved = DiagonalGaussian.of(
            best.mean + best.standard_deviation * step[0], best.standard_deviation * jnp.exp(step[1])
        )
        return kl(moved.full(), exact)

    assert float(jnp.min(divergence(jnp.asarray(steps)))) > least


def test_the_published_update_has_another_mean_and_a_larger_kl(model, records):
    """docs/errata.md, 1: diag(XᵀX) next to the whole of Xᵀy."""
    exact, best = model.exact_posterior(records), model.mean_field_optimum(records)
    published = DiagonalGaussian(exact.precision_mean, jnp.diagonal(exact.precision))
    off = np.abs(np.asarray(published.mean - exact.mean)) / np.asarray(exact.standard_deviation)
    assert off.max() > 1
    assert float(kl(published.full(), exact)) > float(kl(best.full(), exact)) + 1


def test_predictions_have_the_mean_and_deviation_of_the_next_target(model, records):
    mean, covariance = by_hand(model)
    new = np.random.default_rng(8).normal(size=(4, 3))
    for posterior, spread in (
        (model.exact_posterior(records), covariance),
        (model.mean_field_optimum(records), np.diag(1 / np.diag(np.linalg.inv(covariance)))),
    ):
        centre, sd = model.predict(posterior, jnp.asarray(new))
        np.testing.assert_allclose(centre, new @ mean, rtol=1e-8)
        np.testing.assert_allclose(sd**2, np.diag(new @ spread @ new.T) + NOISE_SCALE**2, rtol=1e-8)
