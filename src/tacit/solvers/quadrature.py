"""Expectations under a one-dimensional Gaussian, to which E_q[log p] reduces where θ enters through x·θ only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

NODES = 12  # of the Gauss-Hermite rule: exact for polynomials of degree 23


def over_linear(of_linear: Callable[..., Array], mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    """E[f'(z)] and E[f''(z)] with z ~ N(mean, variance) at each record, where f(z) = of_linear(z, y)."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    rule = jnp.asarray(np.stack([points, weights / weights.sum()], axis=1), mean.dtype)
    sd = jnp.sqrt(variance)

    def derivatives(z: Array, y: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda z: jax.grad(of_linear)(z, y), (z,), (jnp.ones_like(z),))

    def add(sums: tuple[Array, Array], node: Array) -> tuple[tuple[Array, Array], None]:
        first, second = jax.vmap(derivatives)(mean + sd * node[0], y)
        return (sums[0] + node[1] * first, sums[1] + node[1] * second), None

    # Node by node: each node is vectorised over records, and no array of all nodes is made.
    return lax.scan(add, (jnp.zeros_like(mean), jnp.zeros_like(mean)), rule)[0]
