"""Attacks on the sums that a mechanism releases, and on the rounds of a study that are made of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats
from tests.mutants.checks_of_mechanisms import (
    COLUMNS,
    SHARE,
    SLOTS,
    each_record,
    key_of,
    keys_of,
    quick_jit,
    rounds_of,
)
from tests.mutants.planting import Verdict, World, canaried

from tacit.audit import bounds
from tacit.audit.bounds import CONFIDENCE
from tacit.audit.canaries import HUGE
from tacit.audit.subjects import Subject
from tacit.privacy import accounting
from tacit.privacy.clipping import Limit, per_record
from tacit.privacy.events import Repeated
from tacit.privacy.released import Released, price


@dataclass(frozen=True)
class Listening:
    """An audit of a sum that is released over and over: all releases, with and without one unit.

    All records change their sign from step to step, so that noise that is used twice cancels. settings: of the
    mechanism. canary: its record, of which a person may have several (`records`). others: the record of all others.
    copies: of each release, by `vmap`.
    """

    settings: tuple[Any, ...] = (1.0, 1.0)
    steps: int | tuple[int, ...] = 2
    canary: tuple[float, ...] = (HUGE, 0.0, 0.0)
    records: int = 1
    others: tuple[float, ...] = (0.0, 1.0, 0.0)
    slots: int = 6
    copies: int = 1
    delta: float = 1e-5
    runs: int = 8000

    def subject(self, world: World) -> Subject:
        others = self.slots - 1
        table = np.array([self.canary] * self.records + [self.others] * others, np.float32)
        people = {"groups": [0] * self.records + [*range(1, self.slots)], "most_records": self.records}
        mechanism = world.mechanism(*self.settings)
        access = world.access.of(table, mechanism, **(people if self.records > 1 else {}))
        access = canaried(world.access).on(access, access.slots - others, is_worst=False)
        steps = sum(self.steps) if isinstance(self.steps, tuple) else self.steps

        def program(key: Array, access: Any) -> Released[Any]:
            def step(key: Array, level: Any, state: Any) -> Released[Any]:
                count, heard = state
                sign = 1.0 - 2.0 * (count % 2).astype(jnp.float32)

                def one(key: Array) -> Released[Array]:
                    return access.at(level).sum(key, per_record(lambda record: sign * record))

                release = one(key) if self.copies == 1 else jax.vmap(one)(jax.random.split(key, self.copies))
                return release.map(lambda value: (count + 1, heard.at[count].set(value.ravel())))

            heard = jnp.zeros((steps, self.copies * len(self.canary)))
            return world.repeat(key, self.steps, step, (jnp.int32(0), heard))

        return Subject("mutant", program, access, price(program, key_of(0), access), self.delta)

    def __call__(self, world: World) -> Verdict:
        found = self.subject(world).audit(self.runs, seed=1)
        assert found.confidence == CONFIDENCE
        return found.claimed_epsilon, found.best.epsilon


@dataclass(frozen=True)
class Reading:
    """The same with a statistic of its own. scores: of what is heard without and with it, (runs, steps, columns)."""

    listening: Listening
    scores: Callable[[Listening, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

    def __call__(self, world: World) -> Verdict:
        subject, delta = self.listening.subject(world), self.listening.delta
        many = quick_jit(jax.vmap(lambda key, access: subject.program(key, access).value[1], in_axes=(0, None)))
        keys = keys_of(1, self.listening.runs)
        out, inside = (subject.access.having([there] * subject.access.canaries) for there in (False, True))
        halves = (keys[0::2], out), (keys[1::2], inside)
        without, within = (np.asarray(many(*half), np.float64) for half in halves)
        found = bounds.bound(*self.scores(self.listening, without, within), delta, CONFIDENCE)
        return accounting.epsilon(subject.event, delta), found.epsilon


def by_sum(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first number, summed over all steps: for a person whose records a mutant has spread over several slots."""
    assert isinstance(listening.steps, int)
    signs = np.where(np.arange(listening.steps) % 2, -1.0, 1.0)
    return without[:, :, 0] @ signs, within[:, :, 0] @ signs


def by_bins(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How likely each bin of the first number is, learnt from half of the runs: for noise of any distribution."""
    del listening
    (first, without), (second, within) = (np.split(heard[:, 0, 0], 2) for heard in (without, within))
    edges = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 101)[1:-1])
    counts = [np.bincount(np.digitize(part, edges), minlength=100) for part in (first, second)]
    ratio = np.log(counts[1] + 1) - np.log(counts[0] + 1)
    return ratio[np.digitize(without, edges)], ratio[np.digitize(within, edges)]


def by_displacement(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples have room for one: the canary, if it is chosen, displaces another record, which is its opposite.

    A step is then -C if the canary was not chosen, and C if it was (0 where its slot is empty). That is twice the
    distance that a plain sample shows.
    """
    _, noise, rate, _ = listening.settings
    signs = np.where(np.arange(listening.steps) % 2, -1.0, 1.0)

    def one(heard: np.ndarray) -> np.ndarray:
        likely = [stats.norm.pdf(heard[:, :, 0] * signs * rate, centre, noise) for centre in (-1, 0, 1)]
        empty, filled = ((1 - rate) * likely[0] + rate * other for other in likely[1:])
        return np.sum(np.log(filled) - np.log(empty), axis=1)

    return one(without), one(within)


def by_counting(world: World) -> Verdict:
    """Reads the share within a limit, by which a clip is moved. The canary is outside the limit, all others within."""
    table = np.full((SLOTS, COLUMNS), 0.1, np.float32)
    table[0] = HUGE
    access, limit = world.access.of(table, world.mechanism(1.0, 2.0)), Limit(jnp.float32(1.0), SHARE)

    def release(key: Array, present: Array) -> Released[Any]:
        return replace(access, present=present).sum_within(key, each_record, limit)

    run = quick_jit(jax.vmap(lambda key, present: release(key, present).value[1], in_axes=(0, None)))
    keys = keys_of(24, 4000)
    worlds = (access.present.at[0].set(there) for there in (False, True))
    without, within = (
        -np.asarray(run(half, there)) for half, there in zip((keys[::2], keys[1::2]), worlds, strict=True)
    )
    claimed = accounting.epsilon(price(release, key_of(0), access.present), 1e-5)
    return claimed, bounds.bound(without, within, 1e-5, CONFIDENCE).epsilon


def by_patience(world: World) -> Verdict:
    """One site is clipped in every round; the sum of all rounds shows it, as what other sites take back cancels.

    The claim is of a Gaussian shift, so the bound that refutes it may assume one.
    """
    sites, rounds, noise, delta, keys = 12, 8, 6.0, 1e-5, keys_of(25, 4000)
    step, without = rounds_of(world, 0.0, sites, rounds, noise, keys[::2])
    _, within = rounds_of(world, HUGE, sites, rounds, noise, keys[1::2])
    claimed = accounting.epsilon(Repeated(step, rounds), delta)
    return claimed, bounds.bound(without[:, -1], within[:, -1], delta, CONFIDENCE, "gaussian").epsilon


LISTENING = Listening()
# Each step is a level of its own, so that a sampler knows the step.
SAMPLED = Listening((1.0, (1.0,) * 5, (0.2,) * 5), (1,) * 5, slots=10, delta=0.05)
TRUNCATED = Listening((1.0, 0.7, 0.05, 1), 16, (1.0,), others=(-1.0,), slots=100, delta=0.03)
