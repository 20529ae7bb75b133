"""Attacks on one site's integers in a secure sum, by a coordinator and the sites that collude with it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from tests.mutants.checks_of_mechanisms import each_record
from tests.mutants.planting import Verdict, World

import tacit
from tacit.audit import bounds
from tacit.audit.bounds import CONFIDENCE
from tacit.audit.canaries import HUGE
from tacit.federated.secure_terms import Tolerance, public_identity
from tacit.privacy import accounting
from tacit.privacy.mechanism import Access
from tacit.privacy.shared import contributed, integers

WIDTH = 1500  # coordinates of a sum, each with a canary of its own
FIRST = "site-00"  # who has the canaries


@dataclass(frozen=True)
class Coordinating:
    """A coordinator colludes with some sites and drops others from a sum. One run, many canaries.

    Each canary is in or out by the toss of a coin, and moves a coordinate of its own at the first site: coordinates
    stand for runs with and without a canary. alone: how the attacker gets the first site's integers alone; without it,
    the contributions of the colluding sites are subtracted from the total.
    """

    alone: Callable[["SecureSum"], np.ndarray] | None = None

    def __call__(self, world: World) -> Verdict:
        noise, delta, tolerance = 1.0, 1e-5, Tolerance(12, absent=3, colluding=5)
        included = np.random.default_rng(5).random(WIDTH) < 0.5
        mechanism = world.shared(1.0, noise, sites=tolerance.sites, honest=tolerance.honest)
        own = Access.of(HUGE * np.eye(WIDTH, dtype=np.float32), mechanism)
        vectors, event = {}, None
        for j in range(tolerance.sites - tolerance.absent):
            access = replace(own, present=jnp.asarray(included & (j == 0))[:, None])
            program = lambda own, j=j: own.sum(tacit.insecure_key(40 + j), each_record)  # noqa: E731
            release = contributed(program, access, WIDTH)
            vectors[f"site-{j:02d}"], event = integers(release), release.event
        heard = (self.alone or by_total)(SecureSum(world.sums, tolerance, vectors))
        assert event is not None
        half, scores = 1 - (1 - CONFIDENCE) / 2, heard.astype(float)
        kinds: tuple[bounds.Assumption, ...] = ("nothing", "gaussian")  # the claim is a Gaussian shift
        proved = [bounds.bound(scores[~included], scores[included], delta, half, kind).epsilon for kind in kinds]
        return accounting.epsilon(event, delta), max(proved)


class SecureSum:
    """One secure sum as its coordinator has it, with the sites that are not dropped."""

    def __init__(self, sums: Any, tolerance: Tolerance, vectors: dict[str, np.ndarray]) -> None:
        self.sums, self.vectors, self.tolerance = sums, vectors, tolerance
        names = [f"site-{j:02d}" for j in range(tolerance.sites)]
        self.colluding = names[1 : 1 + tolerance.colluding]
        self.keys = {name: hashlib.sha256(name.encode()).digest() for name in names}
        roster = {name: public_identity(key) for name, key in self.keys.items()}
        self.setup = sums.SumSetup("a sum", roster, tolerance.threshold, WIDTH)
        self.sites = {name: self.site(name) for name in vectors}

    def site(self, name: str) -> Any:
        return self.sums.SumSite(self.setup, name, self.keys[name], hashlib.sha256(b"secret" + name.encode()).digest())

    def total(self) -> np.ndarray:
        """All stages, as with an honest coordinator; what came on the way is kept."""
        self.advertised = [self._at(self.sums.advertise, name) for name in self.vectors]
        sealed = [one for name in self.vectors for one in self._at(self.sums.share, name, self.advertised)]
        self.masked = {
            name: self._at(self.sums.mask, name, [one for one in sealed if one.receiver == name], self.vectors[name])
            for name in self.vectors
        }
        consents = [self._at(self.sums.agree, name, list(self.vectors)) for name in self.vectors]
        self.opened = [self._at(self.sums.reveal, name, consents) for name in self.vectors]
        return self.sums.total(self.setup, self._known(), sorted(self.vectors), list(self.masked.values()), self.opened)

    def _known(self) -> dict[str, Any]:
        return {one.site: one for one in self.advertised}

    def _at(self, stage: Callable[..., Any], name: str, *given: Any) -> Any:
        self.sites[name], answer = stage(self.sites[name], *given)
        return answer

    def seed_of(self, name: str) -> bytes:
        """The seed of a survivor, from shares that were opened."""
        chosen = sorted(self.opened, key=lambda one: one.site)[: self.setup.threshold]
        weights = self.sums._weights([self.sums._place(self.setup, one.site) for one in chosen])
        return self.sums._joined(weights, [one.here[name] for one in chosen])

    def unmasked(self, name: str, seeds: dict[str, bytes], own: bytes) -> np.ndarray:
        """A site's integers alone, from the seeds of all its masks."""
        sums, result = self.sums, self.sums.received(self.setup, self.masked[name])
        result = result - sums._stream(own, WIDTH)
        for other, seed in seeds.items():
            result = result - sums._sign_of(name, other) * sums._stream(seed, WIDTH)
        return result.astype(np.int64)


