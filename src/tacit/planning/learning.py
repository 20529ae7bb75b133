"""Learned policies: tune a rule once on public or simulated tasks, and use it on private ones at any ε.

The rule's settings are arrays in a compiled program (`privacy.mechanism.Trial`), so that all tasks of one shape, all
ε and all seeds of a trial are one call; only the number of steps is compiled in. Learning never uses private data: a
`Trial` costs ε = ∞.
"""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import tacit
from tacit.data.simulated import Simulated, Task, simulate
from tacit.fitting.plan import FitPlan
from tacit.fitting.policy import PLAIN, Policy, Rule, default_policy
from tacit.fitting.prepare import prepare
from tacit.fitting.program import Outcome, attempt
from tacit.links import link_of, names
from tacit.privacy import accounting
from tacit.privacy.mechanism import Access, Exact
from tacit.privacy.randomness import insecure_key
from tacit.tables.standardising import bounds_of, model_of, standardise

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
MOST_NUMBERS = 2**19  # in a table whose runs are vectorised
LEVEL, HALF_WIDTH = 0.9, 1.6449  # of the intervals, and their half-width in standard deviations
LEAST_LOG_LIKELIHOOD = -20.0  # of a record: a single improbable record does not dominate
SETTINGS = (
    *("ranges", "moments", "residual", "curvature"),
    *("clip_least", "clip_most", "clip_slope", "clip_power"),
    *("learning_rate", "floor", "shrinkage"),
)

# --- Many runs of one rule ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Tasks of one kind and shape, run by one program: arrays have the tasks on the first axis."""

    plan: FitPlan
    model: Any
    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, kind: str, tasks: Sequence[Simulated]) -> "Batch":
        """A batch of simulated tables with the same columns and the same number of records."""
        table = tasks[0].table
        access = Access.of((table.features, table.target.astype(np.float32)), Exact())
        plan, _ = prepare(insecure_key(0), kind, table, access, math.inf, 0.5, policy=Policy())
        parts = [
            (task.table.features, task.table.target, *task[1:], bounds_of(task.table, plan.columns)) for task in tasks
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in leaves]), *parts)
        return cls(plan, model_of(link_of(kind), table, 1.0), stacked)

    @property
    def records(self) -> int:
        """The number of records of each task."""
        return self.arrays[0].shape[1]

    def run(self, rule: Rule, noises: Any, seeds: int) -> dict[str, np.ndarray]:
        """Scores of a rule, each an array (tasks, noises, seeds). A noise is σ of the whole budget.

        log_likelihood: of test records. error: the share misclassified or, for numeric targets, the root mean square
        error. coverage and width: of 90 % intervals for coefficients of standardised features.
        """
        stages = len(rule.steps)
        plain = replace(PLAIN, steps=rule.steps, noise=(1.0,) * stages, average=rule.average)
        settings = {name: jnp.float32(getattr(rule, name)) for name in SETTINGS}
        settings["noise"] = jnp.asarray(rule.noise, jnp.float32)
        noises = jnp.atleast_1d(jnp.asarray(noises, jnp.float32))
        keys = jax.random.split(insecure_key(0), (self.arrays[0].shape[0], len(noises), seeds))
        plan = replace(self.plan, steps=rule.steps, rule=plain)
        found = _run(plan, settings, noises, keys, self.model, self.arrays)
        return {name: np.asarray(part, float) for name, part in found.items()}

    def exact(self) -> dict[str, np.ndarray]:
        """The same scores without clip and noise, each an array (tasks,)."""
        free = replace(PLAIN, steps=(8, 12), clip_least=1.0, clip_most=1.0)
        found = replace(self, plan=replace(self.plan, clip=1e6, curvature_clip=1e6)).run(free, 1e-12, 1)
        return {name: part[:, 0, 0] for name, part in found.items()}


