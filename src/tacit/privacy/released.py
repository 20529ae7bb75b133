"""Released values: a value that left the data, with its receipt.

The receipt (an event) is pytree *metadata*: it survives `jit`, its cache and `scan`, and `jax.eval_shape` of a step
gives the price of the step before a record is read. A ledger filled as a side effect inside a jitted function would
stay empty on the second, cached call.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from tacit.privacy.events import Composed, Event, Repeated, at_level, check_steps, compose
from tacit.privacy.randomness import witness

A = TypeVar("A")
B = TypeVar("B")


@partial(jax.tree_util.register_dataclass, data_fields=["value", "witness", "trace"], meta_fields=["receipt", "seeded"])
@dataclass(frozen=True)
class Released(Generic[A]):
    """A value and the receipt that paid for it.

    `seeded` says that some of the randomness came from a seed: then the guarantee holds only against those who do not
    know the seed. Reading `.value` is for `privacy/`, the site, and the single-site front: elsewhere use `map` and
    `then`, which keep the receipt.

    `witness` is a scalar that travels with the value. `vmap`, `lax.map` and the outputs of `scan` make an array of it,
    whose size is the number of releases; `event` counts them all. It is of key type, so no sum or mean over releases
    accepts it: such a function belongs in `map`.

    `trace` is empty except in an audit, whose access stores its scores of the releases there.
    """

    value: A
    receipt: Event = field(default_factory=Composed)
    seeded: bool = False
    witness: Any = field(default_factory=witness, compare=False, repr=False)
    trace: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    @property
    def event(self) -> Event:
        """The event of all releases in the value: the receipt, as often as there are releases."""
        return _times(self.receipt, math.prod(jnp.shape(self.witness)))

    def map(self, function: Callable[[A], B]) -> "Released[B]":
        """Post-processing: free, whatever the function, as long as it does not read private data.

        >>> Released(2.0).map(lambda x: x + 1)
        Released(value=3.0, receipt=Composed(events=()), seeded=False)
        """
        value = function(self.value)
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, Released))
        if any(isinstance(leaf, Released) for leaf in leaves):
            raise ValueError("the function makes releases, and map would lose their receipts; use then")
        return replace(self, value=value)  # type: ignore[arg-type]  # the new value has another type

    def then(self, function: Callable[[A], "Released[B]"]) -> "Released[B]":
        """A further release that may depend on this one: receipts add up."""
        following = function(self.value)
        return Released(following.value, *_together(self, following))

    def join(self, other: "Released[B]") -> "Released[tuple[A, B]]":
        """Two releases side by side: receipts add up."""
        return Released((self.value, other.value), *_together(self, other))


def _together(a: Released[Any], b: Released[Any]) -> tuple[Event, bool, Any, tuple[Any, ...]]:
    """Receipt, seededness, witness and trace of two releases."""
    scalars = [r.witness for r in (a, b) if jnp.shape(r.witness) == ()]  # the others are counted in their events
    return compose(a.event, b.event), a.seeded or b.seeded, witness(*scalars), a.trace + b.trace


_schedules = itertools.count()


@partial(jax.tree_util.register_dataclass, data_fields=["index"], meta_fields=["count", "schedule"])
@dataclass(frozen=True)
class Level:
    """Where a running `repeat` is in its schedule. Only `repeat` makes it, so that receipt and noise cannot differ.

    Pass it on unchanged: a level with another index forges the receipt.
    """

    index: Array
    count: int
    schedule: int


def repeat(
    key: Array,
    steps: int | tuple[int, ...],
    step: Callable[[Array, Level, A], Released[A]],
    state: A,
) -> Released[A]:
    """Run `step(key, level, state)` repeatedly; return the last state, priced for all steps.

    `steps` is their number, or the number at each level of a schedule; the step passes `level` to `access.at(level)`.
    The length of the scan and the count in the receipt are the same number by construction. Every step gets a key of
    its own, and memory does not grow with the steps.

    >>> from tacit.privacy.events import Gaussian
    >>> repeat(jax.random.key(0), 3, lambda key, level, x: Released(x + 1, Gaussian(2.0)), jnp.array(0.0)).event
    Repeated(event=Gaussian(noise_multiplier=2.0, ...), steps=3)
    """
    counts = (steps,) if isinstance(steps, int) else tuple(steps)
    if not counts:
        raise ValueError("steps=(); expected a whole number of at least 1, or one for each level")
    for count in counts:
        check_steps(count)
    schedule = next(_schedules)
    ends = jnp.cumsum(jnp.asarray(counts, jnp.int32))
    receipts: set[tuple[Event, bool]] = set()

    def body(carry: A, t: Array) -> tuple[A, tuple[Any, ...]]:
        index = jnp.searchsorted(ends, t, side="right").astype(jnp.int32)
        release = step(jax.random.fold_in(key, t), Level(index, len(counts), schedule), carry)
        receipts.add((release.event, release.seeded))  # at trace time: the event is static, whatever the step
        return release.value, release.trace

    value, trace = lax.scan(body, state, jnp.arange(sum(counts), dtype=jnp.int32))
    if len(receipts) != 1:
        raise ValueError("a step's event changed between traces; it must depend on public settings only")
    ((event, seeded),) = receipts
    levels = [at_level(event, schedule, level) for level in range(len(counts))]
    paid = compose(*(_times(e, n) for e, n in zip(levels, counts, strict=True)))
    return Released(value, paid, seeded, witness(key), trace)


def _times(event: Event, steps: int) -> Event:
    if steps == 0:
        return Composed()
    return event if steps == 1 or event == Composed() else Repeated(event, steps)


def price(step: Callable[..., Released[Any]], *arguments: Any) -> Event:
    """The event that `step(*arguments)` will cost, without running it: no record is read.

    Arguments may be arrays or `jax.ShapeDtypeStruct`s.
    """
    return jax.eval_shape(step, *arguments).event
