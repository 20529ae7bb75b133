"""Clips that follow the gradients, and are paid for: a quantile of norms, and scales of coordinates.

A percentile of the batch's own gradient norms (Liu 2019, 4.3) is a release that the paper does not pay for
(docs/errata.md, 2). Here every release of a gradient also includes, with noise and at the same price, the share of
records within the clip; the clip then goes up or down by a factor (after Andrew et al. 2021):

    b ← b · exp(rate · (target - share within b))

Scales of coordinates (after AdaClip, Pichapati et al. 2019) are computed from gradients released before, at no further
cost.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy.clipping import Limit, rescaled
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.released import Released

FURTHEST = 1e6  # the largest factor between a bound and its start, up or down
MOST_QUANTILE = 0.99
MOST_UNEVEN = 100.0  # coordinates' scales differ by at most this


@dataclass(frozen=True)
class Adaptive:
    """`Adaptive()`: a clip that moves until a share `quantile` of contributions is within it.

    quantile: by default 1 - σ / (2√L) with noise multiplier σ and L slots in a sample on average, from 0.5 to 0.99:
    with little noise, few contributions should be clipped. start: the first clip. rate: how fast the clip moves.
    share: of the squared length by which a unit may move a release, the part that says whether it was within the clip;
    the gradient's noise grows by 1/√(1 - share). per_coordinate: whether each coordinate is also scaled by its earlier
    releases; memory: the weight of old releases in that scale at each step.
    """

    quantile: float | None = None
    start: float = 10.0
    rate: float = 0.2
    share: float = 0.05
    per_coordinate: bool = False
    memory: float = 0.95

    def __post_init__(self) -> None:
        for name in ("quantile", "share", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name}={getattr(self, name)}; expected a number above 0 and below 1")
        if not 0 < self.start < 1e6 or not 0 < self.rate <= 2:
            raise ValueError(f"start={self.start}, rate={self.rate}; expected 0 < start < 1e6 and 0 < rate <= 2")

    def begin(self, like: Tree) -> "AdaptiveState":
        """The state before the first release. like: a tree of the shape of a release."""
        ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), like)
        return AdaptiveState(jnp.asarray(self.start, jnp.result_type(float)), ones, ones)

    def sum(
        self, key: Array, access: Access, contribution: Any, state: "AdaptiveState"
    ) -> "Released[tuple[Tree, AdaptiveState]]":
        """Σ clip(v_i) at the clip and scales of `state`, and the state for the next release."""
        limit = Limit(state.bound, self.share)
        if not self.per_coordinate:
            release = access.sum_within(key, contribution, limit)
            return release.map(lambda found: (found[0], self._moved(access, state, *found)))
        scales = state.scales
        release = access.sum_within(key, lambda records: rescaled(contribution(records), scales), limit)
        return release.map(
            lambda found: (jax.tree.map(jnp.multiply, found[0], scales), self._moved(access, state, *found))
        )

    def _target(self, access: Access) -> float:
        """The quantile; for a schedule, by its noisiest level."""
        if self.quantile is not None:
            return self.quantile
        if not isinstance(access.mechanism, SubsampledGaussian):
            return MOST_QUANTILE
        levels = zip(access.mechanism.noise_multipliers, access.mechanism.sampling_rates, strict=True)
        lost = max(sigma / math.sqrt(rate * access.slots) for sigma, rate in levels) / 2
        return min(max(1 - lost, 0.5), MOST_QUANTILE)

    def _moved(self, access: Access, state: "AdaptiveState", total: Tree, within: Array) -> "AdaptiveState":
        step = jnp.exp(self.rate * (self._target(access) - jnp.clip(within, 0, 1)))
        bound = jnp.clip(state.bound * step, self.start / FURTHEST, self.start * FURTHEST)
        if not self.per_coordinate:
            return AdaptiveState(bound, state.scales, state.squares)
        # In the units of the scales. Squares are relative to their mean, so that the bound alone sets the size.
        told = jax.tree.map(lambda leaf, scale: jnp.square(leaf * scale), total, state.scales)
        told = _relative(told)
        squares = jax.tree.map(lambda old, new: self.memory * old + (1 - self.memory) * new, state.squares, told)
        # In AdaClip's optimum, a scale is proportional to the root of the coordinate's standard deviation.
        limits = 1 / MOST_UNEVEN, MOST_UNEVEN
        scales = _relative(jax.tree.map(lambda leaf: jnp.clip(jnp.sqrt(jnp.sqrt(leaf)), *limits), squares))
        return AdaptiveState(bound, scales, squares)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptiveState:
    """The clip, the scale of each coordinate, and the average of released squares that gives the scales."""

    bound: Array
    scales: Tree
    squares: Tree


def _relative(tree: Tree) -> Tree:
    """The tree divided by the mean of all entries; ones if that mean is not finite and positive."""
    leaves = jax.tree.leaves(tree)
    total = sum(jnp.sum(leaf) for leaf in leaves) / sum(leaf.size for leaf in leaves)
    sound = jnp.isfinite(total) & (total > 0)
    return jax.tree.map(lambda leaf: jnp.where(sound, leaf / jnp.where(sound, total, 1), 1), tree)
