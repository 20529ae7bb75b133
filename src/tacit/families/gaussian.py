"""Gaussians in natural parameters: η = (Λμ, Λ) with T(x) = (x, -½xxᵀ), diagonal or full."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families.base import Family, register


@register()
@dataclass(frozen=True)
class DiagonalGaussian(Family):
    """Independent normals: precision_mean = Λμ and precision = Λ, elementwise.

    >>> q = DiagonalGaussian.of(mean=jnp.array([1.0, 2.0]), sd=jnp.array([1.0, 0.5]))
    >>> (q + q).mean.tolist(), (q + q).precision.tolist()
    ([1.0, 2.0], [2.0, 8.0])
    """

    precision_mean: Array
    precision: Array

    @classmethod
    def of(cls, mean: Any, sd: Any) -> "DiagonalGaussian":
        """From means and standard deviations."""
        mean = jnp.asarray(mean, jnp.result_type(float))
        precision = jnp.broadcast_to(jnp.asarray(sd, mean.dtype) ** -2, mean.shape)
        return cls(precision * mean, precision)

    @classmethod
    def standard(cls, dimension: int, sd: float = 1.0) -> "DiagonalGaussian":
        """Mean zero and the same standard deviation `sd` for all coordinates."""
        return cls.of(jnp.zeros(dimension), sd)

    @property
    def mean(self) -> Array:
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Array:
        return 1 / self.precision

    @property
    def standard_deviation(self) -> Array:
        return jnp.sqrt(self.variance)

    def log_partition(self) -> Array:
        quadratic = self.precision_mean**2 / self.precision
        return jnp.sum(quadratic - jnp.log(self.precision) + math.log(2 * math.pi)) / 2

    def statistics(self, x: Array) -> "DiagonalGaussian":
        return DiagonalGaussian(x, -(x**2) / 2)

    def is_proper(self) -> Array:
        return jnp.all(jnp.isfinite(self.precision_mean) & jnp.isfinite(self.precision) & (self.precision > 0))

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        noise = jax.random.normal(key, (*shape, *self.precision.shape), self.precision.dtype)
        return self.mean + self.standard_deviation * noise

    def project(self, floor: Any) -> "DiagonalGaussian":
        """Precisions below the floor's become the floor's; Λμ stays: the nearest point in η."""
        return DiagonalGaussian(self.precision_mean, jnp.maximum(self.precision, floor.precision))

    def full(self) -> "FullGaussian":
        """The same density with a full precision matrix."""
        return FullGaussian(self.precision_mean, jnp.diag(self.precision))


@register()
@dataclass(frozen=True)
class FullGaussian(Family):
    """A multivariate normal: precision_mean = Λμ, a vector, and precision = Λ, a symmetric matrix."""

    precision_mean: Array
    precision: Array

    @classmethod
    def of(cls, mean: Any, covariance: Any) -> "FullGaussian":
        """From a mean and a covariance matrix."""
        mean = jnp.asarray(mean, jnp.result_type(float))
        precision = _symmetric(jnp.linalg.inv(jnp.asarray(covariance, mean.dtype)))
        return cls(precision @ mean, precision)

    @classmethod
    def standard(cls, dimension: int, sd: float = 1.0) -> "FullGaussian":
        """Mean zero, independent, with the same standard deviation `sd` for all coordinates."""
        return DiagonalGaussian.standard(dimension, sd).full()

    @property
    def mean(self) -> Array:
        return jnp.linalg.solve(self.precision, self.precision_mean)

    @property
    def covariance(self) -> Array:
        return _symmetric(jnp.linalg.inv(self.precision))

    @property
    def standard_deviation(self) -> Array:
        return jnp.sqrt(jnp.diagonal(self.covariance))

    def log_partition(self) -> Array:
        root = jnp.linalg.cholesky(_symmetric(self.precision))
        whitened = jax.scipy.linalg.solve_triangular(root, self.precision_mean, lower=True)
        log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return (jnp.sum(whitened**2) - log_determinant + whitened.shape[0] * math.log(2 * math.pi)) / 2

    def statistics(self, x: Array) -> "FullGaussian":
        return FullGaussian(x, -jnp.outer(x, x) / 2)

    def is_proper(self) -> Array:
        finite = jnp.all(jnp.isfinite(self.precision_mean)) & jnp.all(jnp.isfinite(self.precision))
        usable = jnp.where(
            finite, _symmetric(self.precision), -jnp.eye(*self.precision.shape, dtype=self.precision.dtype)
        )
        return finite & (jnp.linalg.eigvalsh(usable)[0] > 0)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        noise = jax.random.normal(key, (*shape, self.precision.shape[0]), self.precision.dtype)
        root = jnp.linalg.cholesky(_symmetric(self.precision))
        return self.mean + jax.scipy.linalg.solve_triangular(root.T, noise[..., None], lower=False)[..., 0]

    def project(self, floor: Any) -> "FullGaussian":
        """Λ raised to at least the floor's Λ₀ in every direction: eigenvalues of R⁻¹ΛR⁻ᵀ below 1 become 1, Λ₀ = RRᵀ."""
        root = jnp.linalg.cholesky(_symmetric(floor.precision))
        half = jax.scipy.linalg.solve_triangular(root, _symmetric(self.precision), lower=True)
        relative = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
        values, vectors = jnp.linalg.eigh(_symmetric(relative))
        # Next to a huge eigenvalue a 1 is lost to rounding, and the result could be improper again.
        least = jnp.maximum(1, 8 * values.shape[0] * jnp.finfo(values.dtype).eps * values[-1])
        raised = root @ (vectors * jnp.maximum(values, least)) @ (root @ vectors).T
        return FullGaussian(self.precision_mean, _symmetric(raised))

    def diagonal(self) -> DiagonalGaussian:
        """The diagonal Gaussian nearest in KL(diagonal ‖ this): its mean, precisions diag(Λ) (docs/errata.md, 1)."""
        precision = jnp.diagonal(self.precision)
        return DiagonalGaussian(precision * self.mean, precision)

    def full(self) -> "FullGaussian":
        """Itself, so that code for either Gaussian can call `full`."""
        return self


