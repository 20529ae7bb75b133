"""Randomness: a ChaCha20 generator behind JAX's key interface, and exact draws from small discrete distributions.

Differential privacy is a statement about a distribution, so the generator must be unpredictable and the draws must
have that distribution to far more digits than a float has. Keys from `secure_key` come from the operating
system and drive ChaCha20 (RFC 8439). Keys from `insecure_key(seed)` drive the same generator from a seed, for
simulations and tests only; their *type* differs, so a release records which kind was used, under `jit` too.
"""

import math
import operator
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import define_prng_impl

KEY_WORDS = 8  # ChaCha20 has a 256-bit key
BLOCK_WORDS = 16
DOUBLE_ROUNDS = 10  # twenty rounds
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")

# The nonce's first word separates what a key is used for: no stream is ever read for two purposes.
_BITS, _SPLIT, _FOLD, _SEED = 0, 1, 2, 3


def _rotate(x: Array, bits: int) -> Array:
    return (x << jnp.uint32(bits)) | (x >> jnp.uint32(32 - bits))


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _double_round(rows: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Four column rounds at once, then four diagonal rounds by rolling the rows."""
    a, b, c, d = _quarter_rounds(*rows)
    a, b, c, d = _quarter_rounds(a, jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0))
    return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)


@partial(jax.jit, inline=True)  # compiled once for each size, also where keys are split outside of a program
def chacha20_blocks(key: Array, counter: Array, nonce: Sequence[Array | int]) -> Array:
    """ChaCha20's block function (RFC 8439, 2.3) for many counters at once.

    key: 8 words; counter: n words; nonce: 3 words, plain integers below 2³¹. Returns (n, 16) words.
    """
    n = counter.shape[0]
    fixed = [jnp.asarray(word, jnp.uint32) for word in (*_CONSTANTS, *(key[i] for i in range(KEY_WORDS)))]
    words = [jnp.broadcast_to(word, (n,)) for word in fixed]
    words += [counter, *(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), (n,)) for word in nonce)]
    start = tuple(jnp.stack(words[4 * i : 4 * i + 4]) for i in range(4))
    end = lax.fori_loop(0, DOUBLE_ROUNDS, lambda _, rows: _double_round(rows), start)
    return jnp.stack([x + y for x, y in zip(start, end, strict=True)]).reshape(BLOCK_WORDS, n).T


def _words(key: Array, count: int, nonce: Sequence[Array | int]) -> Array:
    """`count` words of the stream of (key, nonce)."""
    blocks = -(-count // BLOCK_WORDS)
    if blocks > 2**32:
        raise ValueError(f"{count} words requested from one key; ChaCha20's counter ends at {2**36}: split the key")
    return chacha20_blocks(key, jnp.arange(blocks, dtype=jnp.uint32), nonce).reshape(-1)[:count]


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    dtype = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[bit_width]
    size = math.prod(shape)
    words = _words(key, max(1, -(-size * bit_width // 32)), (_BITS, 0, 0))
    if bit_width == 64:
        pairs = words.reshape(size, 2).astype(jnp.uint64)
        flat = (pairs[:, 0] << jnp.uint64(32)) | pairs[:, 1]
    elif bit_width == 32:
        flat = words
    else:
        flat = lax.bitcast_convert_type(words, dtype).reshape(-1)
    return flat[:size].reshape(shape)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _words(key, math.prod(shape) * KEY_WORDS, (_SPLIT, 0, 0)).reshape(*shape, KEY_WORDS)


def _fold_in(key: Array, data: Array | int) -> Array:
    return _words(key, KEY_WORDS, (_FOLD, jnp.asarray(data).astype(jnp.uint32), 0))


def _seed(seed: Array) -> Array:
    """A key from at most 64 bits: for simulations. A secure key never comes this way."""
    seed = jnp.asarray(seed)
    words = lax.bitcast_convert_type(seed, jnp.uint32).reshape(-1)
    zeros = jnp.zeros(KEY_WORDS - words.shape[0], jnp.uint32)
    return _words(jnp.concatenate([words, zeros]), KEY_WORDS, (_SEED, 0, 0))


def _no_seed(_: Array) -> Array:
    raise ValueError("a secure key does not come from a seed; call secure_key(), or insecure_key(seed) to simulate")


_chacha20 = partial(define_prng_impl, key_shape=(KEY_WORDS,), split=_split, random_bits=_random_bits, fold_in=_fold_in)
SECURE = _chacha20(seed=_no_seed, name="tacit_chacha20", tag="tcc")
SEEDED = _chacha20(seed=_seed, name="tacit_chacha20_seeded", tag="tcs")


def secure_key() -> Array:
    """A fresh key of 256 bits from the operating system. For real data. Never print it: it removes the noise."""
    if is_tracing():
        raise ValueError("secure_key() inside jit would be drawn once and used on every call; pass the key in")
    words = np.frombuffer(secrets.token_bytes(4 * KEY_WORDS), dtype="<u4")
    return jax.random.wrap_key_data(jnp.asarray(words), impl=SECURE)


def insecure_key(seed: int) -> Array:
    """A key from a seed: repeatable, so anyone who guesses the seed removes the noise. For simulations and tests."""
    try:
        is_known = 0 <= operator.index(seed) < 2**32
    except TypeError:
        is_known = False
    if not is_known:
        raise ValueError(f"insecure_seed={seed!r}; expected a whole number from 0 to {2**32 - 1}")
    return jax.random.key(np.uint32(seed), impl=SEEDED)


def is_secure(key: Array) -> bool:
    """Whether `key` descends from `secure_key` (static: true of tracers as well)."""
    return str(jax.random.key_impl(key)) == str(SECURE)


def is_tracing() -> bool:
    """Whether a program is being compiled, so that a value made now would be the same on every run of it."""
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def witness(*keys: Array) -> Array:
    """A scalar of key type that is the same for all keys, and becomes an array under `vmap` over keys.

    It reveals nothing about them: all its bits are 0. No arithmetic accepts it: it can be counted, not averaged.
    """
    zeros = jnp.zeros(KEY_WORDS, jnp.uint32)
    for key in keys:
        zeros = zeros | (jax.random.key_data(key).reshape(-1)[:1] & jnp.uint32(0))
    return jax.random.wrap_key_data(zeros, impl=SEEDED)


@dataclass(frozen=True)
class Discrete:
    """An exact distribution over the integers first, first + 1, ...: an alias table with 64-bit probabilities.

    Each probability is a multiple of 2⁻⁶⁴; the table's total variation distance from the weights it was built from is
    at most len(weights) · 2⁻⁶⁴. It consists of integers, so no draw involves a float.
    """

    first: int
    threshold: np.ndarray  # (size, 2) uint32: high and low word; below it the bucket's own value, else the alias
    alias: np.ndarray  # (size,) int32

    @classmethod
    def from_weights(cls, weights: Sequence[Fraction], first: int = 0) -> "Discrete":
        """The distribution proportional to `weights`; their number is padded to a power of two with weight 0."""
        size = 1 << max(1, (len(weights) - 1).bit_length())
        if size > 2**16:
            raise ValueError(f"{len(weights)} weights; an alias table holds at most {2**16}")
        bucket = 2**64 // size  # each bucket's share, so all buckets together are 2⁶⁴
        total = sum(weights, Fraction(0))
        mass = [int(w * 2**64 / total) for w in weights] + [0] * (size - len(weights))
        mass[max(range(size), key=mass.__getitem__)] += 2**64 - sum(mass)
        threshold, alias = [bucket] * size, list(range(size))
        small = [i for i in range(size) if mass[i] < bucket]
        large = [i for i in range(size) if mass[i] >= bucket]
        while small and large:
            i, j = small.pop(), large.pop()
            threshold[i], alias[i] = mass[i], j
            mass[j] -= bucket - mass[i]
            (small if mass[j] < bucket else large).append(j)
        # A threshold is compared with the 64 - log2(size) bits that the bucket's index leaves over.
        words = np.array([[t >> 32, t & 0xFFFFFFFF] for t in threshold], dtype=np.uint64).astype(np.uint32)
        return cls(first, words, np.array(alias, dtype=np.int32))

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Integers (int32) with this distribution: two random words a draw, no float."""
        return draw_from((self,), 0, key, shape)


def draw_from(tables: Sequence[Discrete], level: Array | int, key: Array, shape: tuple[int, ...]) -> Array:
    """Integers (int32) with the distribution of `tables[level]`, where `level` may be traced.

    The top log2(size) bits choose a bucket; the other bits, an integer below 2⁶⁴ / size, are compared with its
    threshold.
    """
    bits = jax.random.bits(key, (2, *shape), jnp.uint32)
    thresholds = jnp.asarray(np.stack([table.threshold for table in tables]))[level]
    aliases = jnp.asarray(np.stack([table.alias for table in tables]))[level]
    index_bits = tables[0].alias.shape[0].bit_length() - 1
    bucket = (bits[0] >> jnp.uint32(32 - index_bits)).astype(jnp.int32)
    high = bits[0] & jnp.uint32((1 << (32 - index_bits)) - 1)
    threshold = thresholds[bucket]
    below = (high < threshold[..., 0]) | ((high == threshold[..., 0]) & (bits[1] < threshold[..., 1]))
    return jnp.where(below, bucket, aliases[bucket]) + jnp.int32(tables[0].first)
