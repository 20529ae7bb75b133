"""A mixture of spherical Gaussians with its assignments summed out (Jälkö 2017, section 5.2)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, FullGaussian, register, sample

Theta = dict[str, Array]
# The mean and sd of log √τ with τ ~ Inv-Gamma(1, 1): log τ has mean Euler's constant and variance π²/6.
LOG_SCALE_MEAN = 0.5772156649015329 / 2
LOG_SCALE_SD = math.pi / math.sqrt(6) / 2
LOG_WEIGHT_SD = math.pi / math.sqrt(6)  # of log γ with γ ~ Gamma(1, 1); γ / Σγ is Dirichlet(1)
START_SD = 0.1
DRAWS = 256  # for predictive densities


@register("components", "dimension")
@dataclass(frozen=True)
class GaussianMixture:
    """p(x | θ) = Σ_k π_k N(x; μ_k, s_k² I): one scale per component, assignments summed out for each record.

    θ is a dict of flat arrays without constraints, and the prior and the posterior a dict of Gaussians over it:

    | name         | length                 | constrained value     | default prior                        |
    |--------------|------------------------|-----------------------|--------------------------------------|
    | "weights"    | components             | π = softmax(weights)  | matched to π ~ Dirichlet(1)          |
    | "means"      | components · dimension | μ_k, row by row       | standard normal                      |
    | "log_scales" | components             | s_k = exp(log_scales) | matched to s_k² ~ Inv-Gamma(1, 1)    |

    The thesis has that Dirichlet and that inverse gamma as its prior; here Gaussians with the same moments of the
    logarithms replace them. A softmax does not change when all weights shift, so the prior alone fixes that shift. A
    record is x.

    A posterior in which all components are equal stays so; begin at `start(key)`.
    """

    components: int
    dimension: int
    prior: Any = None  # a dict of DiagonalGaussian; None takes the default

    def __post_init__(self) -> None:
        if self.components < 1 or self.dimension < 1:
            raise ValueError(
                f"components={self.components}, dimension={self.dimension}; expected whole numbers of at least 1"
            )
        if self.prior is None:
            log_scales = jnp.full(self.components, LOG_SCALE_MEAN)
            prior = {
                "weights": DiagonalGaussian.standard(self.components, LOG_WEIGHT_SD),
                "means": DiagonalGaussian.standard(self.components * self.dimension),
                "log_scales": DiagonalGaussian.of(log_scales, LOG_SCALE_SD),
            }
            object.__setattr__(self, "prior", prior)

    def constrain(self, theta: Theta) -> Theta:
        """{"weights": π (components,), "means": μ (components, dimension), "scales": s (components,)}."""
        return {
            "weights": jax.nn.softmax(theta["weights"]),
            "means": theta["means"].reshape(self.components, self.dimension),
            "scales": jnp.exp(theta["log_scales"]),
        }

    def _log_joint(self, theta: Theta, x: Array) -> Array:
        """log π_k + log N(x; μ_k, s_k² I) for each k."""
        means, log_scales = theta["means"].reshape(self.components, self.dimension), theta["log_scales"]
        squares = jnp.sum((x - means) ** 2, axis=1) * jnp.exp(-2 * log_scales)
        log_normal = -squares / 2 - self.dimension * (log_scales + math.log(2 * math.pi) / 2)
        return jax.nn.log_softmax(theta["weights"]) + log_normal

    def log_likelihood(self, theta: Theta, record: Array) -> Array:
        """log Σ_k π_k N(x; μ_k, s_k² I)."""
        return jax.nn.logsumexp(self._log_joint(theta, record))

    def start(self, key: Array, sd: float = START_SD) -> dict[str, DiagonalGaussian]:
        """A posterior to begin with: means drawn from the prior, the rest at its mean, all with a small `sd`."""
        centres = {name: part.mean for name, part in self.prior.items()}
        centres["means"] = self.prior["means"].sample(key)
        return {name: DiagonalGaussian.of(centre, sd) for name, centre in centres.items()}

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """P(component k | x) at each row, (rows, components), and the standard deviation of each component's indicator.

        Responsibilities π_k N(x; μ_k, s_k² I) / p(x) at the posterior mean of θ: a plug-in, which leaves out the
        uncertainty of θ.
        """
        theta = {name: part.mean for name, part in posterior.items()}
        probability = jax.nn.softmax(jax.vmap(partial(self._log_joint, theta))(features), axis=1)
        return probability, jnp.sqrt(probability * (1 - probability))

    def predictive_log_density(self, posterior: Any, features: Array, key: Array, draws: int = DRAWS) -> Array:
        """log E_q[p(x | θ)] at each row, by `draws` draws of θ from the posterior q."""
        thetas = sample(key, posterior, (draws,))
        at_rows = jax.vmap(self.log_likelihood, (None, 0))
        each = jax.vmap(at_rows, (0, None))(thetas, features)
        return jax.nn.logsumexp(each, axis=0) - math.log(draws)


@register("components", "dimension", "scale")
@dataclass(frozen=True)
class GaussianClusters:
    """p(x | θ) = Σ_k N(x; μ_k, scale² I) / components: only the means are unknown (Li et al. 2015, Vinaroz & Park).

    θ is a dict with the mean of each component, "1", "2", ..., and prior and posterior a dict of full Gaussians. The
    assignment of each record is summed out. Begin at `start(key)`: a posterior in which all are equal stays so.
    """

    components: int
    dimension: int
    scale: float = 0.5
    prior: Any = None  # a dict of FullGaussian; None is standard

    def __post_init__(self) -> None:
        if self.components < 1 or self.dimension < 1 or not self.scale > 0:
            raise ValueError(
                f"components={self.components}, dimension={self.dimension}, scale={self.scale}; expected numbers "
                "above 0, the first two whole"
            )
        if self.prior is None:
            prior = {str(k + 1): FullGaussian.standard(self.dimension) for k in range(self.components)}
            object.__setattr__(self, "prior", prior)

    def log_likelihood(self, theta: Theta, record: Array) -> Array:
        """log Σ_k N(x; μ_k, scale² I) / components."""
        means = jnp.stack(list(theta.values()))
        squares = jnp.sum((record - means) ** 2, axis=1) / self.scale**2
        constant = self.dimension * math.log(2 * math.pi * self.scale**2) / 2 + math.log(self.components)
        return jax.nn.logsumexp(-squares / 2) - constant

    def start(self, key: Array, sd: float = 1.0) -> dict[str, FullGaussian]:
        """A posterior to begin with: means drawn from the prior, with standard deviation `sd`."""
        drawn = sample(key, self.prior)
        identity = jnp.eye(self.dimension)
        return {name: FullGaussian.of(mean, sd**2 * identity) for name, mean in drawn.items()}

    def match(
        self, cavity: dict[str, FullGaussian], record: Array, temperature: Array | float = 1.0
    ) -> dict[str, FullGaussian]:
        """Factors that have the moments of cavity · p(record | θ), a mixture over the record's component.

        A temperature above 1 widens clusters by its root: after such a start, fewer runs end with two means in one.

        With r_k the probability that the record is of component k, and N(m', V') the posterior of μ_k if it is, the
        mean is m + r (m' - m) and the covariance (1 - r) V + r V' + r (1 - r) (m' - m)(m' - m)ᵀ.
        """
        noise = self.scale**2 * temperature * jnp.eye(self.dimension, dtype=record.dtype)
        parts = list(cavity.values())
        spreads = [part.covariance for part in parts]
        gaps = [record - part.mean for part in parts]
        roots = [jnp.linalg.cholesky(spread + noise) for spread in spreads]
        whitened = [
            jax.scipy.linalg.solve_triangular(root, gap, lower=True) for root, gap in zip(roots, gaps, strict=True)
        ]
        logs = [
            -jnp.sum(w**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(root))) for w, root in zip(whitened, roots, strict=True)
        ]
        chances = jax.nn.softmax(jnp.stack(logs))
        found = {}
        for name, part, spread, gap, chance in zip(cavity, parts, spreads, gaps, chances, strict=True):
            gain = jnp.linalg.solve(spread + noise, spread).T
            moved, left = gain @ gap, spread - gain @ spread
            mean = part.mean + chance * moved
            covariance = (1 - chance) * spread + chance * left + chance * (1 - chance) * jnp.outer(moved, moved)
            found[name] = FullGaussian.of(mean, (covariance + covariance.T) / 2) - part
        return found

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """P(component k | x) at each row, and the standard deviation of the indicator of each component."""
        parts = list(posterior.values())
        spreads = [part.covariance + self.scale**2 * jnp.eye(self.dimension) for part in parts]
        logs = [
            jax.vmap(partial(jax.scipy.stats.multivariate_normal.logpdf, mean=part.mean, cov=spread))(features)
            for part, spread in zip(parts, spreads, strict=True)
        ]
        probability = jax.nn.softmax(jnp.stack(logs, axis=1), axis=1)
        return probability, jnp.sqrt(probability * (1 - probability))
