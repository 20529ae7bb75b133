"""All sites in one process: with messages, or, for research, as one compiled program.

`DirectTransport` is a transport to sites that are functions of a message, as over a network. Each site handles its own
key, records, store and ledger. `simulate` has no ledger and no messages: it runs the same five functions as one
program, thousands of updates a minute, and many seeds at once.

Neither reads what is in a message.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.basics.trees import Tree
from tacit.engines.schedule import Step
from tacit.federated.algorithm import Algorithm, content_for
from tacit.federated.messages import Broadcast, Refusal, Update

SiteFunction = Callable[[Broadcast], Update | Refusal]


@dataclass
class DirectTransport:
    """A transport to functions in this process. Each answers at once, in the order of asking."""

    sites: Sequence[SiteFunction]
    _answers: deque[tuple[int, Update | Refusal]] = field(init=False, default_factory=deque)

    def send(self, site: int, broadcast: Broadcast) -> None:
        """Ask a site, and keep its answer until it is received."""
        self._answers.append((site, self.sites[site](broadcast)))

    def receive(self) -> tuple[int, Update | Refusal]:
        """The first answer that was not received yet."""
        return self._answers.popleft()


# --- One program -------------------------------------------------------------------------------------------------


def stacked(accesses: Sequence[Tree]) -> Tree:
    """Many sites' records, with the sites in front; all must have the same number of slots."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *accesses)


def simulate(
    algorithm: Algorithm,
    answer: Callable[..., Tree],
    key: Array,
    accesses: Tree,
    steps: Iterable[Step],
    record: Callable[[Tree], Tree] = lambda state: (),
) -> tuple[Tree, Tree]:
    """The coordinator's last state, and `record(state)` after every step, as one compiled program.

    `answer(algorithm, kind, key, state, content, access)` is a site's step without its receipt (`site.unledgered`).
    Steps must wait for the sites they ask (`arrived` is `asked`).
    """
    state, found = simulate_many(algorithm, answer, key[None], accesses, [steps], record)
    return jax.tree.map(lambda leaf: leaf[0], (state, found))


def simulate_many(
    algorithm: Algorithm,
    answer: Callable[..., Tree],
    keys: Array,
    accesses: Tree,
    schedules: Sequence[Iterable[Step]],
    record: Callable[[Tree], Tree] = lambda state: (),
) -> tuple[Tree, Tree]:
    """`simulate` for many keys at once, each with its own schedule; what it returns has the keys in front.

    Schedules may differ in the sites they ask and in their length (for example where budgets differ), but at each step
    all must ask the same number of sites, for updates of the same kind.
    """
    lists = [list(steps) for steps in schedules]
    if len(lists) != len(keys):
        raise ValueError(f"{len(keys)} keys and {len(lists)} schedules; expected one schedule for each key")
    sites = jax.tree.leaves(accesses)[0].shape[0]
    plans = [_planned(algorithm, steps, sites) for steps in lists]
    longest = max(plans, key=len)
    visits = np.full((len(plans), len(longest), max((len(asked) for asked, _ in longest), default=1)), -1, np.int32)
    for seed, plan in enumerate(plans):
        for t, (asked, groups) in enumerate(plan):
            if groups != longest[t][1]:
                raise ValueError(f"step {t} is of another kind in schedule {seed}; simulate them one by one")
            visits[seed, t, : len(asked)] = asked
    state = algorithm.coordinator_init(sites)
    site_states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (sites, *leaf.shape)), algorithm.site_init())
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(plans), *leaf.shape)), (state, site_states))
    segments = [(groups, len(list(run))) for groups, run in groupby(longest, key=lambda planned: planned[1])]
    is_part = isinstance(keys, jax.core.Tracer)  # of a program that is compiled as a whole
    if len(segments) > 1 and not is_part:  # step by step: fewer programs to compile than one for each length
        segments = [(groups, 1) for _, groups in longest]
    records, begin = [], 0
    for groups, length in segments:
        end = begin + length
        width = sum(count for _, count in groups)
        part = jnp.asarray(visits[:, begin:end, :width])
        many, found = _segment(answer, groups, record, algorithm, keys, *many, accesses, part, jnp.int32(begin))
        records.append(found)
        begin = end
    state = _aggregated(algorithm, many[0])
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *records) if records else ()


Groups = tuple[tuple[int, int], ...]  # how many updates of each kind a step asks for, by kind


def _planned(algorithm: Algorithm, steps: list[Step], sites: int) -> list[tuple[list[int], Groups]]:
    """For each step: the sites it asks, ordered by kind, and how many of each kind."""
    counts, plan = [0] * sites, []
    for step in steps:
        if step.asked != step.arrived:
            raise ValueError("a schedule whose answers arrive late cannot be simulated as one program; use run")
        kinds = sorted((algorithm.kind(counts[site]), site) for site in step.asked)
        for site in step.asked:
            counts[site] += 1
        groups = tuple((kind, len(list(run))) for kind, run in groupby(kind for kind, _ in kinds))
        plan.append(([site for _, site in kinds], groups))
    return plan


@jax.jit
def _aggregated(algorithm: Algorithm, states: Tree) -> Tree:
    return jax.vmap(lambda state: algorithm.broadcast(state)[0])(states)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _segment(
    answer: Callable[..., Tree],
    groups: Groups,
    record: Callable[[Tree], Tree],
    algorithm: Algorithm,
    keys: Array,
    states: Tree,
    site_states: Tree,
    accesses: Tree,
    visits: Array,
    first: Array,
) -> tuple[tuple[Tree, Tree], Tree]:
    """Run consecutive steps that ask the same number of sites for updates of the same kinds, for all keys."""

    def one(key: Array, state: Tree, site_states: Tree, visits: Array) -> tuple[tuple[Tree, Tree], Tree]:
        def body(carry: tuple[Tree, Tree], now: tuple[Array, Array]) -> tuple[tuple[Tree, Tree], Tree]:
            (state, site_states), (t, asked) = carry, now
            if not groups:  # all sites are away
                return carry, record(algorithm.broadcast(state)[0])
            aggregated, content = algorithm.broadcast(state)
            step_key = jax.random.fold_in(key, t)

            def visit(site: Array, kind: int) -> Tree:
                mine = jax.tree.map(lambda leaf: leaf[site], (site_states, accesses))
                sent = content_for(algorithm, content, site)
                return answer(algorithm, kind, jax.random.fold_in(step_key, site), mine[0], sent, mine[1])

            parts, begin = [], 0
            for kind, count in groups:
                parts.append(lax.map(partial(visit, kind=kind), asked[begin : begin + count]))
                begin += count
            new = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
            answers = jax.vmap(algorithm.answer)(new)
            after = algorithm.coordinator_step(aggregated, asked, answers)
            moved = jax.tree.map(lambda all, leaf: all.at[asked].set(leaf), site_states, new)
            # A schedule that has ended asks site -1: nothing happens.
            carry = jax.tree.map(partial(jnp.where, asked[0] >= 0), (after, moved), carry)
            return carry, record(algorithm.broadcast(carry[0])[0])

        times = first + jnp.arange(visits.shape[0], dtype=jnp.int32)
        return lax.scan(body, (state, site_states), (times, visits))

    return jax.vmap(one, (0, 0, 0, 0))(keys, states, site_states, visits)
