"""The conjugate solver: exact without noise, priced before it runs, proper whatever comes."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.families import DiagonalGaussian, FullGaussian, is_proper
from tacit.models import LinearRegression
from tacit.privacy.events import Gaussian, NonPrivate, TruncatedPoissonSampled

DIMENSION, NOISE_SCALE = 2, 0.5
# ‖x‖ ≤ 1 and |y| ≤ 2, so no contribution (xy, xxᵀ)/s² is longer than this and nothing is clipped.
CLIP = math.sqrt(2.0**2 + 1) / NOISE_SCALE**2
PRIORS = {
    "full": lambda: FullGaussian.of(np.array([0.5, -1.0]), np.array([[1.0, 0.4], [0.4, 0.5]])),
    "diagonal": lambda: DiagonalGaussian.of(np.array([0.5, -1.0]), np.array([1.0, 0.7])),
}
STARTS = {"full": FullGaussian, "diagonal": DiagonalGaussian}

# Compiled once for all tests: they keep to one shape and one mechanism where they can.
COUNT, NOISE = 10, 3.0
solve = jax.jit(tacit.conjugate)
solve_many = jax.jit(jax.vmap(tacit.conjugate, in_axes=(0, None, None)))  # one release for each key


def simulated(count: int = COUNT, seed: int = 0, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features in the unit ball and bounded targets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, DIMENSION)) @ np.array([[0.8, 0.5], [0.0, 0.4]])
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.clip(x @ np.array([1.0, -0.6]) + NOISE_SCALE * rng.normal(size=count), -2, 2)
    return x.astype(dtype), y.astype(dtype)


def target_of(start: str = "full", prior: str = "full") -> tacit.Target:
    model = LinearRegression(PRIORS[prior](), NOISE_SCALE)
    return tacit.Target(model.prior, STARTS[start].standard(DIMENSION), model)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("start", STARTS)
def test_without_noise_the_answer_is_exact_and_its_mean_field_optimum_if_diagonal(start, prior):
    with jax.enable_x64():
        target = target_of(start, prior)
        x, y = simulated(20, dtype=np.float64)
        q = solve(tacit.insecure_key(0), target, tacit.Access.of((x, y), tacit.Exact())).value
        prior_precision = np.asarray(target.cavity.full().precision)
        precision = prior_precision + x.T @ x / NOISE_SCALE**2
        mean = np.linalg.solve(precision, prior_precision @ np.array([0.5, -1.0]) + x.T @ y / NOISE_SCALE**2)
        assert type(q) is STARTS[start]
        np.testing.assert_allclose(q.mean, mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(q.precision, precision if start == "full" else np.diag(precision), rtol=1e-8)


def test_the_error_of_the_private_mean_shrinks_like_one_over_the_number_of_records():
    """Root mean square error over 64 keys and 2 coefficients at n = 100 and 1600: 16 times smaller, at least 13 asked.

    False alarms: both use the same keys, so over seeds the ratio is 15.6 with a deviation of 0.4; 13 is six deviations
    away: below 1e-6 for a fresh seed. Power: rejects noise that grows with the number of records, as that of a mean
    scaled up by n does.
    """
    keys = jax.random.split(tacit.insecure_key(4), 64)
    mechanism = tacit.SubsampledGaussian(CLIP, 0.2)

    def error(count: int, noise_times: float = 1.0) -> float:
        target, records = target_of(), simulated(count)
        exact = LinearRegression(target.cavity, NOISE_SCALE).exact_posterior(jax.tree.map(jnp.asarray, records))
        found = solve_many(keys, target, tacit.Access.of(records, mechanism, slots=1600)).value
        noisy = jax.tree.map(lambda leaf, true: np.asarray(true + noise_times * (leaf - true)), found, exact)
        means = np.linalg.solve(noisy.precision, noisy.precision_mean[..., None])[..., 0]
        return float(np.sqrt(np.mean((means - np.asarray(exact.mean)) ** 2)))

    small, large = error(100), error(1600)
    assert small > 13 * large
    assert not small > 13 * error(1600, noise_times=16)


MECHANISMS = {
    "exact": (tacit.Exact(), NonPrivate()),
    "gaussian": (tacit.SubsampledGaussian(CLIP, NOISE), Gaussian(NOISE, coordinates=6)),
    "sampled": (
        tacit.SubsampledGaussian(CLIP, NOISE, sampling_rate=0.5, buffer=9),
        TruncatedPoissonSampled(0.5, COUNT, 9, Gaussian(NOISE, coordinates=6)),
    ),
}


@pytest.mark.parametrize(("mechanism", "expected"), MECHANISMS.values(), ids=list(MECHANISMS))
def test_the_receipt_is_the_price_eager_compiled_and_on_the_cached_call(mechanism, expected):
    """One release, so the price is the event of one step; it is known from shapes alone, before a record is read."""
    target, access, key = target_of(), tacit.Access.of(simulated(), mechanism), tacit.insecure_key(0)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), access)
    assert tacit.price(tacit.conjugate, key, target, shapes) == expected
    assert tacit.price(tacit.conjugate, key, target, access) == expected
    assert tacit.conjugate(key, target, access).event == expected
    assert solve(key, target, access).event == expected
    assert solve(tacit.insecure_key(1), target, access).event == expected  # nothing is traced here


def test_the_unit_of_privacy_is_in_the_receipt():
    access = tacit.Access.of(
        simulated(6), tacit.SubsampledGaussian(CLIP, NOISE), groups=[0, 0, 1, 1, 1, 2], most_records=2
    )
    assert tacit.price(tacit.conjugate, tacit.insecure_key(0), target_of(), access) == Gaussian(
        NOISE, "person", coordinates=6
    )


def test_a_second_call_with_other_records_of_the_same_shape_is_not_traced_again():
    traces = []

    @jax.jit
    def counted(key, target, access):
        traces.append(access.slots)
        return tacit.conjugate(key, target, access)

    mechanism = tacit.SubsampledGaussian(CLIP, NOISE)
    values = []
    for seed in range(3):
        # A model, a target and a mechanism made anew must not count as new programs either.
        access = tacit.Access.of(simulated(seed=seed), tacit.SubsampledGaussian(CLIP, NOISE))
        values.append(counted(tacit.insecure_key(seed), target_of(), access).value.mean)
    assert traces == [COUNT]
    assert not np.array_equal(values[0], values[1])
    counted(tacit.insecure_key(0), target_of(), tacit.Access.of(simulated(COUNT + 1), mechanism))
    assert traces == [COUNT, COUNT + 1]  # another shape is another program: the count can see one


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_a_record_with_nan_or_inf_contributes_nothing(start, bad):
    """In its features, its target or both: the answer is the one of an empty slot, bit by bit."""
    mechanism, key, target = tacit.SubsampledGaussian(CLIP, NOISE), tacit.insecure_key(3), target_of(start)
    x, y = simulated()
    x[0], y[0], x[1], y[1], x[2], y[2] = 0, 0, 0, 0, 0, 0
    expected = solve(key, target, tacit.Access.of((x, y), mechanism)).value
    x[0, 1], y[1], x[2], y[2] = bad, bad, bad, bad
    x[1] = 0.5
    found = solve(key, target, tacit.Access.of((x, y), mechanism)).value
    assert bool(is_proper(found))
    np.testing.assert_array_equal(found.precision_mean, expected.precision_mean)
    np.testing.assert_array_equal(found.precision, expected.precision)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("value", [0.0, 1e8, 1e30, math.nan, math.inf], ids=str)
def test_records_that_are_all_alike_and_extreme_leave_a_proper_posterior(start, value):
    x, y = (np.full_like(leaf, value) for leaf in simulated())
    access = tacit.Access.of((x, y), tacit.SubsampledGaussian(CLIP, NOISE))
    q = solve(tacit.insecure_key(5), target_of(start), access).value
    assert bool(is_proper(q))
    assert np.all(np.isfinite(q.mean))
    assert np.all(np.isfinite(q.standard_deviation))


def test_without_records_the_answer_is_proper_and_priced_all_the_same():
    records = jax.tree.map(lambda leaf: leaf[:0], simulated(1))
    release = solve(tacit.insecure_key(6), target_of(), tacit.Access.of(records, tacit.SubsampledGaussian(CLIP, NOISE)))
    assert release.event == Gaussian(NOISE, coordinates=6)
    assert bool(is_proper(release.value))


@pytest.mark.parametrize("prior_deviation", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("start", STARTS)
def test_a_very_noisy_release_is_brought_back_to_a_proper_posterior(start, prior_deviation):
    """64 releases of noise 50·C around 10 records: before projection most are improper.

    Nothing is left to chance: every release must be proper, and (to rounding) no less certain than the prior.
    """
    model = LinearRegression(FullGaussian.standard(DIMENSION, prior_deviation), NOISE_SCALE)
    target = tacit.Target(model.prior, STARTS[start].standard(DIMENSION), model)
    access = tacit.Access.of(simulated(), tacit.SubsampledGaussian(CLIP, 50.0))
    keys = jax.random.split(tacit.insecure_key(7), 64)
    qs = solve_many(keys, target, access).value
    assert np.all(jax.vmap(is_proper)(qs))
    assert np.all(np.isfinite(jax.vmap(lambda q: q.mean)(qs)))
    least = np.linalg.eigvalsh(np.asarray(jax.vmap(lambda q: q.full().precision)(qs), np.float64))[:, 0]
    assert np.all(least >= 0.99 / prior_deviation**2)


def test_a_likelihood_without_a_factor_is_refused_by_name():
    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class HeavyTailed:
        def log_likelihood(self, theta, record):
            x, y = record
            return -jnp.log1p((y - x @ theta) ** 2)

    access = tacit.Access.of(simulated(), tacit.Exact())
    prior = FullGaussian.standard(DIMENSION)
    with pytest.raises(ValueError, match="HeavyTailed is not conjugate; use a variational solver"):
        tacit.conjugate(tacit.insecure_key(0), tacit.Target(prior, prior, HeavyTailed()), access)


@pytest.mark.parametrize("mechanism", [tacit.Exact(), tacit.SubsampledGaussian(CLIP, NOISE)], ids=["exact", "gaussian"])
def test_a_release_says_whether_its_noise_came_from_a_seed(mechanism):
    target, access = target_of(), tacit.Access.of(simulated(), mechanism)
    for run in (tacit.conjugate, solve):
        assert run(tacit.insecure_key(0), target, access).seeded is True
        assert run(tacit.secure_key(), target, access).seeded is False


def test_equal_keys_give_equal_answers_and_other_keys_others():
    target, access = target_of(), tacit.Access.of(simulated(), tacit.SubsampledGaussian(CLIP, NOISE))
    first, again, other = (solve(tacit.insecure_key(seed), target, access).value for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.precision, again.precision)
    assert not np.array_equal(first.precision, other.precision)


def test_an_improper_cavity_still_gives_a_proper_answer():
    """In partitioned inference a cavity can be improper; data that leave a direction open must not give NaN."""
    cavity = FullGaussian(jnp.zeros(2), jnp.diag(jnp.array([-0.1, 1.0])))
    model = tacit.LinearRegression(FullGaussian.standard(2))
    x = np.array([[0.0, 1.0]] * 6, np.float32)
    access = tacit.Access.of((x, np.ones(6, np.float32)), tacit.Exact())
    release = tacit.conjugate(tacit.insecure_key(0), tacit.Target(cavity, cavity, model), access)
    assert bool(release.value.is_proper())