@partial(jax.jit, static_argnums=0)
def _run(
    plan: FitPlan, settings: dict[str, Array], noises: Array, keys: Array, model: Any, arrays: Any
) -> dict[str, Array]:
    parts = settings | {"noise": tuple(settings["noise"][stage] for stage in range(len(plan.steps)))}
    rule = replace(plan.rule, **parts)

    def one(noise: Array, key: Array, task: Any) -> dict[str, Array]:
        features, target, tests, answers, truth, bounds = task
        tried = replace(plan, rule=rule, noise_multiplier=noise)
        tried = replace(tried, clip=tried.clip_for(features.shape[0], model.prior.precision_mean.shape[0]))
        records = jax.tree.map(lambda leaf: leaf[:, None], (features, target))
        access = Access(records, jnp.ones((features.shape[0], 1), bool), Exact())
        outcome = attempt(tried, key, access, model, model.prior.full(), bounds)
        return _scores(tried, model, outcome, tests, answers, truth)

    # Tasks run one after the other, and so do the runs of a large one: all at once they would not fit a processor's
    # cache, and XLA for CPUs was seen to hang on batches of large matrices.
    is_small = math.prod(arrays[0].shape[1:]) <= MOST_NUMBERS

    def runs(found: Any) -> dict[str, Array]:
        keys, task = found
        if is_small:
            return jax.vmap(jax.vmap(one, (None, 0, None)), (0, 0, None))(noises, keys, task)
        return jax.lax.map(lambda at: jax.lax.map(lambda key: one(at[0], key, task), at[1]), (noises, keys))

    return jax.lax.map(runs, (keys, arrays))


def _scores(
    plan: FitPlan, model: Any, outcome: Outcome, tests: Array, answers: Array, truth: Array
) -> dict[str, Array]:
    """Scores of an outcome on test records and against the true coefficients."""
    scaling = outcome.scaling
    link = plan.regression
    assert scaling is not None
    assert link is not None
    x, y = jax.vmap(lambda *record: standardise(link, plan.numbers, scaling, record))(tests, answers)
    mean, covariance = outcome.q
    sd = jnp.sqrt(jnp.maximum(jnp.sum((x @ covariance) * x, axis=1), 0))
    places, numbers = np.array(plan.numbers, int), len(plan.numbers)
    moved = truth.at[0].add(jnp.sum(truth[places + 1] * scaling.location[:numbers]))
    moved = moved.at[places + 1].multiply(scaling.scale[:numbers])
    unit = jnp.ones((), x.dtype)
    if link.learns_scale:
        unit, centre = scaling.scale[-1], scaling.location[-1]
        model, y = replace(model, noise_scale=outcome.noise_scale), (answers - centre) / unit
        moved = moved.at[0].add(-centre) / unit
    z = (x @ mean)[:, None] + sd[:, None] * jnp.asarray(NODES, x.dtype)
    each = jax.vmap(lambda z, y: jax.vmap(lambda z: model.of_linear(z, y))(z))(z, y)
    each = jax.scipy.special.logsumexp(each, b=jnp.asarray(WEIGHTS / WEIGHTS.sum(), x.dtype), axis=1) - jnp.log(unit)
    if link.target.has_two_classes:
        error = jnp.mean((x @ mean > 0) != (y > 0.5), dtype=x.dtype)
    else:
        predicted = x @ mean if link.learns_scale else jnp.exp(jnp.minimum(x @ mean + sd**2 / 2, 20))
        error = unit * jnp.sqrt(jnp.mean((predicted - y) ** 2))
    half = HALF_WIDTH * jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 0))
    return {
        "log_likelihood": jnp.mean(jnp.maximum(each, LEAST_LOG_LIKELIHOOD)),
        "error": error,
        "coverage": jnp.mean(jnp.where(jnp.isnan(moved), moved, (jnp.abs(mean - moved) <= half).astype(x.dtype))),
        "width": jnp.mean(2 * half[1:]),
    }


def noise_of(epsilon: float, delta: float) -> float:
    """σ of one Gaussian release that costs (ε, δ): the noise of a whole budget without sampling."""
    return accounting.calibrate(epsilon, delta).noise_multiplier


# --- Tasks -------------------------------------------------------------------------------------------------------

EPSILONS = (0.2, 0.6, 2.0, 6.0)
SHAPES = (  # records, numbers, categories
    (300, 8, ()),
    (500, 28, ()),
    (800, 12, (3, 4, 2)),
    (3000, 9, (3,)),
    (12000, 6, (8, 6, 12, 3, 9, 5)),
    (20000, 3, ()),
)
UNBOUNDED = (3000, 9, (3,))
DRAWS, SEEDS, TESTS = 3, 2, 2000


