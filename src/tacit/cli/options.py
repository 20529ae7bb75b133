"""Options that several commands share, and their values."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from tacit.links import names
from tacit.privacy.accountants import ACCOUNTANTS

DeltaOption = Annotated[float, typer.Option(help="δ: the probability that the guarantee may fail. Below 1 / records.")]
RATE = "Probability that a record is in a step's sample; by default 1, which samples all."
STEPS = "Number of noisy steps; by default 1."
MODELS, PLANNED_MODELS = names(), names(learned=True)
# Values for completion, repeated here because the modules that define them are slow to load.
ADJACENCIES = ("add-remove", "replace-one")
RULES = ("gaussian", "renyi")  # of ledgers
SCALINGS = ("moments", "bounds")
AUDITED = ("fit", "vi", "sites", "mechanism")
UNITS = ("record", "person", "site")
CANARIES = ("worst", "mislabelled", "outlying", "row")


def either(words: Sequence[str]) -> str:
    """The words as a choice.

    >>> either(["a", "b", "c"])
    'a, b or c'
    """
    return f"{', '.join(words[:-1])} or {words[-1]}"


def among(*words: str) -> Callable[[str], list[str]]:
    """Complete one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def reproductions(incomplete: str) -> list[tuple[str, str]]:
    """Completes the name of a reproduction."""
    from tacit_reproduce import REPRODUCTIONS

    return [(name, found.title) for name, found in REPRODUCTIONS.items() if name.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """Complete the last entry of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + word for word in PLANNED_MODELS if word.startswith(last)]


AccountantOption = Annotated[
    str,
    typer.Option(help=f"{either(ACCOUNTANTS)}; pld is the tightest.", autocompletion=among(*ACCOUNTANTS)),
]
AdjacencyOption = Annotated[
    str, typer.Option(help="add-remove (one record) or replace-one.", autocompletion=among(*ADJACENCIES))
]
LevelOption = Annotated[float, typer.Option(help="The probability that an interval holds.")]
AsJsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
