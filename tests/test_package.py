"""What is shipped: the wheel, a fresh installation of it, and the examples that newcomers copy."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import tacit
from tacit.cli.app import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PATIENCE = 600  # seconds: the slowest index and the slowest disk we know of


def call(*command: object, cwd: Path) -> str:
    """Standard output of a command that must succeed, away from this source tree's own settings."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=cwd, env=env, timeout=PATIENCE)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def code_blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of a Markdown text that are in one of `languages`."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\s*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", folder, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_its_types_and_its_license_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tacit/py.typed" in names
    assert {f"tacit/report/{page}.html" for page in ("dashboard", "page")} <= set(names)
    assert any(re.fullmatch(r"tacit-[^/]+\.dist-info/licenses/LICENSE", name) for name in names)
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert source <= set(names)
    folders = {"tacit", "tacit_reproduce", f"tacit-{tacit.__version__}.dist-info"}
    assert {name.split("/")[0] for name in names} == folders
    assert not [name for name in names if re.search(r"(^|/)(tests?/|test_|conftest)", name)]


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its own dependencies are enough, at the locked versions: nothing of the development extras is needed."""
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    constraints = ROOT / "constraints.txt"
    call(programs / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel, cwd=tmp_path)
    assert call(programs / "tacit", "--version", cwd=tmp_path) == f"tacit {tacit.__version__}\n"
    where = call(programs / "python", "-c", "import tacit; print(tacit.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    # Every public name resolves without the extras.
    call(
        programs / "python",
        "-W",
        "error",
        "-c",
        "import tacit; [getattr(tacit, n) for n in tacit.__all__]",
        cwd=tmp_path,
    )
    price = call(programs / "tacit", "account", "--noise-multiplier", "5", "--delta", "1e-4", cwd=tmp_path)
    assert price.startswith("ε = 0.60")


def test_the_source_archive_holds_what_tests_and_documentation_need(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    needed = ["*.md", "CITATION.cff", "LICENSE", "Makefile", "constraints.txt", "mkdocs.yml", ".github/workflows/*.yml"]
    needed += [
        ".ci/run",
        ".pre-commit-config.yaml",
        "docs/hooks.py",
        "examples/*",
        "tests/test_*.py",
        "src/tacit/report/*.html",
    ]
    for pattern in needed:
        found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
        assert found, pattern
        assert found <= names, pattern


def test_the_python_examples_of_the_readme_are_short_and_run(tmp_path: Path) -> None:
    blocks = code_blocks(README, "python", "py")
    assert blocks, "README.md has no ```python block"
    for block in blocks:
        assert len(block.splitlines()) <= 20
        call(sys.executable, "-W", "error", "-c", block, cwd=tmp_path)


def test_every_command_that_the_readme_shows_exists(capsys: pytest.CaptureFixture[str]) -> None:
    shown = "\n".join(code_blocks(README, "sh", "bash", "shell", "console"))
    # At the start of a line or after && ; | and not in a comment.
    commands = set(re.findall(r"(?:^|&&|[;|])[ \t]*(?:\$ )?(?:\S*/)?tacit ([a-z]\S*)", shown, flags=re.MULTILINE))
    assert commands, "README.md shows no tacit command"
    for command in sorted(commands):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0, f"README.md shows tacit {command}: {capsys.readouterr().err}"


SHOWING_TARGETS = ("README.md", "CONTRIBUTING.md", "RELEASING.md", ".ci/run", ".pre-commit-config.yaml", ".github")


@pytest.mark.parametrize("place", SHOWING_TARGETS)
def test_every_make_target_that_is_shown_or_run_exists(place: str) -> None:
    files = [path for path in (ROOT / place).rglob("*") if path.is_file()] or [ROOT / place]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    # At the start of a line, in `code`, or after && ; | : and not in a comment.
    targets = set(
        re.findall(r"(?:^|&&|[;|:`])[ \t]*(?:\$ |- )?(?:[A-Z_]+=\S+ )?make ([a-z][a-z-]*)", text, re.MULTILINE)
    )
    assert targets, f"{place} shows no make target"
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_the_tests_run_on_every_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={promised[0]}"
    for name in ("ci", "full"):
        (matrix,) = re.findall(r"python-version: (\[.*\])", (ROOT / f".github/workflows/{name}.yml").read_text())
        assert re.findall(r"3\.\d+", matrix) == promised


def test_the_citation_has_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [tacit.__version__]


def test_the_changelog_tells_of_this_version_or_of_what_is_unreleased() -> None:
    titles = re.findall(r"^##\s+\[?([^\]\s]+)", CHANGELOG, flags=re.MULTILINE)
    assert any(
        title in (tacit.__version__, f"v{tacit.__version__}") or title.lower() == "unreleased" for title in titles
    )
