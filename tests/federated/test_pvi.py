"""Partitioned inference ends where all records together would, whatever the sites, the schedule and what gets lost."""

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import tacit
from tacit.data import partition
from tacit.engines import coordinator
from tacit.engines.local import DirectTransport, simulate, stacked
from tacit.engines.schedule import Step, asynchronous, counts, sequential, synchronous
from tacit.families import DiagonalGaussian, FullGaussian, is_proper, product, register
from tacit.federated.messages import Broadcast, Update, decode, encode
from tacit.federated.pvi import PVI, CoordinatorState, Noise
from tacit.federated.responder import Responder
from tacit.federated.simulated import unledgered
from tacit.models import LinearRegression, LogisticRegression
from tacit.posterior.diagnostics import factor_gap
from tacit.privacy.clipping import Linear
from tacit.privacy.events import Gaussian
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import price
from tacit.solvers import EP, VI, Target, conjugate
from tacit.solvers.natural import NaturalStep
from tacit.solvers.quadrature import NODES

DIMENSION, RECORDS, SITES = 3, 30, 4
MIX = np.array([[1.0, 0.6, 0.0], [0.0, 0.8, -0.4], [0.3, 0.0, 0.7]])  # features are correlated: mean field has to work
TRUTH = np.array([0.8, -1.0, 0.5])
FAMILIES = {"full": FullGaussian, "diagonal": DiagonalGaussian}


@cache
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(RECORDS, DIMENSION)) @ MIX


