"""Hong's slides on dynamic policies: noise by eq. (10) against constant noise, at equal ε.

Three problems, full batches, noise by PLD on the whole receipt:

| problem   | loss                                                   | what is known                             |
|-----------|--------------------------------------------------------|-------------------------------------------|
| quadratic | mean of ½ (θ - x_i)ᵀ A (θ - x_i), A = diag(μ ... M)     | everything: κ = M/μ, minimiser, the bound |
| Adult     | logistic, regularised                                  | minimiser (Newton), smoothness            |
| digits    | a network of one hidden layer, 3 against 5             | nothing                                   |

The quadratic's mean excess risk also has a closed form (`expected`), noise included. It gives each schedule its best
number of steps, so that eq. (10) is compared with *every* constant schedule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from scipy import special

from tacit.data import datasets
from tacit.models import NeuralNetwork
from tacit.privacy import accounting
from tacit.privacy.clipping import Contributions, Dense, Linear, per_record
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price, repeat
from tacit.privacy.schedules import (
    Schedule,
    constant,
    contraction_influence,
    curvature_influence,
    momentum_influence,
    optimal,
)
from tacit.report.style import COLOURS, panels
from tacit.solvers.optimisers import momentum
from tacit_reproduce import Result, Row, Track, mean_and_error, over_seeds
from tacit_reproduce.drawing import curve, epsilon_axis

DELTA = 1e-5
UNIFORM, DYNAMIC, MOMENTUM = "uniform", "dynamic", "dynamic + momentum"
BY_CURVATURE, SMALL_STEPS = "true influence", "momentum, η₀"
Gradient = Callable[[Any, Any], Contributions]  # θ, records -> contributions

# --- Descent through a mechanism ---------------------------------------------------------------------------------


def descend(
    key: Array,
    schedule: Schedule,
    access: Access,
    gradient: Gradient,
    start: Any,
    optimiser: optax.GradientTransformation,
    pull: float = 0.0,
    size: Callable[[Any], Array] = optax.tree.norm,
) -> Released[tuple[Any, Array]]:
    """θ after the schedule's steps on the mean loss plus ½ pull ‖θ‖², and the largest size of θ on the way.

    The mean is by the number of slots, which is public; the pull is exact and outside the clip.
    """

    def step(key: Array, level: Any, state: Any) -> Released[Any]:
        theta, kept, largest = state

        def moved(total: Any) -> Any:
            mean = jax.tree.map(lambda g, leaf: g / access.slots + pull * leaf, total, theta)
            changes, new = optimiser.update(mean, kept)
            there: Any = optax.apply_updates(theta, changes)
            return there, new, jnp.maximum(largest, size(there))

        return access.at(level).sum(key, lambda records: gradient(theta, records)).map(moved)

    begun = (start, optimiser.init(start), size(start))
    return repeat(key, schedule.steps, step, begun).map(lambda state: (state[0], state[2]))


def _optimiser(learning_rate: float, decay: float) -> optax.GradientTransformation:
    return momentum(learning_rate, decay) if decay else optax.sgd(learning_rate)


def calibrated(schedule: Schedule, epsilon: float, clip: float, records: int, numbers: int) -> SubsampledGaussian:
    """The schedule's mechanism with the least noise whose whole receipt, every draw in it, is within ε."""
    found = accounting.calibrate(epsilon, DELTA, plan=schedule.plan(records, "record", numbers))
    return schedule.mechanism(clip, found.noise_multiplier)


def of_steps(schedule: Schedule, mechanism: SubsampledGaussian) -> np.ndarray:
    """The noise multiplier of each step."""
    return np.repeat(mechanism.noise_multipliers, schedule.steps)


# --- The quadratic: bounds and closed form -----------------------------------------------------------------------

