"""The rules of the house, kept by a walk over the source; each checker is shown to see a planted breach.

Who may import whom is declared in docs/house.py, which also draws the picture at the top of docs/design.md. A checker
takes a module's short name ("privacy.noise") and its source, and returns what is wrong, one line each.
"""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tacit

HERE = Path(__file__).parent


def loaded(path: Path) -> ModuleType:
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where its dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


house = loaded(HERE.parent / "docs" / "house.py")
is_within = house.is_within


def breaches(checker: Callable[[str, str], list[str]]) -> list[str]:
    return [line for module, source in house.SOURCES.items() for line in checker(module, source)]


def test_the_walk_sees_the_source():
    known = {"index", "__main__", "cli.app", "families.gaussian", "privacy.accountants.renyi", "tacit_reproduce.liu"}
    assert known <= set(house.SOURCES)


# --- Rooms -------------------------------------------------------------------------------------------------------


def out_of_place(package: Path, rooms: set[str]) -> list[str]:
    """What is directly under the package, and neither one of its rooms nor one of the three files that belong there."""
    allowed = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    return sorted(
        path.name
        for path in package.iterdir()
        if path.name not in allowed and not (path.is_dir() and path.name in rooms and (path / "__init__.py").exists())
    )


def test_every_module_is_in_a_room():
    top = house.ROOT / "src"
    assert out_of_place(top / "tacit", set(house.ROOMS)) == []
    assert out_of_place(top, set(house.PACKAGES)) == []


def test_a_file_beside_the_rooms_is_reported(tmp_path):
    for name in ("__init__.py", "__main__.py", "py.typed", "helpers.py"):
        (tmp_path / name).touch()
    for name in ("cli", "newroom", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "cli" / "__init__.py").touch()
    (tmp_path / "newroom" / "__init__.py").touch()
    assert out_of_place(tmp_path, {"cli", "data"}) == ["data", "helpers.py", "newroom"]


def test_the_drawing_is_current():
    shown = house.PICTURE.read_text(encoding="utf-8")
    is_current = house.current(shown) == shown  # compared here, so that a failure does not print the picture
    assert is_current, f"{house.PICTURE.name} is not of this source any more; run `{house.COMMAND}` and commit it"


def test_a_drawing_of_other_rooms_is_not_current_and_a_few_lines_do_not_count():
    shown = house.PICTURE.read_text(encoding="utf-8")
    lines = {name: lines for name, (_, lines) in house.sizes().items()}
    near = house.drawn(lines | {"cli": lines["cli"] + house.NEAR - 1})
    far = house.drawn(lines | {"cli": lines["cli"] + house.NEAR})
    assert house.current(near) == near
    assert house.current(far) != far
    assert house.current(shown.replace('id="room-cli"', 'id="room-desk"')) != shown.replace("room-cli", "room-desk")


def test_the_paths_in_the_drawing_lead_through_what_exists(monkeypatch):
    assert house.missing_steps() == []
    monkeypatch.setattr(house, "RECORD", (("privacy.mechanism", "Door", "a step that is not there"),))
    assert house.missing_steps() == ["privacy.mechanism.Door"]


# --- Who may import whom -----------------------------------------------------------------------------------------


def forbidden_imports(module: str, source: str) -> list[str]:
    """Imports of our own modules that the module's row in docs/house.py does not name."""
    row = house.row_of(module)
    if row is None:
        return [f"{module} has no room; enter its package in FLOORS of docs/house.py"]
    found = [(line, name) for line, name in house.our_imports(module, source) if (module, name) not in house.EXCEPTIONS]
    return [f"{module}:{line} imports {name}" for line, name in found if not is_within(name, house.ROWS[row])]


