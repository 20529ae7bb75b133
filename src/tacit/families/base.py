"""Functions shared by all exponential families, derived from the log-partition A(η).

    log q(x) = ⟨η, T(x)⟩ - A(η)

A family is a pytree whose leaves are η, possibly improper: a cavity or a factor need not be a distribution. `+`, `-`
and scalar `*` are product, quotient and power of densities. Every function here also takes a dict of families (nested
if you like): the product of its entries, with a dict of values in place of a value.
"""

import abc
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import reduce
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree

F = TypeVar("F", bound=Any)
C = TypeVar("C")


def register(*meta_fields: str) -> Callable[[type[C]], type[C]]:
    """A decorator that makes a frozen dataclass a pytree; fields named here are metadata, the others data.

    Use it instead of `jax.tree_util.register_dataclass`: in JAX 0.10, two classes registered there with the same number
    of fields and equal metadata have *equal* structures, and a compiled function can run one's program for the other.
    """

    def decorate(cls: type[C]) -> type[C]:
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # a dataclass
        data = [name for name in names if name not in meta_fields]

        def flatten(instance: C) -> tuple[list[Any], tuple[Any, ...]]:
            keyed = [(jax.tree_util.GetAttrKey(name), getattr(instance, name)) for name in data]
            return keyed, tuple(getattr(instance, name) for name in meta_fields)

        def unflatten(meta: tuple[Any, ...], leaves: Any) -> C:
            instance = object.__new__(cls)  # skips __init__, whose checks are not for tracers
            for name, value in zip((*data, *meta_fields), (*leaves, *meta), strict=True):
                object.__setattr__(instance, name, value)
            return instance

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        return cls

    return decorate


class Family(abc.ABC):
    """Natural parameters η of one exponential family. Subclasses are frozen dataclasses registered as pytrees."""

    @abc.abstractmethod
    def log_partition(self) -> Array:
        """A(η). Only proper parameters have one; others give NaN."""

    @abc.abstractmethod
    def statistics(self, x: Array) -> Self:
        """T(x), in the shape of η."""

    @abc.abstractmethod
    def is_proper(self) -> Array:
        """Whether η is finite and the density can be normalised."""

    @abc.abstractmethod
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Draws from a proper member."""

    @abc.abstractmethod
    def project(self, floor: Self) -> Self:
        """The nearest member that is at least as concentrated as `floor`, which is proper."""

    def __add__(self, other: Self) -> Self:
        return product(self, other)

    def __sub__(self, other: Self) -> Self:
        return quotient(self, other)

    def __mul__(self, scale: float | Array) -> Self:
        return power(self, scale)

    __rmul__ = __mul__


def _check_names(q: Mapping[str, Tree], *others: Mapping[str, Tree]) -> None:
    for other in others:
        if set(q) != set(other):
            raise ValueError(f"products over {sorted(q)} and over {sorted(other)}; expected the same names in both")


def _fold(q: Tree, function: Any, *others: Any) -> list[Any]:
    """`function` of each family in q (and of the matching entries of the others)."""
    if isinstance(q, Mapping):
        _check_names(q, *others)
        return [x for name in q for x in _fold(q[name], function, *(other[name] for other in others))]
    return [function(q, *others)]


def over_parts(q: Tree, function: Any, *others: Any) -> Any:
    """`function` of the family q, or of each family in a dict of them, and of the matching entries of the others."""
    if isinstance(q, Mapping):
        _check_names(q, *others)
        return {name: over_parts(q[name], function, *(other[name] for other in others)) for name in q}
    return function(q, *others)


def product(*densities: F) -> F:
    """Π q_i: natural parameters add up."""
    return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), densities)


def quotient(a: F, b: F) -> F:
    """a / b: natural parameters subtract. The result may be improper."""
    return jax.tree.map(jnp.subtract, a, b)


def power(q: F, scale: float | Array) -> F:
    """q^scale: natural parameters times a number."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(scale, leaf.dtype), q)


def inner(a: Tree, b: Tree) -> Array:
    """⟨a, b⟩ over all leaves."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return reduce(jnp.add, (jnp.sum(x * y) for x, y in pairs))


def log_partition(q: Tree) -> Array:
    """A(η), summed over a product."""
    return reduce(jnp.add, _fold(q, lambda part: part.log_partition()))


def mean_parameters(q: F) -> F:
    """E_q[T(x)] = ∇A(η), in the shape of η."""
    return jax.grad(log_partition)(q)


def log_density(q: Tree, x: Tree) -> Array:
    """log q(x) of a proper q."""
    return reduce(jnp.add, _fold(q, lambda part, at: inner(part, part.statistics(at)) - part.log_partition(), x))


def kl(q: F, p: F) -> Array:
    """KL(q ‖ p) = ⟨η_q - η_p, ∇A(η_q)⟩ - A(η_q) + A(η_p), both proper."""
    return kl_up_to_constant(q, p) + log_partition(p)


def kl_up_to_constant(q: F, p: F) -> Array:
    """KL(q ‖ p) - A(η_p): the part that depends on q. It exists even if p (a cavity) is improper."""
    return inner(quotient(q, p), mean_parameters(q)) - log_partition(q)


def entropy(q: Tree) -> Array:
    """-E_q[log q] = A(η) - ⟨η, ∇A(η)⟩."""
    return log_partition(q) - inner(q, mean_parameters(q))


def is_proper(q: Tree) -> Array:
    """Whether every part can be normalised."""
    return reduce(jnp.logical_and, _fold(q, lambda part: part.is_proper()))


def sample(key: Array, q: Tree, shape: tuple[int, ...] = ()) -> Tree:
    """Draws from q; a dict of draws if q is a product."""
    keys = iter(jax.random.split(key, max(1, len(_fold(q, lambda part: part)))))
    return over_parts(q, lambda part: part.sample(next(keys), shape))


def project(q: F, floor: F) -> F:
    """The nearest member of the family to q that is at least as concentrated as `floor`, and so proper.

    For a result that noise made improper. It is post-processing of a release, so it costs nothing. A usual floor is the
    prior: data never makes q less certain.
    """
    return over_parts(q, lambda part, least: part.project(least), floor)
