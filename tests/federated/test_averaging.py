"""Gradient averaging is VI on all records in another place; moments over sites are those of all records."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.engines import coordinator
from tacit.engines.coordinator import Progress, run
from tacit.engines.local import DirectTransport, simulate, stacked
from tacit.engines.schedule import asynchronous, synchronous
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.averaging import GradientAveraging
from tacit.federated.messages import Broadcast, Update
from tacit.federated.moments import Moments
from tacit.federated.responder import Responder
from tacit.federated.simulated import unledgered
from tacit.models import LinearRegression, LogisticRegression
from tacit.privacy.clipping import Dense
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import price
from tacit.solvers import VI, Target
from tacit.tables.scaling import Range, moments_clip, release_moments

DIMENSION, RECORDS, ROUNDS = 3, 24, 5
SITES = [np.arange(1), np.arange(1, 8), np.arange(0), np.arange(8, RECORDS)]  # uneven, one without records


@cache
def key_of(seed: int) -> jax.Array:
    return tacit.insecure_key(seed)


@cache
def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, DIMENSION)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    return x, (rng.uniform(size=RECORDS) < 1 / (1 + np.exp(-x @ np.array([1.0, -1.0, 0.5])))).astype(float)


def accesses(mechanism: Any = None) -> list[Access]:
    x, y = records()
    return [Access.of((x[part], y[part]), mechanism or Exact(), slots=RECORDS) for part in SITES]


def averaging(family: type = DiagonalGaussian, weights: Any = None, **settings: Any) -> GradientAveraging:
    solver = VI(ROUNDS, optax.adam(0.1), **{"path": "linear", **settings})
    model = LogisticRegression(family.standard(DIMENSION, 2.0))
    weights = jnp.ones(len(SITES)) if weights is None else jnp.asarray(weights)
    return GradientAveraging(family.standard(DIMENSION, 0.5), model.prior, model, weights, solver)


# --- Gradient averaging ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [DiagonalGaussian, pytest.param(FullGaussian, marks=pytest.mark.slow)])
def test_with_all_sites_in_every_round_it_is_vi_on_all_records_step_by_step(family):
    with jax.enable_x64():
        study = averaging(family)
        sites = [Responder(f"{m}", "heart", study, access, key_of(m), None) for m, access in enumerate(accesses())]
        rounds: list[Any] = []

        def note(now: Progress) -> None:
            rounds.append(coordinator.aggregate(study, now.state)[0].optimiser.parameters)

        end = run(study, DirectTransport(sites), len(sites), synchronous(len(SITES), ROUNDS), "heart", observe=note)
        target = Target(study.prior, study.start, study.likelihood)
        whole = Access.of(records(), Exact())

        @jax.jit
        def step(key: Any, state: Any) -> Any:
            return study.solver.gradient(key, state.parameters, target, whole).map(
                lambda gradient: study.solver.step(state, target, gradient)
            )

        state = study.solver.begin(study.start)
        for parameters in rounds:
            state = step(key_of(9), state).value
            np.testing.assert_allclose(parameters.mean, state.parameters.mean, atol=1e-12)
            np.testing.assert_allclose(parameters.scale, state.parameters.scale, atol=1e-12)
        assert len(rounds) == ROUNDS
        q = study.posterior(end.state)
        expected = study.solver.end(state, study.start)
        np.testing.assert_allclose(q.mean, expected.mean, atol=1e-12)
        np.testing.assert_allclose(q.precision, expected.precision, rtol=1e-10)


def test_one_site_at_a_time_with_weights_follows_the_sites_that_come_most_often():
    """As Sharma et al. (2019) run it, and why they do not: a site that comes alone decides alone."""
    sizes = np.array([max(1, len(part)) for part in SITES])
    study = averaging(weights=RECORDS / sizes, average=0.0)
    held = stacked(accesses())
    ends = {}
    for name, rates in {"even": [1, 1, 1, 1], "mostly the first": [97, 1, 1, 1]}.items():
        state, _ = simulate(study, unledgered, key_of(0), held, asynchronous(rates, 200, seed=0))
        ends[name] = np.asarray(study.posterior(state).mean)
    x, y = records()
    towards = x[0] * (2 * y[0] - 1)  # where the first site's only record pulls
    assert towards @ ends["mostly the first"] > towards @ ends["even"] + 0.5


def test_weights_multiply_the_gradients_of_their_own_sites():
    study = averaging(weights=[2.0, 3.0, 5.0, 7.0])
    state = study.coordinator_init(len(SITES))
    ones = study._content(jax.tree.map(jnp.ones_like, state.gradient))
    answers = {name: jnp.stack([leaf, 10 * leaf]) for name, leaf in ones.items()}
    taken = study.coordinator_step(state, jnp.array([3, 1], jnp.int32), answers)
    for leaf in jax.tree.leaves(taken.gradient):
        np.testing.assert_allclose(leaf, 7 + 10 * 3)
    assert int(taken.arrived) == 2


def test_a_site_pays_for_one_gradient_in_every_round():
    study = averaging()
    (access, *_) = accesses(SubsampledGaussian(1.0, 3.0))
    content = study._content(study.solver.begin(study.start).parameters)
    promised = price(partial(study.site_step, kind=0), key_of(0), study.site_init(), content, access)
    assert promised == Gaussian(3.0, coordinates=2 * DIMENSION)
    assert jax.jit(partial(study.site_step, kind=0))(key_of(0), study.site_init(), content, access).event == promised


def test_a_gradient_that_is_not_finite_counts_as_none():
    """The site sends the last one it had, and at first nothing: not its parameters."""
    study = averaging()
    site = Responder("a", "heart", study, accesses()[1], key_of(0), None)
    content = jax.tree.map(np.asarray, study._content(study.solver.begin(study.start).parameters))
    steep = {name: np.full_like(leaf, 200.0) for name, leaf in content.items()}  # exp(2 · 200) is infinite
    answer = site(Broadcast("heart", 0, steep))
    assert isinstance(answer, Update)
    for leaf in jax.tree.leaves(answer.content):
        np.testing.assert_array_equal(leaf, 0)


def test_weights_for_fewer_sites_are_refused():
    """Too few would be taken from the last site's in silence."""
    with pytest.raises(ValueError, match="one for each of 5 sites"):
        averaging().coordinator_init(5)


