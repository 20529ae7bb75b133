"""Expectations under a one-dimensional Gaussian: what is left of E_q[log p] where θ enters through x·θ only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

NODES = 12  # of the Gauss-Hermite rule: exact for polynomials of degree 23


def over_linear(of_linear: Callable[..., Array], mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    """E[f'(z)] and E[f''(z)] with z ~ N(mean, variance) at each record, where f(z) = of_linear(z, y)."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    nodes = jnp.asarray(points, mean.dtype)
    masses = jnp.asarray(weights / weights.sum(), mean.dtype)
    slope = jax.grad(of_linear)
    over = jax.vmap(jax.vmap(lambda z, y: (slope(z, y), jax.grad(slope)(z, y)), (0, None)), (0, 0))
    first, second = over(mean[:, None] + jnp.sqrt(variance)[:, None] * nodes, y)
    return first @ masses, second @ masses
