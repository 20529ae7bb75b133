"""Simulated tables of regressions: public stand-ins for private records.

They serve to learn policies and to plan studies. Numbers are correlated by a few common factors and some are skewed;
categories are uneven and encoded as indicators; coefficients differ in size; public bounds are wider than the numbers.
A task has records to learn from and records to test on.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tacit.links import Simulator, link_of, names
from tacit.tables.table import Table

MOST_FACTORS = 4
SKEW = 0.4  # of log-normal numbers: the standard deviation of their logarithm


@dataclass(frozen=True)
class Task:
    """Settings of a simulation.

    numbers: how many columns are numeric. categories: the number of categories of each further column, encoded as
    indicators of all but the first. signal: the standard deviation of x·θ, for a linear regression in units of the
    noise. balance: the share of ones, or the mean of a count. correlation: the share of a number's variance that is
    common. bounds: the reach of public bounds, in standard deviations; 0 for none. skew: the share of numbers that are
    log-normal.
    """

    model: str
    records: int
    numbers: int
    categories: tuple[int, ...] = ()
    signal: float = 1.5
    balance: float = 0.4
    correlation: float = 0.4
    bounds: float = 6.0
    skew: float = 0.3

    def __post_init__(self) -> None:
        if self.model not in names(learned=True):
            raise ValueError(f"model={self.model!r}; expected one of {', '.join(names(learned=True))}")
        if self.records < 1 or self.numbers < 0 or self.numbers + len(self.categories) < 1:
            raise ValueError(
                f"{self.records} records of {self.numbers} numbers and {len(self.categories)} categories; "
                "expected at least 1 of records and of columns"
            )
        if any(count < 2 for count in self.categories):
            raise ValueError(f"categories={self.categories}; expected at least 2 in each column")

    @property
    def simulator(self) -> Simulator:
        """The simulator of its targets."""
        found = link_of(self.model).simulator
        assert found is not None
        return found

    @property
    def columns(self) -> int:
        """The number of columns of the table."""
        return self.numbers + sum(count - 1 for count in self.categories)


class Simulated(NamedTuple):
    """Records to learn from, records to test on, and the coefficients behind them, intercept first, in their units."""

    table: Table
    test_features: np.ndarray
    test_target: np.ndarray
    truth: np.ndarray


def simulate(task: Task, seed: int, tests: int = 2000) -> Simulated:
    """Draw a table and its test records.

    >>> found = simulate(Task("logistic", 100, 2, (3,)), seed=0, tests=10)
    >>> found.table.features.shape, found.test_features.shape, len(found.table.numbers), found.truth.shape
    ((100, 4), (10, 4), 2, (5,))
    """
    simulator, rng = task.simulator, np.random.default_rng(seed)
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
    target, intercept, unit = simulator.draw(features @ coefficients - centre, task.balance, rng)
    places = rng.normal(0, 5, task.numbers), np.exp(rng.normal(0, 2, task.numbers))  # arbitrary units
    features[:, : task.numbers] = places[0] + places[1] * numbers
    bounds: Any = None
    ends: Any = None
    if task.bounds:
        low, high = (places[0] + side * task.bounds * places[1] for side in (-1, 1))
        bounds = {f"x{j}": (float(low[j]), float(high[j])) for j in range(task.numbers)}
        ends = None if simulator.bounds is None else simulator.bounds(task.signal, task.balance, task.bounds)
    measured = [f"x{j}" for j in range(task.numbers)]
    others = [f"c{j}={value}" for j, count in enumerate(task.categories) for value in range(1, count)]
    train, public = (features[: task.records], target[: task.records]), {"bounds": bounds, "target_bounds": ends}
    table = Table.of(*train, names=measured + others, indicators=others, **public)
    coefficients *= unit
    coefficients[: task.numbers] /= places[1]
    intercept += unit * -centre - np.sum(coefficients[: task.numbers] * places[0])
    return Simulated(table, features[task.records :], target[task.records :], np.array([intercept, *coefficients]))
