"""Models of users' own, by name: "module:name", such as "my_models:sepsis", of a module that is installed.

`name` is a model (an object with `prior` and `log_likelihood`, such as a NumPyro model by `tacit.models.from_numpyro`),
or a function without arguments that returns one. The module is known by the hash of its source: of its own file, or,
for a package, of all its .py files in sorted order.

    sha256( ‖ of each file: its path in the package · 0 · its length, 8 bytes · its bytes )

**No code travels.** A site loads a model only if its own file lists this name with the hash of the module on its disk.
Which module is imported is decided by that file: a name from elsewhere is only compared with it. Guarantee: what is run
is what was hashed. The files are read once, hashed, and executed from those bytes: no compiled copy and no file that is
changed meanwhile takes their place, and nothing else of a package can be imported.

Outside the hash are other modules that the module imports, and files that it reads. Numbers belong into the source.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
SOURCE = re.compile("sha256:[0-9a-f]{64}")
LONGEST = 200  # characters of a name
EXAMPLE = "my_models:sepsis"


def is_name(text: Any) -> bool:
    """Whether a text has the form "module:name".

    >>> is_name("my_models:sepsis"), is_name("logistic"), is_name("..outside:model"), is_name("../outside:model")
    (True, False, False, False)
    """
    return isinstance(text, str) and len(text) <= LONGEST and NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Source:
    """The source of a module: its files by their path in it, and where they are. Nothing is executed to read it."""

    top: str
    files: dict[str, bytes]
    folder: Path

    @cached_property
    def digest(self) -> str:
        """The hash, as site files and agreements have it."""
        found = sha256()
        for path in sorted(self.files):
            data = self.files[path]
            found.update(path.encode() + b"\0" + len(data).to_bytes(8, "big") + data)
        return f"sha256:{found.hexdigest()}"

    @classmethod
    def of(cls, name: str) -> "Source":
        """The source on disk of the module of "module:name". Only the top-level name is looked up."""
        if not is_name(name):
            raise ValueError(f'model={name!r}; expected "module:name", such as "{EXAMPLE}"')
        top = name.partition(":")[0].partition(".")[0]
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(top)  # no other finder: those may run code
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise ValueError(f"model={name!r}: no module {top!r} with Python source is installed; install it first")
        file = Path(spec.origin)
        is_package = spec.submodule_search_locations is not None
        folder = file.parent.parent if is_package else file.parent
        inside = sorted(path for path in file.parent.rglob("*.py") if path.is_file()) if is_package else [file]
        try:
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in inside}
        except OSError as error:
            raise ValueError(f"model={name!r}: the source of {top!r} cannot be read ({error.strerror})") from None
        return cls(top, files, folder)


class _Loader(SourceFileLoader):
    """Executes a file from the bytes that were hashed, and never a compiled copy."""

    def __init__(self, fullname: str, path: str, data: bytes) -> None:
        super().__init__(fullname, path)
        self._data = data

    def get_data(self, path: str) -> bytes:
        if path != self.path:  # a file beside the module, which its hash does not cover
            raise OSError(f"{path} is not in the hashed source; put numbers into the source")
        return self._data

    def path_stats(self, path: str) -> Any:
        raise OSError  # so that no compiled copy is looked for


@dataclass(frozen=True)
class _Finder:
    """Finds the files of one module in its hashed source, and nothing else in it."""

    source: Source

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if name.partition(".")[0] != self.source.top:
            return None
        stem = name.replace(".", "/")
        for file, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self.source.files:
                place = self.source.folder / file
                loader = _Loader(name, str(place), self.source.files[file])
                inner = [str(place.parent)] if is_package else None
                return importlib.util.spec_from_file_location(
                    name, place, loader=loader, submodule_search_locations=inner
                )
        raise ModuleNotFoundError(f"no module named {name!r} in the source of {self.source.top!r}", name=name)


_loaded: dict[str, str] = {}  # the hash of each module that was loaded here
_models: dict[tuple[str, str], Any] = {}  # by name and hash: one object, so that programs are compiled once


def load(name: str, digest: str | None = None) -> Any:
    """The model of "module:name". digest: refuse another source before anything of the module is executed.

    A ValueError says in one sentence what does not fit.
    """
    source = Source.of(name)
    if digest is not None and source.digest != digest:
        raise ValueError(f"model={name!r} has the source {source.digest} on this machine; expected {digest}")
    if (name, source.digest) not in _models:
        found = _model_of(name, _module(name, source, digest is not None))
        if source.top not in _loaded:  # imported in another way, and so never compared with the source
            return found
        _models[name, source.digest] = found
    return _models[name, source.digest]


def _module(name: str, source: Source, is_strict: bool) -> Any:
    """The module, imported from its hashed source. is_strict: refuse one that was imported in another way."""
    module, top = name.partition(":")[0], source.top
    if _loaded.get(top, source.digest) != source.digest:
        raise ValueError(
            f"model={name!r}: the source of {top!r} has changed since it was loaded; start the process anew"
        )
    if top in sys.modules and top not in _loaded:
        if is_strict:
            raise ValueError(f"model={name!r}: {top!r} was imported before it was checked; start the process anew")
        return importlib.import_module(module)
    if top not in _loaded:
        sys.meta_path.insert(0, _Finder(source))
        _loaded[top] = source.digest
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"model={name!r}: {module!r} cannot be imported ({type(error).__name__}: {error})") from None


def _model_of(name: str, module: Any) -> Any:
    """The object of this name in a module, or what it returns if it is a function without arguments."""
    called = name.partition(":")[2]
    found = getattr(module, called, None)
    if not is_model(found) and callable(found) and _takes_nothing(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ValueError(f"model={name!r}: {called}() failed ({type(error).__name__}: {error})") from None
    if not is_model(found):
        raise ValueError(
            f"model={name!r} is no model; expected an object with prior and log_likelihood, such as "
            "tacit.models.from_numpyro makes of a NumPyro model, or a function without arguments that returns one"
        )
    return found


def source_of(model: Any) -> tuple[str, str] | None:
    """The class and the hash of the source of a model that was loaded here; None for others.

    The class, since one object may have several names.
    """
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    return next(((kind, digest) for (_, digest), found in _models.items() if found is model), None)


def is_model(found: Any) -> bool:
    """Whether an object, and not its class, has a prior and a likelihood."""
    return not isinstance(found, type) and hasattr(found, "prior") and hasattr(found, "log_likelihood")


def _takes_nothing(found: Any) -> bool:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
