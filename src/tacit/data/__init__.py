"""Public data sets with encodings that look at no record. Imported when first used."""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Dataset", "abalone", "adult", "heart"]

if TYPE_CHECKING:
    from tacit.data.datasets import Dataset, abalone, adult, heart


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("tacit.data.datasets"), name)
    raise AttributeError(f"module 'tacit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
