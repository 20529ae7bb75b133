"""Checks that begin at a file: a row less, or a site less, and what leaves."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.mutants.borrowed import loaded
from tests.mutants.planting import World

NEIGHBOURS = "test_neighbours.py"


@functools.cache
def _front_of(kind: str) -> Any:
    """(the module, a front's files, the folder they are in, which exists as long as this does)."""
    module, folder = loaded(NEIGHBOURS), tempfile.TemporaryDirectory()
    if kind == "fit":
        files = module.Files(Path(folder.name), module.fits(bounds=True))
    else:
        front = module.studied(module.of_lists if kind == "lists" else None, rounds=1, evaluation=0.2)
        front = module.studied(rounds=1, **module.PERSONS) if kind == "persons" else front
        front = module.numbered(front) if kind == "numbered" else front
        files = module.Files(Path(folder.name), front, sites=module.SITES)
    return module, files, folder


def a_row_less(kind: str) -> Callable[[World], None]:
    """A row less in the file moves each sum by at most its clip, and nothing else that leaves.

    The row is the first one, the last, and one unlike all others.
    """

    def check(world: World) -> None:
        del world  # what is broken is patched, for a front makes its own parts
        module, files, _ = _front_of(kind)
        files.forget()
        for row in (module.ODD, 0, module.ROWS - 1):
            files.listened("random").check(files.without("random", {row}))

    return check


def a_person_less(world: World) -> None:
    """A person less at a site, with all records, moves each sum by at most its clip: the one with the most records."""
    del world
    module, files, _ = _front_of("persons")
    files.forget()
    who = module.frame(0)["who"].to_numpy()
    most = np.argmax(np.bincount(who))
    files.listened("random").check(files.without("random", set(np.flatnonzero(who == most).tolist())))


def a_site_less(world: World) -> None:
    """A site less leaves the contributions of all others as they are."""
    del world
    with tempfile.TemporaryDirectory() as folder:
        loaded(NEIGHBOURS).test_a_site_less_leaves_what_all_others_add_as_it_is(Path(folder))