@cache
def records(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Made-up records of a linear or a logistic regression, in double precision."""
    x, rng = features(), np.random.default_rng(1)
    if kind == "linear":
        return x, x @ TRUTH + 0.5 * rng.normal(size=RECORDS)
    return x, (rng.uniform(size=RECORDS) < 1 / (1 + np.exp(-x @ TRUTH))).astype(float)


@cache
def linear(family: str, damping: float = 1.0) -> PVI:
    """In double precision; to be called where that is enabled. One object, so that all tests share its programs."""
    model = LinearRegression(FAMILIES[family].of(np.array([0.2, 0.0, -0.1]), PRIOR[family]), 0.5)
    return PVI(model.prior, model, (conjugate,), damping=(damping,))


PRIOR: dict[str, Any] = {
    "full": np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]]),
    "diagonal": np.array([1.4, 1.0, 1.7]),
}


def accesses(kind: str, parts: Any, mechanism: Any = None) -> list[Access]:
    """One for each part; all have room for all records, so that they are of one shape."""
    x, y = records(kind)
    return [Access.of((x[part], y[part]), mechanism or Exact(), slots=RECORDS) for part in parts]


@cache
def seeded(seed: int) -> jax.Array:
    return tacit.insecure_key(seed)


def sites_of(algorithm: PVI, held: list[Access]) -> list[Responder]:
    return [Responder(f"site {m}", "study", algorithm, one, seeded(m), None) for m, one in enumerate(held)]


def run(algorithm: PVI, sites: list[Responder], steps: list[Step]) -> coordinator.Progress:
    return coordinator.run(algorithm, DirectTransport(sites), len(sites), steps, "study")


def pooled(kind: str, parts: Any) -> tuple[jax.Array, jax.Array]:
    chosen = np.concatenate(list(parts))
    return tuple(jnp.asarray(leaf[chosen]) for leaf in records(kind))  # type: ignore[return-value]


def gap(algorithm: PVI, state: CoordinatorState) -> float:
    """How far q is from the product of prior, refined prior, pull and all sites' factors."""
    every = jax.tree.map(np.asarray, state.factors)
    factors = [jax.tree.map(lambda leaf, m=m: leaf[m], every) for m in range(state.factors.precision.shape[0])]
    return factor_gap(state.q, [algorithm.prior, state.refined, state.own, *factors])


def assert_same(q: Any, expected: Any, within: float) -> None:
    np.testing.assert_allclose(q.mean, expected.mean, rtol=0, atol=within)
    np.testing.assert_allclose(q.precision, expected.precision, rtol=within, atol=within)


# --- Linear regression: the exact posterior ----------------------------------------------------------------------

SCHEDULES = {
    "synchronous": synchronous(SITES, 1),
    "dropout": synchronous(SITES, 5, dropout=0.5, seed=3),
    "straggling": synchronous(SITES, 3, straggling=0.5, seed=1),
    "both": synchronous(SITES, 5, dropout=0.3, straggling=0.4, seed=2),
    "sequential": sequential(SITES, 1),
    "limits": sequential(SITES, 3, limits=[1, 3, 2, 1]),
    "asynchronous": asynchronous([4, 1, 2, 1], 14, seed=4),
    "delay": asynchronous([4, 1, 2, 1], 10, delay=2, seed=5),
}


def splits() -> dict[str, list[np.ndarray]]:
    target = (records("linear")[1] > 0.4).astype(int)
    rest = np.arange(RECORDS)
    return {
        "equal": partition.equal(RECORDS, SITES, seed=0),
        "rho-kappa": partition.rho_kappa(target, SITES, rho=0.5, kappa=-0.5, seed=0),
        "dirichlet": partition.dirichlet(target, SITES, concentration=0.3, seed=0, least=0),
        "empty": [rest[:0], rest[:1], rest[:0], rest[1:]],
    }


@pytest.mark.parametrize(
    ("schedule", "split"),
    [*((schedule, "rho-kappa") for schedule in SCHEDULES), *(("both", split) for split in splits())],
)
def test_any_schedule_over_any_split_ends_at_the_exact_posterior(schedule, split):
    parts, steps = splits()[split], SCHEDULES[schedule]
    assert counts(steps, SITES).min() >= 1, "every site has answered"
    with jax.enable_x64():
        algorithm = linear("full")
        end = run(algorithm, sites_of(algorithm, accesses("linear", parts)), steps)
        exact = algorithm.likelihood.exact_posterior(pooled("linear", parts))
        assert (end.communications, end.refused) == (sum(len(step.arrived) for step in steps), {})
        assert_same(end.state.q, exact, 1e-8)
        assert gap(algorithm, end.state) < 1e-12


def test_a_site_that_has_not_answered_is_missed():
    """The power of the tests above: they see one record that is not in q."""
    with jax.enable_x64():
        algorithm, parts = linear("full"), splits()["empty"]
        held = accesses("linear", parts)
        end = run(algorithm, sites_of(algorithm, held), sequential(SITES, 1, limits=[1, 0, 1, 1]))
        with pytest.raises(AssertionError):
            assert_same(end.state.q, algorithm.likelihood.exact_posterior(pooled("linear", parts)), 1e-8)


@pytest.mark.parametrize(
    ("damping", "steps"),
    [(1.0, sequential(SITES, 120)), (0.3, synchronous(SITES, 500))],
    ids=["sequential", "damped synchronous"],
)
@pytest.mark.parametrize("split", ["equal", "empty"])
def test_a_diagonal_q_ends_at_the_mean_field_optimum(damping, steps, split):
    """Erratum 1: the posterior's own mean, which the published update (a diagonal beside all of Xᵀy) misses by far."""
    parts = splits()[split]
    with jax.enable_x64():
        algorithm = linear("diagonal", damping)
        state, _ = simulate(algorithm, unledgered, seeded(0), stacked(accesses("linear", parts)), steps)
        data = pooled("linear", parts)
        assert_same(state.q, algorithm.likelihood.mean_field_optimum(data), 1e-8)
        exact = algorithm.likelihood.exact_posterior(data)
        published = exact.precision_mean / jnp.diagonal(exact.precision)
        assert np.max(np.abs(np.asarray(state.q.mean - published))) > 0.05


# --- Messages that are lost, late and repeated -------------------------------------------------------------------


@dataclass
class Coordinator:
    """Plays the coordinator by hand over bytes, so that a test decides what becomes of each answer."""

    algorithm: PVI
    sites: list[Responder]
    state: Any = None
    round: int = 0

    def __post_init__(self) -> None:
        self.state = self.algorithm.coordinator_init(len(self.sites))

    def ask(self, site: int, times: int = 1) -> list[Update]:
        self.state, content = coordinator.aggregate(self.algorithm, self.state)
        message = encode(Broadcast("study", self.round, jax.tree.map(np.asarray, content)))
        self.round += 1
        answers = []
        for _ in range(times):
            asked = decode(message)
            assert isinstance(asked, Broadcast)
            answers.append(decode(encode(self.sites[site](asked))))
        return answers

    def take(self, site: int, answer: Update) -> None:
        content = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], answer.content)
        self.state = coordinator._take(self.algorithm, self.state, jnp.array([site], jnp.int32), content)

    def settled(self) -> CoordinatorState:
        return coordinator.aggregate(self.algorithm, self.state)[0]