RECORDS, DIMENSION, SMOOTHNESS, EPSILON = 5000, 8, 1.0, 4.0
REACH, SPREAD = (
    0.8,
    0.2,
)  # distance of the records' centre from 0, and of records from the centre: in the unit ball
BALL = 1.2  # ‖Aθ‖ / M that no descent reaches, which is checked; then ‖A(θ - x)‖ ≤ M (BALL + 1)
CLIP = SMOOTHNESS * (BALL + 1)
DECAY = 0.3  # β; the step that theorem 3.4 allows is the longest for about this
CURVATURES, QUICK_CURVATURES = (2, 5, 20, 50), (5,)
MULTIPLES, QUICK_MULTIPLES = (1, 2, 4, 6), (2,)  # of κ: how many steps


def eigenvalues(kappa: float) -> np.ndarray:
    """The eigenvalues of A, from μ = M / κ to M."""
    return SMOOTHNESS * np.geomspace(1 / kappa, 1, DIMENSION)


@cache
def points() -> np.ndarray:
    """Records in the unit ball, around a centre with equal coordinates."""
    rng = np.random.default_rng(10)
    away = rng.normal(size=(RECORDS, DIMENSION))
    away *= (SPREAD * rng.uniform(size=RECORDS) ** (1 / DIMENSION) / np.linalg.norm(away, axis=1))[:, None]
    return (REACH / math.sqrt(DIMENSION) + away).astype(np.float32)


def excess(theta: Any, kappa: float) -> np.ndarray:
    """½ (θ - x̄)ᵀ A (θ - x̄): the loss above its least."""
    away = np.asarray(theta, float) - points().mean(axis=0, dtype=float)
    return np.sum(eigenvalues(kappa) * away**2, axis=-1) / 2


def start_gap(kappa: float) -> float:
    """f(θ₁) - f(θ*), from θ₁ = 0."""
    return float(excess(np.zeros(DIMENSION), kappa))


def longest_step(decay: float) -> float:
    """The largest η₀ M, by theorem 3.4."""
    c = decay * (1 - decay) ** 3
    return c / 8 * (math.sqrt(1 / 4 + 16 / c) - 1)


def momentum_effect(learning_rate: float, kappa: float, decay: float) -> float:
    """ζ of eq. (17), for M = 1: the bound needs no ‖v‖ only where it is at most 0."""
    gamma = 1 - learning_rate / kappa
    if gamma == decay:
        return math.inf
    return 4 * decay * gamma / ((gamma - decay) ** 2 * (1 - decay) ** 3) * learning_rate**2 + learning_rate / 2 - 1


@dataclass(frozen=True)
class NoiseRule:
    """A way to set the noise of T steps at curvature κ: by influence, with momentum or without, at a rate."""

    influence: Callable[[int, float], np.ndarray]
    decay: float = 0.0
    learning_rate: float = 1 / SMOOTHNESS

    def schedule(self, steps: int, kappa: float) -> Schedule:
        return Schedule.of(optimal(self.influence(steps, kappa)))

    def bound(self, kappa: float, sigmas: np.ndarray) -> float | None:
        """A bound on the mean excess risk: eq. (6), or eq. (16) with momentum; None where that is no proven bound."""
        steps, rate = len(sigmas), self.learning_rate
        gamma = 1 - rate * SMOOTHNESS / kappa
        first = gamma**steps * start_gap(kappa)
        each = DIMENSION * (CLIP / RECORDS) ** 2
        if self.decay == 0:
            left = contraction_influence(steps, gamma)
            return first + each * SMOOTHNESS * rate**2 / 2 * float(np.sum(left * sigmas**2))
        if momentum_effect(rate * SMOOTHNESS, kappa, self.decay) > 0:
            return None
        left = momentum_influence(steps, gamma, self.decay)
        return first + each * 2 * rate * float(np.sum(left * sigmas**2))

    def expected(self, kappa: float, sigmas: np.ndarray) -> float:
        """The mean excess risk in closed form: descent is linear in its start and in each step's noise."""
        steps, rate, decay = len(sigmas), self.learning_rate, self.decay
        found = eigenvalues(kappa)
        factors = rate / (1 - decay ** np.arange(1, steps + 1)) if decay else np.full(steps, rate)
        theta, velocity = points().mean(axis=0, dtype=float), np.zeros(DIMENSION)
        for factor in factors:
            velocity = decay * velocity + (1 - decay) * found * theta
            theta = theta - factor * velocity
        of_theta, of_velocity = np.ones(DIMENSION), np.zeros(DIMENSION)  # the effect of a change in each on the end
        noise = np.zeros(DIMENSION)
        for factor, sigma in zip(factors[::-1], sigmas[::-1], strict=True):
            change = of_velocity - factor * of_theta
            noise += ((1 - decay) * change * sigma * CLIP / RECORDS) ** 2
            of_theta, of_velocity = of_theta + (1 - decay) * found * change, decay * change
        return float(np.sum(found * (theta**2 + noise)) / 2)


