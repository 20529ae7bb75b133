"""Checks that are tests of this suite, run on the code of a world."""

import contextlib
import functools
import importlib.util
import inspect
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.mutants.operators import Gone
from tests.mutants.planting import SOUND, World

from tacit.federated import secure_sum
from tacit.network.site_session import SiteSession
from tacit.privacy.shared import SharedGaussian

TESTS = Path(__file__).parents[1]
PARTS = [field.name for field in fields(World) if field.name not in ("sums", "patches")]


@functools.cache
def _copied(path: str) -> tuple[ModuleType, dict[str, Any]]:
    """A copy of a test module, and what it has before anything in it is replaced."""
    spec = importlib.util.spec_from_file_location(f"mutants_of_{Path(path).stem}", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, dict(vars(module))


def loaded(path: str) -> Any:
    """A copy of a test module of our own: names in it can be replaced without harm to others."""
    return _copied(path)[0]


def suite(path: str, world: World) -> Any:
    """A test module of this suite that tests the code of a world: by whatever name it has a part, that is replaced."""
    module, names = _copied(path)
    for name, value in names.items():
        setattr(module, name, _replaced(value, world))
    return module


def _replaced(value: Any, world: World) -> Any:
    """What a world has in place of a sound part, or of a name in the module of secure sums."""
    for part in PARTS:
        if value is getattr(SOUND, part):
            return getattr(world, part)
    if value is secure_sum:
        return world.sums
    if getattr(value, "__module__", "") == secure_sum.__name__:
        return getattr(world.sums, getattr(value, "__name__", ""), value)
    if isinstance(value, SharedGaussian):
        return world.shared(**vars(value))
    return value


@contextlib.contextmanager
def _clinics_of(world: World, folder: Path) -> Iterator[Any]:
    """The fixture of tests between machines, with the site sessions of a world."""
    base = loaded("network/conftest.py").Clinics
    sessions = [name for name, value in vars(base).items() if value is SiteSession]
    if not sessions:
        raise Gone("Clinics of tests/network/conftest.py names no SiteSession any more; borrow its tests anew")
    clinics = type("Clinics", (base,), dict.fromkeys(sessions, world.session))(folder)
    try:
        yield clinics
    finally:
        clinics.close()


def run_in_suite(path: str, *names: str, **given: Any) -> Callable[[World], None]:
    """A check that runs tests of a module, with the fixtures that they ask for. given: in place of parameters."""

    def check(world: World) -> None:
        module = suite(path, world)
        for name in names:
            if not hasattr(module, name):
                raise Gone(f"tests/{path} has no {name} any more; borrow another test")
            with contextlib.ExitStack() as stack:
                _Fixtures(module, world, given, stack).call(getattr(module, name))

    return check


class _Fixtures:
    """What a test asks for by the names of its arguments."""

    def __init__(self, module: Any, world: World, given: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self.module, self.world, self.stack = module, world, stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.found = given | {
            "tmp_path": self.folder,
            "monkeypatch": stack.enter_context(pytest.MonkeyPatch.context()),
        }

    def call(self, function: Callable[..., Any]) -> Any:
        return function(**{name: self.fixture(name) for name in inspect.signature(function).parameters})

    def fixture(self, name: str) -> Any:
        if name == "clinics" and name not in self.found:
            self.found[name] = self.stack.enter_context(_clinics_of(self.world, self.folder))
        if name not in self.found:
            self.found[name] = self.call(inspect.unwrap(getattr(self.module, name)))
        return self.found[name]


def all_of(*checks: Callable[[World], None]) -> Callable[[World], None]:
    """All of them as one."""

    def check(world: World) -> None:
        for one in checks:
            one(world)

    return check