def test_a_prior_outside_of_the_family_which_every_site_would_count_is_refused():
    @dataclass(frozen=True)
    class Laplace(LinearRegression):
        def log_prior_correction(self, theta: Any) -> Any:
            return -jnp.sum(jnp.abs(theta))

    prior = DiagonalGaussian.standard(2)
    with pytest.raises(ValueError, match="Laplace has a prior outside of the family"):
        GradientAveraging(prior, prior, Laplace(prior), jnp.ones(2), VI(1, optax.sgd(0.1)))


# --- Moments -----------------------------------------------------------------------------------------------------

LOW, HIGH = np.array([-2.0, -1.0, 0.0]), np.array([3.0, 1.0, 1.0])


def test_moments_over_sites_are_those_of_all_records():
    """After what lies outside of the public bounds was moved to their ends; from messages, without noise."""
    x = records()[0]
    with jax.enable_x64():
        study = Moments(Range(jnp.asarray(LOW), jnp.asarray(HIGH)))
        held = [Access.of(x[part], Exact(), slots=RECORDS) for part in SITES]
        sites = [Responder(f"{m}", "heart", study, access, key_of(m), None) for m, access in enumerate(held)]
        end = run(study, DirectTransport(sites), len(sites), synchronous(len(SITES), 1), "heart")
        found = study.scaling(end.state)
        inside = np.clip(x, LOW, HIGH)
        np.testing.assert_allclose(found.location, inside.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(found.scale, inside.std(axis=0), atol=1e-12)
        assert float(end.state["count"].sum()) == RECORDS
        np.testing.assert_allclose(found(jnp.asarray(x)), (inside - inside.mean(axis=0)) / inside.std(axis=0))


def test_a_site_that_is_asked_twice_counts_once():
    """Its later sums take the place of its earlier ones."""
    study = Moments(Range(-jnp.ones(1), jnp.ones(1)))
    state = study.coordinator_init(2)
    for site, count in ((0, 5.0), (1, 7.0), (0, 6.0)):
        answer = {name: jnp.full((1, 1), count) for name in ("count", "first", "second")}
        state = study.coordinator_step(state, jnp.array([site], jnp.int32), answer)
    assert float(state["count"].sum()) == 13.0


class Norms:
    """In place of `Access`: the norm of what each record contributes, before it is clipped."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def sum(self, key: Any, contribution: Any) -> np.ndarray:
        del key
        batch = contribution(self.records)
        assert isinstance(batch, Dense)
        return np.asarray(batch.norms())


RANGE = Range(jnp.asarray(LOW, jnp.float32), jnp.asarray(HIGH, jnp.float32))


def norms_of(x: Any) -> np.ndarray:
    return release_moments(key_of(0), Norms(jnp.asarray(x, jnp.float32)), RANGE)  # type: ignore[return-value]


@given(x=st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=4, max_size=4))
def test_no_record_contributes_more_than_the_clip_of_moments(x):
    """Any floats, infinities too. A record with NaN has no norm, and the clip makes it 0. 1e-6 is for rounding."""
    norms, clip = norms_of(x), moments_clip(3)
    has_nan = np.isnan(np.asarray(x)).any(axis=1)
    assert np.all(np.isnan(norms) == has_nan)
    assert np.all(norms[~has_nan] <= clip * (1 + 1e-6))


def test_the_clip_of_moments_is_met_so_a_smaller_one_would_clip():
    corners = np.array([LOW, HIGH, [np.inf, -np.inf, 1e30]])
    np.testing.assert_allclose(norms_of(corners), moments_clip(3), rtol=1e-6)
    assert np.all(norms_of(corners) > moments_clip(3) * 0.999)


def test_the_price_of_moments_counts_every_number_that_leaves():
    study = Moments(RANGE)
    access = Access.of(np.zeros((4, 3), np.float32), SubsampledGaussian(moments_clip(3), 2.0))
    content = study.broadcast(study.coordinator_init(1))[1]
    promised = price(partial(study.site_step, kind=0), key_of(0), study.site_init(), content, access)
    assert promised == Gaussian(2.0, coordinates=7)
