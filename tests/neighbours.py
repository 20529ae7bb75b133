"""Neighbours that begin at the file: what a row less there changes in what is summed up and leaves, through any front.

A front reads a file and fits, or runs a study. It runs twice, on a file and on that file without a row (or without all
rows of a person, or without a site), with the same keys. Every sum that a mechanism is asked for leaves its exact
integers on a `Tape`, and the two tapes are compared (`compare`):

* there are as many sums, of the same kinds, in the same order;
* each moves by no more than its lattice claims: in steps of the lattice, ‖Δ‖₂ ≤ (1 + margin)·C/g + √d/2, which is
  the deviation of the noise over the noise multiplier.

What is summed up depends on what was released before. So the second run is not given its own releases, but those of
the first, sum by sum: the guarantee is about each sum given all releases so far.

All that leaves is made of releases and public facts, and releases are the same in both runs. So whatever a front gives
out (`Seen.left`: posterior, statements, files) must be the same to the byte. And what it says it has paid for
(`Seen.receipts`) must be the sums on the tape, or one was made past it.

Poisson samples are drawn of slots, and by the same key other slots are chosen once a row less has moved later records
by a slot. That is harmless in distribution, as slots are chosen alike and independently (`test_neighbours.py` has a
test of it), and cannot be compared. Here every slot is always chosen, so that contributions alone are.

`Heard` is a mechanism of its own type, and a mechanism is a static argument: nothing compiled for others is run for it,
and nothing that was compiled for it is ever run elsewhere.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.experimental import io_callback

from tacit.privacy.events import Composed, Event, Repeated
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.privacy.noise import SCALE
from tacit.privacy.sampling import PoissonSampler
from tacit.privacy.shared import SharedGaussian
from tacit.study import releases

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
    event: Event


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


def _kinds(mechanism: SubsampledGaussian, coordinates: int, units: int, shares: int) -> tuple[Kind, ...]:
    lattice, events = mechanism._lattice(coordinates, units), mechanism.level_events(units, UNIT, coordinates)
    levels = zip(
        mechanism.clips, mechanism.noise_multipliers, mechanism.sampling_rates, lattice.spacings, events, strict=True
    )
    name, scale = type(mechanism).__name__, math.sqrt(shares) * SCALE
    return tuple(
        Kind(name, coordinates, clip, noise, rate, spacing, scale / noise, event)
        for clip, noise, rate, spacing, event in levels
    )


UNIT = "record"  # in events that are compared: a mechanism is not told whose a sum is


def _each(event: Event) -> Counter[Event]:
    """The single releases of an event, whatever their unit."""
    match event:
        case Composed(parts):
            return sum((_each(part) for part in parts), Counter())
        case Repeated(inner, steps):
            return Counter({one: count * steps for one, count in _each(inner).items()})

    def plain(one: Any) -> Any:
        return replace(one, event=plain(one.event)) if hasattr(one, "event") else replace(one, unit=UNIT)

    return Counter({plain(event): 1})


class Heard(SubsampledGaussian):
    """The mechanism, with a tape beside it and all slots in every sample. Its price is that of the sound one."""

    def sampler(self, slots: int) -> PoissonSampler | None:
        found = super().sampler(slots)
        return None if found is None else _AllSlots(found.slots, found.sampling_rates, found.buffer)

    def release(self, key: Array, sums: Any, level: Array | int, coordinates: int, units: int) -> Any:
        released = super().release(key, sums, level, coordinates, units)
        lattice = self._lattice(coordinates, units)
        return _heard(_kinds(self, coordinates, units, 1), lattice.limb_bits, level, sums, released)


class HeardShared(SharedGaussian, Heard):
    """The same of a sum over many sites: each site's own integers are on the tape, and what it sends is replayed."""

    def share(self, key: Array, sums: Any, coordinates: int, units: int) -> tuple[Array, Array]:
        sent = super().share(key, sums, coordinates, units)
        lattice = self._lattice(coordinates, units)
        return _heard(_kinds(self, coordinates, units, self.honest), lattice.limb_bits, 0, sums, sent)


@contextmanager
def listening() -> Iterator[Tape]:
    """All that fits and studies sum up meanwhile is on the tape."""
    global _tape
    before, _tape = _tape, Tape()
    try:
        with (
            mock.patch.object(releases, "SubsampledGaussian", Heard),
            mock.patch.object(releases, "SharedGaussian", HeardShared),
        ):
            yield _tape
    finally:
        _tape = before


# --- What leaves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a front gives out, as `flat` has it, and what it says it has released."""

    left: dict[str, Any]
    receipts: tuple[Event, ...]

    @classmethod
    def of(cls, left: Any, receipts: Iterable[Event], *names: object) -> "Seen":
        """names: of files and folders, which are others in each run, and are written as three dots."""
        return cls(dict(flat(left, tuple(map(str, names)))), tuple(receipts))

    @property
    def paid(self) -> Counter[Event]:
        return sum(map(_each, self.receipts), Counter())


# Names that are drawn, and times of the clock.
_DRAWN = re.compile(r"fit-[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?")


