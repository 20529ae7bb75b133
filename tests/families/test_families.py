"""What every family promises: each claim runs on the diagonal Gaussian, the full one, and the product of both.

A member is given by the moments of its parts; the reference is always one joint normal over all parts, from scipy.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import linalg, stats

import tacit
from tacit.families import (
    DiagonalGaussian,
    FullGaussian,
    entropy,
    is_proper,
    kl,
    kl_up_to_constant,
    log_density,
    log_partition,
    mean_parameters,
    power,
    product,
    project,
    quotient,
    sample,
)

Moments = tuple[np.ndarray, np.ndarray]  # mean and covariance
FEW = settings(max_examples=15, deadline=None, derandomize=True)


@pytest.fixture(autouse=True, scope="module")
def _double_precision():
    """Closed forms are compared in double precision; the tests of single precision say so."""
    with jax.enable_x64():
        yield


# --- The cases ---------------------------------------------------------------------------------------------------


def blocks(matrices: list[Any]) -> np.ndarray:
    return np.asarray(linalg.block_diag(*(np.asarray(matrix, np.float64) for matrix in matrices)))


@dataclass(frozen=True)
class Case:
    """The parts of a member by name; one part without a name is that family itself, not a product."""

    parts: dict[str, type]

    def wrap(self, by_name: dict[str, Any]) -> Any:
        return by_name.get("", by_name)

    def unwrap(self, tree: Any) -> dict[str, Any]:
        return {"": tree} if "" in self.parts else tree

    def make(self, moments: dict[str, Moments]) -> Any:
        return self.wrap({name: of(self.parts[name], *moments[name]) for name in self.parts})

    def joint(self, moments: dict[str, Moments]) -> Moments:
        chosen = [moments[name] for name in self.parts]
        return np.concatenate([mean for mean, _ in chosen]), blocks([cov for _, cov in chosen])

    def split(self, joint: Any) -> Any:
        """(..., all coordinates) to a value of the member: a dict if it is a product."""
        ends = np.cumsum([SIZES[cls] for cls in self.parts.values()])[:-1]
        return self.wrap(dict(zip(self.parts, np.split(np.asarray(joint), ends, axis=-1), strict=True)))


SIZES = {DiagonalGaussian: 2, FullGaussian: 3}
CASES = {
    "diagonal": Case({"": DiagonalGaussian}),
    "full": Case({"": FullGaussian}),
    "product": Case({"weights": FullGaussian, "scales": DiagonalGaussian}),
}


def of(cls: type, mean: np.ndarray, covariance: np.ndarray) -> Any:
    return cls.of(mean, np.sqrt(np.diag(covariance)) if cls is DiagonalGaussian else covariance)


# Off centre, far from unit scale, and correlated with both signs: a sign error or a transposed root cannot hide.
_ROOT = np.array([[1.5, 0.0, 0.0], [-1.1, 0.4, 0.0], [0.6, 0.9, 0.3]])
Q: dict[type, Moments] = {
    DiagonalGaussian: (np.array([2.5, -0.8]), np.diag([0.3, 4.0]) ** 2),
    FullGaussian: (np.array([1.5, -3.0, 0.4]), _ROOT @ _ROOT.T),
}
P: dict[type, Moments] = {
    DiagonalGaussian: (np.array([1.0, 0.7]), np.diag([1.2, 0.9]) ** 2),
    FullGaussian: (np.array([-0.5, 0.2, 2.0]), np.diag([0.5, 2.0, 1.0]) + 0.3),
}


def moments_of(case: Case, table: dict[type, Moments]) -> dict[str, Moments]:
    return {name: table[cls] for name, cls in case.parts.items()}


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request) -> Case:
    return request.param


@pytest.fixture
def q(case):
    return case.make(moments_of(case, Q))


@pytest.fixture
def p(case):
    return case.make(moments_of(case, P))


@pytest.fixture
def joint(case) -> Moments:
    return case.joint(moments_of(case, Q))


def precisions(case: Case, tree: Any) -> np.ndarray:
    """The precision matrix over all coordinates."""
    return blocks([part.full().precision for part in case.unwrap(tree).values()])


def assert_trees_close(actual: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def all_finite(tree: Any) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


# --- Moments -----------------------------------------------------------------------------------------------------


def statistics_mean(cls: type, mean: np.ndarray, covariance: np.ndarray) -> Any:
    """E[T] = (E[x], -½ E[xxᵀ]), by hand."""
    second = covariance + np.outer(mean, mean)
    return cls(jnp.asarray(mean), jnp.asarray(-(np.diag(second) if cls is DiagonalGaussian else second) / 2))


def test_the_gradient_of_the_log_partition_is_the_mean_of_the_statistics(case, q):
    expected = case.wrap({name: statistics_mean(cls, *Q[cls]) for name, cls in case.parts.items()})
    assert_trees_close(mean_parameters(q), expected)


def test_the_gradient_of_the_log_partition_is_the_average_statistic_of_independent_draws(case, q, joint):
    """20 000 draws by numpy's root of the covariance, not by the family.

    False alarms: 18 entries at 5 standard errors, below 2e-5 for a fresh seed. Power: rejects draws mirrored at zero,
    and draws whose deviation is 5 % too large.
    """
    mean, covariance = joint
    normal = np.asarray(jax.random.normal(tacit.insecure_key(1), (20_000, mean.size)))

    def rejected(draws: np.ndarray) -> bool:
        parts, values = case.unwrap(q), case.unwrap(case.split(draws))
        observed = {name: jax.vmap(parts[name].statistics)(jnp.asarray(values[name])) for name in parts}
        promised = jax.tree.leaves(mean_parameters(q))
        scores = []
        for leaf, expected in zip(jax.tree.leaves(case.wrap(observed)), promised, strict=True):
            average, error = np.mean(leaf, axis=0), np.std(leaf, axis=0) / np.sqrt(len(leaf))
            scores.append(np.max(np.abs(average - expected) / error))
        return max(scores) > 5

    spread = normal @ np.linalg.cholesky(covariance).T
    assert not rejected(mean + spread)
    assert rejected(-mean - spread)
    assert rejected(mean + 1.05 * spread)


def test_mean_and_spread_are_the_ones_it_was_made_of(case, q):
    for name, part in case.unwrap(q).items():
        mean, covariance = Q[case.parts[name]]
        np.testing.assert_allclose(part.mean, mean, rtol=1e-9)
        np.testing.assert_allclose(part.standard_deviation, np.sqrt(np.diag(covariance)), rtol=1e-9)
        np.testing.assert_allclose(part.full().covariance, covariance, rtol=1e-9, atol=1e-9)


def test_draws_have_the_mean_and_covariance_of_the_member(case, q, joint):
    """20 000 draws, one covariance over all coordinates: parts of a product must not share randomness.

    False alarms: 20 entries at 5 standard errors, below 2e-5 for a fresh seed. Power: rejects draws stretched by 5 %
    and draws mirrored at zero.
    """
    mean, covariance = joint
    drawn = case.unwrap(jax.jit(sample, static_argnums=2)(tacit.insecure_key(2), q, (20_000,)))
    draws = np.concatenate([np.asarray(drawn[name]) for name in case.parts], axis=1)

    def rejected(draws: np.ndarray) -> bool:
        variances = np.diag(covariance)
        mean_error = np.sqrt(variances / len(draws))
        covariance_error = np.sqrt((covariance**2 + np.outer(variances, variances)) / len(draws))
        scores = np.abs(draws.mean(axis=0) - mean) / mean_error
        covariance_scores = np.abs(np.cov(draws.T) - covariance) / covariance_error
        return bool(max(scores.max(), covariance_scores.max()) > 5)

    assert not rejected(draws)
    assert rejected(mean + 1.05 * (draws - mean))
    assert rejected(-draws)


def test_draws_come_in_the_shape_asked_for(case, q):
    for name, drawn in case.unwrap(sample(tacit.insecure_key(3), q, (4, 2))).items():
        assert drawn.shape == (4, 2, SIZES[case.parts[name]])
    for name, drawn in case.unwrap(sample(tacit.insecure_key(3), q)).items():
        assert drawn.shape == (SIZES[case.parts[name]],)


# --- Densities and divergences -----------------------------------------------------------------------------------


def test_log_density_is_that_of_scipy(case, q, joint):
    mean, covariance = joint
    for shift in (-2.0, 0.0, 0.7):
        at = mean + shift * np.arange(1, mean.size + 1)
        expected = stats.multivariate_normal(mean, covariance).logpdf(at)
        assert float(log_density(q, case.split(at))) == pytest.approx(expected, rel=1e-9)


def test_entropy_is_that_of_scipy(q, joint):
    assert float(entropy(q)) == pytest.approx(stats.multivariate_normal(*joint).entropy(), rel=1e-9)


def test_kl_is_the_closed_form_and_not_symmetric(case, q, p):
    def closed_form(a: Moments, b: Moments) -> float:
        (m, s), (n, t) = a, b
        inverse = np.linalg.inv(t)
        log_ratio = np.linalg.slogdet(t)[1] - np.linalg.slogdet(s)[1]
        return (np.trace(inverse @ s) + (n - m) @ inverse @ (n - m) - m.size + log_ratio) / 2

    of_q, of_p = case.joint(moments_of(case, Q)), case.joint(moments_of(case, P))
    assert float(kl(q, p)) == pytest.approx(closed_form(of_q, of_p), rel=1e-9)
    assert float(kl(p, q)) == pytest.approx(closed_form(of_p, of_q), rel=1e-9)
    assert float(kl(p, q)) != pytest.approx(float(kl(q, p)), rel=0.1)


_kl = jax.jit(kl)


def any_moments(size: int) -> st.SearchStrategy[Moments]:
    """Means within 5 of zero; covariances LLᵀ with the diagonal of L from 0.3 to 3."""
    means = npst.arrays(float, size, elements=st.floats(-5, 5))
    roots = npst.arrays(float, (size, size), elements=st.floats(-1, 1))
    diagonals = npst.arrays(float, size, elements=st.floats(0.3, 3))
    lower = st.builds(lambda root, diagonal: np.tril(root, -1) + np.diag(diagonal), roots, diagonals)
    return st.tuples(means, lower.map(lambda root: root @ root.T))


any_table = st.fixed_dictionaries({cls: any_moments(size) for cls, size in SIZES.items()})


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@FEW
@given(a=any_table, b=any_table)
def test_kl_is_never_negative_and_zero_at_equality(case, a, b):
    q, p = case.make(moments_of(case, a)), case.make(moments_of(case, b))
    assert float(_kl(q, p)) >= -1e-9
    assert float(_kl(q, q)) == pytest.approx(0, abs=1e-9)


def test_kl_up_to_constant_is_kl_less_the_log_partition_of_the_other(q, p):
    assert float(kl_up_to_constant(q, p)) == pytest.approx(float(kl(q, p) - log_partition(p)), rel=1e-9)


def test_kl_up_to_constant_and_its_gradient_are_finite_when_the_other_is_improper(q, p):
    cavity = quotient(p, power(q, 50.0))
    assert not bool(is_proper(cavity))
    value, gradient = jax.value_and_grad(kl_up_to_constant)(q, cavity)
    means = mean_parameters(q)
    expected = -entropy(q) - sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (cavity, means)), strict=True))
    assert float(value) == pytest.approx(float(expected), rel=1e-9)
    assert all_finite(gradient)


# --- Algebra -----------------------------------------------------------------------------------------------------


def test_operators_are_the_tree_functions(case, q, p):
    """`+`, `-` and `*` of a family; a dict has none, so there the functions must work part by part."""
    parts_q, parts_p = case.unwrap(q), case.unwrap(p)
    assert_trees_close(product(q, p), case.wrap({n: parts_q[n] + parts_p[n] for n in parts_q}), 0, 0)
    assert_trees_close(quotient(q, p), case.wrap({n: parts_q[n] - parts_p[n] for n in parts_q}), 0, 0)
    assert_trees_close(power(q, 0.3), case.wrap({n: parts_q[n] * 0.3 for n in parts_q}), 0, 0)
    assert_trees_close(power(q, 0.3), case.wrap({n: 0.3 * parts_q[n] for n in parts_q}), 0, 0)
    assert_trees_close(power(q, jnp.array(0.3)), case.wrap({n: jnp.array(0.3) * parts_q[n] for n in parts_q}), 0, 0)


def test_a_quotient_undoes_a_product_and_a_power_repeats_it(q, p):
    assert_trees_close(quotient(product(q, p), p), q)
    assert_trees_close(power(q, 3.0), product(q, q, q))


def test_products_multiply_densities_up_to_a_constant(case, q, p, joint):
    points = [case.split(joint[0] + shift) for shift in (-1.0, 0.0, 0.5)]
    multiplied = [float(log_density(q, x) + log_density(p, x) - log_density(product(q, p), x)) for x in points]
    raised = [float(2.5 * log_density(q, x) - log_density(power(q, 2.5), x)) for x in points]
    np.testing.assert_allclose(multiplied, multiplied[0], rtol=1e-9)
    np.testing.assert_allclose(raised, raised[0], rtol=1e-9)


def test_a_member_passes_through_jit_unchanged(q):
    assert_trees_close(jax.jit(lambda tree: tree)(q), q, 0, 0)


OPERATIONS = {
    "product": product,
    "quotient": quotient,
    "kl": kl,
    "kl_up_to_constant": kl_up_to_constant,
    "project": project,
    "log_density": lambda q, p: log_density(q, {name: part.mean for name, part in p.items()}),
}


@pytest.mark.parametrize("names", [("weight",), ("weights", "bias")], ids=["renamed", "one-too-many"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_products_over_different_names_are_refused(operation, names):
    q = {"weights": FullGaussian.standard(2)}
    with pytest.raises(ValueError, match=r"names|structure|keys"):
        operation(q, {name: FullGaussian.standard(2) for name in names})


# --- Propriety ---------------------------------------------------------------------------------------------------

# Λμ and Λ; a vector of precisions is a diagonal Gaussian, a matrix a full one.
IMPROPER = {
    "diagonal-nan-mean": ([np.nan, 0.0], [1.0, 1.0]),
    "diagonal-inf-mean": ([np.inf, 0.0], [1.0, 1.0]),
    "diagonal-nan": ([0.0, 0.0], [np.nan, 1.0]),
    "diagonal-inf": ([0.0, 0.0], [np.inf, 1.0]),
    "diagonal-zero": ([0.0, 0.0], [1.0, 0.0]),
    "diagonal-negative": ([0.0, 0.0], [1.0, -0.1]),
    "full-nan-mean": ([np.nan, 0.0], [[1.0, 0.0], [0.0, 1.0]]),
    "full-inf-mean": ([0.0, -np.inf], [[1.0, 0.0], [0.0, 1.0]]),
    "full-nan": ([0.0, 0.0], [[1.0, np.nan], [np.nan, 1.0]]),
    "full-inf": ([0.0, 0.0], [[np.inf, 0.0], [0.0, 1.0]]),
    "full-negative": ([0.0, 0.0], [[-1.0, 0.0], [0.0, -1.0]]),
    "full-indefinite": ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),  # its diagonal is positive
    "full-singular": ([0.0, 0.0], [[1.0, 0.0], [0.0, 0.0]]),
}


@pytest.mark.parametrize(("precision_mean", "precision"), IMPROPER.values(), ids=list(IMPROPER))
def test_improper_parameters_are_seen_alone_and_inside_a_product(precision_mean, precision):
    cls = FullGaussian if np.ndim(precision) == 2 else DiagonalGaussian
    bad = cls(jnp.array(precision_mean), jnp.array(precision))
    assert not bool(is_proper(bad))
    assert not bool(is_proper({"good": FullGaussian.standard(2), "bad": bad}))
    assert not bool(is_proper({"outer": {"bad": bad}, "good": DiagonalGaussian.standard(1)}))


def test_a_normal_is_proper_and_its_negative_power_is_not(q):
    assert bool(is_proper(q))
    assert bool(is_proper(power(q, 0.01)))
    assert not bool(is_proper(power(q, -1.0)))


# --- Projection --------------------------------------------------------------------------------------------------


def noised(case: Case, seed: int) -> Any:
    """A result that noise made indefinite: some directions below the floor, some above."""
    rng = np.random.default_rng(seed)
    parts = {}
    for name, cls in case.parts.items():
        size = SIZES[cls]
        noise = 3 * rng.normal(size=(size, size))
        precision = noise + noise.T + np.diag(6.0 * (-1.0) ** np.arange(size))
        precision = np.diag(precision) if cls is DiagonalGaussian else precision
        parts[name] = cls(jnp.asarray(rng.normal(size=size)), jnp.asarray(precision))
    return case.wrap(parts)


def test_projection_is_proper_and_reaches_the_floor_in_every_direction(case, p):
    for seed in range(5):
        bad = noised(case, seed)
        assert not bool(is_proper(bad))
        projected = project(bad, p)
        assert bool(is_proper(projected))
        assert linalg.eigvalsh(precisions(case, projected), precisions(case, p))[0] >= 1 - 1e-9
        assert_trees_close(
            [part.precision_mean for part in case.unwrap(projected).values()],
            [part.precision_mean for part in case.unwrap(bad).values()],
        )


def test_projection_leaves_alone_what_is_above_the_floor(case, q, p):
    assert_trees_close(project(product(q, p), p), product(q, p))
    assert_trees_close(project(p, p), p)


def test_projection_twice_is_projection_once(case, p):
    once = project(noised(case, 0), p)
    assert_trees_close(project(once, p), once)


def test_no_candidate_above_the_floor_is_nearer_than_the_projection(case, p):
    """Nearest as the docstrings say: in η for the diagonal, in R⁻¹ΛR⁻ᵀ for the full one, with the floor's Λ₀ = RRᵀ.

    Candidates are the floor plus random positive semi-definite matrices, and points a short way from the projection
    towards them. Power: the floor itself, which is high enough but not nearest, is beaten.
    """
    rng = np.random.default_rng(7)
    for name, cls in case.parts.items():
        bad, floor = case.unwrap(noised(case, 1))[name], case.unwrap(p)[name]
        start, least = (np.asarray(member.full().precision) for member in (bad, floor))
        scale = np.eye(SIZES[cls]) if cls is DiagonalGaussian else np.linalg.inv(np.linalg.cholesky(least))
        above = rng.normal(size=(300, SIZES[cls], rng.integers(1, SIZES[cls] + 1))) * rng.uniform(0, 4, (300, 1, 1))
        above = above @ np.swapaxes(above, 1, 2)
        if cls is DiagonalGaussian:
            above = above * np.eye(SIZES[cls])

        def distance(precision, start=start, scale=scale):
            return np.linalg.norm(scale @ (precision - start) @ scale.T, axis=(-2, -1))

        def is_beaten(answer, far=least + above, distance=distance):
            near = answer + 0.01 * (far - answer)
            return bool(min(distance(far).min(), distance(near).min()) < distance(answer) - 1e-9)

        assert not is_beaten(np.asarray(bad.project(floor).full().precision))
        assert is_beaten(least)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6, 1e8, 1e10])
def test_projection_in_single_precision_is_proper_however_large_the_noise(case, scale):
    """Noise that is `scale` times the floor: the floor must not be lost in the rounding of the noise."""
    for seed in range(5):
        bad = jax.tree.map(lambda leaf: (scale * leaf).astype(jnp.float32), noised(case, seed))
        floor = {name: cls.standard(SIZES[cls]) for name, cls in case.parts.items()}
        floor = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), case.wrap(floor))
        projected = project(bad, floor)
        assert np.linalg.eigvalsh(precisions(case, projected))[0] > 0
        assert all_finite([part.mean for part in case.unwrap(projected).values()])
        assert all_finite([part.standard_deviation for part in case.unwrap(projected).values()])


# --- Changes of family -------------------------------------------------------------------------------------------


def test_a_diagonal_gaussian_made_full_is_the_same_density():
    q = of(DiagonalGaussian, *Q[DiagonalGaussian])
    at = jnp.array([0.3, 1.0])
    assert float(log_density(q.full(), at)) == pytest.approx(float(log_density(q, at)), rel=1e-12)
    assert_trees_close(q.full().full(), q.full(), 0, 0)


def test_the_diagonal_of_a_full_gaussian_is_the_nearest_in_kl():
    """A stationary point of KL(diagonal ‖ full), which is convex in the diagonal's mean and log-deviations."""
    p = of(FullGaussian, *Q[FullGaussian])
    best = p.diagonal()
    np.testing.assert_allclose(best.mean, p.mean, rtol=1e-9)

    def divergence(mean, log_sd):
        return kl(DiagonalGaussian.of(mean, jnp.exp(log_sd)).full(), p)

    gradient = jax.grad(divergence, argnums=(0, 1))(best.mean, jnp.log(best.standard_deviation))
    assert_trees_close(gradient, jax.tree.map(jnp.zeros_like, gradient), atol=1e-8)


def test_classes_of_the_same_shape_are_never_taken_for_each_other():
    from tacit.models import LogisticRegression, PoissonRegression, ProbitRegression

    models = [kind(DiagonalGaussian.standard(2)) for kind in (LogisticRegression, PoissonRegression, ProbitRegression)]
    structures = [jax.tree.structure(model) for model in models]
    assert all(structures[a] != structures[b] for a in range(3) for b in range(3) if a != b)
    assert jax.tree.structure(DiagonalGaussian.standard(2)) != jax.tree.structure(FullGaussian.standard(2))
    assert jax.tree.leaves(jax.tree.map(lambda x: x + 1, models[0]))[1].tolist() == [2.0, 2.0]