def denoise(matrix: Array, noise: float | Array, shrinkage: float | Array | None = None) -> tuple[Array, float | Array]:
    """Estimate a positive semidefinite matrix from a noised symmetric one; also the noise's largest eigenvalue.

    Noise of standard deviation s on the diagonal and s/√2 off it has eigenvalues up to s√(2d), its edge. An eigenvalue
    λ of the true matrix appears at λ + edge²/4λ, and not at all below half the edge (Baik, Ben Arous & Péché 2005):
    each eigenvalue above the edge is replaced by that λ. The remainder keeps only its diagonal: the part above s, or,
    with `shrinkage`, that share of its best estimate, which pulls numbers that vary by no more than s to their mean
    (James & Stein 1961). Without noise this is the projection onto matrices without negative eigenvalues.
    """
    edge = noise * math.sqrt(2 * matrix.shape[0])
    values, vectors = jnp.linalg.eigh(_symmetric(matrix))
    shown = values > edge
    sizes = jnp.where(shown, (values + jnp.sqrt(jnp.where(shown, values**2 - edge**2, 0))) / 2, 0)
    seen = (vectors * sizes) @ vectors.T
    rest = jnp.diagonal(matrix) - jnp.diagonal(seen)
    if shrinkage is None:
        rest = jnp.maximum(0, rest - noise)
    else:
        middle = jnp.mean(rest)
        varied = jnp.mean((rest - middle) ** 2)
        share = jnp.clip(1 - noise**2 / jnp.maximum(varied, 1e-30), 0, 1)
        rest = shrinkage * jnp.maximum(0, middle + share * (rest - middle))
    return seen + jnp.diag(rest), edge


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2
