"""Stochastic gradient Langevin dynamics: samples of the posterior by noised gradients, whose noise counts as its own.

    θ ← θ + η_t/2 · (∇ log cavity(θ) + Ĝ(θ)) + √max(0, η_t - (η_t/2 · n)²) · N(0, I)

Ĝ = (Σ_sample clip(∇ log p(x | θ), C) + σC z) / rate is a release, and n = σC/rate the standard deviation of its noise.
Langevin dynamics needs noise of variance η_t in a step. Privacy's noise counts towards it, and only the rest is added,
so that the total is the larger of the two. Where privacy's noise is larger, samples spread wider than the posterior:
`excess` says by how much.

As published (Wang, Fienberg & Smola 2015; Jälkö's algorithm 2), privacy's noise follows a formula, `published_noise`,
some forty times what today's accounting needs; and a step of η_t along the gradient has noise of variance η_t, which
samples the posterior to the power of 2: `SGLD(step_size=2η, temperature=0.5)` (docs/errata.md, 16).

Several chains are one vector to the mechanism: they share a sample, a clip and a noise, and cost as much as one. Given
θ, which is released, a record's gradients depend on that record alone. Everything returned is computed from releases.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, FullGaussian, inner, over_parts, sample
from tacit.privacy.clipping import per_record
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Level, Released, repeat
from tacit.solvers.base import Target

LEAST_VARIANCE = 1e-8  # of samples, in case chains have not moved


@dataclass(frozen=True)
class SGLD:
    """`SGLD(steps=1000, step_size=1e-3)(key, target, access)`: q with the moments of the samples.

    step_size: η of the first step; it decays as (1 + t/decay)^-exponent. burn_in: the share of steps before the first
    sample. thinning: keep one sample every so many steps. chains: how many run side by side, for one budget.
    temperature: sample cavity and likelihood to the power of its inverse.
    """

    steps: int
    step_size: float
    decay: float = float("inf")
    exponent: float = 0.55
    burn_in: float = 0.5
    thinning: int = 1
    chains: int = 4
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.chains < 1 or self.thinning < 1:
            raise ValueError(
                f"steps={self.steps}, chains={self.chains}, thinning={self.thinning}; expected at least 1 of each"
            )
        positive = (self.step_size, self.decay, self.temperature)
        if not min(positive) > 0 or not 0 <= self.burn_in < 1:
            raise ValueError(
                f"step_size={self.step_size}, decay={self.decay}, temperature={self.temperature}, "
                f"burn_in={self.burn_in}; expected numbers above 0, and a share of at least 0 and below 1"
            )
        if self.kept < 1:
            raise ValueError(f"thinning={self.thinning} keeps nothing of {self.steps} steps; expected less of it")

    @property
    def kept(self) -> int:
        """The number of samples of each chain."""
        return (self.steps - self._first) // self.thinning

    @property
    def _first(self) -> int:
        return round(self.burn_in * self.steps)

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        """q in the family of `target.start`, with the mean and covariance of all samples."""
        return self.samples(key, target, access).map(lambda found: moments(found, target.start))

    def samples(
        self, key: Array, target: Target, access: Access, units: tuple[Array | float, Array | float] = (1.0, 1.0)
    ) -> Released[Tree]:
        """θ after burn-in, (samples, chains, ...) in each leaf, priced for all steps.

        units: the sizes of a typical record's slope and curvature, released numbers or 1: contributions are clipped
        relative to the first, and the step size is divided by the second.
        """
        start_key, noise_key, key = jax.random.split(key, 3)
        gradient = jax.grad(target.likelihood.log_likelihood)
        correction = getattr(target.likelihood, "log_prior_correction", None) if target.corrects_prior else None
        slope, curvature = (jnp.asarray(unit, jnp.result_type(float)) for unit in units)
        noise = _noise(access) * slope

        def log_cavity(theta: Tree) -> Array:
            parts = over_parts(target.cavity, lambda part, at: part.statistics(at), theta)
            found = inner(target.cavity, parts)
            return found if correction is None else found + correction(theta)

        def step(key: Array, level: Level, state: _State) -> Released[_State]:
            def contribution(record: Tree) -> Tree:
                return jax.tree.map(lambda leaf: leaf / slope, jax.vmap(gradient, (0, None))(state.theta, record))

            def move(total: Tree) -> _State:
                count = state.count.astype(jnp.result_type(float))
                size = self.step_size / curvature * (1 + count / self.decay) ** -self.exponent
                rest = jnp.sqrt(jnp.maximum(0, self.temperature * size - (size / 2 * noise) ** 2))
                known = jax.vmap(jax.grad(log_cavity))(state.theta)
                leaves, treedef = jax.tree.flatten(state.theta)
                keys = jax.random.split(jax.random.fold_in(noise_key, state.count), len(leaves))
                drawn = treedef.unflatten(
                    [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
                )
                theta = jax.tree.map(
                    lambda at, g, h, z: at + size / 2 * (slope * g + h) + rest * z, state.theta, total, known, drawn
                )
                since = state.count - self._first
                place = jnp.where((since >= 0) & (since % self.thinning == 0), since // self.thinning, self.kept)
                kept = jax.tree.map(lambda all, now: all.at[place].set(now, mode="drop"), state.kept, theta)
                return _State(theta, kept, state.count + 1)

            return access.at(level).sum(key, per_record(contribution)).map(move)

        theta = sample(start_key, target.start, (self.chains,))
        kept = jax.tree.map(lambda leaf: jnp.zeros((self.kept, *leaf.shape), leaf.dtype), theta)
        return repeat(key, self.steps, step, _State(theta, kept, jnp.int32(0))).map(lambda end: end.kept)

    def excess(self, access: Access, units: tuple[float, float] = (1.0, 1.0)) -> float:
        """How many times wider than the target the noise of privacy makes the first steps; 1 is not at all."""
        size = self.step_size / (units[1] * self.temperature)
        return max(1.0, size**0.5 / 2 * _noise(access) * units[0])


def published_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The noise multiplier of Wang et al.'s formula (Jälkö's algorithm 2) for (ε, δ), relative to the clip L.

    The formula's variance 128 N T L² / (τ ε²) log(2.5 N T / (τ δ)) log(2/δ) η² is for a step; a record moves a step
    by η N/τ · L. With q = τ/N and N T / τ steps the ratio is √(128 q² steps log(2.5 steps / δ) log(2/δ)) / ε.
    """
    logs = math.log(2.5 * steps / delta) * math.log(2 / delta)
    return math.sqrt(128 * steps * logs) * sampling_rate / epsilon


def moments(samples: Tree, like: Any) -> Any:
    """The families of `like` with the mean and covariance of samples (samples, chains, ...)."""

    def one(part: Any, drawn: Array) -> Any:
        flat = drawn.reshape(-1, drawn.shape[-1])
        mean = jnp.mean(flat, axis=0)
        if isinstance(part, DiagonalGaussian):
            return DiagonalGaussian.of(mean, jnp.sqrt(jnp.var(flat, axis=0) + LEAST_VARIANCE))
        away = flat - mean
        spread = away.T @ away / flat.shape[0] + LEAST_VARIANCE * jnp.eye(flat.shape[1], dtype=flat.dtype)
        return FullGaussian.of(mean, spread)

    return over_parts(like, one, samples)


def _noise(access: Access) -> float:
    """The standard deviation of the noise on each coordinate of a gradient."""
    if len(access.mechanism.sampling_rates) > 1:
        raise ValueError("SGLD needs a mechanism of one level: its own noise depends on that of the gradients")
    return access.mechanism.standard_deviation


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _State:
    """Current parameters of the chains, the samples kept, and the number of steps."""

    theta: Tree
    kept: Tree
    count: Array
