"""Clipping: contributions of bounded norm, so that one unit moves a sum by at most the clip.

A batch of contributions is an object with `norms()` and `weighted_sum(weights)`. `Dense` holds one vector (a tree of
arrays) per record; `Linear` holds a_i and x_i where the contribution is a_i·x_i and never builds the products' batch
in memory. `group` adds up the records of one unit, so that a person with several records is clipped as one.
"""

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree

MOST_BOUND = 1e12  # the largest released clip; the least is its inverse
LEAST_SHARE = 1e-6


def _square_norms(tree: Tree) -> Array:
    """Squared L2 norm over all axes but the first."""
    squares = (jnp.sum(jnp.square(leaf.reshape(leaf.shape[0], -1)), axis=1) for leaf in jax.tree.leaves(tree))
    return reduce(jnp.add, squares)


def _column(values: Array, like: Array) -> Array:
    return values.reshape(-1, *(1,) * (like.ndim - 1))


def clip_weights(norms: Array, bound: Array | float) -> Array:
    """The factor min(1, C / ‖v‖₂) that takes each contribution onto the ball of radius C.

    | norm                    | weight |
    |-------------------------|--------|
    | NaN or inf (overflow)   | 0      |
    | 0                       | 1      |
    | C / ‖v‖ underflows       | 0      |
    """
    tiny = jnp.finfo(norms.dtype).tiny
    weights = jnp.minimum(1, bound / jnp.maximum(norms, tiny))
    return jnp.where(jnp.isfinite(norms) & (weights >= tiny), weights, 0)  # below it a weight has lost its digits


def clip_to(tree: Tree, bound: float) -> Tree:
    """Scale a contribution onto the ball of radius `bound`.

    clip(v) = v · min(1, C / ‖v‖₂)

    Guarantee: ‖clip(v)‖₂ ≤ C up to rounding for every input, so one record changes a sum by at most C (add/remove).
    `mechanism` widens its noise by a bound on that rounding (`rounding_margin`).

    | input            | output |
    |------------------|--------|
    | any NaN or inf   | 0      |
    | ‖v‖ = 0          | 0      |
    | ‖v‖ overflows    | 0      |

    >>> float(clip_to(jnp.array([3.0, 4.0]), 1.0)[0])
    0.6...
    """
    batch = Dense(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree))
    return batch.weighted_sum(clip_weights(batch.norms(), bound))


def rounding_margin(dimension: int, dtype: Any) -> float:
    """How far, relative to C, floating point can push a clipped contribution past the ball.

    The computed ‖v‖² of d terms is off by at most (d + 1)u in relative terms whatever the order of summation, its
    root by half of that; the division, the product with v and the cast add a few u. u is the unit roundoff.
    """
    return (dimension / 2 + 8) * float(jnp.finfo(dtype).eps)


def checked(batch: Any, records: int) -> "Dense | Linear | Outer":
    """Check a batch and convert it to the working precision: the bounds here hold for that and for real numbers.

    Half precision overflows, integers wrap and complex squares cancel: each would evade the norm.
    """
    if not isinstance(batch, Dense | Linear | Outer):
        raise ValueError(
            f"a contribution must return Dense, Linear or Outer, not {type(batch).__name__}; see per_record"
        )
    if not isinstance(batch, Dense):
        for a, x in zip(jax.tree.leaves(batch.coefficients), jax.tree.leaves(batch.features), strict=True):
            if a.ndim != 1 or x.ndim != 2:
                shapes = f"{a.shape} and {x.shape}"
                raise ValueError(f"linear contributions of shapes {shapes}; expected (batch,) and (batch, dimension)")
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
    if rows != {records}:
        raise ValueError(f"contributions of {sorted(rows)} rows for {records} records; expected one for each record")
    if any(jnp.iscomplexobj(leaf) for leaf in jax.tree.leaves(batch)):
        raise ValueError("complex contributions; expected real numbers, such as real and imaginary parts")
    return jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), batch)


