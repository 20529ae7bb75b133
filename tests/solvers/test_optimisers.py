"""Optimisers of the sources."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.solvers.optimisers import momentum, with_resets


def changes(optimiser, gradients):
    state, found = optimiser.init(jnp.zeros(1)), []
    with jax.numpy_dtype_promotion("standard"):
        for gradient in gradients:
            change, state = optimiser.update(jnp.array([gradient]), state, jnp.zeros(1))
            found.append(float(change[0]))
    return found


def test_momentum_is_debiased():
    """v_t / (1 - βᵗ) of a constant gradient is that gradient from the first step on."""
    assert changes(momentum(0.1, 0.9), [2.0, 2.0, 2.0]) == pytest.approx([-0.2] * 3, rel=1e-5)
    v = np.array([(1 - 0.9) * 1.0, 0.9 * 0.1 + 0.1 * 3.0])
    assert changes(momentum(1.0, 0.9), [1.0, 3.0]) == pytest.approx(-v / (1 - 0.9 ** np.array([1, 2])), rel=1e-5)


def test_a_reset_forgets():
    plain = changes(optax.adagrad(0.1), [1.0, 1.0, 1.0, 1.0])
    reset = changes(with_resets(optax.adagrad(0.1), 2), [1.0, 1.0, 1.0, 1.0])
    assert reset[:2] == pytest.approx(plain[:2])
    assert reset[2:] == pytest.approx(plain[:2])
    with pytest.raises(ValueError, match="every=0"):
        with_resets(optax.adagrad(0.1), 0)
