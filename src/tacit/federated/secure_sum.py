"""Secure sums: a coordinator learns the sum of the sites' integers, and nothing else about them.

The pairwise-mask protocol of Bonawitz et al. (2017), in the form that is secure against an active coordinator. Each
function takes a state and a message, and returns the new state and what to send. All secrets of a site in a sum are
derived from one.

| stage     | a site sends                                                              | the coordinator passes on  |
|-----------|---------------------------------------------------------------------------|----------------------------|
| advertise | two fresh public keys, signed                                             | all of them                |
| share     | to each other site, sealed: a share of its mask key and of its seed       | to each site what is for it |
| mask      | its integers plus all masks, signed                                       | which sites did: survivors |
| agree     | its signature on the survivors                                            | all signatures             |
| open      | one share of each site: of its mask key if it is gone, else of its seed   | the sum                    |

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)   mod 2^64

The masks s_uv cancel in the sum if both sites survive. If a site is gone, its mask key is rebuilt from the shares of
`threshold` others; if it survived, its seed b_u is. A site that gave both shares of another would help to unmask it.

Guarantee: against a coordinator and c colluding sites that may deviate from the protocol in any way, the integers of
the other sites are hidden except for the sum over the survivors among them, if 2 · threshold > sites + c. With fewer
than `threshold` survivors nothing is learned, and the sum is refused. A site takes part in a sum once, with one vector;
a site that begins again, with another secret, must not mask a vector in a sum in which it has masked one.

K. Bonawitz et al. (2017). Practical secure aggregation for privacy-preserving machine learning. CCS.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**521 - 1  # of the field of shares: above any secret of 32 bytes
_SHARE = 66  # bytes of an element of the field
_SECRET = 32  # bytes of keys and seeds
LEAST_SITES, MOST_SITES = 3, 10_000
LONGEST = 2**24  # integers of a vector


class Refused(ValueError):
    """A message was refused; the text says why."""


@dataclass(frozen=True)
class SumSetup:
    """Public settings that all know beforehand, and sign with every message.

    name: of this one sum, never used again. roster: the sites, each with the key it signs with. threshold: how many
    must be there at the end. size: how many integers each site has.
    """

    name: str
    roster: Mapping[str, bytes]
    threshold: int
    size: int

    def __post_init__(self) -> None:
        count = len(self.roster)
        if not LEAST_SITES <= count <= MOST_SITES:
            raise ValueError(f"roster of {count} sites; expected {LEAST_SITES} to {MOST_SITES}")
        if len(set(self.roster.values())) < count:
            raise ValueError("two sites of the roster have one key; expected a key of its own for each")
        if not count / 2 < self.threshold <= count:
            raise ValueError(f"threshold={self.threshold} of {count} sites; expected more than half, and at most all")
        if not 1 <= self.size <= LONGEST:
            raise ValueError(f"size={self.size}; expected a whole number from 1 to {LONGEST}")

    @cached_property
    def mark(self) -> bytes:
        """A hash of all settings, which is part of everything that is signed, sealed or derived."""
        roster = {name: key.hex() for name, key in self.roster.items()}
        plain = json.dumps([self.name, roster, self.threshold, self.size], sort_keys=True)
        return hashlib.sha256(b"tacit secure sum 1" + plain.encode()).digest()

    @property
    def colluding(self) -> int:
        """How many sites may collude with the coordinator: the largest c with 2 · threshold > sites + c."""
        return 2 * self.threshold - len(self.roster) - 1


# --- Messages ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advertisement:
    """Two fresh public keys of a site, to seal shares with and to agree on masks, and a hash of its seed."""

    site: str
    seal: bytes
    mask: bytes
    seed: bytes
    signature: bytes


@dataclass(frozen=True)
class Sealed:
    """Shares of a site's two secrets, sealed for one other site."""

    sender: str
    receiver: str
    content: bytes


@dataclass(frozen=True)
class Masked:
    """A site's integers plus all of its masks, modulo 2^64, little-endian."""

    site: str
    content: bytes
    signature: bytes


@dataclass(frozen=True)
class Consent:
    """A site's signature on who survived."""

    site: str
    signature: bytes


@dataclass(frozen=True)
class Opened:
    """For each site one share: of its mask key if it is gone, of its seed if it survived."""

    site: str
    gone: Mapping[str, bytes]
    here: Mapping[str, bytes]
    signature: bytes


