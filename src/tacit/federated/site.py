"""A site: the one place where an update is made, behind its key, records, store and ledger.

What happens to a broadcast, in this order (docs/privacy.md):

1. A round that was answered is answered again from the store; nothing is run and nothing is charged.
2. The broadcast must be of this study, of a later round, of the right shape, finite and proper. No number in it enters
   the accounting: the plan is the site's own, and so is how many updates there are.
3. The update is priced by shapes, before a record is read.
4. Room for the store is set aside. Where there is none, such as on a full disk, the round is refused here.
5. The price is charged to the ledger, durably, or the round is refused.
6. The update is made. Its receipt must equal its price.
7. State and answer are stored, durably. Only then the answer is sent.

A crash between 5 and 7 leaves a round that is charged and not answered. It is not run again: asked once more, the site
says that the round is lost, and goes on with the next one. So a crash counts at most one update too many.
"""

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.families import Family, FullGaussian, is_proper
from tacit.federated.algorithm import Algorithm
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree
from tacit.privacy.events import Event
from tacit.privacy.ledger import Allowance, AlreadyCharged, BudgetExceeded, Entry, Ledger, Unwritable
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import is_secure
from tacit.privacy.released import Released, price

Tree = Any
SEEDED = "noise from a seed: no guarantee against those who know it"  # a note in the ledger
BLOCK = 4096  # bytes, of most disks: what a store may be longer than was reckoned
# Refusals leave the site: no paths and no sizes in them.
NO_ROOM = (
    "the site cannot store an answer, so nothing was charged or read; make room on its disk and its folder writable"
)
NO_LEDGER = (
    "the site's ledger cannot be written now, so nothing was read; make room on its disk and end who else holds it"
)
NO_BUDGET = "what is left of the site's budget does not pay for this update; end the study here"
NOT_STORED = (
    "this round was charged and its answer could not be stored; make room on the disk and go on with a later round"
)


@dataclass(frozen=True)
class Trace:
    """Answered rounds of a study, as something other than a ledger has kept them.

    rounds: those that are known by number; count: how many there were at least; where: who says so.
    """

    study: str
    rounds: frozenset[int]
    count: int
    where: str


def check_complete(path: Path, entries: Iterable[Entry] | None, traces: Iterable[Trace]) -> None:
    """Refuse a ledger that lacks a round which was answered. Call it before anything is read or charged.

    An answer is made after its charge, so such a ledger was deleted and made anew, or is an older copy: it has
    forgotten what was spent. entries: of the ledger at `path`; None where it is gone.
    """
    charged = {(entry.study, entry.round) for entry in entries or ()}
    counts = Counter(study for study, _ in charged)
    for trace in traces:
        lost = sorted(round for round in trace.rounds if (trace.study, round) not in charged)
        if not lost and counts[trace.study] >= trace.count:
            continue
        what = f"round {lost[0]}" if lost else f"all of {trace.count} rounds"
        what += f" of {trace.study}, answered by {trace.where}"
        if entries is None:
            raise ValueError(f"ledger={path} is gone and had {what}; go back to a copy that has them all")
        raise ValueError(
            f"ledger={path} does not have {what}; an older copy was put back or it was made anew, so go back to a "
            "newer one"
        )


def trace_of(store: Path, name: str, studies: Iterable[str]) -> Trace | None:
    """What a site's store says was answered; None if it cannot be read. studies: of which one is the store's."""
    try:
        found = decode_tree(store.read_bytes())
        round, count = (int(number) for number in found["place"])
        owner = found["owner"]
    except (OSError, KeyError, TypeError, AttributeError, ValueError):
        return None
    own = (study for study in studies if np.array_equal(owner, _words(study, name).astype(np.int64)))
    return Trace(next(own, "a study that it does not know"), frozenset([round]), count, store.name)


