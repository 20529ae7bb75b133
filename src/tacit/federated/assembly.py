"""Rounds of which the coordinator learns the sum alone: all sites together are one party of the algorithm.

A `Delegate` is a site's part: it answers the stages of `secure_sum`, one message each. An `Assembly` is the
coordinator's: it asks for the stages, and what comes out is the update of one site with everybody's records. To an
engine the assembly is that site.

| stage     | what the coordinator sends          | what the site does beside the protocol                            |
|-----------|-------------------------------------|-------------------------------------------------------------------|
| advertise |                                     | opens a session of a round that was not charged                   |
| share     | advertised keys                     |                                                                   |
| mask      | sealed shares, q, the common factor | **prices, charges, reads**: its sum and a draw of noise, masked   |
| agree     | who survived                        |                                                                   |
| open      | who agreed                          |                                                                   |

Nothing is charged before the mask stage, so that a round for which too few are there can be tried again. After it a
round is charged, and is never run again: one of which too few are left is lost.

A site keeps nothing between rounds but its ledger: the factor that is refined is the product of all sites', made of
totals, and comes with the message (docs/errata.md, 3). No number in a message enters the accounting: who is in the
roster, with which key, and how many must be honest, is the site's own plan, and a round's kind follows from its number.
"""

import os
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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jax import Array

from tacit.federated import secure_sum
from tacit.federated.algorithm import Algorithm
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode, encode_tree
from tacit.federated.secure_sum import Advertisement, Consent, Masked, Opened, Refused, Sealed, Session
from tacit.federated.site import (
    NO_BUDGET,
    NO_LEDGER,
    SEEDED,
    Trace,
    _form,
    _is_proper,
    _own_key,
    _words,
    _write,
)
from tacit.privacy.ledger import Allowance, AlreadyCharged, BudgetExceeded, Ledger, Unwritable
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key, is_secure
from tacit.privacy.released import Released
from tacit.privacy.shared import Layout, contributed, integers, layout, told

Tree = Any
STAGES = ("advertise", "share", "mask", "agree", "open")
MASK = STAGES.index("mask")
EVERYBODY = "all sites"
CHARGED = "this round, or one after it, was charged already; go on with a later round"


class TooFew(Exception):
    """Too few sites are there for a round, and nothing was charged: it can be tried again."""


@dataclass(frozen=True)
class Trust:
    """Who has to be there and honest. sites: all of them; absent: how many may drop out of a sum, whoever makes them;
    pooling: how many may pool what they know with the coordinator."""

    sites: int
    absent: int
    pooling: int

    def __post_init__(self) -> None:
        if min(self.absent, self.pooling) < 0 or not self.sites > 2 * self.absent + self.pooling:
            raise ValueError(
                f"{self.sites} sites of which {self.absent} may be absent and {self.pooling} may pool what they know; "
                "expected more sites than twice the absent ones and those that pool, or secrets could be put together"
            )
        if self.sites < secure_sum.LEAST_SITES:
            raise ValueError(f"{self.sites} sites; expected at least {secure_sum.LEAST_SITES}, to hide one in a sum")

    @classmethod
    def usual(cls, sites: int, absent: int | None = None, pooling: int | None = None) -> "Trust":
        """A tenth of the sites may be absent, and a tenth, at least one, may pool what they know."""
        return cls(
            sites, sites // 10 if absent is None else absent, max(1, sites // 10) if pooling is None else pooling
        )

    @property
    def threshold(self) -> int:
        """How many must be in a sum."""
        return self.sites - self.absent

    @property
    def honest(self) -> int:
        """How many shares of noise are in every sum and known to nobody else."""
        return self.threshold - self.pooling

    @property
    def words(self) -> str:
        """For statements and reports."""
        return (
            f"The coordinator sees sums over sites alone (secure sums), and each of {self.sites} sites adds a share of "
            f"one noise, a distributed discrete Gaussian. Trust: at least {self.sites - self.pooling} of the "
            f"{self.sites} sites are honest and draw their noise from a secure source; up to {self.pooling} may pool "
            f"what they know with the coordinator, whatever it does, and up to {self.absent} may drop out of a sum: "
            f"the noise of {self.honest} is counted. With fewer than {self.threshold} sites nothing is opened."
            + ("" if self.pooling else " Nothing is promised against another site, which knows its own share.")
        )


