"""The round between two parts of a linear regression: the standard deviation of y - x·m, at the mean m found so far."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.federated.released_sum import ReleasedSum, total
from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released

MOST_RESIDUAL, LEAST_RESIDUAL = 4.0, 1e-3  # variances of the target: noise may hide a small residual


@register()
@dataclass(frozen=True)
class Residual(ReleasedSum):
    """`Residual(mean)`: an `Algorithm` of one round on standardised records (x, y).

    Each site releases Σ min((y - x·m)², 4) and how many records there are. Its norm is bounded, so nothing is clipped.
    """

    mean: Array

    def zeros(self) -> Tree:
        return jnp.zeros(2, self.mean.dtype)

    def content(self) -> Tree:
        return {"mean": self.mean}

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        del state, kind

        def squares(records: Tree) -> Dense:
            x, y = records
            residuals = jnp.minimum((y - x @ content["mean"]) ** 2, MOST_RESIDUAL)
            return Dense(jnp.stack([residuals, jnp.ones_like(residuals)], axis=1))

        return access.sum(key, squares)

    def scale(self, state: Tree, noise: float) -> Array:
        """The standard deviation, from the sums of all sites. noise: the standard deviation of their total's noise.

        A value below the noise is raised to it: too narrow a guess costs far more than too wide a one.
        """
        squares, count = total(state)
        count = jnp.maximum(count, 1)
        return jnp.sqrt(jnp.clip(squares / count, jnp.clip(noise / count, LEAST_RESIDUAL, 1), 1))
