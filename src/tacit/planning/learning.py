"""Learned policies: tune a rule once on public or simulated tasks, and use it on private ones at any ε.

Learning never uses private data. `planning.trials` runs a rule on many tasks at once; here are the tasks, what counts
as a loss, and the search.
"""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.data.simulated import Simulated, Task, simulate
from tacit.links import link_of, names
from tacit.planning.trials import SETTINGS, Batch, Spending
from tacit.study.policy import Policy, Rule, default_policy

# --- Tasks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The sizes of simulated tasks, and who spends how much on them. Without `is_bounded`, numbers have no bounds."""

    records: int
    numbers: int
    categories: tuple[int, ...] = ()
    spendings: tuple[Spending, ...] = ()
    is_bounded: bool = True


SHAPES = (
    Shape(300, 8, (), (Spending(0.6), Spending(1), Spending(3), Spending(10))),
    Shape(500, 28, (), (Spending(0.4), Spending(1), Spending(3), Spending(10))),
    Shape(1000, 12, (3, 4, 2), (Spending(0.2), Spending(0.7), Spending(2), Spending(10, 10))),
    Shape(3000, 9, (3,), (Spending(0.2), Spending(1), Spending(5), Spending(3, 10)), is_bounded=False),
    Shape(6000, 11, (), (Spending(0.1), Spending(0.5), Spending(1), Spending(1, 6, is_secure=True))),
    Shape(9000, 5, (8, 6, 9, 3), (Spending(0.2), Spending(0.5, 10, is_secure=True), Spending(1), Spending(2, 8))),
    Shape(
        15000,
        5,
        (9, 7, 12, 6, 5, 8, 15, 10),
        (Spending(0.7), Spending(0.5, 10), Spending(1, 10), Spending(1, 10, is_secure=True)),
    ),
    Shape(16000, 7, (), (Spending(0.3), Spending(1), Spending(1, 10), Spending(3, 100))),
)
DRAWS, SEEDS, TESTS = 2, 2, 2000
EPSILONS, SITES = (0.3, 1.0, 3.0), (1,)  # of tasks in a file that does not say


@dataclass(frozen=True)
class Lesson:
    """The data of a policy search: batches of tasks, their results without noise, and who spends how much on each."""

    batches: tuple[Batch, ...]
    exact: tuple[dict[str, np.ndarray], ...]
    spendings: tuple[tuple[Spending, ...], ...]
    seeds: int
    words: str

    @classmethod
    def of(
        cls,
        kind: str,
        groups: Sequence[Sequence[Simulated]],
        spendings: Sequence[Sequence[Spending]],
        seeds: int,
        words: str,
    ) -> "Lesson":
        """A lesson from groups of tasks, each group of one shape and with spendings of its own."""
        batches = tuple(Batch.of(kind, group) for group in groups)
        found = tuple(tuple(each) for each in spendings)
        exact = tuple(batch.exact(len(each), seeds) for batch, each in zip(batches, found, strict=True))
        return cls(batches, exact, found, seeds, words)

    def losses(self, rule: Rule) -> list[np.ndarray]:
        """A (tasks, spendings) array per batch, of `losses_of`."""
        found = []
        for batch, exact, spendings in zip(self.batches, self.exact, self.spendings, strict=True):
            noises = [spending.noise(delta_of(batch.records)) for spending in spendings]
            found.append(losses_of(exact, batch.run(rule, noises, self.seeds)))
        return found

    def loss(self, rule: Rule) -> float:
        """The mean over all tasks and spendings."""
        return float(np.mean(np.concatenate([part.ravel() for part in self.losses(rule)])))


