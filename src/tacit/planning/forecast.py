"""Planning without data: the accuracy that a budget buys, from simulated tables. No record is read.

A simulated table (a stand-in) has the public sizes of the planned study (`data.simulated`). Its study is tried by the
study's own phases (`planning.trials`), for one site and for many, over a range of ε and of rounds.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tacit.data.simulated import Task, simulate
from tacit.federated.secure_terms import Tolerance
from tacit.links import link_of, names
from tacit.planning.trials import Batch, Spending
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.study.policy import Policy, default_policy

SPREAD = (0.1, 0.316, 1.0, 3.16, 10.0)  # multiples of the requested ε that are forecast too
MOST_EPSILON = 14.0  # above, draws of noise are not accurate enough to be priced
LEVELS = (2, 3, 5, 8)  # numbers of categories in simulated columns
TESTS, LEAST_RUNS, MOST_RUNS = 4000, 4, 16  # test records of a stand-in, and runs at each setting
RUN_NUMBERS = 4e6  # records times columns above which there are few runs


@dataclass(frozen=True)
class Question:
    """The public sizes of a planned study.

    features: columns, counting indicators of categories; numbers: how many of them are numeric, all by default.
    rounds: numbers of rounds to compare; by default the policy's alone.
    """

    kind: str
    records: int
    features: int
    epsilon: float
    delta: float
    sites: int = 1
    numbers: int | None = None
    rounds: tuple[int, ...] = ()
    secure_sum: bool = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.epsilon > MOST_EPSILON:
            raise ValueError(
                f"epsilon={self.epsilon}; expected at most {MOST_EPSILON:g}, above which nothing is priced"
            )
        check_delta(self.delta)
        kinds = names(learned=True)
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
        if self.secure_sum:
            Tolerance.usual(self.sites)  # refuses too few sites

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
    many = MOST_RUNS if question.records * question.features <= RUN_NUMBERS / 20 else LEAST_RUNS
    seeds = max(1, many // len(draws))
    spendings = [Spending(epsilon, question.sites, question.secure_sum) for epsilon in question.epsilons]
    noises = [spending.noise(question.delta) for spending in spendings]
    exact = batch.exact(len(noises), seeds)
    known = (policy or default_policy()).rule(question.kind)
    counts = question.rounds or (known.rounds,)
    rows: list[dict[str, Any]] = []
    for done, rounds in enumerate(counts):
        observe(done, len(counts))
        found = batch.run(replace(known, rounds=rounds), noises, seeds)
        for place, epsilon in enumerate(question.epsilons):
            at = {name: part[:, place] for name, part in found.items()}
            lost = exact["log_likelihood"][:, None] - at["log_likelihood"]
            worse = at["error"] - exact["error"][:, None]
            if not link.target.has_two_classes:
                worse = worse / exact["error"][:, None]  # relative for numeric targets: their units are unknown
            wider = at["width"] / exact["width"][:, None]
            row: dict[str, Any] = {"epsilon": epsilon, "delta": question.delta, "rounds": rounds}
            for name, values in (("error_rise", worse), ("log_likelihood_loss", lost), ("interval_widening", wider)):
                row[name] = float(np.mean(values))
                row[f"{name}_sd"] = float(np.std(values, ddof=1))
            row["interval_width"] = float(np.mean(at["width"]))
            row["coverage"] = float(np.mean(at["coverage"]))
            row["error"], row["error_without_privacy"] = float(np.mean(at["error"])), float(np.mean(exact["error"]))
            rows.append(row)
    observe(len(counts), len(counts))
    return rows