def test_every_module_imports_only_what_its_row_names():
    assert breaches(forbidden_imports) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("families.gaussian", "from tacit.models import LinearRegression"),
        ("families.gaussian", "import tacit.privacy.events"),
        ("models.linear", "from tacit.privacy.released import Released"),
        ("models.linear", "from ..solvers import conjugate"),
        ("links.link", "import tacit.tables.table"),
        ("privacy.clipping", "from tacit.privacy.noise import Lattice"),
        ("privacy.clipping", "from tacit.privacy.randomness import Discrete"),
        ("privacy.clipping", "from . import events"),
        ("privacy.sampling", "from tacit.privacy import events"),
        ("privacy.noise", "from .clipping import clip_to"),
        ("privacy.events", "from tacit.privacy import accounting"),
        ("privacy.losses", "from tacit.privacy.parts import parts"),
        ("privacy.randomness", "from tacit.privacy.events import Event"),
        ("privacy.mechanism", "from tacit.families import kl"),
        ("privacy.mechanism", "from tacit.privacy.ledger import Ledger"),
        ("privacy.accountants.pld", "from tacit.privacy.mechanism import Access"),
        ("privacy.statement", "from tacit.files.schedule_file import read_schedule"),
        ("solvers.vi", "from tacit.models import LinearRegression"),
        ("solvers.vi", "from tacit.models.linear import LinearRegression"),
        ("solvers.vi", "from tacit.privacy import accounting"),
        ("solvers.vi", "from tacit.privacy.noise import lattice_gaussian"),
        ("solvers.vi", "def late():\n    from tacit.cli.demo_study import run"),
        ("solvers.vi", "import tacit"),
        ("solvers.vi", "from tacit import LinearRegression"),
        ("solvers.vi", "import importlib\nimportlib.import_module('tacit.models')"),
        ("solvers.vi", "PATH = 'tacit.models.glm:LogisticRegression'"),
        ("solvers", "from .. import models"),
        ("tables.table", "from tacit.privacy.mechanism import Access"),
        ("tables.scaling", "from tacit.tables.table import Table"),
        ("federated.pvi", "from tacit.solvers.conjugate import conjugate"),
        ("federated.pvi", "from tacit.solvers import Target"),
        ("federated.pvi", "from tacit.report import style"),
        ("federated.responder", "from tacit.study.setup import Setup"),
        ("federated.responder", "from tacit.tables.table import Table"),
        ("federated.responder", "from tacit.privacy import accounting"),
        ("federated.secure_sum", "from tacit.federated.messages import encode"),
        ("engines.local", "from tacit.privacy.ledger import Ledger"),
        ("engines.local", "from tacit.federated.responder import Responder"),
        ("engines.coordinator", "from tacit.federated.pvi import PVI"),
        ("study.plan", "from tacit.study.setup import Setup"),
        ("study.front", "from tacit.network.channel import Post"),
        ("study.front", "from tacit.data import adult"),
        ("study.coordinator", "from tacit.network.remote import Remote"),
        ("study.coordinator", "from tacit.files.study_file import StudyFile"),
        ("network.channel", "from tacit.federated.messages import decode"),
        ("report.page", "from tacit.tables.table import Table"),
        ("report.page", "from tacit.report.dashboard import Board"),
        ("report.findings", "def late():\n    from tacit.privacy.ledger import Ledger"),
        ("report.fitted", "from tacit.cli.app import app"),
        ("cli.fit", "from tacit_reproduce import REPRODUCTIONS"),
        ("study.front", "import tacit_reproduce.liu"),
        ("tacit_reproduce.liu", "from tacit.network.channel import Post"),
        ("index", "from tacit.network.remote import Remote"),
        ("newcomer", ""),
        ("newroom.module", ""),
    ],
)
def test_a_forbidden_import_is_reported(module, source):
    assert len(forbidden_imports(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("families.gaussian", "import jax\nfrom tacit.families.base import Family\nfrom .base import Family"),
        ("models.linear", "from tacit.families import FullGaussian"),
        ("links.regressions", "PATH = 'tacit.models.glm:LogisticRegression'"),
        ("privacy.noise", "from tacit.privacy.randomness import Discrete\nfrom tacit.privacy import randomness"),
        ("solvers.vi", "from tacit.solvers.base import Target\nfrom tacit.privacy.released import repeat"),
        ("federated.pvi", "from tacit.solvers.base import Target\nfrom tacit.privacy.mechanism import Access"),
        ("cli.fit", "import tacit\nfrom tacit.report.style import figure"),
        ("cli.reproduce", "from tacit_reproduce import REPRODUCTIONS"),
        ("families.base", '"""from tacit.models import Model"""'),
        ("families.base", "prog = 'tacit'\nimport report.page"),
    ],
)
def test_an_import_that_a_row_names_is_not_reported(module, source):
    assert forbidden_imports(module, source) == []


