"""The coordinator's side of a run: which sites to ask, which answers to take in, which sites to leave out.

A `Transport` moves the messages: over a network, or to functions in this process (`local.DirectTransport`). `run` asks
as a schedule says and waits; `run_free` lets every site answer when it is ready. Neither reads what is in a message.

| outcome of an ask                | consequence for the site                                                          |
|----------------------------------|-----------------------------------------------------------------------------------|
| an update that fits              | it replaces the site's answer before                                              |
| a refusal, or no valid answer    | once: it is asked again at its next turn; twice in a row: it is left out          |
| nothing: the site is away        | its last answer stays, and it is asked again                                      |
| an answer to something else      | it is not taken in, so no answer counts twice; in place of a reply it is a fault  |
| the site withdraws               | its answer is taken out, and it is not asked any more                             |

No site can stop a run, and none can change what another sent. A transport that raises is a bug and stops the run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.engines.schedule import Step
from tacit.federated.algorithm import Algorithm, content_for
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree

WITHDRAWN = "withdrawn on request"


@dataclass(frozen=True)
class Away:
    """A site did not answer: it is not connected, or did not answer in time."""

    reason: str


@dataclass(frozen=True)
class Fault:
    """A site sent no valid answer: it is malformed, too large, or not to what was asked."""

    reason: str


Answer = Update | Refusal | Away | Fault


class Deserted(Exception):
    """No site is there to ask, so rounds would pass for nothing. Resume the run later, from what was stored."""


class Transport(Protocol):
    """Moves messages between a coordinator and its sites, which have numbers from 0 on."""

    def send(self, site: int, broadcast: Broadcast) -> None:
        """Send a broadcast, without waiting for the answer."""
        ...

    def receive(self) -> tuple[int, Answer]:
        """Wait until something comes from a site; return which site, and what.

        Each broadcast that was sent gets exactly one reply in the end: the site's, `Away` or `Fault`. A reply of
        another round is then a fault. A transport whose `repeats` is true may also deliver late and repeated answers:
        those of older rounds are skipped, and the reply is waited for.
        """
        ...


@dataclass
class Progress:
    """The progress of a run: the coordinator's state, the next round, pending answers, and sites that refused and why.

    missed: sites without a valid answer when they were last asked; refused: those that are not asked any more; away:
    those that could not be reached when they were last asked. asked: in a free run, the round that each site still has
    to answer.
    """

    state: Tree
    position: int = 0
    pending: dict[int, Tree] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    missed: dict[int, str] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)  # the last round that each site answered
    communications: int = 0
    away: dict[int, str] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)  # how many updates of each site were taken in

    def to_bytes(self) -> bytes:
        """The progress as bytes, to be stored."""
        return encode_tree(
            {
                "state": _leaves(self.state),
                "place": np.array([self.position, self.communications], np.int64),
                "pending": {str(site): content for site, content in self.pending.items()},
                **{name: _letters(getattr(self, name)) for name in ("refused", "missed", "away")},
                **{name: _pairs(getattr(self, name)) for name in ("answered", "asked", "taken")},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, algorithm: Algorithm, sites: int) -> "Progress":
        """The progress that was stored, for the same algorithm."""
        try:
            found = {"away": {}, "asked": (), "taken": ()} | decode_tree(data)  # older formats lack these
            state = _restored(algorithm.coordinator_init(sites), found["state"])
            position, communications = (int(number) for number in found["place"])
            refused, missed, away = (_reasons(found[name]) for name in ("refused", "missed", "away"))
            pending = {int(site): content for site, content in found["pending"].items()}
            answered, asked, taken = (_numbers(found[name]) for name in ("answered", "asked", "taken"))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the stored data is not a run's progress ({error!r}); begin the run anew") from None
        return cls(state, position, pending, refused, missed, answered, communications, away, asked, taken)


def answered_in(data: bytes) -> dict[int, tuple[int, int]]:
    """For each site, from a stored progress: its last answered round, and how many of its answers were taken in."""
    try:
        found = {"taken": ()} | decode_tree(data)
        answered, taken = _numbers(found["answered"]), _numbers(found["taken"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the stored data is not a run's progress ({error!r}); begin the run anew") from None
    return {site: (round, taken.get(site, 0)) for site, round in answered.items()}


def is_deserted(now: Progress, sites: int) -> bool:
    """Whether all sites that are still asked are away."""
    left = set(range(sites)) - set(now.refused)
    return bool(left) and left <= set(now.away)


def catch_up(now: Progress, lasts: Mapping[int, int], total: int, *, is_free: bool) -> None:
    """Advance to the rounds that sites report, if they are further: a coordinator's state can be lost or old.

    lasts: the last round that each site answered; total: the plan's number of answers in a free run, else its steps.
    A site that is asked for its last round sends its factor again, from its store. Sites may lie: a number beyond the
    plan is ignored, and a step counts only if half of the sites have reached it.
    """
    if is_free:
        known = {site: round for site, round in lasts.items() if 0 <= round <= 4 * total}
        if now.position == 0:
            now.asked |= known
        now.position = max([now.position, *(round + 1 for round in known.values())])
        return
    reached = sorted(lasts.values())
    if reached:
        now.position = max(now.position, min(reached[(len(reached) - 1) // 2], total - 1))


def run(
    algorithm: Algorithm,
    transport: Transport,
    sites: int,
    steps: Iterable[Step],
    study: str,
    *,
    limits: Sequence[Tree] | None = None,
    progress: Progress | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    withdrawn: Callable[[], Collection[int]] = lambda: (),
) -> Progress:
    """Ask, wait and aggregate, as `steps` say; the number of a step is its round.

    A step ends when every site it asks has answered or is away. Answers count in the order of `arrived`, so the order
    in which they come does not matter.

    A site that refuses twice in a row is left out from then on; a single refusal may be a round that it lost in a
    crash. An answer that does not fit, is not finite or is larger than `limits` counts as a refusal. limits: for each
    site, the largest norm of each array of its answer. observe: called after every step, for example to store the
    progress: a run that was stopped resumes from there, and sites answer a repeated round from their store. withdrawn:
    the sites that have withdrawn by now.
    """
    now = progress or Progress(algorithm.coordinator_init(sites))
    desk = _Desk(algorithm, transport, study, limits, withdrawn, now)
    for position, step in enumerate(steps):
        if position < now.position:
            continue
        desk.let_go()
        asked = {site: position for site in step.asked if site not in now.refused}
        if asked:
            desk.send(asked)
            answers: dict[int, Answer] = {}
            while left := {site: position for site in asked if site not in answers}:
                site, answer = desk.hear(left, left)
                answers[site] = answer
            desk.let_go()
            for site in asked:
                if site not in now.refused:
                    desk.note(site, position, answers[site])
        desk.take([site for site in step.arrived if site in now.pending])
        now.position = position + 1
        observe(now)
        if len(now.refused) == sites:
            break
    if desk.let_go():
        observe(now)
    now.state, _ = aggregate(algorithm, now.state)
    return now


def run_free(
    algorithm: Algorithm,
    transport: Transport,
    sites: int,
    updates: int,
    study: str,
    *,
    limits: Sequence[Tree] | None = None,
    progress: Progress | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    withdrawn: Callable[[], Collection[int]] = lambda: (),
) -> Progress:
    """Let every site answer when it is ready: take in each answer alone, and send that site the new posterior at once.

    Each site makes at most `updates` updates. Rounds are numbered over all sites, so that they grow for each site.
    `observe` is called before the rounds in `asked` are sent: a run that resumes after a stop asks the same rounds
    again, and a site that answered one already answers from its store.

    A site that is away keeps its round, and is asked again whenever another site has answered. The run ends when every
    site is done, left out or away. Everything else is as in `run`.
    """
    now = progress or Progress(algorithm.coordinator_init(sites))
    desk = _Desk(algorithm, transport, study, limits, withdrawn, now)
    under_way: set[int] = set()
    again = set(now.away)
    while True:
        desk.let_go()
        for site in range(sites):
            is_done = site in now.refused or now.taken.get(site, 0) >= updates
            if not is_done and site not in now.asked:
                now.asked[site] = now.position
                now.position += 1
        due = {
            site: round
            for site, round in now.asked.items()
            if site not in under_way and (site in again or site not in now.away)
        }
        observe(now)
        desk.send(due)
        under_way = (under_way | set(due)) & set(now.asked)
        again = set()
        if not under_way:
            break
        site, answer = desk.hear(now.asked, under_way)
        under_way.discard(site)
        desk.let_go()
        if site not in now.asked:  # the site has withdrawn meanwhile
            continue
        round = now.asked[site]
        if not isinstance(answer, Away):
            del now.asked[site]
            again = set(now.away) - {site}
        desk.note(site, round, answer)
        desk.take([site for site in (site,) if site in now.pending])
    now.state, _ = aggregate(algorithm, now.state)
    return now


def withdraw(algorithm: Algorithm, state: Tree, site: int) -> Tree:
    """The coordinator's state with a site's answer replaced by that of a site that was never asked.

    In a product of factors, this divides out the site's factor.
    """
    empty = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], algorithm.answer(algorithm.site_init()))
    return _take(algorithm, state, jnp.asarray([site], jnp.int32), empty)


def let_go(algorithm: Algorithm, now: Progress, withdrawn: Collection[int]) -> bool:
    """Take out the answers of withdrawn sites, and ask them no more; return whether there were any new ones."""
    new = sorted(site for site in set(withdrawn) if now.refused.get(site) != WITHDRAWN)
    for site in new:
        now.state = withdraw(algorithm, now.state, site)
        for noted in (now.pending, now.missed, now.away, now.asked):
            noted.pop(site, None)
        now.refused[site] = WITHDRAWN
    return bool(new)


# Functions of the module, with the algorithm as an argument: a second run of the same algorithm compiles nothing.


@jax.jit
def aggregate(algorithm: Algorithm, state: Tree) -> tuple[Tree, Tree]:
    """The coordinator's state with all arrived answers aggregated, and what it sends next."""
    return algorithm.broadcast(state)