# --- A site ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumSite:
    """A site's state in a sum. secret: 32 fresh bytes of its own; identity: the key it signs with.

    heard: a hash of the message answered at each stage. The same message gets the same answer, any other is refused.
    """

    setup: SumSetup
    name: str
    identity: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    heard: tuple[bytes, ...] = ()
    advertised: Mapping[str, Advertisement] = field(default_factory=dict)
    shares: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    survivors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.secret) != _SECRET:
            raise ValueError(f"secret of {len(self.secret)} bytes; expected {_SECRET}")
        if self.setup.roster.get(self.name) != _public(Ed25519PrivateKey.from_private_bytes(self.identity)):
            raise ValueError(f"site {self.name!r} is not in the roster with this key; expected its own entry")


def advertise(site: SumSite) -> tuple[SumSite, Advertisement]:
    """Fresh public keys for this sum."""
    site = _hear(site, 0, b"")
    seal, mask = (_public(X25519PrivateKey.from_private_bytes(_own(site, use))) for use in ("seal", "mask"))
    seed = hashlib.sha256(_own(site, "seed")).digest()
    return site, Advertisement(site.name, seal, mask, seed, _sign(site, "advertise", seal, mask, seed))


def share(site: SumSite, advertisements: Sequence[Advertisement]) -> tuple[SumSite, list[Sealed]]:
    """Shares of this site's mask key and seed, sealed for each of the others that advertised keys."""
    found = checked(site.setup, advertisements)
    own = found.get(site.name)
    if own is None or own != advertise(replace(site, heard=()))[1]:
        raise Refused("the advertised keys that were passed on do not include this site's own")
    site = _hear(site, 1, *(ad.signature for ad in found.values()), *(name.encode() for name in found))
    site = replace(site, advertised=found)
    split = _split(site)
    return site, [
        Sealed(site.name, name, _sealer(site, name, True).encrypt(_NONCE, b"".join(split[name]), site.setup.mark))
        for name in found
        if name != site.name
    ]


def mask(site: SumSite, sealed: Sequence[Sealed], vector: np.ndarray) -> tuple[SumSite, Masked]:
    """The vector of integers plus all masks: one with each site that sealed shares for this one, and its own."""
    if vector.shape != (site.setup.size,) or vector.dtype != np.int64:
        raise ValueError(f"vector of {vector.dtype}{list(vector.shape)}; expected int64[{site.setup.size}]")
    shares = {site.name: _split(site)[site.name]}
    for one in sealed:
        if one.receiver != site.name or one.sender in shares or one.sender not in site.advertised:
            raise Refused(f"shares of {one.sender!r} for {one.receiver!r} do not belong here, or came twice")
        try:
            plain = _sealer(site, one.sender, False).decrypt(_NONCE, one.content, site.setup.mark)
        except InvalidTag:
            raise Refused(f"the shares that {one.sender!r} sealed cannot be opened: they were changed") from None
        if len(plain) != 2 * _SHARE:
            raise Refused(f"the shares that {one.sender!r} sealed are malformed")
        shares[one.sender] = plain[:_SHARE], plain[_SHARE:]
    _enough(site.setup, shares, "sealed shares")
    names = sorted(shares)
    site = _hear(site, 2, vector.tobytes(), *(b"".join(shares[name]) for name in names), *map(str.encode, names))
    total = vector.astype(np.uint64) + _stream(_own(site, "seed"), site.setup.size)
    for name in names:
        if name != site.name:
            total += _sign_of(site.name, name) * _stream(_between(site, name), site.setup.size)
    content = total.astype("<u8").tobytes()
    return replace(site, shares=shares), Masked(site.name, content, _sign(site, "mask", content))


def agree(site: SumSite, survivors: Sequence[str]) -> tuple[SumSite, Consent]:
    """Sign who survived, once, so that the coordinator cannot give different sites different survivors."""
    names = tuple(sorted(survivors))
    if len(set(names)) < len(names) or not set(names) <= set(site.shares) or site.name not in names:
        raise Refused("the survivors are not sites that sealed shares, with this one among them")
    _enough(site.setup, names, "survivors")
    site = _hear(site, 3, *map(str.encode, names))
    return replace(site, survivors=names), Consent(site.name, _sign(site, "agree", *map(str.encode, names)))


def reveal(site: SumSite, consents: Sequence[Consent]) -> tuple[SumSite, Opened]:
    """A share of the mask key of each site that is gone, and of the seed of each that survived. Never both."""
    signers = {one.site: one.signature for one in consents}
    if len(signers) < len(consents) or not set(signers) <= set(site.survivors):
        raise Refused("consents came twice, or from sites that did not survive")
    for name, signature in signers.items():
        _verify(site.setup, name, signature, "agree", *map(str.encode, site.survivors))
    _enough(site.setup, signers, "consents to the survivors")
    site = _hear(site, 4, *(name.encode() + signers[name] for name in sorted(signers)))
    gone = {name: both[0] for name, both in site.shares.items() if name not in site.survivors}
    here = {name: site.shares[name][1] for name in site.survivors}
    return site, Opened(site.name, gone, here, _sign(site, "open", *_flat(gone), *_flat(here)))