def upward(rows: dict[str, tuple[str, ...]], order: list[str]) -> list[str]:
    """Entries of rows that name a room further up the house, or to the right: with one, rooms could form a circle."""
    rank = {name: place for place, name in enumerate(order)}
    found = []
    for module, row in rows.items():
        own = house.room_of(module)
        others = [entry for entry in row if own in rank and house.room_of(entry) != house.INDEX]
        found += [f"{module} may import {entry}" for entry in others if rank[house.room_of(entry)] > rank[own]]
    return found


def test_rooms_import_downward_or_to_their_left_so_that_no_circle_is_possible():
    assert upward(house.ROWS, house.ORDER) == []


def test_a_right_to_import_upward_is_reported():
    rows = {"ground": ("ground", "top.module"), "ground.module": (), "top": ("ground", "index")}
    assert upward(rows, ["ground", "top"]) == ["ground may import top.module"]


def unused(rows: dict[str, str], sources: dict[str, str]) -> list[str]:
    """Entries of rows that no module of the row imports: rights that nothing needs. rows: as in `FINER`."""
    names = {module for modules in rows for module in modules.split()}
    imported: dict[str, set[str]] = {name: set() for name in names}
    for module, source in sources.items():
        row = max((name for name in names if is_within(module, (name,))), key=len, default=None)
        if row is not None:
            imported[row] |= {name for _, name in house.our_imports(module, source)}
    found = []
    for modules, row in rows.items():
        needed = set().union(*(imported[module] for module in modules.split()))
        found += [f"{modules}: {entry}" for entry in row.split() if not any(is_within(n, (entry,)) for n in needed)]
    return found


def test_rows_name_nothing_that_is_not_imported():
    rows = {name: room.may_import for name, room in house.ROOMS.items()} | house.FINER
    assert unused(rows, house.SOURCES) == []
    imported = {(m, name) for m, source in house.SOURCES.items() for _, name in house.our_imports(m, source)}
    assert imported >= house.EXCEPTIONS


def test_a_right_that_nothing_needs_is_reported():
    sources = {"one.module": "import tacit.two", "one.other": "from tacit.three import x"}
    assert unused({"one": "two", "one.other": "three four"}, sources) == ["one.other: four"]
    assert unused({"one.module one.other": "two three"}, sources) == []


# Libraries that one module knows, for all others.
KEEPERS = {"dp_accounting": "privacy.accountants.renyi", "nvflare": "network.channel"}


def strange_libraries(module: str, source: str) -> list[str]:
    """Imports of a library that another module keeps."""
    libraries = [library for library, keeper in KEEPERS.items() if module != keeper]
    return [
        f"{module}:{line} imports {name}" for line, name in house.imports(module, source) if is_within(name, libraries)
    ]


def test_one_module_alone_imports_dp_accounting_and_one_flare():
    assert breaches(strange_libraries) == []


@pytest.mark.parametrize(
    "source",
    [
        "import dp_accounting",
        "from dp_accounting import dp_event",
        "import dp_accounting.pld as pld",
        "from nvflare.fuel.f3.message import Message",
    ],
)
def test_an_import_of_a_kept_library_elsewhere_is_reported(source):
    keeper = "network.channel" if "nvflare" in source else "privacy.accountants.renyi"
    assert len(strange_libraries("privacy.statement", source)) == 1
    assert strange_libraries(keeper, source) == []


# --- Private names -----------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def borrowed_privates(module: str, source: str) -> list[str]:
    """Private names of another module: `from tacit.x import _y`, and `x._y` of a module x that was imported."""
    tree, found = ast.parse(source), list[str]()
    modules = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if is_within(alias.name, house.PACKAGES)]
            found += [
                f"{module}:{node.lineno} imports {a.name}" for a in ours if any(map(is_private, a.name.split(".")))
            ]
            modules |= {alias.asname or alias.name for alias in ours}
        elif isinstance(node, ast.ImportFrom) and (node.level or is_within(node.module or "", house.PACKAGES)):
            path = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [f"{module}:{node.lineno} imports {name}" for name in path if is_private(name)]
            modules |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in modules:
            found.append(f"{module}:{node.lineno} reads {ast.unparse(node)}")
    return found


