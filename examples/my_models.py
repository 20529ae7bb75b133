"""A model of one's own: a logistic regression in which a share of the labels is wrong. It is found by its name.

PYTHONPATH=examples tacit simulate examples/own-model.toml --out own-model
PYTHONPATH=examples tacit study hash my_models:mislabelled
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from tacit.models import NumPyroModel, from_numpyro

COLUMNS = 10  # of abalone: three sexes and seven measurements, from 0 to 1


def regression(x: jax.Array, old: jax.Array | None = None) -> None:
    """Old or young by x, where labels are drawn at random with probability `wrong`."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 3.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 3.0).expand([COLUMNS]).to_event(1))
    wrong = numpyro.sample("wrong", dist.Beta(1.0, 20.0))
    with numpyro.plate("abalones", x.shape[0]):
        chance = wrong / 2 + (1 - wrong) * jax.nn.sigmoid(shift + x @ slopes)
        numpyro.sample("old", dist.Bernoulli(probs=chance), obs=old)


def mislabelled() -> NumPyroModel:
    """The model, learned from two made-up records."""
    records = np.linspace(0.0, 1.0, 2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)
    return from_numpyro(regression, (records, np.array([0, 1])))
