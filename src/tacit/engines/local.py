"""All sites in one process: messages between them, or, for research, one compiled program.

`run` moves messages between a coordinator and sites that are functions of a message, as over a network; what a site
does with its key, records, store and ledger is its own business. `simulate` has no ledger and no messages: it runs the
same five functions as one program, thousands of updates a minute, and many seeds at once.

Neither knows what is in a message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.engines.schedule import Step
from tacit.federated.algorithm import Algorithm
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree

Tree = Any
Site = Callable[[Broadcast], Update | Refusal]


@dataclass
class Progress:
    """Where a run is: the coordinator's state, the next step, answers on their way, and sites that refused and why.

    missed: sites that did not answer when they were last asked; refused: those that are not asked any more.
    """

    state: Tree
    position: int = 0
    pending: dict[int, Tree] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    missed: dict[int, str] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)  # the last round that each site answered
    communications: int = 0

    def to_bytes(self) -> bytes:
        """The progress, to be stored."""
        return encode_tree(
            {
                "state": _leaves(self.state),
                "place": np.array([self.position, self.communications], np.int64),
                "pending": {str(site): content for site, content in self.pending.items()},
                "refused": {str(site): _letters(why) for site, why in self.refused.items()},
                "missed": {str(site): _letters(why) for site, why in self.missed.items()},
                "answered": np.array(list(self.answered.items()), np.int64).reshape(-1, 2),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, algorithm: Algorithm, sites: int) -> "Progress":
        """The progress that was stored, of the same algorithm."""
        try:
            found = decode_tree(data)
            state = _restored(algorithm.coordinator_init(sites), found["state"])
            position, communications = (int(number) for number in found["place"])
            refused, missed = (_reasons(found[name]) for name in ("refused", "missed"))
            pending = {int(site): content for site, content in found["pending"].items()}
            answered = {int(site): int(round) for site, round in found["answered"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"what was stored is not a run's progress ({error!r}); begin it anew") from None
        return cls(state, position, pending, refused, missed, answered, communications)


def run(
    algorithm: Algorithm,
    sites: Sequence[Site],
    steps: Iterable[Step],
    study: str,
    *,
    progress: Progress | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Ask, wait and settle, as `steps` say; the number of a step is its round.

    A site that refuses twice in a row is left out from then on; once may be a round that it lost in a crash. An answer
    that does not fit, is not finite or is of an old round counts as a refusal. `observe` is called after every step,
    such as to store the progress: a run that was stopped goes on from there, and sites answer a round they are asked
    again from their store.
    """
    now = progress or Progress(algorithm.coordinator_init(len(sites)))
    shape = jax.eval_shape(algorithm.answer, jax.eval_shape(algorithm.site_init))
    for position, step in enumerate(steps):
        if position < now.position:
            continue
        asked = [site for site in step.asked if site not in now.refused]
        if asked:
            now.state, content = settle(algorithm, now.state)
            broadcast = Broadcast(study, position, jax.tree.map(np.asarray, content))
            for site in asked:
                answer = sites[site](broadcast)
                reason = _fault(answer, study, position, now.answered.get(site, -1), shape)
                if isinstance(answer, Refusal) or reason:
                    again = now.refused if site in now.missed else now.missed
                    again[site] = answer.reason if isinstance(answer, Refusal) else reason
                else:
                    now.pending[site], now.answered[site] = answer.content, position
                    now.missed.pop(site, None)
        arrived = [site for site in step.arrived if site in now.pending]
        if arrived:
            contents = [now.pending.pop(site) for site in arrived]
            stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *contents)
            now.state = _take(algorithm, now.state, jnp.asarray(arrived, jnp.int32), stacked)
            now.communications += len(arrived)
        now.position = position + 1
        observe(now)
        if len(now.refused) == len(sites):
            break
    now.state, _ = settle(algorithm, now.state)
    return now


# Of the module, with the algorithm as an argument: a second run of the same algorithm compiles nothing.


@jax.jit
def settle(algorithm: Algorithm, state: Tree) -> tuple[Tree, Tree]:
    """The coordinator's state with all settled that has arrived, and what it sends next."""
    return algorithm.broadcast(state)


@jax.jit
def _take(algorithm: Algorithm, state: Tree, sites: Array, answers: Tree) -> Tree:
    return algorithm.coordinator_step(state, sites, answers)


