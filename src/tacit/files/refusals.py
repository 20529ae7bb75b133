"""Refusals of files: one sentence that names the file, the place in it and the remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tacit.basics.schema import Root, printable
from tacit.basics.toml_files import read_toml

F = TypeVar("F", bound=Root)


def read_form(path: Path, what: str, form: type[F], **usual: Any) -> F:
    """Read a TOML file into a form. what: the file's name in a refusal. usual: defaults of the file."""
    plain = read_toml(path, what)
    try:
        return form(**usual | plain)
    except ValueError as error:
        raise ValueError(f"{what}={path}: {printable(str(error))}") from None


# A table's refusal names options of `tacit fit`; in a study file these are fields.
_OPTIONS = re.compile(r"--(categories|classes|columns)(?: \"[^\"]*\"| \w+(?:,\w+)+)?")
_UNIT = re.compile(r"^unit=(?='.*' is not a column beside the target)")  # the column of persons
_FIELDS = {"categories": "[facts.categories]", "classes": "facts.classes", "columns": "columns"}


@contextmanager
def refusing_at(path: Path, place: str = "", what: str = "study") -> Iterator[None]:
    """Begin refusals raised inside with the file and the place in it."""
    try:
        yield
    except ValueError as error:
        words = _UNIT.sub("person=", _OPTIONS.sub(lambda found: _FIELDS[found[1]], str(error)))
        words = printable(words.removesuffix("."))
        raise ValueError(f"{what}={path}{', ' if place else ''}{place}: {words}") from None
