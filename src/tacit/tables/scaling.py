"""Location and scale of numbers: from public bounds, or as paid releases.

With standardised features, one clip and one prior serve all columns. Means and standard deviations of private records
are private themselves, so they are released with noise. Without public bounds, the range of each column is found
first, from a noised histogram of orders of magnitude.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released

LEAST_POWER, MOST_POWER = -16, 32  # of two: smaller numbers count as 0, larger ones as 2^MOST_POWER
BINS = 2 * (MOST_POWER - LEAST_POWER + 1) - 1  # between the edges ±2^power
GUESSED_MEAN, GUESSED_SPREAD = 0.4, 0.2  # of a column on [-1, 1]: sds of its mean and of its values
LEAST_VARIANCE = 1e-6  # of a column on [-1, 1]: keeps a constant column finite
MISSED = 0.01  # the probability that noise alone shows an empty bin


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Range:
    """Lowest and highest value of each column; values outside are moved to the nearer end."""

    low: Array
    high: Array

    def to_unit(self, x: Array) -> Array:
        """Map [low, high] onto [-1, 1]. NaN stays NaN."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return jnp.clip((x - middle) / half, -1, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scaling:
    """(x - location) / scale, after x was moved into its range.

    residual: the standard deviation of a linear regression's target around its mean, in units of its scale, once known.
    """

    range: Range
    location: Array
    scale: Array
    residual: Any = None

    def __call__(self, x: Array) -> Array:
        return (jnp.clip(x, self.range.low, self.range.high) - self.location) / self.scale


def release_histogram(key: Array, access: Access) -> Released[Array]:
    """The noised histogram (columns, bins) of the orders of magnitude of each column of records x (columns,).

    A bin counts numbers of one sign between two powers of two.
    """
    edges = _edges()

    def histogram(records: Array) -> Dense:
        def one(x: Array) -> Array:
            places = jnp.searchsorted(edges, x, side="right").astype(jnp.int32)  # 0 ... len(edges)
            inside = jnp.clip(places, 1, len(edges) - 1)
            shown = jax.nn.one_hot(inside - 1, len(edges) - 1, dtype=x.dtype)
            return jnp.where(jnp.isfinite(x)[:, None], shown, 0)

        return Dense(jax.vmap(one)(records))

    return access.sum(key, histogram)


def range_of(counts: Array, noise: float | Array) -> Range:
    """The range of each column from a noised histogram. noise: the standard deviation of its noise, which is public.

    A column's range runs between the outer edges of its shown bins, or is [-1, 1] if none is shown. A bin is shown if
    its count passes a threshold that noise alone passes in any bin of any column with probability 1 % at most.
    """
    edges = _edges()
    threshold = noise * math.sqrt(2 * math.log(counts.size / MISSED)) + 0.5
    shown = counts > threshold
    none = ~jnp.any(shown, axis=1)
    first = jnp.argmax(shown, axis=1)
    last = shown.shape[1] - 1 - jnp.argmax(shown[:, ::-1], axis=1)
    return Range(jnp.where(none, -1, edges[first]), jnp.where(none, 1, edges[last + 1]))


def _edges() -> Array:
    """Powers of two, from the most negative to the most positive: bin b holds [edges[b], edges[b + 1])."""
    powers = np.arange(LEAST_POWER, MOST_POWER + 1)
    return jnp.asarray(np.concatenate([-(2.0 ** powers[::-1]), 2.0**powers]), jnp.result_type(float))


def histogram_clip(columns: int, most_records: int = 1) -> float:
    """The largest norm of one unit's contribution to `release_histogram`, so that nothing is clipped."""
    return most_records * math.sqrt(columns)


def release_moments(key: Array, access: Access, found: Range) -> Released[dict[str, Array]]:
    """Noised sums of u and u² - ½ over records x (columns,), u = x on [-1, 1], and the number of records."""

    def moments(records: Array) -> Dense:
        u = found.to_unit(records)
        return Dense({"first": u, "second": u**2 - 0.5, "count": jnp.ones_like(u[:, :1])})

    return access.sum(key, moments)


def scaling_of(sums: dict[str, Array], found: Range, noise: float | Array) -> Scaling:
    """Location and scale from noised sums. noise: its standard deviation, which is public.

    If the noise is larger than a column's likely spread, both are shrunk towards a public guess of columns on [-1, 1]:
    means around 0 with standard deviation GUESSED_MEAN, and values with standard deviation GUESSED_SPREAD. A variance
    below the noise's standard deviation is raised to it, but not beyond the guess, so that noise inflates no column.
    """
    count = jnp.maximum(sums["count"], 1)
    error = noise / count
    first = jnp.clip(sums["first"] / count, -1, 1)
    variance = sums["second"] / count + 0.5 - first**2
    first = first * (GUESSED_MEAN**2 / (GUESSED_MEAN**2 + error**2))
    guess = GUESSED_SPREAD**2
    variance = guess + (variance - guess) * (guess**2 / (guess**2 + error**2))
    variance = jnp.clip(variance, jnp.clip(error, LEAST_VARIANCE, guess), 1)
    middle, half = (found.low + found.high) / 2, (found.high - found.low) / 2
    return Scaling(found, middle + half * first, half * jnp.sqrt(variance))


def moments_clip(columns: int, most_records: int = 1) -> float:
    """The largest norm of one unit's sum of (u, u² - ½, 1) with |u| ≤ 1, so that nothing is clipped."""
    return most_records * math.sqrt(1.25 * columns + 1)
