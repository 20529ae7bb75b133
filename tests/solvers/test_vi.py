"""Variational inference: right without noise, priced with it, and quick for the reason it says."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.families import DiagonalGaussian, FullGaussian, is_proper, kl
from tacit.models.glm import LogisticRegression, PoissonRegression, ProbitRegression
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Composed, Gaussian, NonPrivate, Repeated, TruncatedPoissonSampled
from tacit.privacy.released import price
from tacit.solvers.ep import EP
from tacit.solvers.quadrature import NODES
from tacit.solvers.vi import VI, _aligned_gradient, _linear_gradient, _Moments, moments

DIMENSION, COUNT = 3, 200
GLMS = [LogisticRegression, ProbitRegression, PoissonRegression]


def simulated(model: type, count: int = COUNT, seed: int = 0):
    """Correlated features, so that mean-field and full posteriors differ, and a skewed truth."""
    rng = np.random.default_rng(seed)
    x = 0.5 * rng.normal(size=(count, DIMENSION)) @ np.array([[1, 0.5, 0], [0, 1, 0.3], [0, 0, 1]])
    linear = x @ np.array([1.0, -0.5, 0.3])
    y = {
        LogisticRegression: lambda: rng.random(count) < 1 / (1 + np.exp(-linear)),
        ProbitRegression: lambda: rng.normal(size=count) < linear,
        PoissonRegression: lambda: rng.poisson(np.exp(linear)),
        tacit.LinearRegression: lambda: linear + 0.5 * rng.normal(size=count),
    }[model]()
    return x.astype(np.float32), y.astype(np.float32)


def fit(solver: VI | EP, model, start, records, mechanism, seed: int = 0):
    target = tacit.Target(model.prior, start, model)
    access = tacit.Access.of(records, mechanism)
    return jax.jit(lambda k, t, a: solver(k, t, a))(tacit.insecure_key(seed), target, access)


# --- Right without noise -----------------------------------------------------------------------------------------


def test_a_full_gaussian_finds_the_exact_posterior_of_a_linear_regression():
    model = tacit.LinearRegression(FullGaussian.standard(DIMENSION), 0.5)
    records = simulated(tacit.LinearRegression)
    exact = model.exact_posterior(tuple(map(jnp.asarray, records)))
    release = fit(VI(2000, optax.adam(0.03, b2=0.99), path="linear"), model, model.prior, records, tacit.Exact())
    assert float(kl(release.value, exact)) < 1e-3
    assert release.event == Repeated(NonPrivate(), 2000)
    aligned = fit(VI(3000, optax.adam(0.02)), model, model.prior, records, tacit.Exact())
    assert float(kl(aligned.value, exact)) < 0.5  # one draw a step: the noise of Monte Carlo is left


def test_a_diagonal_gaussian_finds_the_mean_field_optimum():
    model = tacit.LinearRegression(DiagonalGaussian.standard(DIMENSION), 0.5)
    records = simulated(tacit.LinearRegression)
    optimum = model.mean_field_optimum(tuple(map(jnp.asarray, records)))
    q = fit(VI(2000, optax.adam(0.03, b2=0.99)), model, model.prior, records, tacit.Exact()).value
    assert float(kl(q, optimum)) < 1e-3


def nuts(model, records):
    from numpyro.infer import MCMC, NUTS

    data = tuple(map(jnp.asarray, records))

    def potential(theta):
        likelihood = jnp.sum(jax.vmap(lambda r: model.log_likelihood(theta, r))(data))
        return -(tacit.families.log_density(model.prior, theta) + likelihood)

    sampler = MCMC(NUTS(potential_fn=potential), num_warmup=300, num_samples=3000, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        sampler.run(jax.random.key(0), init_params=jnp.zeros(DIMENSION))
    return np.asarray(sampler.get_samples())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("glm", [GLMS[0], *(pytest.param(glm, marks=pytest.mark.slow) for glm in GLMS[1:])])
def test_a_posterior_without_noise_agrees_with_nuts(glm):
    """Means within 0.1 sd (and 3 standard errors of NUTS); mean-field sds are those of the conditionals."""
    model = glm(DiagonalGaussian.standard(DIMENSION))
    records = simulated(glm)
    samples = nuts(model, records)
    mean, sd = samples.mean(axis=0), samples.std(axis=0)
    conditional = 1 / np.sqrt(np.diag(np.linalg.inv(np.cov(samples.T))))
    q = fit(VI(800, optax.adam(0.05)), model, model.prior, records, tacit.Exact()).value
    assert np.all(np.abs(np.asarray(q.mean) - mean) < (0.1 + 3 / np.sqrt(1500)) * sd)
    assert np.asarray(q.standard_deviation) == pytest.approx(conditional, rel=0.1)
    full = fit(VI(3000, optax.adam(0.02)), model, model.prior.full(), records, tacit.Exact()).value
    assert np.all(np.abs(np.asarray(full.mean) - mean) < (0.15 + 3 / np.sqrt(1500)) * sd)
    assert np.asarray(full.standard_deviation) == pytest.approx(sd, rel=0.2)
    matched = fit(EP(8, 0.8, 0.0), model, model.prior.full(), records, tacit.Exact()).value
    assert np.all(np.abs(np.asarray(matched.mean) - mean) < (0.05 + 3 / np.sqrt(1500)) * sd)
    assert np.asarray(matched.standard_deviation) == pytest.approx(sd, rel=0.1)


# --- Gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("glm", GLMS)
@pytest.mark.parametrize(
    "mechanism", [pytest.param(tacit.Exact(), marks=pytest.mark.slow), tacit.SubsampledGaussian(0.7, 0.5, 0.3)]
)
def test_the_linear_path_is_the_dense_path_to_rounding(glm, mechanism):
    """The same quadrature, differentiated per record by JAX: equal sums, so equal norms and clips too."""
    model = glm(DiagonalGaussian.standard(DIMENSION))
    access = tacit.Access.of(simulated(glm, 40), mechanism)
    parameters = _Moments(jnp.array([0.3, -0.8, 0.2]), jnp.array([-1.0, -0.3, -2.0]))
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    nodes, masses = jnp.asarray(points, jnp.float32), jnp.asarray(weights / weights.sum(), jnp.float32)

    def expectation(p, record):
        x, y = record
        z = x @ p.mean + jnp.sqrt(x**2 @ jnp.exp(2 * p.scale)) * nodes
        return jax.vmap(lambda at: model.of_linear(at, y))(z) @ masses

    dense = per_record(lambda record: jax.grad(expectation)(parameters, record))
    one = access.sum(tacit.insecure_key(1), dense)
    two = _linear_gradient(tacit.insecure_key(1), parameters, access, model.of_linear)
    assert one.event == two.event
    for name in ("mean", "scale"):
        mine, theirs = (np.asarray(getattr(release.value, name)) for release in (two, one))
        assert mine == pytest.approx(theirs, rel=1e-3, abs=2e-4)


@pytest.mark.parametrize("start", [DiagonalGaussian.standard(DIMENSION, 0.3), FullGaussian.standard(DIMENSION, 0.3)])
def test_aligned_gradients_are_unbiased(start):
    """Mean over 3,000 draws against quadrature, within 5 standard errors (false alarm below 1e-5 in all)."""
    model = LogisticRegression(start)
    access = tacit.Access.of(simulated(LogisticRegression, 30), tacit.Exact())
    parameters = moments(start)
    keys = jax.random.split(tacit.insecure_key(3), 3000)
    draws = jax.vmap(lambda k: _aligned_gradient(k, parameters, access, model).value)(keys)
    diagonal = _Moments(parameters.mean, jnp.full(DIMENSION, jnp.log(0.3)))
    truth = _linear_gradient(tacit.insecure_key(4), diagonal, access, model.of_linear).value
    for name in ("mean", "scale"):
        sample = np.asarray(getattr(draws, name))
        if sample.ndim == 3:
            sample = np.diagonal(sample, axis1=1, axis2=2)
        error = 5 * sample.std(axis=0) / np.sqrt(3000)
        assert np.all(np.abs(sample.mean(axis=0) - np.asarray(getattr(truth, name))) < error)


def test_the_prior_is_not_clipped():
    """Without records the answer is the prior, however small the clip (docs/errata.md, 5)."""
    prior = DiagonalGaussian.of(np.array([5.0, -7.0, 2.0]), np.array([0.1, 2.0, 0.5]))
    empty = (np.zeros((0, DIMENSION), np.float32), np.zeros(0, np.float32))
    start = DiagonalGaussian.standard(DIMENSION)
    solver = VI(2000, optax.adam(0.05))
    q = fit(solver, LogisticRegression(prior), start, empty, tacit.SubsampledGaussian(1e-6, 1.0)).value
    assert np.asarray(q.mean) == pytest.approx(np.asarray(prior.mean), abs=0.05)
    assert np.asarray(q.standard_deviation) == pytest.approx(np.asarray(prior.standard_deviation), rel=0.05)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Opaque:
    """A model that does not say how θ enters."""

    prior: DiagonalGaussian

    def log_likelihood(self, theta, record):
        return -jnp.sum((theta - record[0]) ** 2)


def test_any_likelihood_of_one_record_will_do_and_a_dict_of_families_is_its_product():
    """Two blocks of parameters, a likelihood that is not linear: the means of normal records."""

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Blocks:
        prior: dict

        def log_likelihood(self, theta, record):
            both = jnp.concatenate([theta["mean"], theta["scale"]])
            return -jnp.sum((both - record[0]) ** 2) / 2

    # Names that are also those of a Gaussian's own parameters: they must not be taken for them.
    prior = {"mean": DiagonalGaussian.standard(1), "scale": FullGaussian.standard(2)}
    x, y = simulated(LogisticRegression)
    q = fit(VI(1500, optax.adam(0.03)), Blocks(prior), prior, (x + np.float32([1, 2, 3]), y), tacit.Exact()).value
    means = np.concatenate([np.asarray(q["mean"].mean), np.asarray(q["scale"].mean)])
    assert means == pytest.approx((x + np.float32([1, 2, 3])).sum(axis=0) / (COUNT + 1), abs=0.03)
    assert np.asarray(q["mean"].standard_deviation) == pytest.approx([(COUNT + 1) ** -0.5], rel=0.2)


# --- Receipts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["linear", "aligned"])
def test_the_receipt_is_the_price_and_the_run_is_compiled_once(path):
    model = LogisticRegression(DiagonalGaussian.standard(DIMENSION))
    solver = VI((20, 10), optax.sgd(1e-3), path=path)
    mechanism = tacit.SubsampledGaussian(1.0, (2.0, 3.0), (0.2, 0.4))
    traces = []

    def run(key, target, access):
        traces.append(1)
        return solver(key, target, access)

    target = tacit.Target(model.prior, model.prior, model)
    fast = jax.jit(run)
    coordinates = 2 * DIMENSION if path == "linear" else DIMENSION
    sampler = mechanism.sampler(COUNT)
    assert sampler is not None
    expected = Composed(
        tuple(
            Repeated(
                TruncatedPoissonSampled(rate, COUNT, sampler.buffer, Gaussian(noise, coordinates=coordinates)), steps
            )
            for noise, rate, steps in ((2.0, 0.2, 20), (3.0, 0.4, 10))
        )
    )
    for seed in range(3):
        access = tacit.Access.of(simulated(LogisticRegression, seed=seed), mechanism)
        assert fast(tacit.insecure_key(seed), target, access).event == expected
    assert len(traces) == 1
    assert price(solver, tacit.insecure_key(0), target, access) == expected


@pytest.mark.parametrize("path", ["linear", "aligned"])
def test_garbage_and_much_noise_leave_a_proper_posterior(path):
    x, y = simulated(LogisticRegression)
    x[::3] = np.nan
    x[1::7] = np.inf
    y[2::5] = 1e30
    model = LogisticRegression(DiagonalGaussian.standard(DIMENSION))
    solver = VI(200, optax.adam(0.05), path=path)
    release = fit(solver, model, model.prior, (x, y), tacit.SubsampledGaussian(1.0, 50.0, 0.1))
    assert bool(is_proper(release.value))
    assert release.seeded


@pytest.mark.slow
def test_more_budget_brings_the_posterior_closer():
    """KL to the posterior without noise at ε = 0.5 and 20, mean of 5 seeds."""
    model = LogisticRegression(DiagonalGaussian.standard(DIMENSION))
    records = simulated(LogisticRegression, 2000)
    solver = VI(200, optax.adam(0.05))
    reference = fit(solver, model, model.prior, records, tacit.Exact()).value
    distance = []
    for epsilon in (0.5, 20.0):
        noise = tacit.calibrate(epsilon, 1e-5, steps=200).noise_multiplier
        mechanism = tacit.SubsampledGaussian(1.0, noise)
        runs = [fit(solver, model, model.prior, records, mechanism, seed).value for seed in range(5)]
        distance.append(np.mean([float(kl(q, reference)) for q in runs]))
    assert distance[1] < 0.1 * distance[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VI(10, optax.sgd(0.1), average=1.0), "average=1.0"),
        (lambda: VI(10, optax.sgd(0.1), path="dense"), "path='dense'"),
        (
            lambda: fit(
                VI(10, optax.sgd(0.1), path="linear"),
                _Opaque(DiagonalGaussian.standard(DIMENSION)),
                DiagonalGaussian.standard(DIMENSION),
                simulated(LogisticRegression),
                tacit.Exact(),
            ),
            "needs a model in which θ enters through x·θ",
        ),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
