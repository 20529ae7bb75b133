"""All mutants, by room.

**To add a mutant**, add one entry to a list of the room that it breaks: a name, the part (which says what checks it is
tried by, `checks.TRIED`), the broken code, and an attack, or in its place why no audit can see it. The broken code is
a subclass with a method written out, a patch of a named attribute, or a function that an operator breaks by a symbol
(`operators`); never a line of the source. Every change that adds a promise adds its mutants here.
"""

from tests.mutants import (
    mutants_of_mechanisms,
    mutants_of_records,
    mutants_of_secure_sums,
    mutants_of_sessions,
    mutants_of_sites,
)
from tests.mutants.judging import Mutant

ROOMS: dict[str, list[Mutant]] = {
    "mechanisms": mutants_of_mechanisms.MUTANTS,
    "sites": mutants_of_sites.MUTANTS,
    "sessions": mutants_of_sessions.MUTANTS,
    "records": mutants_of_records.MUTANTS,
    "secure sums": mutants_of_secure_sums.MUTANTS,
}
MUTANTS = [mutant for mutants in ROOMS.values() for mutant in mutants]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
