"""Algorithms of one round that add up one noised sum over all sites, and then use it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import register
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released


class ReleasedSum(ABC):
    """The parts that such algorithms share. A subclass has `zeros()`, the sum's form, and `site_step`."""

    @abstractmethod
    def zeros(self) -> Tree:
        """A sum of nothing."""

    @abstractmethod
    def content(self) -> Tree:
        """What sites are sent."""

    def coordinator_init(self, sites: int) -> Tree:
        return jax.tree.map(lambda leaf: jnp.zeros((sites, *leaf.shape), leaf.dtype), self.zeros())

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        return state, self.content()

    def site_init(self) -> Tree:
        return self.zeros()

    def kind(self, count: int) -> int:
        del count
        return 0

    def answer(self, state: Tree) -> Tree:
        return state

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        return jax.tree.map(lambda all, new: all.at[sites].set(new), state, answers)


@register()
@dataclass(frozen=True)
class Addressed(ReleasedSum):
    """The same algorithm, where each site is sent a content of its own. contents: of all sites, stacked."""

    inner: Any
    contents: Any

    def zeros(self) -> Tree:
        return self.inner.zeros()

    def content(self) -> Tree:
        return self.contents

    def addressed(self, content: Tree, site: Any) -> Tree:
        """The part of a broadcast that one site is sent."""
        return jax.tree.map(lambda leaf: leaf[site], content)

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        return self.inner.site_step(key, state, content, access, kind)


def total(state: Tree) -> Any:
    """The sum over all sites."""
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), state)