class Contributions(Protocol):
    """A batch of contributions, one to a record or unit."""

    def norms(self) -> Array:
        """The L2 norm of each contribution, shape (batch,). NaN or inf where the contribution has one."""
        ...

    def weighted_sum(self, weights: Array) -> Tree:
        """Σ weights_i v_i, where weight 0 removes even NaN."""
        ...

    def rounded_sum(self, weights: Array, spacing: Array | float, limb_bits: int) -> tuple[Tree, Tree]:
        """Σ round(weights_i v_i / spacing), exactly, as integers high · 2^limb_bits + low (see `noise.Lattice`)."""
        ...

    def group(self, present: Array) -> "Contributions":
        """One contribution per unit: `present` (units, records) says which of the consecutive records exist."""
        ...


@partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=[])
@dataclass(frozen=True)
class Dense:
    """Contributions as they are: a tree of arrays with the batch in front."""

    tree: Tree

    def norms(self) -> Array:
        return jnp.sqrt(_square_norms(self.tree))

    def _weighted(self, weights: Array) -> Tree:
        def scale(leaf: Array) -> Array:
            w = _column(weights.astype(leaf.dtype), leaf)
            return jnp.where(w == 0, 0, w * leaf)

        return jax.tree.map(scale, self.tree)

    def weighted_sum(self, weights: Array) -> Tree:
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), self._weighted(weights))

    def rounded_sum(self, weights: Array, spacing: Array | float, limb_bits: int) -> tuple[Tree, Tree]:
        limbs = jax.tree.map(lambda leaf: integer_sum(leaf / spacing, limb_bits), self._weighted(weights))
        return _unzip(limbs, self.tree)

    def group(self, present: Array) -> "Dense":
        units, records = present.shape

        def add_up(leaf: Array) -> Array:
            split = leaf.reshape(units, records, *leaf.shape[1:])
            return jnp.sum(jnp.where(present.reshape(units, records, *(1,) * (leaf.ndim - 1)), split, 0), axis=1)

        return Dense(jax.tree.map(add_up, self.tree))


@partial(jax.tree_util.register_dataclass, data_fields=["coefficients", "features"], meta_fields=[])
@dataclass(frozen=True)
class Linear:
    """Contributions a_i·x_i of a generalised linear model: norms are |a_i|·‖x_i‖; products are summed as they are made.

    `coefficients` (batch,) and `features` (batch, dimension), or trees of such pairs that are clipped as one vector.
    """

    coefficients: Tree
    features: Tree

    def _trusted(self) -> Tree:
        """Coefficients, 0 where ‖x_i‖² underflows: a norm of 0 would hide a huge a_i.

        Each remaining ‖x_i‖² has lost at most 2⁻²⁶ of the sum to terms flushed to zero, less than its rounding. NaN
        passes through, and makes the norm NaN.
        """

        def one(coefficients: Array, features: Array) -> Array:
            return jnp.where(_square_norms(features) < features.shape[1] * 2.0**-100, 0, coefficients)

        return jax.tree.map(one, self.coefficients, self.features)

    def norms(self) -> Array:
        lengths = jax.tree.map(lambda a, x: jnp.abs(a) * jnp.sqrt(_square_norms(x)), self._trusted(), self.features)
        first, *rest = jax.tree.leaves(lengths)
        return jnp.sqrt(reduce(jnp.add, map(jnp.square, rest), jnp.square(first))) if rest else first

    def weighted_sum(self, weights: Array) -> Tree:
        def one(a: Array, x: Array) -> Array:
            silent = weights == 0
            return jnp.where(silent, 0, weights.astype(x.dtype) * a) @ jnp.where(silent[:, None], 0, x)

        return jax.tree.map(one, self._trusted(), self.features)

    def rounded_sum(self, weights: Array, spacing: Array | float, limb_bits: int) -> tuple[Tree, Tree]:
        def one(a: Array, x: Array) -> tuple[Array, Array]:
            w = weights.astype(x.dtype)[:, None]
            return integer_sum(jnp.where(w == 0, 0, (w * a[:, None]) * x) / spacing, limb_bits)

        return _unzip(jax.tree.map(one, self._trusted(), self.features), self.features)

    def group(self, present: Array) -> "Contributions":
        if present.shape[1] == 1:
            coefficients = jax.tree.map(lambda a: jnp.where(present[:, 0], a, 0), self.coefficients)
            return Linear(coefficients, jax.tree.map(lambda x: jnp.where(present, x, 0), self.features))
        products = jax.tree.map(lambda a, x: a[:, None] * x, self.coefficients, self.features)
        return Dense(products).group(present)