def new_identity() -> bytes:
    """A fresh key by which a site signs."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(identity: bytes) -> bytes:
    """The public half, by which others know it."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Terms:
    """What a site and the coordinator must know alike of a phase's sums.

    roster: all sites with the keys by which they sign. places: for units, over all sites. rounds: how many there are.
    """

    study: str
    algorithm: Algorithm
    trust: Trust
    roster: Mapping[str, bytes]
    places: int
    rounds: int

    def __post_init__(self) -> None:
        if len(self.roster) != self.trust.sites:
            raise ValueError(f"a roster of {len(self.roster)} sites; expected {self.trust.sites}")
        if len(set(self.roster.values())) < len(self.roster):
            raise ValueError("two sites of the roster have one key; expected a key of its own for each")

    def session(self, round: int, attempt: int, size: int) -> Session:
        return Session(f"{self.study}/{round}/{attempt}", self.roster, self.trust.threshold, size)

    def layout(self, kind: int, access: Access) -> Layout:
        """By shapes alone."""
        found = layout(
            lambda access: self.algorithm.site_step(insecure_key(0), *_blank(self.algorithm), access, kind),
            access,
            self.places,
        )
        found.check(self.places, self.trust.sites)
        return found


def _blank(algorithm: Algorithm) -> tuple[Tree, Tree]:
    """A site's state and a content, as they are before the first round."""
    return algorithm.site_init(), algorithm.broadcast(algorithm.coordinator_init(1))[1]


@partial(jax.jit, static_argnums=(1, 2))
def _contribute(
    algorithm: Algorithm, kind: int, places: int, key: Array, state: Tree, content: Tree, access: Access
) -> Released[tuple[Array, Array]]:
    return contributed(lambda own: algorithm.site_step(key, state, content, own, kind), access, places)


@partial(jax.jit, static_argnums=(1, 2))
def _conclude(
    algorithm: Algorithm, kind: int, places: int, state: Tree, content: Tree, access: Access, totals: list[Array]
) -> Tree:
    key = insecure_key(0)  # nothing is drawn: the sums are known
    return told(lambda own: algorithm.site_step(key, state, content, own, kind), access, places, totals)


# --- A site ------------------------------------------------------------------------------------------------------