# --- The coordinator ---------------------------------------------------------------------------------------------


def checked(setup: SumSetup, advertisements: Sequence[Advertisement]) -> dict[str, Advertisement]:
    """Advertisements by name; refused if one is not signed by the site it names, or if they are too few."""
    found: dict[str, Advertisement] = {}
    for one in advertisements:
        if one.site in found:
            raise Refused(f"two advertisements of {one.site!r}")
        verify(setup, one)
        found[one.site] = one
    _enough(setup, found, "advertised keys")
    return dict(sorted(found.items()))


def verify(setup: SumSetup, message: Advertisement | Consent | Opened, survivors: Sequence[str] = ()) -> None:
    """Refuse a message that is not signed by the site it names. survivors: those that a consent is about."""
    match message:
        case Advertisement(site, seal, mask, seed, signature):
            _verify(setup, site, signature, "advertise", seal, mask, seed)
        case Consent(site, signature):
            _verify(setup, site, signature, "agree", *map(str.encode, sorted(survivors)))
        case Opened(site, gone, here, signature):
            _verify(setup, site, signature, "open", *_flat(gone), *_flat(here))


def received(setup: SumSetup, masked: Masked) -> np.ndarray:
    """A site's masked integers; refused if they are not signed by it, or not of the right size."""
    _verify(setup, masked.site, masked.signature, "mask", masked.content)
    if len(masked.content) != 8 * setup.size:
        raise Refused(f"{masked.site!r} sent {len(masked.content)} bytes; expected {8 * setup.size}")
    return np.frombuffer(masked.content, "<u8").astype(np.uint64)


def total(
    setup: SumSetup,
    advertised: Mapping[str, Advertisement],
    shared: Sequence[str],
    masked: Sequence[Masked],
    opened: Sequence[Opened],
) -> np.ndarray:
    """The sum of the survivors' integers, as int64.

    shared: the sites whose sealed shares were passed on. masked: from all survivors; opened: from enough of them.
    """
    parts = {one.site: received(setup, one) for one in masked}
    if len(parts) < len(masked) or not set(parts) <= set(shared):
        raise Refused("masked integers came twice, or from a site that shared nothing")
    _enough(setup, parts, "survivors")
    for one in opened:
        verify(setup, one)
        if set(one.here) != set(parts) or set(one.gone) != set(shared) - set(parts):
            raise Refused(f"{one.site!r} opened other shares than those of the survivors and of the sites gone")
    if len({one.site for one in opened}) < len(opened):
        raise Refused("opened shares of one site came twice")
    _enough(setup, opened, "opened shares")
    chosen = sorted(opened, key=lambda one: one.site)[: setup.threshold]
    weights = _weights([_place(setup, one.site) for one in chosen])
    result = np.zeros(setup.size, np.uint64)
    for name, part in parts.items():
        seed = _joined(weights, [one.here[name] for one in chosen])
        if seed is None or hashlib.sha256(seed).digest() != advertised[name].seed:
            raise Refused(f"the shares of the seed of {name!r} do not fit: it or another site gave false ones")
        result += part - _stream(seed, setup.size)
    for name in set(shared) - set(parts):
        key = _joined(weights, [one.gone[name] for one in chosen])
        if key is None or _public(X25519PrivateKey.from_private_bytes(key)) != advertised[name].mask:
            raise Refused(f"the shares of the mask key of {name!r} do not fit: it or another site gave false ones")
        for other in parts:
            seed = _pair(setup, key, advertised[other].mask, name, other)
            result -= _sign_of(other, name) * _stream(seed, setup.size)
    return result.astype(np.int64)


# --- Parts -------------------------------------------------------------------------------------------------------

_NONCE = bytes(12)  # each key seals one message, in one direction


def _public(key: Any) -> bytes:
    return key.public_key().public_bytes_raw()


def _derive(secret: bytes, setup: SumSetup, *use: str) -> bytes:
    info = json.dumps(use).encode()
    return HKDF(algorithm=hashes.SHA256(), length=_SECRET, salt=setup.mark, info=info).derive(secret)


def _own(site: SumSite, use: str) -> bytes:
    """A secret of the site in this sum."""
    return _derive(site.secret, site.setup, "own", use, site.name)


def _agreed(key: bytes, public: bytes, name: str) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(key).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order
        raise Refused(f"{name!r} advertised an invalid key") from None


