"""Bounds on the size of an honest answer. Larger answers are refused, so that other sites' numbers stay finite."""

import math
from typing import Any

import jax

from tacit.privacy.mechanism import Exact, PricedMechanism, SubsampledGaussian
from tacit.study.program import GRADIENTS, INFERENCE
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling
from tacit.tables.standardising import REACH

# No honest site reaches these bounds.
MOST_NOISE = 10.0  # standard deviations of noise beyond its typical length: exceeded once in 10²² draws
MOST_START = 100.0  # of the prior's mean, which may be the logarithm of a released mean
HUGE = 1e15  # the bound without a clip, or with many steps in an answer: far below where sums overflow


def limits(setup: Setup, phase: str, scaling: Scaling | None = None) -> list[Any]:
    """The largest norm of each array of an honest answer, for each respondent.

    A sum over n clipped units has a norm of at most nC. Its noise, of d numbers, has a norm of about √d standard
    deviations, and hardly ten more. A factor is an average of sums (g + Hm, H), and q's mean m moves by at most `REACH`
    each time answers arrive. Twice the result leaves room for rounding.
    """
    plan = setup.plan
    leaves, form = jax.tree.flatten(setup.answer_shape(phase))
    found = []
    for made, slots in zip(setup.added, setup.slots, strict=False):
        units = setup.sites_each if plan.unit == "site" else setup.units if plan.secure_sum else slots
        is_open = any(isinstance(one, Exact) for one in made.values())
        if is_open or (phase in INFERENCE and not (plan.is_natural and plan.is_table)):
            bounds = [HUGE] * len(leaves)  # many steps, each depending on the one before; or no clip
        elif phase not in INFERENCE:
            bounds = [_largest(made[phase], units, sum(leaf.size for leaf in leaves))] * len(leaves)
        else:
            bounds = _factor_limits(setup, phase, made, units, scaling)
        found.append(jax.tree.unflatten(form, [min(HUGE, 2 * bound) for bound in bounds]))
    return found


def _factor_limits(
    setup: Setup, phase: str, made: dict[str, PricedMechanism], units: int, scaling: Scaling | None
) -> list[float]:
    """The largest norms of a factor's precision times mean, and of its precision."""
    plan, size = setup.plan, setup.releases.size
    slope, unit = (float(found) for found in setup.algorithm(phase, 0, scaling).units)
    gradient = slope * max(_largest(made[name], units, size) for name in GRADIENTS if name in made)
    curvature = unit * _largest(made["curvature"], units, size**2)
    most = setup.program.rounds
    mean = MOST_START + REACH * len(setup.respondents) * (most + 1)
    # Sums of changes, unlike sums of factors, add up over the rounds.
    walks = most if plan.unit == "site" and plan.noise == "central" else 1
    return [walks * (gradient + curvature * mean), walks * curvature]


def _largest(mechanism: PricedMechanism, units: int, numbers: int) -> float:
    """The largest norm of a sum of `numbers` numbers over `units` units, with ample room for its noise."""
    assert isinstance(mechanism, SubsampledGaussian)
    parts = zip(mechanism.clips, mechanism.sampling_rates, strict=True)
    return max(units * clip / rate for clip, rate in parts) + mechanism.standard_deviation * (
        math.sqrt(numbers) + MOST_NOISE
    )