def play(coordinator: Coordinator, fates: list[tuple[int, str]], tolerance: float) -> None:
    """Ask sites in this order, each answer with its fate; the product of all factors must be q at every moment."""
    late: dict[int, Update] = {}
    for site, fate in fates:
        if site in late:  # no site is asked while an answer of its own is outstanding
            coordinator.take(site, late.pop(site))
        answers = coordinator.ask(site, 2 if fate == "repeated" else 1)
        assert len({encode(answer) for answer in answers}) == 1
        if fate == "late":
            late[site] = answers[0]
        elif fate != "lost":
            for answer in answers:
                coordinator.take(site, answer)
        assert gap(coordinator.algorithm, coordinator.settled()) < tolerance
    for site, answer in late.items():
        coordinator.take(site, answer)


FATES = st.lists(
    st.tuples(st.integers(0, SITES - 1), st.sampled_from(["arrives", "lost", "repeated", "late"])), max_size=8
)
EVERY = [(site, "arrives") for site in range(SITES)]


def end_of(fates: list[tuple[int, str]]) -> tuple[Any, Any]:
    """q after these answers, and the exact posterior."""
    with jax.enable_x64():
        algorithm, parts = linear("full"), splits()["rho-kappa"]
        coordinator = Coordinator(algorithm, sites_of(algorithm, accesses("linear", parts)))
        play(coordinator, fates, 1e-12)
        return coordinator.settled().q, algorithm.likelihood.exact_posterior(pooled("linear", parts))


@settings(max_examples=10)
@given(fates=FATES)
def test_lost_late_and_repeated_answers_do_no_lasting_harm(fates):
    """q is the product of its parts at every moment, and exact after two more rounds of answers.

    Two, not one: in the first, a site whose answer was lost takes its factor out of a q that does not have it.
    """
    assert_same(*end_of([*fates, *EVERY, *EVERY]), 1e-8)


def test_one_round_is_enough_after_a_loss():
    assert_same(*end_of([(0, "lost"), *EVERY]), 1e-8)


@register("solvers", "kinds", "damping", "noise", "prior_steps")
@dataclass(frozen=True)
class Running(PVI):
    """A bug that was here: the product is kept up to date by differences."""

    def coordinator_step(self, state, sites, answers):
        change = jax.tree.map(lambda new, all: jnp.sum(new - all[sites], axis=0), answers, state.factors)
        after = super().coordinator_step(state, sites, answers)
        return replace(after, total=product(state.total, change))


@pytest.mark.parametrize("algorithm", [PVI, Running])
def test_a_factor_that_once_was_huge_leaves_nothing_behind(algorithm):
    """In single precision, where 1e9 swallows a site's factor: the other sites' must be there again afterwards."""
    prior = DiagonalGaussian.standard(2)
    made = algorithm(prior, LinearRegression(prior), (conjugate,))
    state = made.coordinator_init(2)
    for site, size in ((0, 1.0), (1, 1e9), (1, 2.0)):
        answer = DiagonalGaussian(jnp.full((1, 2), size), jnp.full((1, 2), size))
        state = made.broadcast(made.coordinator_step(state, jnp.array([site], jnp.int32), answer))[0]
    expected = DiagonalGaussian(jnp.full(2, 3.0), jnp.full(2, 4.0))
    is_kept = gap(made, state) < 1e-6 and factor_gap(state.q, [expected]) < 1e-6
    assert is_kept == (algorithm is PVI)


