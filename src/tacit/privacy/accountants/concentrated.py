"""The accountants `zcdp` and `tcdp`."""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
from scipy import optimize

from tacit.privacy.accountants.renyi import ORDERS, rdp_of_parts, refuse_truncated
from tacit.privacy.checks import check_delta
from tacit.privacy.events import Adjacency, Event, check_adjacency, check_number
from tacit.privacy.parts import Part, parts


def renyi_spread(alpha: Any, delta: float) -> Any:
    """The term that turns a divergence at order α into ε = D_α + this (Canonne, Kamath & Steinke 2020, prop. 12)."""
    return (math.log(1 / delta) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (alpha - 1)


def zcdp_rho(event: Event, adjacency: Adjacency = "add-remove") -> float:
    """The ρ for which `event` is ρ-zCDP, in theory: D_α ≤ ρα for all α > 1. ρ adds up; inf if there is none.

    ρ is 1/(2σ²) for Gaussian noise σ relative to the sensitivity, and for Laplace noise of that scale. Refuses samples.
    ρ leaves out the error of drawn noise: `epsilon` pays for it out of δ.

    >>> from tacit.privacy import events
    >>> zcdp_rho(events.Repeated(events.Gaussian(2.0), 4))
    0.5
    """
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    return math.inf if found is None else _zcdp_rho(found)


def _zcdp_rho(found: Counter[Part]) -> float:
    for part in found:
        if part.rate is not None:
            raise ValueError("zcdp has no amplification by sampling; use the accountant tcdp or, tightly, pld")
    return sum(count * _bare_rho(part) for part, count in found.items())


def _bare_rho(part: Part) -> float:
    """ρ of the mechanism without sampling: Gaussian; and (1/b)²/2 for Laplace, the same formula."""
    return 1 / (2 * part.noise_multiplier**2)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least ε for which ρ-zCDP is known to be (ε, δ)-private (Canonne, Kamath & Steinke 2020).

    ε = min over α > 1 of ρα + (ln(1/δ) + (α - 1) ln(1 - 1/α) - ln α) / (α - 1)

    >>> round(zcdp_epsilon(0.5, 1e-5), 3)
    4.728
    """
    return tcdp_epsilon(rho, math.inf, delta)


def tcdp_epsilon(rho: float, omega: float, delta: float) -> float:
    """The least ε for which (ρ, ω)-tCDP is known to be (ε, δ)-private: `zcdp_epsilon` with orders 1 < α < ω only.

    >>> round(tcdp_epsilon(0.5, 3.0, 1e-5), 3)
    6.302
    """
    check_number("rho", rho, "a number of at least 0", rho >= 0)
    if omega != math.inf:
        check_omega(omega)
    check_delta(delta)
    if rho in (0, math.inf):
        return float(rho)  # two equal distributions, or no guarantee at all

    def bound(log_excess: Any) -> Any:
        alpha = 1 + np.exp(log_excess)
        return rho * alpha + renyi_spread(alpha, delta)

    # A valley in log(α - 1): bracket it on a grid, then find its bottom. The value at α = ω is the limit from below.
    grid = np.linspace(LEAST_LOG_EXCESS, min(30.0, math.log(omega - 1)), 400)
    best = int(np.argmin(bound(grid)))
    ends = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    valley = optimize.minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 1e-12})
    return max(0.0, min(float(valley.fun), float(bound(grid[best]))))


LEAST_LOG_EXCESS = -30.0  # of the order α: floats cannot tell an order closer to 1 from 1


def check_omega(omega: Any) -> None:
    """Refuse an ω that is not a finite number of at least 1.001: closer to 1, floats lose the divergence."""
    valid = isinstance(omega, int | float) and math.isfinite(omega) and omega >= 1.001
    check_number("omega", omega, "a finite number of at least 1.001", valid)


def epsilon_of_zcdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """The accountant `zcdp`."""
    del adjacency  # bare multipliers are relative to it already
    return zcdp_epsilon(_zcdp_rho(found), delta)


def tcdp_rho(event: Event, omega: float, adjacency: Adjacency = "add-remove") -> float:
    """A ρ for which `event` is (ρ, ω)-tCDP, in theory: D_α ≤ ρα for 1 < α < ω. ρ adds up; inf if there is none.

    It covers the Rényi curve of each part from above, to about 1 %; the sum over parts covers the curve of the whole.
    Refuses truncated samples, as `rdp` does.

    >>> from tacit.privacy import events
    >>> step = events.PoissonSampled(0.02, events.Gaussian(5.0))
    >>> f"{tcdp_rho(step, 12.0):.1e}, and {tcdp_rho(events.Gaussian(5.0), 12.0):.1e} without sampling"
    '8.2e-06, and 2.0e-02 without sampling'
    """
    check_omega(omega)
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is None:
        return math.inf
    refuse_truncated(found)
    return sum(count * _part_tcdp_rho(part, float(omega), adjacency) for part, count in found.items())


@functools.lru_cache(maxsize=4096)
def _part_tcdp_rho(part: Part, omega: float, adjacency: Adjacency) -> float:
    part = part.ideal
    # Without sampling, D_α/α is ρ for Gaussian noise, and about ρ for large Laplace noise, where floats lose D_α.
    if part.rate is None and (part.noise == "gaussian" or part.noise_multiplier > 100 or omega > ORDERS[-1]):
        return _bare_rho(part)
    expected = f"at most {ORDERS[-1]:g}, the largest order that is computed for samples"
    check_number("omega", omega, expected, omega <= ORDERS[-1])
    orders = (*(order for order in ORDERS if order < omega), omega)
    covering = _covering(orders, rdp_of_parts(Counter([part]), orders, adjacency, "tcdp"))
    # A divergence is the logarithm of a number that may be near 1, and floats keep 16 digits of that number. A sample
    # reveals no more than all records.
    return min(float(covering[-1]) + 1e-15, _bare_rho(part))


def _covering(orders: tuple[float, ...], divergence: np.ndarray) -> np.ndarray:
    """For each ω among the orders, a ρ with D_α ≤ ρα for all 1 < α ≤ ω, also between orders.

    f(α) = (α - 1) D_α is convex, and 0 at 1, so that between two orders it is at most its chord c + sα. The chord over
    α(α - 1) is largest at an end or where sα² + 2cα = c.
    """
    above = np.asarray(orders)
    below = np.concatenate([[1.0], above[:-1]])
    moment = (above - 1) * divergence
    before = np.concatenate([[0.0], moment[:-1]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # beyond floats; no root; the pole at 1
        slope = (moment - before) / (above - below)
        shift = before - slope * below
        ratio = shift / slope
        places = [below, above, *(sign * np.sqrt(ratio**2 + ratio) - ratio for sign in (1, -1))]
        heights = [
            np.where((a >= below) & (a <= above) & (a > 1), (shift + slope * a) / (a * (a - 1)), -np.inf)
            for a in places
        ]
    heights[0][0] = divergence[0]  # up to the first order D_α only grows, and α is at least 1
    highest = np.maximum.reduce(heights)
    return np.maximum.accumulate(np.where(np.isnan(highest), np.inf, highest))


def epsilon_of_tcdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """The best (ρ, ω) that covers the Rényi curve: D_α ≤ ρα for 1 < α < ω."""
    rhos = _covering(ORDERS, rdp_of_parts(found, ORDERS, adjacency, "tcdp"))
    orders = np.array(ORDERS)
    return max(0.0, float(np.min(rhos * orders + renyi_spread(orders, delta))))  # α at its limit ω: ρ only grows with ω