@partial(jax.tree_util.register_dataclass, data_fields=["coefficients", "features"], meta_fields=[])
@dataclass(frozen=True)
class Outer:
    """Contributions a_i·x_i·x_iᵀ, curvatures of a generalised linear model: norms are |a_i|·‖x_i‖².

    `coefficients` (batch,) and `features` (batch, dimension); a sum is a (dimension, dimension) matrix. Noise on it is
    not symmetric: the mean of a release and its transpose has 1/√2 of the noise off the diagonal.
    """

    coefficients: Array
    features: Array

    def _trusted(self) -> Array:
        """Coefficients, 0 where ‖x_i‖² underflows, as for `Linear`."""
        return jnp.where(_square_norms(self.features) < self.features.shape[1] * 2.0**-100, 0, self.coefficients)

    def norms(self) -> Array:
        return jnp.abs(self._trusted()) * _square_norms(self.features)

    def _weighted(self, weights: Array) -> tuple[Array, Array]:
        """(w_i a_i x_i, x_i). A w_i a_i that lost digits to underflow is 0: a huge x_i would take it past the clip."""
        scale = weights.astype(self.features.dtype) * self._trusted()
        silent = (weights == 0) | (jnp.abs(scale) < jnp.finfo(scale.dtype).tiny)
        x = jnp.where(silent[:, None], 0, self.features)
        return jnp.where(silent, 0, scale)[:, None] * x, x

    def weighted_sum(self, weights: Array) -> Array:
        first, x = self._weighted(weights)
        return first.T @ x

    def rounded_sum(self, weights: Array, spacing: Array | float, limb_bits: int) -> tuple[Array, Array]:
        first, x = self._weighted(weights)
        return integer_sum(first[:, :, None] * x[:, None, :] / spacing, limb_bits)

    def group(self, present: Array) -> "Contributions":
        if present.shape[1] == 1:
            kept = jnp.where(present[:, 0], self.coefficients, 0)
            return Outer(kept, jnp.where(present, self.features, 0))
        first = self.coefficients[:, None] * self.features
        return Dense(first[:, :, None] * self.features[:, None, :]).group(present)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Limit:
    """A clip that is a released number, and the share of each contribution that reports whether it was within the clip.

    norm: contributions are clipped to it. share: of the squared length by which a unit may move a sum, the part spent
    on reporting whether the unit was within the norm.
    """

    norm: Array
    share: float | Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Limited:
    """Contributions clipped to a released norm b, each joined in one vector with a ±1: whether it was within b.

        (√(1 - s) · C · clip(v_i, b) / b,   √s · C · (±1))

    The vector's norm is at most C = `radius`, the mechanism's clip, for every b. So b may change with every release,
    and the noised count that changes it is part of that same release. units: which units exist; others contribute 0.
    clips: whether anything is clipped; False without privacy. Not for `Outer`, nor for a C above MOST_BOUND: a weight
    above 1 could overflow the product with a tiny x.
    """

    inner: Any
    limit: Limit
    radius: Array
    units: Array
    clips: Array

    @classmethod
    def of(cls, inner: Any, limit: Limit, radius: Array, units: Array, clips: bool) -> "Limited":
        """Bring a limit that is NaN or of extreme size to an ordinary size first, so that no weight overflows."""
        value = jnp.asarray(limit.norm, jnp.result_type(float))
        value = jnp.clip(jnp.where(jnp.isnan(value), 1, value), 1 / MOST_BOUND, MOST_BOUND)
        share = jnp.clip(jnp.nan_to_num(jnp.asarray(limit.share, value.dtype)), LEAST_SHARE, 1 - LEAST_SHARE)
        return cls(inner, Limit(value, share), jnp.asarray(radius, value.dtype), units, jnp.asarray(clips))

    def _scale(self) -> Array:
        return self.radius * jnp.sqrt(1 - self.limit.share) / self.limit.norm

    def norms(self) -> Array:
        """NaN where a contribution's norm is NaN: then the contribution counts for nothing."""
        norms = self.inner.norms()
        kept = jnp.where(self.clips, jnp.minimum(norms, self.limit.norm), norms)
        return jnp.where(self.units, jnp.hypot(self._scale() * kept, self.radius * jnp.sqrt(self.limit.share)), 0)

    def _weights(self, weights: Array) -> tuple[Array, Array]:
        """Weights of contributions and of the count. A factor that lost digits to underflow is 0: it could exceed b."""
        norms = self.inner.norms()
        clipped = jnp.where(self.clips, clip_weights(norms, self.limit.norm), 1)
        factor = weights * clipped * self._scale()
        factor = jnp.where(self.units & (factor >= jnp.finfo(factor.dtype).tiny), factor, 0)
        side = jnp.where(norms <= self.limit.norm, 1, -1).astype(factor.dtype)
        count = jnp.where(self.units, side * (weights * self.radius * jnp.sqrt(self.limit.share)), 0)
        return factor, count

    def weighted_sum(self, weights: Array) -> Tree:
        factor, count = self._weights(weights)
        return self.inner.weighted_sum(factor), jnp.sum(count)

    def rounded_sum(self, weights: Array, spacing: Array | float, limb_bits: int) -> tuple[Tree, Tree]:
        factor, count = self._weights(weights)
        high, low = self.inner.rounded_sum(factor, spacing, limb_bits)
        more_high, more_low = integer_sum(count / spacing, limb_bits)
        return (high, more_high), (low, more_low)

    def back(self, total: Tree, slots: int) -> Tree:
        """Σ clip(v_i, b) in its own units, and the share of `slots` within b, where an empty one counts as half."""
        vector, count = total
        share = 0.5 + 0.5 * count / (slots * self.radius * jnp.sqrt(self.limit.share))
        return jax.tree.map(lambda leaf: leaf / self._scale().astype(leaf.dtype), vector), share


