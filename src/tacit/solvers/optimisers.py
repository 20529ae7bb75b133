"""Optimisers of the sources that optax has no name for. Each is an `optax.GradientTransformation` for `VI`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def momentum(learning_rate: float, decay: float = 0.9) -> optax.GradientTransformation:
    """Gradient descent with debiased momentum (Hong, algorithm 2): v ← βv + (1 - β)g, and a step of v / (1 - βᵗ).

    Without the debiasing the first steps are short: v starts at 0.

    """
    return optax.chain(optax.ema(decay, debias=True), optax.scale(-learning_rate))


def with_resets(optimiser: optax.GradientTransformation, every: int) -> optax.GradientTransformation:
    """The optimiser, begun anew every so many steps, as Jälkö (2017, chapter 4) does with AdaGrad.

    AdaGrad adds up all squared gradients, so that noise makes its steps shorter and shorter.
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
