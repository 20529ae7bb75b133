"""Single mechanisms, whose price is known in closed form."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

from tacit.privacy.events import Adjacency
from tacit.privacy.parts import Part


def single_gaussian(found: Counter[Part]) -> float | None:
    """σ of the one Gaussian mechanism that bare ones compose to (1/σ² adds up); None if there is anything else."""
    if any(part.rate is not None or part.noise != "gaussian" for part in found):
        return None
    return sum(n / part.noise_multiplier**2 for part, n in found.items()) ** -0.5


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """δ of one Gaussian mechanism of sensitivity 1 (Balle & Wang 2018, theorem 8)."""
    upper = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
    return max(0.0, float(upper - math.exp(epsilon + stats.norm.logcdf(-0.5 / sigma - epsilon * sigma))))


def gaussian_epsilon(delta: float, sigma: float) -> float:
    """The inverse of `gaussian_delta`, rounded up: the difference of its two terms keeps some nine digits."""
    delta = delta * (1 - 1e-8)
    if gaussian_delta(0.0, sigma) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, sigma) > delta:
        high *= 2
    return root_of(lambda e: gaussian_delta(e, sigma) - delta, 0.0, high, 1e-13) * (1 + 1e-12)


def pure_epsilon(found: Counter[Part]) -> float:
    """The ε at which δ is 0: Laplace noise has one, Σ log(1 + q(e^{1/b} - 1)); Gaussian noise has none."""
    if any(part.noise != "laplace" for part in found):
        return math.inf
    return sum(n * amplified(1 / part.noise_multiplier, part.rate or 1.0) for part, n in found.items())


def amplified(epsilon: float, rate: float) -> float:
    """ε of a mechanism on a Poisson sample: log(1 + q(e^ε - 1)) (Jälkö 2.25)."""
    if epsilon > 1:
        return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def root_of(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Where a function is 0 between two bounds."""
    return optimize.brentq(function, low, high, xtol=tolerance)  # type: ignore[return-value]  # without full_output


def refuse_sampled_replacement(part: Part, adjacency: Adjacency, accountant: str) -> None:
    """Refuse what an accountant cannot price: fixed-size samples, and samples under replace-one."""
    if part.fixed_size:
        raise ValueError(f"{accountant} does not price fixed-size samples; use the accountant rdp")
    if part.rate is not None and adjacency == "replace-one":
        raise ValueError(f"{accountant} does not price sampling under replace-one; use the accountant pld")
