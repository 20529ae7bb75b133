"""Sampling: each public slot is chosen independently with the same probability, in work proportional to the sample.

The gap to the next chosen slot is geometric, so a running sum of gaps visits exactly the slots that independent coins
would choose. Gaps come from an exact table (`randomness.Discrete`), not from a float's logarithm, whose rounding
would bias the chance of a slot by up to a part in a thousand. A gap longer than the table is taken in strides: the
geometric distribution has no memory.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from tacit.privacy.randomness import Discrete, draw_from

TABLE_SIZE = 4096
STRIDE = TABLE_SIZE - 1  # the last entry: no choice among this many slots


def default_buffer(slots: int, sampling_rate: float) -> int:
    """Room for the mean and eight standard deviations of the sample size, and a little for small means."""
    mean = slots * sampling_rate
    return min(slots, math.ceil(mean + 8 * math.sqrt(mean * (1 - sampling_rate)) + 8))


@functools.lru_cache(maxsize=64)
def _gaps(sampling_rate: float) -> Discrete:
    """Gap k with probability rate·(1 - rate)^k; the last value stands for every gap from there on."""
    rate = Fraction(sampling_rate)
    keep = 1 - rate
    weights, left = [], Fraction(1)
    for _ in range(STRIDE):
        weights.append(left * rate)
        left *= keep
        # 160 bits are far more than the table's 64; exact fractions would double in length at every power.
        left = Fraction(round(left * 2**160), 2**160) if left.denominator > 2**160 else left
    return Discrete.from_weights([*weights, left])


@dataclass(frozen=True)
class PoissonSampler:
    """Poisson samples of `slots` slots, of which the first `buffer` chosen are kept; one rate for each level."""

    slots: int
    sampling_rates: tuple[float, ...]
    buffer: int

    def __post_init__(self) -> None:
        if not 1 <= self.slots < 2**29:
            raise ValueError(f"slots={self.slots}; expected from 1 to {2**29 - 1}: positions are 32-bit integers")

    @property
    def draws(self) -> int:
        """The length of the batch: the buffer, and one entry for each stride that a long gap can take."""
        return self.buffer + math.ceil(self.slots / STRIDE)

    @partial(jax.jit, static_argnums=0)
    def draw(self, key: Array, level: Array | int = 0) -> tuple[Array, Array]:
        """(indices, chosen), each of length `draws`: the chosen slots in order; where not chosen, index 0.

        Guarantee: before truncation the slots are independent with probability `sampling_rates[level]`, to within
        `draws` · 2⁻⁵² in total variation. They do not depend on the data.
        """
        gaps = draw_from([_gaps(rate) for rate in self.sampling_rates], level, key, (self.draws,))
        is_stride = gaps == STRIDE  # passes over STRIDE slots and chooses none
        steps = jnp.where(is_stride, STRIDE, gaps + 1)
        # A running sum that stops past the last slot: a plain one would wrap around 2³² and choose slots again.
        ends = lax.associative_scan(lambda a, b: jnp.minimum(a + b, self.slots + 1), steps)
        chosen = ~is_stride & (ends <= self.slots)
        chosen = chosen & (jnp.cumsum(chosen, dtype=jnp.int32) <= self.buffer)
        return jnp.where(chosen, ends - 1, 0), chosen
