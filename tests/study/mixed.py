"""A logistic regression with random intercepts, on all records without privacy: what site effects are compared with."""

from dataclasses import dataclass

import numpy as np
from scipy import special

INTERCEPT_SD, SLOPE_SD, SPREAD = 5.0, 1.0, 1.0  # of the prior: as a study's
Records = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Mixed:
    """Posterior means: of the coefficients (intercept first), and of the standard deviation between sites."""

    mean: np.ndarray
    spread: float


def fit_mixed(sites: list[Records]) -> Mixed:
    """By Laplace's approximation for all coefficients and deviations, at each τ of a grid with a half-Cauchy prior.

    With hundreds of records at each site it is all but exact.
    """
    x = np.concatenate([np.column_stack([np.ones(len(y)), x]) for x, y in sites])
    y = np.concatenate([y for _, y in sites])
    site = np.concatenate([np.full(len(y), s) for s, (_, y) in enumerate(sites)])
    size, count = x.shape[1], len(sites)
    prior = np.diag([INTERCEPT_SD**-2] + [SLOPE_SD**-2] * (size - 1))
    theta, delta, rows, own, schur = np.zeros(size), np.zeros(count), [], np.ones(count), np.eye(size)
    grid = np.exp(np.linspace(np.log(0.05), np.log(3), 61))
    for spread in grid:
        for _ in range(100):
            chance = special.expit(x @ theta + delta[site])
            weight, error = chance * (1 - chance), y - chance
            first = x.T @ error - prior @ theta
            second = np.bincount(site, error, count) - delta / spread**2
            whole = x.T @ (x * weight[:, None]) + prior
            across = np.stack([np.bincount(site, weight * column, count) for column in x.T])
            own = np.bincount(site, weight, count) + spread**-2
            schur = whole - (across / own) @ across.T
            step = np.linalg.solve(schur, first - across @ (second / own))
            moved = (second - across.T @ step) / own
            theta, delta = theta + step, delta + moved
            if max(np.abs(step).max(), np.abs(moved).max()) < 1e-9:
                break
        z = x @ theta + delta[site]
        value = y @ z - np.logaddexp(0, z).sum() - theta @ prior @ theta / 2 - delta @ delta / (2 * spread**2)
        value -= count * np.log(spread) + np.linalg.slogdet(schur)[1] / 2 + np.log(own).sum() / 2
        rows.append((value + np.log(spread) - np.log1p((spread / SPREAD) ** 2), theta))
    logs = np.array([value for value, _ in rows])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = sum((w * theta for w, (_, theta) in zip(weights, rows, strict=True)), np.zeros(size))
    return Mixed(mean, float(weights @ grid))
