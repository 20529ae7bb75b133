"""The accountants `rdp` and `moments`. The only file that imports dp-accounting."""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant as rdp_accountant
from scipy import special

from tacit.privacy.accountants.exact import refuse_sampled_replacement
from tacit.privacy.events import Adjacency, Event, check_adjacency
from tacit.privacy.parts import Part, parts

_RELATIONS = {
    "add-remove": privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": privacy_accountant.NeighboringRelation.REPLACE_ONE,
}
ORDERS: tuple[float, ...] = (
    *(1 + x / 1000 for x in range(5, 100, 5)),
    *(1 + x / 100 for x in range(10, 1000, 5)),
    *(float(x) for x in range(11, 64)),
    *(64.0, 72.0, 80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
)


def rdp(event: Event, orders: Iterable[float] = ORDERS, adjacency: Adjacency = "add-remove") -> np.ndarray:
    """The Rényi divergence bound of `event` at each order α > 1, in theory: truncated samples are refused."""
    check_adjacency(adjacency)
    found = parts(event, adjacency)
    if found is not None:
        refuse_truncated(found)
    chosen = np.asarray(tuple(orders), float)
    return (
        np.full(chosen.shape, math.inf)
        if found is None
        else rdp_of_parts(found, tuple(chosen.tolist()), adjacency, "rdp")
    )


def refuse_truncated(found: Counter[Part]) -> None:
    """Refuse truncated samples, which have no useful Rényi divergence."""
    if any(part.truncation > 0 for part in found):
        raise ValueError("a truncated sample has no useful Rényi divergence; use epsilon, which pays for it out of δ")


def rdp_of_parts(found: Counter[Part], orders: tuple[float, ...], adjacency: Adjacency, accountant: str) -> np.ndarray:
    """The Rényi divergence of all parts together, at each order."""
    total = np.zeros(len(orders))
    for part, count in found.items():
        if not part.fixed_size or accountant != "rdp":
            refuse_sampled_replacement(part, adjacency, accountant)
        if part.noise == "laplace" and part.rate is not None:
            raise ValueError(f"{accountant} does not price sampled Laplace noise; use the accountant pld")
        total += count * _part_rdp(part, orders)
    return total


@functools.lru_cache(maxsize=512)
def _part_rdp(part: Part, orders: tuple[float, ...]) -> np.ndarray:
    """dp-accounting's divergences; fractional orders of sampled Gaussians by integration: its series there is loose."""
    alphas = np.asarray(orders)
    sampled = part.rate is not None and not part.fixed_size
    if sampled and part.noise_multiplier < LEAST_INTEGRATED:
        alphas = np.ceil(alphas)  # a divergence never falls with its order
    integrate = (alphas != np.round(alphas)) & sampled
    divergence = np.empty(len(orders))
    divergence[integrate] = [_log_moment(part, alpha) / (alpha - 1) for alpha in alphas[integrate]]
    if integrate.all():
        return divergence
    relation = _RELATIONS["replace-one" if part.fixed_size else "add-remove"]
    accountant = rdp_accountant.RdpAccountant(alphas[~integrate].tolist(), relation)
    mechanism = dp_event.GaussianDpEvent if part.noise == "gaussian" else dp_event.LaplaceDpEvent
    event: Any = mechanism(part.noise_multiplier)
    if part.fixed_size:
        event = dp_event.SampledWithoutReplacementDpEvent(1, part.rate, event)  # type: ignore[arg-type]  # a ratio
    elif part.rate is not None:
        event = dp_event.PoissonSampledDpEvent(part.rate, event)
    accountant.compose(event)
    divergence[~integrate] = accountant.rdp
    return divergence


LEAST_INTEGRATED = 0.1  # the integrand curves within σ², so less noise needs too many points; its ε is huge anyway


def _log_moment(part: Part, alpha: float) -> float:
    """ln max(E₁, E₂) of one Gaussian step by numerical integration (Liu 2.25-2.29), with α = λ + 1.

    E₁ = E_{z~μ₁}[(μ₀/μ₁)^α], E₂ = E_{z~μ₀}[(μ₁/μ₀)^α], μ₀ = N(0, σ²), μ₁ = (1 - q) N(0, σ²) + q N(1, σ²).
    """
    sigma, rate = part.noise_multiplier, part.rate or 1.0
    if rate == 1:
        return alpha * (alpha - 1) / (2 * sigma**2)
    # Bumps of width σ from 0 to α, and one curve of width σ²: at an eighth, the trapezoid rule is exact to rounding.
    spacing = min(sigma, sigma**2) / 8
    z = np.arange(-40 * sigma, alpha + 1 + 40 * sigma, spacing)
    log_zero = -((z / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi) / spacing)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))

    def log_mean(log_density: np.ndarray, power: np.ndarray) -> float:
        total = special.logsumexp(log_density + power)
        if total > 1e-3:
            return float(total)
        # Near 1, average the excess over 1 instead, which keeps its digits.
        small = np.abs(power) < 1
        excess = np.exp(log_density[small]) * np.expm1(power[small])
        rest = np.exp(log_density[~small] + power[~small]) - np.exp(log_density[~small])
        return math.log1p(max(float(excess.sum() + rest.sum()), 0.0))

    return max(log_mean(log_zero, alpha * log_ratio), log_mean(log_zero + log_ratio, -alpha * log_ratio))


def epsilon_of_rdp(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """The accountant `rdp`, at its usual orders."""
    divergence = rdp_of_parts(found, ORDERS, adjacency, "rdp").tolist()
    value, _ = rdp_accountant.compute_epsilon(ORDERS, divergence, delta)
    return float(value)


MOMENTS = range(1, 33)  # λ, integers as published


@functools.lru_cache(maxsize=512)
def _log_moments(part: Part) -> np.ndarray:
    """α(λ) of one step at each λ."""
    if part.noise_multiplier < LEAST_INTEGRATED:
        return np.array(MOMENTS) * _part_rdp(part, tuple(moment + 1.0 for moment in MOMENTS))
    return np.array([_log_moment(part, moment + 1) for moment in MOMENTS])


def epsilon_of_moments(found: Counter[Part], delta: float, adjacency: Adjacency) -> float:
    """ε = min_λ (Σ α(λ) - ln δ) / λ (Liu 2.20, 2.23)."""
    total = np.zeros(len(MOMENTS))
    for part, count in found.items():
        refuse_sampled_replacement(part, adjacency, "moments")
        if part.noise == "laplace":
            raise ValueError("moments prices Gaussian noise only; use the accountant pld for Laplace noise")
        total += count * _log_moments(part)
    return float(np.min((total - math.log(delta)) / np.array(MOMENTS)))