@dataclass(frozen=True)
class Lesson:
    """The data of a policy search: batches of tasks, their log-likelihoods without noise, and the ε to try."""

    batches: tuple[Batch, ...]
    exact: tuple[np.ndarray, ...]
    epsilons: tuple[float, ...]
    seeds: int
    words: str

    @classmethod
    def of(
        cls, kind: str, groups: Sequence[Sequence[Simulated]], epsilons: Sequence[float], seeds: int, words: str
    ) -> "Lesson":
        """A lesson from groups of tasks, each group of one shape."""
        batches = tuple(Batch.of(kind, group) for group in groups)
        exact = tuple(batch.exact()["log_likelihood"] for batch in batches)
        return cls(batches, exact, tuple(epsilons), seeds, words)

    def losses(self, rule: Rule) -> list[np.ndarray]:
        """A (tasks, ε) array per batch: ln of the mean log-likelihood lost to privacy, plus a penalty for coverage."""
        found = []
        for batch, exact in zip(self.batches, self.exact, strict=True):
            noises = [noise_of(epsilon, delta_of(batch.records)) for epsilon in self.epsilons]
            result = batch.run(rule, noises, self.seeds)
            cost = np.maximum(np.mean(exact[:, None, None] - result["log_likelihood"], axis=2), 0)
            missing = np.maximum(LEAST_COVERAGE - np.mean(result["coverage"], axis=2), 0)
            missing = np.where(np.isfinite(missing), missing, 0)  # public tables have no truth
            found.append(np.log(np.where(np.isfinite(cost), cost, 100.0) + SMALL_COST) + COVERAGE_WEIGHT * missing)
        return found

    def loss(self, rule: Rule) -> float:
        """The mean over all tasks and ε: losing a tenth less counts the same in easy and in hard tasks."""
        return float(np.mean(np.concatenate([part.ravel() for part in self.losses(rule)])))


SMALL_COST = 0.003  # nats per record: smaller losses do not matter
LEAST_COVERAGE, COVERAGE_WEIGHT = 0.86, 3.0  # of 90 % intervals: less coverage is penalised


def delta_of(records: int) -> float:
    """δ for a task of this many records: a tenth of 1 / records."""
    return 0.1 / records


def simulated_groups(kind: str, draws: int = DRAWS) -> list[list[Simulated]]:
    """The tasks that the default policy was learned on: several shapes with bounds and one without."""
    simulator = link_of(kind).simulator
    if simulator is None:
        raise ValueError(f"model={kind!r} cannot be simulated; expected one of {', '.join(names(learned=True))}")
    rng, groups = np.random.default_rng(simulator.seed), []
    for shape, is_bounded in [*((shape, True) for shape in SHAPES), (UNBOUNDED, False)]:
        tasks = []
        for _ in range(draws):
            task = Task(
                kind,  # type: ignore[arg-type]
                *shape,
                signal=math.exp(rng.uniform(*np.log(simulator.learned))),
                balance=rng.uniform(*simulator.learned_balances),
                correlation=rng.uniform(0, 0.95),
                bounds=rng.uniform(3, 10) if is_bounded else 0.0,
                skew=rng.uniform(0, 0.6),
            )
            tasks.append(simulate(task, int(rng.integers(2**31)), TESTS))
        groups.append(tasks)
    return groups


# --- The search --------------------------------------------------------------------------------------------------

STEPS = ((3, 5), (8, 12))
RANGES: Mapping[str, tuple[float, float]] = {  # searched in logarithms
    "ranges": (0.02, 0.25),
    "moments": (0.02, 0.3),
    "residual": (0.01, 0.12),
    "curvature": (0.02, 0.25),
    "clip_slope": (0.05, 2.0),
    "clip_power": (0.3, 2.0),
    "clip_least": (0.05, 1.0),
    "clip_most": (0.5, 4.0),
    "learning_rate": (0.3, 1.5),
    "floor": (0.02, 2.0),
    "shrinkage": (0.1, 1.0),
    "first_noise": (0.5, 4.0),
}


