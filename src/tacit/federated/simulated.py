"""A site's step in simulations."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.federated.algorithm import Algorithm
from tacit.privacy.mechanism import Access


def unledgered(algorithm: Algorithm, kind: int, key: Array, state: Tree, content: Tree, access: Access) -> Tree:
    """A site's step without its receipt, for simulations on public or made-up records; price it beforehand."""
    new = algorithm.site_step(key, state, content, access, kind).value
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
    return jax.tree.map(partial(jnp.where, finite), new, state)  # as a site does