def _contraction(kappa: float, rate: float = 1.0) -> float:
    return 1 - rate / kappa


RULES = {
    UNIFORM: NoiseRule(lambda steps, kappa: np.ones(steps)),
    DYNAMIC: NoiseRule(lambda steps, kappa: contraction_influence(steps, _contraction(kappa))),
    MOMENTUM: NoiseRule(lambda steps, kappa: momentum_influence(steps, _contraction(kappa), DECAY), DECAY),
    BY_CURVATURE: NoiseRule(lambda steps, kappa: curvature_influence(steps, eigenvalues(kappa), 1 / SMOOTHNESS)),
    SMALL_STEPS: NoiseRule(
        lambda steps, kappa: momentum_influence(steps, _contraction(kappa, longest_step(DECAY)), DECAY),
        DECAY,
        longest_step(DECAY) / SMOOTHNESS,
    ),
}


@cache
def _together(epsilon: float) -> float:
    """The noise multiplier of one step that costs ε: T of them cost as much if Σ 1/σ_t² is the same."""
    return accounting.calibrate(epsilon, DELTA).noise_multiplier


def best_steps(rule: NoiseRule, kappa: float, value: Callable[[NoiseRule, float, np.ndarray], float | None]) -> int:
    """The best number of steps, up to 15 κ / η, by the bound or in closed form: on a grid, then between its points."""

    @cache
    def at(steps: int) -> float:
        noise = _together(EPSILON) * optimal(rule.influence(steps, kappa))
        found = value(rule, kappa, noise)
        return math.inf if found is None else found

    most = math.ceil(15 * kappa / (rule.learning_rate * SMOOTHNESS))
    grid = np.unique(np.geomspace(1, most, 60).round().astype(int)).tolist()
    best = min(range(len(grid)), key=lambda i: at(grid[i]))
    return min(range(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)] + 1), key=at)


def quadratic_row(name: str, kappa: int, steps: int, seeds: int) -> Row:
    """One schedule on the quadratic: its bound, its mean excess risk in closed form, and measured."""
    rule = RULES[name]
    schedule = rule.schedule(steps, kappa)
    mechanism = calibrated(schedule, EPSILON, CLIP, RECORDS, DIMENSION)
    optimiser = _optimiser(rule.learning_rate, rule.decay)
    slopes = jnp.asarray(eigenvalues(kappa), jnp.float32)

    def one(key: Array, access: Access) -> Released[Any]:
        return descend(
            key,
            schedule,
            access,
            lambda theta, x: Dense(slopes * (theta - x)),
            jnp.zeros(DIMENSION),
            optimiser,
            size=lambda theta: jnp.linalg.norm(slopes * theta),
        )

    access = Access.of(points(), mechanism)
    thetas, sizes = over_seeds(lambda key, access: one(key, access).value, seeds, access)
    sigmas = of_steps(schedule, mechanism)
    row: Row = {"dataset": "quadratic", "method": name, "kappa": kappa, "steps": steps, "epsilon": EPSILON}
    row |= {"epsilon_spent": accounting.epsilon(price(one, insecure_key(0), access), DELTA), "delta": DELTA}
    row |= {"learning_rate": rule.learning_rate, "decay": rule.decay, "noise_first": float(sigmas[0])}
    row |= {"noise_last": float(sigmas[-1]), "bound": rule.bound(kappa, sigmas)}
    row |= {"expected": rule.expected(kappa, sigmas), **mean_and_error("excess_risk", excess(thetas, kappa))}
    row["largest_gradient"] = float(np.max(sizes)) + SMOOTHNESS  # at most
    if row["largest_gradient"] > CLIP:
        raise ValueError(f"gradients may be {row['largest_gradient']:.3g} long and be clipped; raise BALL={BALL}")
    return row


