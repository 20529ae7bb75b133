"""The rounds before the first: ranges, then means and standard deviations, of numbers over all sites, by noised sums.

Each site releases a histogram of the orders of magnitude of the columns that have no public bounds (`Ranges`), and
Σ(u, u² - ½, 1) over its records, u = x on [-1, 1] by the ranges (`Moments`); the coordinator adds them up. The result
standardises records in the same way at every site, and is part of the study's plan from then on.
"""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.federated.released_sum import ReleasedSum, total
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.tables.scaling import BINS, Range, Scaling, range_of, release_histogram, release_moments, scaling_of


@register("noise", "unknown")
@dataclass(frozen=True)
class Ranges(ReleasedSum):
    """`Ranges(bounds, unknown, noise)`: an `Algorithm` of one round on records x (columns,).

    bounds: public, of each column. unknown: the columns without any, whose ranges are found. noise: the public standard
    deviation of the noise in one site's sum.
    """

    bounds: Range
    unknown: tuple[int, ...]
    noise: float = 0.0

    def zeros(self) -> Tree:
        return jnp.zeros((len(self.unknown), BINS), self.bounds.low.dtype)

    def content(self) -> Tree:
        return {"low": self.bounds.low, "high": self.bounds.high}

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        """Nothing that was sent enters the histogram."""
        del state, content, kind
        places = np.array(self.unknown)
        return release_histogram(key, access.map(lambda x: x[places]))

    def range(self, state: Tree) -> Range:
        """The range of each column over all sites."""
        found = range_of(total(state), self.noise * math.sqrt(state.shape[0]))
        places = np.array(self.unknown)
        return Range(self.bounds.low.at[places].set(found.low), self.bounds.high.at[places].set(found.high))


@register("noise")
@dataclass(frozen=True)
class Moments(ReleasedSum):
    """`Moments(bounds, noise)`: an `Algorithm` of one round on records x (columns,).

    bounds: public or released, of each column. noise: the public standard deviation of the noise in one site's sums.
    """

    bounds: Range
    noise: float = 0.0

    def zeros(self) -> Tree:
        zeros = jnp.zeros_like(self.bounds.low)
        return {"count": zeros[:1], "first": zeros, "second": zeros}

    def content(self) -> Tree:
        return {"low": self.bounds.low, "high": self.bounds.high}

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        """Uses the site's own bounds, not those that were sent: they are part of what it agreed to."""
        del state, content, kind
        return release_moments(key, access, self.bounds)

    def scaling(self, state: Tree) -> Scaling:
        """Location and scale of each column over all sites."""
        sites = state["count"].shape[0]
        return scaling_of(total(state), self.bounds, self.noise * math.sqrt(sites))

    def with_noise(self, noise: float) -> "Moments":
        """The same algorithm with the noise of one site on average."""
        return replace(self, noise=noise)
