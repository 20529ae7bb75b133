"""Evaluate a posterior on records that sites held out. This has a price, like everything that reads records.

A held-out record contributes a bounded vector to one noised sum at its site:

| part                          | how many     | each at most |
|-------------------------------|--------------|--------------|
| 1; whether its prediction is right; -log p of its class over `MOST_LOSS`, at most 1 | 3 | 1 |
| which bin its probability is in; that times its class; that times its probability | 3 × bins | one entry of 1 |

Its norm is at most √6, so nothing is clipped.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.federated.released_sum import ReleasedSum
from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released

BINS = 10  # of predicted probabilities, equally wide
MOST_LOSS = 5.0  # a record that is predicted worse counts as this
CLIP = math.sqrt(6)


@register()
@dataclass(frozen=True)
class Evaluation(ReleasedSum):
    """`Evaluation(posterior, model)`: an `Algorithm` of one round, for models with two classes.

    posterior: the released q to evaluate. model: for its `predict`.
    """

    posterior: Any
    model: Any

    def zeros(self) -> Tree:
        return jnp.zeros(3 + 3 * BINS, jnp.result_type(float))

    def content(self) -> Tree:
        return self.posterior

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        del state, kind

        def scores(records: Tree) -> Dense:
            x, y = records
            chance, _ = self.model.predict(content, x)
            return Dense(jax.vmap(_scores)(chance, y.astype(chance.dtype)))

        return access.sum(key, scores)


def _scores(chance: Array, y: Array) -> Array:
    right = ((chance >= 0.5) == (y > 0.5)).astype(chance.dtype)
    loss = -jnp.log(jnp.maximum(jnp.where(y > 0.5, chance, 1 - chance), jnp.exp(-MOST_LOSS)))
    place = jnp.clip(jnp.floor(chance * BINS), 0, BINS - 1).astype(jnp.int32)
    bins = jax.nn.one_hot(place, BINS, dtype=chance.dtype)
    first = jnp.stack([jnp.ones_like(chance), right, loss / MOST_LOSS])
    return jnp.concatenate([first, bins, bins * (y > 0.5).astype(chance.dtype), bins * chance])


def summary(sums: Any, noise: float) -> dict[str, Any]:
    """Accuracy, mean log-likelihood and calibration from the sum over sites.

    noise: the public standard deviation of the sum's noise. Standard deviations in the answer are those of the privacy
    noise alone, to first order. A bin that noise could have filled is left out.
    """
    total = np.asarray(sums, float)
    count, right, loss = total[0], total[1], total[2]
    bins, ones, chances = total[3:].reshape(3, BINS)
    if count <= 2 * noise:
        return {"records": None, "note": "too few held-out records to tell them from the noise"}
    accuracy, mean_loss = float(np.clip(right / count, 0, 1)), float(np.clip(loss / count, 0, 1))
    rows = [
        {
            "low": j / BINS,
            "high": (j + 1) / BINS,
            "count": float(bins[j]),
            "share": float(np.clip(ones[j] / bins[j], 0, 1)),
            "mean_probability": float(np.clip(chances[j] / bins[j], 0, 1)),
            "sd": float(noise / bins[j]),
        }
        for j in range(BINS)
        if bins[j] > 4 * noise
    ]
    counted = sum(row["count"] for row in rows)
    error = sum(row["count"] * abs(row["share"] - row["mean_probability"]) for row in rows)
    return {
        "records": float(count),
        "accuracy": accuracy,
        "accuracy_sd": float(noise * math.hypot(1, accuracy) / count),
        "log_likelihood": -MOST_LOSS * mean_loss,
        "log_likelihood_sd": float(MOST_LOSS * noise * math.hypot(1, mean_loss) / count),
        "least_log_likelihood": -MOST_LOSS,
        "calibration": rows,
        "calibration_error": error / counted if rows else None,
    }
