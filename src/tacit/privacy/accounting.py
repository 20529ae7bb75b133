"""Accounting: what events cost."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacit.privacy import events, losses
from tacit.privacy.accountants import ACCOUNTANTS, Accountant
from tacit.privacy.accountants.composition import epsilon_of_advanced, epsilon_of_basic
from tacit.privacy.accountants.concentrated import epsilon_of_tcdp, epsilon_of_zcdp
from tacit.privacy.accountants.exact import gaussian_delta, gaussian_epsilon, pure_epsilon, root_of, single_gaussian
from tacit.privacy.accountants.pld import FEW_PARTS, SCHEDULE_TOLERANCE, TOLERANCE, directions_of, settled, worst_of
from tacit.privacy.accountants.renyi import epsilon_of_moments, epsilon_of_rdp
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.privacy.events import Adjacency, Event, check_adjacency, check_number
from tacit.privacy.parts import Part, parts


def _check(accountant: Any, adjacency: Any, tolerance: float | None = None) -> None:
    check_number("accountant", repr(accountant), "one of " + ", ".join(ACCOUNTANTS), accountant in ACCOUNTANTS)
    check_adjacency(adjacency)
    valid = tolerance is None or 1e-9 <= tolerance <= 0.1
    check_number("tolerance", tolerance, "a number from 1e-9 to 0.1", valid)


@functools.lru_cache(maxsize=4096)
def epsilon(
    event: Event,
    delta: float,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float | None = None,
) -> float:
    """The ε for which `event` is (ε, δ)-differentially private: an upper bound, inf if there is none.

    `tolerance` is for `pld`: the grid is refined until halving it changes ε by less, relatively (1e-4 by default, 1e-3
    for a schedule of many levels). The price is never optimistic: a coarser grid gives a larger ε. For up to 10⁶
    sampled Gaussian steps it took seconds and was within 1e-3 of the exact value wherever compared (`losses`).

    >>> round(epsilon(events.Repeated(events.PoissonSampled(0.02, events.Gaussian(5.0)), 1000), 1e-4), 3)
    0.367
    """
    check_delta(delta)
    _check(accountant, adjacency, tolerance)
    found = parts(event, adjacency)
    if found is None:
        return math.inf
    if not found:
        return 0.0
    return _less_imperfection(found, delta, lambda ideal, left: _price(accountant, ideal, left, adjacency, tolerance))


def _price(
    accountant: Accountant, found: Counter[Part], delta: float, adjacency: Adjacency, tolerance: float | None
) -> float:
    """ε of parts in theory, truncation included."""
    if accountant != "pld":
        return _closed_form(accountant, found, delta, adjacency)
    if (sigma := single_gaussian(found)) is not None:
        return gaussian_epsilon(delta, sigma)
    if delta < losses.LEAST_FOUND and not math.isfinite(pure_epsilon(found)):
        raise ValueError(f"delta={delta} is below what pld can resolve; use a larger delta or the accountant rdp")
    value = worst_of(
        found,
        adjacency,
        lambda steps: losses.view_for_delta(steps, delta),
        lambda loss: loss.epsilon(delta),
        tolerance,
    )
    return min(value, pure_epsilon(found))


def _less_imperfection(found: Counter[Part], delta: float, price: Callable[[Counter[Part], float], float]) -> float:
    """ε of the mechanism as it runs, from the price of its ideal.

    If every data set's output is within η of the ideal one and the ideal is (ε, δ')-private, the mechanism as it runs
    is (ε, δ' + (1 + e^ε)η)-private. A thousandth of δ is set aside for this, and more only if that is not enough.
    """
    eta = sum(n * part.imperfection for part, n in found.items())
    ideal: Counter[Part] = Counter()
    for part, n in found.items():
        ideal[replace(part, coordinates=0)] += n
    reserve = delta / 1000 if eta > 0 else 0.0
    while reserve < delta:
        value = price(ideal, delta - reserve)
        needed = (1 + math.exp(min(value, 700.0))) * eta
        if needed <= reserve:
            return value
        reserve = max(2 * reserve, 1.1 * needed)
    return math.inf  # this δ does not pay for so many draws


@functools.lru_cache(maxsize=4096)
def delta(
    event: Event,
    epsilon: float,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float | None = None,
) -> float:
    """The δ for which `event` is (ε, δ)-differentially private: an upper bound, 1 if there is none.

    >>> round(delta(events.Gaussian(1.0), 1.0), 4)
    0.1269
    """
    valid = isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon >= 0
    check_number("epsilon", epsilon, "a finite number of at least 0", valid)
    _check(accountant, adjacency, tolerance)
    found = parts(event, adjacency)
    if found is None:
        return 1.0
    if not found:
        return 0.0
    eta = (1 + math.exp(min(epsilon, 700.0))) * sum(n * part.imperfection for part, n in found.items())
    return min(1.0, eta + _delta(accountant, found, epsilon, adjacency, tolerance))


def _delta(
    accountant: Accountant, found: Counter[Part], epsilon: float, adjacency: Adjacency, tolerance: float | None
) -> float:
    """δ of parts in theory, truncation included."""
    if accountant == "pld":
        if (sigma := single_gaussian(found)) is not None:
            return gaussian_delta(epsilon, sigma)
        if epsilon >= pure_epsilon(found):
            return 0.0
        return worst_of(
            found,
            adjacency,
            lambda steps: losses.view_for_epsilon(steps, epsilon),
            lambda loss: float(loss.delta(np.array([epsilon]))[0]),
            tolerance,
        )
    low, high = -700.0, 0.0  # of log δ; the smallest δ whose ε is small enough
    for _ in range(60):
        middle = (low + high) / 2
        enough = _closed_form(accountant, found, math.exp(middle), adjacency) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


@dataclass(frozen=True)
class Calibration:
    """Noise found for a target: the multiplier, the ε it reaches (at most the target), and the event it makes."""

    noise_multiplier: float
    epsilon: float
    event: Event


def calibrate(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    steps: int = 1,
    plan: Callable[[float], Event] | None = None,
    accountant: Accountant = "pld",
    adjacency: Adjacency = "add-remove",
    tolerance: float = 1e-3,
) -> Calibration:
    """Find the least noise for which a plan is (ε, δ)-differentially private.

    `plan` makes the event from a noise multiplier; without it, the plan is `steps` Poisson-sampled Gaussian steps. The
    ε reached is never above the target, and within `tolerance` (relatively) of a target above 1e-6.

    >>> found = calibrate(1.0, 1e-5, sampling_rate=0.01, steps=2000)
    >>> 0.999 <= found.epsilon <= 1.0
    True
    """
    check_epsilon(epsilon)
    check_delta(delta)
    events.check_sampling_rate(sampling_rate)
    events.check_steps(steps)
    _check(accountant, adjacency)
    make = plan or (lambda noise: subsampled_plan(noise, sampling_rate, steps))

    def reached(noise_multiplier: float) -> float:
        return price_of(make(noise_multiplier), delta, accountant, adjacency)

    low, high, least = 0.5, 1.0, epsilon * (1 - tolerance / 2)  # the aim lies between what low and high reach
    while reached(high) > least:
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"epsilon={epsilon} with delta={delta} is not reached by any noise multiplier up to 1e6")
    while reached(low) <= least:
        low, high = low / 2, low
        if low < 1e-3:
            return Calibration(high, reached(high), make(high))

    aim = math.log(least)
    noise_multiplier = math.exp(
        root_of(
            lambda x: math.log(max(reached(math.exp(x)), 1e-12)) - aim, math.log(low), math.log(high), tolerance / 16
        )
    )
    while reached(noise_multiplier) > epsilon:
        noise_multiplier *= 1 + tolerance / 8
    return Calibration(noise_multiplier, reached(noise_multiplier), make(noise_multiplier))


def price_of(event: Event, delta: float, accountant: Accountant, adjacency: Adjacency) -> float:
    """`epsilon`, under a name that no argument called epsilon hides."""
    return epsilon(event, delta, accountant, adjacency)


def subsampled_plan(noise_multiplier: float, sampling_rate: float, steps: int) -> Event:
    """`steps` Poisson-sampled Gaussian steps: the event behind most figures in the literature."""
    mechanism: Event = events.Gaussian(noise_multiplier)
    if sampling_rate != 1:
        mechanism = events.PoissonSampled(sampling_rate, mechanism)
    return events.Repeated(mechanism, steps)


def true_positive_rate(event: Event, false_positive_rate: float, adjacency: Adjacency = "add-remove") -> float:
    """The highest rate at which an attacker can be right about a present unit, if wrong about an absent one this often.

    Whatever the attack, P(right) ≤ e^ε · P(wrong) + δ(ε) and P(right) ≤ 1 - e^-ε (1 - δ(ε) - P(wrong)) for every ε.

    >>> round(true_positive_rate(events.Gaussian(1.0), 0.01), 3)
    0.092
    """
    return true_positive_rates(event, (false_positive_rate,), adjacency)[0]


def true_positive_rates(
    event: Event, false_positive_rates: Sequence[float], adjacency: Adjacency = "add-remove"
) -> list[float]:
    """`true_positive_rate` at each of several rates, in hardly more time than one of them takes.

    >>> [round(rate, 3) for rate in true_positive_rates(events.Gaussian(1.0), (0.01, 0.1))]
    [0.092, 0.389]
    """
    for rate in false_positive_rates:
        check_number("false_positive_rate", rate, "a number from 0 to 1", 0 <= rate <= 1)
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is None:
        return [1.0] * len(false_positive_rates)
    if not found:
        return list(false_positive_rates)
    bounds = [1.0] * len(false_positive_rates)
    least = min(false_positive_rates)
    directions = directions_of(found, adjacency)
    views = [losses.view_for_delta(steps, 1e-15 + 1e-3 * least) for steps in directions]

    def best(composed: Sequence[losses.Loss], rates: Sequence[float]) -> list[float]:
        limit = min(max(loss.epsilon(1e-15 + 1e-6 * min(rates)) for loss in composed), 700.0)
        grid = np.linspace(0.0, limit, 4001)
        imperfection = (1 + np.exp(grid)) * sum(n * part.imperfection for part, n in found.items())
        deltas = np.maximum.reduce([loss.delta(grid) for loss in composed]) + imperfection
        by_ratio = (np.exp(grid) * rate + deltas for rate in rates)
        by_complement = (1 - np.exp(-grid) * (1 - deltas - rate) for rate in rates)
        return [float(min(*map(np.min, pair), 1.0)) for pair in zip(by_ratio, by_complement, strict=True)]

    def read(scale: float) -> float:
        """The answer at the first rate, which decides how fine the grid is. On any grid, all answers are bounds."""
        grids = [seen.first_grid(TOLERANCE) * scale for seen in views]
        composed = [losses.compose(*each) for each in zip(directions, views, grids, strict=True)]
        first, *others = false_positive_rates
        now = best(composed, [first]) + (best(composed, others) if others else [])
        bounds[:] = map(min, bounds, now)
        return now[0]

    finest = max(seen.finest / seen.first_grid(TOLERANCE) for seen in views)
    settled(1.0, finest, read, TOLERANCE if len(found) <= FEW_PARTS else SCHEDULE_TOLERANCE)
    return bounds


def _closed_form(accountant: str, found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """ε by an accountant other than `pld`, with truncated samples paid out of δ.

    Truncation changes a step's output only if more than `buffer` slots are chosen. If that has probability at most τ
    over all steps, and the untruncated steps are (ε, δ')-private, the truncated ones are (ε, δ' + (1 + e^ε)τ)-private.
    """
    ideal: Counter[Part] = Counter()
    tau = 0.0
    for part, count in found.items():
        ideal[part.ideal] += count
        tau += count * part.truncation
    price = _PRICES[accountant]
    value = price(ideal, delta, adjacency)
    while tau > 0:
        left = delta - (1 + math.exp(min(value, 700.0))) * tau
        if left <= 0:
            return math.inf  # this δ does not pay for such a small buffer
        paid = price(ideal, left, adjacency)
        if paid <= value * (1 + 1e-12):
            break
        value = paid
    return value


_PRICES: dict[str, Callable[[Counter[Part], float, Adjacency], float]] = {
    "rdp": epsilon_of_rdp,
    "moments": epsilon_of_moments,
    "zcdp": epsilon_of_zcdp,
    "tcdp": epsilon_of_tcdp,
    "advanced": epsilon_of_advanced,
    "basic": epsilon_of_basic,
}