@dataclass
class Site:
    """`site(broadcast)`: the answer, or a refusal with its reason.

    access: the records, behind the site's own mechanism. ledger: of the data set's budget; `None` is for records that
    are public or made up, and charges nothing. store: a file beside the data, which must belong to this study alone.
    key: of its own for each process, from `secure_key()`. Studies, sites and rounds that share one do not share noise.
    most: how many updates the plan has, after which the site makes no more. tells_spent: whether a refusal for want of
    budget says what is spent. prepare: called when a broadcast is known to be sound, before anything is charged; an
    OSError refuses the round.
    """

    name: str
    study: str
    algorithm: Algorithm
    access: Access
    key: Array
    ledger: Ledger | Allowance | None
    store: Path | None = None
    most: int | None = None
    tells_spent: bool = True
    prepare: Callable[[], None] = lambda: None
    _state: Tree = field(init=False)
    _answered: Update | None = field(init=False, default=None)
    _count: int = field(init=False, default=0)
    _prices: dict[int, Event] = field(init=False, default_factory=dict)
    _room: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        Refusal(self.study, self.name, 0, "names that no message can carry are refused here, before a charge")
        self._state = self.algorithm.site_init()
        self._expected = _form(jax.eval_shape(lambda: self.algorithm.broadcast(self.algorithm.coordinator_init(1))[1]))
        if self.store is not None and self.store.exists():
            self._restore(self.store.read_bytes())
            trace = trace_of(self.store, self.name, [self.study])
            if self.ledger is not None and trace is not None:
                check_complete(self.ledger.path, self.ledger.entries(), [trace])

    @property
    def updates(self) -> int:
        """How many updates this site has made."""
        return self._count

    @property
    def last_round(self) -> int:
        """The last round that was answered; -1 if none was."""
        return -1 if self._answered is None else self._answered.round

    def __call__(self, broadcast: Broadcast) -> Update | Refusal:
        last = self._answered
        if last is not None and (broadcast.study, broadcast.round) == (self.study, last.round):
            return last
        fault = self._fault(broadcast)
        if fault:
            return self._refuse(broadcast, fault)
        kind = self.algorithm.kind(self._count)
        content = jax.tree.map(jnp.asarray, broadcast.content)
        key = _own_key(self.key, _words(self.study, self.name, str(broadcast.round)))
        step = partial(_step, self.algorithm, kind)
        if kind not in self._prices:  # by shapes alone, and those of a broadcast have been checked
            self._prices[kind] = price(step, key, self._state, content, self.access)
        promised = self._prices[kind]
        try:
            self.prepare()
            self._reserve()
        except OSError:
            return self._refuse(broadcast, NO_ROOM)
        if self.ledger is not None:
            try:
                note = "" if is_secure(self.key) else SEEDED
                self.ledger.charge(promised, study=self.study, round=broadcast.round, note=note)
            except BudgetExceeded as error:
                return self._refuse(broadcast, str(error) if self.tells_spent else NO_BUDGET)
            except AlreadyCharged:
                return self._refuse(broadcast, "this round was charged and its answer lost; go on with a later round")
            except (Unwritable, OSError):
                return self._refuse(broadcast, NO_LEDGER)
        release = step(key, self._state, content, self.access)
        if release.event != promised:
            raise RuntimeError("the receipt is not the price: this is a bug in tacit; nothing was sent")
        # A result that is not finite is dropped: a decision about released numbers, so it costs nothing.
        finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(release.value))
        state = release.value if finite else self._state
        answer = jax.tree.map(np.asarray, self.algorithm.answer(state))
        update = Update(self.study, self.name, broadcast.round, answer)
        if self.store is not None:
            try:
                _write(self.store, self._stored(state, update))
            except OSError:
                return self._refuse(broadcast, NOT_STORED)
        self._state, self._count, self._answered = state, self._count + 1, update
        return update

    def _refuse(self, broadcast: Broadcast, reason: str) -> Refusal:
        if self.store is not None:  # no room is needed for a refusal
            with suppress(OSError):
                _beside(self.store).unlink(missing_ok=True)
        return Refusal(broadcast.study, self.name, broadcast.round, reason)

    def _fault(self, broadcast: Broadcast) -> str:
        """Why this broadcast is not answered, or nothing."""
        if broadcast.study != self.study:
            return f"study={broadcast.study!r}; this site takes part in {self.study!r} only"
        if self._answered is not None and broadcast.round < self._answered.round:
            return f"round={broadcast.round} is before round {self._answered.round}, which was answered; ask later ones"
        if _form(broadcast.content) != self._expected:
            return "the broadcast has another shape than this site's plan; use the same study file"
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(broadcast.content)):
            return "the broadcast is not finite; begin the study anew"
        if not _is_proper(broadcast.content):
            return "the posterior that was sent is not proper; begin the study anew"
        if self.most is not None and self._count >= self.most:
            return f"the plan has {self.most} updates, and all were made; end the study here"
        return ""

    # --- What survives -------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        """Set aside what the next answer needs on the disk: an OSError now, and not after a charge."""
        if self.store is None:
            return
        if self._room is None:  # shapes do not change
            answer = jax.tree.map(np.asarray, self.algorithm.answer(self._state))
            self._room = len(self._stored(self._state, Update(self.study, self.name, 0, answer))) + BLOCK
        _reserve(self.store, self._room)

    def _stored(self, state: Tree, update: Update) -> bytes:
        return encode_tree(
            {
                "answer": update.content,
                "state": {f"{j:04d}": np.asarray(leaf) for j, leaf in enumerate(jax.tree.leaves(state))},
                "place": np.array([update.round, self._count + 1], np.int64),
                "owner": self._owner(),
            }
        )

    def _owner(self) -> np.ndarray:
        return _words(self.study, self.name).astype(np.int64)

    def _restore(self, data: bytes) -> None:
        try:
            found = decode_tree(data)
            leaves = list(found["state"].values())
            round, count = (int(number) for number in found["place"])
            answer, owner = found["answer"], found["owner"]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"store={self.store} cannot be read ({error}); go back to a sound copy") from None
        like = jax.tree.leaves(self._state)
        same = np.array_equal(owner, self._owner())
        if not same or [np.shape(leaf) for leaf in like] != [np.shape(leaf) for leaf in leaves]:
            raise ValueError(f"store={self.store} is of another study or site; give this one a folder of its own")
        self._state = jax.tree.unflatten(jax.tree.structure(self._state), [jnp.asarray(leaf) for leaf in leaves])
        self._count, self._answered = count, Update(self.study, self.name, round, answer)