# --- Logistic regression by one release a round ------------------------------------------------------------------


def optimum(parts: Any, *, diagonal: bool = False, spread: bool = True, sd: float = 2.0) -> Any:
    """Mean and precision at which q maximises the bound, over all records: plain NumPy, damped Newton steps.

    Without spread: the mode of the posterior. deviation: the prior's.
    """
    x, y = (np.asarray(leaf) for leaf in pooled("logistic", parts))
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    mean, precision = np.zeros(DIMENSION), np.eye(DIMENSION)
    for _ in range(300):
        covariance = np.linalg.inv(precision) if spread else np.zeros_like(precision)
        width = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
        p = 1 / (1 + np.exp(-((x @ mean)[:, None] + width[:, None] * nodes)))
        curvature = (x * (p * (1 - p) @ weights)[:, None]).T @ x + np.eye(DIMENSION) / sd**2
        gradient = x.T @ (y - p @ weights) - mean / sd**2
        precision = np.diag(np.diagonal(curvature)) if diagonal else curvature
        mean = mean + 0.5 * np.linalg.solve(curvature, gradient)
    return mean, np.diagonal(precision) if diagonal else precision


@cache
def logistic(family: str, *solvers: Any, sd: float = 2.0, **settings: Any) -> PVI:
    model = LogisticRegression(FAMILIES[family].standard(DIMENSION, sd))
    return PVI(model.prior, model, solvers, **settings)


def logistic_splits() -> dict[str, list[np.ndarray]]:
    y, rest = records("logistic")[1], np.arange(RECORDS)
    return {
        "equal": partition.equal(RECORDS, SITES, seed=0),
        "uneven, one empty": [rest[:1], rest[1:5], rest[:0], rest[5:]],
        "one class each": [*np.array_split(np.flatnonzero(y == 0), 2), *np.array_split(np.flatnonzero(y == 1), 2)],
    }


SETTLE = 60  # rounds at a damping of one half: the distance to the fixed point falls below 1e-9


def natural() -> PVI:
    """Of a full q, with curvature in the first rounds and without it later."""
    solvers = NaturalStep(Exact()), NaturalStep(None)
    return logistic("full", *solvers, kinds=(0,) * SETTLE + (1,), damping=(0.5,), noise=Noise())


@pytest.mark.parametrize("split", logistic_splits())
def test_natural_steps_of_many_sites_end_at_the_optimum_of_all_records(split):
    parts = logistic_splits()[split]
    with jax.enable_x64():
        algorithm, held = natural(), stacked(accesses("logistic", parts))
        state, _ = simulate(algorithm, unledgered, seeded(0), held, synchronous(SITES, SETTLE))
        mean, precision = optimum(parts)
        np.testing.assert_allclose(state.q.mean, mean, atol=1e-8)
        np.testing.assert_allclose(state.q.precision, precision, atol=1e-7)
        assert gap(algorithm, state) < 1e-12
        reported, covariance = algorithm.posterior(state)
        np.testing.assert_allclose(reported, mean, atol=1e-8)
        np.testing.assert_allclose(covariance, np.linalg.inv(precision), atol=1e-7)


def test_steps_without_curvature_stay_at_the_fixed_point():
    parts = logistic_splits()["uneven, one empty"]
    with jax.enable_x64():
        held = stacked(accesses("logistic", parts))
        state, _ = simulate(natural(), unledgered, seeded(0), held, synchronous(SITES, 2 * SETTLE))
        mean, precision = optimum(parts)
        np.testing.assert_allclose(state.q.mean, mean, atol=1e-8)
        np.testing.assert_allclose(state.q.precision, precision, atol=1e-7)


