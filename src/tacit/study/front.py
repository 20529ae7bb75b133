"""Many sites, one posterior: `federate(plan, sites)`."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tacit.engines.coordinator import Progress
from tacit.study.coordinator import StudyResult, coordinate
from tacit.study.host import Observer, Snapshot
from tacit.study.local import LocalHost
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.sites import Site, check_apart
from tacit.tables.table import Table


def federate(
    plan: Plan,
    sites: Sequence[Site],
    *,
    out: Path | None = None,
    test: Table | None = None,
    slots: int | None = None,
    insecure_seed: int | None = None,
    observe: Observer = lambda phase, done, total, spent: None,
    show: Callable[[Snapshot], None] | None = None,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> StudyResult:
    """One posterior from many sites' records, each site within its own budget and with its own ledger.

    Parameters
    ----------
    plan, sites : the study. With an infinite epsilon at all sites there is no privacy and there are no ledgers.
    out : the folder of the study, in which it can be resumed; each site has a folder there with its ledger and store.
    test : public records to score the posterior on after every round.
    slots : the public number of slots of each site; by default the size of the largest site of similar size.
    insecure_seed : repeatable noise from a seed, which is not private.
    observe : called as `observe(phase, done, total, spent)` as the study moves on.
    show : called with a `Snapshot`, before `observe`.
    at_least : how many sites must be able to pay for their whole part before any is charged; all by default.
    say : called with a sentence on sites that do not take part.

    Returns
    -------
    The posterior, a row for each site and each round, scores and statements, as a `StudyResult`.

    Raises
    ------
    ValueError : sites, plan or folder do not fit together; in one sentence, before anything is charged.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else out
        setup = Setup(plan, sites, slots)
        check_apart(sites)
        host = LocalHost(setup, folder, insecure_seed)

        def watch(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
            del progress
            observe(phase, done, total, spent)

        return coordinate(setup, folder, host, test=test, observe=watch, show=show, at_least=at_least, say=say)
