"""Public data sets with encodings that look at no record, tables, and ways to spread records over sites."""

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Dataset": "tacit.data.datasets",
    "Table": "tacit.data.tables",
    "abalone": "tacit.data.datasets",
    "adult": "tacit.data.datasets",
    "heart": "tacit.data.datasets",
}
__all__ = ["Dataset", "Table", "abalone", "adult", "heart", "partition"]

if TYPE_CHECKING:
    from tacit.data import partition
    from tacit.data.datasets import Dataset, abalone, adult, heart
    from tacit.data.tables import Table


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "partition":
        return importlib.import_module("tacit.data.partition")
    raise AttributeError(f"module 'tacit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
