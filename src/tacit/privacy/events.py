"""Events: what was done to private data, as frozen data. Accountants say what an event costs.

An event names the **unit** of privacy (a record, a person, ...) and the **adjacency** its noise is relative to, so
that a number is never read under the wrong convention. Events are hashable: they travel as static metadata of a
release, and equal events have equal prices.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Adjacency = Literal["add-remove", "replace-one"]
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)


def check_number(name: str, value: Any, expected: str, valid: bool) -> None:
    """Raise a ValueError that names the argument, its value and what was expected."""
    if not valid:
        shown = value if str(value).isprintable() else repr(value)
        raise ValueError(f"{name}={shown}; expected {expected}")


def _is_real(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def check_noise_multiplier(value: Any) -> None:
    """Refuse noise that is not a finite number above 0."""
    check_number("noise_multiplier", value, "a finite number above 0", _is_real(value) and value > 0)
    # Its square must not leave the floats.
    check_number("noise_multiplier", value, "a number from 1e-100 to 1e100", 1e-100 <= value <= 1e100)


def check_sampling_rate(value: Any) -> None:
    """Refuse a rate outside (0, 1]."""
    check_number("sampling_rate", value, "a number above 0 and at most 1", _is_real(value) and 0 < value <= 1)
    check_number("sampling_rate", value, "a number from 1e-100 to 1", value >= 1e-100)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


MOST_STEPS = 10**12


def check_steps(value: Any) -> None:
    """Refuse a count that is not a whole number from 1 to MOST_STEPS."""
    check_number("steps", value, "a whole number of at least 1", _is_whole(value) and value >= 1)
    if value > MOST_STEPS:  # the value itself may be too long to print
        raise ValueError(f"steps is above {MOST_STEPS:.0e}; expected a plan that ends")


def check_sizes(total_name: str, total: Any, part_name: str, part: Any) -> None:
    """Refuse a part that is not a whole number from 1 to the total."""
    check_number(total_name, total, "a whole number of at least 1", _is_whole(total) and total >= 1)
    check_number(
        part_name, part, f"a whole number from 1 to {total_name}={total}", _is_whole(part) and 1 <= part <= total
    )


def check_adjacency(value: Any) -> None:
    """Refuse what is not the name of an adjacency."""
    check_number("adjacency", repr(value), " or ".join(map(repr, ADJACENCIES)), value in ADJACENCIES)


@dataclass(frozen=True)
class Event:
    """Base of all events. The set is closed: an accountant refuses any other."""


@dataclass(frozen=True)
class _AdditiveNoise(Event):
    """`noise_multiplier` is relative to the sensitivity under `adjacency`, of one `unit`.

    Under add-remove that sensitivity is the clip C: one unit's contribution has norm at most C. Replacing a unit
    moves a sum by up to 2C, so an add-remove event can be priced under replace-one; the reverse cannot be known.
    `coordinates` is how many draws of noise were made: each is a little less than perfect, and that is charged too
    (0 stands for noise in theory).
    """

    noise_multiplier: float
    unit: str = "record"
    adjacency: Adjacency = "add-remove"
    coordinates: int = 0

    def __post_init__(self) -> None:
        check_noise_multiplier(self.noise_multiplier)
        valid = _is_whole(self.coordinates) and self.coordinates >= 0
        check_number("coordinates", self.coordinates, "a whole number of at least 0", valid)
        check_adjacency(self.adjacency)
        valid = isinstance(self.unit, str) and bool(self.unit)
        check_number("unit", repr(self.unit), "a word such as 'record' or 'person'", valid)


@dataclass(frozen=True)
class Gaussian(_AdditiveNoise):
    """A sum of vectors of L2 norm at most C, plus N(0, (noise_multiplier · C)²) on each coordinate."""


@dataclass(frozen=True)
class DistributedGaussian(Gaussian):
    """The same with distributed discrete Gaussian noise: each of `sites` adds a share, and only the sum is seen.

    The noise counted is that of `honest` shares, even if there is more: at least that many sites must be in the sum and
    keep their shares secret.
    """

    sites: int = 1
    honest: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("sites", self.sites, "honest", self.honest)


@dataclass(frozen=True)
class Laplace(_AdditiveNoise):
    """A sum of vectors of L1 norm at most C, plus Laplace noise of scale noise_multiplier · C on each coordinate."""


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that holds each unit independently with probability `sampling_rate`."""

    sampling_rate: float
    event: Event

    def __post_init__(self) -> None:
        check_sampling_rate(self.sampling_rate)


@dataclass(frozen=True)
class TruncatedPoissonSampled(Event):
    """`event` on a Poisson sample of `slots` public slots, of which the first `buffer` chosen are kept.

    A slot holds a unit or is empty; the choice of slots never depends on the data. `buffer` bounds the memory of a
    step.
    """

    sampling_rate: float
    slots: int
    buffer: int
    event: Event

    def __post_init__(self) -> None:
        check_sampling_rate(self.sampling_rate)
        check_sizes("slots", self.slots, "buffer", self.buffer)
        if self.sampling_rate == 1 and self.buffer < self.slots:
            raise ValueError(f"buffer={self.buffer} at sampling_rate=1; expected all slots={self.slots}")


