"""The accountant `pld`."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from tacit.privacy import losses
from tacit.privacy.accountants.exact import single_gaussian
from tacit.privacy.events import Adjacency
from tacit.privacy.parts import Part

# Halving the grid of `pld` changes ε by less than this, relatively: for a few distinct parts, and for a long schedule.
TOLERANCE, SCHEDULE_TOLERANCE = 1e-4, 1e-3
FEW_PARTS = 16


def directions_of(found: Counter[Part], adjacency: Adjacency) -> list[Counter[losses.LossStep]]:
    """The steps that `losses` composes, for each direction that can be the worst. Bare Gaussians become one step."""
    sampled = any(part.rate is not None for part in found)
    names: tuple[losses.Direction, ...] = ("replace",) if adjacency == "replace-one" else ("remove", "add")
    directions = []
    for direction in names if sampled else names[:1]:
        steps: Counter[losses.LossStep] = Counter()
        bare: Counter[Part] = Counter()
        for part, count in found.items():
            if part.rate is None and part.noise == "gaussian":
                bare[part] += count
            else:
                steps[_step(part, direction)] += count
        if bare and (sigma := single_gaussian(bare)) is not None:
            steps[((1.0, losses.Pair("gaussian", sigma)),)] += 1
        directions.append(steps)
    return directions


def _step(part: Part, direction: losses.Direction) -> losses.LossStep:
    """The pair of laws that a step's loss is about, or a mixture of two for a truncated sample.

    Let the unit's slot be i. Condition on the choice among the other slots, which does not depend on the data, and
    reveal it. If fewer than `buffer` others are chosen, nothing is cut: the pair is that of Poisson sampling. Else
    choosing i may push out one other unit j: the sum is a with probability 1 - rate, and a - x_j + x_i (slot filled)
    or a - x_j (slot empty; a, if the others move up to fill it) with probability rate; for replace-one a - x_j + x'_i.
    All alternatives lie within 2C of a, and such pairs are dominated by the one that lies 2C apart on either side: the
    replace-one pair of a sampled Gaussian with twice the clip. Revealing which case holds makes the loss a mixture of
    the two, with the probability of the second as its weight.
    """
    if part.fixed_size:
        raise ValueError("pld does not price fixed-size samples; use the accountant rdp")
    if part.rate is None:  # the multiplier is already relative to the sensitivity under the adjacency
        return ((1.0, losses.Pair(part.noise, part.noise_multiplier)),)
    if part.noise == "laplace" and direction == "replace":
        raise ValueError("pld does not price sampled Laplace noise under replace-one; ask for add-remove")
    pair = losses.Pair(part.noise, part.noise_multiplier, part.rate, direction)
    if part.truncation == 0:
        return ((1.0, pair),)
    displaced = losses.Pair("gaussian", part.noise_multiplier / 2, part.rate, "replace")
    return ((1 - part.truncation, pair), (part.truncation, displaced))


def settled(grid: float, finest: float, read: Callable[[float], float], tolerance: float) -> float:
    """Refine the grid until halving it changes `read` little; return the least answer.

    Every answer is an upper bound. The error falls with the square of the grid, so a halving that changes too much
    tells how fine the next grid must be.
    """
    while True:
        coarse, fine = read(grid), read(grid / 2)
        change, allowed = abs(coarse - fine), tolerance * max(abs(fine), 1e-300)
        if not math.isfinite(fine) or change <= allowed or grid / 2 <= finest:
            return min(coarse, fine)
        grid = max(grid * min(max(0.8 * math.sqrt(allowed / change), 1 / 16), 1 / 2), finest)


def worst_of(
    found: Counter[Part],
    adjacency: Adjacency,
    view: Callable[[losses.LossSteps], losses.View],
    read: Callable[[losses.Loss], float],
    tolerance: float | None,
) -> float:
    """The largest `read` over the directions. A direction is not refined if its first bound is below another's."""
    tolerance = tolerance or (TOLERANCE if len(found) <= FEW_PARTS else SCHEDULE_TOLERANCE)
    looked = []
    for steps in directions_of(found, adjacency):
        seen = view(steps)
        grid = seen.first_grid(tolerance)
        looked.append((read(losses.compose(steps, seen, grid)), grid, steps, seen))
    worst = 0.0
    for first, grid, steps, seen in sorted(looked, key=lambda each: -each[0]):
        if first <= worst:
            break  # a first bound is a bound too
        known = {grid: first}

        def at(grid: float, known: dict[float, float] = known, steps: Any = steps, seen: Any = seen) -> float:
            return known[grid] if grid in known else read(losses.compose(steps, seen, grid))

        worst = max(worst, settled(grid, seen.finest, at, tolerance))
    return worst
