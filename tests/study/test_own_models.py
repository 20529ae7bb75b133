"""Models of users' own: known by the hash of their source, and executed from the bytes that were hashed."""

import os
import py_compile
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.study.own_models import Source, is_name, load
from tacit.study.plan import Plan

MODEL = """
from pathlib import Path
from tacit.families import DiagonalGaussian
from tacit.models import LogisticRegression
Path(__file__).with_name("it-ran").touch()
sepsis = LogisticRegression(DiagonalGaussian.standard(2))
def made():
    return sepsis
def needs(records):
    return sepsis
number = 3
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write the files of a module into a folder that is searched."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return tmp_path

    return install


def test_a_name_is_a_module_and_a_name_in_it() -> None:
    for name in ("my_models:sepsis", "a.b:c", "_a:_b"):
        assert is_name(name)
    odd = ["logistic", "..a:b", ".a:b", "a..b:c", "a:", ":b", "a:b:c", "a/b:c", "a b:c", "ä:b", "a:b\n", "a:b.c", ""]
    for name in [*odd, "a" * 200 + ":b", 3, None]:
        assert not is_name(name), name


def test_a_source_is_hashed_without_being_run_and_every_byte_counts(install: Install) -> None:
    folder = install(own_hashed=MODEL)
    first = Source.of("own_hashed:sepsis").digest
    assert first == Source.of("own_hashed:other").digest, "the module's, whatever is in it"
    install(own_hashed=MODEL + "\n")
    assert Source.of("own_hashed:sepsis").digest != first
    install(own_hashed=MODEL)
    assert Source.of("own_hashed:sepsis").digest == first
    assert not (folder / "it-ran").exists()
    assert "own_hashed" not in sys.modules


def test_a_package_is_hashed_with_all_its_source_and_no_parent_is_run(install: Install) -> None:
    ran = 'from pathlib import Path\nPath(__file__).with_name("it-ran").touch()\n'
    folder = install(own_pack__in____init__=ran, own_pack__in__one="x = 1\n", own_pack__in__two="y = 2\n")
    found = Source.of("own_pack.one:model")
    assert sorted(found.files) == ["own_pack/__init__.py", "own_pack/one.py", "own_pack/two.py"]
    install(own_pack__in__two="y = 3\n")
    assert Source.of("own_pack.one:model").digest != found.digest
    assert not list(folder.rglob("it-ran"))
    install(own_pack__in__two="y = 2\n", own_pack__in__twp="")
    assert Source.of("own_pack.one:model").digest != found.digest, "a file more"


@pytest.mark.parametrize("name", ["nowhere_at_all:model", "math:pi", "..:x", "sys:exit"])
def test_what_has_no_source_on_the_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"install it first|module:name"):
        Source.of(name)


def test_a_source_that_cannot_be_read_is_refused_in_a_sentence(install: Install, tmp_path: Path) -> None:
    install(own_unread__in____init__="")
    (tmp_path / "own_unread" / "more.py").symlink_to(tmp_path / "own_unread" / "__init__.py")
    assert len(Source.of("own_unread:model").files) == 2, "a link is read as what it leads to"
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("own_zipped.py", MODEL)
    sys.path.insert(0, str(tmp_path / "own.zip"))
    try:
        with pytest.raises(ValueError, match="cannot be read"):
            Source.of("own_zipped:sepsis")
    finally:
        sys.path.remove(str(tmp_path / "own.zip"))


def test_a_model_is_an_object_or_what_a_function_without_arguments_returns(install: Install) -> None:
    install(own_forms=MODEL)
    assert load("own_forms:sepsis") is load("own_forms:made")
    assert Plan("own_forms:made").loaded().has_one_predictor
    for name in ("needs", "number", "LogisticRegression", "nothing"):
        with pytest.raises(ValueError, match="is no model; expected an object with prior and log_likelihood"):
            load(f"own_forms:{name}")


def test_nothing_is_run_if_the_source_is_another_one(install: Install) -> None:
    folder = install(own_other=MODEL)
    with pytest.raises(ValueError, match="has the source sha256:"):
        load("own_other:sepsis", "sha256:" + "0" * 64)
    assert "own_other" not in sys.modules
    assert not (folder / "it-ran").exists()
    load("own_other:sepsis", Source.of("own_other:sepsis").digest)
    assert (folder / "it-ran").exists()


def test_what_runs_is_what_was_hashed_and_no_compiled_copy_of_it(install: Install) -> None:
    """A copy that a change of the same length and second leaves behind looks new to Python."""
    folder = install(own_stale=MODEL.replace("number = 3", "number = 4"))
    path = folder / "own_stale.py"
    py_compile.compile(str(path))
    when = path.stat()
    path.write_text(MODEL)
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    load("own_stale:sepsis", Source.of("own_stale:sepsis").digest)
    assert sys.modules["own_stale"].number == 3


def test_a_source_that_changes_after_it_was_loaded_needs_a_new_process(install: Install) -> None:
    install(own_changes=MODEL)
    load("own_changes:sepsis")
    install(own_changes=MODEL + "x = 1\n")
    with pytest.raises(ValueError, match="has changed since it was loaded; start the process anew"):
        load("own_changes:sepsis", Source.of("own_changes:sepsis").digest)


def test_a_module_that_was_imported_unchecked_is_refused_where_a_hash_is_asked_for(install: Install) -> None:
    install(own_early=MODEL)
    __import__("own_early")
    with pytest.raises(ValueError, match="was imported before it was checked"):
        load("own_early:sepsis", Source.of("own_early:sepsis").digest)
    assert load("own_early:sepsis") is sys.modules["own_early"].sepsis, "the user's own process"


def test_a_package_imports_nothing_of_its_own_that_was_not_hashed(install: Install) -> None:
    late = "def later():\n    import own_late.added\n"
    install(own_late__in____init__="", own_late__in__one=MODEL + late)
    load("own_late.one:sepsis", Source.of("own_late.one:sepsis").digest)
    install(own_late__in__added=MODEL)  # after the hash
    with pytest.raises(ModuleNotFoundError, match="in the source of 'own_late'"):
        sys.modules["own_late.one"].later()


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "1 / 0", "def", "import nowhere_at_all"])
def test_a_module_that_fails_is_refused_in_a_sentence(install: Install, text: str) -> None:
    name = f"own_fails_{abs(hash(text))}"
    install(**{name: text})
    with pytest.raises(ValueError, match="cannot be imported") as error:
        load(f"{name}:model")
    assert error.value.__cause__ is None


def test_a_plan_says_nothing_of_a_model_before_it_is_loaded(install: Install) -> None:
    plan: Any = Plan("nowhere_at_all:model", method="natural", evaluation=0.2)
    assert plan.is_named
    for ask in ("link", "is_table", "is_natural", "has_one_predictor"):
        with pytest.raises(ValueError, match="is not loaded"):
            getattr(plan, ask)
    with pytest.raises(ValueError, match="install it first"):
        plan.loaded()


# --- What a study's name says -------------------------------------------------------------------------------------


def test_the_name_of_a_study_covers_the_source_and_not_what_it_computes(install: Install) -> None:
    install(own_first=MODEL, own_second=MODEL + "\n", own_third=MODEL)
    plans = {name: Plan(f"{name}:sepsis").loaded() for name in ("own_first", "own_second")}
    found = {name: plan.identity()["model"] for name, plan in plans.items()}
    assert found["own_first"] != found["own_second"]
    assert found["own_first"] == Plan("own_first:made").loaded().identity()["model"], "one object by two names"
    assert found["own_first"][-1] == Source.of("own_first:sepsis").digest


def test_objects_with_equal_bytes_and_other_shapes_are_other_models() -> None:
    import jax.numpy as jnp

    from tacit.families import DiagonalGaussian
    from tacit.models import LogisticRegression

    one, two = (LogisticRegression(DiagonalGaussian(*(jnp.ones(2, kind) for _ in range(2)))) for kind in "fi")
    assert Plan(one).identity() != Plan(two).identity()


def test_a_package_gets_no_other_file_under_its_source(install: Install, tmp_path: Path) -> None:
    install(own_data=MODEL)
    load("own_data:sepsis")
    loader = sys.modules["own_data"].__loader__
    assert b"sepsis" in loader.get_data(str(tmp_path / "own_data.py"))
    with pytest.raises(OSError, match="not in the hashed source"):
        loader.get_data(str(tmp_path / "table.csv"))
