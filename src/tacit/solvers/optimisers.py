"""Optimisers from the sources that optax does not have. Each is an `optax.GradientTransformation` for `VI`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array


def momentum(learning_rate: float | optax.Schedule, decay: float = 0.9) -> optax.GradientTransformation:
    """Gradient descent with debiased momentum (Hong, algorithm 2): v ← βv + (1 - β)g, and a step of v / (1 - βᵗ).

    Without debiasing, the first steps are short, because v starts at 0. The learning rate is a number or an optax
    schedule: a function of the step, counted from 0, such as `rates` makes.

    >>> optimiser = momentum(rates([0.5, 0.25]))
    >>> state = optimiser.init(jnp.zeros(1))
    >>> for _ in range(3):
    ...     with jax.numpy_dtype_promotion("standard"):  # optax counts in integers
    ...         change, state = optimiser.update(jnp.array([2.0]), state)
    ...     print(round(float(change[0]), 3))
    -1.0
    -0.5
    -0.5
    """
    return optax.chain(optax.ema(decay, debias=True), optax.scale_by_learning_rate(learning_rate))


def rates(values: Any) -> optax.Schedule:
    """An optax schedule from one value for each step, as `tacit.privacy.schedules` makes them; then the last one.

    >>> schedule = rates([0.4, 0.2, 0.1])
    >>> [round(float(schedule(step)), 3) for step in range(5)]
    [0.4, 0.2, 0.1, 0.1, 0.1]
    """
    array = np.asarray(values, float)
    if array.ndim != 1 or not array.size or not np.all(np.isfinite(array)) or array.min() < 0:
        raise ValueError(f"values={values}; expected a list of finite numbers of at least 0, one for each step")

    def rate(step: Any) -> Array:
        return jnp.asarray(array, jnp.result_type(float))[jnp.minimum(step, len(array) - 1)]

    return rate


def with_resets(optimiser: optax.GradientTransformation, every: int) -> optax.GradientTransformation:
    """The optimiser, restarted every `every` steps, as Jälkö (2017, chapter 4) does with AdaGrad.

    AdaGrad adds up all squared gradients, so noise makes its steps shorter and shorter.
    """
    if every < 1:
        raise ValueError(f"every={every}; expected a whole number of steps, at least 1")

    def init(params: Any) -> Any:
        return jnp.int32(0), optimiser.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step, kept = state
        fresh = optimiser.init(updates)
        kept = jax.tree.map(lambda new, old: jnp.where(step % every == 0, new, old), fresh, kept)
        updates, kept = optimiser.update(updates, kept, params)
        return updates, (step + 1, kept)

    return optax.GradientTransformation(init, update)
