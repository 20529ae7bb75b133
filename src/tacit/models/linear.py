"""Bayesian linear regression with known noise: its posterior is known exactly, so every solver is tested on it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, FullGaussian, register

Record = tuple[Array, Array]  # features x (dimension,), target y ()


@register()
@dataclass(frozen=True)
class LinearRegression:
    """y | x, θ ~ N(x·θ, noise_scale²), θ ~ prior (a diagonal or full Gaussian)."""

    prior: DiagonalGaussian | FullGaussian
    noise_scale: float = 1.0

    def of_linear(self, linear: Array, y: Array) -> Array:
        """log p(y | x·θ = linear)."""
        return jax.scipy.stats.norm.logpdf(jnp.asarray(y, linear.dtype), linear, self.noise_scale)

    def log_evidence(self, mean: Array, variance: Array, y: Array) -> Array:
        """log ∫ p(y | z) N(z; mean, variance) dz."""
        return jax.scipy.stats.norm.logpdf(
            jnp.asarray(y, mean.dtype), mean, jnp.sqrt(variance + jnp.asarray(self.noise_scale, mean.dtype) ** 2)
        )

    def log_likelihood(self, theta: Array, record: Record) -> Array:
        x, y = record
        return self.of_linear(x @ theta, y)

    def factor(self, record: Record) -> FullGaussian:
        """One record's likelihood as a factor in θ: (xy, xxᵀ) / noise_scale². Conjugate, so exact."""
        x, y = record
        weight = self.noise_scale**-2
        return FullGaussian(weight * jnp.asarray(y, x.dtype) * x, weight * jnp.outer(x, x))

    def exact_posterior(self, records: Record) -> FullGaussian:
        """The exact posterior from all records (not private)."""
        factors = jax.vmap(self.factor)(records)
        return self.prior.full() + jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), factors)

    def mean_field_optimum(self, records: Record) -> DiagonalGaussian:
        """The diagonal q that minimises KL(q ‖ posterior): the posterior's mean, precisions diag(Λ).

        Combining the diagonal of XᵀX with the whole of Xᵀy would give another mean (docs/errata.md, 1).
        """
        return self.exact_posterior(records).diagonal()

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of y at each row of `features`."""
        full = posterior.full()
        spread = jnp.einsum("ni,ij,nj->n", features, full.covariance, features)
        return features @ full.mean, jnp.sqrt(spread + self.noise_scale**2)
