"""Keys and marks derived from names."""

import hashlib

import jax
import numpy as np
from jax import Array, lax


def words_of(*names: str) -> np.ndarray:
    """Eight 32-bit words that identify these names; no name contains the separator, which is not printable."""
    return np.frombuffer(hashlib.sha256("\0".join(names).encode()).digest(), "<u4")


@jax.jit
def key_of(key: Array, words: Array) -> Array:
    """The key derived from `key` for these words."""
    return lax.scan(lambda key, word: (jax.random.fold_in(key, word), None), key, words)[0]
