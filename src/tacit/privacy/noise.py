"""Noise: a Gaussian on a lattice, added to integers, so that no bit of the answer leaks the data.

Adding a float to a float leaks: which floats can come out depends on what went in (Mironov 2012; Jin et al. 2022),
and a 24-bit uniform has no tail beyond 5.4 standard deviations. Here everything before the release is an integer.

* The public `Lattice` has spacing g. Each clipped contribution is rounded to it and the integers are added without
  error, so sensitivity is a statement about integers: ‖round(v/g)‖ ≤ (1 + margin)·C/g + √d/2.
* The noise is always the same distribution on the integers, with standard deviation `SCALE`: g is chosen so that
  SCALE is `noise_multiplier` times that sensitivity. Margin and rounding make the noise larger, never smaller.
* One draw is z₁·128² + z₂·128 + z₃ with z_i from an exact table of a discrete Gaussian of standard deviation 200. Such
  a sum is a discrete Gaussian to within 2⁻⁶⁰ (convolution of discrete Gaussians above the smoothing parameter:
  Micciancio & Walter 2017). That is a continuous Gaussian rounded to integers, to within 2⁻⁴⁸ in total variation
  (`DRAW_ERROR`), and rounding commutes with adding integers: the release is post-processing of the Gaussian mechanism.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy.randomness import Discrete

TABLE_SCALE = 200  # standard deviation of the table
TABLE_RADIUS = 2047  # 10.2 standard deviations: the tail beyond has mass 2⁻⁷⁸
STRIDE = 128  # 200 / 128 = 1.56 is above the smoothing parameter of the integers for an error of 2⁻⁶⁸
SCALE = TABLE_SCALE * math.sqrt(STRIDE**4 + STRIDE**2 + 1)
DRAW_ERROR = 2.0**-48
LARGEST = TABLE_RADIUS * (STRIDE * STRIDE + STRIDE + 1)  # of a draw: the noise is bounded
MOST_DRAWS = 2**30 // LARGEST  # that fit in one word together with a sum


@functools.cache
def _table() -> Discrete:
    with localcontext() as context:
        context.prec = 50
        scale = Decimal(-2 * TABLE_SCALE**2)
        half = [Fraction((Decimal(k * k) / scale).exp()) for k in range(TABLE_RADIUS + 1)]
    return Discrete.from_weights(half[:0:-1] + half, first=-TABLE_RADIUS)


def lattice_gaussian(key: Array, shape: tuple[int, ...]) -> Array:
    """Integers (int32) with a Gaussian of standard deviation `SCALE` ≈ 3.3 million."""
    draws = _table().draw(key, (3, *shape))
    return draws[0] * (STRIDE * STRIDE) + draws[1] * STRIDE + draws[2]


@dataclass(frozen=True)
class Lattice:
    """The public grid of a release, fixed by noise multiplier, clip, dimension and batch size.

    `spacings` has one g for each level of a schedule; `limb_bits` splits integer sums in two where they could pass 32
    bits. largest: the largest coordinate of one contribution, in steps of the grid.
    """

    spacings: tuple[float, ...]
    limb_bits: int
    largest: int = 0

    @classmethod
    def of(
        cls,
        clips: Sequence[float],
        noise_multipliers: Sequence[float],
        dimension: int,
        batch: int,
        margin: float,
        shares: int = 1,
    ) -> "Lattice":
        """The grid whose fixed noise is `noise_multiplier` times the sensitivity of a rounded, clipped sum.

        g solves √shares·SCALE·g = σ·((1 + margin)·C + g·√d / 2), at each level; shares: how many draws are added up.
        """
        spacings, largest, scale = [], 0, SCALE * math.sqrt(shares)
        for clip, multiplier in zip(clips, noise_multipliers, strict=True):
            room = scale - multiplier * math.sqrt(dimension) / 2
            if room <= scale / 2:
                raise ValueError(
                    f"noise_multiplier={multiplier} with {dimension} dimensions; the product of the multiplier and "
                    f"the root of the dimension must stay below {scale:.2g}"
                )
            spacings.append(multiplier * (1 + margin) * clip / room)
            # One contribution's largest coordinate, in steps of the lattice.
            largest = max(largest, math.ceil(clip * (1 + margin) / spacings[-1]) + 1)
        return cls(tuple(spacings), _limb_bits(largest, batch), largest)

    def spacing(self, level: Array | int) -> Array:
        """The spacing at a level that may be traced."""
        return jnp.asarray(self.spacings, jnp.result_type(float))[level]

    def add_noise(self, key: Array, high: Tree, low: Tree, level: Array | int = 0, draws: int = 1) -> Tree:
        """The sum's integers plus noise, times the spacing."""
        noised, treedef = self._noised(key, high, low, draws)
        spacing = self.spacing(level)
        if self.limb_bits == 0:
            return jax.tree.unflatten(treedef, [high.astype(spacing.dtype) * spacing for high, _ in noised])
        unit = float(1 << self.limb_bits)
        released = [(high.astype(spacing.dtype) * unit + low.astype(spacing.dtype)) * spacing for high, low in noised]
        return jax.tree.unflatten(treedef, released)

    def words(self, key: Array, high: Tree, low: Tree) -> tuple[Array, Array]:
        """The sum's integers plus noise, all in one row, as the upper (signed) and lower halves of 64 bits."""
        bits, found = self.limb_bits, []
        for upper, lower in self._noised(key, high, low, 1)[0]:
            if bits == 0:
                found.append((upper >> 31, upper.astype(jnp.uint32)))
            else:
                found.append((upper >> (32 - bits), (upper.astype(jnp.uint32) << bits) | lower))
        return tuple(jnp.concatenate([half.reshape(-1) for half in halves]) for halves in zip(*found, strict=True))  # type: ignore[return-value]

    def _noised(self, key: Array, high: Tree, low: Tree, draws: int) -> tuple[list[tuple[Array, Array]], Any]:
        """Both parts of each leaf, with the sum of `draws` draws of noise.

        Noise is added before carrying between the two parts, so the result is a function of the noised total alone.
        """
        if not 1 <= draws <= MOST_DRAWS:
            raise ValueError(f"draws={draws} of noise in one sum; expected 1 to {MOST_DRAWS}")
        leaves, treedef = jax.tree.flatten(high)
        size = sum(leaf.size for leaf in leaves)
        noise = jnp.sum(lattice_gaussian(key, (draws, size)), axis=0, dtype=jnp.int32)
        noised, start = [], 0
        for leaf, rest in zip(leaves, jax.tree.leaves(low), strict=True):
            z = noise[start : start + leaf.size].reshape(leaf.shape)
            start += leaf.size
            noised.append(self._carried(leaf, rest, z))
        return noised, treedef

    def _carried(self, high: Array, low: Array, noise: Array) -> tuple[Array, Array]:
        bits = self.limb_bits
        if bits == 0:
            return high + noise, low
        mask = (1 << bits) - 1
        low = low + (noise & jnp.int32(mask)).astype(jnp.uint32)
        high = high + (noise >> bits) + (low >> bits).astype(jnp.int32)
        return high, low & jnp.uint32(mask)


def _limb_bits(largest: int, batch: int) -> int:
    """0 if `batch` integers of size `largest` fit in one word, else how many bits the low word keeps of each.

    The high word is signed and leaves half its range to noise and carries; the low word is unsigned.
    """
    if largest * batch < 2**30:
        return 0
    bits = 31 - batch.bit_length()
    if bits < 1 or largest >= 2**30 or ((largest >> bits) + 1) * batch >= 2**30:
        raise ValueError(
            f"a batch of {batch} contributions at this noise multiplier is too large for exact sums; "
            "lower the sampling rate or raise the noise multiplier"
        )
    return bits
