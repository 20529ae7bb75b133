"""Check the form of trees, and whether the families in a content are proper."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.basics.trees import Tree
from tacit.families import Family, FullGaussian, is_proper


def form_of(tree: Tree) -> Any:
    """Structure, shapes and types of a tree's arrays."""
    leaves = jax.tree.leaves(tree)
    return jax.tree.structure(tree), [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def is_all_proper(content: Tree) -> bool:
    """Whether every family in a content, which is finite, can be normalised."""

    def one(part: Any) -> bool:
        if isinstance(part, FullGaussian):  # by numpy, which is much faster: a coordinator's q comes every round
            precision = np.asarray(part.precision, float)
            return bool(np.linalg.eigvalsh((precision + precision.T) / 2)[0] > 0)
        return not isinstance(part, Family) or bool(is_proper(jax.tree.map(jnp.asarray, part)))

    return all(map(one, jax.tree.leaves(content, is_leaf=lambda part: isinstance(part, Family))))