def _sealer(site: SumSite, other: str, is_sender: bool) -> ChaCha20Poly1305:
    """The cipher that seals shares from one site to another."""
    way = (site.name, other) if is_sender else (other, site.name)
    agreed = _agreed(_own(site, "seal"), site.advertised[other].seal, other)
    return ChaCha20Poly1305(_derive(agreed, site.setup, "seal", *way))


def _between(site: SumSite, other: str) -> bytes:
    """The seed of the mask that this site shares with another."""
    return _pair(site.setup, _own(site, "mask"), site.advertised[other].mask, site.name, other)


def _pair(setup: SumSetup, key: bytes, public: bytes, one: str, other: str) -> bytes:
    return _derive(_agreed(key, public, other), setup, "mask", *sorted((one, other)))


def _sign_of(name: str, other: str) -> np.uint64:
    """The sign with which a site adds the mask that it shares with another: 1 or, modulo 2^64, -1."""
    return np.uint64(1) if name < other else np.uint64(2**64 - 1)


def _stream(seed: bytes, size: int) -> np.ndarray:
    """Integers modulo 2^64 from ChaCha20."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _hear(site: SumSite, stage: int, *parts: bytes) -> SumSite:
    """Record the message of a stage; refused out of order, or if a different one was answered there before."""
    mark = _hash(*parts)
    if len(site.heard) < stage:
        raise Refused(f"this message is for stage {stage}, and the sum is at stage {len(site.heard)}")
    if len(site.heard) == stage:
        return replace(site, heard=(*site.heard, mark))
    if site.heard[stage] != mark:
        raise Refused("this stage was answered before, to something else: a site takes part in a sum once")
    return site


def _hash(*parts: bytes) -> bytes:
    """A hash of parts with their lengths, so that no byte can move from one part to the next."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _words(setup: SumSetup, name: str, kind: str, *parts: bytes) -> bytes:
    return b"tacit secure sum" + _hash(setup.mark, name.encode(), kind.encode(), *parts)


def _sign(site: SumSite, kind: str, *parts: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(site.identity).sign(_words(site.setup, site.name, kind, *parts))


def _verify(setup: SumSetup, name: str, signature: bytes, kind: str, *parts: bytes) -> None:
    if name not in setup.roster:
        raise Refused(f"{name!r} is not in the roster")
    try:
        Ed25519PublicKey.from_public_bytes(setup.roster[name]).verify(signature, _words(setup, name, kind, *parts))
    except InvalidSignature:
        raise Refused(f"a message of {name!r} ({kind}) is not signed by it, or was changed") from None


def _enough(setup: SumSetup, found: Any, what: str) -> None:
    if len(found) < setup.threshold:
        raise Refused(f"{what} of {len(found)} sites, below the threshold of {setup.threshold}: nothing is opened")


def _flat(shares: Mapping[str, bytes]) -> list[bytes]:
    return [part for name in sorted(shares) for part in (name.encode(), shares[name])]


# --- Shares (Shamir 1979) over the integers modulo `PRIME` ---------------------------------------------------------


def _place(setup: SumSetup, name: str) -> int:
    """The point at which a site's share of the polynomial is taken: its position in the roster, from 1 on."""
    return sorted(setup.roster).index(name) + 1


def _split(site: SumSite) -> dict[str, tuple[bytes, bytes]]:
    """Shares of the mask key and of the seed for each site that advertised keys."""
    polynomials = []
    for use in ("mask", "seed"):
        width = _SHARE + 8  # a bias of 2^-64 at most
        stream = _stream(_own(site, f"shares of {use}"), site.setup.threshold * width // 8 + 8).tobytes()
        free = [int.from_bytes(stream[j * width : (j + 1) * width]) % PRIME for j in range(site.setup.threshold - 1)]
        polynomials.append([int.from_bytes(_own(site, use)), *free])
    places = {name: place + 1 for place, name in enumerate(sorted(site.setup.roster))}
    return {name: (_at(polynomials[0], places[name]), _at(polynomials[1], places[name])) for name in site.advertised}


def _at(polynomial: Sequence[int], place: int) -> bytes:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value.to_bytes(_SHARE)


def _weights(places: Sequence[int]) -> list[int]:
    """Lagrange weights at 0."""
    found = []
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above, below = above * other % PRIME, below * (other - one) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def _joined(weights: Sequence[int], shares: Sequence[bytes]) -> bytes | None:
    """The secret that shares encode; None if it is out of range."""
    value = sum(weight * int.from_bytes(part) for weight, part in zip(weights, shares, strict=True)) % PRIME
    return value.to_bytes(_SECRET) if value < 2 ** (8 * _SECRET) else None