@dataclass
class Delegate:
    """`delegate(broadcast)`: a site's answer to one stage of a round, or a refusal with its reason.

    access: the site's records, behind `SharedGaussian`. identity: the key by which it signs. All else as in `Site`.
    """

    name: str
    terms: Terms
    access: Access
    key: Array
    ledger: Ledger | Allowance | None
    identity: bytes = field(repr=False)
    tells_spent: bool = True
    _site: secure_sum.Site | None = field(init=False, default=None, repr=False)
    _place: tuple[int, int] = field(init=False, default=(-1, 0))  # round and attempt of the session
    _answers: dict[int, tuple[bytes, Update]] = field(init=False, default_factory=dict, repr=False)
    _layouts: dict[int, Layout] = field(init=False, default_factory=dict)
    _made: set[int] = field(init=False, default_factory=set)  # rounds that were charged

    def __post_init__(self) -> None:
        Refusal(self.terms.study, self.name, 0, "names that no message can carry are refused here, before a charge")
        if self.terms.roster.get(self.name) != public_identity(self.identity):
            raise ValueError(f"site {self.name!r} is not in the roster with this key; expected its own entry")
        state, content = _blank(self.terms.algorithm)
        self._expected = _form(content), _form(_leaves(state))
        self._structure = jax.tree.structure(state)
        if self.ledger is not None:
            self._made |= {entry.round for entry in self.ledger.entries() if entry.study == self.terms.study}

    @property
    def updates(self) -> int:
        """In how many rounds this site's integers were sent."""
        return len(self._made)

    @property
    def last_round(self) -> int:
        """The last of them; -1 if there was none."""
        return max(self._made, default=-1)

    def __call__(self, broadcast: Broadcast) -> Update | Refusal:
        try:
            stage, attempt, message = _envelope(broadcast.content)
            if broadcast.study != self.terms.study:
                raise Refused(f"study={broadcast.study!r}; this site takes part in {self.terms.study!r} only")
            place, request = (broadcast.round, attempt), encode(broadcast)
            if stage == 0:
                self._begin(place, message)
            if place != self._place or self._site is None:
                raise Refused("this site has no part in that session; begin another one")
            if stage in self._answers:
                asked, answer = self._answers[stage]
                if asked != request:
                    raise Refused("this stage was answered before, to something else")
                return answer
            self._site, plain = self._answered(stage, broadcast.round, message)
        except Refused as error:
            return Refusal(broadcast.study, self.name, broadcast.round, str(error)[:2000])
        answer = Update(self.terms.study, self.name, broadcast.round, {"stage": np.int32(stage), "message": plain})
        self._answers[stage] = request, answer
        return answer

    def _begin(self, place: tuple[int, int], roster: Tree) -> None:
        """A session of a round that was never charged, later than any before it."""
        round, attempt = place
        if place == self._place:
            return
        known, told = self.terms.roster, {name: _bytes(key) for name, key in _parts(roster)}
        odd = sorted(name for name in {*known, *told} if known.get(name) != told.get(name))
        if odd:
            raise Refused(f"the key of {odd[0]} is another one here than at the coordinator; compare the two")
        if not 0 <= round < self.terms.rounds:
            raise Refused(f"round={round}; the plan has {self.terms.rounds} of them: end the study here")
        if round in self._made or round < self.last_round:
            raise Refused(CHARGED)
        if place <= self._place:
            raise Refused("a session after this one was begun; go on with a later one")
        terms = self.terms
        session = terms.session(round, attempt, self._layout(round).size)
        self._site = secure_sum.Site(session, self.name, self.identity, os.urandom(32))
        self._place, self._answers = place, {}

    def _layout(self, round: int) -> Layout:
        kind = self.terms.algorithm.kind(round)
        if kind not in self._layouts:
            self._layouts[kind] = self.terms.layout(kind, self.access)
        return self._layouts[kind]

    def _answered(self, stage: int, round: int, message: Tree) -> tuple[secure_sum.Site, Tree]:
        site = self._site
        assert site is not None
        match STAGES[stage]:
            case "advertise":
                site, advertised = secure_sum.advertise(site)
                return site, _plain(advertised)
            case "share":
                site, sealed = secure_sum.share(site, [_advertisement(*pair) for pair in _parts(message)])
                return site, {one.receiver: _array(one.content) for one in sealed}
            case "mask":
                site, masked = self._masked(site, round, message)
                return site, _plain(masked)
            case "agree":
                site, consent = secure_sum.agree(site, _names(message))
                return site, _plain(consent)
            case _:
                consents = [Consent(name, _bytes(part)) for name, part in _parts(message)]
                site, opened = secure_sum.reveal(site, consents)
                return site, _opened_plain(opened)

    def _masked(self, site: secure_sum.Site, round: int, message: Tree) -> tuple[secure_sum.Site, Masked]:
        """Charge, then read."""
        if not isinstance(message, dict) or set(message) != {"sealed", "content", "state"}:
            raise Refused("the message has another form than this version's; use the same version of tacit")
        sealed = [Sealed(name, self.name, _bytes(part)) for name, part in _parts(message["sealed"])]
        content, leaves = message["content"], message["state"]
        if (_form(content), _form(leaves)) != self._expected:
            raise Refused("the broadcast has another shape than this site's plan; use the same study file")
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((content, leaves))):
            raise Refused("the broadcast is not finite; begin the study anew")
        if not _is_proper(content):
            raise Refused("the posterior that was sent is not proper; begin the study anew")
        if round in self._made:
            raise Refused(CHARGED)
        price = self._layout(round)
        secure_sum.mask(site, sealed, np.zeros(price.size, np.int64))  # refused here, it costs nothing
        if self.ledger is not None:
            try:
                note = "" if is_secure(self.key) else SEEDED
                self.ledger.charge(price.event, study=self.terms.study, round=round, note=note)
            except BudgetExceeded as error:
                raise Refused(str(error) if self.tells_spent else NO_BUDGET) from None
            except AlreadyCharged:
                raise Refused(CHARGED) from None
            except (Unwritable, OSError):
                raise Refused(NO_LEDGER) from None
        self._made.add(round)
        terms, key = self.terms, _own_key(self.key, _words(self.terms.study, self.name, str(round)))
        state = jax.tree.unflatten(self._structure, [jnp.asarray(leaf) for leaf in leaves.values()])
        ready = jax.tree.map(jnp.asarray, content)
        kind = terms.algorithm.kind(round)
        release = _contribute(terms.algorithm, kind, terms.places, key, state, ready, self.access)
        if release.event != price.event:
            raise RuntimeError("the receipt is not the price: this is a bug in tacit; nothing was sent")
        return secure_sum.mask(site, sealed, integers(release))


