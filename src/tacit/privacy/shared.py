"""Shared noise: a sum over many sites. Each site adds a share of the noise, and only the total is seen.

A site adds up its own records on the public lattice, adds one draw of the lattice's noise, and sends integers. Adding
up the integers of many sites, for example by `federated.secure_sum`, gives the sum with the noise of all of them.

Guarantee of `SharedGaussian`: if at least `honest` of the sites in the total keep their draws secret, and only the
total is seen, it is the Gaussian mechanism with noise of `noise_multiplier` times the clip, for every unit of every
honest site. What the other sites add is known to the attacker and independent of the unit.

* **Rounding and clipping** move the sum by at most (1 + margin)·C/g + √d/2 steps of the lattice, as at one site. A
  step is a millionth of the noise, so rounding to the nearest is enough: random rounding would not be worth its draws.
* **Noise.** h draws of a discrete Gaussian add up to one with √h times the standard deviation, up to
  10 Σ exp(-2π²s²k/(k + 1)) in log-probability (Kairouz, Liu & Steinke 2021, theorem 11) with s = `noise.SCALE`:
  negligible. That is a continuous Gaussian, rounded, to within 0.02/(hs²) in total variation, and each draw is a
  discrete Gaussian to within 2⁻⁵⁰, because its three tables are rounded. Both together are below ⌈h/4⌉ of
  `noise.DRAW_ERROR`, which are in the price.
* **Wrap.** Draws are bounded, and so are clipped sums: integers of 64 bits do not wrap (`Layout.check`).

`contributed` runs a program at a site, where every sum reads as 0: what a site does next can depend on released numbers
alone, never on its own noise (docs/errata.md, 3). `told` runs the same program where the totals are known.

P. Kairouz, Z. Liu & T. Steinke (2021). The distributed discrete Gaussian mechanism for federated learning with secure
aggregation. ICML.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy import events
from tacit.privacy.clipping import Contributions, Limit, rounding_margin
from tacit.privacy.mechanism import Access, SubsampledGaussian, own_key
from tacit.privacy.noise import LARGEST, Lattice
from tacit.privacy.randomness import is_secure, witness
from tacit.privacy.released import Level, Released

SITES_AT_ONE_ERROR = 4  # the draws of so many sites together err by no more than `DRAW_ERROR`
ReleaseProgram = Callable[[Access], Released[Any]]


@dataclass(frozen=True)
class SharedGaussian(SubsampledGaussian):
    """Clip each unit's contribution, add up all units of all sites; noise comes in shares, one from each site.

    sites: how many take part. honest: how many of them are certain to be in the total and keep their draws secret.
    With all records in one place (an audit, a simulation), a release is the same total, with the noise of all sites.
    """

    sites: int = 1
    honest: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        events.check_sizes("sites", self.sites, "honest", self.honest)
        if self.sampling_rates != (1.0,):
            raise ValueError("a shared sum takes all units, at one level; leave sampling_rate and schedules out")

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of a released sum's noise, with the noise of all sites."""
        return super().standard_deviation * math.sqrt(self.sites / self.honest)

    def level_events(self, slots: int, unit: str, coordinates: int) -> tuple[events.Event, ...]:
        del slots
        counted = coordinates * math.ceil(self.sites / SITES_AT_ONE_ERROR)
        more: dict[str, Any] = {"coordinates": counted, "sites": self.sites, "honest": self.honest}
        return tuple(events.DistributedGaussian(noise, unit, **more) for noise in self.noise_multipliers)

    def _lattice(self, coordinates: int, units: int) -> Lattice:
        margin = rounding_margin(coordinates, jnp.result_type(float))
        return Lattice.of(self.clips, self.noise_multipliers, coordinates, units, margin, self.honest)

    @partial(jax.jit, static_argnums=(0, 4, 5))
    def release(self, key: Array, sums: Tree, level: Array | int, coordinates: int, units: int) -> Tree:
        high, low = sums
        return self._lattice(coordinates, units).add_noise(own_key(key, sums), high, low, level, self.sites)

    @partial(jax.jit, static_argnums=(0, 3, 4))
    def share(self, key: Array, sums: Tree, coordinates: int, units: int) -> tuple[Array, Array]:
        """A site's integers: its sum and one draw of noise, as halves of 64 bits."""
        high, low = sums
        return self._lattice(coordinates, units).words(own_key(key, sums), high, low)


@dataclass(frozen=True)
class _Sum:
    """Public facts of one sum: its lattice's spacing, how many numbers, the largest integer of a unit, its price."""

    spacing: float
    numbers: int
    largest: int
    event: events.Event


@dataclass(frozen=True)
class Layout:
    """The sums that a program makes, one after the other in one vector of integers, and what they cost a site."""

    sums: tuple[_Sum, ...]
    event: events.Event

    @property
    def size(self) -> int:
        return sum(part.numbers for part in self.sums)

    def check(self, units: int, sites: int) -> None:
        """Refuse sums that could wrap, with that many units in all and the noise of that many sites."""
        for part in self.sums:
            if units * part.largest + sites * LARGEST >= 2**63:
                raise ValueError(f"sums over {units} units and {sites} sites could pass 64 bits; raise the noise")

    def values(self, total: np.ndarray) -> list[np.ndarray]:
        """Split a total of integers into its sums."""
        if total.shape != (self.size,) or total.dtype != np.int64:
            raise ValueError(f"a total of {total.dtype}{list(total.shape)}; expected int64[{self.size}]")
        ends = np.cumsum([part.numbers for part in self.sums])[:-1]
        parts = zip(np.split(total, ends), self.sums, strict=True)
        return [(part * kind.spacing).astype(np.float32) for part, kind in parts]


