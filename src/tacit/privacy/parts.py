"""An event, folded into a count of distinct parts."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from scipy import stats

from tacit.privacy import events
from tacit.privacy.events import Adjacency, Event

# How far one draw is from its ideal (`noise`, `sampling`), in total variation.
NOISE_DRAW_ERROR, GAP_DRAW_ERROR = 2.0**-48, 2.0**-52


@dataclass(frozen=True)
class Part:
    """One mechanism, in the form that accountants price.

    `noise_multiplier` is relative to the clip where there is a sampling rate, and to the sensitivity under the asked
    adjacency where there is none. `slots` and `buffer` say where a Poisson sample is truncated.
    """

    noise: Literal["gaussian", "laplace"]
    noise_multiplier: float
    rate: float | None = None
    slots: int | None = None
    buffer: int | None = None
    fixed_size: bool = False
    coordinates: int = 0

    @property
    def truncation(self) -> float:
        """P(at least `buffer` of the other slots are chosen): only then can one unit's choice displace another."""
        if self.slots is None or self.buffer is None or self.rate is None:
            return 0.0
        return float(stats.binom.sf(self.buffer - 1, self.slots - 1, self.rate))

    @property
    def ideal(self) -> "Part":
        """The same part in theory: an untruncated sample, noise without error."""
        return replace(self, slots=None, buffer=None, coordinates=0)

    @property
    def imperfection(self) -> float:
        """Total variation between one step as it runs and in theory: its draws of noise and of gaps."""
        gaps = 0 if self.slots is None or self.buffer is None else self.buffer + self.slots / 4095 + 1
        return self.coordinates * NOISE_DRAW_ERROR + gaps * GAP_DRAW_ERROR


def parts(event: Event, adjacency: Adjacency) -> Counter[Part] | None:
    """How often each part occurs, with bare multipliers relative to the sensitivity under `adjacency`.

    None means no guarantee at all. Refuses an unknown event, mixed units, and an adjacency that the event does not
    determine.
    """
    found: Counter[Part] = Counter()
    units: set[str] = set()
    private = True

    def visit(event: Event, count: int) -> None:
        nonlocal private
        match event:
            case events.NonPrivate():
                private = False
            case events.Repeated(inner, steps):
                visit(inner, count * steps)
            case events.Composed(inner):
                for e in inner:
                    visit(e, count)
            case events.Gaussian() | events.Laplace():
                found[leaf(event, None)] += count
            case events.PoissonSampled(rate, inner):
                found[leaf(inner, rate)] += count
            case events.FixedSizeSampled(dataset_size, sample_size, inner):
                if adjacency != "replace-one":
                    raise ValueError("fixed-size samples have a price under replace-one only; ask for replace-one")
                # The noise is relative to replace-one, as without sampling: the theorem is stated that way.
                found[replace(leaf(inner, None), rate=sample_size / dataset_size, fixed_size=True)] += count
            case events.TruncatedPoissonSampled(rate, slots, buffer, inner):
                part = leaf(inner, rate)
                if part.noise != "gaussian":
                    raise ValueError("a truncated sample is priced for Gaussian noise only, not for Laplace noise")
                found[replace(part, slots=slots, buffer=buffer) if rate < 1 else part] += count
            case _:
                raise ValueError(f"no accountant prices the event {event}")

    def leaf(event: Event, rate: float | None) -> Part:
        if not isinstance(event, events.Gaussian | events.Laplace):
            raise ValueError(f"sampling is priced around one Gaussian or Laplace mechanism, not around {event}")
        units.add(event.unit)
        rate = None if rate == 1 else rate
        multiplier = float(event.noise_multiplier)
        if event.adjacency != adjacency:
            if event.adjacency == "replace-one":
                raise ValueError("noise relative to replace-one says nothing about add-remove; ask for replace-one")
            if rate is None:
                multiplier /= 2  # replacing moves a sum by twice the clip
        elif event.adjacency == "replace-one" and rate is not None:
            raise ValueError("sampling under replace-one needs noise relative to add-remove (the clip)")
        name: Literal["gaussian", "laplace"] = "gaussian" if isinstance(event, events.Gaussian) else "laplace"
        return Part(name, multiplier, rate, coordinates=event.coordinates)

    visit(event, 1)
    if len(units) > 1:
        raise ValueError(f"events of different units do not add up: {', '.join(sorted(units))}; price each unit alone")
    return found if private else None


def departure(event: Event, adjacency: Adjacency = "add-remove") -> float:
    """How far `event` as it runs is from its theory, in total variation: truncated samples, draws of noise and gaps.

    >>> departure(events.Repeated(events.Gaussian(1.0, coordinates=4), 8)) == 32 * NOISE_DRAW_ERROR
    True
    """
    found = parts(event, adjacency) or Counter()
    return sum(n * (part.truncation + part.imperfection) for part, n in found.items())
