"""Conjugate models: the posterior from one noised release of sufficient statistics."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, FullGaussian, project
from tacit.privacy.clipping import per_record
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.solvers.base import Target

VAGUE = 1e3  # standard deviation of the least certain answer, where the cavity itself is improper


def conjugate(key: Array, target: Target, access: Access) -> Released[Any]:
    """Cavity times the released sum of factors, brought back to the family of `target.start`.

    It makes one release: Σ clip((xy, xxᵀ)/s²) + noise. The rest is post-processing. The noised precision is made
    symmetric and raised to at least the cavity's, or to a vague one's where the cavity is improper. (Noise can take it
    below; skipping such a result would be a decision made by looking at it.) A diagonal answer is the mean-field
    optimum of the full one, not the diagonal of the statistics.

    With `Exact()` the answer is the exact posterior, or its mean-field optimum.
    """
    factor = getattr(target.likelihood, "factor", None)
    if factor is None:
        raise ValueError(f"{type(target.likelihood).__name__} is not conjugate; use a variational solver")
    cavity = target.cavity.full()
    vague = FullGaussian.standard(cavity.precision_mean.shape[0], VAGUE)
    least = jax.tree.map(lambda leaf: leaf.astype(cavity.precision.dtype), vague)
    # All directions at once: the proper directions of an improper cavity say nothing about the answer's.
    floor = jax.tree.map(partial(jnp.where, (cavity - least).is_proper()), cavity, least)

    def finish(total: FullGaussian) -> DiagonalGaussian | FullGaussian:
        symmetric = FullGaussian(total.precision_mean, (total.precision + total.precision.T) / 2)
        tilted = project(cavity + symmetric, floor)
        return tilted if isinstance(target.start, FullGaussian) else tilted.diagonal()

    return access.sum(key, per_record(factor)).map(finish)
