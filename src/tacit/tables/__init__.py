"""Tables: files and frames as numbers, the public facts about them, standardising and back."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.tables.facts import Facts
    from tacit.tables.table import Table

_HOMES = {
    "Facts": "tacit.tables.facts",
    "Table": "tacit.tables.table",
}
__all__ = ["Facts", "Table"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