def test_no_module_borrows_a_private_name():
    assert breaches(borrowed_privates) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tacit.privacy.noise import _draw",
        "from .noise import Lattice, _draw",
        "from tacit.privacy import _noise",
        "import tacit.privacy._noise",
        "from tacit.privacy import noise\nnoise._draw()",
        "from tacit.privacy import noise as n\nprint(n._TABLE)",
        "import tacit.privacy.noise\ntacit.privacy.noise._draw()",
        "from tacit.privacy.noise import Lattice\nLattice._spread",
    ],
)
def test_a_borrowed_private_name_is_reported(source):
    assert len(borrowed_privates("privacy.mechanism", source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from tacit import __version__",
        "from concurrent.futures import _base",
        "import os\nos._exit(0)",
        "class A:\n    def f(self):\n        return self._x",
        "from tacit.privacy import noise\nfrom tacit.privacy.noise import Lattice as _Lattice",
    ],
)
def test_other_private_names_are_not_reported(source):
    assert borrowed_privates("privacy.mechanism", source) == []


# --- Size --------------------------------------------------------------------------------------------------------

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_BODY = 60  # of a function, without its signature and its docstring: options take a line each


def too_long(module: str, source: str) -> list[str]:
    """A file, or functions of it, that one does not read at a sitting."""
    lines = source.count("\n")
    found = [f"{module} has {lines} lines"] if lines > MOST_LINES_OF_A_FILE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if length > MOST_LINES_OF_A_BODY:
                found.append(f"{module}:{node.lineno} {node.name} has a body of {length} lines")
    return found


def test_no_file_and_no_function_is_too_long():
    assert breaches(too_long) == []


def test_a_long_file_and_a_long_function_are_reported():
    assert len(too_long("planted", "x = 1\n" * (MOST_LINES_OF_A_FILE + 1))) == 1
    assert too_long("planted", "x = 1\n" * MOST_LINES_OF_A_FILE) == []
    options = "".join(f"    option_{n}=None,\n" for n in range(100))
    head = f'def f(\n{options}):\n    """What.\n\n    {"Why." * 9}\n    """\n'
    assert len(too_long("planted", head + "    x = 1\n" * (MOST_LINES_OF_A_BODY + 1))) == 1
    assert too_long("planted", head + "    x = 1\n" * MOST_LINES_OF_A_BODY) == []
    assert too_long("planted", head) == []


# --- Who may read a released value -------------------------------------------------------------------------------

# `tied` reads a local update inside of a contribution, where it is clipped and noised as a whole. Audits, simulations,
# the doctor and reproductions look at what was made of public or made-up records.
READERS = (
    "privacy.released",
    "privacy.shared",
    "federated.responder",
    "federated.simulated",
    "federated.tied",
    "audit.canaries",
    "audit.runs",
    "cli.doctor_checks",
    "tacit_reproduce.hong",
    "tacit_reproduce.jalko_logistic",
    "tacit_reproduce.jalko_mixture",
    "tacit_reproduce.sep",
)


def readings_of_value(module: str, source: str) -> list[str]:
    """Reads of `.value`, of whatever object: elsewhere `map` and `then` keep the receipt, and no name is `.value`."""
    if module in READERS:
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr="value", ctx=ast.Load()):
                found.append(node.lineno)
            case (
                ast.Call(func=ast.Name(id="getattr" | "attrgetter"), args=arguments)
                | ast.Call(func=ast.Attribute(attr="attrgetter"), args=arguments)
            ):
                if any(isinstance(a, ast.Constant) and a.value == "value" for a in arguments):
                    found.append(node.lineno)
            case ast.MatchClass(cls=ast.Name(id="Released") | ast.Attribute(attr="Released")):
                if node.patterns or "value" in node.kwd_attrs:
                    found.append(node.lineno)
    return [f"{module}:{line} reads a released value" for line in found]


def test_a_released_value_is_read_only_by_privacy_the_site_and_who_looks_at_public_records():
    assert breaches(readings_of_value) == []