@pytest.mark.parametrize("split", logistic_splits())
def test_natural_steps_of_a_diagonal_q_end_at_the_mean_field_optimum(split):
    parts = logistic_splits()[split]
    with jax.enable_x64():
        algorithm = logistic("diagonal", NaturalStep(), damping=(0.3,))
        held = stacked(accesses("logistic", parts))
        state, _ = simulate(algorithm, unledgered, seeded(0), held, synchronous(SITES, 500))
        mean, precision = optimum(parts, diagonal=True)
        np.testing.assert_allclose(state.q.mean, mean, atol=1e-7)
        np.testing.assert_allclose(state.q.precision, precision, atol=1e-6)
        assert gap(algorithm, state) < 1e-12


def test_factors_of_expectation_propagation_end_where_it_does_with_all_records_at_once():
    parts = logistic_splits()["equal"]
    with jax.enable_x64():
        algorithm = logistic("full", NaturalStep(Exact(), expansion="ep"), damping=(0.5,), noise=Noise())
        held = stacked(accesses("logistic", parts))
        state, _ = simulate(algorithm, unledgered, seeded(0), held, synchronous(SITES, 30))
        model = algorithm.likelihood
        target = Target(model.prior, model.prior, model)
        whole = EP(20, 0.7, 0.0)(seeded(0), target, Access.of(pooled("logistic", parts), Exact())).value
        off, off_bound = (
            np.max(np.abs(np.sqrt(np.diagonal(np.linalg.inv(precision))) / whole.standard_deviation - 1))
            for precision in (np.asarray(state.q.precision), optimum(parts)[1])
        )
        np.testing.assert_allclose(state.q.mean, whole.mean, atol=1e-5)
        assert off < 0.1 * off_bound  # the variational bound has its maximum elsewhere


@dataclass(frozen=True)
class WrongCurvature:
    """Exact gradients at q's mean beside a curvature that is made up, and negative in a direction."""

    matrix: tuple[tuple[float, ...], ...]

    def __call__(self, key: Any, target: Any, access: Access) -> Any:
        q = target.start

        def contribution(batch: Any) -> Linear:
            x, y = batch
            return Linear(jax.vmap(jax.grad(target.likelihood.of_linear))(x @ q.mean, y), x)

        wrong = jnp.asarray(self.matrix, q.mean.dtype)

        def factor(gradient: Any) -> Any:
            if isinstance(q, FullGaussian):
                return target.cavity + FullGaussian(gradient + wrong @ q.mean, wrong)
            return target.cavity + DiagonalGaussian(gradient + jnp.diagonal(wrong) * q.mean, jnp.diagonal(wrong))

        return access.sum(key, contribution).map(factor)


