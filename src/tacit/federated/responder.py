"""A site: makes updates, with its own key, records, store and ledger.

It handles a broadcast in this order (docs/privacy.md):

1. A round that was answered is answered again from the store; nothing is run and nothing is charged.
2. The broadcast must be of this study, of a later round, of the right shape, finite and proper. No number in it enters
   the accounting: the plan is the site's own, and so is the number of updates.
3. The update is priced by shapes, before a record is read.
4. Room for the store is set aside. If there is none, for example on a full disk, the round is refused here.
5. The price is charged to the ledger, durably, or the round is refused.
6. The update is made. Its receipt must equal its price.
7. State and answer are stored, durably. Only then is the answer sent.

A crash between 5 and 7 leaves a round that is charged and not answered. It is not run again: if asked once more, the
site says that the round is lost, and goes on with the next one. So a crash counts at most one update too many.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics import durable
from tacit.basics.trees import Tree
from tacit.federated.algorithm import Algorithm, content_for
from tacit.federated.keys import key_of, words_of
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree
from tacit.federated.shapes import form_of, is_all_proper
from tacit.federated.traces import check_complete, trace_of
from tacit.privacy.allowance import Allowance
from tacit.privacy.events import Event
from tacit.privacy.ledger import AlreadyCharged, BudgetExceeded, Ledger
from tacit.privacy.ledger_file import Unwritable
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import is_secure
from tacit.privacy.released import Released, price

SEEDED = "noise from a seed: no guarantee against those who know it"  # a note in the ledger
BLOCK = 4096  # bytes, of most disks: by how much a store may exceed its estimated length
# Refusals are sent to the coordinator: they contain no paths and no sizes.
NO_ROOM = (
    "the site cannot store an answer, so nothing was charged or read; free disk space and make its folder writable"
)
NO_LEDGER = (
    "the site's ledger cannot be written now, so nothing was read; free disk space and end other processes that use it"
)
NO_BUDGET = "what is left of the site's budget does not pay for this update; end the study here"
NOT_STORED = "this round was charged and its answer could not be stored; free disk space and go on with a later round"


@dataclass
class Responder:
    """`site(broadcast)`: the answer, or a refusal with its reason.

    access: the records, behind the site's own mechanism. ledger: of the data set's budget; `None` is for records that
    are public or made up, and charges nothing. store: a file next to the data, which must belong to this study alone.
    key: a separate one for each process, from `secure_key()`; studies, sites and rounds that share it do not share
    noise. most: the number of updates in the plan, after which the site makes no more. tells_spent: whether a refusal
    for lack of budget says how much is spent. prepare: called after a broadcast has passed its checks and before
    anything is charged; an OSError refuses the round.
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
    _dropped: int = field(init=False, default=0)
    _prices: dict[int, Event] = field(init=False, default_factory=dict)
    _room: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        Refusal(self.study, self.name, 0, "names that no message can carry are refused here, before a charge")
        self._state = self.algorithm.site_init()
        self._expected = form_of(jax.eval_shape(self._first))
        if self.store is not None and self.store.exists():
            self._restore(self.store.read_bytes())
            trace = trace_of(self.store, self.name, [self.study])
            if self.ledger is not None and trace is not None:
                check_complete(self.ledger.path, self.ledger.entries(), [trace])

    def _first(self) -> Tree:
        """What the site would be sent first, if it were alone; all that it is sent has this form."""
        content = self.algorithm.broadcast(self.algorithm.coordinator_init(1))[1]
        return content_for(self.algorithm, content, 0)

    @property
    def updates(self) -> int:
        """How many updates this site has made."""
        return self._count

    @property
    def dropped(self) -> int:
        """How many updates of this process were not finite, and so left the answer as it was."""
        return self._dropped

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
        key = key_of(self.key, words_of(self.study, self.name, str(broadcast.round)))
        step = partial(_step, self.algorithm, kind)
        if kind not in self._prices:  # by shapes alone; those of the broadcast were checked
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
        self._dropped += not finite
        answer = jax.tree.map(np.asarray, self.algorithm.answer(state))
        update = Update(self.study, self.name, broadcast.round, answer)
        if self.store is not None:
            try:
                durable.write(self.store, self._stored(state, update))
            except OSError:
                return self._refuse(broadcast, NOT_STORED)
        self._state, self._count, self._answered = state, self._count + 1, update
        return update

    def _refuse(self, broadcast: Broadcast, reason: str) -> Refusal:
        if self.store is not None:  # a refusal needs no room
            with suppress(OSError):
                durable.release(self.store)
        return Refusal(broadcast.study, self.name, broadcast.round, reason)

    def _fault(self, broadcast: Broadcast) -> str:
        """Why this broadcast is not answered; "" if it is."""
        if broadcast.study != self.study:
            return f"study={broadcast.study!r}; this site takes part in {self.study!r} only"
        if self._answered is not None and broadcast.round < self._answered.round:
            answered = self._answered.round
            return f"round={broadcast.round} is before round {answered}, which was answered; ask for a later one"
        if form_of(broadcast.content) != self._expected:
            return "the broadcast has another shape than this site's plan; use the same study file"
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(broadcast.content)):
            return "the broadcast is not finite; begin the study anew"
        if not is_all_proper(broadcast.content):
            return "the posterior that was sent is not proper; begin the study anew"
        if self.most is not None and self._count >= self.most:
            return f"the plan has {self.most} updates, and all were made; end the study here"
        return ""

    # --- What survives -------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        """Set aside the disk space of the next answer, so that an OSError comes now and not after a charge."""
        if self.store is None:
            return
        if self._room is None:  # shapes do not change
            answer = jax.tree.map(np.asarray, self.algorithm.answer(self._state))
            self._room = len(self._stored(self._state, Update(self.study, self.name, 0, answer))) + BLOCK
        durable.reserve(self.store, self._room)

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
        return words_of(self.study, self.name).astype(np.int64)

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
