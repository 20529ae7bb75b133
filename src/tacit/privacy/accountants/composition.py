"""The accountants `basic` and `advanced`: theorems of composition."""

import functools
import math
from collections import Counter

from tacit.privacy.accountants.exact import amplified, gaussian_epsilon, refuse_sampled_replacement
from tacit.privacy.events import Adjacency
from tacit.privacy.parts import Part


@functools.lru_cache(maxsize=4096)
def _single(part: Part, delta: float, adjacency: Adjacency, accountant: str) -> float:
    """ε of one step at δ: the exact Gaussian or Laplace mechanism, amplified by sampling (δ divides by the rate)."""
    refuse_sampled_replacement(part, adjacency, accountant)
    rate = part.rate or 1.0
    if part.noise == "laplace":
        return amplified(1 / part.noise_multiplier, rate)
    return amplified(gaussian_epsilon(min(delta / rate, 0.5), part.noise_multiplier), rate)


def epsilon_of_basic(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """Σ ε_i, with δ in equal parts (Jälkö 2.26)."""
    steps = sum(found.values())
    return sum(count * _single(part, delta / steps, adjacency, "basic") for part, count in found.items())


def epsilon_of_advanced(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """√(2 ln(1/δ') Σ ε_i²) + Σ ε_i (e^ε_i - 1), the best of several splits of δ (Jälkö 2.27); basic if it is less."""
    steps = sum(found.values())
    best = epsilon_of_basic(found, delta, adjacency)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        each = [(_single(part, (1 - share) * delta / steps, adjacency, "advanced"), n) for part, n in found.items()]
        if max(e for e, _ in each) > 300:
            continue
        squares = sum(n * e * e for e, n in each)
        drift = sum(n * e * math.expm1(e) for e, n in each)
        best = min(best, math.sqrt(2 * math.log(1 / (share * delta)) * squares) + drift)
    return best