def test_every_reader_of_released_values_still_reads_one(monkeypatch):
    known = READERS
    monkeypatch.setitem(globals(), "READERS", ())
    assert {line.partition(":")[0] for line in breaches(readings_of_value)} == set(known)


@pytest.mark.parametrize(
    "source",
    [
        "def peek(release):\n    return release.value",
        "print(access.sum(key, f).value.mean)",
        "getattr(release, 'value')",
        "import operator\noperator.attrgetter('value')(release)",
        "match release:\n    case Released(value, event):\n        pass",
        "match release:\n    case Released(value=q):\n        pass",
    ],
)
def test_a_reading_of_a_released_value_is_reported(source):
    for module in (
        "solvers.conjugate",
        "federated.pvi",
        "engines.local",
        "study.coordinator",
        "study.front",
        "cli.fit",
        "network.remote",
    ):
        assert len(readings_of_value(module, source)) == 1
    for module in ("privacy.released", "federated.responder"):
        assert readings_of_value(module, source) == []


@pytest.mark.parametrize(
    "source", ["'''release.value'''", "value = 3\nprint(value)", "release.map(f)", "for v in table.values(): pass"]
)
def test_what_does_not_read_a_released_value_is_not_reported(source):
    assert readings_of_value("solvers.conjugate", source) == []


# --- No keys by default ------------------------------------------------------------------------------------------

KEY_MAKERS = ("jax.random.key", "jax.random.PRNGKey", "numpy.random.seed")
MADE_UP_DATA = ("audit.subjects", "tacit_reproduce")  # a fixed seed for made-up records, not for noise