@dataclass(frozen=True)
class _Shared(Access):
    """An access whose sums are all shared; made inside one trace, and never leaves it.

    all_slots: the public number of slots over all sites. notes: one for each sum, in the order of the calls.
    """

    all_slots: int = 1
    notes: list[_Sum] = field(default_factory=list)

    @property
    def slots(self) -> int:
        return self.all_slots

    def at(self, level: Level) -> Access:
        del level
        raise ValueError("a program that repeats steps reads what it released; no site alone knows a shared sum")

    def _noted(self, coordinates: int, units: int, event: events.Event) -> SharedGaussian:
        mechanism = self.mechanism
        if not isinstance(mechanism, SharedGaussian):
            raise ValueError(f"{type(mechanism).__name__} in a program whose sums are shared; expected SharedGaussian")
        lattice = mechanism._lattice(coordinates, units)
        self.notes.append(_Sum(lattice.spacings[0], coordinates, lattice.largest, event))
        return mechanism


@dataclass(frozen=True)
class _Contributing(_Shared):
    """At a site: each sum adds its integers to `integers`, and reads as 0."""

    integers: list[tuple[Array, Array]] = field(default_factory=list)

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        _, noise_key, event, sums, coordinates, units = self._added_up(key, contribution, limit)
        mechanism = self._noted(coordinates, units, event)
        self.integers.append(mechanism.share(noise_key, sums, coordinates, units))
        # The shape of a release, with nothing of the records in it.
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.result_type(float)), sums[0])
        return Released(zeros, event, not is_secure(key), witness(noise_key))


@dataclass(frozen=True)
class _Told(_Shared):
    """Where totals are known: each sum is the next total. The records are empty and only give shapes."""

    totals: Sequence[Array] = ()

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        _, noise_key, event, sums, coordinates, units = self._added_up(key, contribution, limit)
        total, like, start = self.totals[len(self.notes)], jax.tree.leaves(sums[0]), 0
        self._noted(coordinates, units, event)
        leaves = []
        for leaf in like:
            leaves.append(total[start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
        value = jax.tree.unflatten(jax.tree.structure(sums[0]), leaves)
        return Released(value, event, not is_secure(key), witness(noise_key))


def _shared(kind: type[Any], access: Access, slots: int, **more: Any) -> Any:
    return kind(access.records, access.present, access.mechanism, access.unit, None, slots, [], **more)


def contributed(program: ReleaseProgram, access: Access, slots: int) -> Released[tuple[Array, Array]]:
    """A site's integers for all sums that a program makes, as upper and lower halves, with their receipt."""
    own = _shared(_Contributing, access, slots, integers=[])
    release = _paid(program(own), own.notes)
    upper, lower = (jnp.concatenate(halves) for halves in zip(*own.integers, strict=True))
    return replace(release, value=(upper, lower))


def _paid(release: Released[Any], notes: Sequence[_Sum]) -> Released[Any]:
    """The release, if its receipt lists every sum that was made: a site sends them all, including unused ones."""
    found = events.compose(release.event)
    receipt = found.events if isinstance(found, events.Composed) else (found,)
    if Counter(receipt) != Counter(note.event for note in notes):
        raise ValueError("the program's receipt does not list all its sums; pass every sum on by map, then or join")
    return release


def integers(release: Released[tuple[Array, Array]]) -> np.ndarray:
    """The integers of `contributed`, as int64. Mask them before sending: their receipt is that of the total."""
    upper, lower = (np.asarray(half) for half in release.value)
    return (upper.astype(np.int64) << 32) | lower.astype(np.int64)


def told(program: ReleaseProgram, access: Access, slots: int, totals: Sequence[Array]) -> Any:
    """Run a program with these totals as its sums. access: of the form of a site's, with one empty slot.

    The totals were released and the sites have paid for them; the answer depends on nothing else.
    """
    return program(_shared(_Told, access, slots, totals=totals)).value


def layout(program: ReleaseProgram, access: Access, slots: int) -> Layout:
    """The sums that a program will make and their cost, from shapes alone: no record is read."""
    notes: list[_Sum] = []

    def run(access: Access) -> Released[Any]:
        own = _shared(_Contributing, access, slots, integers=[])
        release = _paid(program(own), own.notes)
        notes.extend(own.notes)
        return release.map(lambda _: ())

    event = jax.eval_shape(run, access).event
    return Layout(tuple(notes), event)


def empty(access: Access) -> Access:
    """An access of the same form with one empty slot."""

    def one(leaf: Any) -> Array:
        return jnp.zeros((1, *leaf.shape[1:]), leaf.dtype)

    return replace(access, records=jax.tree.map(one, access.records), present=one(access.present))
