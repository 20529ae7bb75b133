"""ChaCha20 as the RFC has it, keys that know where they come from, and tables that are exact."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy import noise, sampling
from tacit.privacy.randomness import (
    SECURE,
    Discrete,
    chacha20_blocks,
    insecure_key,
    is_secure,
    secure_key,
)


def words(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), dtype="<u4")


RFC_8439 = [  # key, nonce, counter, block: 2.3.2 and appendix A.1, test vectors 1, 2, 3 and 5
    (
        bytes(range(32)).hex(), "000000090000004a00000000", 1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "00" * 32, "00" * 12, 0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32, "00" * 12, 1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01", "00" * 12, 1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00" * 32, "00" * 11 + "02", 0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key_hex", "nonce_hex", "counter", "block"), RFC_8439)
def test_blocks_are_those_of_the_rfc(key_hex, nonce_hex, counter, block):
    found = chacha20_blocks(
        jnp.asarray(words(key_hex)), jnp.array([counter], jnp.uint32), [jnp.uint32(w) for w in words(nonce_hex)]
    )
    assert np.asarray(found).astype("<u4").tobytes().hex() == block


def test_a_random_array_is_the_keystream_in_order():
    data = words(bytes(range(32)).hex())
    key = jax.random.wrap_key_data(jnp.asarray(data), impl=SECURE)
    blocks = chacha20_blocks(jnp.asarray(data), jnp.arange(3, dtype=jnp.uint32), (0, 0, 0))
    assert np.array_equal(jax.random.bits(key, (40,), jnp.uint32), np.asarray(blocks).reshape(-1)[:40])


def test_what_a_key_is_used_for_is_a_separate_stream():
    """Bits, split keys and folded keys of one key share no word (a chance meeting has probability below 1e-6)."""
    key = insecure_key(3)
    bits = jax.random.bits(key, (32,), jnp.uint32)
    split = jax.random.key_data(jax.random.split(key, 4)).reshape(-1)
    folded = [jax.random.key_data(jax.random.fold_in(key, i)) for i in range(4)]
    everything = np.concatenate([bits, split, *folded])
    assert len(set(everything.tolist())) == len(everything)
    assert np.array_equal(split[:8], jax.random.key_data(jax.random.split(key, 2))[0])


def test_keys_work_under_vmap_and_jit_as_alone():
    keys = jax.random.split(insecure_key(1), 3)
    together = jax.jit(jax.vmap(lambda k: jax.random.normal(k, (2,))))(keys)
    alone = jnp.stack([jax.random.normal(k, (2,)) for k in keys])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_bits_of_every_width_are_balanced(dtype):
    """Mean bit of 64,000 within 5 standard errors: false alarm below 1e-6."""
    bits = np.asarray(jax.random.bits(insecure_key(5), (8000,), dtype))
    ones = np.unpackbits(bits.view(np.uint8))
    assert abs(ones.mean() - 0.5) < 5 * 0.5 / np.sqrt(ones.size)


def test_a_key_knows_where_it_comes_from_even_when_traced():
    assert is_secure(secure_key())
    assert not is_secure(insecure_key(0))
    assert not is_secure(jax.random.key(0))
    seen = []
    jax.jit(lambda k: seen.append(is_secure(k)))(jax.random.split(secure_key())[0])
    jax.jit(lambda k: seen.append(is_secure(k)))(insecure_key(1))
    assert seen == [True, False]


def test_secure_keys_differ_and_cannot_be_seeded():
    assert not np.array_equal(jax.random.key_data(secure_key()), jax.random.key_data(secure_key()))
    with pytest.raises(ValueError, match="does not come from a seed"):
        jax.random.key(0, impl=SECURE)
    for seed in (-1, "a", 0.5, None):
        with pytest.raises(ValueError, match=f"insecure_seed={seed!r}; expected a whole number from 0"):
            insecure_key(seed)  # type: ignore[arg-type]


def masses(table: Discrete) -> dict[int, int]:
    """What a table gives each value, out of 2⁶⁴: counted from its buckets, not drawn."""
    size = table.alias.shape[0]
    bucket = 2**64 // size
    found: dict[int, int] = {}
    for i in range(size):
        own = (int(table.threshold[i, 0]) << 32) | int(table.threshold[i, 1])
        for value, mass in ((i, own), (int(table.alias[i]), bucket - own)):
            found[table.first + value] = found.get(table.first + value, 0) + mass
    return {value: mass for value, mass in found.items() if mass}


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40).filter(any))
def test_a_table_holds_its_weights_to_the_last_of_64_bits(weights):
    table = Discrete.from_weights([Fraction(w) for w in weights], first=-3)
    found = masses(table)
    assert sum(found.values()) == 2**64
    for i, weight in enumerate(weights):
        ideal = Fraction(weight, sum(weights)) * 2**64
        assert abs(found.get(i - 3, 0) - ideal) <= len(weights)


def test_the_noise_table_is_a_discrete_gaussian():
    found = masses(noise._table())
    total = sum(np.exp(-(np.arange(-3000, 3001.0) ** 2) / (2 * noise.TABLE_SCALE**2)))
    for k in (-2000, -600, -200, -1, 0, 1, 77, 200, 1000):
        assert found.get(k, 0) / 2**64 == pytest.approx(np.exp(-(k**2) / (2 * noise.TABLE_SCALE**2)) / total, rel=1e-9)


@pytest.mark.parametrize("rate", [1e-6, 0.005, 0.3, 0.999, 1.0])
def test_the_gap_table_is_geometric_with_the_rest_in_its_last_entry(rate):
    found = masses(sampling._gaps(rate))
    for k in (0, 1, 2, 100, 4000):
        ideal = Fraction(rate) * (1 - Fraction(rate)) ** k * 2**64
        assert abs(found.get(k, 0) - ideal) <= sampling.TABLE_SIZE
    rest = (1 - Fraction(rate)) ** sampling.STRIDE * 2**64
    assert abs(found.get(sampling.STRIDE, 0) - rest) <= sampling.TABLE_SIZE


def test_a_table_too_large_is_refused():
    with pytest.raises(ValueError, match="at most 65536"):
        Discrete.from_weights([Fraction(1)] * (2**16 + 1))
