"""Global variational inference by gradients: sites send gradients of their likelihood terms, the coordinator steps.

    descent = ∇KL(q ‖ prior) - Σ_m w_m ∇E_q[log p(data_m | θ)]

Partitioned inference is compared with this method. With w_m = 1 and all sites in every round it is VI on all records;
with w_m = N / N_m and one site at a time, in any order (Sharma et al. 2019), it follows the sites that come most often.
Sites keep no state.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.solvers.base import Target


@register()
@dataclass(frozen=True)
class AveragingState:
    """The optimiser's state and the gradients that arrived since its last step."""

    optimiser: Any
    gradient: Tree
    arrived: Array


@register("solver")
@dataclass(frozen=True)
class GradientAveraging:
    """`GradientAveraging(start, prior, likelihood, weights, VI(...))`: an `Algorithm`.

    weights: w_m of each site, public. solver: a `VI`; sites compute its gradient, the coordinator takes its steps.
    """

    start: Any
    prior: Any
    likelihood: Any
    weights: Array
    solver: Any

    def __post_init__(self) -> None:
        if hasattr(self.likelihood, "log_prior_correction"):
            name = type(self.likelihood).__name__
            raise ValueError(f"{name} has a prior outside of the family, which every site would add; use PVI")

    def coordinator_init(self, sites: int) -> AveragingState:
        if self.weights.ndim != 1 or self.weights.shape[0] < sites:  # a site checks shapes with one site
            raise ValueError(f"weights has shape {self.weights.shape}; expected one for each of {sites} sites")
        state = self.solver.begin(self.start)
        return AveragingState(state, jax.tree.map(jnp.zeros_like, state.parameters), jnp.int32(0))

    def broadcast(self, state: AveragingState) -> tuple[AveragingState, Tree]:
        stepped = self.solver.step(state.optimiser, self._target(), state.gradient)
        optimiser = jax.tree.map(partial(jnp.where, state.arrived > 0), stepped, state.optimiser)
        zeros = jax.tree.map(jnp.zeros_like, state.gradient)
        return AveragingState(optimiser, zeros, jnp.int32(0)), self._content(optimiser.parameters)

    def site_init(self) -> Tree:
        return jax.tree.map(jnp.zeros_like, self.solver.begin(self.start).parameters)

    def kind(self, count: int) -> int:
        del count
        return 0

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        del kind
        parameters = jax.tree.unflatten(jax.tree.structure(state), list(content.values()))
        return self.solver.gradient(key, parameters, self._target(), access)

    def answer(self, state: Tree) -> Tree:
        return self._content(state)

    def coordinator_step(self, state: AveragingState, sites: Array, answers: Tree) -> AveragingState:
        weights = self.weights[sites]
        parts = jax.tree.unflatten(jax.tree.structure(state.gradient), list(answers.values()))
        gradient = jax.tree.map(lambda all, g: all + jnp.tensordot(weights, g, 1), state.gradient, parts)
        return AveragingState(state.optimiser, gradient, state.arrived + jnp.int32(sites.shape[0]))

    def posterior(self, state: AveragingState) -> Tree:
        """q, from the averaged parameters."""
        return self.solver.end(state.optimiser, self.start)

    def _target(self) -> Target:
        return Target(self.prior, self.start, self.likelihood)

    def _content(self, parameters: Tree) -> dict[str, Array]:
        """A tree that `messages` can encode."""
        return {f"{place:04d}": leaf for place, leaf in enumerate(jax.tree.leaves(parameters))}
