"""The links of tacit: one declaration for each. CONTRIBUTING.md says how to add one."""

import math
from typing import Any

from tacit.links.link import COUNT, LABEL, LABELS, NUMBER, Link, Simulator, declare

Array = Any


# --- Logistic and probit -----------------------------------------------------------------------------------------


def _sigmoid(z: Array) -> Array:
    from scipy import special

    return special.expit(z)


def _logit(mean: Array) -> Array:
    from scipy import special

    return special.logit(mean)


def _sigmoid_of_gaussian(mean: Array, sd: Array) -> Array:
    """The probit approximation of MacKay (1992)."""
    from numpy import sqrt

    return _sigmoid(mean / sqrt(1 + math.pi / 8 * sd**2))


def _normal_cdf(z: Array) -> Array:
    from scipy import special

    return special.ndtr(z)


def _normal_quantile(mean: Array) -> Array:
    from scipy import special

    return special.ndtri(mean)


def _normal_cdf_of_gaussian(mean: Array, sd: Array) -> Array:
    from numpy import sqrt

    return _normal_cdf(mean / sqrt(1 + sd**2))


def draw_labels(inverse: Any) -> Any:
    """Draws 0 and 1 at probabilities `inverse(z + intercept)`; the intercept gives the requested share of ones."""

    def draw(z: Array, balance: float, rng: Any) -> tuple[Array, float, float]:
        from numpy import mean

        low, high = -30.0, 30.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if mean(inverse(z + middle)) < balance else (low, middle)
        return (rng.uniform(size=len(z)) < inverse(z + low)).astype(float), low, 1.0

    return draw


def _label_sd(expected: Array, sd: Array, noise: float) -> Array:
    from numpy import sqrt

    del sd, noise
    return sqrt(expected * (1 - expected))


LOGISTIC = declare(
    Link(
        "logistic",
        "tacit.models.glm:LogisticRegression",
        LABEL,
        inverse=_sigmoid,
        link=_logit,
        expected=_sigmoid_of_gaussian,
        outcome_sd=_label_sd,
        slope=1.0,
        curvature=0.15,
        least_clip=0.5,
        most_clip=2.0,
        equation="The log-odds of {target} are a sum: an intercept, and each column's value times its coefficient.",
        effect="change of the log-odds",
        simulator=Simulator(draw_labels(_sigmoid), learned=(0.5, 6.0), planned=(1.0, 2.0)),
    )
)


# --- Linear ------------------------------------------------------------------------------------------------------


def _same(z: Array) -> Array:
    return z


def _mean_alone(mean: Array, sd: Array) -> Array:
    del sd
    return mean


def _noisy_sd(expected: Array, sd: Array, noise: float) -> Array:
    from numpy import hypot

    del expected
    return hypot(sd, noise)


_CENTRE, _UNIT = 3.0, 2.0  # of simulated targets: neither 0 nor 1


def _draw_number(z: Array, balance: float, rng: Any) -> tuple[Array, float, float]:
    del balance
    return _CENTRE + _UNIT * (z + rng.normal(size=len(z))), _CENTRE, _UNIT


def _number_bounds(signal: float, balance: float, reach: float) -> tuple[float, float]:
    from numpy import hypot

    del balance
    width = _UNIT * hypot(signal, 1) * reach
    return _CENTRE - width, _CENTRE + width


LINEAR = declare(
    Link(
        "linear",
        "tacit.models.linear:LinearRegression",
        NUMBER,
        inverse=_same,
        link=_same,
        expected=_mean_alone,
        outcome_sd=_noisy_sd,
        slope=1.0,
        curvature=1.0,
        least_clip=1.0,
        most_clip=3.0,
        equation="The expected value of {target} is an intercept plus each column's value times its coefficient.",
        effect="change of the target",
        simulator=Simulator(_draw_number, learned=(0.5, 4.0), planned=(0.7, 1.5), bounds=_number_bounds, seed=1),
    )
)
PROBIT = declare(
    Link(
        "probit",
        "tacit.models.glm:ProbitRegression",
        LABEL,
        inverse=_normal_cdf,
        link=_normal_quantile,
        expected=_normal_cdf_of_gaussian,
        outcome_sd=_label_sd,
        slope=1.5,
        curvature=0.4,
        least_clip=0.5,
        most_clip=2.0,
        equation="The probit of P({target}) is a sum: an intercept, and each column's value times its coefficient.",
        effect="change of the probit score",
        simulator=Simulator(draw_labels(_normal_cdf), learned=(0.3, 3.5), planned=(0.7, 1.4), seed=2),
    )
)


# --- Poisson -----------------------------------------------------------------------------------------------------


def _exponential(z: Array) -> Array:
    from numpy import exp

    return exp(z)


def _logarithm(mean: Array) -> Array:
    from numpy import log

    return log(mean)


def _exponential_of_gaussian(mean: Array, sd: Array) -> Array:
    return _exponential(mean + sd**2 / 2)


def _count_sd(expected: Array, sd: Array, noise: float) -> Array:
    """Log-normal rate, Poisson noise on top."""
    from numpy import expm1, sqrt

    del noise
    return sqrt(expected + expected**2 * expm1(sd**2))


def _draw_count(z: Array, balance: float, rng: Any) -> tuple[Array, float, float]:
    from numpy import clip, exp, log, mean

    z = clip(z, -20, 5)
    intercept = float(log(balance / mean(exp(z))))
    return rng.poisson(exp(z + intercept)).astype(float), intercept, 1.0


def _count_bounds(signal: float, balance: float, reach: float) -> tuple[float, float]:
    del signal, reach
    return 0.0, float(max(10, 20 * balance))


def _start_of_count(mean: Any) -> Any:
    from jax.numpy import log

    return log(mean)


POISSON = declare(
    Link(
        "poisson",
        "tacit.models.glm:PoissonRegression",
        COUNT,
        inverse=_exponential,
        link=_logarithm,
        expected=_exponential_of_gaussian,
        outcome_sd=_count_sd,
        slope=1.0,
        curvature=4.0,
        least_clip=1.5,
        most_clip=4.0,
        caution=1.0,
        start=_start_of_count,
        equation=(
            "The logarithm of the rate of {target} is an intercept plus each column's value times its coefficient."
        ),
        effect="change of the log of the rate",
        simulator=Simulator(
            _draw_count,
            learned=(0.3, 1.2),
            planned=(0.4, 0.8),
            learned_balances=(0.5, 5.0),
            planned_balances=(1.0, 3.0),
            bounds=_count_bounds,
            seed=3,
        ),
        written="Poisson",
    )
)


# --- Softmax -----------------------------------------------------------------------------------------------------


def _softmax(z: Array) -> Array:
    """Along the last axis, with 0 for the first class."""
    import numpy as np
    from scipy import special

    return special.softmax(np.concatenate([np.zeros((*z.shape[:-1], 1)), z], axis=-1), axis=-1)


def _log_ratios(mean: Array) -> Array:
    from numpy import log

    return log(mean[..., 1:] / mean[..., :1])


SOFTMAX = declare(
    Link(
        "softmax",
        "tacit.models.softmax:SoftmaxRegression",
        LABELS,
        inverse=_softmax,
        link=_log_ratios,
        slope=1.0,
        curvature=0.25,
        least_clip=0.7,
        most_clip=0.7,
        equation=(
            "Log-odds of each class of {target} against the first are an intercept plus values times coefficients."
        ),
        effect="change of the log-odds against the first class",
    )
)
