"""The round before the first: means and standard deviations of numeric columns over all sites, from noised sums.

Each site releases Σ(u, u² - ½, 1) over its records, u = x on [-1, 1] by public bounds; the coordinator adds them up.
The result (`scaling`) standardises records in the same way at every site, and is part of the study's plan from then on.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.tables.scaling import Range, Scaling, release_moments, scaling_of


@register("noise")
@dataclass(frozen=True)
class Moments:
    """`Moments(bounds, noise)`: an `Algorithm` of one round on records x (columns,).

    bounds: public, of each column. noise: the public standard deviation of the noise in one site's sums.
    """

    bounds: Range
    noise: float = 0.0

    def coordinator_init(self, sites: int) -> Tree:
        return jax.tree.map(lambda leaf: jnp.zeros((sites, *leaf.shape), leaf.dtype), self.site_init())

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        return state, {"low": self.bounds.low, "high": self.bounds.high}

    def site_init(self) -> Tree:
        zeros = jnp.zeros_like(self.bounds.low)
        return {"count": zeros[:1], "first": zeros, "second": zeros}

    def kind(self, count: int) -> int:
        del count
        return 0

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        """Uses the site's own bounds, not those that were sent: the clip depends on them."""
        del state, content, kind
        return release_moments(key, access, self.bounds, is_counted=True)

    def answer(self, state: Tree) -> Tree:
        return state

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        return jax.tree.map(lambda all, new: all.at[sites].set(new), state, answers)

    def scaling(self, state: Tree) -> Scaling:
        """Location and scale of each column over all sites."""
        sites = state["count"].shape[0]
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), state)
        return scaling_of(sums, self.bounds, self.noise * math.sqrt(sites))