@partial(jax.jit, static_argnums=1)
def _step(algorithm: Algorithm, kind: int, key: Array, state: Tree, content: Tree, access: Access) -> Released[Tree]:
    return algorithm.site_step(key, state, content, access, kind)


def unledgered(algorithm: Algorithm, kind: int, key: Array, state: Tree, content: Tree, access: Access) -> Tree:
    """A site's step without its receipt, for simulations on public or made-up records; price it beforehand."""
    new = algorithm.site_step(key, state, content, access, kind).value
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
    return jax.tree.map(partial(jnp.where, finite), new, state)  # as a site does


def _words(*names: str) -> np.ndarray:
    """Eight 32-bit words that stand for these names; no name holds the separator, which is not printable."""
    return np.frombuffer(hashlib.sha256("\0".join(names).encode()).digest(), "<u4")


@jax.jit
def _own_key(key: Array, words: Array) -> Array:
    """The key of whatever the words stand for."""
    return lax.scan(lambda key, word: (jax.random.fold_in(key, word), None), key, words)[0]


def _form(tree: Tree) -> Any:
    """Structure, shapes and types of a tree's arrays."""
    leaves = jax.tree.leaves(tree)
    return jax.tree.structure(tree), [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _is_proper(content: Tree) -> bool:
    """Whether every family in a content, which is finite, can be normalised."""

    def one(part: Any) -> bool:
        if isinstance(part, FullGaussian):  # by numpy: a coordinator's q comes every round, and this is much quicker
            precision = np.asarray(part.precision, float)
            return bool(np.linalg.eigvalsh((precision + precision.T) / 2)[0] > 0)
        return not isinstance(part, Family) or bool(is_proper(jax.tree.map(jnp.asarray, part)))

    return all(map(one, jax.tree.leaves(content, is_leaf=lambda part: isinstance(part, Family))))


def _beside(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".new")


def _reserve(path: Path, size: int) -> None:
    """Blocks of the disk for what `_write` will write."""
    with _beside(path).open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            try:
                return os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # what some file systems say to all such calls
                    raise
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, data: bytes) -> None:
    """All or nothing, and there after a loss of power. What was set aside is written over, not given back first."""
    new = _beside(path)
    with new.open("r+b" if new.exists() else "wb") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
