"""Subjects of audits: a program, its records and its claim; made-up records; and a mechanism alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.canaries import Canaried, Paired
from tacit.audit.runs import Audit, audit
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Event
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price, repeat
from tacit.tables.table import Table

Canary = Literal["worst", "mislabelled", "outlying"]
ROW = "row"  # a canary that is a row of a study's file
CANARIES: tuple[Canary, ...] = ("worst", "mislabelled", "outlying")
RECORDS, COLUMNS = 20, 3


@dataclass(frozen=True, eq=False)
class Subject:
    """An audited program, the access it reads through, and its claimed price. batch: runs in one compiled program."""

    name: str
    program: Callable[[Array, Any], Released[Any]]
    access: Canaried | Paired
    event: Event
    delta: float
    batch: int = 1000

    def audit(self, runs: int, *, seed: int, **settings: Any) -> Audit:
        """Run the program this often and bound its ε from below (`audit.runs.audit`)."""
        settings = {"batch": self.batch, "claimed": self.event, **settings}
        return audit(self.program, self.access, self.delta, runs, seed=seed, **settings)


def made_up(records: int = RECORDS, columns: int = COLUMNS, canary: Canary = "worst", seed: int = 0) -> Table:
    """A table of numbers within [-1, 1] and a target of 0 and 1, whose first record is the canary.

    A mislabelled canary lies where the model is surest and has the other label; an outlying one lies at a far corner,
    away from all other records.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (records, columns)) * 0.5
    weights = slopes(columns)
    y = rng.random(records) < 1 / (1 + np.exp(-x @ weights))
    x[0] = np.sign(weights) if canary != "outlying" else np.ones(columns)
    y[0] = canary == "outlying"
    return Table.of(x, y.astype(float), bounds=(-1.0, 1.0), target_bounds=(0.0, 1.0), classes=(0, 1))


def slopes(columns: int) -> np.ndarray:
    """The slopes of a made-up regression, one per column."""
    return np.where(np.arange(columns) % 2, -2.0, 2.0).astype(np.float32)


def canaried(access: Access, canary: Canary) -> Canaried:
    """The access with a canary of this kind, or a refusal that lists the kinds."""
    if canary not in CANARIES:
        raise ValueError(f"canary={canary!r}; expected one of {', '.join((*CANARIES, ROW))}, the last for study files")
    return Canaried.on(access, is_worst=canary == "worst")


def of_mechanism(
    mechanism: SubsampledGaussian, delta: float, steps: int = 1, *, slots: int = 20, columns: int = COLUMNS
) -> Subject:
    """A mechanism alone: a sum of vectors, released `steps` times."""
    vectors = np.random.default_rng(0).normal(size=(slots, columns)).astype(np.float32)
    access = Canaried.on(Access.of(vectors, mechanism))
    contribution = per_record(lambda record: record)

    def program(key: Array, access: Canaried) -> Released[Array]:
        return repeat(key, steps, lambda key, level, _: access.at(level).sum(key, contribution), jnp.zeros(columns))

    return Subject("a mechanism alone", program, access, price(program, insecure_key(0), access), delta)
