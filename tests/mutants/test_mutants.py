"""Mutants: mechanisms, sites, ledgers and sessions that are broken on purpose, and what notices each of them.

A test that passes says little until something broken has failed it. Here every known way to break the guarantee is
planted, one at a time, and tried by checks that pass on the sound code (which is a test too). Where a mutant changes
what an attacker sees, the **audit** has to find it as well: the attack must prove more than the mutant claims, with
confidence 0.999, and prove nothing against the sound code.

Each room is a group for a process of its own, in which a program is compiled once. `make test` tries every mutant by
the checks until one kills it, and runs all but the longest attacks; `make test-all` runs those too, and the kill table,
which tries every mutant by every check. It is printed, and written to the file that `TACIT_KILL_TABLE` names.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.checks import CHECKS, TRIED
from tests.mutants.judging import Mutant, is_killed, kill_table, killers, verdict
from tests.mutants.mutants import BY_NAME, MUTANTS, ROOMS
from tests.mutants.planting import SOUND


def in_room(room: str, *values: Any, name: str, is_long: bool = False) -> Any:
    marks = [pytest.mark.xdist_group(f"mutants of {room}"), *([pytest.mark.slow] if is_long else [])]
    return pytest.param(*values, id=name, marks=marks)


def mutants(of: list[Mutant] = MUTANTS) -> Iterator[Any]:
    for room, listed in ROOMS.items():
        yield from (in_room(room, mutant, name=mutant.name) for mutant in listed)


def attacked() -> Iterator[Any]:
    for room, listed in ROOMS.items():
        for mutant in listed:
            if mutant.attack is not None:
                yield in_room(room, mutant, name=mutant.name, is_long=mutant.is_long)


def checks() -> Iterator[Any]:
    for room, listed in ROOMS.items():
        for check in dict.fromkeys(check for mutant in listed for check in TRIED[mutant.part]):
            yield in_room(room, check, name=check)


def attacks() -> Iterator[Any]:
    """An attack goes by the name of the first mutant that it is made for."""
    for room, listed in ROOMS.items():
        first = {mutant.attack: mutant for mutant in reversed(listed) if mutant.attack is not None}
        yield from (in_room(room, attack, name=one.name, is_long=one.is_long) for attack, one in first.items())


@pytest.mark.parametrize("check", list(checks()))
def test_the_sound_code_passes_every_check(check):
    """Else a kill would mean nothing."""
    assert not is_killed(SOUND, check)


@pytest.mark.parametrize("attack", list(attacks()))
def test_no_attack_refutes_the_sound_code(attack):
    claimed, shown = verdict(SOUND, attack)
    assert shown <= claimed


@pytest.mark.parametrize("mutant", list(mutants()))
def test_a_mutant_is_killed_by_a_check(mutant):
    assert next(killers(mutant), None) is not None


@pytest.mark.parametrize("mutant", list(attacked()))
def test_the_audit_finds_a_mutant_that_changes_what_an_attacker_sees(mutant):
    claimed, shown = verdict(mutant.plant(), mutant.attack)
    assert shown > claimed


def test_a_mutant_has_a_name_of_its_own_and_an_attack_or_a_reason_why_there_is_none():
    assert len(BY_NAME) == len(MUTANTS)
    for mutant in MUTANTS:
        assert (mutant.attack is None) == bool(mutant.unseen), mutant.name
    assert {mutant.part for mutant in MUTANTS} == set(TRIED)


@pytest.mark.slow
@pytest.mark.xdist_group("the kill table")
def test_the_kill_table_has_no_survivor_and_no_idle_check():
    table = kill_table(MUTANTS)
    print(f"\n{table}")
    if path := os.environ.get("TACIT_KILL_TABLE"):
        Path(path).write_text(table + "\n")
    killed = {mutant.name: set(killers(mutant)) for mutant in MUTANTS}
    assert all(killed.values())
    assert set().union(*killed.values()) == set(CHECKS), "a check that kills nothing has shown no power"
