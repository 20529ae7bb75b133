"""Planning without data: what a budget buys, from simulations on public stand-ins. No record is read.

A stand-in is a simulated table with the public sizes of the study to come (`data.simulated`). It is fitted as `fit`
would for one site, or as a synchronous study of `sites` would, over a range of ε and of rounds. Sites that protect
themselves each add their own noise, so the sum of M sites has √M times the noise of one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tacit import study
from tacit.data.simulated import Task, simulate
from tacit.learning import Batch, noise_of
from tacit.policy import Policy, Rule, default_policy
from tacit.privacy import accounting
from tacit.regression import LINKS

SPREAD = (0.1, 0.316, 1.0, 3.16, 10.0)  # of the ε that is asked for: what a smaller or larger budget would buy
ROUNDS = (5, 10, 20, 40)
MOST_EPSILON = 14.0  # above, draws of noise are not good enough for a price
LEVELS = (2, 3, 5, 8)  # how many categories simulated columns have
TESTS, LEAST_RUNS, MOST_RUNS = 4000, 4, 16  # test records of a stand-in, and runs at each setting
RUN_NUMBERS = 4e6  # records times columns above which there are few runs


@dataclass(frozen=True)
class Question:
    """The public sizes of a study to come.

    features: columns after categories became indicators; numbers: how many of them are measured, all by default.
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
        accounting.check_epsilon(self.epsilon)
        if self.epsilon > MOST_EPSILON:
            raise ValueError(
                f"epsilon={self.epsilon}; expected at most {MOST_EPSILON:g}, above which nothing is priced"
            )
        accounting.check_delta(self.delta)
        kinds = ("logistic", "probit", "linear", "poisson") if self.sites == 1 else study.KINDS
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
        """A stand-in: the features that are not measured are indicators of columns of a few categories."""
        numbers = self.features if self.numbers is None else self.numbers
        left, categories = self.features - numbers, []
        while left > 0:
            count = min(LEVELS[len(categories) % len(LEVELS)], left + 1)
            categories.append(count)
            left -= count - 1
        return Task(self.kind, self.records, numbers, tuple(categories), signal, balance)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """A range around the one that is asked for."""
        others = [float(f"{ratio * self.epsilon:.3g}") for ratio in SPREAD if ratio != 1]
        return tuple(sorted({self.epsilon, *(other for other in others if other <= MOST_EPSILON)}))


# Stand-ins: how strong the signal is, and how balanced the target, are not public; these span what is common.
SIGNALS = {"logistic": (1.0, 2.0), "probit": (0.7, 1.4), "linear": (0.7, 1.5), "poisson": (0.4, 0.8)}
BALANCES = {"poisson": (1.0, 3.0)}


def rule_of(question: Question, rounds: int | None, policy: Policy | None = None) -> Rule:
    """What a fit, or a study of many sites, would do in so many rounds; by its own rule where they are not given."""
    if question.sites == 1:
        rule = (policy or default_policy()).rule(question.kind)
        if rounds is None:
            return rule
        first = min(max(1, round(rounds * rule.steps[0] / sum(rule.steps))), rounds - 1)
        return replace(rule, steps=(first, rounds - first), noise=(rule.noise[0], rule.noise[-1]))
    found = study.Plan(question.kind, rounds=rounds or 20)
    link, stages = LINKS[question.kind], (*found.stages(), found.rounds)
    shares = found.shares(1)
    return Rule(
        tuple(int(n) for n in np.diff(stages)),
        (1.0,) * (len(stages) - 1),
        moments=shares["scaling"],
        residual=0.001,
        curvature=shares["curvature"],
        clip_least=link.least,
        clip_most=link.most,
        trust=default_policy().rule(question.kind).trust,
    )


def forecast(
    question: Question,
    policy: Policy | None = None,
    observe: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """What to expect at each ε and number of rounds: a row for each, means over stand-ins and seeds with their spread.

    The loss of accuracy (of numbers, the relative rise of their error), that of a test record's log-likelihood, and the
    width of 90 % intervals as a multiple of that without privacy. Standard deviations are over runs, so of one study.
    """
    draws = [
        question.task(*pair)
        for pair in zip(SIGNALS[question.kind], BALANCES.get(question.kind, (0.25, 0.5)), strict=True)
    ]
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
            if question.kind not in ("logistic", "probit"):
                worse = worse / exact["error"][:, None]  # errors of numbers are relative: units are not known
            wider = at["width"] / exact["width"][:, None]
            row: dict[str, Any] = {"epsilon": epsilon, "delta": question.delta, "rounds": sum(rule.steps)}
            for name, values in (("error_rise", worse), ("log_likelihood_loss", lost), ("interval_widening", wider)):
                row[name] = float(np.mean(values))
                row[f"{name}_standard_deviation"] = float(np.std(values, ddof=1))
            row["interval_width"] = float(np.mean(at["width"]))
            row["coverage"] = float(np.mean(at["coverage"]))
            row["error"], row["error_without_privacy"] = float(np.mean(at["error"])), float(np.mean(exact["error"]))
            rows.append(row)
    observe(len(counts), len(counts))
    return rows
