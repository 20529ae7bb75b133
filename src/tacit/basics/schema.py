"""Schemas: what users may write, declared once as pydantic models. A refusal is one sentence with a remedy.

A field states its default, its limits and its meaning. The words of refusals (`expected_of`), the JSON schema for
editors and the tables of the documentation (`rows_of`) are made from these.
"""

import difflib
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

REQUIRED: Any = ...
RENAMED = {"places": "slots", "pooling": "colluding"}  # names in earlier versions
LONGEST_NAME = 100  # characters: of a study or a site, with room for what is added in messages


class Section(BaseModel):
    """Part of a file, frozen. Unknown names and values of the wrong type are refused, such as text for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, revalidate_instances="always")


class Root(Section):
    """A section that is a whole file or is built in Python; errors are raised as one plain sentence.

    >>> class Place(Root):
    ...     slots: int = setting(1, "the public number of record places", ge=1)
    >>> Place(slots=0)
    Traceback (most recent call last):
    ValueError: slots=0; expected a whole number of at least 1
    """

    def __init__(self, /, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as errors:
            # Report a name in the wrong place first: it is often the one that is missing elsewhere.
            first = min(errors.errors(), key=lambda error: error["type"] != "extra_forbidden")
            raise ValueError(in_words(first, type(self))) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with these values changed, checked again."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


def setting(
    default: Any, meaning: str, *, expected: str | Callable[[], str] = "", before: Any = None, **limits: Any
) -> Any:
    """Declare a field.

    expected: what a refusal asks for, if its type and limits do not say it. before: for a setting that was added later,
    the value that stands for what was done before it existed. Names that hash the settings leave it out where it has
    this value. Write it as a literal and never change it, even if the default changes.
    """
    return Field(default, description=meaning, json_schema_extra=_Further(expected, before), **limits)


@dataclass(frozen=True)
class _Further:
    """What is kept with a field, and left out of its JSON schema."""

    words: str | Callable[[], str]
    before: Any

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add nothing to the JSON schema (a hook of pydantic's)."""


def before(field: FieldInfo) -> Any:
    """The value of a later setting that stands for what was done before it existed; None if it has none."""
    return field.json_schema_extra.before if isinstance(field.json_schema_extra, _Further) else None


@dataclass(frozen=True)
class OneOf:
    """Marks text that must be one of some names: `Annotated[str, OneOf(names)]`. names: called when needed.

    >>> class Form(Section):
    ...     colour: Annotated[str, OneOf(lambda: ("red", "blue"))] = setting("red", "a colour")
    >>> expected_of(Form.model_fields["colour"]), Form.model_json_schema()["properties"]["colour"]["enum"]
    ('one of red, blue', ['red', 'blue'])
    """

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.names())}

    def _checked(self, value: str) -> str:
        if value not in self.names():
            raise ValueError(f"expected one of {', '.join(self.names())}")
        return value


# --- What is expected ---------------------------------------------------------------------------------------------


def expected_of(field: FieldInfo) -> str:
    """The value that a field expects, in words for a refusal.

    >>> class Form(Section):
    ...     share: float = setting(0.0, "a share", ge=0, lt=1)
    ...     unit: Literal["record", "site"] = setting("record", "whose")
    >>> [expected_of(field) for field in Form.model_fields.values()]
    ['a number of at least 0 and below 1', 'one of record, site']
    """
    given = field.json_schema_extra
    if isinstance(given, _Further) and given.words:
        return given.words if isinstance(given.words, str) else given.words()
    kind = plain_type(field.annotation)
    for one in [*field.metadata, *_marks(field.annotation)]:
        if isinstance(one, OneOf):
            return f"{'a list of some' if get_origin(kind) is list else 'one'} of {', '.join(one.names())}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if kind is bool:
        return "true or false"
    return _of_number(field, kind)


def _of_number(field: FieldInfo, kind: Any) -> str:
    limits = {
        name: getattr(one, name) for one in field.metadata for name in ("gt", "ge", "lt", "le") if hasattr(one, name)
    }
    whole = "a whole number" if kind is int else "a number"
    if {"ge", "le"} <= set(limits):
        return f"{whole} from {limits['ge']:g} to {limits['le']:g}"
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    found = [f"{word} {limits[name]:g}" for name, word in words.items() if name in limits]
    return f"{whole} {' and '.join(found)}".rstrip()


def _marks(annotation: Any) -> Iterator[Any]:
    """Metadata of a type and of its parts."""
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        if part is not None and not isinstance(part, str):
            yield from _marks(part)


def plain_type(annotation: Any) -> Any:
    """A type without "or None" and without its metadata."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        others = [part for part in get_args(annotation) if part is not type(None)]
        return plain_type(others[0]) if len(others) == 1 else annotation
    return annotation


def rows_of(form: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """Name, default, meaning and expected value of each field, for a table of the documentation."""
    for name, field in form.model_fields.items():
        default = "" if field.is_required() or field.default is None else _plain_value(field.default)
        yield name, default, field.description or "", expected_of(field)


def _plain_value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case BaseModel() | dict():
            return ""
        case list():
            return ", ".join(map(str, value))
        case float():
            return f"{value:g}"
    return str(value)


# --- Refusals in words -------------------------------------------------------------------------------------------


def in_words(error: Any, form: type[BaseModel]) -> str:
    """One of pydantic's errors as field, value and what is expected. form: the section that is the whole file."""
    names, field = _field(form, error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(error, form, names, field)
    if error["type"] == "value_error" and (field is None or _section_of(field) is not None):
        words = printable(str(error["ctx"]["error"]))  # from a check across fields, which says what it expects
        return ": ".join([*names, words])
    if error["type"] == "missing":
        return f"there is no {' of '.join(reversed(names))}; expected {expected_of(field)}"
    value = error["input"]
    return f"{': '.join(names)}={value if isinstance(value, float) else shown(value)}; expected {expected_of(field)}"


def _unknown(error: Any, form: type[BaseModel], names: list[str], field: FieldInfo | None) -> str:
    unknown, section = str(error["loc"][-1]), (_section_of(field) or form)
    near = difflib.get_close_matches(RENAMED.get(unknown, unknown), section.model_fields, n=1)
    known = near[0] if near else f"one of {', '.join(section.model_fields)}"
    if section is not form and unknown in form.model_fields:
        known = "it above all tables"
    return f"{': '.join([*names, shown(unknown)])} is not known there; expected {known}"


def _field(form: type[BaseModel], place: Sequence[int | str]) -> tuple[list[str], Any]:
    """The names that lead to a place in the file, and the field there; further parts are not names of fields."""
    names: list[str] = []
    found: FieldInfo | None = None
    section = form
    for part in place:
        inner = _section_of(found)
        if isinstance(part, int) and names:
            names[-1] = f"{names[-1]} {part + 1}"  # [[site]] is counted from 1
            continue
        if str(part).startswith(TAG):
            continue
        section = inner or section
        if part not in section.model_fields or (found is not None and inner is None):
            break
        names.append(str(part))
        found = section.model_fields[str(part)]
    return names, found


TAG = "tag:"  # prefix of the names of a field's alternative forms, which pydantic lists in an error's location


def _section_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """The kind of section that a field holds, if any."""
    waiting = [] if field is None else [field.annotation]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        waiting += getattr(kind, "__args__", ())
    return None


def printable(words: str) -> str:
    """Escape line ends and other unprintable characters: a refusal is one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


def shown(value: Any) -> str:
    """A value in a refusal, shortened."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write an integer of 5,000 digits in decimal
        return f"0x{value:x}"[:20] + "..."