WRONG = ((3.0, 1.0, 0.0), (1.0, -2.0, 0.5), (0.0, 0.5, 2.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pull_that_keeps_q_proper_does_not_move_the_fixed_point(family):
    """The sum of factors is indefinite, so the coordinator adds a factor of its own; the mean is the right one still.

    Without the pull (the precision raised, its mean left as it is) the same steps end elsewhere.
    """
    parts = logistic_splits()["equal"]
    with jax.enable_x64():
        noise = Noise() if family == "full" else None
        algorithm = logistic(family, WrongCurvature(WRONG), sd=0.5, damping=(0.05,), noise=noise)
        held = stacked(accesses("logistic", parts))
        steps = synchronous(SITES, 1500)
        state, _ = simulate(algorithm, unledgered, seeded(0), held, steps)
        assert not bool(is_proper(product(algorithm.prior, state.total)))
        assert bool(is_proper(state.q))
        assert gap(algorithm, state) < 1e-12
        mean, _ = optimum(parts, spread=False, sd=0.5)
        np.testing.assert_allclose(state.q.mean, mean, atol=1e-6)
        without = replace(state.q, precision_mean=state.q.precision_mean - state.own.precision_mean)
        assert np.max(np.abs(np.asarray(without.mean) - mean)) > 0.1


@pytest.mark.parametrize(
    "family",
    ["full", pytest.param("diagonal", marks=pytest.mark.slow)],
)
def test_whatever_the_noise_q_stays_proper_and_where_the_reach_lets_it(family):
    """32 runs in which sites send nothing but noise, as `NaturalStep` would: most sums of factors are improper."""
    noise, reach, rounds, rho = 300.0, 2.0, 12, 0.5
    algorithm = logistic(family, NaturalStep(), damping=(rho,), noise=Noise(noise, noise, reach=reach))
    every = jnp.arange(SITES, dtype=jnp.int32)

    def one(state: CoordinatorState, key: Any) -> tuple[CoordinatorState, Any]:
        q, parts = state.q, jax.random.split(key, 2)
        drawn = noise / math.sqrt(SITES) * jax.random.normal(parts[0], state.factors.precision.shape)
        curvature = (drawn + jnp.swapaxes(drawn, -1, -2)) / 2 if family == "full" else drawn
        gradient = noise / math.sqrt(SITES) * jax.random.normal(parts[1], (SITES, DIMENSION))
        new = type(q)(gradient + (curvature @ q.mean if family == "full" else curvature * q.mean), curvature)
        factors = jax.tree.map(lambda old, new: (1 - rho) * old + rho * new, state.factors, new)
        settled, _ = algorithm.broadcast(algorithm.coordinator_step(state, every, factors))
        whole = product(algorithm.prior, settled.own, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), settled.factors))
        gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), settled.q, whole)
        return settled, (settled.q.mean, is_proper(settled.q), is_proper(product(algorithm.prior, settled.total)), gaps)

    keys = jax.random.split(jax.random.key(3), (32, rounds))
    play = jax.jit(jax.vmap(lambda keys: jax.lax.scan(one, algorithm.coordinator_init(SITES), keys)[1]))
    mean, proper, is_whole_proper, gaps = play(keys)
    assert np.all(proper)
    assert np.mean(is_whole_proper) < 0.6, "or nothing was tested"
    assert np.max(np.linalg.norm(mean, axis=-1)) < reach * rounds * 1.001
    assert max(float(np.max(leaf)) for leaf in jax.tree.leaves(gaps)) < 1e-6 * noise * SITES * reach * rounds


# --- Other solvers at the sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize("damping", [0.5, pytest.param(0.1, marks=pytest.mark.slow)])
def test_a_few_steps_of_vi_at_uneven_sites_come_near_the_optimum_of_all_records(damping):
    parts = logistic_splits()["uneven, one empty"]
    algorithm = logistic("diagonal", VI(25, optax.adagrad(0.2), average=0), damping=(damping,))
    held = stacked(accesses("logistic", parts))
    state, _ = simulate(algorithm, unledgered, seeded(0), held, synchronous(SITES, round(12 / damping)))
    mean, precision = optimum(parts, diagonal=True)
    sd = precision**-0.5
    assert np.all(np.abs(state.q.mean - mean) < 0.1 * sd)
    assert np.asarray(state.q.standard_deviation) == pytest.approx(sd, rel=0.1)
    assert gap(algorithm, state) < 1e-5


# --- A prior that is not in the family ---------------------------------------------------------------------------


@register("kind")
@dataclass(frozen=True)
class Robust:
    """Linear regression whose prior has other tails than the Gaussian in its place."""

    within: LinearRegression
    kind: str

    def log_likelihood(self, theta: Any, record: Any) -> Any:
        return self.within.log_likelihood(theta, record)

    def factor(self, record: Any) -> FullGaussian:
        return self.within.factor(record)

    def log_prior_correction(self, theta: Any) -> Any:
        gaussian = jax.scipy.stats.norm.logpdf(theta, 0.0, 1.5)
        tails = {"laplace": jax.scipy.stats.laplace.logpdf, "student": lambda t, *a: jax.scipy.stats.t.logpdf(t, 3, *a)}
        return jnp.sum(tails[self.kind](theta, 0.0, 0.3) - gaussian)


def robust(kind: str, family: str) -> Robust:
    return Robust(LinearRegression(FAMILIES[family].standard(DIMENSION, 1.5), 2.0), kind)


