"""The notes that sites send beside their answers. Only what has the form of an honest note is kept."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tacit.federated.messages import LAST_ROUND, LONGEST_REASON
from tacit.privacy import accounting, events
from tacit.privacy.events import Composed, Event, Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.filters import Filter
from tacit.study.program import PHASES

OF_LEDGERS = ("ledger_spent", "budget", "first_budget")  # what a note says of a ledger, if the site shares it
MOST_NUMBERS = 2**30  # of a release


def sound_note(note: Mapping[str, Any], made: Mapping[Event, int]) -> dict[str, Any]:
    """The parts of a note that have an honest form. All else could stop the study, or keep its accountant busy.

    made: the releases that the site's plan has, and how many of each are accepted.
    """
    found: dict[str, Any] = {}
    for name in ("study", "refusal"):
        if isinstance(text := note.get(name), str):  # it is shown on terminals and written into pages
            found[name] = text[:LONGEST_REASON] if text.isprintable() else "(words that cannot be shown)"
    if isinstance(key := note.get("key"), str) and re.fullmatch("[0-9a-f]{64}", key):
        found["key"] = key
    if isinstance(rule := note.get("rule"), str) and (rule in accounting.ACCOUNTANTS or Filter.read(rule)):
        found["rule"] = rule
    if note.get("raised") is True:
        found["raised"] = True
    for name in ("spent", *OF_LEDGERS):
        if type(note.get(name)) in (int, float) and 0 <= note[name] <= sys.float_info.max:
            found[name] = float(note[name])
    for name, least in (("rounds", -1), ("updates", 0)):
        given = note.get(name)
        numbers = {phase: given.get(phase) for phase in PHASES} if isinstance(given, dict) else {}
        found[name] = {phase: n for phase, n in numbers.items() if type(n) is int and least <= n <= LAST_ROUND}
    try:
        parts = [Repeated(events.from_dict(event), count) for event, count in note["events"]]
        counts: Counter[Event] = Counter()
        for part in parts:
            for event, count in _leaves(part):
                counts[bare(event)] += count
        distinct = {event for part in parts for event, _ in _leaves(part)}
        if len(distinct) <= 2 * len(made) and all(count <= made.get(event, 0) for event, count in counts.items()):
            found["events"] = [[events.to_dict(part.event), part.steps] for part in parts]
    except (KeyError, TypeError, ValueError):
        pass
    return found | {"seeded": note.get("seeded") is True}


def _leaves(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """Single releases of an event, and how many of each."""
    if isinstance(event, Repeated):
        yield from _leaves(event.event, times * event.steps)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from _leaves(part, times)
    else:
        yield event, times


def bare(event: Event) -> Event:
    """A release without its number of coordinates, and without digits of its noise in which machines may differ."""
    if isinstance(event, Gaussian) and event.coordinates <= MOST_NUMBERS:
        return replace(event, noise_multiplier=float(f"{event.noise_multiplier:.6g}"), coordinates=0)
    if isinstance(event, TruncatedPoissonSampled):
        return replace(event, event=bare(event.event))
    return event