# --- The coordinator ---------------------------------------------------------------------------------------------

Ask = Callable[[int, Mapping[str, Tree]], Mapping[str, Update | str]]  # round, contents by site; answers or reasons


@dataclass
class Assembly:
    """`assembly(broadcast)`: the update of all sites together, or a refusal where the round is lost.

    access: of a site's form, with nothing in it (`shared.empty`). ask: sends a content to each of some sites and waits
    for what comes, an answer or the reason why there is none. store: a file of the coordinator, for the state and the
    last answer. Raises `TooFew` where too few are there, before anything is charged.
    """

    terms: Terms
    access: Access
    ask: Ask
    store: Path | None = None
    rounds: dict[str, list[int]] = field(init=False, default_factory=dict)  # of whose sums each site is a part
    absent: dict[str, str] = field(init=False, default_factory=dict)  # who is not in the last one, and why
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
        """In how many sums each site is."""
        return {name: len(rounds) for name, rounds in self.rounds.items()}

    @property
    def updates(self) -> int:
        """How many sums there are in the common factor."""
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
        new = _conclude(algorithm, kind, self.terms.places, self._state, content, self.access, totals)
        finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(new))
        self._state = new if finite else self._state
        answer = jax.tree.map(np.asarray, algorithm.answer(self._state))
        self.rounds = {name: [*made, broadcast.round] if name in here else made for name, made in self.rounds.items()}
        self._answered = Update(self.terms.study, EVERYBODY, broadcast.round, answer)
        if self.store is not None:
            _write(self.store, self._stored(self._answered))
        return self._answered

    def _sum(self, broadcast: Broadcast, plan: Layout) -> tuple[np.ndarray, set[str]]:
        """The total, and of whom it is."""
        self._attempt = max(self._attempt + 1, time.time_ns() // 10**6)  # after those of any process before this one
        session = self.terms.session(broadcast.round, self._attempt, plan.size)
        ask = partial(self._asked, broadcast.round)
        keys = {name: _array(key) for name, key in self.terms.roster.items()}
        try:
            advertised = ask(0, dict.fromkeys(keys, keys), _advertisement)
            for name, one in list(advertised.items()):
                self._verified(name, advertised, partial(secure_sum.verify, session, one))
            known = secure_sum.checked(session, list(advertised.values()))
            fresh = {name: _plain(one) for name, one in known.items()}
            sealed = ask(1, dict.fromkeys(known, fresh), lambda name, plain: _sealed(name, plain, known))
            shared = sorted(sealed)
            if len(shared) < session.threshold:
                raise Refused(f"sealed shares of {len(shared)} sites, below the threshold of {session.threshold}")
        except Refused as error:
            if Counter(self.absent.values())[CHARGED] > self.terms.trust.absent:  # in a session that was cut off
                raise
            raise TooFew(f"{error}{self._reasons()}") from None
        common = {"content": jax.tree.map(np.asarray, broadcast.content), "state": _leaves(self._state)}
        mine = {
            name: {"sealed": {other: sealed[other][name] for other in shared if other != name}, **common}
            for name in shared
        }
        masked = ask(2, mine, lambda name, plain: Masked(name, *_bytes_of(plain, "content", "signature")))
        for name, one in list(masked.items()):
            self._verified(name, masked, partial(secure_sum.received, session, one))
        survivors = sorted(masked)
        if len(survivors) < session.threshold:
            raise Refused(f"{len(survivors)} sites sent their sums, below the threshold of {session.threshold}")
        roster = {name: np.zeros(0, np.uint8) for name in survivors}
        consents = ask(
            3, dict.fromkeys(survivors, roster), lambda name, plain: Consent(name, *_bytes_of(plain, "signature"))
        )
        for name, one in list(consents.items()):
            self._verified(name, consents, partial(secure_sum.verify, session, one, survivors))
        signatures = {name: _array(one.signature) for name, one in consents.items()}
        opened = ask(4, dict.fromkeys(consents, signatures), _opened_of)
        for name, one in list(opened.items()):
            self._verified(name, opened, partial(secure_sum.verify, session, one))
        total = secure_sum.total(session, known, shared, list(masked.values()), list(opened.values()))
        return total, set(survivors)

    def _asked(
        self, round: int, stage: int, contents: Mapping[str, Tree], read: Callable[[str, Tree], Any]
    ) -> dict[str, Any]:
        """What sites answer at a stage, of those who do; why the others do not is in `absent`."""
        head = {"stage": np.int32(stage), "attempt": np.int64(self._attempt)}
        found: dict[str, Any] = {}
        answers = self.ask(round, {name: head | {"message": content} for name, content in contents.items()})
        for name in contents:
            answer = answers.get(name, "it did not answer")
            try:
                if isinstance(answer, str):
                    raise Refused(answer)
                place, _, message = _envelope(answer.content, is_answer=True)
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
        """Leave out what is not what it should be."""
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
                "state": _leaves(self._state),
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
    return _words(study, *sorted(names)).astype(np.int64)


def _rounds_of(found: Tree, study: str, names: Iterable[str]) -> dict[str, list[int]]:
    """The sums that each site is part of, as a store has them."""
    if not np.array_equal(found["owner"], _owner(study, names)):
        raise ValueError("it is of another study")
    pairs = zip(sorted(names), found["rounds"].values(), strict=True)
    return {name: [int(round) for round in made] for name, made in pairs}


def traces_of(store: Path, study: str, names: Iterable[str]) -> dict[str, Trace]:
    """What the store of an `Assembly` says that each site was charged for; a ValueError if it cannot be read."""
    try:
        rounds = _rounds_of(decode_tree(store.read_bytes()), study, names)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"store={store} cannot be read ({error}); go back to a sound copy") from None
    return {name: Trace(study, frozenset(made), len(made), store.name) for name, made in rounds.items()}