def learn(
    kind: str,
    lesson: Lesson,
    trials: int,
    start: Rule | None = None,
    seed: int = 0,
    observe: Callable[[Rule, float, int], None] = lambda rule, loss, done: None,
) -> tuple[Rule, float]:
    """The rule with the least loss in `trials` trials of Optuna's TPE, and its loss; never worse than the start.

    observe: called after each trial with the best rule so far, its loss, and the number of trials done.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError("learning a policy needs Optuna; install tacit[policy]") from None
    if trials < 1:
        raise ValueError(f"trials={trials}; expected a whole number of at least 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begin = start or default_policy().rule(kind)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=20))
    best, least = begin, lesson.loss(begin)
    study.enqueue_trial({name: _clipped(name, begin) for name in _searched(kind)} | {"steps": _nearest(begin.steps)})
    for done in range(trials):
        trial = study.ask()
        rule = suggested(trial, kind, begin)
        loss = lesson.loss(rule)
        study.tell(trial, loss)
        if loss < least:
            best, least = rule, loss
        observe(best, least, done + 1)
    return _rounded(best), least


def suggested(trial: Any, kind: str, begin: Rule) -> Rule:
    """The rule that a trial of Optuna proposes; settings that are not searched are those of `begin`."""
    values = {name: trial.suggest_float(name, *RANGES[name], log=True) for name in _searched(kind)}
    steps = STEPS[trial.suggest_categorical("steps", range(len(STEPS)))]
    first = values.pop("first_noise")
    values["clip_most"] = max(values["clip_most"], values["clip_least"])
    return replace(begin, **values, steps=steps, noise=(first, 1.0))


def _searched(kind: str) -> list[str]:
    return [name for name in RANGES if name != "residual" or link_of(kind).learns_scale]


def _clipped(name: str, rule: Rule) -> float:
    value = rule.noise[0] / rule.noise[-1] if name == "first_noise" else getattr(rule, name)
    return min(max(value, RANGES[name][0]), RANGES[name][1])


def _nearest(steps: tuple[int, ...]) -> int:
    return min(range(len(STEPS)), key=lambda place: abs(sum(STEPS[place]) - sum(steps)))


def _rounded(rule: Rule) -> Rule:
    """The rule rounded to three digits: the search finds no more."""
    short = {name: float(f"{getattr(rule, name):.3g}") for name in SETTINGS}
    return replace(rule, **short, noise=tuple(float(f"{noise:.3g}") for noise in rule.noise))


def read_tasks(path: Path | None, kinds: Sequence[str] | None) -> dict[str, Callable[[], Lesson]]:
    """Lessons by kind, each made on demand: from a file of tasks, or the default ones."""
    known = names(learned=True)
    wanted = known if kinds is None else kinds
    for kind in wanted:
        if kind not in known:
            raise ValueError(f"kinds={kind!r}; expected some of {', '.join(known)}")
    if path is None:
        words = f"{len(SHAPES) + 1} shapes x {DRAWS} simulated tasks (tacit {tacit.__version__})"
        return {
            kind: lambda kind=kind: Lesson.of(kind, simulated_groups(kind), EPSILONS, SEEDS, words) for kind in wanted
        }
    from tacit.files.task_file import read_tasks as read

    given, groups = read(path)
    lessons: dict[str, Callable[[], Lesson]] = {}
    for kind in wanted:
        own = [tasks for found, tasks in groups if found == kind]
        if own:
            files = [entry.file for entry in given.task if entry.model == kind and entry.file]
            words = f"{path.name}" + (f" with {', '.join(files)}, treated as public" if files else ", simulated")
            settings = given.epsilons or EPSILONS, given.seeds or SEEDS, words
            lessons[kind] = lambda kind=kind, own=own, settings=settings: Lesson.of(kind, own, *settings)
    if not lessons:
        raise ValueError(f"tasks={path} has none of {', '.join(wanted)}; give tasks of those kinds")
    return lessons


def learn_policy(
    lessons: Mapping[str, Callable[[], Lesson]],
    trials: int,
    start: Policy | None = None,
    seed: int = 0,
    observe: Callable[[str, int, float], None] = lambda kind, done, loss: None,
) -> Policy:
    """A policy with a learned rule for each of these kinds; other kinds keep their rule in `start`.

    Ctrl-C ends the search and keeps the best rules so far.
    """
    begin = start or default_policy()
    rules, kinds = dict(begin.rules), {}
    for kind, make in lessons.items():
        observe(kind, 0, math.inf)
        lesson = make()
        first = lesson.loss(begin.rule(kind))
        best: list[tuple[Rule, float, int]] = [(begin.rule(kind), first, 0)]

        def keep(rule: Rule, loss: float, done: int, kind: str = kind, best: list[Any] = best) -> None:
            best[0] = (rule, loss, done)
            observe(kind, done, loss)

        try:
            learn(kind, lesson, trials, begin.rule(kind), seed, keep)
        except KeyboardInterrupt:
            trials = 0
        rule, loss, done = best[0]
        rules[kind] = _rounded(rule)
        about = {"tasks": lesson.words, "epsilons": list(lesson.epsilons), "seeds": lesson.seeds}
        kinds[kind] = about | {"trials": done, "start": round(first, 4), "loss": round(loss, 4)}
        if trials == 0:
            break
    made = {
        "by": f"tacit policy learn, tacit {tacit.__version__}",
        "date": datetime.date.today().isoformat(),
        "loss": "mean over tasks and ε of ln(log-likelihood lost + 0.003), and 3 times the coverage below 0.86",
        "kinds": kinds,
    }
    return Policy(rules, made)
