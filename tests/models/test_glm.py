"""Generalised linear models, judged by scipy and by simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.models import LogisticRegression, PoissonRegression, ProbitRegression

MODELS = [LogisticRegression, ProbitRegression, PoissonRegression]
LINEAR = np.linspace(-6, 6, 25)
DRAWS = 400_000


@pytest.fixture(autouse=True, scope="module")
def _double_precision():
    with jax.enable_x64():
        yield


def by_scipy(model: type, linear: np.ndarray, y: int) -> np.ndarray:
    if model is PoissonRegression:
        return stats.poisson.logpmf(y, np.exp(linear))
    link = stats.logistic if model is LogisticRegression else stats.norm
    return link.logcdf(linear) if y else link.logsf(linear)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_the_log_likelihood_is_that_of_scipy(model, dtype):
    glm = model(DiagonalGaussian.standard(2))
    for y in (0, 1, *([7] if model is PoissonRegression else [])):
        target = np.full(LINEAR.shape, y, dtype)
        found = jax.vmap(glm.of_linear)(jnp.asarray(LINEAR), jnp.asarray(target))
        np.testing.assert_allclose(found, by_scipy(model, LINEAR, y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_record_enters_through_its_inner_product_with_theta(model):
    glm, theta, x = model(DiagonalGaussian.standard(3)), jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 0.3, -0.7])
    record = (x, jnp.array(1))
    assert float(glm.log_likelihood(theta, record)) == float(glm.of_linear(x @ theta, jnp.array(1)))
    slope = jax.grad(glm.of_linear)(x @ theta, jnp.array(1))
    np.testing.assert_allclose(jax.grad(glm.log_likelihood)(theta, record), slope * x, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [0.0, 30.0, 80.0])
def test_gradients_are_finite_for_extreme_values_in_single_precision(model, size):
    """exp(80) is the last round number that single precision holds."""
    glm = model(DiagonalGaussian.standard(2))
    x = jnp.array([1.0, 0.0], jnp.float32)
    for sign in (-1, 1):
        theta = jnp.array([sign * size, 1.0], jnp.float32)
        for y in (0, 1):
            value, gradient = jax.value_and_grad(glm.log_likelihood)(theta, (x, jnp.array(y, jnp.int32)))
            assert value.dtype == jnp.float32
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("model", [LogisticRegression, ProbitRegression])
def test_gradients_of_a_bounded_link_are_finite_far_beyond(model):
    glm = model(DiagonalGaussian.standard(1))
    for linear in (-1e4, 1e4):
        for y in (0, 1):
            slope = jax.grad(glm.of_linear)(jnp.array(linear, jnp.float32), jnp.array(y, jnp.int32))
            assert np.isfinite(slope)


# --- Predictions -------------------------------------------------------------------------------------------------

MEAN = np.array([0.8, -0.5, 0.3])
COVARIANCE = np.array([[0.5, 0.2, 0.0], [0.2, 0.4, -0.1], [0.0, -0.1, 0.3]])
ROWS = np.random.default_rng(4).normal(size=(6, 3))
POSTERIORS = ["diagonal", "full"]


def posterior_and_draws(kind: str) -> tuple[DiagonalGaussian | FullGaussian, np.ndarray]:
    """A posterior and simulated x·θ at each row, (draws, rows)."""
    covariance = COVARIANCE if kind == "full" else np.diag(np.diag(COVARIANCE))
    q = FullGaussian.of(MEAN, covariance) if kind == "full" else DiagonalGaussian.of(MEAN, np.sqrt(np.diag(covariance)))
    return q, np.random.default_rng(6).multivariate_normal(MEAN, covariance, DRAWS) @ ROWS.T


@pytest.mark.parametrize("kind", POSTERIORS)
def test_logistic_predictions_are_within_a_hundredth_of_simulation(kind):
    """The approximation is deterministic; simulation adds at most 0.5/√400000 < 0.001 (false alarms: none expected)."""
    q, linear = posterior_and_draws(kind)
    probability, sd = LogisticRegression(q).predict(q, jnp.asarray(ROWS))
    expected = stats.logistic.cdf(linear).mean(axis=0)
    np.testing.assert_allclose(probability, expected, atol=0.01)
    np.testing.assert_allclose(sd, np.sqrt(expected * (1 - expected)), atol=0.01)
    plug_in = stats.logistic.cdf(ROWS @ MEAN)  # the test sees a prediction that leaves out the uncertainty
    assert np.abs(plug_in - expected).max() > 0.01


@pytest.mark.parametrize("kind", POSTERIORS)
def test_probit_predictions_are_exact(kind):
    """Against 12 means of 400000 draws, at 5 standard errors: false alarms below 1e-5."""
    q, linear = posterior_and_draws(kind)
    probability, sd = ProbitRegression(q).predict(q, jnp.asarray(ROWS))
    each = stats.norm.cdf(linear)
    error = each.std(axis=0) / np.sqrt(DRAWS)
    assert (np.abs(each.mean(axis=0) - probability) < 5 * error).all()
    np.testing.assert_allclose(sd, np.sqrt(probability * (1 - probability)), rtol=1e-12)
    spread = np.asarray(q.full().covariance)
    by_hand = stats.norm.cdf(ROWS @ MEAN / np.sqrt(1 + np.einsum("ni,ij,nj->n", ROWS, spread, ROWS)))
    np.testing.assert_allclose(probability, by_hand, rtol=1e-9)


@pytest.mark.parametrize("kind", POSTERIORS)
def test_poisson_predictions_have_the_moments_of_simulated_counts(kind):
    """Means at 5 standard errors: false alarms below 1e-5. Deviations within 5 %, some ten standard errors.

    Rows are halved: a log-normal rate of large variance has a deviation that no simulation finds.
    """
    q, linear = posterior_and_draws(kind)
    mean, sd = PoissonRegression(q).predict(q, jnp.asarray(ROWS / 2))
    counts = np.random.default_rng(9).poisson(np.exp(linear / 2))
    error = counts.std(axis=0) / np.sqrt(DRAWS)
    assert (np.abs(counts.mean(axis=0) - mean) < 5 * error).all()
    np.testing.assert_allclose(sd, counts.std(axis=0), rtol=0.05)
    without_noise = np.exp(linear / 2).std(axis=0)  # a deviation of the rate alone is seen to be wrong
    assert (without_noise < 0.95 * np.asarray(sd)).any()


def test_a_model_passes_through_jit():
    model = LogisticRegression(tacit.DiagonalGaussian.standard(2))
    found = jax.jit(lambda m, theta: m.log_likelihood(theta, (jnp.ones(2), jnp.array(1))))(model, jnp.zeros(2))
    assert float(found) == pytest.approx(-np.log(2))
