"""Small studies of three sites in this process. Shapes are few, so that programs are shared."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.federated.messages import Update
from tacit.privacy.ledger import Ledger
from tacit.study.coordinator import StudyResult, coordinate
from tacit.study.front import federate
from tacit.study.local import LocalHost
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.table import Table

ROUNDS, SLOTS = 3, 24
PLAN = Plan("logistic", rounds=ROUNDS, evaluation=0.2)
SECURE = Plan("logistic", rounds=ROUNDS, secure_sum=True)
KINDS: dict[str, Plan] = {
    "each its own": PLAN,
    "secure sums": SECURE,
    "trusted coordinator": Plan("logistic", rounds=ROUNDS, unit="site"),
}


def table(records: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(0, 10, records), rng.integers(0, 2, records)])
    y = rng.random(records) < 1 / (1 + np.exp(-(x[:, 0] - 5)))
    return Table.of(x, y.astype(np.float32), names=["a", "b"], indicators=["b"], bounds={"a": (0, 10)}, classes=(0, 1))


def make_sites(count: int = 3, **more: Any) -> list[Site]:
    return [Site(f"site-{m}", table(SLOTS - m, seed=m), 4.0, 1e-4, **more) for m in range(count)]


def public(count: int = 3) -> list[Site]:
    """The same sites as somebody sees them who has no record."""
    return [replace(site, table=table(0), slots=SLOTS) for site in make_sites(count)]


def mean_of(found: StudyResult) -> np.ndarray:
    return np.asarray(found.posterior.blocks["coefficients"].mean)


def is_sound(found: StudyResult) -> bool:
    covariance = np.asarray(found.posterior.blocks["coefficients"].covariance)
    return bool(np.all(np.isfinite(mean_of(found))) and np.all(np.linalg.eigvalsh(covariance) > 0))


# --- Hosts -------------------------------------------------------------------------------------------------------


class Between(LocalHost):
    """A host that hands on what `change` makes of each answer."""

    change: Callable[[str, int, Update], Any] = staticmethod(lambda phase, site, answer: answer)

    def open(self, phase: str, study: str, scaling: Any) -> Any:
        transport = super().open(phase, study, scaling)
        receive = transport.receive

        def changed() -> Any:
            site, answer = receive()
            return site, self.change(phase, site, answer) if isinstance(answer, Update) else answer

        transport.receive = changed  # type: ignore[method-assign]
        return transport


class Elsewhere(LocalHost):
    """The sites of this process, as if they were on other machines."""

    is_remote = True


def coordinated(folder: Path, host: type[LocalHost], plan: Plan = PLAN, **more: Any) -> StudyResult:
    setup = Setup(plan, make_sites(slots=SLOTS))
    return coordinate(setup, folder, host(setup, folder, 1), **more)


# --- Studies that are stopped, and ledgers -----------------------------------------------------------------------


def stopped(folder: Path, plan: Plan, sites: list[Site], rounds: int = 2, **more: Any) -> None:
    """A study that was stopped after some rounds of inference."""

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        if (phase, done) == ("inference", rounds):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(plan, sites, out=folder, **({"insecure_seed": 1, "observe": cut} | more))


def ledger_paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("ledger.sqlite"))


def own_ledger(folder: Path, name: str = "own", epsilon: float = 50.0, **more: Any) -> Path:
    path = folder / f"{name}.ledger"
    Ledger.create(path, data_set=name, **({"epsilon": epsilon, "delta": 1e-4} | more))
    return path
