"""Samples by Langevin dynamics, at one site: its whole run is one update, and samples are what it sends."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.solvers.base import Target


@register("solver")
@dataclass(frozen=True)
class Sampling:
    """`Sampling(prior, likelihood, solver, start, units)`: an `Algorithm` of one round.

    solver: an `SGLD`. start: where chains begin, public or released. units: the sizes of a typical record's slope and
    curvature. Samples of several sites do not combine, so there is one site.
    """

    prior: Any
    likelihood: Any
    solver: Any
    start: Any
    units: tuple[Any, Any] = (1.0, 1.0)

    def coordinator_init(self, sites: int) -> Tree:
        if sites != 1:
            raise ValueError(f"sites={sites}; expected 1, since samples of several sites do not combine")
        return self.site_init()

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        return state, self.start

    def site_init(self) -> Tree:
        shape = (self.solver.kept, self.solver.chains)
        return jax.tree.map(
            lambda part: jnp.zeros((*shape, *part.precision_mean.shape), part.precision_mean.dtype),
            self.start,
            is_leaf=lambda part: hasattr(part, "precision_mean"),
        )

    def kind(self, count: int) -> int:
        del count
        return 0

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        del state, kind
        return self.solver.samples(key, Target(self.prior, content, self.likelihood), access, self.units)

    def answer(self, state: Tree) -> Tree:
        return state

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        del state, sites
        return jax.tree.map(lambda leaf: leaf[0], answers)

    def posterior(self, state: Tree) -> Tree:
        """The samples, (samples, chains, ...) in each leaf."""
        return state
