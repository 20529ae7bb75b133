"""Neighbours that begin at the file: what a row less there changes in what is summed up, through any front.

A front reads a file and fits, or conducts a study. It runs twice, on a file and on that file without a row (or without
all rows of a person, or without a site), with the same keys. Every sum that a mechanism is asked for leaves its exact
integers on a `Tape`, and the two tapes are compared (`compare`):

* there are as many sums, of the same kinds, in the same order;
* each moves by no more than its lattice claims: in steps of the lattice, ‖Δ‖₂ ≤ (1 + margin)·C/g + √d/2, which is
  the deviation of the noise over the noise multiplier.

What is summed up depends on what was released before. So the second run is not given its own releases, but those of
the first, sum by sum: the guarantee is about each sum given all releases so far.

Poisson samples are drawn of slots, and by the same key other slots are chosen once a row less has moved later records
by a slot. That is harmless in distribution, as slots are chosen alike and independently (`test_neighbours.py` has a
test of it), and cannot be compared. Here every slot is always chosen, so that contributions alone are.

`Heard` is a mechanism of its own type, and a mechanism is a static argument: nothing compiled for others is run for it,
and nothing that was compiled for it is ever run elsewhere.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback

from tacit import fitting, study
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.privacy.noise import SCALE
from tacit.privacy.sampling import PoissonSampler
from tacit.privacy.shared import SharedGaussian

# A record whose slot is another one may be computed in another lane of the processor, and its contribution then end in
# another last digit. 2⁻²⁰ of the clip is 8 units in the last place of single precision.
ROUNDING = 2.0**-20


@dataclass(frozen=True)
class Kind:
    """What of a sum is public. most: the largest step of a unit that the noise is made for, in steps of the lattice."""

    mechanism: str
    coordinates: int
    clip: float
    noise_multiplier: float
    rate: float
    spacing: float
    most: float


@dataclass
class Tape:
    """What the runs of a front have summed up. The first is kept; those after it are given what it released."""

    first: list[tuple[Kind, np.ndarray, list[np.ndarray]]] = field(default_factory=list)
    now: list[tuple[Kind, np.ndarray, list[np.ndarray]]] = field(default_factory=list)
    is_replay: bool = False

    def take(self, kinds: tuple[Kind, ...], bits: int, level: Any, high: Any, low: Any, released: Any) -> Any:
        """Keep a sum's integers, and answer with what is released of it."""
        parts = [
            ((np.asarray(upper).astype(np.int64) << bits) + np.asarray(lower).astype(np.int64)).ravel()
            for upper, lower in zip(high, low, strict=True)
        ]
        own = [np.asarray(leaf) for leaf in released]
        place = len(self.now)
        self.now.append((kinds[int(level)], np.concatenate(parts), own))
        if self.is_replay and place < len(self.first):
            before = self.first[place][2]
            if [leaf.shape for leaf in before] == [leaf.shape for leaf in own]:
                return before
        return own


_tape = Tape()


def _heard(kinds: tuple[Kind, ...], bits: int, level: Any, sums: Any, released: Any) -> Any:
    leaves, form = jax.tree.flatten(released)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    take = partial(lambda *given: _tape.take(*given), kinds, bits)
    parts = [jax.tree.leaves(half) for half in sums]
    return jax.tree.unflatten(form, io_callback(take, shapes, jnp.asarray(level), *parts, leaves, ordered=True))


class _AllSlots(PoissonSampler):
    def draw(self, key: Array, level: Array | int = 0) -> tuple[Array, Array]:
        return jnp.arange(self.slots, dtype=jnp.int32), jnp.ones(self.slots, bool)


def _kinds(mechanism: SubsampledGaussian, lattice: Any, coordinates: int, shares: int) -> tuple[Kind, ...]:
    levels = zip(mechanism.clips, mechanism.noise_multipliers, mechanism.sampling_rates, lattice.spacings, strict=True)
    return tuple(
        Kind(type(mechanism).__name__, coordinates, clip, noise, rate, spacing, math.sqrt(shares) * SCALE / noise)
        for clip, noise, rate, spacing in levels
    )


