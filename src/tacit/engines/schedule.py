"""Schedules: which sites are asked, and which answers arrive, in what order. They use no mathematics and no data.

A schedule is a list of `Step`s. In a step the sites in `asked` are sent the posterior as it is when the step begins;
then the answers of those in `arrived` reach the coordinator, in that order. Every schedule made here keeps these rules:

- every answer that is asked for arrives exactly once, in the same step or a later one;
- no site is asked while an answer of its own is outstanding;
- no site is asked more often than its limit, the updates that its budget pays for;
- the arguments and the seed fix the schedule. Randomness is numpy's raw 64-bit words, the same in all its versions.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite
from numbers import Integral
from typing import Any

import numpy as np

UpdateLimits = Sequence[int | None] | np.ndarray | None


@dataclass(frozen=True)
class Step:
    """One step: first `asked` are sent the current posterior, then the outstanding answers of `arrived` come in."""

    asked: tuple[int, ...]
    arrived: tuple[int, ...]


def synchronous(
    sites: int,
    rounds: int,
    *,
    limits: UpdateLimits = None,
    dropout: float = 0.0,
    straggling: float = 0.0,
    seed: int = 0,
) -> list[Step]:
    """Ask all sites in every round; all answer in it, except those that are away or late.

    asked_t = {m : answered_m < limit_m, nothing of m is outstanding, m is not away}

    One step is one round, so a round with all sites away is an empty step. The schedule ends after `rounds`, or when
    every site is at its limit; answers that are then outstanding arrive in one more step. Each site has its own random
    numbers: limits and other sites do not change when it is away or late.

    | argument     | meaning                                                                                         |
    |--------------|-------------------------------------------------------------------------------------------------|
    | `limits`     | the most updates of each site; None, or None for a site: no limit                               |
    | `dropout`    | the probability, in each round, that a site is away: it is not asked                            |
    | `straggling` | the probability that an answer arrives one round late; the site is not asked in that round      |

    >>> synchronous(2, 3, limits=[1, 2])
    [Step(asked=(0, 1), arrived=(0, 1)), Step(asked=(1,), arrived=(1,))]
    >>> synchronous(2, 1, straggling=1)
    [Step(asked=(0, 1), arrived=()), Step(asked=(), arrived=(0, 1))]
    """
    sites, rounds = _whole("sites", sites, 1), _whole("rounds", rounds, 1)
    left = _left(limits, sites)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout!r} is not in [0, 1): take 0 for sites that are never away.")
    if not 0 <= straggling <= 1:
        raise ValueError(f"straggling={straggling!r} is not in [0, 1]: take 0 for answers that are never late.")
    bits = np.random.PCG64(_whole("seed", seed, 0))
    steps: list[Step] = []
    late: tuple[int, ...] = ()
    for _ in range(rounds):
        if not any(left):
            break
        # One word of each kind for every site, used or not, so that sites do not affect each other.
        is_away, is_late = _chances(bits, sites, dropout), _chances(bits, sites, straggling)
        asked = tuple(m for m in range(sites) if left[m] and m not in late and not is_away[m])
        steps.append(Step(asked, (*late, *(m for m in asked if not is_late[m]))))
        for m in asked:
            left[m] -= 1
        late = tuple(m for m in asked if is_late[m])
    return [*steps, Step((), late)] if late else steps


def sequential(sites: int, passes: int, *, limits: UpdateLimits = None) -> list[Step]:
    """Ask one site after the other, 0 to M − 1, `passes` times; each sees what those before it changed.

    Step k asks site k mod M, if it is below its limit. `limits` as in `synchronous`.

    >>> [step.asked[0] for step in sequential(3, 2, limits=[2, 1, None])]
    [0, 1, 2, 0, 2]
    """
    sites, passes = _whole("sites", sites, 1), _whole("passes", passes, 1)
    left = _left(limits, sites)
    return [Step((m,), (m,)) for turn in range(passes) for m in range(sites) if turn < left[m]]


def asynchronous(rates: Any, updates: int, *, limits: UpdateLimits = None, delay: int = 0, seed: int = 0) -> list[Step]:
    """Let sites update when they are ready, each at its own rate, one at a time (Sharma et al. 2019, section 4).

    P(next site is m) = rate_m / Σ rates, over the sites below their limit that have no answer outstanding

    This is the order of independent clocks that ring after exponential times. It ends after `updates` answers, or when
    every site is at its limit. With a `delay`, an answer arrives that many steps after it was asked for: the site works
    on a posterior that others change meanwhile. A step in which no site is free asks none, so a delay of at least the
    number of sites makes them take turns, whatever their rates. Answers outstanding at the end arrive in one more step.
    `limits` as in `synchronous`.

    >>> [step.asked[0] for step in asynchronous([1, 1, 8], 8, seed=1)]
    [2, 2, 1, 2, 2, 2, 2, 2]
    >>> asynchronous([1, 1], 2, delay=1)
    [Step(asked=(1,), arrived=()), Step(asked=(0,), arrived=(1,)), Step(asked=(), arrived=(0,))]

    Sharma, M., Hutchinson, M., Swaroop, S., Honkela, A. & Turner, R. (2019). Differentially private federated
    variational inference. arXiv:1911.10563. Its rates are `inverse_to_size`.
    """
    weights = _rates(rates)
    left = _left(limits, len(weights))
    updates, delay = _whole("updates", updates, 1), _whole("delay", delay, 0)
    bits = np.random.PCG64(_whole("seed", seed, 0))
    steps: list[Step] = []
    on_the_way: deque[tuple[int, ...]] = deque([()] * delay)  # what the last `delay` steps asked
    asked_so_far = 0
    while asked_so_far < updates and any(left):
        busy = {m for asked in on_the_way for m in asked}
        free = [m for m in range(len(weights)) if left[m] and m not in busy]
        asked = (_draw(bits, free, weights),) if free else ()
        for m in asked:
            left[m] -= 1
        asked_so_far += len(asked)
        on_the_way.append(asked)
        steps.append(Step(asked, on_the_way.popleft()))
    late = tuple(m for asked in on_the_way for m in asked)
    return [*steps, Step((), late)] if late else steps


def inverse_to_size(sizes: Any) -> np.ndarray:
    """Rates of sites with the same computing power: a site with more records takes longer.

    rate_m = (1 / N_m) / Σ_k (1 / N_k)

    The sizes must be public, because the schedule reveals them.

    >>> inverse_to_size([100, 300]).tolist()
    [0.75, 0.25]
    """
    inverse = 1 / np.array([_whole(f"sizes[{m}]", size, 1) for m, size in enumerate(_each("sizes", sizes))], float)
    return inverse / inverse.sum()


def communications(steps: Iterable[Step]) -> int:
    """Count the answers that arrive.

    Σ_t |arrived_t|

    >>> communications(sequential(3, 2))
    6
    """
    return sum(len(step.arrived) for step in steps)


def counts(steps: Iterable[Step], sites: int) -> np.ndarray:
    """Count the answers of each site that arrive.

    count_m = |{t : m ∈ arrived_t}|

    >>> counts(synchronous(3, 2, limits=[0, 1, 2]), 3).tolist()
    [0, 1, 2]
    """
    sites = _whole("sites", sites, 1)
    arrived = [m for step in steps for m in step.arrived]
    if arrived and max(arrived) >= sites:
        raise ValueError(f"sites={sites} is too few for steps with site {max(arrived)}: give the schedule's own.")
    return np.bincount(np.asarray(arrived, int), minlength=sites)


def _chances(bits: np.random.PCG64, count: int, probability: float) -> list[bool]:
    """Independent events, each with this probability to within 2⁻⁶⁴, and never where it is 0."""
    bound = int(probability * 2**64)
    return [word < bound for word in np.asarray(bits.random_raw(count)).tolist()]


def _draw(bits: np.random.PCG64, among: list[int], weights: list[float]) -> int:
    sums = list(accumulate(weights[m] for m in among))
    point = (int(bits.random_raw()) >> 11) * 2.0**-53 * sums[-1]  # 53 bits: all that a float in [0, 1) can hold
    return among[bisect_right(sums[:-1], point)]  # without the last sum, which rounding can reach


def _left(limits: Any, sites: int) -> list[float]:
    """How many updates each site has left; inf without a limit."""
    if limits is None:
        return [inf] * sites
    if np.ndim(limits) != 1 or len(limits) != sites:
        raise ValueError(f"limits={limits!r} does not have one number for each of {sites} sites: give one each.")
    return [inf if limit is None else _whole(f"limits[{m}]", limit, 0) for m, limit in enumerate(limits)]


def _whole(name: str, number: Any, lowest: int) -> int:
    if isinstance(number, bool) or not isinstance(number, Integral) or number < lowest:
        raise ValueError(f"{name}={number!r} is not a whole number of at least {lowest}: give one.")
    return int(number)


def _each(name: str, numbers: Any) -> Any:
    if np.ndim(numbers) != 1 or not len(numbers):
        raise ValueError(f"{name}={numbers!r} does not have one number for each site: give a list of them.")
    return numbers


def _rates(rates: Any) -> list[float]:
    """The rates relative to the largest, so that their sum is finite."""
    numbers = [float(rate) for rate in _each("rates", rates)]
    for m, rate in enumerate(numbers):
        if not (rate > 0 and isfinite(rate)):
            raise ValueError(f"rates[{m}]={rate!r} is not a positive, finite number: give one, or leave the site out.")
    return [rate / max(numbers) for rate in numbers]