def by_total(run: SecureSum) -> np.ndarray:
    """What is left where an attack does not succeed: the sum without the colluding sites."""
    return run.total() - sum(run.vectors[name] for name in run.colluding)


def by_both_shares(run: SecureSum) -> np.ndarray:
    """The first site's mask key as well as its seed, where sites open shares of both."""
    known = by_total(run)
    name, sums = FIRST, run.sums
    if any(name not in one.gone for one in run.opened):
        return known
    chosen = sorted(run.opened, key=lambda one: one.site)[: run.setup.threshold]
    weights = sums._weights([sums._place(run.setup, one.site) for one in chosen])
    key, keys = sums._joined(weights, [one.gone[name] for one in chosen]), run._known()
    others = {other: sums._pair(run.setup, key, keys[other].mask, name, other) for other in keys if other != name}
    return run.unmasked(name, others, run.seed_of(name))


def by_impersonation(run: SecureSum) -> np.ndarray:
    """The first site is told keys of the coordinator's own for all other sites, and shares its secrets with them."""
    known = by_total(run)
    name, sums = FIRST, run.sums
    false = {other: sums.SumSite(run.setup, other, run.keys[other], bytes(32)) for other in run.keys}
    keys = [replace(sums.advertise(one)[1], signature=bytes(64)) for other, one in false.items() if other != name]
    first, own = sums.advertise(run.site(name))
    try:
        first, sealed = sums.share(first, [own, *keys])
    except sums.Refused:
        return known
    told = {one.site: one for one in [own, *keys]}
    false = {other: replace(one, advertised=told) for other, one in false.items()}
    shares = {}
    for one in sealed:
        plain = sums._sealer(false[one.receiver], name, False).decrypt(bytes(12), one.content, run.setup.mark)
        shares[one.receiver] = plain[len(plain) // 2 :]
    chosen = sorted(shares)[: run.setup.threshold]
    weights = sums._weights([sums._place(run.setup, other) for other in chosen])
    seed = sums._joined(weights, [shares[other] for other in chosen])
    back = [
        sums.Sealed(other, name, sums._sealer(false[other], name, True).encrypt(bytes(12), bytes(132), run.setup.mark))
        for other in sorted(shares)
    ]
    run.masked[name] = sums.mask(first, back, run.vectors[name])[1]
    return run.unmasked(name, {other: sums._between(false[other], name) for other in shares}, seed)


def by_guessing(run: SecureSum) -> np.ndarray:
    """Seeds of all masks, if they are short: the seeds of three honest sites that leave small integers behind."""
    known = by_total(run)
    name, sums, keys = FIRST, run.sums, run._known()
    others = [other for other in run.vectors if other != name and other not in run.colluding]
    shared = {other: sums._between(replace(run.sites[other], advertised=keys), name) for other in run.colluding}
    rest = run.unmasked(name, shared, run.seed_of(name)).view(np.uint64)
    signs = [sums._sign_of(name, other) for other in others]
    streams = np.stack([sums._stream(seed.to_bytes(32), 2) for seed in range(SHORT)])
    if len(np.unique(streams[:, 0])) < SHORT:
        return known
    with np.errstate(over="ignore"):  # modulo 2^64
        first, second, third = (sign * streams for sign in signs)
        pairs = (first[:, None] + second[None]).reshape(-1, 2)
        order = np.argsort(pairs[:, 0])
        reach = np.uint64(2**34)  # a sum and its noise are smaller
        for last, one in enumerate(third):
            low = rest[0] - one[0] - reach
            begin, end = np.searchsorted(pairs[order, 0], [low, low + 2 * reach])
            for pair in order[begin:end]:
                left = rest[:2] - one - pairs[pair]
                if np.all(left + reach < 2 * reach):
                    seeds = (*divmod(int(pair), SHORT), last)
                    found = {other: seed.to_bytes(32) for other, seed in zip(others, seeds, strict=True)}
                    return run.unmasked(name, shared | found, run.seed_of(name))
    return known


SHORT = 2**9  # seeds of a generator that is too weak: all of three can be tried