def full_names(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Each name or attribute with its path from the imported package: `np.random.seed` is numpy.random.seed."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in aliases:
                yield node, ".".join([aliases[first], *rest])


def home_made_keys(module: str, source: str) -> list[str]:
    """Randomness that no caller gave: keys and generators made on the spot, by seed or by default."""
    if module == "privacy.randomness":
        return []
    tree = ast.parse(source)
    names = list(full_names(tree))
    found = [(node.lineno, name) for node, name in names if name in KEY_MAKERS]
    generators = {node for node, name in names if name == "numpy.random.default_rng"}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.func in generators:
            generators.discard(call.func)
            seed = next(iter([*call.args, *(k.value for k in call.keywords)]), ast.Constant(None))
            is_fixed = isinstance(seed, ast.Constant)
            if is_fixed and (seed.value is None or not is_within(module, MADE_UP_DATA)):
                found.append((call.lineno, "numpy.random.default_rng without a caller's seed"))
    found += [(node.lineno, "numpy.random.default_rng passed on, to be called without a seed") for node in generators]
    return [f"{module}:{line} uses {name}" for line, name in found]


def test_no_module_makes_its_own_key_or_generator():
    assert breaches(home_made_keys) == []


@pytest.mark.parametrize(
    "source",
    [
        "import jax\nkey = jax.random.key(0)",
        "import jax\nkey = jax.random.PRNGKey(seed)",
        "from jax import random\nrandom.key(0)",
        "from jax.random import PRNGKey as new\nnew(0)",
        "import jax.random as jr\nmake = jr.key",
        "import numpy as np\nnp.random.seed(1)",
        "import numpy as np\nrng = np.random.default_rng()",
        "import numpy as np\nrng = np.random.default_rng(None)",
        "import numpy as np\nrng = np.random.default_rng(seed=None)",
        "from numpy.random import default_rng\nrng = default_rng()",
        "import numpy as np\nfield(default_factory=np.random.default_rng)",
    ],
)
def test_a_home_made_key_is_reported(source):
    assert len(home_made_keys("solvers.vi", source)) == 1
    assert len(home_made_keys("audit.subjects", source)) == 1
    assert home_made_keys("privacy.randomness", source) == []


def test_a_fixed_seed_is_reported_except_for_made_up_data():
    source = "import numpy as np\nrng = np.random.default_rng(2019)"
    assert len(home_made_keys("solvers.vi", source)) == 1
    assert home_made_keys("audit.subjects", source) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""\n>>> jax.random.key(0)\n"""',
        "import jax\njax.random.split(key)\njax.random.key_impl(key)",
        "import numpy as np\nrng = np.random.default_rng(seed)",
        "for key in table: pass",
    ],
)
def test_randomness_that_a_caller_gave_is_not_reported(source):
    assert home_made_keys("solvers.vi", source) == []


# --- One name, one thing -----------------------------------------------------------------------------------------

SAME_IDEA = {"Array", "Record", "Theta"}  # each file's own type of one idea


def names_defined(source: str) -> set[str]:
    """Public classes and type aliases of a module, but for options of commands and type variables."""
    found = set()
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[0].isupper() and not name.isupper():
                if not ast.unparse(value).startswith("TypeVar("):
                    found.add(name)
    return {name for name in found if name[0] != "_" and not name.endswith(("Option", "Argument"))} - SAME_IDEA


def names_of_two_things(sources: dict[str, str]) -> list[str]:
    homes: dict[str, list[str]] = {}
    for module, source in sources.items():
        for name in names_defined(source):
            homes.setdefault(name, []).append(module)
    return [f"{name} is defined in {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def test_no_two_classes_or_types_share_a_name():
    assert names_of_two_things(house.SOURCES) == []


def test_a_name_of_two_things_is_reported():
    two = {"study.plan": "class Plan: ...", "planning.plan": "Plan = dict[str, int]"}
    assert names_of_two_things(two) == ["Plan is defined in study.plan, planning.plan"]
    assert names_of_two_things({"a": "class _State: ...\nJob = TypeVar('Job')", "b": "class _State: ..."}) == []


# --- Docstrings --------------------------------------------------------------------------------------------------


def without_docstring(module: str, source: str) -> list[str]:
    """Public functions and classes of a module that do not say what they are."""
    found = []
    for node in ast.parse(source).body:
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition and not node.name.startswith("_") and not (ast.get_docstring(node) or "").strip():
            found.append(f"{module}:{node.lineno} {node.name}")
    return found


def test_every_public_function_and_class_has_a_docstring():
    assert breaches(without_docstring) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(): ...",
        "async def f(): ...",
        "class C:\n    x = 1",
        'def f():\n    "  "',
        "def f():\n    # why\n    pass",
    ],
)
def test_a_missing_docstring_is_reported(source):
    assert len(without_docstring("planted", source)) == 1


def test_private_names_need_no_docstring():
    assert without_docstring("planted", 'def _f(): ...\ndef f():\n    """What."""') == []


# --- Words -------------------------------------------------------------------------------------------------------

RETIRED = {"party", "parties", "courier", "delegate", "purse", "conductor", "sitting", "overheard", "sight"}


def retired_words(module: str, source: str) -> list[str]:
    """Names of functions, classes, arguments and variables in which an idea has a word that is not its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
            case ast.arg():
                name = node.arg
            case ast.Name(ctx=ast.Store()):
                name = node.id
            case ast.Attribute(ctx=ast.Store()):
                name = node.attr
            case _:
                continue
        if RETIRED & {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}:
            found.append(f"{module}:{node.lineno} {name}")
    return found


def test_one_idea_has_one_word():
    assert breaches(retired_words) == []


@pytest.mark.parametrize(
    "source",
    ["class Courier: ...", "def ask(party): ...", "parties = 3", "self.a_purse = 1", "async def delegate(): ..."],
)
def test_a_retired_word_is_reported(source):
    assert len(retired_words("study.planted", source)) == 1


def test_words_that_only_hold_a_retired_one_are_not_reported():
    assert retired_words("study.planted", "oversight = 1\ncounterparty = other.party") == []


# --- A quick start -----------------------------------------------------------------------------------------------

HEAVY = ("jax", "numpy", "scipy", "dp_accounting")


def heavy_modules_after(statement: str) -> list[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["tacit", "tacit.cli.app"])
def test_the_command_line_starts_without_the_heavy_libraries(module):
    assert heavy_modules_after(f"import {module}") == []


def test_a_heavy_import_is_reported():
    assert {"jax", "numpy"} <= set(heavy_modules_after("import tacit.cli.app, tacit.families"))


def test_the_package_is_a_command():
    done = subprocess.run([sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tacit {tacit.__version__}\n", "")