def _fault(answer: Update | Refusal, study: str, round: int, last: int, shape: Tree) -> str:
    """What is wrong with an answer, or nothing. No site can stop a study or slip in another's."""
    if (answer.study, answer.round) != (study, round) or round <= last:
        return f"it answered round {answer.round} of {answer.study}, not round {round} of {study}"
    if isinstance(answer, Refusal):
        return ""
    same = jax.tree.structure(answer.content) == jax.tree.structure(shape)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(answer.content)]
    if not same or [(a.shape, a.dtype) for a in leaves] != [(a.shape, a.dtype) for a in jax.tree.leaves(shape)]:
        return "its answer has another shape or type than the study's"
    return "" if all(np.all(np.isfinite(leaf)) for leaf in leaves) else "its answer is not finite"


def _reasons(letters: Mapping[str, Any]) -> dict[int, str]:
    return {int(site): "".join(map(chr, why)) for site, why in letters.items()}


def _letters(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], np.int32)


def _leaves(tree: Tree) -> Mapping[str, Any]:
    return {f"{place:04d}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def _restored(like: Tree, leaves: Mapping[str, Any]) -> Tree:
    expected = jax.tree.leaves(like)
    if len(expected) != len(leaves) or any(
        np.shape(a) != np.shape(b) for a, b in zip(expected, leaves.values(), strict=True)
    ):
        raise ValueError("what was stored is of another study; begin it anew")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves.values()])


# --- One program -------------------------------------------------------------------------------------------------


def stacked(accesses: Sequence[Tree]) -> Tree:
    """Many sites' records with the sites in front; all must have the same number of places."""
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
    """`simulate` for many keys at once, each with a schedule of its own; the keys are in front of what it returns.

    Schedules may differ in whom they ask and in their length (such as where budgets differ), but at each step all must
    ask as many sites, for updates of the same kind.
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
    if len(segments) > 1:  # step by step: fewer programs to compile than one for each length
        segments = [(groups, 1) for _, groups in longest]
    records, begin = [], 0
    for groups, length in segments:
        end = begin + length
        width = sum(count for _, count in groups)
        part = jnp.asarray(visits[:, begin:end, :width])
        many, found = _segment(answer, groups, record, algorithm, keys, *many, accesses, part, jnp.int32(begin))
        records.append(found)
        begin = end
    state = _settled(algorithm, many[0])
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *records) if records else ()


Groups = tuple[tuple[int, int], ...]  # how many updates of each kind a step asks for, by kind


def _planned(algorithm: Algorithm, steps: list[Step], sites: int) -> list[tuple[list[int], Groups]]:
    """For each step: whom it asks, ordered by kind, and how many of each kind."""
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
def _settled(algorithm: Algorithm, states: Tree) -> Tree:
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
    """Consecutive steps that ask as many sites for updates of the same kinds, for all keys."""

    def one(key: Array, state: Tree, site_states: Tree, visits: Array) -> tuple[tuple[Tree, Tree], Tree]:
        def body(carry: tuple[Tree, Tree], now: tuple[Array, Array]) -> tuple[tuple[Tree, Tree], Tree]:
            (state, site_states), (t, asked) = carry, now
            if not groups:  # everybody is away
                return carry, record(algorithm.broadcast(state)[0])
            settled, content = algorithm.broadcast(state)
            step_key = jax.random.fold_in(key, t)

            def visit(site: Array, kind: int) -> Tree:
                mine = jax.tree.map(lambda leaf: leaf[site], (site_states, accesses))
                return answer(algorithm, kind, jax.random.fold_in(step_key, site), mine[0], content, mine[1])

            parts, begin = [], 0
            for kind, count in groups:
                parts.append(lax.map(partial(visit, kind=kind), asked[begin : begin + count]))
                begin += count
            new = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
            answers = jax.vmap(algorithm.answer)(new)
            after = algorithm.coordinator_step(settled, asked, answers)
            moved = jax.tree.map(lambda all, leaf: all.at[asked].set(leaf), site_states, new)
            # A schedule that has ended asks site -1: nothing happens.
            carry = jax.tree.map(partial(jnp.where, asked[0] >= 0), (after, moved), carry)
            return carry, record(algorithm.broadcast(carry[0])[0])

        times = first + jnp.arange(visits.shape[0], dtype=jnp.int32)
        return lax.scan(body, (state, site_states), (times, visits))

    return jax.vmap(one, (0, 0, 0, 0))(keys, states, site_states, visits)
