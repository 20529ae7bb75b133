"""The house rules of docs/design.md, kept by a walk over the source; each checker is shown to see a planted breach.

A checker takes a module's name and its source and returns what is wrong, one line each.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent


def name_of(path: Path) -> str:
    parts = ("tacit", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = {name_of(path) for path in ROOT.rglob("__init__.py")}


def is_within(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


def breaches(checker: Callable[[str, str], list[str]]) -> list[str]:
    return [line for module, source in SOURCES.items() for line in checker(module, source)]


def test_the_walk_sees_the_source():
    assert {"tacit", "tacit.cli", "tacit.families.gaussian", "tacit.privacy.accounting"} <= set(SOURCES)


# --- Who may import whom -----------------------------------------------------------------------------------------

# On top: nothing below may import these. The index is one of them: inside, say where a name lives.
TOP = (
    "tacit.auditing",
    "tacit.cli",
    "tacit.config",
    "tacit.demo",
    "tacit.doctor",
    "tacit.estimators",
    "tacit.fitting",
    "tacit.learning",
    "tacit.network",
    "tacit.planning",
    "tacit.policy",
    "tacit.posterior",
    "tacit.regression",
    "tacit.report",
    "tacit.reproduce",
    "tacit.spending",
    "tacit.study",
)
# Below: what of ours each part may import. The longest matching name counts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "tacit.data": ("tacit.data",),
    "tacit.diagnostics": ("tacit.families",),
    "tacit.families": ("tacit.families",),
    "tacit.models": ("tacit.families", "tacit.models"),
    "tacit.privacy": ("tacit.privacy",),
    "tacit.privacy.clipping": (),
    "tacit.privacy.events": (),
    "tacit.privacy.noise": ("tacit.privacy.randomness",),
    "tacit.privacy.randomness": (),
    "tacit.privacy.sampling": ("tacit.privacy.randomness",),
    # Types to read data through and to hand results out in; never the accountant, the sampler or the noise.
    "tacit.solvers": (
        "tacit.families",
        "tacit.privacy.clipping",
        "tacit.privacy.mechanism",
        "tacit.privacy.released",
        "tacit.privacy.schedules",
        "tacit.solvers",
    ),
    "tacit.scaling": ("tacit.privacy.clipping", "tacit.privacy.mechanism", "tacit.privacy.released"),
    "tacit.federated": ("tacit.families", "tacit.federated", "tacit.privacy", "tacit.scaling", "tacit.solvers.base"),
    "tacit.engines": ("tacit.engines", "tacit.federated.algorithm", "tacit.federated.messages"),
    # A report is made of released values: nothing that could read a record, a store or a ledger is in reach.
    **dict.fromkeys(
        [f"tacit.report.{name}" for name in ("figures", "findings", "forest", "page", "style")],
        ("tacit.posterior", "tacit.privacy.statement", "tacit.report"),
    ),
}


def imports(module: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also those inside functions and those by `importlib.import_module("...")`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                steps = module.split(".")[: None if module in PACKAGES else -1]
                base = ".".join([*steps[: len(steps) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole in SOURCES else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def forbidden_imports(module: str, source: str) -> list[str]:
    """Imports of our own modules that the part's row in `MAY_IMPORT` does not name."""
    rows = [part for part in MAY_IMPORT if is_within(module, (part,))]
    if not rows and (module == "tacit" or is_within(module, (*TOP, "tacit.__main__"))):
        return []
    if not rows:
        return [f"{module} is neither in TOP nor has it a row in MAY_IMPORT; say what it may import"]
    allowed = MAY_IMPORT[max(rows, key=len)]
    ours = [(line, name) for line, name in imports(module, source) if is_within(name, ("tacit",))]
    return [f"{module}:{line} imports {name}" for line, name in ours if not is_within(name, allowed)]


def test_every_part_imports_only_what_the_design_lets_it():
    assert breaches(forbidden_imports) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tacit.families.gaussian", "from tacit.models import LinearRegression"),
        ("tacit.families.gaussian", "import tacit.privacy.events"),
        ("tacit.models.linear", "from tacit.privacy.released import Released"),
        ("tacit.models.linear", "from ..solvers import conjugate"),
        ("tacit.privacy.clipping", "from tacit.privacy.noise import Lattice"),
        ("tacit.privacy.clipping", "from tacit.privacy.randomness import Discrete"),
        ("tacit.privacy.clipping", "from . import events"),
        ("tacit.privacy.sampling", "from tacit.privacy import events"),
        ("tacit.privacy.noise", "from .clipping import clip_to"),
        ("tacit.privacy.events", "from tacit.privacy import accounting"),
        ("tacit.privacy.randomness", "from tacit.privacy.events import Event"),
        ("tacit.privacy.mechanism", "from tacit.families import kl"),
        ("tacit.privacy.statement", "from tacit.config import read_schedule"),
        ("tacit.solvers.vi", "from tacit.models import LinearRegression"),
        ("tacit.solvers.vi", "from tacit.models.linear import LinearRegression"),
        ("tacit.solvers.vi", "from tacit.privacy import accounting"),
        ("tacit.solvers.vi", "from tacit.privacy.noise import lattice_gaussian"),
        ("tacit.solvers.vi", "def late():\n    from tacit.demo import run"),
        ("tacit.solvers.vi", "import tacit"),
        ("tacit.solvers.vi", "from tacit import LinearRegression"),
        ("tacit.solvers.vi", "import importlib\nimportlib.import_module('tacit.models')"),
        ("tacit.solvers", "from .. import models"),
        ("tacit.federated.pvi", "from tacit.solvers.conjugate import conjugate"),
        ("tacit.federated.pvi", "from tacit.solvers import Target"),
        ("tacit.federated.pvi", "from tacit.report import style"),
        ("tacit.engines.local", "from tacit.privacy.ledger import Ledger"),
        ("tacit.engines.local", "from tacit.federated.site import Site"),
        ("tacit.report.page", "from tacit.data.tables import Table"),
        ("tacit.report.findings", "def late():\n    from tacit.privacy.ledger import Ledger"),
        ("tacit.newcomer", ""),
    ],
)
def test_a_forbidden_import_is_reported(module, source):
    assert len(forbidden_imports(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tacit.families.gaussian", "import jax\nfrom tacit.families.base import Family\nfrom .base import Family"),
        ("tacit.models.linear", "from tacit.families import FullGaussian"),
        ("tacit.privacy.noise", "from tacit.privacy.randomness import Discrete\nfrom tacit.privacy import randomness"),
        ("tacit.solvers.vi", "from tacit.solvers.base import Target\nfrom tacit.privacy.released import repeat"),
        ("tacit.federated.pvi", "from tacit.solvers.base import Target\nfrom tacit.privacy import events"),
        ("tacit.cli", "import tacit\nfrom tacit.report.style import figure"),
        ("tacit.families.base", '"""from tacit.models import Model"""'),
    ],
)
def test_an_import_that_the_design_allows_is_not_reported(module, source):
    assert forbidden_imports(module, source) == []