def rescaled(batch: Any, scales: Tree) -> Any:
    """Contributions divided by a public (or released) scale in each coordinate."""
    if isinstance(batch, Outer):
        raise ValueError("scales of coordinates are for Dense and Linear contributions, not Outer; leave them out")

    def divide(leaf: Array, scale: Array) -> Array:
        return leaf / scale.astype(leaf.dtype)

    if isinstance(batch, Linear):
        return Linear(batch.coefficients, jax.tree.map(divide, batch.features, scales))
    return Dense(jax.tree.map(divide, batch.tree, scales))


def integer_sum(scaled: Array, limb_bits: int) -> tuple[Array, Array]:
    """Round each entry to the nearest integer and add up the first axis without error.

    A sum of many integers may pass 32 bits, so it is kept as two: high (int32) · 2^limb_bits + low (uint32), each
    summed on its own. With limb_bits = 0 the whole sum is `high`: the caller must ensure that it fits.
    """
    whole = jnp.round(scaled).astype(jnp.int32)
    if limb_bits == 0:
        return jnp.sum(whole, axis=0, dtype=jnp.int32), jnp.zeros(whole.shape[1:], jnp.uint32)
    low = (whole & jnp.int32((1 << limb_bits) - 1)).astype(jnp.uint32)
    return jnp.sum(whole >> limb_bits, axis=0, dtype=jnp.int32), jnp.sum(low, axis=0, dtype=jnp.uint32)


def _unzip(limbs: Tree, like: Tree) -> tuple[Tree, Tree]:
    outer, inner = jax.tree.structure(like), jax.tree.structure((0, 0))
    return jax.tree.transpose(outer, inner, limbs)


def per_record(function: Any) -> Any:
    """Turn a function of one record into a function of a batch, by `vmap`: the general, dense form."""
    return lambda records: Dense(jax.vmap(function)(records))
