"""What every solver must do: know the linear regression's posterior, come close to a logistic one, price what it runs,
and not care for records that are not numbers. Fits are seeded; tolerances are in deviations of the posterior.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.models import GaussianClusters, LinearRegression, LogisticRegression, ProbitRegression, SoftmaxRegression
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import price
from tacit.solvers import EP, SEP, SGLD, VI, NaturalVI, Target, conjugate
from tacit.solvers.ep import evidence_slopes, match
from tacit.solvers.sgld import moments, published_noise

SOLVERS = {
    "conjugate": conjugate,
    "vi": VI(800, optax.adam(0.05), path="linear"),
    "natural": NaturalVI(Exact(), (6, 6), noise_aware=False),
    "natural ep": NaturalVI(Exact(), (4, 4, 4), noise_aware=False, expansion="ep"),
    "natural sep": NaturalVI(Exact(), (4, 4, 4), noise_aware=False, expansion="sep"),
    "ep": EP(10, 0.7, 0.0),
    "sep": SEP(25, 0.6, 0.0),
    "sgld": SGLD(6000, 1.5e-2, decay=2000.0, thinning=2, chains=8),
}
SAMPLING = 0.25  # of a deviation: what a finite number of samples leaves open
RECORDS, DIMENSION = 40, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(RECORDS, DIMENSION)).astype(np.float32)
TRUTH = np.array([1.0, -0.7])
NUMBERS = (X @ TRUTH + RNG.normal(size=RECORDS)).astype(np.float32)
CLASSES = (RNG.random(RECORDS) < 1 / (1 + np.exp(-X @ TRUTH))).astype(np.float32)
PRIOR = FullGaussian.standard(DIMENSION)
LINEAR = LinearRegression(PRIOR, 1.0)


def solved(solver, model, y, mechanism=None):
    access = Access.of((X, y), Exact() if mechanism is None else mechanism)
    target = Target(model.prior, model.prior, model)
    return jax.jit(lambda key: solver(key, target, access))(tacit.insecure_key(5))


@pytest.mark.parametrize("name", SOLVERS)
def test_the_posterior_of_a_linear_regression_is_found(name):
    q, exact = solved(SOLVERS[name], LINEAR, NUMBERS).value, LINEAR.exact_posterior((X, NUMBERS))
    far = SAMPLING if name == "sgld" else 0.05
    np.testing.assert_allclose((q.mean - exact.mean) / exact.standard_deviation, 0, atol=far)
    np.testing.assert_allclose(q.standard_deviation / exact.standard_deviation, 1, atol=far)


def on_a_grid(model, y):
    """Means and deviations by brute force."""
    places = np.linspace(-4, 4, 161)
    thetas = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, DIMENSION)
    logs = jax.vmap(lambda t: jnp.sum(jax.vmap(model.of_linear)(X @ t, y)) - t @ t / 2)(
        jnp.asarray(thetas, jnp.float32)
    )
    weights = np.exp(np.asarray(logs, float) - float(jnp.max(logs)))
    weights /= weights.sum()
    mean = weights @ thetas
    return mean, np.sqrt(weights @ (thetas - mean) ** 2)


OFTEN = [(name, LogisticRegression) for name in SOLVERS if name != "conjugate"]
OFTEN += [(name, ProbitRegression) for name in ("ep", "sep")]
SELDOM = [pytest.param(name, ProbitRegression, marks=pytest.mark.slow) for name in ("vi", "natural", "sgld")]


@pytest.mark.parametrize(("name", "kind"), [*OFTEN, *SELDOM])
def test_the_posterior_of_a_regression_on_classes_is_near_that_by_brute_force(name, kind):
    model = kind(PRIOR)
    q, (mean, sd) = solved(SOLVERS[name], model, CLASSES).value, on_a_grid(model, CLASSES)
    matched = name.endswith("ep")
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=SAMPLING if name == "sgld" else 0.12)
    np.testing.assert_allclose(q.standard_deviation / sd, 1, atol=0.05 if matched else SAMPLING)


def test_natural_steps_with_factors_of_ep_and_sep_end_where_ep_and_sep_do():
    model = LogisticRegression(PRIOR)
    for name in ("ep", "sep"):
        one, other = (solved(SOLVERS[found], model, CLASSES).value for found in (name, f"natural {name}"))
        np.testing.assert_allclose((one.mean - other.mean) / one.standard_deviation, 0, atol=2e-3)
        np.testing.assert_allclose(one.standard_deviation / other.standard_deviation, 1, atol=2e-3)


def test_power_ep_is_between_ep_and_the_variational_bound():
    model = LogisticRegression(PRIOR)
    natural = NaturalVI(Exact(), (4, 4, 4), noise_aware=False)
    bound, matched = (solved(solver, model, CLASSES).value for solver in (natural, SOLVERS["ep"]))
    middle, low = (solved(EP(10, 0.7, 0.0, power=alpha), model, CLASSES).value for alpha in (0.5, 0.02))
    assert np.all(bound.standard_deviation < middle.standard_deviation)
    assert np.all(middle.standard_deviation < matched.standard_deviation)
    np.testing.assert_allclose(low.standard_deviation, bound.standard_deviation, rtol=1e-3)
    clusters = GaussianClusters(2, 2)
    target = Target(clusters.prior, clusters.start(jax.random.key(0)), clusters)
    with pytest.raises(ValueError, match="power 1 only"):
        SEP(2, power=0.5)(tacit.insecure_key(0), target, Access.of(X, Exact()))


NOISED = SubsampledGaussian(2.0, 1.5, 0.5)
PRIVATE = {
    "conjugate": conjugate,
    "vi": VI(4, optax.adam(0.05)),
    "ep": EP(4),
    "sep": SEP(4),
    "sgld": SGLD(4, 1e-3),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_the_receipt_is_the_price_and_both_count_every_step(name):
    target = Target(PRIOR, PRIOR, LINEAR)
    paid = price(lambda key: PRIVATE[name](key, target, Access.of((X, NUMBERS), NOISED)), tacit.insecure_key(0))
    assert solved(PRIVATE[name], LINEAR, NUMBERS, NOISED).event == paid
    if name != "conjugate":
        assert paid.steps == 4
        assert isinstance(paid.event.event, Gaussian)
    assert 0 < epsilon(paid, 1e-5) < 100


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_record_that_is_not_a_number_moves_nothing_and_a_huge_one_little(name, bad):
    x = X.copy()
    x[3] = bad
    access = Access.of((x, NUMBERS), SubsampledGaussian(2.0, 0.05))
    without = replace(access, present=access.present.at[3].set(False))
    target = Target(PRIOR, PRIOR, LINEAR)
    run = jax.jit(lambda key, access: PRIVATE[name](key, target, access))
    with_it, left_out = (run(tacit.insecure_key(1), one).value for one in (access, without))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(with_it))
    if not np.isfinite(bad):
        jax.tree.map(np.testing.assert_array_equal, with_it, left_out)


# --- Expectation propagation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LINEAR, ProbitRegression(PRIOR)])
def test_quadrature_finds_what_is_known_in_closed_form(model):
    class Hidden:
        of_linear = staticmethod(model.of_linear)

    for mean, variance, y in ((0.3, 0.5, 1.0), (-1.0, 2.0, 0.0), (2.0, 1e-4, 1.0)):
        at = jnp.float32(mean), jnp.float32(variance), jnp.float32(y)
        np.testing.assert_allclose(evidence_slopes(model, *at), evidence_slopes(Hidden, *at), rtol=2e-3, atol=2e-3)


def test_a_factor_leaves_the_moments_of_the_tilted_distribution():
    model, cavity = LogisticRegression(PRIOR), FullGaussian.of(jnp.array([0.5, -0.2]), jnp.diag(jnp.array([1.0, 2.0])))
    record = (jnp.array([1.0, -1.0]), jnp.float32(1.0))
    matched = cavity + match(model, cavity, record)
    draws = cavity.sample(jax.random.key(0), (400_000,))
    weights = jax.nn.softmax(jax.vmap(lambda theta: model.log_likelihood(theta, record))(draws))
    mean = weights @ draws
    np.testing.assert_allclose(matched.mean, mean, atol=0.01)
    np.testing.assert_allclose(matched.covariance, (draws - mean).T @ ((draws - mean) * weights[:, None]), atol=0.02)
    # Coordinate by coordinate, a diagonal q has the same means and variances.
    diagonal = DiagonalGaussian.of(cavity.mean, jnp.sqrt(jnp.array([1.0, 2.0])))
    alone = diagonal + match(model, diagonal, record)
    np.testing.assert_allclose(alone.mean, mean, atol=0.01)
    np.testing.assert_allclose(alone.variance, jnp.diagonal(matched.covariance), atol=0.02)


def test_a_cluster_models_factor_leaves_the_moments_of_a_mixture():
    model = GaussianClusters(2, 2)
    cavity = {
        "1": FullGaussian.of(jnp.array([0.5, 0.0]), 0.5 * jnp.eye(2)),
        "2": FullGaussian.of(jnp.array([-0.5, 0.3]), 0.7 * jnp.eye(2)),
    }
    record = jnp.array([0.4, 0.6])
    factor = model.match(cavity, record)
    keys = jax.random.split(jax.random.key(1))
    draws = {name: cavity[name].sample(key, (400_000,)) for name, key in zip(cavity, keys, strict=True)}
    weights = jax.nn.softmax(jax.vmap(lambda theta: model.log_likelihood(theta, record))(draws))
    for name, drawn in draws.items():
        matched = cavity[name] + factor[name]
        mean = weights @ drawn
        np.testing.assert_allclose(matched.mean, mean, atol=0.01)
        np.testing.assert_allclose(
            matched.covariance, (drawn - mean).T @ ((drawn - mean) * weights[:, None]), atol=0.01
        )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SEP(3, damping=0.0), "damping=0.0"),
        (lambda: EP(3, average=1.0), "average=1.0"),
        (lambda: EP(3, power=0.0), "power=0.0"),
        (lambda: SGLD(3, 0.1, temperature=0.0), "temperature=0.0"),
        (lambda: SGLD(0, 0.1), "steps=0"),
        (lambda: SGLD(10, -1.0), "step_size=-1.0"),
        (lambda: SGLD(10, 0.1, thinning=9), "thinning=9 keeps nothing"),
        (lambda: GaussianClusters(0, 2), "components=0"),
    ],
)
def test_bad_settings_are_refused_with_their_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_model_without_moments_is_refused_with_a_remedy():
    model = SoftmaxRegression(DiagonalGaussian.standard(4), 3)
    with pytest.raises(ValueError, match="use VI"):
        match(model, model.prior, (jnp.ones(2), jnp.int32(0)))


# --- Langevin dynamics -------------------------------------------------------------------------------------------


def test_chains_are_one_vector_and_share_one_price():
    target, access = Target(PRIOR, PRIOR, LINEAR), Access.of((X, NUMBERS), NOISED)
    solver = SGLD(10, 1e-3, burn_in=0.2, thinning=4, chains=3)
    release = jax.jit(lambda key: solver.samples(key, target, access))(tacit.insecure_key(0))
    assert release.value.shape == (2, 3, DIMENSION)
    assert release.event.event.event == Gaussian(1.5, coordinates=3 * DIMENSION)
    q = moments(release.value, PRIOR)
    np.testing.assert_allclose(q.mean, release.value.mean(axis=(0, 1)), atol=1e-4)


def test_noise_of_privacy_counts_towards_that_of_langevin_and_spreads_samples_where_it_is_more():
    # A flat likelihood: the posterior is the prior, of deviation 1, whatever part of the noise is whose.
    access = Access.of((0 * X, NUMBERS), SubsampledGaussian(1.0, 2.0))
    target = Target(PRIOR, PRIOR, LINEAR)
    for size, expected in ((0.2, 1.0), (0.8, 1.0)):
        solver = SGLD(6000, size, chains=8, burn_in=0.1)
        drawn = jax.jit(lambda key, solver=solver: solver.samples(key, target, access))(tacit.insecure_key(2)).value
        # Discretised, the variance is 1 / (1 - η/4), of which the deviation shows half.
        assert float(drawn.std()) == pytest.approx(expected / np.sqrt(1 - size / 4), rel=0.08)
        assert solver.excess(access) == 1.0
    assert SGLD(10, 4.0).excess(access) == pytest.approx(2.0)
    assert SGLD(10, 4.0, temperature=0.25).excess(access, (3.0, 9.0)) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="one level"):
        SGLD(2, 0.1).samples(tacit.insecure_key(0), target, access.through(SubsampledGaussian(1.0, (1.0, 2.0))))


def test_the_published_form_has_its_noise_by_the_formula_and_half_the_posteriors_variance():
    # N = 1000, τ = 30, T = 4.5 passes, so 150 steps; the sensitivity of a step of size 1 is N L / τ.
    variance = 128 * 1000 * 4.5 / 30 * np.log(2.5 * 1000 * 4.5 / 30 / 1e-3) * np.log(2 / 1e-3)
    assert published_noise(1.0, 1e-3, 0.03, 150) == pytest.approx(np.sqrt(variance) * 30 / 1000)
    assert published_noise(2.0, 1e-3, 0.03, 150) == pytest.approx(np.sqrt(variance) * 30 / 1000 / 2)
    flat = Access.of((0 * X, NUMBERS), Exact())
    solver = SGLD(6000, 0.2, chains=8, burn_in=0.1, temperature=0.5)
    drawn = jax.jit(lambda key: solver.samples(key, Target(PRIOR, PRIOR, LINEAR), flat))(tacit.insecure_key(2)).value
    assert float(drawn.var()) == pytest.approx(0.5 / (1 - 0.2 / 4), rel=0.1)


def test_units_change_what_is_clipped_and_the_step_and_nothing_else():
    target, access = Target(PRIOR, PRIOR, LINEAR), Access.of((X, NUMBERS), Exact())
    key = tacit.insecure_key(4)
    plain = SGLD(5, 0.01).samples(key, target, access).value
    np.testing.assert_allclose(
        SGLD(5, 0.04).samples(key, target, access, (3.0, 4.0)).value, plain, rtol=1e-4, atol=1e-5
    )
