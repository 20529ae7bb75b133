"""Site effects against the dense Gaussian model, and the site's part against partitioned inference."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.engines import coordinator
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.pvi import PVI, Noise
from tacit.federated.site_effects import EffectsState, SiteEffects
from tacit.models import LinearRegression, LogisticRegression
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import price
from tacit.solvers import NaturalStep

SITES, SIZE = 5, 3
COMMON = np.array([0.4, -0.7, 0.5])
PRIOR = DiagonalGaussian.of(jnp.zeros(SIZE), jnp.array([5.0, 1.0, 1.0])).full()


def pvi(likelihood: Any, gradient: float = 0.0, curvature: float = 0.0) -> PVI:
    noise = Noise(gradient, curvature, 0.4, 2.0, 0.5)
    return PVI(PRIOR, likelihood, (NaturalStep(Exact(), False), NaturalStep(Exact())), (0, 1), noise=noise)


def effects(
    inner: PVI, places: tuple[int, ...] = (0,), noise: tuple[float, float] = (0.0, 0.0), sites: int = SITES
) -> SiteEffects:
    gradient, curvature = (jnp.full(sites, sd, jnp.float32) for sd in noise)
    return SiteEffects(inner, places, gradient, gradient, curvature, jnp.float32(1.0))


def logistic() -> LogisticRegression:
    return LogisticRegression(DiagonalGaussian.of(jnp.zeros(SIZE), jnp.ones(SIZE)))


def told_by(algorithm: SiteEffects, precisions: np.ndarray, pulls: np.ndarray, variances: np.ndarray) -> EffectsState:
    """The state after all sites sent these factors, asked at the prior's mean, with this noise."""
    state = algorithm.coordinator_init(len(pulls))
    factors = FullGaussian(jnp.asarray(pulls, jnp.float32), jnp.asarray(precisions, jnp.float32))
    state = algorithm.coordinator_step(state, jnp.arange(len(pulls)), factors)
    return replace(state, variances=jnp.asarray(variances, jnp.float32))


def random_factors(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(SITES, 6, SIZE)) * 3
    precisions = np.einsum("sni,snj->sij", roots, roots)
    means = COMMON + rng.normal(size=(SITES, SIZE)) * np.array([0.8, 0.3, 0.0])
    return precisions, np.einsum("sij,sj->si", precisions, means), rng.uniform(0.5, 20, SITES)