@jax.jit
def _take(algorithm: Algorithm, state: Tree, sites: Array, answers: Tree) -> Tree:
    return algorithm.coordinator_step(state, sites, answers)


class _Desk:
    """Sends, receives and checks a run's messages, and records the outcomes in its `Progress`."""

    def __init__(
        self,
        algorithm: Algorithm,
        transport: Transport,
        study: str,
        limits: Sequence[Tree] | None,
        withdrawn: Callable[[], Collection[int]],
        now: Progress,
    ) -> None:
        self.algorithm, self.transport, self.study = algorithm, transport, study
        self.repeats = getattr(transport, "repeats", False)
        self.limits, self.withdrawn, self.now = limits, withdrawn, now
        self.shape = jax.eval_shape(algorithm.answer, jax.eval_shape(algorithm.site_init))

    def let_go(self) -> bool:
        return let_go(self.algorithm, self.now, self.withdrawn())

    def send(self, rounds: Mapping[int, int]) -> None:
        """Send each of these sites what was aggregated, or its own part of it, as its round."""
        if not rounds:
            return
        self.now.state, content = aggregate(self.algorithm, self.now.state)
        plain = jax.tree.map(np.asarray, content)
        for site, round in rounds.items():
            self.transport.send(site, Broadcast(self.study, round, content_for(self.algorithm, plain, site)))

    def hear(self, owed: Mapping[int, int], under_way: Collection[int]) -> tuple[int, Answer]:
        """The next answer to a round that is still owed. owed: by site; under_way: the sites being asked now."""
        while True:
            site, answer = self.transport.receive()
            if site not in owed:
                continue
            if isinstance(answer, Update | Refusal):
                if (answer.study, answer.round) == (self.study, owed[site]):
                    return site, answer
                if self.repeats and answer.study == self.study and answer.round < owed[site]:
                    continue
            if site in under_way:
                return site, answer

    def note(self, site: int, round: int, answer: Answer) -> None:
        """Record the outcome of an ask."""
        now = self.now
        if isinstance(answer, Away):
            now.away[site] = answer.reason
            return
        now.away.pop(site, None)
        if isinstance(answer, Update):
            reason = self._fault(site, round, answer)
            if not reason:
                now.pending[site], now.answered[site] = answer.content, round
                now.missed.pop(site, None)
                return
        else:
            reason = answer.reason
        again = now.refused if site in now.missed else now.missed
        again[site] = reason

    def take(self, sites: list[int]) -> None:
        """Take in the answers of these sites."""
        if not sites:
            return
        now = self.now
        contents = [now.pending.pop(site) for site in sites]
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *contents)
        now.state = _take(self.algorithm, now.state, jnp.asarray(sites, jnp.int32), stacked)
        now.communications += len(sites)
        for site in sites:
            now.taken[site] = now.taken.get(site, 0) + 1

    def _fault(self, site: int, round: int, answer: Update) -> str:
        """What is wrong with an answer; "" if nothing is."""
        if fault := _mismatch(answer, self.study, round):
            return fault
        same = jax.tree.structure(answer.content) == jax.tree.structure(self.shape)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(answer.content)]
        if not same or [(a.shape, a.dtype) for a in leaves] != [
            (a.shape, a.dtype) for a in jax.tree.leaves(self.shape)
        ]:
            return "its answer has another shape or type than the study's"
        if not all(np.all(np.isfinite(leaf)) for leaf in leaves):
            return "its answer is not finite"
        if self.limits is not None:
            pairs = zip(leaves, jax.tree.leaves(self.limits[site]), strict=True)
            if any(np.linalg.norm(np.ravel(leaf).astype(float)) > limit for leaf, limit in pairs):
                return "its answer is larger than the study allows"
        return ""


