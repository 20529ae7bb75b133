"""Whole sites as the unit of privacy: what a site moves is at most the clip, noise stays as theory says, nothing hides.

Theory is that of docs/errata.md, 3 and 4. Statistical tests are seeded and say their tolerance.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.engines import local, schedule
from tacit.families import DiagonalGaussian, FullGaussian, quotient
from tacit.federated.pvi import PVI
from tacit.federated.site import unledgered
from tacit.federated.tied import Tied, Whole, from_units, of_sites, to_units
from tacit.models import LinearRegression, LogisticRegression
from tacit.privacy import accounting, audit
from tacit.privacy.audit import Canaried
from tacit.privacy.events import Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.mechanism import Exact, SubsampledGaussian
from tacit.privacy.released import price
from tacit.solvers import NaturalStep, conjugate

DIMENSION, SITES, RECORDS = 2, 12, 4
MODEL = LinearRegression(FullGaussian.standard(DIMENSION), 1.0)


def sites(count: int = SITES, records: int = RECORDS, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, records, DIMENSION)).astype(np.float32)
    y = (x @ np.array([1.0, -0.5]) + rng.normal(size=(count, records))).astype(np.float32)
    return list(zip(x, y, strict=True))


def exact(members: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.concatenate([site[j] for site in members]).astype(float) for j in (0, 1))
    return x.T @ y, np.eye(DIMENSION) + x.T @ x


@pytest.mark.parametrize("reset", [1, 3, None])
@pytest.mark.parametrize("is_preconditioned", [False, True])
@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
def test_without_noise_all_ways_end_at_the_exact_posterior(family, reset, is_preconditioned, key):
    members = sites()
    model = LinearRegression(family.standard(DIMENSION), 1.0)
    tied = Tied(model.prior, model, conjugate, 0.5, reset, is_preconditioned)
    path = jax.jit(lambda key: tied(key, 25, of_sites(members, Exact())))(key).value
    pull, precision = exact(members)
    # With a diagonal q and one factor for all, sites that differ agree on a mean nearby only (docs/errata.md, 4).
    far = 0.02 if family is DiagonalGaussian and reset is not None else 2e-3
    np.testing.assert_allclose(np.linalg.solve(precision, pull), _last(path).mean, atol=far)
    np.testing.assert_array_equal(path.precision[0], model.prior.precision)
    if family is FullGaussian:
        np.testing.assert_allclose(path.precision[-1], precision, rtol=1e-3, atol=1e-2)


def test_a_generalised_model_is_fitted_too(key):
    members = [(x, (x @ np.array([1.0, -0.5]) > 0).astype(np.float32)) for x, _ in sites(8, 30)]
    model = LogisticRegression(FullGaussian.standard(DIMENSION))
    tied = Tied(model.prior, model, NaturalStep(Exact()), 0.5)
    path = jax.jit(lambda key: tied(key, 20, of_sites(members, Exact())))(key).value
    assert _last(path).mean[0] > 1
    assert _last(path).mean[1] < -0.4


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
@pytest.mark.parametrize("is_preconditioned", [False, True])
def test_units_lead_back_to_the_change(family, is_preconditioned):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    full = [
        FullGaussian(jnp.asarray(rng.normal(size=3), jnp.float32), jnp.asarray(m, jnp.float32))
        for m in (root @ root.T + np.eye(3), root + root.T)
    ]
    q, change = (
        full
        if family is FullGaussian
        else [DiagonalGaussian(g.precision_mean, jnp.diagonal(g.precision)) for g in full]
    )
    back = from_units(to_units(change, q, is_preconditioned), q, is_preconditioned)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), back, change)


# --- Privacy -----------------------------------------------------------------------------------------------------

CLIP = 2.0
TIED = Tied(MODEL.prior, MODEL, conjugate, 0.5)


@jax.jit
def _one_round(access: Any, key: Any) -> Any:
    return TIED(key, 1, access).value


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(numbers, min_size=3 * RECORDS, max_size=3 * RECORDS), st.integers(0, 4))
def test_one_site_moves_a_round_by_at_most_the_clip_whatever_it_holds(values, place):
    table = np.array(values, np.float32).reshape(RECORDS, 3)
    odd = (table[:, :DIMENSION], table[:, DIMENSION])
    members = sites(4)
    members.insert(place, odd)
    key = tacit.insecure_key(1)
    access = of_sites(members, SubsampledGaussian(CLIP, 1.0))
    worlds = (access, replace(access, present=access.present.at[place].set(False)))
    changes = [quotient(_last(_one_round(world, key)), MODEL.prior) for world in worlds]
    first, second = (np.concatenate([u.ravel() for u in to_units(c, MODEL.prior, True).values()]) for c in changes)
    moved = np.linalg.norm(first - second)
    # Damped by ½; the posterior's precision is raised to the prior's in both worlds, which only brings them closer.
    assert moved <= 0.5 * CLIP * 1.001


def _last(path: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[-1], path)


def test_the_price_is_one_release_of_a_site_for_each_round(key):
    access = of_sites(sites(), SubsampledGaussian(CLIP, 3.0))
    paid = price(lambda key: TIED(key, 7, access), key)
    assert paid == Repeated(Gaussian(3.0, "site", coordinates=DIMENSION + DIMENSION**2), 7)
    sampled = price(lambda key: TIED(key, 7, of_sites(sites(), SubsampledGaussian(CLIP, 3.0, 0.5))), key)
    assert isinstance(sampled.event, TruncatedPoissonSampled)
    assert accounting.epsilon(paid, 1e-5) > accounting.epsilon(sampled, 1e-5)
    assert accounting.epsilon(paid, 1e-5, adjacency="replace-one") > 1.9 * accounting.epsilon(paid, 1e-5)


def test_places_for_sites_hide_their_number(key):
    few, many = (of_sites(sites(count), SubsampledGaussian(CLIP, 3.0), capacity=20) for count in (3, 12))
    first, second = (price(lambda key, access: TIED(key, 2, access), key, access) for access in (few, many))
    assert first == second


def test_tied_sites_keep_their_claim_under_attack():
    # The canary is a whole site of the worst kind. False alarm: 0.1 %.
    access = Canaried.on(of_sites(sites(5), SubsampledGaussian(CLIP, 3.0)))
    found = audit.audit(lambda key, access: TIED(key, 3, access), access, 1e-5, 6_000, seed=1)
    assert not found.is_refuted
    assert found.best.epsilon > 0.3 * found.claimed_epsilon


def noise_of(reset: int | None, rounds: int, damping: float, sigma: float, seeds: int = 200) -> np.ndarray:
    """Deviation of Λμ by round, in units of σC, over seeds: sites alike and a clip that nobody reaches."""
    clip = 50.0
    access = of_sites(sites(40), SubsampledGaussian(clip, sigma))
    tied = Tied(MODEL.prior, MODEL, conjugate, damping, reset, is_preconditioned=False)
    keys = jax.random.split(tacit.insecure_key(3), seeds)
    path = jax.jit(jax.vmap(lambda key: tied(key, rounds, access).value.precision_mean))(keys)
    return np.asarray(path).std(axis=0).mean(axis=1) / (sigma * clip)


def test_noise_of_tied_factors_is_stationary_and_of_algorithm_4_a_random_walk():
    # A deviation over 200 seeds and two coordinates is within 12 % of its expectation but in 1 of a thousand cases.
    rounds, damping = 24, 0.4
    tied, walk = (noise_of(reset, rounds, damping, 0.02) for reset in (1, None))
    assert tied[-1] == pytest.approx(math.sqrt(damping / (2 - damping)), rel=0.12)
    assert tied[8] == pytest.approx(tied[-1], rel=0.2)
    for t in (4, rounds):
        assert walk[t] == pytest.approx(damping * math.sqrt(t), rel=0.12)


def test_sites_that_each_protect_themselves_add_their_noise_up():
    sigma, clip, count, damping = 0.02, 50.0, 40, 0.4
    mechanism = SubsampledGaussian(clip, sigma)
    algorithm = PVI(MODEL.prior, MODEL, (Whole(conjugate, is_preconditioned=False),), damping=(damping,))
    accesses = local.stacked([of_sites([site], mechanism) for site in sites(count)])
    steps = schedule.synchronous(count, 12)

    def one(key: Any) -> Any:
        return local.simulate(algorithm, unledgered, key, accesses, steps)[0].q.precision_mean

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(tacit.insecure_key(3), 100)))
    theory = math.sqrt(count * damping / (2 - damping)) * sigma * clip
    assert found.std(axis=0).mean() == pytest.approx(theory, rel=0.2)
    access = of_sites(sites(1), mechanism)
    step = price(
        lambda key: algorithm.site_step(key, algorithm.site_init(), MODEL.prior, access, 0), tacit.insecure_key(0)
    )
    assert step == Gaussian(sigma, "site", coordinates=DIMENSION + DIMENSION**2)


# --- A hidden share of noise -------------------------------------------------------------------------------------


def shift_of_totals(takes_back: bool, sigma: float, rounds: int, damping: float, count: int) -> float:
    """μ between the released totals with and without one site that is clipped in every round, exactly.

    One dimension, C = 1; each of `count` sites adds noise of deviation σ/√count to its message, and only the sum
    is seen. A site with a hidden share takes the share of it that is in its own factor back in the next round; the one
    in question is clipped, and so takes nothing back.
    """
    noises = np.zeros((rounds, count * rounds))  # of each total's noise: its weights on all draws
    factors = np.zeros((count, count * rounds))
    total = np.zeros(count * rounds)
    signal = np.zeros(rounds)
    for t in range(rounds):
        for m in range(count):
            draw = np.zeros(count * rounds)
            draw[t * count + m] = sigma / math.sqrt(count)
            change = damping * (draw - (factors[m] if takes_back and m else 0))
            factors[m] += change
            total = total + change
        noises[t] = total
        signal[t] = damping * (t + 1)
    return float(np.sqrt(signal @ np.linalg.solve(noises @ noises.T, signal)))


def test_a_hidden_share_of_noise_that_is_taken_back_breaks_its_claim_and_none_does_not():
    # σ = 15, T = 15, α = 0.4, δ = 1e-5: claimed 0.96. With 2,000 sites 4.75 (docs/errata.md, 3); 40 show it well.
    claimed = accounting.epsilon(Repeated(Gaussian(15.0), 15), 1e-5)
    honest = shift_of_totals(False, 15.0, 15, 0.4, 40)
    hidden = shift_of_totals(True, 15.0, 15, 0.4, 40)
    assert claimed == pytest.approx(0.96, abs=0.005)
    assert honest == pytest.approx(math.sqrt(15) / 15, rel=1e-6)
    assert accounting.epsilon(Gaussian(1 / honest), 1e-5) == pytest.approx(claimed, rel=1e-3)
    assert 3.5 < accounting.epsilon(Gaussian(1 / hidden), 1e-5) < 4.78


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tied(MODEL.prior, MODEL, conjugate, reset=0), "reset=0"),
        (lambda: of_sites(sites(2), Exact(), records=0), "records=0"),
        (lambda: of_sites(sites(2), Exact(), capacity=1), "capacity=1"),
        (
            lambda: Tied(MODEL.prior, MODEL, conjugate, reset=None)(
                tacit.insecure_key(0), 2, of_sites(sites(2), SubsampledGaussian(1.0, 1.0, 0.5))
            ),
            "reset=None with sampled sites",
        ),
    ],
)
def test_bad_settings_are_refused_with_their_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()
