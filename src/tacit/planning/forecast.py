"""Planning without data: the accuracy that a budget buys, from simulated tables. No record is read.

A simulated table (a stand-in) has the public sizes of the planned study (`data.simulated`). It is fitted as `fit` would
for one site, or as a synchronous study of `sites` would, over a range of ε and of rounds. Each site adds its own noise,
so the sum over M sites has √M times the noise of one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tacit.data.simulated import Task, simulate
from tacit.fitting.policy import Policy, Rule, default_policy
from tacit.links import link_of, names
from tacit.planning.learning import Batch, noise_of
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.study.plan import Plan
from tacit.study.program import Program

SPREAD = (0.1, 0.316, 1.0, 3.16, 10.0)  # multiples of the requested ε that are forecast too
ROUNDS = (5, 10, 20, 40)
MOST_EPSILON = 14.0  # above, draws of noise are not accurate enough to be priced
LEVELS = (2, 3, 5, 8)  # numbers of categories in simulated columns
TESTS, LEAST_RUNS, MOST_RUNS = 4000, 4, 16  # test records of a stand-in, and runs at each setting
RUN_NUMBERS = 4e6  # records times columns above which there are few runs


@dataclass(frozen=True)
class Question:
    """The public sizes of a planned study.

    features: columns, counting indicators of categories; numbers: how many of them are numeric, all by default.
    """

    kind: str
    records: int
    features: int
    epsilon: float
    delta: float
    sites: int = 1
    numbers: int | None = None
    rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.epsilon > MOST_EPSILON:
            raise ValueError(
                f"epsilon={self.epsilon}; expected at most {MOST_EPSILON:g}, above which nothing is priced"
            )
        check_delta(self.delta)
        kinds = names(learned=True, in_studies=self.sites > 1)
        if self.kind not in kinds:
            raise ValueError(f"model={self.kind!r}; expected one of {', '.join(kinds)}")
        for name, value in (("records", self.records), ("features", self.features), ("sites", self.sites)):
            if value < 1:
                raise ValueError(f"{name}={value}; expected a whole number of at least 1")
        if self.numbers is not None and not 0 <= self.numbers <= self.features:
            raise ValueError(f"numbers={self.numbers}; expected from 0 to features={self.features}")
        if self.sites > self.records:
            raise ValueError(
                f"sites={self.sites} for {self.records} records; expected at least one record at each site"
            )
        if self.rounds and min(self.rounds) < 2:
            raise ValueError(f"rounds={min(self.rounds)}; expected at least 2")

    def task(self, signal: float, balance: float) -> Task:
        """A task to simulate. Features that are not numbers are indicators of columns with a few categories."""
        numbers = self.features if self.numbers is None else self.numbers
        left, categories = self.features - numbers, []
        while left > 0:
            count = min(LEVELS[len(categories) % len(LEVELS)], left + 1)
            categories.append(count)
            left -= count - 1
        return Task(self.kind, self.records, numbers, tuple(categories), signal, balance)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """The question as plain data."""
        return asdict(self)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """A range around the requested ε."""
        others = [float(f"{ratio * self.epsilon:.3g}") for ratio in SPREAD if ratio != 1]
        return tuple(sorted({self.epsilon, *(other for other in others if other <= MOST_EPSILON)}))


def rule_of(question: Question, rounds: int | None, policy: Policy | None = None) -> Rule:
    """The rule of a fit, or of a study of many sites, with this number of rounds; None keeps its own number."""
    if question.sites == 1:
        rule = (policy or default_policy()).rule(question.kind)
        if rounds is None:
            return rule
        first = min(max(1, round(rounds * rule.steps[0] / sum(rule.steps))), rounds - 1)
        return replace(rule, steps=(first, rounds - first), noise=(rule.noise[0], rule.noise[-1]))
    program = Program(Plan(question.kind, rounds=rounds or 20), paid=1)
    link, stages, shares = program.plan.link, (*program.stages, program.plan.rounds), program.shares
    return Rule(
        tuple(int(n) for n in np.diff(stages)),
        (1.0,) * (len(stages) - 1),
        moments=shares["scaling"],
        residual=0.001,
        curvature=shares["curvature"],
        clip_least=link.least_clip,
        clip_most=link.most_clip,
        shrinkage=default_policy().rule(question.kind).shrinkage,
    )


def forecast(
    question: Question,
    policy: Policy | None = None,
    observe: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Expected results, a row for each ε and number of rounds: means and sds over stand-ins and seeds.

    A row has the loss of accuracy (for numeric targets, the relative rise of the error), the loss of log-likelihood per
    test record, and the width of 90 % intervals relative to that without privacy. An sd is that of a single study.
    """
    link = link_of(question.kind)
    assert link.simulator is not None  # every kind that a question allows has one
    # The strength of the signal and the balance of the target are not public: stand-ins span common values.
    pairs = zip(link.simulator.planned, link.simulator.planned_balances, strict=True)
    draws = [question.task(*pair) for pair in pairs]
    batch = Batch.of(question.kind, [simulate(task, seed, TESTS) for seed, task in enumerate(draws)])
    exact = batch.exact()
    many = MOST_RUNS if question.records * question.features <= RUN_NUMBERS / 20 else LEAST_RUNS
    seeds = max(1, many // len(draws))
    noises = [noise_of(epsilon, question.delta) * math.sqrt(question.sites) for epsilon in question.epsilons]
    rows: list[dict[str, Any]] = []
    counts: Sequence[int | None] = question.rounds or (ROUNDS if question.sites > 1 else (None,))
    for done, rounds in enumerate(counts):
        observe(done, len(counts))
        rule = rule_of(question, rounds, policy)
        found = batch.run(rule, noises, seeds)
        for place, epsilon in enumerate(question.epsilons):
            at = {name: part[:, place] for name, part in found.items()}
            lost = exact["log_likelihood"][:, None] - at["log_likelihood"]
            worse = at["error"] - exact["error"][:, None]
            if not link.target.has_two_classes:
                worse = worse / exact["error"][:, None]  # relative for numeric targets: their units are unknown
            wider = at["width"] / exact["width"][:, None]
            row: dict[str, Any] = {"epsilon": epsilon, "delta": question.delta, "rounds": sum(rule.steps)}
            for name, values in (("error_rise", worse), ("log_likelihood_loss", lost), ("interval_widening", wider)):
                row[name] = float(np.mean(values))
                row[f"{name}_sd"] = float(np.std(values, ddof=1))
            row["interval_width"] = float(np.mean(at["width"]))
            row["coverage"] = float(np.mean(at["coverage"]))
            row["error"], row["error_without_privacy"] = float(np.mean(at["error"])), float(np.mean(exact["error"]))
            rows.append(row)
    observe(len(counts), len(counts))
    return rows
