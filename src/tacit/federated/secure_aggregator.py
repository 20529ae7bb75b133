"""Rounds in which the coordinator learns only the sum: all sites together are one respondent of the algorithm.

A `SecureResponder` is a site's part: it answers the stages of `secure_sum`, one message each. A `SecureAggregator` is
the coordinator's: it asks for the stages, and returns the update of one site that holds the records of all. To an
engine it is that site.

| stage     | what the coordinator sends          | what the site does besides the protocol                           |
|-----------|-------------------------------------|-------------------------------------------------------------------|
| advertise |                                     | begins a sum for a round that was not charged                     |
| share     | advertised keys                     |                                                                   |
| mask      | sealed shares, q, the common factor | **prices, charges, reads**: its sum and a draw of noise, masked   |
| agree     | who survived                        |                                                                   |
| open      | who agreed                          |                                                                   |

Nothing is charged before the mask stage, so a round with too few sites can be tried again. After that stage the round
is charged and never run again: if too few sites are left, it is lost.

A site keeps only its ledger between rounds: the factor that is refined is the product of all sites' factors, computed
from totals, and comes with the message (docs/errata.md, 3). No number in a message enters the accounting: the roster,
its keys and the number of honest sites come from the site's own plan, and a round's kind follows from its number.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics import durable
from tacit.basics.trees import Tree
from tacit.federated import secure_sum
from tacit.federated.algorithm import Algorithm
from tacit.federated.keys import words_of
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree
from tacit.federated.secure_messages import (
    advertisement,
    array_of,
    bytes_of,
    envelope,
    leaves_of,
    opened_of,
    plain_of,
    sealed_of,
)
from tacit.federated.secure_sum import Consent, Masked, Refused
from tacit.federated.secure_terms import CHARGED, EVERYBODY, Terms, TooFew
from tacit.federated.traces import Trace
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.shared import Layout, told


@partial(jax.jit, static_argnums=(1, 2))
def _conclude(
    algorithm: Algorithm, kind: int, slots: int, state: Tree, content: Tree, access: Access, totals: list[Array]
) -> Tree:
    key = insecure_key(0)  # nothing is drawn: the sums are known
    return told(lambda own: algorithm.site_step(key, state, content, own, kind), access, slots, totals)


Ask = Callable[[int, Mapping[str, Tree]], Mapping[str, Update | str]]  # round, contents by site; answers or reasons


@dataclass
class SecureAggregator:
    """`aggregator(broadcast)`: the update of all sites together, or a refusal if the round is lost.

    access: of a site's form, with nothing in it (`shared.empty`). ask: sends a content to each of some sites and waits
    for each answer, or the reason why there is none. store: a file of the coordinator, for the state and the last
    answer. Raises `TooFew` if too few sites are there, before anything is charged.
    """

    terms: Terms
    access: Access
    ask: Ask
    store: Path | None = None
    rounds: dict[str, list[int]] = field(init=False, default_factory=dict)  # whose sums each site is part of
    absent: dict[str, str] = field(init=False, default_factory=dict)  # sites that are not in the last sum, and why
    _state: Tree = field(init=False)
    _answered: Update | None = field(init=False, default=None)
    _layouts: dict[int, Layout] = field(init=False, default_factory=dict)
    _attempt: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._state = self.terms.algorithm.site_init()
        self.rounds = {name: [] for name in self.terms.roster}
        if self.store is not None and self.store.exists():
            self._restore(self.store.read_bytes())

    @property
    def present(self) -> dict[str, int]:
        """The number of sums that each site is part of."""
        return {name: len(rounds) for name, rounds in self.rounds.items()}

    @property
    def updates(self) -> int:
        """The number of sums in the common factor."""
        return max(self.present.values(), default=0)

    def __call__(self, broadcast: Broadcast) -> Update | Refusal:
        last = self._answered
        if last is not None and last.round == broadcast.round:
            return last
        self.absent = {}
        kind, algorithm = self.terms.algorithm.kind(broadcast.round), self.terms.algorithm
        if kind not in self._layouts:
            self._layouts[kind] = self.terms.layout(kind, self.access)
        try:
            total, here = self._sum(broadcast, self._layouts[kind])
        except Refused as error:
            words = f"this round is lost: {error}{self._reasons()}"
            return Refusal(self.terms.study, EVERYBODY, broadcast.round, words[:2000])
        totals = [jnp.asarray(value) for value in self._layouts[kind].values(total)]
        content = jax.tree.map(jnp.asarray, broadcast.content)
        new = _conclude(algorithm, kind, self.terms.slots, self._state, content, self.access, totals)
        finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(new))
        self._state = new if finite else self._state
        answer = jax.tree.map(np.asarray, algorithm.answer(self._state))
        self.rounds = {name: [*made, broadcast.round] if name in here else made for name, made in self.rounds.items()}
        self._answered = Update(self.terms.study, EVERYBODY, broadcast.round, answer)
        if self.store is not None:
            durable.write(self.store, self._stored(self._answered))
        return self._answered

    def _sum(self, broadcast: Broadcast, plan: Layout) -> tuple[np.ndarray, set[str]]:
        """The total, and the sites in it."""
        self._attempt = max(self._attempt + 1, time.time_ns() // 10**6)  # later than in any earlier process
        setup = self.terms.sum_setup(broadcast.round, self._attempt, plan.size)
        ask = partial(self._asked, broadcast.round)
        keys = {name: array_of(key) for name, key in self.terms.roster.items()}
        try:
            advertised = ask(0, dict.fromkeys(keys, keys), advertisement)
            for name, one in list(advertised.items()):
                self._verified(name, advertised, partial(secure_sum.verify, setup, one))
            known = secure_sum.checked(setup, list(advertised.values()))
            fresh = {name: plain_of(one) for name, one in known.items()}
            sealed = ask(1, dict.fromkeys(known, fresh), lambda name, plain: sealed_of(name, plain, known))
            shared = sorted(sealed)
            if len(shared) < setup.threshold:
                raise Refused(f"sealed shares of {len(shared)} sites, below the threshold of {setup.threshold}")
        except Refused as error:
            if Counter(self.absent.values())[CHARGED] > self.terms.tolerance.absent:  # an interrupted session
                raise
            raise TooFew(f"{error}{self._reasons()}") from None
        common = {"content": jax.tree.map(np.asarray, broadcast.content), "state": leaves_of(self._state)}
        mine = {
            name: {"sealed": {other: sealed[other][name] for other in shared if other != name}, **common}
            for name in shared
        }
        masked = ask(2, mine, lambda name, plain: Masked(name, *bytes_of(plain, "content", "signature")))
        for name, one in list(masked.items()):
            self._verified(name, masked, partial(secure_sum.received, setup, one))
        survivors = sorted(masked)
        if len(survivors) < setup.threshold:
            raise Refused(f"{len(survivors)} sites sent their sums, below the threshold of {setup.threshold}")
        roster = {name: np.zeros(0, np.uint8) for name in survivors}
        consents = ask(
            3, dict.fromkeys(survivors, roster), lambda name, plain: Consent(name, *bytes_of(plain, "signature"))
        )
        for name, one in list(consents.items()):
            self._verified(name, consents, partial(secure_sum.verify, setup, one, survivors))
        signatures = {name: array_of(one.signature) for name, one in consents.items()}
        opened = ask(4, dict.fromkeys(consents, signatures), opened_of)
        for name, one in list(opened.items()):
            self._verified(name, opened, partial(secure_sum.verify, setup, one))
        total = secure_sum.total(setup, known, shared, list(masked.values()), list(opened.values()))
        return total, set(survivors)

    def _asked(
        self, round: int, stage: int, contents: Mapping[str, Tree], read: Callable[[str, Tree], Any]
    ) -> dict[str, Any]:
        """The answers of the sites that answer a stage; `absent` says why the others do not."""
        head = {"stage": np.int32(stage), "attempt": np.int64(self._attempt)}
        found: dict[str, Any] = {}
        answers = self.ask(round, {name: head | {"message": content} for name, content in contents.items()})
        for name in contents:
            answer = answers.get(name, "it did not answer")
            try:
                if isinstance(answer, str):
                    raise Refused(answer)
                place, _, message = envelope(answer.content, is_answer=True)
                if (answer.study, answer.round, answer.site, place) != (self.terms.study, round, name, stage):
                    raise Refused("it answered something else")
                found[name] = read(name, message)
            except Refused as error:
                self.absent[name] = str(error)
        return found

    def _reasons(self) -> str:
        words = "; ".join(f"{name}: {why}" for name, why in list(self.absent.items())[:5])
        return f" ({words})" if words else ""

    def _verified(self, name: str, found: dict[str, Any], check: Callable[[], Any]) -> None:
        """Leave out a site whose message fails the check."""
        try:
            check()
        except Refused as error:
            del found[name]
            self.absent[name] = str(error)

    # --- What survives -------------------------------------------------------------------------------------------

    def _stored(self, update: Update) -> bytes:
        return encode_tree(
            {
                "answer": update.content,
                "state": leaves_of(self._state),
                "place": np.array([update.round], np.int64),
                "rounds": {
                    f"{j:04d}": np.array(made, np.int64) for j, (_, made) in enumerate(sorted(self.rounds.items()))
                },
                "owner": _owner(self.terms.study, self.rounds),
            }
        )

    def _restore(self, data: bytes) -> None:
        try:
            found = decode_tree(data)
            leaves, (round,) = list(found["state"].values()), found["place"]
            rounds = _rounds_of(found, self.terms.study, self.rounds)
            like = jax.tree.leaves(self._state)
            if [np.shape(leaf) for leaf in like] != [np.shape(leaf) for leaf in leaves]:
                raise ValueError("it has another shape")
            answer = found["answer"]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"store={self.store} cannot be read ({error}); go back to a sound copy") from None
        self._state = jax.tree.unflatten(jax.tree.structure(self._state), [jnp.asarray(leaf) for leaf in leaves])
        self.rounds = rounds
        self._answered = Update(self.terms.study, EVERYBODY, int(round), answer)


def _owner(study: str, names: Iterable[str]) -> np.ndarray:
    return words_of(study, *sorted(names)).astype(np.int64)


def _rounds_of(found: Tree, study: str, names: Iterable[str]) -> dict[str, list[int]]:
    """The rounds of the sums that each site is part of, from a store."""
    if not np.array_equal(found["owner"], _owner(study, names)):
        raise ValueError("it is of another study")
    pairs = zip(sorted(names), found["rounds"].values(), strict=True)
    return {name: [int(round) for round in made] for name, made in pairs}


def traces_of(store: Path, study: str, names: Iterable[str]) -> dict[str, Trace]:
    """The rounds each site was charged for, by the store of a `SecureAggregator`; a ValueError if it is unreadable."""
    try:
        rounds = _rounds_of(decode_tree(store.read_bytes()), study, names)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"store={store} cannot be read ({error}); go back to a sound copy") from None
    return {name: Trace(study, frozenset(made), len(made), store.name) for name, made in rounds.items()}
