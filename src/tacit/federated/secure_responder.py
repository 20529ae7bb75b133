"""A site's part in secure sums: it answers their stages."""

import os
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.federated import secure_sum
from tacit.federated.algorithm import Algorithm
from tacit.federated.keys import key_of, words_of
from tacit.federated.messages import Broadcast, Refusal, Update, encode
from tacit.federated.responder import NO_BUDGET, NO_LEDGER, SEEDED
from tacit.federated.secure_messages import (
    advertisement,
    array_of,
    as_bytes,
    envelope,
    leaves_of,
    names_of,
    opened_plain,
    pairs_of,
    plain_of,
)
from tacit.federated.secure_sum import Consent, Masked, Refused, Sealed
from tacit.federated.secure_terms import CHARGED, STAGES, Terms, blank_content, public_identity
from tacit.federated.shapes import form_of, is_all_proper
from tacit.privacy.allowance import Allowance
from tacit.privacy.ledger import AlreadyCharged, BudgetExceeded, Ledger
from tacit.privacy.ledger_file import Unwritable
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import is_secure
from tacit.privacy.released import Released
from tacit.privacy.shared import Layout, contributed, integers


@partial(jax.jit, static_argnums=(1, 2))
def _contribute(
    algorithm: Algorithm, kind: int, slots: int, key: Array, state: Tree, content: Tree, access: Access
) -> Released[tuple[Array, Array]]:
    return contributed(lambda own: algorithm.site_step(key, state, content, own, kind), access, slots)


@dataclass
class SecureResponder:
    """`respond(broadcast)`: a site's answer to one stage of a round, or a refusal with its reason.

    access: the site's records, behind `SharedGaussian`. identity: the key it signs with. The rest is as in `Responder`.
    """

    name: str
    terms: Terms
    access: Access
    key: Array
    ledger: Ledger | Allowance | None
    identity: bytes = field(repr=False)
    tells_spent: bool = True
    _site: secure_sum.SumSite | None = field(init=False, default=None, repr=False)
    _place: tuple[int, int] = field(init=False, default=(-1, 0))  # round and attempt of the sum
    _answers: dict[int, tuple[bytes, Update]] = field(init=False, default_factory=dict, repr=False)
    _layouts: dict[int, Layout] = field(init=False, default_factory=dict)
    _made: set[int] = field(init=False, default_factory=set)  # rounds that were charged

    def __post_init__(self) -> None:
        Refusal(self.terms.study, self.name, 0, "names that no message can carry are refused here, before a charge")
        if self.terms.roster.get(self.name) != public_identity(self.identity):
            raise ValueError(f"site {self.name!r} is not in the roster with this key; expected its own entry")
        state, content = blank_content(self.terms.algorithm)
        self._expected = form_of(content), form_of(leaves_of(state))
        self._structure = jax.tree.structure(state)
        if self.ledger is not None:
            self._made |= {entry.round for entry in self.ledger.entries() if entry.study == self.terms.study}

    @property
    def updates(self) -> int:
        """The number of rounds in which this site sent its integers."""
        return len(self._made)

    @property
    def last_round(self) -> int:
        """The last of these rounds; -1 if there was none."""
        return max(self._made, default=-1)

    def __call__(self, broadcast: Broadcast) -> Update | Refusal:
        try:
            stage, attempt, message = envelope(broadcast.content)
            if broadcast.study != self.terms.study:
                raise Refused(f"study={broadcast.study!r}; this site takes part in {self.terms.study!r} only")
            place, request = (broadcast.round, attempt), encode(broadcast)
            if stage == 0:
                self._begin(place, message)
            if place != self._place or self._site is None:
                raise Refused("this site has no part in that sum; begin another one")
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
        """Begin a sum of a round that was never charged, later than any before it."""
        round, attempt = place
        if place == self._place:
            return
        known, told = self.terms.roster, {name: as_bytes(key) for name, key in pairs_of(roster)}
        odd = sorted(name for name in {*known, *told} if known.get(name) != told.get(name))
        if odd:
            raise Refused(f"the key of {odd[0]} is another one here than at the coordinator; compare the two")
        if not 0 <= round < self.terms.rounds:
            raise Refused(f"round={round}; the plan has {self.terms.rounds} of them: end the study here")
        if round in self._made or round < self.last_round:
            raise Refused(CHARGED)
        if place <= self._place:
            raise Refused("a later sum has begun; go on with a later one")
        terms = self.terms
        setup = terms.sum_setup(round, attempt, self._layout(round).size)
        self._site = secure_sum.SumSite(setup, self.name, self.identity, os.urandom(32))
        self._place, self._answers = place, {}

    def _layout(self, round: int) -> Layout:
        kind = self.terms.algorithm.kind(round)
        if kind not in self._layouts:
            self._layouts[kind] = self.terms.layout(kind, self.access)
        return self._layouts[kind]

    def _answered(self, stage: int, round: int, message: Tree) -> tuple[secure_sum.SumSite, Tree]:
        site = self._site
        assert site is not None
        match STAGES[stage]:
            case "advertise":
                site, advertised = secure_sum.advertise(site)
                return site, plain_of(advertised)
            case "share":
                site, sealed = secure_sum.share(site, [advertisement(*pair) for pair in pairs_of(message)])
                return site, {one.receiver: array_of(one.content) for one in sealed}
            case "mask":
                site, masked = self._masked(site, round, message)
                return site, plain_of(masked)
            case "agree":
                site, consent = secure_sum.agree(site, names_of(message))
                return site, plain_of(consent)
            case _:
                consents = [Consent(name, as_bytes(part)) for name, part in pairs_of(message)]
                site, opened = secure_sum.reveal(site, consents)
                return site, opened_plain(opened)

    def _masked(self, site: secure_sum.SumSite, round: int, message: Tree) -> tuple[secure_sum.SumSite, Masked]:
        """Charge, then read."""
        if not isinstance(message, dict) or set(message) != {"sealed", "content", "state"}:
            raise Refused("the message has another form than this version's; use the same version of tacit")
        sealed = [Sealed(name, self.name, as_bytes(part)) for name, part in pairs_of(message["sealed"])]
        content, leaves = message["content"], message["state"]
        if (form_of(content), form_of(leaves)) != self._expected:
            raise Refused("the broadcast has another shape than this site's plan; use the same study file")
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((content, leaves))):
            raise Refused("the broadcast is not finite; begin the study anew")
        if not is_all_proper(content):
            raise Refused("the posterior that was sent is not proper; begin the study anew")
        if round in self._made:
            raise Refused(CHARGED)
        price = self._layout(round)
        secure_sum.mask(site, sealed, np.zeros(price.size, np.int64))  # a refusal here costs nothing
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
        terms, key = self.terms, key_of(self.key, words_of(self.terms.study, self.name, str(round)))
        state = jax.tree.unflatten(self._structure, [jnp.asarray(leaf) for leaf in leaves.values()])
        ready = jax.tree.map(jnp.asarray, content)
        kind = terms.algorithm.kind(round)
        release = _contribute(terms.algorithm, kind, terms.slots, key, state, ready, self.access)
        if release.event != price.event:
            raise RuntimeError("the receipt is not the price: this is a bug in tacit; nothing was sent")
        return secure_sum.mask(site, sealed, integers(release))