class Heard(SubsampledGaussian):
    """The mechanism, with a tape beside it and all slots in every sample. Its price is that of the sound one."""

    def sampler(self, slots: int) -> PoissonSampler | None:
        found = super().sampler(slots)
        return None if found is None else _AllSlots(found.slots, found.sampling_rates, found.buffer)

    def release(self, key: Array, sums: Any, level: Array | int, coordinates: int, units: int) -> Any:
        released = super().release(key, sums, level, coordinates, units)
        lattice = self._lattice(coordinates, units)
        return _heard(_kinds(self, lattice, coordinates, 1), lattice.limb_bits, level, sums, released)


class HeardShared(SharedGaussian, Heard):
    """The same of a sum over many sites: each site's own integers are on the tape, and what it sends is replayed."""

    def share(self, key: Array, sums: Any, coordinates: int, units: int) -> tuple[Array, Array]:
        sent = super().share(key, sums, coordinates, units)
        lattice = self._lattice(coordinates, units)
        return _heard(_kinds(self, lattice, coordinates, self.honest), lattice.limb_bits, 0, sums, sent)


@contextmanager
def listening() -> Iterator[Tape]:
    """All that fits and studies sum up meanwhile is on the tape."""
    global _tape
    before, _tape = _tape, Tape()
    try:
        with (
            mock.patch.object(study, "SubsampledGaussian", Heard),
            mock.patch.object(study, "SharedGaussian", HeardShared),
            mock.patch.object(fitting, "SubsampledGaussian", Heard),
        ):
            yield _tape
    finally:
        _tape = before


Run = Callable[[Any], Any]  # a front on a file (or on files): what is public of it, beside its sums


@dataclass
class Listened:
    """A front's first run, which its neighbours are compared with. Make it with `listened`."""

    front: Run
    tape: Tape
    public: Any

    def distances(self, neighbour: Any) -> np.ndarray:
        """How far each sum moves, as a share of what its noise is made for; an AssertionError if kinds differ."""
        global _tape
        with listening():
            _tape = self.tape
            self.tape.now, self.tape.is_replay = [], True
            public = self.front(neighbour)
        first, now = self.tape.first, self.tape.now
        assert [kind for kind, *_ in now] == [kind for kind, *_ in first], "other sums, or in another order"
        assert public == self.public, "what is public differs"
        pairs = [
            (kind, (here - there).astype(float)) for (kind, here, _), (_, there, _) in zip(now, first, strict=True)
        ]
        return np.array([np.linalg.norm(gap) / kind.most for kind, gap in pairs])

    def check(self, neighbour: Any, most: float = 1.0) -> np.ndarray:
        """Fail if a sum moves by more than `most` times what a unit may; also if none moves: nothing was seen."""
        found = self.distances(neighbour)
        assert np.all(found <= most * (1 + ROUNDING)), f"a sum moves by {found.max():.4g} times what its noise hides"
        assert np.any(found > 0), "nothing moves: the unit that is gone was not there"
        return found


def listened(front: Run, given: Any) -> Listened:
    """Run a front on a file for the first time."""
    with listening() as tape:
        public = front(given)
    tape.first, tape.now = tape.now, []
    assert tape.first, "the front summed nothing up, or past the tape"
    return Listened(front, tape, public)


# --- Files --------------------------------------------------------------------------------------------------------


def write(path: Path, frame: Any) -> Path:
    """A table as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def without(path: Path, gone: set[int], to: Path) -> Path:
    """The file without those of its records, line by line: nothing else of it is touched."""
    head, *lines = path.read_text().splitlines()
    kept = [line for place, line in enumerate(lines) if place not in gone]
    assert len(kept) == len(lines) - len(gone)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join([head, *kept]) + "\n")
    return to