def dense(
    precisions: np.ndarray, pulls: np.ndarray, variances: np.ndarray, places: tuple[int, ...], spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of (θ, δ_1, ..., δ_M), and log N(r; 0, .), of r_s ~ N(Ĥβ_s, Ĥ + v I), with no elimination."""
    width = len(places)
    prior = np.zeros((SIZE + SITES * width,) * 2)
    prior[:SIZE, :SIZE] = np.linalg.inv(np.asarray(PRIOR.precision))
    prior[SIZE:, SIZE:] = np.diag(np.tile(spread**2, SITES))
    design = np.zeros((SITES * SIZE, len(prior)))
    error = np.zeros((SITES * SIZE,) * 2)
    for s in range(SITES):
        rows, columns = slice(s * SIZE, (s + 1) * SIZE), slice(SIZE + s * width, SIZE + (s + 1) * width)
        design[rows, :SIZE] = precisions[s]
        design[rows, columns] = precisions[s][:, list(places)]
        error[rows, rows] = precisions[s] + variances[s] * np.eye(SIZE)
    around = design @ prior @ design.T + error
    gain = prior @ design.T @ np.linalg.inv(around)
    told = pulls.ravel()
    value = -0.5 * told @ np.linalg.solve(around, told) - 0.5 * np.linalg.slogdet(around)[1]
    return gain @ told, prior - gain @ design @ prior, float(value)


# --- The joint posterior -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [(0,), (0, 1), (2, 0)], ids=str)
def test_the_joint_posterior_and_the_evidence_are_those_of_the_dense_gaussian_model(places: tuple[int, ...]) -> None:
    algorithm, factors = effects(pvi(logistic()), places), random_factors()
    told = algorithm._told(told_by(algorithm, *factors), is_raised=False)
    values, width = [], len(places)
    for spread in (np.full(width, 0.3), np.linspace(0.9, 1.4, width)):
        mean, covariance, deviations, _, means, covariances = algorithm._solved(told, jnp.asarray(spread, jnp.float32))
        expected, around, value = dense(*factors, places, spread)
        np.testing.assert_allclose(mean, expected[:SIZE], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(covariance, around[:SIZE, :SIZE], rtol=1e-3, atol=1e-4)
        for s in range(SITES):
            map_ = np.zeros((SIZE, len(expected)))
            map_[:, :SIZE] = np.eye(SIZE)
            map_[list(places), SIZE + s * width + np.arange(width)] = 1
            np.testing.assert_allclose(deviations[s], expected[SIZE + s * width :][:width], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(means[s], map_ @ expected, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(covariances[s], map_ @ around @ map_.T, rtol=1e-3, atol=1e-4)
        found = algorithm._eliminated(told, jnp.asarray(spread, jnp.float32))[-1]
        values.append((float(found), value))
    (first, one), (second, other) = values
    assert first - second == pytest.approx(one - other, abs=2e-3)


def test_the_reported_posterior_is_the_mixture_over_what_the_spread_may_be() -> None:
    algorithm, factors = effects(pvi(logistic())), random_factors()
    found = algorithm.posterior(told_by(algorithm, *factors))
    grid = np.exp(np.linspace(np.log(0.003), np.log(30), 1500))
    every = [dense(*factors, (0,), np.array([value])) for value in grid]
    logs = np.array([value for _, _, value in every]) + np.log(grid) - np.log1p(grid**2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = np.einsum("w,wi->i", weights, np.stack([one[0] for one in every]))
    second = np.einsum("w,wij->ij", weights, np.stack([one[1] + np.outer(one[0], one[0]) for one in every]))
    around = second - np.outer(mean, mean)
    np.testing.assert_allclose(found.mean, mean[:SIZE], rtol=5e-3, atol=1e-3)
    np.testing.assert_allclose(found.covariance, around[:SIZE, :SIZE], rtol=1e-2, atol=2e-4)
    np.testing.assert_allclose(found.deviations[:, 0], mean[SIZE:], rtol=5e-3, atol=1e-3)
    np.testing.assert_allclose(found.deviation_covariances[:, 0, 0], np.diag(around)[SIZE:], rtol=2e-2)
    assert float(jnp.sum(found.grid * found.weights)) == pytest.approx(float(weights @ grid), rel=5e-3)
    assert float(found.variances[0]) == pytest.approx(float(weights @ grid**2), rel=2e-2)


def test_another_curvature_takes_the_place_of_a_noised_one_without_a_change_of_the_gradient() -> None:
    """What a site would have sent: its pull less Ĥ times the point it was asked at is the released gradient."""
    algorithm = effects(pvi(logistic(), 3.0, 40.0), noise=(3.0, 40.0))
    precisions, pulls, _ = random_factors()
    state = told_by(algorithm, precisions, pulls, np.zeros(SITES))
    state = replace(state, centres=jnp.asarray(np.random.default_rng(1).normal(size=(SITES, SIZE)), jnp.float32))
    curvatures, _ = algorithm._curvatures(state)
    assert not np.allclose(curvatures, precisions, rtol=0.05), "noise is large enough to matter"
    told, moved, _ = algorithm._told(state, is_raised=False)
    sent = pulls - np.einsum("sij,sj->si", precisions, state.centres)
    np.testing.assert_allclose(moved - np.einsum("sij,sj->si", told, state.centres), sent, rtol=1e-2, atol=0.05)


# --- Noise -------------------------------------------------------------------------------------------------------


def spread_of(algorithm: SiteEffects, state: EffectsState) -> float:
    found = algorithm.posterior(state)
    return float(jnp.sum(found.grid * found.weights))


@pytest.mark.slow
def test_privacy_noise_is_not_taken_for_a_spread_between_sites() -> None:
    """25 sites that do not differ, and noise that moves each intercept by .4.

    Over 8 draws τ has a mean of .19 where the noise is known, and of .40 by the same program without it.
    """
    rng, sites, noise = np.random.default_rng(3), 25, 16.0
    algorithm, known, unknown = effects(pvi(logistic()), (0,), (noise, 0.0), sites), [], []
    for _ in range(8):
        error = rng.normal(size=(sites, SIZE)) * np.hypot(np.sqrt(40), noise)
        same = np.tile(40 * np.eye(SIZE), (sites, 1, 1))
        state = told_by(algorithm, same, 40 * COMMON + error, np.full(sites, noise**2))
        known.append(spread_of(algorithm, state))
        unknown.append(spread_of(algorithm, replace(state, variances=jnp.zeros(sites))))
    assert np.mean(known) < 0.25
    assert np.mean(unknown) > 0.35, "power: without its variance, the noise looks like a spread"


def test_a_small_sites_curvature_takes_its_shape_from_all_sites() -> None:
    """Twenty draws of noise of 10: the error of the estimate is a third of the error of what was released."""
    rng = np.random.default_rng(5)
    shape = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 1.2]])
    true = np.array([10.0, 30.0, 100.0, 200.0, 400.0])[:, None, None] * shape
    algorithm, found, sent = effects(pvi(logistic(), 0.0, 10.0 * np.sqrt(SITES)), noise=(0.0, 10.0)), 0.0, 0.0
    for _ in range(20):
        noise = rng.normal(size=(SITES, SIZE, SIZE)) * 10
        noised = true + (noise + noise.swapaxes(1, 2)) / 2
        curvatures, _ = algorithm._curvatures(told_by(algorithm, noised, np.zeros((SITES, SIZE)), np.zeros(SITES)))
        assert np.linalg.eigvalsh(np.asarray(curvatures, float)).min() > -1e-3
        found += float(np.sum((np.asarray(curvatures) - true)[:2] ** 2))
        sent += float(np.sum((noised - true)[:2] ** 2))
    assert found < sent / 2


# --- Rounds ------------------------------------------------------------------------------------------------------


def records(seed: int, size: int = 60, deviation: float = 0.0, scale: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(size), rng.normal(size=(size, SIZE - 1))]).astype(np.float32)
    return x, (x @ COMMON + deviation + scale * rng.normal(size=size)).astype(np.float32)


def test_without_noise_a_linear_model_has_the_exact_posterior_after_one_round() -> None:
    model = LinearRegression(DiagonalGaussian.of(jnp.zeros(SIZE), jnp.ones(SIZE)), noise_scale=0.5)
    algorithm = effects(pvi(model))
    state, content = algorithm.broadcast(algorithm.coordinator_init(SITES))
    answers, precisions, pulls = [], [], []
    for s in range(SITES):
        x, y = records(s, deviation=(s - 2) * 0.5)
        access = Access.of((x, y), Exact(), slots=len(y))
        own = algorithm.addressed(content, s)
        answers.append(algorithm.site_step(insecure_key(0), algorithm.site_init(), own, access, 0).value.factor)
        precisions.append(x.T @ x / 0.25)
        pulls.append(x.T @ y / 0.25)
    state = algorithm.coordinator_step(
        state, jnp.arange(SITES), jax.tree.map(lambda *leaves: jnp.stack(leaves), *answers)
    )
    told = algorithm._told(state, is_raised=False)
    mean, _, deviations, *_ = algorithm._solved(told, jnp.array([0.7], jnp.float32))
    expected, _, _ = dense(np.stack(precisions), np.stack(pulls), np.zeros(SITES), (0,), np.array([0.7]))
    np.testing.assert_allclose(mean, expected[:SIZE], atol=2e-3)
    np.testing.assert_allclose(deviations[:, 0], expected[SIZE:], atol=3e-3)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_site_pays_for_site_effects_what_it_pays_without(kind: int) -> None:
    inner = pvi(logistic())
    algorithm, (x, y) = effects(inner), records(0)
    access = Access.of((x, (y > 0).astype(np.float32)), SubsampledGaussian(1.0, 2.0, 1.0), slots=len(y))
    own = algorithm.addressed(algorithm.broadcast(algorithm.coordinator_init(SITES))[1], 0)
    prices = [
        price(lambda *given, one=one: one.site_step(*given, kind), insecure_key(0), one.site_init(), content, access)
        for one, content in ((inner, PRIOR), (algorithm, own))
    ]
    assert prices[0] == prices[1]


def test_each_site_is_sent_its_own_part_and_it_has_the_form_of_one_posterior() -> None:
    algorithm = effects(pvi(logistic()))
    state = told_by(algorithm, *random_factors())
    _, content = algorithm.broadcast(state)
    means = [np.asarray(algorithm.addressed(content, s).mean) for s in range(SITES)]
    assert len({tuple(mean.round(3)) for mean in means}) == SITES
    assert algorithm.addressed(content, 0).precision.shape == (SIZE, SIZE)


def test_to_broadcast_twice_changes_nothing() -> None:
    algorithm = effects(pvi(logistic()))
    once, first = algorithm.broadcast(told_by(algorithm, *random_factors()))
    twice, second = algorithm.broadcast(once)
    for a, b in zip(jax.tree.leaves((once, first)), jax.tree.leaves((twice, second)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_site_that_withdraws_leaves_nothing_behind() -> None:
    """The rest is as if it had never answered, and its own deviation is that of a new site."""
    algorithm, (precisions, pulls, variances) = effects(pvi(logistic())), random_factors()
    found = algorithm.posterior(coordinator.withdraw(algorithm, told_by(algorithm, precisions, pulls, variances), 2))
    precisions[2], pulls[2] = 0, 0
    expected = algorithm.posterior(told_by(algorithm, precisions, pulls, variances))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert float(found.deviations[2, 0]) == pytest.approx(0, abs=1e-6)
    assert float(found.deviation_covariances[2, 0, 0]) == pytest.approx(float(found.variances[0]), rel=1e-3)


def test_columns_are_given_once_and_the_prior_is_a_full_gaussian() -> None:
    with pytest.raises(ValueError, match=r"places=\(0, 0\); expected at least one column, each once"):
        effects(pvi(logistic()), (0, 0))
    with pytest.raises(ValueError, match="need a prior that is a full Gaussian, and noise="):
        effects(replace(pvi(logistic()), noise=None))