def robust_optimum(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the diagonal q that maximises the bound: SciPy on a fine grid, no tacit."""
    x, y = records("linear")
    grid = np.linspace(-8, 8, 4001)
    weights = stats.norm.pdf(grid) * (grid[1] - grid[0])
    prior: Any = stats.laplace(0, 0.3) if kind == "laplace" else stats.t(3, 0, 0.3)

    def loss(parameters: np.ndarray) -> float:
        mean, sd = parameters[:DIMENSION], np.exp(parameters[DIMENSION:])
        expected = np.sum((y - x @ mean) ** 2) + np.sum(x**2 @ sd**2)
        log_prior = np.sum(prior.logpdf(mean[:, None] + sd[:, None] * grid) @ weights)
        return float(expected / (2 * 2.0**2) - log_prior - np.sum(np.log(sd)))

    found = optimize.minimize(loss, np.concatenate([np.zeros(DIMENSION), np.full(DIMENSION, -1.0)]))
    return found.x[:DIMENSION], np.exp(found.x[DIMENSION:])


@pytest.mark.parametrize("kind", ["laplace", pytest.param("student", marks=pytest.mark.slow)])
def test_a_prior_outside_of_the_family_is_refined_as_all_records_together_would_have_it(kind):
    """The mean within 0.1 deviations of the optimum, and the deviation within 5 %: so is `VI` on all records, of whose
    steps chance is a part, and so is not the answer without the correction.
    """
    parts = partition.equal(RECORDS, 3, seed=0)
    model = robust(kind, "diagonal")
    mean, sd = robust_optimum(kind)

    def is_near(q: Any) -> bool:
        far = np.abs(np.asarray(q.mean) - mean) / sd
        return bool(np.all(far < 0.1) and np.all(np.abs(np.asarray(q.standard_deviation) / sd - 1) < 0.05))

    algorithm = PVI(model.within.prior, model, (conjugate,), damping=(0.5,), prior_steps=1)
    state, _ = simulate(algorithm, unledgered, seeded(0), stacked(accesses("linear", parts)), synchronous(3, 60))
    assert is_near(state.q)
    assert gap(algorithm, state) < 1e-5
    x, y = (jnp.asarray(leaf, jnp.float32) for leaf in records("linear"))
    assert not is_near(model.within.mean_field_optimum((x, y)))
    whole = Access.of(records("linear"), Exact())
    target = Target(model.within.prior, model.within.prior, model)
    assert is_near(jax.jit(VI(4000, optax.adam(0.02)))(seeded(1), target, whole).value)


def test_refining_the_prior_costs_nothing_and_no_site_counts_the_prior_again():
    """A site's price is that of its release, with the correction and without."""
    model = robust("laplace", "full")
    (held,) = accesses("linear", [np.arange(RECORDS)], SubsampledGaussian(1.0, 2.0))
    seen = []

    def solver(key: Any, target: Target, access: Access) -> Any:
        seen.append(target.corrects_prior)
        return conjugate(key, target, access)

    for likelihood in (model, model.within):
        algorithm = PVI(model.within.prior, likelihood, (solver,))
        step = partial(algorithm.site_step, kind=0)
        promised = price(step, seeded(0), algorithm.site_init(), algorithm.prior, held)
        assert promised == Gaussian(2.0, coordinates=DIMENSION + DIMENSION**2)
    assert set(seen) == {False}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"solvers": ()}, "kinds"),
        ({"kinds": (1,)}, "kinds"),
        ({"kinds": ()}, "kinds"),
        ({"damping": (0.0,)}, "damping"),
        ({"damping": (1.5,)}, "damping"),
        ({"damping": ()}, "damping"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    prior = DiagonalGaussian.standard(2)
    with pytest.raises(ValueError, match=words):
        PVI(prior, LinearRegression(prior), **{"solvers": (conjugate,), **settings})


def test_noise_is_for_one_gaussian_not_for_a_product_of_several():
    with pytest.raises(ValueError, match="one Gaussian"):
        PVI({"a": DiagonalGaussian.standard(2)}, None, (conjugate,), noise=Noise())


def test_a_prior_outside_of_the_family_is_not_left_out_in_silence():
    """With `noise` the coordinator would not refine it."""
    model = robust("laplace", "full")
    with pytest.raises(ValueError, match="Robust, whose prior is not in the family"):
        PVI(model.within.prior, model, (conjugate,), noise=Noise())


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_noised_mean_is_shrunk_and_has_the_spread_that_is_reported(rounds):
    """Parameters from the prior, a linear model, noised gradients, and curvature that noise could hide, so that a step
    goes but a part of the way: what is reported has the spread that it says. Seeded, within four standard errors."""
    centre, before, curved = np.array([0.5, -1.0, 0.0]), np.array([2.0, 1.0, 1.0]), np.array([6.0, 0.7, 0.05])
    hidden, sd, draws, rng = 5.0, 3.0, 20_000, np.random.default_rng(rounds)
    prior = DiagonalGaussian.of(centre, before)
    noise = Noise(sd, hidden, share=0.4)
    algorithm = PVI(prior, LogisticRegression(prior), (NaturalStep(Exact()),), damping=(1.0, 0.6, 0.5), noise=noise)
    after = 1 / (1 / before**2 + curved)  # of the data's posterior
    middle = centre + np.sqrt(before**2 - after) * rng.normal(size=(draws, 3))
    truth = middle + np.sqrt(after) * rng.normal(size=(draws, 3))
    errors = sd * rng.normal(size=(rounds, draws, 3))

    def one(middle: Any, errors: Any) -> Any:
        state, factor = algorithm.coordinator_init(1), jnp.zeros(3)
        for t, error in enumerate(errors):
            state, q = algorithm.broadcast(state)
            # Σ f' x at q's mean, of a model whose posterior has its mean in `middle`; curvature with what is hidden.
            slope = middle / after - centre / before**2 - curved * q.mean + error
            rho = (1.0, 0.6, 0.5)[min(t, 2)]
            factor = (1 - rho) * factor + rho * (slope + (curved + hidden) * q.mean)
            answer = DiagonalGaussian(factor[None], jnp.asarray(curved + hidden)[None])
            state = algorithm.coordinator_step(state, jnp.array([0]), answer)
        state, _ = algorithm.broadcast(state)
        plain = replace(algorithm, noise=replace(noise, pull=0.0))
        return algorithm.posterior(state), plain.posterior(state)

    as_single = [jnp.asarray(numbers, jnp.float32) for numbers in (middle, np.swapaxes(errors, 0, 1))]
    found, plain = jax.jit(jax.vmap(one))(*as_single)
    for (mean, variance), is_shrunk in ((found, True), (plain, False)):
        squares, told = (np.asarray(mean) - truth) ** 2, np.asarray(variance)[0]
        error = 4 * squares.std(axis=0) / math.sqrt(draws) + 2e-3
        is_capped = told >= before**2 * (1 - 1e-5)  # what is reported is no wider than the prior
        assert np.all((np.abs(squares.mean(axis=0) - told) < error) | is_capped), (rounds, is_shrunk)
        assert np.all(squares.mean(axis=0)[is_capped] > before[is_capped] ** 2 - error[is_capped])
        assert not (is_shrunk and np.any(is_capped[:2])), "of coordinates that noise does not hide"
    assert np.all(np.asarray(found[1])[0] <= before**2 * 1.02)
    closer = [np.mean((np.asarray(mean) - truth) ** 2) for mean, _ in (found, plain)]
    assert closer[0] < closer[1]


def test_noise_of_early_gradients_is_counted_where_it_was():
    noise = Noise(1.0, early=3.0, until=2)
    assert [float(noise.at(jnp.int32(turn))) for turn in range(4)] == [3.0, 3.0, 1.0, 1.0]
    assert float(Noise(1.0).at(jnp.int32(0))) == 1.0