# --- Messages as trees -------------------------------------------------------------------------------------------


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _bytes(part: Any) -> bytes:
    if not isinstance(part, np.ndarray) or part.dtype != np.uint8 or part.ndim != 1:
        raise Refused("a part of the message is no row of bytes")
    return part.tobytes()


def _plain(message: Any) -> Tree:
    """A message's fields of bytes; who sent it is known from its envelope."""
    return {name: _array(value) for name, value in vars(message).items() if isinstance(value, bytes)}


def _bytes_of(plain: Any, *names: str) -> list[bytes]:
    if not isinstance(plain, dict) or set(plain) != set(names):
        raise Refused("the message has other parts than it should")
    return [_bytes(plain[name]) for name in names]


def _advertisement(name: str, plain: Any) -> Advertisement:
    return Advertisement(name, *_bytes_of(plain, "seal", "mask", "seed", "signature"))


def _sealed(name: str, plain: Any, known: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(plain, dict) or set(plain) != set(known) - {name}:
        raise Refused("it did not share its secrets with all others")
    for part in plain.values():
        _bytes(part)
    return plain


def _opened_plain(opened: Opened) -> Tree:
    shares = {kind: {name: _array(part) for name, part in getattr(opened, kind).items()} for kind in ("gone", "here")}
    return {**shares, "signature": _array(opened.signature)}


def _opened_of(name: str, plain: Any) -> Opened:
    if not isinstance(plain, dict) or set(plain) != {"gone", "here", "signature"}:
        raise Refused("the message has other parts than it should")
    gone, here = ({one: _bytes(part) for one, part in _parts(plain[kind])} for kind in ("gone", "here"))
    return Opened(name, gone, here, _bytes(plain["signature"]))


def _parts(message: Any) -> list[tuple[str, Any]]:
    if not isinstance(message, dict):
        raise Refused("the message is not one of parts by site")
    return list(message.items())


def _names(message: Any) -> list[str]:
    return [name for name, _ in _parts(message)]


def _envelope(content: Any, is_answer: bool = False) -> tuple[int, int, Tree]:
    """(stage, attempt, message) of a content."""
    names = {"stage", "message"} if is_answer else {"stage", "attempt", "message"}
    if not isinstance(content, dict) or set(content) != names:
        raise Refused("the message has another form than this version's; use the same version of tacit")
    numbers = {"stage": content["stage"], "attempt": content.get("attempt", np.int64(0))}
    for name, number in numbers.items():
        kind = np.int32 if name == "stage" else np.int64
        if getattr(number, "dtype", None) != kind or np.shape(number) != () or number < 0:
            raise Refused(f"the {name} of the message is no number")
    if numbers["stage"] >= len(STAGES):
        raise Refused(f"stage {int(numbers['stage'])} is none of a session")
    return int(numbers["stage"]), int(numbers["attempt"]), content["message"]


def _leaves(tree: Tree) -> dict[str, np.ndarray]:
    return {f"{place:04d}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}