def imports_of_dp_accounting(module: str, source: str) -> list[str]:
    """Only the accountant knows the library behind it."""
    if module == "tacit.privacy.accounting":
        return []
    return [f"{module}:{line}" for line, name in imports(module, source) if is_within(name, ("dp_accounting",))]


def test_only_the_accountant_imports_dp_accounting():
    assert breaches(imports_of_dp_accounting) == []


@pytest.mark.parametrize(
    "source", ["import dp_accounting", "from dp_accounting import dp_event", "import dp_accounting.pld as pld"]
)
def test_an_import_of_dp_accounting_elsewhere_is_reported(source):
    assert len(imports_of_dp_accounting("tacit.privacy.statement", source)) == 1
    assert imports_of_dp_accounting("tacit.privacy.accounting", source) == []


# --- Who may read a released value -------------------------------------------------------------------------------

# `tacit.federated.tied` reads a local update inside of a contribution, where it is clipped and noised as a whole.
# `tacit.reproduce`, `tacit.auditing` and `tacit.doctor` look at posteriors fitted to public or made-up records.
READERS = (
    "tacit.privacy",
    "tacit.federated.site",
    "tacit.federated.tied",
    "tacit.fitting",
    "tacit.auditing",
    "tacit.demo",
    "tacit.doctor",
    "tacit.reproduce",
)


def readings_of_value(module: str, source: str) -> list[str]:
    """Reads of `.value`, of whatever object: elsewhere `map` and `then` keep the receipt, and no name is `.value`."""
    if is_within(module, READERS):
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


def test_a_released_value_is_read_only_by_privacy_the_site_and_the_single_site_front():
    assert breaches(readings_of_value) == []


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
    for module in ("tacit.solvers.conjugate", "tacit.federated.pvi", "tacit.engines.local", "tacit.cli"):
        assert len(readings_of_value(module, source)) == 1
    for module in ("tacit.privacy.released", "tacit.federated.site", "tacit.demo"):
        assert readings_of_value(module, source) == []


@pytest.mark.parametrize(
    "source", ["'''release.value'''", "value = 3\nprint(value)", "release.map(f)", "for v in table.values(): pass"]
)
def test_what_does_not_read_a_released_value_is_not_reported(source):
    assert readings_of_value("tacit.solvers.conjugate", source) == []


# --- No keys by default ------------------------------------------------------------------------------------------

KEY_MAKERS = ("jax.random.key", "jax.random.PRNGKey", "numpy.random.seed")
MADE_UP_DATA = ("tacit.auditing", "tacit.demo", "tacit.reproduce")  # a fixed seed for made-up records, not for noise


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
    if module == "tacit.privacy.randomness":
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
    assert len(home_made_keys("tacit.solvers.vi", source)) == 1
    assert len(home_made_keys("tacit.demo", source)) == 1
    assert home_made_keys("tacit.privacy.randomness", source) == []


def test_a_fixed_seed_is_reported_except_for_made_up_data():
    source = "import numpy as np\nrng = np.random.default_rng(2019)"
    assert len(home_made_keys("tacit.solvers.vi", source)) == 1
    assert home_made_keys("tacit.demo", source) == []


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
    assert home_made_keys("tacit.solvers.vi", source) == []


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
    assert len(without_docstring("tacit.planted", source)) == 1


def test_private_names_need_no_docstring():
    assert without_docstring("tacit.planted", 'def _f(): ...\ndef f():\n    """What."""') == []


# --- A quick start -----------------------------------------------------------------------------------------------

HEAVY = ("jax", "numpy", "scipy", "dp_accounting")


def heavy_modules_after(statement: str) -> list[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["tacit", "tacit.cli"])
def test_the_command_line_starts_without_the_heavy_libraries(module):
    assert heavy_modules_after(f"import {module}") == []


def test_a_heavy_import_is_reported():
    assert {"jax", "numpy"} <= set(heavy_modules_after("import tacit.cli, tacit.families"))
