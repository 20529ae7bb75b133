"""A study of three made-up sites, whose report is looked at."""

from typing import Any

import numpy as np

from tacit.study.plan import Plan
from tacit.study.sites import Site
from tacit.tables.table import Table

SLOTS = 24
PLAN = Plan("logistic", rounds=3, evaluation=0.2)


def table(records: int, seed: int = 0) -> Table:
    """Made-up records of a number and an indicator."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(0, 10, records), rng.integers(0, 2, records)])
    y = rng.random(records) < 1 / (1 + np.exp(-(x[:, 0] - 5)))
    return Table.of(x, y.astype(np.float32), names=["a", "b"], indicators=["b"], bounds={"a": (0, 10)}, classes=(0, 1))


def sites(records: bool = True, **more: Any) -> list[Site]:
    """The three sites; without records, as somebody sees them who has none."""
    return [
        Site(f"site-{m}", table(SLOTS - m if records else 0, seed=m if records else 0), 4.0, 1e-4, slots=SLOTS, **more)
        for m in range(3)
    ]
