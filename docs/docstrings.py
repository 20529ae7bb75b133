"""Docstrings as pages: examples and formulas become blocks, and errata are linked."""

import re
from typing import Any

import griffe

ERRATA = re.compile(r"docs/errata\.md, (\d+)")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings before they are set."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Examples (`>>>`) in fences, and "docs/errata.md, 5" as a link from the pages of docs/api/."""
    text = _EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
    return ERRATA.sub(r"[erratum \1](../errata.md#erratum-\1)", text)
