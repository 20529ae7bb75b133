"""A clip that follows the gradients: it goes where it should, at the price of a fixed one. Tests are seeded."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.pvi import PVI
from tacit.models import LogisticRegression
from tacit.privacy.clipping import Dense, Outer, per_record, rescaled
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import price, repeat
from tacit.solvers import VI, Adaptive, Target

NORMS = np.geomspace(0.01, 100, 400).astype(np.float32)
each = per_record(lambda record: record)


def after(adaptive: Adaptive, mechanism, steps: int = 150):
    """The clip that is reached on vectors of all these lengths."""
    access = Access.of(np.stack([NORMS, 0 * NORMS], axis=1), mechanism)

    def step(key, level, state):
        return adaptive.sum(key, access.at(level), each, state).map(lambda found: found[1])

    begin = adaptive.begin(jnp.zeros(2))
    return jax.jit(lambda key: repeat(key, steps, step, begin))(tacit.insecure_key(0))


@pytest.mark.parametrize(("start", "quantile"), [(1e-3, 0.9), (1e4, 0.5)])
def test_the_clip_goes_to_the_quantile_wherever_it_begins(start, quantile):
    # Noise of the share is 2 / (2 √0.05 · 0.5 · 400) = 0.02 a step, and a step moves the clip by a fifth of the gap.
    found = after(Adaptive(quantile=quantile, start=start), SubsampledGaussian(1.0, 2.0, 0.5), 300).value.bound
    assert np.mean(float(found) >= NORMS) == pytest.approx(quantile, abs=0.03)


def test_the_quantile_is_higher_where_there_is_less_noise_and_follows_public_settings_alone():
    adaptive = Adaptive()
    found = [adaptive._target(Access.of(NORMS, SubsampledGaussian(1.0, sigma, 0.25))) for sigma in (1.0, 5.0, 100.0)]
    assert found == pytest.approx([0.95, 0.75, 0.5])
    assert adaptive._target(Access.of(NORMS, Exact())) == 0.99


def test_a_moved_clip_costs_what_a_fixed_one_does():
    fixed, moved = (
        price(
            lambda key, adaptive=adaptive: VI(7, optax.sgd(0.1), adaptive=adaptive)(key, TARGET, ACCESS),
            tacit.insecure_key(0),
        )
        for adaptive in (None, Adaptive())
    )
    assert moved == replace(fixed, event=replace(fixed.event, event=Gaussian(1.0, coordinates=7)))
    assert fixed.event.event == Gaussian(1.0, coordinates=6)


SIZE = 3
X = (np.random.default_rng(0).normal(size=(800, SIZE)) * [3.0, 1.0, 0.3]).astype(np.float32)
Y = (np.random.default_rng(1).random(800) < 1 / (1 + np.exp(-X @ [0.3, -1.0, 2.0]))).astype(np.float32)
MODEL = LogisticRegression(DiagonalGaussian.standard(SIZE))
TARGET = Target(MODEL.prior, MODEL.prior, MODEL)
ACCESS = Access.of((X, Y), SubsampledGaussian(1.0, 1.0, 0.1))


@pytest.mark.parametrize("path", ["linear", "aligned"])
def test_inference_with_a_moved_clip_finds_what_exact_inference_does(path):
    fits = {}
    for adaptive, access in ((Adaptive(start=0.01, per_coordinate=True), ACCESS), (None, ACCESS.through(Exact()))):
        solver = VI(300, optax.adam(0.05), path=path, adaptive=adaptive)
        fits[adaptive] = jax.jit(lambda key, solver=solver, access=access: solver(key, TARGET, access))(
            tacit.insecure_key(2)
        ).value
    private, exact = fits.values()
    np.testing.assert_allclose(private.mean, exact.mean, atol=0.35)  # three deviations of what noise does here


def test_coordinates_are_scaled_by_what_was_released_of_them():
    adaptive = Adaptive(per_coordinate=True)
    state = replace(adaptive.begin(jnp.zeros(2)), scales=jnp.array([2.0, 0.5]))
    access = Access.of(np.array([[4.0, 1.0]], np.float32), SubsampledGaussian(1.0, 1e-2))
    total, new = adaptive.sum(tacit.insecure_key(0), access, each, replace(state, bound=jnp.float32(50.0))).value
    np.testing.assert_allclose(total, [4.0, 1.0], atol=3.0)  # noise is 0.5 of the clip's 50, times the scale
    assert float(new.scales[0]) > float(new.scales[1])
    assert np.mean(new.scales) == pytest.approx(1.0)
    np.testing.assert_allclose(rescaled(Dense(jnp.ones((3, 2))), jnp.array([2.0, 4.0])).tree[0], [0.5, 0.25])
    with pytest.raises(ValueError, match="not Outer"):
        rescaled(Outer(jnp.ones(2), jnp.ones((2, 2))), jnp.ones(2))


def test_a_site_goes_on_with_the_clip_that_it_had():
    solver = VI(5, optax.adam(0.05), adaptive=Adaptive(0.5, start=100.0))
    algorithm = PVI(MODEL.prior, MODEL, (solver,))
    step = jax.jit(lambda key, state: algorithm.site_step(key, state, MODEL.prior, ACCESS, 0).value)
    states = [algorithm.site_init()]
    for seed in range(3):
        states.append(step(tacit.insecure_key(seed), states[-1]))
    bounds = [float(state.memory[0].bound) for state in states]
    assert bounds[0] == 100.0
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[3] < 0.75 * bounds[1]


def test_thresholds_and_decay_are_the_optimisers_and_cost_nothing():
    calm = optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(optax.exponential_decay(0.02, 20, 0.5)))
    found = [
        jax.jit(lambda key, solver=solver: solver(key, TARGET, ACCESS))(tacit.insecure_key(0))
        for solver in (VI(40, calm), VI(40, optax.sgd(0.02)))
    ]
    assert found[0].event == found[1].event
    assert np.linalg.norm(found[0].value.mean) < np.linalg.norm(found[1].value.mean)


def test_a_fit_takes_it_by_name():
    posterior = tacit.fit(
        "logistic", (X, Y), 5.0, 1e-5, bounds=(-10, 10), method="vi", clip="adaptive", steps=60, insecure_seed=1
    )
    assert posterior.plan["vi"]["is_adaptive"]
    assert posterior.plan["method"] == "vi"
    assert posterior.epsilon <= 5.0
    with pytest.raises(ValueError, match="clip='fixed'; expected a number above 0, 'adaptive'"):
        tacit.fit("logistic", (X, Y), 5.0, 1e-5, bounds=(-10, 10), clip="fixed")


@pytest.mark.parametrize(
    "settings", [{"quantile": 1.0}, {"share": 0.0}, {"memory": 1.5}, {"start": 0.0}, {"rate": 3.0}]
)
def test_bad_settings_are_refused_with_their_value(settings):
    with pytest.raises(ValueError, match="expected"):
        Adaptive(**settings)


@pytest.mark.slow
def test_a_full_posterior_can_be_fitted_too():
    prior = FullGaussian.standard(SIZE)
    target = Target(prior, prior, LogisticRegression(prior))
    for path in ("linear", "auto"):
        solver = VI(3, optax.sgd(1e-4), path=path, adaptive=Adaptive(per_coordinate=True))
        found = jax.jit(lambda key, solver=solver: solver(key, target, ACCESS))(tacit.insecure_key(0))
        assert np.all(np.isfinite(found.value.precision))