@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """`event` on a uniformly random subset of `sample_size` out of `dataset_size` units.

    Much published code samples this way. No mechanism here does; the event is for pricing such code.
    """

    dataset_size: int
    sample_size: int
    event: Event

    def __post_init__(self) -> None:
        check_sizes("dataset_size", self.dataset_size, "sample_size", self.sample_size)


@dataclass(frozen=True)
class Repeated(Event):
    """`event`, `steps` times, each time possibly chosen by looking at the results so far."""

    event: Event
    steps: int

    def __post_init__(self) -> None:
        check_steps(self.steps)


@dataclass(frozen=True)
class Composed(Event):
    """`events` one after the other, adaptively. `Composed(())` is nothing at all: it costs nothing."""

    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class NonPrivate(Event):
    """Something with no guarantee: ε = ∞."""


@dataclass(frozen=True)
class Scheduled(Event):
    """One of `levels`, by the step of the running schedule `schedule`. Only the `repeat` that runs it can say which.

    An accountant refuses it: a scheduled step outside its `repeat` has no price.
    """

    levels: tuple[Event, ...]
    schedule: int


def compose(*events: Event) -> Event:
    """Events in sequence, flattened: every event is kept, nesting is dropped.

    >>> compose(Gaussian(2.0), compose(), Gaussian(3.0))
    Composed(events=(Gaussian(noise_multiplier=2.0, ...), Gaussian(noise_multiplier=3.0, ...)))
    """
    flat: list[Event] = []
    for event in events:
        flat.extend(event.events if isinstance(event, Composed) else (event,))
    return flat[0] if len(flat) == 1 else Composed(tuple(flat))


def at_level(event: Event, schedule: int, level: int) -> Event:
    """The event of one step at `level` of `schedule`: each `Scheduled` of that schedule is replaced by its entry."""
    match event:
        case Scheduled(levels, of) if of == schedule:
            return levels[level]
        case Composed(events):
            return compose(*(at_level(e, schedule, level) for e in events))
        case Repeated(inner, steps):
            return Repeated(at_level(inner, schedule, level), steps)
    return event


_NAMES: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "distributed-gaussian": DistributedGaussian,
    "laplace": Laplace,
    "poisson-sampled": PoissonSampled,
    "truncated-poisson-sampled": TruncatedPoissonSampled,
    "fixed-size-sampled": FixedSizeSampled,
    "repeated": Repeated,
    "composed": Composed,
    "non-private": NonPrivate,
}
_FIELDS: dict[type[Event], tuple[str, ...]] = {cls: tuple(cls.__dataclass_fields__) for cls in _NAMES.values()}
_NAME_OF = {cls: name for name, cls in _NAMES.items()}


def to_dict(event: Event) -> dict[str, Any]:
    """An event as plain data, by a closed table: `{"type": "gaussian", "noise_multiplier": 2.0, ...}`."""
    if type(event) not in _NAME_OF:
        raise ValueError(f"{event} cannot be stored; price it inside repeat first")
    plain: dict[str, Any] = {"type": _NAME_OF[type(event)]}
    for field in _FIELDS[type(event)]:
        value = getattr(event, field)
        if isinstance(value, Event):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = [to_dict(e) for e in value]
        plain[field] = value
    return plain


DEEPEST = 64  # nesting: far beyond any plan, far below the interpreter's limit


def from_dict(plain: Any, depth: int = 0) -> Event:
    """The event that `to_dict` wrote. An unknown name or field is refused; nothing is imported or run."""
    if depth > DEEPEST:
        raise ValueError(f"an event nested more than {DEEPEST} deep; expected one made by a plan")
    if not isinstance(plain, dict):
        raise ValueError(f"an event must be a JSON object, not {type(plain).__name__}")
    rest = dict(plain)
    name = rest.pop("type", None)
    if not isinstance(name, str) or name not in _NAMES:
        raise ValueError(f"an event of type {name!r}; expected one of {', '.join(_NAMES)}")
    cls = _NAMES[name]
    if set(rest) != set(_FIELDS[cls]):
        raise ValueError(f"event {name!r} has fields {sorted(rest)}; expected {sorted(_FIELDS[cls])}")
    if "events" in rest:
        if not isinstance(rest["events"], list):
            raise ValueError("events must be a list")
        rest["events"] = tuple(from_dict(e, depth + 1) for e in rest["events"])
    if "event" in rest:
        rest["event"] = from_dict(rest["event"], depth + 1)
    return cls(**rest)


def to_json(event: Event) -> str:
    """An event as one line of JSON.

    >>> from_json(to_json(Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100))).steps
    100
    """
    return json.dumps(to_dict(event), sort_keys=True)


def from_json(text: str) -> Event:
    """The event in `text`; a ValueError, and nothing else, for any other text."""
    try:
        plain = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:  # ValueError: also an integer of too many digits
        raise ValueError(f"not JSON: {error}") from None
    try:
        return from_dict(plain)
    except TypeError as error:
        raise ValueError(f"not an event: {error}") from None
