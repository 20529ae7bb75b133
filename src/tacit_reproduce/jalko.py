"""Jälkö's thesis (2017): what its figures share: δ, the accountants compared, and both forms of DP-SGLD.

σ of the thesis is relative to 2C (docs/errata.md, 8): its noise multiplier, relative to the clip, is 2σ.
"""

from typing import Any

import tacit
from tacit.privacy import accounting
from tacit.solvers import SGLD
from tacit.solvers.sgld import published_noise

ACCOUNTANTS: tuple[accounting.Accountant, ...] = ("pld", "moments", "advanced")
DELTA = 1e-3
LIPSCHITZ = 1.0  # the clip of a record's gradient, L of algorithm 2
LANGEVIN_SAMPLES = 100
LANGEVIN, LANGEVIN_PLD = "DP-SGLD, as published", "DP-SGLD, pld"


def langevin(is_published: bool, epsilon: float, rate: float, steps: int, records: int, step: float) -> tuple[Any, Any]:
    """DP-SGLD and its mechanism: algorithm 2 with its noise formula, or the modern form, calibrated by PLD."""
    if is_published:
        noise = published_noise(epsilon, DELTA, rate, steps)
    else:
        noise = accounting.calibrate(epsilon, DELTA, sampling_rate=rate, steps=steps).noise_multiplier
    late = max(0.0, 1 - LANGEVIN_SAMPLES / steps)
    solver = SGLD(steps, step / records, burn_in=late, chains=1, temperature=0.5 if is_published else 1.0)
    return solver, tacit.SubsampledGaussian(LIPSCHITZ, noise, rate)