SMALL_COST, MOST_COST = 0.003, 100.0  # nats per record: smaller losses do not matter, larger ones are failures
LEAST_COVERAGE, COVERAGE_WEIGHT = 0.86, 3.0  # of 90 % intervals: less coverage is penalised
MOST_BIAS, BIAS_WEIGHT = 0.02, 40.0  # of the slope of coefficients: more is penalised
TELLING = 0.1  # the standard deviation of the slope at which data tell half as much about it
ERROR_WEIGHT = 0.2  # of ln of the error of coefficients, relative to their standard deviation without privacy
LOSS = (
    f"mean over tasks of ln(log-likelihood lost + {SMALL_COST:g}), {COVERAGE_WEIGHT:g} x the coverage of 90 % "
    f"intervals below {LEAST_COVERAGE:g}, {BIAS_WEIGHT:g} x the bias of coefficients beyond {100 * MOST_BIAS:g} % "
    f"(weighted by how much the data tell about it), and {ERROR_WEIGHT:g} x ln of their relative error"
)


def losses_of(exact: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> np.ndarray:
    """The loss of each task (first axis) at each noise (second), from results of `Batch.run`; seeds are averaged.

    Log-likelihood lost counts by its logarithm: a tenth less is the same in easy and in hard tasks. The bias is that of
    the slope of the coefficients' means on those without privacy.
    """
    cost = np.maximum(np.mean(exact["log_likelihood"][:, None, None] - found["log_likelihood"], axis=2), 0)
    missing = np.maximum(LEAST_COVERAGE - np.mean(found["coverage"], axis=2), 0)
    missing = np.where(np.isfinite(missing), missing, 0)  # public tables have no truth
    bias, weight = bias_of(exact, found)
    apart, width = exact["coefficients"][:, None, None], exact["deviations"][:, None, None]
    error = np.mean((found["coefficients"] - apart) ** 2 / width**2, axis=(2, 3))
    total = np.log(np.where(np.isfinite(cost), np.minimum(cost, MOST_COST), MOST_COST) + SMALL_COST)
    total = total + COVERAGE_WEIGHT * missing + BIAS_WEIGHT * weight * np.maximum(np.abs(bias) - MOST_BIAS, 0)
    return total + ERROR_WEIGHT * np.log1p(np.where(np.isfinite(error), error, MOST_COST**2))


def bias_of(exact: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The bias of coefficients (tasks, noises) as a share, averaged over seeds, and how much the data tell about it."""
    apart = exact["coefficients"][:, None, None]
    size = np.sum(apart**2, axis=-1)
    slope = np.mean(np.sum(found["coefficients"] * apart, axis=-1) / size, axis=2)
    error = np.mean(np.sqrt(np.sum(found["deviations"] ** 2 * apart**2, axis=-1)) / size, axis=2)
    weight = 1 / (1 + (error / TELLING) ** 2)
    bad = ~np.isfinite(slope) | ~np.isfinite(weight)
    return np.where(bad, 1.0, np.clip(slope - 1, -1, 1)), np.where(bad, 1.0, weight)


def delta_of(records: int) -> float:
    """δ for a task of this many records: a tenth of 1 / records."""
    return 0.1 / records


def simulated_groups(kind: str, draws: int = DRAWS) -> list[list[Simulated]]:
    """The tasks that the default policy was learned on, a group for each of `SHAPES`."""
    simulator = link_of(kind).simulator
    if simulator is None:
        raise ValueError(f"model={kind!r} cannot be simulated; expected one of {', '.join(names(learned=True))}")
    rng, groups = np.random.default_rng(simulator.seed), []
    for shape in SHAPES:
        tasks = []
        for _ in range(draws):
            task = Task(
                kind,
                shape.records,
                shape.numbers,
                shape.categories,
                signal=math.exp(rng.uniform(*np.log(simulator.learned))),
                balance=rng.uniform(*simulator.learned_balances),
                correlation=rng.uniform(0, 0.95),
                bounds=rng.uniform(3, 10) if shape.is_bounded else 0.0,
                skew=rng.uniform(0, 0.6),
            )
            tasks.append(simulate(task, int(rng.integers(2**31)), TESTS))
        groups.append(tasks)
    return groups


# --- The search --------------------------------------------------------------------------------------------------

RANGES: Mapping[str, tuple[float, float]] = {  # searched in logarithms
    "ranges": (0.02, 0.25),
    "scaling": (0.02, 0.3),
    "residual": (0.01, 0.12),
    "curvature": (0.02, 0.25),
    "clip_slope": (0.05, 1.0),
    "clip_power": (0.1, 1.0),
    "clip_least": (0.1, 1.5),
    "clip_most": (0.7, 8.0),
    "floor": (0.02, 2.0),
    "shrinkage": (0.1, 1.0),
    "early": (0.5, 4.0),
    "averaging": (0.05, 1.0),
    "early_damping": (0.2, 1.0),
    "pull": (0.02, 1.0),
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

    The number of rounds and the place of the second curvature stay those of the start, because a program is compiled
    for them. observe: called after each trial with the best rule so far, its loss, and the number of trials done.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError("learning a policy needs Optuna; install tacit[policy]") from None
    if trials < 1:
        raise ValueError(f"trials={trials}; expected a whole number of at least 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begin = start or default_policy().rule(kind)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=20, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    best, least = begin, lesson.loss(begin)
    study.enqueue_trial({name: _clipped(name, begin) for name in _searched(kind)})
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
    values["clip_most"] = max(values["clip_most"], values["clip_least"])
    return replace(begin, **values)


def _searched(kind: str) -> list[str]:
    return [name for name in RANGES if name != "residual" or link_of(kind).learns_scale]


def _clipped(name: str, rule: Rule) -> float:
    return min(max(getattr(rule, name), RANGES[name][0]), RANGES[name][1])


def _rounded(rule: Rule) -> Rule:
    """The rule rounded to three digits: the search finds no more."""
    return replace(rule, **{name: float(f"{getattr(rule, name):.3g}") for name in SETTINGS})


def read_tasks(path: Path | None, kinds: Sequence[str] | None) -> dict[str, Callable[[], Lesson]]:
    """Lessons by kind, each made on demand: from a file of tasks, or the default ones."""
    known = names(learned=True)
    wanted = known if kinds is None else kinds
    for kind in wanted:
        if kind not in known:
            raise ValueError(f"kinds={kind!r}; expected some of {', '.join(known)}")
    if path is None:
        words = f"{len(SHAPES)} shapes x {DRAWS} simulated tasks of 1 to 100 sites (tacit {tacit.__version__})"
        spendings = [shape.spendings for shape in SHAPES]
        return {
            kind: lambda kind=kind: Lesson.of(kind, simulated_groups(kind), spendings, SEEDS, words) for kind in wanted
        }
    from tacit.files.task_file import read_tasks as read

    given, groups = read(path)
    spent = [Spending(epsilon, sites) for epsilon in given.epsilons or EPSILONS for sites in given.sites or SITES]
    lessons: dict[str, Callable[[], Lesson]] = {}
    for kind in wanted:
        own = [tasks for found, tasks in groups if found == kind]
        if own:
            files = [entry.file for entry in given.task if entry.model == kind and entry.file]
            words = f"{path.name}" + (f" with {', '.join(files)}, treated as public" if files else ", simulated")
            settings = [spent] * len(own), given.seeds or SEEDS, words
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
        spent = {spending for each in lesson.spendings for spending in each}
        about: dict[str, Any] = {"tasks": lesson.words, "seeds": lesson.seeds}
        about |= {name: sorted({getattr(one, key) for one in spent}) for name, key in _LISTED.items()}
        kinds[kind] = about | {"trials": done, "start": round(first, 4), "loss": round(loss, 4)}
        if trials == 0:
            break
    made = {"by": f"tacit policy learn, tacit {tacit.__version__}", "date": datetime.date.today().isoformat()}
    return Policy(rules, made | {"loss": LOSS, "kinds": kinds})


_LISTED = {"epsilons": "epsilon", "sites": "sites"}
