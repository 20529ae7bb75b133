"""Mutants of secure sums: their protocol, the shares of their noise, and a site's part in them."""

import jax.numpy as jnp
import numpy as np
from tests.mutants.attacks_on_secure_sums import SHORT, Coordinating, by_both_shares, by_guessing, by_impersonation
from tests.mutants.judging import Mutant
from tests.mutants.mutants_of_sessions import UNDER
from tests.mutants.operators import calling, deciding, dropping, rewritten
from tests.mutants.planting import broken, replaced, with_shares, with_sums

from tacit.federated.secure_responder import SecureResponder
from tacit.privacy import shared
from tacit.privacy.shared import SharedGaussian

# --- The protocol ------------------------------------------------------------------------------------------------


def twister(module):
    """A stream of a weak generator with a short seed."""

    def stream(seed, size):
        found = np.random.RandomState(int.from_bytes(seed) % SHORT).bytes(8 * size)
        return np.frombuffer(found, "<u8").astype(np.uint64)

    return stream


def unsigned(module):
    return rewritten(module.checked, calling("verify", lambda verify: lambda session, message: None))


def opening_both(module):
    """Shares of the mask keys of all sites, also of those that are there."""
    sound = module.reveal

    def reveal(site, consents):
        site, opened = sound(site, consents)
        gone = {name: both[0] for name, both in site.shares.items()}
        signature = module._sign(site, "open", *module._flat(gone), *module._flat(opened.here))
        return site, module.Opened(opened.site, gone, opened.here, signature)

    return reveal


def accepting_both(module):
    return rewritten(module.total, dropping("one.gone"))


PROTOCOL = [
    Mutant("masks by a twister with a short seed", "secure sum", with_sums(_stream=twister), Coordinating(by_guessing)),
    Mutant("keys that nobody has signed", "secure sum", with_sums(checked=unsigned), Coordinating(by_impersonation)),
    Mutant(
        "both shares of a site answered",
        "secure sum",
        with_sums(reveal=opening_both, total=accepting_both),
        Coordinating(by_both_shares),
    ),
]

# --- Shares of the noise -----------------------------------------------------------------------------------------


class NobodyColludes(SharedGaussian):
    """Noise that is enough if all sites are in the total and honest."""

    def _lattice(self, coordinates, units):
        margin = shared.rounding_margin(coordinates, jnp.result_type(float))
        terms = (self.clips, self.noise_multipliers, coordinates, units, margin)
        return shared.Lattice.of(*terms, self.sites)


class Careless(shared._Contributing):
    """At a site, a sum is worth what the site itself has added up, with its own noise."""

    def _release(self, key, contribution, limit):
        found = super()._release(key, contribution, limit)
        upper, lower = self.integers[-1]
        own = (upper.astype(jnp.float32) * 2.0**32 + lower.astype(jnp.float32)) * self.notes[-1].spacing
        return found.map(lambda zeros: own.reshape(zeros.shape))


def carelessly(program, access, slots):
    own = shared._shared(Careless, access, slots, integers=[])
    release = program(own)
    return release.map(lambda _: own.integers[0])


SHARES = [
    Mutant("no share of the noise", "share", with_shares(lambda noise: 0 * noise), Coordinating()),
    Mutant("noise for which nobody may be gone or collude", "share", replaced(shared=NobodyColludes), Coordinating()),
    Mutant(
        "a site that goes on from its own part of a sum",
        "share",
        replaced(contributed=carelessly),
        unseen="what it makes possible is attacked above, as a hidden share of noise",
    ),
]

# --- A site's part -----------------------------------------------------------------------------------------------


class ChargedLater(SecureResponder):
    def _masked(self, site, round, message):
        ledger, self.ledger = self.ledger, None
        try:
            found = super()._masked(site, round, message)
        finally:
            self.ledger = ledger
        if ledger is not None:
            ledger.charge(self._layout(round).event, study=self.terms.study, round=round)
        return found


def nothing_charged(charge):
    return lambda event, **terms: None


SITES = [
    Mutant(
        "a secure round that is run again",
        "secure responder",
        broken("secure_responder", "_begin", deciding("self._made", becomes=False)),
        unseen=UNDER,
    ),
    Mutant(
        "a secure sum that is not charged",
        "secure responder",
        broken("secure_responder", "_masked", calling("self.ledger.charge", nothing_charged)),
        unseen=UNDER,
    ),
    Mutant(
        "a secure sum that is charged after reading",
        "secure responder",
        replaced(secure_responder=ChargedLater),
        unseen="the same is released, and charged unless it fails on the way",
    ),
]

MUTANTS = [*PROTOCOL, *SHARES, *SITES]
