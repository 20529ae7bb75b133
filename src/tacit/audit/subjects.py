"""Subjects of audits: a mechanism alone, a fit, a study of many sites, a row of a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.bounds import Assumption, check_confidence, one_run_bound
from tacit.audit.canaries import Canaried, Paired, total_score
from tacit.audit.runs import Audit, audit
from tacit.fitting.prepare import prepare
from tacit.privacy import accounting
from tacit.privacy.checks import check_epsilon
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Event
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price, repeat
from tacit.tables.table import Table

Canary = Literal["worst", "mislabelled", "outlying"]
ROW = "row"  # a canary that is a row of a study's file
CANARIES: tuple[Canary, ...] = ("worst", "mislabelled", "outlying")
RECORDS, COLUMNS = 20, 3
SITES = 3
MOST_CANARIES = 100_000
MOST_BATCH = 2e7  # numbers held at once by a batch of runs, 80 MB


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


def access_of(table: Table) -> Access:
    """Access to a table's records without clip and noise."""
    return Access.of((table.features, table.target.astype(np.float32)), Exact())


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


def of_fit(
    epsilon: float,
    delta: float,
    *,
    canary: Canary = "worst",
    given: Mapping[str, Any] = MappingProxyType({}),
    model: str = "logistic",
    records: int = RECORDS,
    columns: int = COLUMNS,
) -> Subject:
    """The program of `tacit.fit` on a table of made-up records, planned for (ε, δ).

    given: steps, clip, sampling_rate and learning_rate, as for `fit`; a learning rate selects DPVI by Adam on Poisson
    samples in place of the default rule.
    """
    check_epsilon(epsilon)
    table = made_up(records, columns, canary)
    access = access_of(table)
    _, program = prepare(insecure_key(0), model, table, access, epsilon, delta, given=given)
    marked = canaried(access, canary)
    return Subject(f"a {model} fit", program, marked, price(program, insecure_key(0), marked), delta)


def once(
    epsilon: float, delta: float, canaries: int = 2000, columns: int = 200, confidence: float = 0.95, *, seed: int
) -> dict[str, Any]:
    """One fit with many canaries, each included by a fair coin, and the bound that guesses about them prove."""
    check_epsilon(epsilon)
    check_confidence(confidence)
    if not 10 <= canaries <= MOST_CANARIES:
        raise ValueError(f"canaries={canaries}; expected from 10 to {MOST_CANARIES}")
    table = made_up(canaries + RECORDS, columns)
    access = access_of(table)
    _, program = prepare(insecure_key(0), "logistic", table, access, epsilon, delta)
    marked = Canaried.on(access, canaries)
    included = np.random.default_rng(seed).random(canaries) < 0.5
    release = program(insecure_key(seed), marked.having(included))
    scores = np.asarray(total_score(release))
    each = 1 - (1 - confidence) / 2  # both bounds hold together; a fit claims a Gaussian shift, so both test it
    kinds: tuple[Assumption, ...] = ("nothing", "gaussian")
    found = {kind: one_run_bound(scores, included, delta, each, kind) for kind in kinds}
    best = max(kinds, key=lambda kind: found[kind][0])
    lower, guesses, correct = found[best]
    claimed = accounting.epsilon(release.event, delta)
    return {
        "subject": "a logistic fit",
        "canary": "worst",
        "claimed_epsilon": claimed,
        "delta": delta,
        "lower_bound": lower,
        "assumes": best,
        "confidence": confidence,
        "runs": 1,
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "tightness": lower / claimed,
        "refuted": lower > claimed,
        "adjacency": "add-remove",
        "randomness": "seeded",
    }
