"""A Bayesian neural network: tanh layers with Gaussian weights, for numbers, for yes or no, or for classes."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.families import DiagonalGaussian, register, sample

Theta = dict[str, Array]
Record = tuple[
    Array, Array
]  # features x (dimension,), target y: () or, for several outputs of a regression, (outputs,)
KINDS = ("regression", "binary", "classes")
START_SD = 0.05  # in prior standard deviations: small enough that a draw does not hide the means
DRAWS = 128  # for predictions: a Monte Carlo error of a tenth of a posterior standard deviation


@register("dimension", "hidden", "outputs", "kind", "noise_scale")
@dataclass(frozen=True)
class NeuralNetwork:
    """h_0 = x, h_{l+1} = tanh(W_l h_l + b_l), f = W_L h_L + b_L, and a target that depends on f:

    | kind         | target y                      | log p(y | f)                  |
    |--------------|-------------------------------|-------------------------------|
    | "regression" | a number, or `outputs` of them| Σ log N(y; f, noise_scale²)   |
    | "binary"     | 0 or 1 (outputs=1)            | y f - log(1 + exp f)          |
    | "classes"    | 0, ..., outputs - 1           | f_y - log Σ_j exp f_j         |

    θ is a dict {"layer0": ..., "layer1": ...} of flat arrays: a layer's W, row by row, then its b. The default prior
    has W ~ N(0, 1 / fan-in) and b ~ N(0, 1), so that f is of order one whatever the width.

    Exchanging hidden units, or flipping their signs, does not change f: a posterior symmetric in them has no gradient
    that separates them. Begin at `start(key)`, and look at predictions, not at weights.
    """

    dimension: int
    hidden: tuple[int, ...] = (50,)
    outputs: int = 1
    kind: str = "regression"
    noise_scale: float = 1.0
    prior: Any = None  # a dict of DiagonalGaussian; None takes the default

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}; expected one of {', '.join(KINDS)}")
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not 1 <= len(self.hidden) <= 2 or min(self.hidden) < 1:
            raise ValueError(f"hidden={self.hidden}; expected the widths of one or two hidden layers")
        if self.kind == "binary" and self.outputs != 1:
            raise ValueError(f"kind='binary' with outputs={self.outputs}; expected 1, or kind='classes'")
        if self.kind == "classes" and self.outputs < 2:
            raise ValueError(f"kind='classes' with outputs={self.outputs}; expected the number of classes, 2 or more")
        if self.prior is None:
            prior = {}
            for name, (fan_in, fan_out) in self._layers.items():
                weights, biases = jnp.full(fan_in * fan_out, fan_in**-0.5), jnp.ones(fan_out)
                sds = jnp.concatenate([weights, biases])
                prior[name] = DiagonalGaussian.of(jnp.zeros_like(sds), sds)
            object.__setattr__(self, "prior", prior)

    @property
    def _layers(self) -> dict[str, tuple[int, int]]:
        """Fan-in and fan-out of each layer."""
        widths = (self.dimension, *self.hidden, self.outputs)
        return {f"layer{i}": (widths[i], widths[i + 1]) for i in range(len(widths) - 1)}

    def function(self, theta: Theta, x: Array) -> Array:
        """f(x), (outputs,)."""
        for i, (name, (fan_in, fan_out)) in enumerate(self._layers.items()):
            weights = theta[name][: fan_in * fan_out].reshape(fan_out, fan_in)
            x = weights @ (jnp.tanh(x) if i else x) + theta[name][fan_in * fan_out :]
        return x

    def log_likelihood(self, theta: Theta, record: Record) -> Array:
        """log p(y | f(x)), by the table above. A class out of range gives NaN, with gradient 0."""
        x, y = record
        f = self.function(theta, x)
        if self.kind == "regression":
            y = jnp.asarray(y, f.dtype).reshape(f.shape)
            return jnp.sum(jax.scipy.stats.norm.logpdf(y, f, self.noise_scale))
        if self.kind == "binary":
            return jnp.asarray(y, f.dtype).reshape(()) * f[0] - jax.nn.softplus(f[0])
        y = jnp.asarray(y).astype(jnp.int32).reshape(())
        known = (y >= 0) & (y < self.outputs)
        return jnp.where(known, jax.nn.log_softmax(f)[jnp.where(known, y, 0)], jnp.nan)

    def start(self, key: Array, sd: float = START_SD) -> dict[str, DiagonalGaussian]:
        """A posterior to begin with: means drawn from the prior, standard deviations `sd` times the prior's."""
        means = sample(key, self.prior)
        return {name: DiagonalGaussian.of(means[name], sd * q.standard_deviation) for name, q in self.prior.items()}

    def predict(self, posterior: Any, features: Array, key: Array, draws: int = DRAWS) -> tuple[Array, Array]:
        """Mean and standard deviation of y at each row, by `draws` draws from the posterior.

        Unlike the other models this one takes a key, because predictions have no closed form.

        | kind         | shape                                            | first    | second                        |
        |--------------|--------------------------------------------------|----------|-------------------------------|
        | "regression" | (rows,), or (rows, outputs) with several outputs | E[f]     | √(Var[f] + noise_scale²)      |
        | "binary"     | (rows,)                                          | P(y = 1) | √(P (1 - P))                  |
        | "classes"    | (rows, outputs)                                  | P(y = k) | √(P (1 - P)) of the indicator |
        """
        thetas = sample(key, posterior, (draws,))
        f = jax.vmap(jax.vmap(self.function, (None, 0)), (0, None))(thetas, features)
        f = f[..., 0] if self.outputs == 1 else f
        if self.kind == "regression":
            return jnp.mean(f, axis=0), jnp.sqrt(jnp.var(f, axis=0) + self.noise_scale**2)
        each = jax.nn.sigmoid(f) if self.kind == "binary" else jax.nn.softmax(f)
        probability = jnp.mean(each, axis=0)
        return probability, jnp.sqrt(probability * (1 - probability))
