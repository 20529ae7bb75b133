"""Attacks on a site by who leads its studies, and on the files of a study."""

import contextlib
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tests.audit.rows import in_order
from tests.mutants.checks_of_mechanisms import COLUMNS, ORDINARY, each_record, key_of, keys_of, quick_jit
from tests.mutants.planting import Verdict, World

from tacit.audit import bounds, studies
from tacit.audit.bounds import CONFIDENCE
from tacit.audit.canaries import HUGE
from tacit.families import register
from tacit.federated.messages import Broadcast, Refusal, Update
from tacit.privacy import accounting
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Gaussian, Repeated
from tacit.privacy.ledger import BudgetExceeded
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released

CANARIES = 400
Question = tuple[str, str, int, float]  # site, study, round, and the number in the broadcast


@register()
@dataclass(frozen=True)
class Echo:
    """An algorithm whose answer is its release: the sum of all records, times the number in the broadcast."""

    zeros: Array

    def coordinator_init(self, sites: int) -> Any:
        return ()

    def broadcast(self, state: Any) -> Any:
        return state, {"scale": jnp.ones(())}

    def site_init(self) -> Array:
        return self.zeros

    def kind(self, count: int) -> int:
        return 0

    def site_step(self, key: Array, state: Any, content: Any, access: Access, kind: int) -> Released[Array]:
        return access.sum(key, per_record(lambda record: content["scale"] * record))

    def answer(self, state: Array) -> Array:
        return state


@dataclass(frozen=True)
class Asking:
    """A coordinator asks whatever it likes, against the budget of a real ledger. One run, many canaries.

    Each canary is in or out by the toss of a coin, and moves a coordinate of its own. All answers are added up, each
    with the sign of its question. Only the site "north" has records; the other sites share its key.
    """

    questions: tuple[Question, ...]
    updates: int = 1  # that the budget pays for
    is_restarted: bool = False  # before each question, with the same key and without the store

    def __call__(self, world: World) -> Verdict:
        noise, delta = 4.0, 1e-5
        included = np.random.default_rng(5).random(CANARIES) < 0.5
        mechanism = world.mechanism(1.0, noise)
        access = world.access.of(HUGE * np.eye(CANARIES, dtype=np.float32), mechanism)
        budget = accounting.epsilon(Repeated(Gaussian(noise, coordinates=CANARIES), self.updates), delta, "zcdp")
        sites, heard = {}, []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger"
            ledger = world.ledger.create(path, data_set="a", epsilon=budget, delta=delta, accountant="zcdp")
            for name, study, round, scale in self.questions:
                if (name, study) not in sites or self.is_restarted:
                    present = jnp.asarray(included & (name == "north"))[:, None]
                    own = replace(access, present=present)
                    paid = ledger if name == "north" else None
                    sites[name, study] = world.responder(name, study, Echo(jnp.zeros(CANARIES)), own, key_of(3), paid)
                answer = sites[name, study](Broadcast(study, round, {"scale": np.asarray(scale, np.float32)}))
                if isinstance(answer, Update):
                    heard.append(np.sign(scale) * answer.content)
        half = 1 - (1 - CONFIDENCE) / 2  # either bound may be the one that refutes
        scores = np.mean(heard, axis=0)
        kinds: tuple[bounds.Assumption, ...] = ("nothing", "gaussian")
        return budget, max(bounds.one_run_bound(scores, included, delta, half, kind)[0] for kind in kinds)


def by_opposites(world: World) -> Verdict:
    """A record or its opposite, in as many releases as a replace-one ledger pays for, which is one."""
    noise, delta = 2.0, 1e-5
    event, count = Gaussian(noise, coordinates=COLUMNS), 0
    budget = accounting.epsilon(event, delta, "zcdp", "replace-one")
    terms: dict[str, Any] = {"accountant": "zcdp", "adjacency": "replace-one"}
    with tempfile.TemporaryDirectory() as folder:
        ledger = world.ledger.create(Path(folder) / "ledger", data_set="a", epsilon=budget, delta=delta, **terms)
        with contextlib.suppress(BudgetExceeded):
            while True:
                ledger.charge(event, study="heart", round=count)
                count += 1
    access = world.access.of(ORDINARY, world.mechanism(1.0, noise))

    def heard(key: Array, table: Array) -> Array:
        own = replace(access, records=table)
        return jnp.mean(jax.vmap(lambda key: own.sum(key, each_record).value[0])(jax.random.split(key, count)))

    tables = (access.records.at[0, 0].set(jnp.array([side * HUGE, 0, 0], jnp.float32)) for side in (-1, 1))
    run, halves = quick_jit(jax.vmap(heard, in_axes=(0, None))), keys_of(27, 4000).reshape(2, -1)
    without, within = (np.asarray(run(half, table)) for half, table in zip(halves, tables, strict=True))
    return budget, bounds.bound(without, within, delta, CONFIDENCE, "gaussian").epsilon


def by_refusals(world: World) -> Verdict:
    """Whether the reason of a refusal differs between two sites that differ by a record."""
    access = world.access.of(ORDINARY, world.mechanism(1.0, 2.0))

    def numbers(is_in: bool) -> list[float]:
        own = replace(access, present=access.present.at[0].set(is_in))
        site = world.responder("north", "heart", Echo(jnp.zeros(COLUMNS)), own, key_of(0), None)
        answers = [site(Broadcast("lung", 0, {})) for _ in range(200)]
        assert all(isinstance(answer, Refusal) for answer in answers)
        return [sum(map(float, re.findall(r"\d+", answer.reason))) for answer in answers]

    return 0.0, bounds.bound(numbers(False), numbers(True), 1e-5).epsilon


def by_deleting_a_row(world: World) -> Verdict:
    """A study on its own files, with a row and without it."""
    del world  # what is broken is patched, for a study makes its own parts
    with tempfile.TemporaryDirectory() as folder:
        study = in_order(Path(folder), evaluation=0.2)
        found = studies.of_row(study, "north", 0).audit(400, seed=1, confidence=CONFIDENCE)
    return found.claimed_epsilon, found.best.epsilon


def north(*rounds: int, scale: float = 1.0) -> tuple[Question, ...]:
    return tuple(("north", "heart", round, scale) for round in rounds)


OVER_AND_OVER = 36  # questions, in place of the one that is paid for