def flat(value: Any, names: tuple[str, ...] = (), at: str = "") -> Iterator[tuple[str, Any]]:
    """Each part of a value by its place, with nothing rounded. What is not known is refused, so that all is seen."""
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    match value:
        case Mapping():
            yield f"{at}{{}}", tuple(map(str, value))
            for name, part in value.items():
                yield from flat(part, names, f"{at}.{name}")
        case list() | tuple():
            yield f"{at}[]", len(value)
            for place, part in enumerate(value):
                yield from flat(part, names, f"{at}[{place}]")
        case str():
            for name in names:
                value = value.replace(name, "…")
            yield at, _DRAWN.sub("…", value)
        case bytes():
            yield at, dict(flat(value.decode("latin-1"), names))[""]
        case np.ndarray() | np.generic() | Array():
            array = np.asarray(value)
            if array.dtype.kind in "OUS":
                yield from flat(array.tolist(), names, at)
            else:
                yield at, (str(array.dtype), array.shape, array.tobytes())
        case float():
            yield at, value.hex()
        case None | bool() | int():
            yield at, (type(value).__name__, value)
        case _:
            raise TypeError(f"{at} is a {type(value).__name__}; say in `flat` what of it is compared")


def files(folder: Path) -> dict[str, Any]:
    """All files of a folder by their names; of ledgers their entries."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".sqlite":
            entries = Ledger.open(path).entries()
            found[str(path.relative_to(folder))] = [
                (one.study, one.round, str(one.event), one.spent, one.note) for one in entries
            ]
        elif path.name == "study.json":  # a ledger's first hash is of when it was made
            plain = json.loads(path.read_text())
            found[path.name] = plain | {"ledgers": list(plain.get("ledgers", ()))}
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def charged(folder: Path) -> list[Event]:
    """What the ledgers in a folder were charged."""
    ledgers = sorted(folder.glob("**/*.sqlite"))
    return [entry.event for path in ledgers for entry in Ledger.open(path).entries()]


Run = Callable[[Any], Seen]  # a front on a file (or on files)


def _all_is_paid_for(tape: list[Any], seen: Seen) -> None:
    heard = Counter(kind.event for kind, *_ in tape)
    assert heard == seen.paid, f"sums past the tape, or past the receipt: {heard} were heard, and paid {seen.paid}"


@dataclass
class Listened:
    """A front's first run, which its neighbours are compared with. Make it with `listened`."""

    front: Run
    tape: Tape
    seen: Seen

    def distances(self, neighbour: Any) -> np.ndarray:
        """How far each sum moves, as a share of what its noise is made for.

        An AssertionError if kinds of sums differ, if what leaves does, or if sums are not what was paid for.
        """
        global _tape
        with listening():
            _tape = self.tape
            self.tape.now, self.tape.is_replay = [], True
            seen = self.front(neighbour)
        first, now = self.tape.first, self.tape.now
        assert [kind for kind, *_ in now] == [kind for kind, *_ in first], "other sums, or in another order"
        _all_is_paid_for(now, seen)
        left, before = seen.left, self.seen.left
        other = sorted(at for at in left.keys() | before.keys() if left.get(at) != before.get(at))
        assert not other, f"what leaves differs: {', '.join(other[:5])}"
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
        seen = front(given)
    tape.first, tape.now = tape.now, []
    assert tape.first, "the front summed nothing up, or past the tape"
    _all_is_paid_for(tape.first, seen)
    return Listened(front, tape, seen)


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


ROWS, ODD, ODD_LEAST = 24, 10, 9.5  # the least of what is in "a" of that record alone
counted = itertools.count()


def frame(seed: int, order: str = "random") -> pd.DataFrame:
    """Records with a target for each model. copies: every third record is the first one again.

    Record `ODD` alone has a fraction in "code", a category "z" in "b" and the largest number in "a": without it, pandas
    takes a column for another, and what is read off the data is something else.
    """
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "a": rng.uniform(0, 9.5, ROWS).round(3),
            "b": rng.choice(["x", "y"], ROWS),
            "who": rng.integers(0, 9, ROWS),
            "two": rng.integers(0, 2, ROWS),
            "number": rng.normal(size=ROWS).round(3),
            "count": rng.poisson(2, ROWS),
            "class": rng.choice(["p", "q", "r"], ROWS),
            "code": np.arange(ROWS, dtype=object),
        }
    )
    found.loc[ODD, ["a", "b", "code"]] = [9.9, "z", 0.5]
    assert np.flatnonzero(found["a"] > ODD_LEAST).tolist() == [ODD]
    if order == "sorted":
        return found.sort_values(["two", "a"])
    if order == "copies":
        found.iloc[::3] = found.iloc[0]
    return found


class Files:
    """A front's file in each order, its first run on each, and neighbours of it."""

    def __init__(self, folder: Path, front: Callable[[Path], Any], sites: int = 0) -> None:
        self.folder, self.front, self.sites = folder, front, sites
        self._listened: dict[str, Listened] = {}

    def base(self, order: str) -> Path:
        """The file; of several sites, the folder of their files."""
        if not self.sites:
            return self.folder / order / "records.csv"
        return self.folder / order

    def listened(self, order: str) -> Listened:
        if order not in self._listened:
            if self.sites:
                for site in range(self.sites):
                    write(self.base(order) / f"s{site}.csv", frame(site, order))
            else:
                write(self.base(order), frame(0, order))
            self._listened[order] = listened(self.front, self.base(order))
        return self._listened[order]

    def forget(self) -> None:
        """Begin with a first run again, such as after the code was changed."""
        self._listened.clear()

    def without(self, order: str, gone: set[int], site: int = 0) -> Path:
        """The file (of a site) without these rows, and the files of all others as they are."""
        to, base = self.folder / f"neighbour-{next(counted)}", self.base(order)
        if not self.sites:
            return without(base, gone, to / "records.csv")
        for other in range(self.sites):
            without(base / f"s{other}.csv", gone if other == site else set(), to / f"s{other}.csv")
        return to