def _mismatch(answer: Update | Refusal, study: str, round: int) -> str:
    if (answer.study, answer.round) == (study, round):
        return ""
    return f"it answered round {answer.round} of {answer.study}, not round {round} of {study}"


# --- As bytes ----------------------------------------------------------------------------------------------------


def _letters(reasons: Mapping[int, str]) -> dict[str, np.ndarray]:
    return {str(site): np.array([ord(letter) for letter in why], np.int32) for site, why in reasons.items()}


def _reasons(letters: Mapping[str, Any]) -> dict[int, str]:
    return {int(site): "".join(map(chr, why)) for site, why in letters.items()}


def _pairs(numbers: Mapping[int, int]) -> np.ndarray:
    return np.array(list(numbers.items()), np.int64).reshape(-1, 2)


def _numbers(pairs: Any) -> dict[int, int]:
    return {int(site): int(number) for site, number in pairs}


def _leaves(tree: Tree) -> Mapping[str, Any]:
    return {f"{place:04d}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def _restored(like: Tree, leaves: Mapping[str, Any]) -> Tree:
    expected = jax.tree.leaves(like)
    if len(expected) != len(leaves) or any(
        np.shape(a) != np.shape(b) for a, b in zip(expected, leaves.values(), strict=True)
    ):
        raise ValueError("the stored progress is of another study; begin the run anew")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves.values()])