# --- Adult and digits --------------------------------------------------------------------------------------------

EPSILONS, QUICK_EPSILONS, PRINTED_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), (0.5,), (0.1, 1.0, 4.0, math.inf)
CUSTOMARY = 0.9  # β; the source gives none
NOT_PRIVATE = "not private"


@dataclass(frozen=True)
class Problem:
    """Records to learn from, what a record contributes, how θ is scored, and hand-set public settings."""

    records: Any
    gradient: Gradient
    start: Callable[[Array], Any]
    scores: Callable[[Any], tuple[Array, Array]]  # θ -> training loss, test accuracy
    steps: int
    learning_rate: float
    clip: float
    contraction: float  # γ
    most_seeds: int
    pull: float = 0.0
    least: float = 0.0  # a lower bound of the training loss

    def schedule(self, method: str) -> tuple[Schedule, float]:
        """The schedule and the momentum of a method."""
        if method == MOMENTUM:
            influence = momentum_influence(self.steps, self.contraction, CUSTOMARY)
            return Schedule.of(optimal(influence)), CUSTOMARY
        if method == DYNAMIC:
            return Schedule.of(optimal(contraction_influence(self.steps, self.contraction))), 0.0
        return Schedule.of(constant(self.steps)), 0.0


ADULT_STEPS, ADULT_RATE, ADULT_PULL, ADULT_SEEDS = 100, 1.0, 0.02, 10
ADULT_CLIP = math.sqrt(1 + 6 + 8)  # ‖x‖ at most: the constant, 6 numbers in [0, 1], and one of each of 8 categories
DIGITS_STEPS, DIGITS_RATE, DIGITS_CLIP, HIDDEN = 50, 0.5, 1.0, 4
DIGITS_CONTRACTION = 0.01 ** (1 / DIGITS_STEPS)  # a guess: that descent leaves a hundredth of the loss


@cache
def _adult() -> Problem:
    data = datasets.adult()
    parts = (data.features, data.target, data.test_features, data.test_target)
    x, y, test_x, test_y = (np.asarray(part, np.float32) for part in parts)

    def gradient(theta: Array, records: Any) -> Linear:
        features, target = records
        return Linear(jax.nn.sigmoid(features @ theta) - target, features)

    def scores(theta: Array) -> tuple[Array, Array]:
        z = x @ theta
        loss = jnp.mean(jax.nn.softplus(z) - y * z) + ADULT_PULL / 2 * jnp.sum(theta**2)
        return loss, jnp.mean((test_x @ theta > 0) == (test_y > 0.5))

    return Problem(
        (x, y),
        gradient,
        lambda key: jnp.zeros(x.shape[1]),
        scores,
        ADULT_STEPS,
        ADULT_RATE,
        ADULT_CLIP,
        1 - ADULT_RATE * ADULT_PULL,
        ADULT_SEEDS,
        ADULT_PULL,
        _least_loss(x.astype(float), y, ADULT_PULL),
    )


