"""Simulated tables of regressions: public stand-ins for records that nobody may look at yet.

Policies are learned on them, and studies planned. Numbers are correlated by a few common factors and some are skewed;
categories are uneven, and in indicators; coefficients differ in size; public bounds are wider than the numbers. What
comes out is a task: records to learn from, and records to test on.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special

from tacit.data.tables import Table

Kind = Literal["linear", "logistic", "probit", "poisson"]
MOST_FACTORS = 4
SKEW = 0.4  # of log-normal numbers: the deviation of their logarithm


@dataclass(frozen=True)
class Task:
    """What to simulate.

    numbers: columns that are measured. categories: how many each further column has, in indicators but for the first.
    signal: the deviation of x·θ; of a linear regression, in units of the noise. balance: the share of ones, or the mean
    of a count. correlation: the share of a number's variance that is common. bounds: how far public bounds reach, in
    deviations; 0 for none. skew: the share of numbers that are log-normal.
    """

    kind: Kind
    records: int
    numbers: int
    categories: tuple[int, ...] = ()
    signal: float = 1.5
    balance: float = 0.4
    correlation: float = 0.4
    bounds: float = 6.0
    skew: float = 0.3

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "logistic", "probit", "poisson"):
            raise ValueError(f"kind={self.kind!r}; expected linear, logistic, probit or poisson")
        if self.records < 1 or self.numbers < 0 or self.numbers + len(self.categories) < 1:
            raise ValueError(
                f"{self.records} records of {self.numbers} numbers and {len(self.categories)} categories; "
                "expected at least 1 of records and of columns"
            )
        if any(count < 2 for count in self.categories):
            raise ValueError(f"categories={self.categories}; expected at least 2 in each column")

    @property
    def columns(self) -> int:
        """How many the table has."""
        return self.numbers + sum(count - 1 for count in self.categories)


class Simulated(NamedTuple):
    """Records to learn from, records to test on, and the coefficients behind them, intercept first, in their units."""

    table: Table
    test_features: np.ndarray
    test_target: np.ndarray
    truth: np.ndarray


def simulate(task: Task, seed: int, tests: int = 2000) -> Simulated:
    """A draw of the task.

    >>> found = simulate(Task("logistic", 100, 2, (3,)), seed=0, tests=10)
    >>> found.table.features.shape, found.test_features.shape, len(found.table.numbers), found.truth.shape
    ((100, 4), (10, 4), 2, (5,))
    """
    rng = np.random.default_rng(seed)
    size = task.records + tests
    factors = rng.normal(size=(size, MOST_FACTORS))
    loadings = rng.normal(size=(MOST_FACTORS, max(task.numbers, 1)))
    loadings *= np.sqrt(task.correlation / np.maximum(np.sum(loadings**2, axis=0), 1e-12))
    numbers = (factors @ loadings)[:, : task.numbers]
    numbers = numbers + np.sqrt(1 - task.correlation) * rng.normal(size=numbers.shape)
    for column in range(round(task.skew * task.numbers)):
        skewed = np.exp(SKEW * numbers[:, column])
        numbers[:, column] = (skewed - np.exp(SKEW**2 / 2)) / np.sqrt(np.exp(SKEW**2) * np.expm1(SKEW**2))
    indicators = []
    for count in task.categories:
        shares = rng.dirichlet(np.full(count, 1.5))
        drawn = rng.choice(count, size=size, p=shares)
        indicators.append(np.eye(count)[drawn][:, 1:])
    features = np.concatenate([numbers, *indicators], axis=1)
    coefficients = rng.normal(size=task.columns) * rng.gamma(1.0, size=task.columns)  # a few are large, many small
    z = features @ coefficients
    coefficients *= task.signal / max(z.std(), 1e-12)
    centre = z.mean() * task.signal / max(z.std(), 1e-12)
    target, intercept, unit = _target(task, features @ coefficients - centre, rng)
    places = rng.normal(0, 5, task.numbers), np.exp(rng.normal(0, 2, task.numbers))  # units that nobody knows
    features[:, : task.numbers] = places[0] + places[1] * numbers
    bounds: Any = None
    ends: Any = None
    if task.bounds:
        low, high = (places[0] + side * task.bounds * places[1] for side in (-1, 1))
        bounds = {f"x{j}": (float(low[j]), float(high[j])) for j in range(task.numbers)}
        ends = _target_bounds(task)
    measured = [f"x{j}" for j in range(task.numbers)]
    others = [f"c{j}={value}" for j, count in enumerate(task.categories) for value in range(1, count)]
    train, public = (features[: task.records], target[: task.records]), {"bounds": bounds, "target_bounds": ends}
    table = Table.of(*train, names=measured + others, indicators=others, **public)
    coefficients *= unit
    coefficients[: task.numbers] /= places[1]
    intercept += unit * -centre - np.sum(coefficients[: task.numbers] * places[0])
    return Simulated(table, features[task.records :], target[task.records :], np.array([intercept, *coefficients]))


def _target(task: Task, z: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float, float]:
    """Targets at z, the intercept that they have beside it, and the unit of z in theirs."""
    if task.kind == "linear":
        return 3 + 2 * (z + rng.normal(size=len(z))), 3.0, 2.0
    if task.kind == "poisson":
        z = np.clip(z, -20, 5)
        intercept = float(np.log(task.balance / np.mean(np.exp(z))))
        return rng.poisson(np.exp(z + intercept)).astype(float), intercept, 1.0
    link = special.expit if task.kind == "logistic" else special.ndtr
    low, high = -30.0, 30.0
    for _ in range(60):  # the intercept at which the share of ones is as asked
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(link(z + middle)) < task.balance else (low, middle)
    return (rng.uniform(size=len(z)) < link(z + low)).astype(float), low, 1.0


def _target_bounds(task: Task) -> tuple[float, float] | None:
    """Public bounds: of a simulated number, by what is known of how it was made."""
    if task.kind == "linear":
        reach = 2 * np.hypot(task.signal, 1) * task.bounds
        return 3 - reach, 3 + reach
    if task.kind == "poisson":
        return 0.0, float(max(10, 20 * task.balance))
    return None
