"""Planting: the code under test as a `World`, and ways to make one that is broken.

A plant is made when it is asked for: a mutant that cannot be made any more fails its own test and no other.
"""

import contextlib
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from tests.mutants.operators import Gone, becoming, rewritten

from tacit.audit.canaries import Canaried
from tacit.families import register
from tacit.federated import secure_sum
from tacit.federated.responder import Responder
from tacit.federated.secure_responder import SecureResponder
from tacit.federated.tied import Central
from tacit.network.channel import Answerer, refuses
from tacit.network.site_session import SiteSession
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.noise import Lattice
from tacit.privacy.released import repeat
from tacit.privacy.shared import SharedGaussian, contributed

Patch = tuple[Any, str, Any]  # where, the name there, and what it becomes


@dataclass(frozen=True)
class World:
    """The code under test: what a check or an attack builds with. A mutant is a world with one part replaced."""

    mechanism: type = SubsampledGaussian
    access: type = Access
    repeat: Callable[..., Any] = repeat
    responder: type = Responder
    ledger: type = Ledger
    filter: type = Filter
    central: type = Central
    session: type = SiteSession
    answerer: type = Answerer
    gate: Callable[..., bool] = refuses
    sums: ModuleType = secure_sum
    shared: type = SharedGaussian
    secure_responder: type = SecureResponder
    contributed: Callable[..., Any] = contributed
    patches: tuple[Patch, ...] = ()  # of what is not handed over


SOUND = World()
Plant = Callable[[], World]
Verdict = tuple[float, float]  # of an attack: the ε that is claimed, and the one that is proved
Attack = Callable[[World], Verdict]


def planting(make: Callable[..., World]) -> Callable[..., Plant]:
    """Makes the world when it is asked for, once."""
    return lambda *given, **named: functools.cache(lambda: make(*given, **named))


@contextlib.contextmanager
def planted(world: World) -> Iterator[None]:
    """What a world patches is patched meanwhile."""
    with contextlib.ExitStack() as stack:
        for patch in world.patches:
            stack.enter_context(mock.patch.object(*patch))
        yield


def present(home: Any, name: str) -> Any:
    """What a class or a module has by this name; `Gone` if it has nothing."""
    if not hasattr(home, name):
        raise Gone(f"{home.__name__} has no {name} any more; write this mutant anew")
    return getattr(home, name)


def overriding(cls: type, **methods: Any) -> type:
    """A subclass with other methods, each of which the class must have."""
    for name in methods:
        present(cls, name)
    return type(f"Mutant{cls.__name__}", (cls,), methods)


def with_method(cls: type, method: str, *operators: Any) -> type:
    """A subclass of which one method is broken."""
    return overriding(cls, **{method: rewritten(present(cls, method), *operators)})


# --- Ways to plant -----------------------------------------------------------------------------------------------


@planting
def replaced(**parts: Any) -> World:
    """Parts that are written out. A class may define no method that its base does not have."""
    for part in parts.values():
        for name, value in vars(part).items() if inspect.isclass(part) else ():
            if inspect.isfunction(value) and not name.startswith("__"):
                present(part.__base__, name)
    return World(**parts)


@planting
def made(make: Callable[[], World]) -> World:
    """A world that takes more than one line."""
    return make()


@planting
def broken(part: str, method: str, *operators: Any) -> World:
    """One method of one part.

    A mechanism is a static argument: a subclass equals no other, so nothing that was compiled before is run for it.
    """
    cls = with_method(getattr(SOUND, part), method, *operators)
    # By JAX's own registration a class can be taken for another with as many fields.
    return World(**{part: register("mechanism", "unit")(cls) if part == "access" else cls})


@planting
def broken_function(part: str, *operators: Any) -> World:
    return World(**{part: rewritten(getattr(SOUND, part), *operators)})


@planting
def patched(*patches: Patch) -> World:
    for home, name, _ in patches:
        present(home, name)
    return World(patches=patches)


@planting
def rewritten_in(*changes: tuple[Any, ...]) -> World:
    """Each change: a class or a module, the name of a function there, and operators."""
    patches = ((home, name, rewritten(present(home, name), *operators)) for home, name, *operators in changes)
    return World(patches=tuple(patches))


def _with_lattice(base: type, lattice: type) -> type:
    """A mechanism whose lattice is of another class."""

    class OtherLattice(base):
        def _lattice(self, coordinates: int, units: int) -> Lattice:
            sound = super()._lattice(coordinates, units)
            return lattice(sound.spacings, sound.limb_bits, sound.largest)

    present(base, "_lattice")
    return OtherLattice


@planting
def with_lattice(**methods: Any) -> World:
    """A mechanism whose lattice has other methods."""
    return World(mechanism=_with_lattice(SubsampledGaussian, overriding(Lattice, **methods)))


@planting
def with_noise(change: Callable[[Any], Any]) -> World:
    """A mechanism whose noise, an array of integers, is another."""
    return World(mechanism=_with_lattice(SubsampledGaussian, _noisy(change)))


@planting
def with_shares(change: Callable[[Any], Any]) -> World:
    """Sites whose share of the noise, an array of integers, is another."""
    return World(shared=_with_lattice(SharedGaussian, _noisy(change)))


def _noisy(change: Callable[[Any], Any]) -> type:
    return with_method(Lattice, "_noised", becoming("noise", change))


@planting
def with_sums(**functions: Callable[[ModuleType], Any]) -> World:
    """A copy of the module of secure sums, whose functions know each other by name. Each: made for that copy."""
    spec = importlib.util.spec_from_file_location("mutant_of_secure_sum", secure_sum.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for their types
    spec.loader.exec_module(module)
    for name, make in functions.items():
        present(module, name)
        setattr(module, name, make(module))
    return World(sums=module)


@functools.cache
def canaried(access: type) -> type:
    """The attacker's access on top of any other: `Canaried` reads by that of the next class in line."""
    if access is Access:
        return Canaried
    return register("mechanism", "unit", "canaries", "is_worst")(type("MutantCanaried", (Canaried, access), {}))