def _least_loss(x: np.ndarray, y: np.ndarray, pull: float) -> float:
    """The least regularised logistic loss, by Newton's method."""
    theta = np.zeros(x.shape[1])
    for _ in range(8):  # from the fourth on, each doubles the digits
        chance = special.expit(x @ theta)
        slope = x.T @ (chance - y) / len(x) + pull * theta
        curvature = (x * (chance * (1 - chance))[:, None]).T @ x / len(x) + pull * np.eye(len(theta))
        theta = theta - np.linalg.solve(curvature, slope)
    z = x @ theta
    return float(np.mean(np.logaddexp(0, z) - y * z) + pull / 2 * theta @ theta)


@cache
def _digits() -> Problem:
    """3 (target 0) against 5 (target 1), each of 4 × 4 pixels the mean of four, in [0, 1]; a fifth to test on."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images, labels = found.images, found.target
    kept = np.isin(labels, (3, 5))
    pooled = images[kept].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16
    order = np.random.default_rng(35).permutation(len(pooled))
    x, y = pooled[order].astype(np.float32), (labels[kept][order] == 5).astype(np.float32)
    test = len(x) // 5
    train, model = (x[test:], y[test:]), NeuralNetwork(16, (HIDDEN,), kind="binary")

    def gradient(theta: Any, records: Any) -> Dense:
        return per_record(lambda record: jax.grad(lambda at: -model.log_likelihood(at, record))(theta))(records)

    def scores(theta: Any) -> tuple[Array, Array]:
        losses = jax.vmap(lambda record: -model.log_likelihood(theta, record))(train)
        outputs = jax.vmap(lambda features: model.function(theta, features)[0])(x[:test])
        return jnp.mean(losses), jnp.mean((outputs > 0) == (y[:test] > 0.5))

    def start(key: Array) -> Any:
        return {name: part.mean for name, part in model.start(key).items()}

    return Problem(
        train, gradient, start, scores, DIGITS_STEPS, DIGITS_RATE, DIGITS_CLIP, DIGITS_CONTRACTION, most_seeds=50
    )


PROBLEMS = {"adult": _adult, "digits": _digits}


def learnt_row(name: str, method: str, epsilon: float, seeds: int) -> Row:
    """One schedule on Adult or digits at this ε, or with neither noise nor clip: training loss and test accuracy."""
    problem = PROBLEMS[name]()
    schedule, decay = problem.schedule(method)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.start, insecure_key(0))))
    count, seeds = len(problem.records[1]), min(seeds, problem.most_seeds)
    mechanism = Exact() if method == NOT_PRIVATE else calibrated(schedule, epsilon, problem.clip, count, numbers)
    optimiser = _optimiser(problem.learning_rate, decay)

    def one(key: Array, access: Access) -> Released[Any]:
        start_key, key = jax.random.split(key)
        begun = problem.start(start_key)
        return descend(key, schedule, access, problem.gradient, begun, optimiser, problem.pull)

    access = Access.of(problem.records, mechanism)
    losses, accuracies = over_seeds(lambda key, access: problem.scores(one(key, access).value[0]), seeds, access)
    row: Row = {"dataset": name, "method": method, "steps": problem.steps, "epsilon": epsilon}
    row |= {"epsilon_spent": accounting.epsilon(price(one, insecure_key(0), access), DELTA), "delta": DELTA}
    row |= {"learning_rate": problem.learning_rate, "decay": decay, "seeds": seeds}
    if isinstance(mechanism, SubsampledGaussian):
        sigmas = of_steps(schedule, mechanism)
        row |= {"noise_first": float(sigmas[0]), "noise_last": float(sigmas[-1])}
    row |= mean_and_error("excess_risk", np.asarray(losses, float) - problem.least)
    return row | mean_and_error("accuracy", accuracies)


# --- The figure --------------------------------------------------------------------------------------------------

COMPARED = (UNIFORM, DYNAMIC, MOMENTUM)
MOST_SMALL_STEPS = 600  # the most of theorem 3.4's steps that are run


def _quadratic_jobs(quick: bool) -> list[tuple[str, int, int, Row]]:
    """Schedule, κ, steps, and further columns: at the best number of steps, the least of all bounds."""
    found = []
    for kappa in QUICK_CURVATURES if quick else CURVATURES:
        for name, rule in RULES.items():
            best = best_steps(rule, kappa, NoiseRule.expected)
            tried = {multiple * kappa for multiple in (QUICK_MULTIPLES if quick else MULTIPLES)}
            if name == SMALL_STEPS:
                tried = set()
                if quick or best > MOST_SMALL_STEPS:
                    continue
            for steps in sorted({best} | tried):
                further: Row = {"is_best": steps == best}
                if steps == best:
                    at = best_steps(rule, kappa, NoiseRule.bound)
                    noise = _together(EPSILON) * optimal(rule.influence(at, kappa))
                    further |= {"least_bound": rule.bound(kappa, noise)}
                    further["least_bound_steps"] = None if further["least_bound"] is None else at
                found.append((name, kappa, steps, further))
    return found


def schedules(quick: bool, seeds: int, track: Track) -> Result:
    """Bound and measured excess risk over κ and T on the quadratic; Adult and digits against ε."""
    names = ("digits",) if quick else tuple(PROBLEMS)
    epsilons = QUICK_EPSILONS if quick else EPSILONS
    quadratic = [partial(_quadratic, *job) for job in _quadratic_jobs(quick)]
    learnt = []
    for name in names:
        learnt += [partial(learnt_row, name, method, e) for method in COMPARED for e in epsilons]
        learnt.append(partial(learnt_row, name, NOT_PRIVATE, math.inf))
    rows = [job(seeds) for job in track([*quadratic, *learnt])]
    printed = [row for row in rows if row.get("is_best") or (row["dataset"] in names and _is_printed(row, quick))]
    shown = {"dataset": "problem", "method": "schedule", "kappa": "κ", "steps": "T", "epsilon": "ε"}
    shown |= {"least_bound": "least bound", "excess_risk": "excess risk", "accuracy": "accuracy, %"}
    return Result(rows, _notes(), shown, _draw(rows, names), printed)


def _quadratic(name: str, kappa: int, steps: int, further: Row, seeds: int) -> Row:
    return quadratic_row(name, kappa, steps, seeds) | further


def _is_printed(row: Row, quick: bool) -> bool:
    return quick or row["epsilon"] in PRINTED_EPSILONS


def _notes() -> list[str]:
    high = momentum_effect(longest_step(CUSTOMARY), 20, CUSTOMARY)
    return [
        f"quadratic: N = {RECORDS}, D = {DIMENSION}, eigenvalues from M / κ to M = 1 in equal ratios, η = 1 / M, "
        f"C = {CLIP:g} ≥ G where the runs went, so that nothing was clipped (the slides have C ≤ G: "
        "docs/errata.md, 10). All rows have the same ε by PLD, which for full batches is the same Σ 1/σ_t². "
        "The table has each schedule at its best T in closed form (expected), so that uniform is the best of all "
        "constant schedules; least bound is eq. (6), or (16), at the T that is best for the bound. All T are in the "
        "CSV.",
        "N, D and ε of the quadratic were chosen so that 50 seeds tell the schedules apart. Up to T = κ eq. (10) gains "
        "a few percent at most; where noise is so high that the best T is about κ, it gains little.",
        f"dynamic: eq. (10) with the theorem's q_t = γ^(T-t), γ = 1 - 1/κ. '{BY_CURVATURE}': eq. (10) with the effect "
        "of a step's noise on the end, Σ λ (1 - ηλ)^(2(T-t)); the theorem's q_t bounds it, and falls too slowly.",
        f"momentum on the quadratic: β = {DECAY}, q_t of theorem 3.4. At η = 1 / M its ζ is above 0, and eq. (16) is "
        f"no bound without the path's ‖v‖. '{SMALL_STEPS}' takes the step that the theorem allows, "
        f"{longest_step(DECAY):.3g} / M, where ζ < 0; plain descent with as small steps does as well. The theorem's "
        f"condition gives ζ ≤ 0 for sure only where β (1 + √γ) ≤ γ: at β = {CUSTOMARY}, κ = 20 it has ζ = {high:.0f}.",
        f"adult: logistic regression on all records, T = {ADULT_STEPS}, η = {ADULT_RATE:g}, penalty μ = {ADULT_PULL}, "
        f"γ = 1 - ημ, C = √15 ≥ G, {ADULT_SEEDS} seeds at most; excess risk is over the least training loss. digits: "
        f"scikit-learn's 3 and 5 (not MNIST) as 4 × 4 pixels, {HIDDEN} tanh units, T = {DIGITS_STEPS}, "
        f"η = {DIGITS_RATE}, C = {DIGITS_CLIP:g}, γ = .01^(1/T), a guess; its excess risk is the training loss, which "
        f"is at least 0. β = {CUSTOMARY} on both. T, η, penalty and width were set by hand after looking at "
        f"some runs, the same for all schedules, which no ε covers; on adult T = 2 / ημ, for at half of 1 / ημ "
        f"uniform and dynamic did not differ (4 seeds). '{NOT_PRIVATE}' has neither noise nor clip.",
        "The slides print neither settings nor numbers for their experiments, so there are no published columns. They "
        "charge 1 / σ² a step, which is the zCDP cost of neither adjacency (docs/errata.md, 10).",
    ]


def _draw(rows: list[Row], names: tuple[str, ...]) -> Any:
    curvatures = list(dict.fromkeys(row["kappa"] for row in rows if row["dataset"] == "quadratic"))
    labels = [(f"Quadratic, κ = {kappa}, ε = {EPSILON:g}", "steps T", "excess risk") for kappa in curvatures]
    for name in names:
        loss = "excess risk (training)" if name == "adult" else "training loss"
        title = "Adult, logistic" if name == "adult" else "Digits 3 and 5, network"
        labels += [(title, f"ε at δ = {DELTA:g}", what) for what in (loss, "test accuracy")]
    found = panels(*labels, width=4.2, height=3.4, columns=min(4, len(labels)))
    for axes, kappa in zip(found, curvatures, strict=False):
        own = [row for row in rows if row.get("kappa") == kappa]
        for colour, name in zip(COLOURS, (*COMPARED, BY_CURVATURE), strict=False):
            mine = sorted((row for row in own if row["method"] == name), key=lambda row: row["steps"])
            curve(axes, mine, "excess_risk", name, x="steps")
            bounds = [(row["steps"], row["bound"]) for row in mine if row["bound"] is not None]
            if bounds and name in (UNIFORM, DYNAMIC):
                axes.plot(*zip(*bounds, strict=True), "--", color=colour, linewidth=1)
        axes.plot([], [], "--", color="grey", label="bound, eq. (6)")
        axes.set_xscale("log")
        ticks = sorted({row["steps"] for row in own if row["steps"] % kappa == 0 and row["method"] == UNIFORM})
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_yscale("log")
    found[len(curvatures) - 1].legend(frameon=False, fontsize=8, loc="center")
    for i, name in enumerate(names):
        for axes, y in zip(found[len(curvatures) + 2 * i :], ("excess_risk", "accuracy"), strict=False):
            own = [row for row in rows if row["dataset"] == name]
            private = [row for row in own if row["method"] != NOT_PRIVATE]
            for method in COMPARED:
                curve(axes, [row for row in private if row["method"] == method], y, method)
            for row in own:
                if row["method"] == NOT_PRIVATE:
                    axes.axhline(row[y], color="black", linestyle=":", linewidth=1, label=NOT_PRIVATE)
            epsilon_axis(axes, private)
            if (name, y) == ("adult", "excess_risk"):
                axes.set_yscale("log")
    found[len(curvatures)].legend(frameon=False, fontsize=8)
    return found[0]
