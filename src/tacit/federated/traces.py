"""Records of answered rounds kept outside a ledger: a ledger that lacks one of these rounds is refused."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.federated.keys import words_of
from tacit.federated.messages import decode_tree
from tacit.privacy.ledger import Entry


@dataclass(frozen=True)
class Trace:
    """Answered rounds of a study, known from something other than a ledger.

    rounds: those known by number; count: how many there were at least, also in the phases `with_study`; where: the
    source.
    """

    study: str
    rounds: frozenset[int]
    count: int
    where: str
    with_study: tuple[str, ...] = ()


def check_complete(path: Path, entries: Iterable[Entry] | None, traces: Iterable[Trace]) -> None:
    """Refuse a ledger that lacks a round which was answered. Call it before anything is read or charged.

    An answer is made after its charge, so such a ledger was deleted and made anew, or is an older copy: it lacks some
    of the spending. entries: of the ledger at `path`; None if it is gone.
    """
    charged = {(entry.study, entry.round) for entry in entries or ()}
    counts = Counter(study for study, _ in charged)
    for trace in traces:
        lost = sorted(round for round in trace.rounds if (trace.study, round) not in charged)
        if not lost and sum(counts[study] for study in (trace.study, *trace.with_study)) >= trace.count:
            continue
        what = f"round {lost[0]}" if lost else f"all of {trace.count} rounds"
        what += f" of {trace.study}, answered by {trace.where}"
        if entries is None:
            raise ValueError(f"ledger={path} is gone and had {what}; go back to a copy that has them all")
        raise ValueError(
            f"ledger={path} does not have {what}; an older copy was put back or it was made anew, so go back to a "
            "newer one"
        )


def trace_of(store: Path, name: str, studies: Iterable[str]) -> Trace | None:
    """The answered rounds in a site's store; None if it cannot be read. studies: one of them is the store's."""
    try:
        found = decode_tree(store.read_bytes())
        round, count = (int(number) for number in found["place"])
        owner = found["owner"]
    except (OSError, KeyError, TypeError, AttributeError, ValueError):
        return None
    own = (study for study in studies if np.array_equal(owner, words_of(study, name).astype(np.int64)))
    return Trace(next(own, "an unknown study"), frozenset([round]), count, store.name)
