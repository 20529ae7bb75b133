"""Mechanisms: the only way from private records to a number, and the guarantee that comes with it.

`Access` holds the records and a mechanism. `access.sum(key, contribution)` is the one way to read them: sample slots
(`sampling`), compute and clip contributions (`clipping`), add them up on the lattice with noise (`noise`), and return
the result with its receipt (`events`, `released`).

Guarantee of `SubsampledGaussian`. Let one unit's slot be filled or empty, everything else equal. Which slots are
chosen does not depend on the data. Given the choice among the other slots, that unit enters the sum with probability
at most the sampling rate, with a vector of norm at most C, and noise of standard deviation noise_multiplier·C is added:
the event that the receipt names. The event includes truncating the sample at the buffer (`accounting`).
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.core
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.basics.trees import Tree
from tacit.privacy import events
from tacit.privacy.clipping import (
    MOST_BOUND,
    Contributions,
    Limit,
    Limited,
    Outer,
    checked,
    clip_weights,
    rounding_margin,
)
from tacit.privacy.noise import Lattice
from tacit.privacy.randomness import is_secure, is_tracing, witness
from tacit.privacy.released import Level, Released
from tacit.privacy.sampling import PoissonSampler, default_buffer

MOST_LEVELS = 32  # a schedule is a public step function: heterogeneous accounting stays cheap
LEAST_CLIP = 1e-12  # below it the square of a contribution underflows in single precision
MOST_NUMBERS = 2**19  # held at once by one part of a sum: 2 MiB stay in a processor's cache


def _levels(name: str, value: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    values = tuple(float(v) for v in value) if isinstance(value, tuple) else (float(value),) * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} levels and another setting {count}; give one value or as many")
    return values


@dataclass(frozen=True)
class SubsampledGaussian:
    """Clip each unit's contribution to norm `clip`, add up a Poisson sample, add N(0, (noise_multiplier · clip)²).

    Each setting is a number, or a tuple with one entry for each level of a schedule (at most 32). `buffer` is the
    most units a step can hold; by default the mean and eight standard deviations.
    """

    clip: float | tuple[float, ...]
    noise_multiplier: float | tuple[float, ...]
    sampling_rate: float | tuple[float, ...] = 1.0
    buffer: int | None = None

    def __post_init__(self) -> None:
        lengths = {len(v) for v in (self.clip, self.noise_multiplier, self.sampling_rate) if isinstance(v, tuple)}
        count = max(lengths, default=1)
        if not 1 <= count <= MOST_LEVELS:
            raise ValueError(f"a schedule of {count} levels; expected 1 to {MOST_LEVELS}")
        for name in ("clip", "noise_multiplier", "sampling_rate"):
            object.__setattr__(self, name, _levels(name, getattr(self, name), count))
        for clip in self.clips:
            valid = np.isfinite(clip) and clip >= LEAST_CLIP
            events.check_number("clip", clip, f"a finite number of at least {LEAST_CLIP}", bool(valid))
        for value in self.noise_multipliers:
            events.check_noise_multiplier(value)
        if self.buffer is not None:
            events.check_number("buffer", self.buffer, "a whole number of at least 1", self.buffer >= 1)
        for value in self.sampling_rates:
            events.check_sampling_rate(value)

    @property
    def clips(self) -> tuple[float, ...]:
        return self.clip  # type: ignore[return-value]  # made a tuple above

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        return self.noise_multiplier  # type: ignore[return-value]

    @property
    def sampling_rates(self) -> tuple[float, ...]:
        return self.sampling_rate  # type: ignore[return-value]

    @property
    def standard_deviation(self) -> float:
        """The noise on each coordinate of a released sum, which is scaled by 1 / rate; at the noisiest level."""
        levels = zip(self.clips, self.noise_multipliers, self.sampling_rates, strict=True)
        return max(clip * multiplier / rate for clip, multiplier, rate in levels)

    def sampler(self, slots: int) -> PoissonSampler | None:
        """How a step chooses slots; None where it takes them all."""
        if all(rate == 1 for rate in self.sampling_rates):
            return None
        room = self.buffer or max(default_buffer(slots, rate) for rate in self.sampling_rates)
        if room < slots and max(self.sampling_rates) == 1:
            raise ValueError(f"buffer={room} with a level that takes all {slots} slots; expected at least as many")
        return PoissonSampler(slots, self.sampling_rates, min(room, slots))

    def level_events(self, slots: int, unit: str, coordinates: int) -> tuple[events.Event, ...]:
        """The event of one step at each level, for a sum of that many coordinates."""
        sampler = self.sampler(slots)
        found: list[events.Event] = []
        for multiplier, rate in zip(self.noise_multipliers, self.sampling_rates, strict=True):
            event: events.Event = events.Gaussian(multiplier, unit, coordinates=coordinates)
            if sampler is not None and rate < 1:
                event = events.TruncatedPoissonSampled(rate, slots, sampler.buffer, event)
            found.append(event)
        return tuple(found)

    def _lattice(self, coordinates: int, units: int) -> Lattice:
        margin = rounding_margin(coordinates, jnp.result_type(float))
        return Lattice.of(self.clips, self.noise_multipliers, coordinates, units, margin)

    @partial(jax.jit, static_argnums=(0, 4, 5))
    def add_up(self, batch: Contributions, chosen: Array, level: Array | int, coordinates: int, units: int) -> Tree:
        """The clipped sum of the chosen contributions, as integers on the lattice of this mechanism.

        `units` is the number of units in all parts of the sum: integers of several parts add up without error.
        """
        norms = batch.norms()
        clips = jnp.asarray(self.clips, norms.dtype)
        weights = jnp.where(chosen, clip_weights(norms, clips[level]), 0)
        lattice = self._lattice(coordinates, units)
        return batch.rounded_sum(weights, lattice.spacing(level).astype(norms.dtype), lattice.limb_bits)

    @partial(jax.jit, static_argnums=(0, 4, 5))
    def release(self, key: Array, sums: Tree, level: Array | int, coordinates: int, units: int) -> Tree:
        """The sums that `add_up` made of all units, with noise added."""
        high, low = sums
        return self._lattice(coordinates, units).add_noise(own_key(key, sums), high, low, level)


@dataclass(frozen=True)
class Exact:
    """No clip and no noise: the same code path without privacy. Its price is ε = ∞."""

    sampling_rate: float | tuple[float, ...] = 1.0
    buffer: int | None = None

    def __post_init__(self) -> None:
        count = len(self.sampling_rate) if isinstance(self.sampling_rate, tuple) else 1
        object.__setattr__(self, "sampling_rate", _levels("sampling_rate", self.sampling_rate, count))
        for value in self.sampling_rates:
            events.check_sampling_rate(value)

    @property
    def sampling_rates(self) -> tuple[float, ...]:
        return self.sampling_rate  # type: ignore[return-value]

    @property
    def standard_deviation(self) -> float:
        return 0.0

    sampler = SubsampledGaussian.sampler

    def level_events(self, slots: int, unit: str, coordinates: int) -> tuple[events.Event, ...]:
        del slots, unit, coordinates
        return (events.NonPrivate(),) * len(self.sampling_rates)

    def add_up(self, batch: Contributions, chosen: Array, level: Array | int, coordinates: int, units: int) -> Tree:
        del level, coordinates, units
        return batch.weighted_sum(chosen.astype(batch.norms().dtype))

    def release(self, key: Array, sums: Tree, level: Array | int, coordinates: int, units: int) -> Tree:
        del key, level, coordinates, units
        return sums


@dataclass(frozen=True, eq=False)
class Trial:
    """Clip and noise whose sizes the program itself computes, so that one program runs many settings side by side.

    For public and simulated records: it draws plain Gaussian noise, promises nothing, and its price is ε = ∞. It takes
    all records and lives inside one compiled function.
    """

    clip: Array | float
    noise_multiplier: Array | float
    sampling_rates: tuple[float, ...] = (1.0,)

    @property
    def standard_deviation(self) -> Any:
        return self.clip * self.noise_multiplier

    level_events = Exact.level_events

    def sampler(self, slots: int) -> None:
        del slots

    def add_up(self, batch: Contributions, chosen: Array, level: Array | int, coordinates: int, units: int) -> Tree:
        del level, coordinates, units
        norms = batch.norms()
        clip = jnp.asarray(self.clip, norms.dtype)
        return batch.weighted_sum(jnp.where(chosen, clip_weights(norms, clip), 0))

    def release(self, key: Array, sums: Tree, level: Array | int, coordinates: int, units: int) -> Tree:
        del level, coordinates, units
        leaves, form = jax.tree.flatten(sums)
        keys = jax.random.split(own_key(key, sums), len(leaves))
        noise = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(
            form,
            [
                leaf + (self.standard_deviation * draw).astype(leaf.dtype)
                for leaf, draw in zip(leaves, noise, strict=True)
            ],
        )


PricedMechanism = SubsampledGaussian | Exact
Mechanism = PricedMechanism | Trial


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "present", "level"],
    meta_fields=["mechanism", "unit"],
)
@dataclass(frozen=True)
class Access:
    """Private records behind a mechanism. Make it with `Access.of`.

    records: a tree of arrays (slots, records per unit, ...); present: which of them exist.
    """

    records: Tree
    present: Array
    mechanism: Mechanism
    unit: str = "record"
    level: Level | None = None

    @classmethod
    def of(
        cls,
        records: Tree,
        mechanism: Mechanism,
        *,
        groups: Any = None,
        unit: str | None = None,
        most_records: int | None = None,
        slots: int | None = None,
    ) -> "Access":
        """Put records (a tree of arrays with the records in front) behind a mechanism.

        The unit of privacy is a record, or, with `groups` (an id for each record), all records with one id: then
        sampling, clipping and the guarantee are per id. At most `most_records` records of one id are used, the first
        ones; it is a public number and must be given with `groups`.

        `slots` is the public number of slots, at least as many as there are units. Without it, the number of units is
        the number of slots, and is then treated as public, which a statement says. A unit's slot depends on the units
        before it, and nothing may depend on the slot: one row fewer in the file moves all later units.
        """
        leaves = jax.tree.leaves(records)
        sizes = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
        if len(sizes) != 1 or None in sizes:
            raise ValueError(f"records have lengths {sorted(map(str, sizes))}; expected arrays of one common length")
        (count,) = sizes
        assert isinstance(count, int)
        if groups is None:
            positions = np.arange(count)[:, None]
            name = unit or "record"
        else:
            if most_records is None or most_records < 1:
                raise ValueError(f"most_records={most_records}; expected a public whole number of at least 1 per id")
            positions = _positions_of_groups(np.asarray(groups), most_records, count)
            name = unit or "person"
        slots = max(1, positions.shape[0]) if slots is None else slots
        if slots < max(1, positions.shape[0]):
            raise ValueError(
                f"slots={slots} for {positions.shape[0]} units; expected room for all of them, and at least 1"
            )
        padded = np.full((slots, positions.shape[1]), -1)
        padded[: positions.shape[0]] = positions
        present = padded >= 0

        def arrange(leaf: Any) -> Array:
            array = np.asarray(leaf)
            kind = jax.dtypes.canonicalize_dtype(array.dtype)
            if array.dtype.kind in "iu":  # the nearest, not one from the other end
                array = np.clip(array, np.iinfo(kind).min, np.iinfo(kind).max)
            with np.errstate(over="ignore"):  # a number beyond single precision is infinite, and then contributes 0
                array = array.astype(kind)
            # Always copy: otherwise JAX may share memory with an array that is changed or freed later.
            if groups is None and slots == count:
                return jnp.array(array[:, None])
            if count == 0:
                return jnp.zeros((*padded.shape, *array.shape[1:]), jnp.result_type(array))
            there = present.reshape(*present.shape, *(1,) * (array.ndim - 1))
            return jnp.array(np.where(there, array[padded], np.zeros((), array.dtype)))

        return cls(jax.tree.map(arrange, records), jnp.asarray(present), mechanism, name)

    @property
    def slots(self) -> int:
        """The public number of slots for units."""
        return self.present.shape[0]

    def at(self, level: Level) -> "Access":
        """This access at a level of the schedule that `repeat` is running."""
        return replace(self, level=level)

    def where(self, predicate: Callable[[Tree], Array]) -> "Access":
        """The same access without the records for which `predicate(record)` is false.

        The predicate sees one record at a time, so that each is judged alone. It must not depend on a record's
        position: one row fewer in the file changes the position of all later ones.
        """
        return replace(self, present=self.present & jax.vmap(jax.vmap(predicate))(self.records))

    def through(self, mechanism: Mechanism) -> "Access":
        """The same records through another mechanism."""
        return replace(self, mechanism=mechanism, level=None)

    def map(self, function: Callable[[Tree], Tree]) -> "Access":
        """Access to `function(record)` in place of each record, such as a rescaled one.

        The function sees one record at a time, so a record still changes only its own contribution. It must not
        close over private data or have a batching rule of its own (`custom_vmap`): nothing here checks this.
        """
        return replace(self, records=jax.vmap(jax.vmap(function))(self.records))

    def whole(self) -> "Access":
        """Each unit as one record, (its records, which of them exist), where a contribution is no sum over records."""
        together = jax.tree.map(lambda leaf: leaf[:, None], (self.records, self.present))
        return replace(self, records=together, present=jnp.any(self.present, axis=1, keepdims=True))

    def sum(self, key: Array, contribution: Callable[[Tree], Contributions]) -> Released[Tree]:
        """The sum of `contribution` over all units, estimated and priced.

        `contribution` maps a batch of records to `Dense`, `Linear` or `Outer` contributions (see `clipping`); it must
        treat each record alone. A key makes one release.
        The sampled sum is scaled by the public 1 / sampling rate, so its mean is the clipped sum over all units. It
        uses no batch size and no number of records. Without units the answer is noise alone.
        """
        return self._release(key, contribution, None)

    def sum_within(
        self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit
    ) -> Released[tuple[Tree, Array]]:
        """`sum` with contributions clipped to a released norm in place of the mechanism's clip, at the same price.

        Also returns the noised share of slots whose contribution is within the norm, by which the norm may be adjusted
        (`clipping.Limited`). An empty slot counts as half.
        """
        inside = self._within((), jnp.ones(self.slots, bool), limit)
        return self._release(key, contribution, limit).map(lambda total: inside.back(total, self.slots))

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        level, noise_key, event, sums, coordinates, units = self._added_up(key, contribution, limit)
        total = self.mechanism.release(noise_key, sums, level, coordinates, units)
        rates = jnp.asarray(self.mechanism.sampling_rates, jnp.result_type(float))
        scaled = jax.tree.map(lambda leaf: leaf / rates[level].astype(leaf.dtype), total)
        return Released(scaled, event, not is_secure(key), witness(noise_key))

    def _added_up(
        self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None
    ) -> tuple[Array | int, Array, events.Event, Tree, int, int]:
        """The clipped sum, without noise: the level, the noise's key, the price, the sum, its numbers and its units."""
        level = self._level()
        sampling_key, noise_key = jax.random.split(key)
        records, present, chosen = self._sampled(sampling_key)

        def contributions(records: Tree, present: Array, chosen: Array) -> Any:
            return self._units(contribution, records, present & chosen[:, None], limit)

        units = present.shape[0]
        coordinates = _coordinates(jax.eval_shape(contributions, records, present, chosen))
        costs = self.mechanism.level_events(self.slots, self.unit, coordinates)
        count = len(self.mechanism.sampling_rates)
        event = events.Scheduled(costs, self.level.schedule) if self.level is not None and count > 1 else costs[0]
        _spend(key)

        def add_up(records: Tree, present: Array, chosen: Array) -> Tree:
            batch = contributions(records, present, chosen)
            return self.mechanism.add_up(batch, chosen, level, coordinates, units)

        sums = _in_parts(add_up, (records, present, chosen), MOST_NUMBERS // (coordinates * present.shape[1]))
        return level, noise_key, event, sums, coordinates, units

    def _units(
        self, contribution: Callable[[Tree], Contributions], records: Tree, present: Array, limit: Limit | None
    ) -> Any:
        """The contribution of each unit, before the mechanism's clip."""
        batch = grouped(contribution, records, present)
        return batch if limit is None else self._within(batch, jnp.any(present, axis=1), limit)

    def _within(self, batch: Any, units: Array, limit: Limit) -> Limited:
        mechanism = self.mechanism
        if isinstance(mechanism, Trial):
            raise ValueError("a Trial has no clip that follows the gradients; use SubsampledGaussian, or leave it out")
        clips = (1.0,) if isinstance(mechanism, Exact) else mechanism.clips
        if isinstance(batch, Outer) or max(clips) > MOST_BOUND:
            what = "Outer contributions" if isinstance(batch, Outer) else f"clip={max(clips)}"
            raise ValueError(f"{what} cannot be summed within a limit; use Dense or Linear ones, and a clip of 1")
        radius = jnp.asarray(clips, jnp.result_type(float))[0 if isinstance(mechanism, Exact) else self._level()]
        return Limited.of(batch, limit, radius, units, not isinstance(mechanism, Exact))

    def _level(self) -> Array | int:
        """The current level of the mechanism's schedule; 0 if it has none."""
        count = len(self.mechanism.sampling_rates)
        if self.level is None and count > 1:
            raise ValueError(f"the mechanism has {count} levels; read at access.at(level) inside repeat")
        if self.level is not None and self.level.count != count and count > 1:
            raise ValueError(f"the schedule has {self.level.count} levels and the mechanism {count}; make them equal")
        return self.level.index if self.level is not None and count > 1 else 0

    def _sampled(self, key: Array) -> tuple[Tree, Array, Array]:
        """Records of the slots that a step chooses, which of them exist, and which entries of the batch are filled."""
        sampler = self.mechanism.sampler(self.slots)
        if sampler is None:
            return self.records, self.present, jnp.ones(self.present.shape[0], bool)
        indices, chosen = sampler.draw(key, self._level())
        records, present = jax.tree.map(lambda leaf: leaf[indices], (self.records, self.present))
        return records, present, chosen


def grouped(contribution: Callable[[Tree], Contributions], records: Tree, present: Array) -> Contributions:
    """One contribution for each unit, from its records that are present."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), records)
    return checked(contribution(flat), present.size).group(present)


_spent: dict[int, Any] = {}


def _spend(key: Array) -> None:
    """Refuse a key object that already made a release: two sums with one key share their noise.

    It detects reuse within one trace and between calls outside `jit`, and keys fixed inside a program. It cannot detect
    a compiled function called twice with one key: the caller must avoid that.
    """
    if is_tracing() and not isinstance(key, jax.core.Tracer):
        raise ValueError("a key fixed inside a compiled function adds the same noise on every run; pass the key in")
    name = id(key)
    if name in _spent and _spent[name]() is key:
        raise ValueError("this key has made a release already, and would add the same noise; use jax.random.split")
    _spent[name] = weakref.ref(key, lambda _: _spent.pop(name, None))


def _in_parts(add_up: Callable[..., Tree], arguments: Tree, most: int) -> Tree:
    """`add_up` over all units, at most `most` at a time, so that memory does not grow with their number.

    The last part begins early enough to be full; units that were counted before are not chosen again.
    """
    records, present, chosen = arguments
    units, size = chosen.shape[0], max(1, most)
    if units <= size:
        return add_up(records, present, chosen)

    def part(index: Array) -> Tree:
        start = jnp.minimum(index * size, units - size)
        rows = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), (records, present, chosen))
        is_new = start + jnp.arange(size, dtype=jnp.int32) >= index * size
        return add_up(rows[0], rows[1], rows[2] & is_new)

    def body(sums: Tree, index: Array) -> tuple[Tree, None]:
        return jax.tree.map(jnp.add, sums, part(index)), None

    parts = -(-units // size)
    return lax.scan(body, part(jnp.int32(0)), jnp.arange(1, parts, dtype=jnp.int32))[0]


@jax.custom_batching.custom_vmap
def own_key(key: Array, sums: Tree) -> Array:
    """The key itself. Refuses `vmap` over many releases with one key for all of them."""
    del sums
    return key


@own_key.def_vmap
def _(axis_size: int, in_batched: Any, key: Array, sums: Tree) -> tuple[Array, bool]:
    del axis_size
    if any(jax.tree.leaves(in_batched[1])) and not in_batched[0]:
        raise ValueError(
            "vmap over releases with one key would add the same noise to all; split the key and map over it"
        )
    return own_key(key, sums), in_batched[0]


def _coordinates(batch: Contributions) -> int:
    """How many numbers a sum of the batch has."""
    shapes = jax.eval_shape(lambda b: b.weighted_sum(b.norms()), batch)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def _positions_of_groups(groups: np.ndarray, most_records: int, count: int) -> np.ndarray:
    """(units, most_records) positions of each id's first records, -1 where there are fewer."""
    if groups.shape != (count,):
        raise ValueError(f"groups has shape {groups.shape}; expected one id for each of the {count} records")
    _, units = np.unique(groups, return_inverse=True)
    positions = np.full((units.max(initial=-1) + 1, most_records), -1)
    order = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[order], np.arange(positions.shape[0]))
    rank = np.arange(count) - starts[units[order]]
    kept = rank < most_records
    positions[units[order][kept], rank[kept]] = order[kept]
    return positions
