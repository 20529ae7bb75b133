"""Judging: by which checks a mutant is killed, what its attack proves, and the table of both."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from tests.mutants.checks import CHECKS, TRIED
from tests.mutants.planting import SOUND, Attack, Plant, Verdict, World, planted

STOPPED = "the receipt is not the price"  # the guard by which a site ends itself


@dataclass(frozen=True)
class Mutant:
    """What is broken, the code that is planted, and the attack that must find it, or why none can (`unseen`).

    part: what it breaks, by which it is tried (`checks.TRIED`). is_long: its attack is run by `make test-all` alone.
    """

    name: str
    part: str
    plant: Plant
    attack: Attack | None = None
    unseen: str = ""
    is_long: bool = False


@functools.cache
def is_killed(world: World, check: str) -> bool:
    """By a failed assertion or a guard. Any other error, such as a missing name, is of a mutant that cannot run."""
    try:
        with planted(world):
            CHECKS[check](world)
    except (AssertionError, pytest.fail.Exception):
        return True
    except RuntimeError as error:
        if STOPPED not in str(error):
            raise
        return True
    return False


@functools.cache
def verdict(world: World, attack: Attack) -> Verdict:
    """What an attack proves against a world, beside what is claimed."""
    with planted(world):
        return attack(world)


def killers(mutant: Mutant) -> Iterator[str]:
    """The checks that kill a mutant, of those that it is tried by."""
    return (check for check in TRIED[mutant.part] if is_killed(mutant.plant(), check))


def kill_table(mutants: Sequence[Mutant]) -> str:
    """A row for each mutant: by what it was killed, and what the attack that is made for it proves."""
    columns = [*CHECKS, "audit"]
    rows = [["mutant", *columns, "claimed ε", "proved ε", "of the sound code"], ["---"] * (len(columns) + 4)]
    for mutant in mutants:
        killed = set(killers(mutant))
        found = {check: "killed" if check in killed else "lived" for check in TRIED[mutant.part]}
        epsilons = ["·"] * 3
        if mutant.attack is not None:
            (claimed, shown), sound = verdict(mutant.plant(), mutant.attack), verdict(SOUND, mutant.attack)
            found["audit"] = "killed" if shown > claimed else "lived"
            epsilons = [f"{claimed:.2f}", f"{shown:.2f}", f"{sound[1]:.2f} of {sound[0]:.2f}"]
        rows.append([mutant.name, *(found.get(column, "·") for column in columns), *epsilons])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)
