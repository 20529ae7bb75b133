"""Generalised linear models: a record (x, y) depends on θ only through x·θ, which makes solvers faster."""

import abc
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, FullGaussian, register

Record = tuple[Array, Array]  # features x (dimension,), target y ()


@dataclass(frozen=True)
class GeneralisedLinear(abc.ABC):
    """A model in which a record's likelihood depends on θ only through x·θ."""

    prior: DiagonalGaussian | FullGaussian

    @abc.abstractmethod
    def of_linear(self, linear: Array, y: Array) -> Array:
        """log p(y | x·θ = linear)."""

    def log_likelihood(self, theta: Array, record: Record) -> Array:
        """log p(y | x, θ)."""
        x, y = record
        return self.of_linear(x @ theta, y)

    def linear(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """Mean and variance of x·θ at each row."""
        if isinstance(posterior, DiagonalGaussian):
            return features @ posterior.mean, features**2 @ posterior.variance
        spread = jnp.einsum("ni,ij,nj->n", features, posterior.covariance, features)
        return features @ posterior.mean, spread


@register()
@dataclass(frozen=True)
class LogisticRegression(GeneralisedLinear):
    """P(y = 1 | x, θ) = 1 / (1 + exp(-x·θ)), y in {0, 1}."""

    def of_linear(self, linear: Array, y: Array) -> Array:
        return jnp.asarray(y, linear.dtype) * linear - jax.nn.softplus(linear)

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """P(y = 1) at each row by the probit approximation (MacKay 1992), and the standard deviation of y."""
        mean, variance = self.linear(posterior, features)
        probability = jax.nn.sigmoid(mean / jnp.sqrt(1 + jnp.pi / 8 * variance))
        return probability, jnp.sqrt(probability * (1 - probability))


@register()
@dataclass(frozen=True)
class ProbitRegression(GeneralisedLinear):
    """P(y = 1 | x, θ) = Φ(x·θ), y in {0, 1}."""

    def of_linear(self, linear: Array, y: Array) -> Array:
        return jax.scipy.stats.norm.logcdf((2 * jnp.asarray(y, linear.dtype) - 1) * linear)

    def log_evidence(self, mean: Array, variance: Array, y: Array) -> Array:
        """log ∫ p(y | z) N(z; mean, variance) dz."""
        return self.of_linear(mean / jnp.sqrt(1 + variance), y)

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """P(y = 1) at each row, exactly for a Gaussian posterior, and the standard deviation of y."""
        mean, variance = self.linear(posterior, features)
        probability = jax.scipy.stats.norm.cdf(mean / jnp.sqrt(1 + variance))
        return probability, jnp.sqrt(probability * (1 - probability))


@register()
@dataclass(frozen=True)
class PoissonRegression(GeneralisedLinear):
    """y | x, θ ~ Poisson(exp(x·θ)), y in {0, 1, 2, ...}."""

    def of_linear(self, linear: Array, y: Array) -> Array:
        y = jnp.asarray(y, linear.dtype)
        return y * linear - jnp.exp(linear) - jax.scipy.special.gammaln(y + 1)

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the count at each row: a log-normal rate with Poisson noise."""
        mean, variance = self.linear(posterior, features)
        rate = jnp.exp(mean + variance / 2)
        return rate, jnp.sqrt(rate + rate**2 * jnp.expm1(variance))
