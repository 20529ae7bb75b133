"""The inputs and the output of a solver."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released


class Likelihood(Protocol):
    """The part of a model that a solver uses: `log_likelihood(theta, record)`, and `factor(record)` if conjugate."""

    def log_likelihood(self, theta: Tree, record: Tree) -> Array: ...


@partial(
    jax.tree_util.register_dataclass, data_fields=["cavity", "start", "likelihood"], meta_fields=["corrects_prior"]
)
@dataclass(frozen=True)
class Target:
    """The distribution to approximate: cavity(θ) · Π likelihood(record | θ).

    cavity: everything known without these records: the prior, or q without this site's factor. start: where to begin,
    and the family of the answer. likelihood: of one record; a pytree, so that a target can pass through `jit`.
    corrects_prior: whether the cavity represents the model's whole prior; a prior outside the family then enters by its
    `log_prior_correction`. At one site of many it is False: the prior is then a factor of its own.
    """

    cavity: Any
    start: Any
    likelihood: Likelihood
    corrects_prior: bool = True


class Solver(Protocol):
    """`(key, target, access)` to a released posterior in the family of `target.start`."""

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]: ...
