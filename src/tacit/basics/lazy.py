"""Names that are imported when they are first used, so that `import tacit` and `tacit --help` stay quick."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package. homes: the module that defines each name; a module is its own.

    >>> find, names = lazily("math", {"cosine": "math"})
    >>> names()
    ['cosine']
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return home if homes[name].rpartition(".")[2] == name and not hasattr(home, name) else getattr(home, name)

    return find, lambda: sorted(homes)
