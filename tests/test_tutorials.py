"""The tutorials, the guide to extending and the notebooks do what they say: every block of code in them is run.

A page is run as a reader would, from top to bottom in an empty folder:

| block                                  | what becomes of it                                                        |
|----------------------------------------|---------------------------------------------------------------------------|
| any whose first line is `# file: NAME` | it is written to that file                                                |
| sh                                     | bash runs it; all of a page are one session, and a failure ends it        |
| python                                 | a Python of its own runs it, warnings as errors                           |
| text                                   | it must be what the block before it printed                               |

In a text block `…` stands for anything within a line, and alone on a line for any lines. Whole numbers must be equal;
others may differ by rounding, since machines add in different orders.
"""

import contextlib
import functools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tacit.cli.app import app

ROOT = Path(__file__).parents[1]
ONE_TABLE, MANY_SITES, NETWORK, EXTEND = (
    ROOT / "docs" / name
    for name in ("tutorials/one-table.md", "tutorials/many-sites.md", "tutorials/network.md", "extend.md")
)
PAGES = (ONE_TABLE, MANY_SITES, NETWORK, EXTEND)
NOTEBOOKS = tuple(sorted((ROOT / "examples").glob("*.ipynb")))
MADE_BY_THE_BUILD = {"api/commands.md"}
PORT = "8102"  # as pages have it; runs side by side take others
TAG = "TACIT_PAGE"  # in the environment of every process of a page: by it they are found, and ended
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w])")


# --- Pages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block of code, the line it begins at, and what the page says it prints."""

    language: str
    text: str
    line: int
    printed: str | None = None

    @property
    def file(self) -> str | None:
        """The name that its first line gives it."""
        found = re.match(r"# file: (\S+)\n", self.text)
        return found and found[1]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, each with the text block that follows it."""
    found: list[Block] = []
    for match in re.finditer(r"^```(.*)\n((?:(?!```).*\n)*)```$", page, flags=re.MULTILINE):
        language, text, line = match[1].strip(), match[2], page.count("\n", 0, match.start()) + 1
        if language == "text":
            assert found, f"line {line}: what is this the output of?"
            assert found[-1].printed is None, f"line {line}: a second output of the block at line {found[-1].line}"
            found[-1] = Block(found[-1].language, found[-1].text, found[-1].line, text)
            continue
        assert language in ("sh", "python", "toml"), f"line {line}: a block of {language!r} would not be run"
        found.append(Block(language, text, line))
        assert language != "toml" or found[-1].file, f"line {line}: TOML without a name; begin it with # file: NAME"
    return found


def script_of(blocks: list[Block], mark: str) -> str:
    """The page as one bash script, which prints a mark before each block."""
    lines = ["set -eu"]
    for place, block in enumerate(blocks):
        lines.append(f"echo {mark}{place}")
        if block.file:
            lines += [f"mkdir -p {shlex.quote(os.path.dirname(block.file) or '.')}"]
            lines += [f"cat > {shlex.quote(block.file)} <<'{mark}'", block.text.rstrip("\n"), mark]
        elif block.language == "python":
            lines += [f"python -W error - <<'{mark}'", block.text.rstrip("\n"), mark]
        else:
            lines.append(block.text)
    return "\n".join([*lines, f"echo {mark}{len(blocks)}"])


def follow(page: str, folder: Path, timeout: float = 300.0) -> None:
    """Run a page in a folder; the first block that fails, or prints something else, is an AssertionError."""
    mark = f"mark-{uuid.uuid4().hex}-"
    page = page.replace(PORT, free_port()) if PORT in page else page
    blocks = blocks_of(page)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
        TAG: mark,
    }
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output, no_process_left(mark):
        process = subprocess.Popen(
            ["bash", "-c", script_of(blocks, mark)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        code = process.poll()
    process.wait()
    parts = re.split(rf"^{mark}\d+\n", log.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for block, part, following in zip(blocks, parts, [*parts[1:], None], strict=False):
        if following is None:
            why = f"took longer than {timeout:g} s" if code is None else f"ended with exit code {code}"
            raise AssertionError(f"the block at line {block.line} {why}:\n{block.text}\n{part[-4000:]}")
        if block.printed is not None and (fault := difference(block.printed, part)):
            raise AssertionError(f"the block at line {block.line} printed something else: {fault}\n{part[-4000:]}")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def no_process_left(mark: str) -> Iterator[None]:
    """End all that a page has begun, whatever session it is in."""
    try:
        yield
    finally:
        end = time.monotonic() + 20
        while time.monotonic() < end and (left := list(family(mark))):
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(left, timeout=1)


def family(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TAG) == mark:
                yield process


# --- What a page promises ----------------------------------------------------------------------------------------


def difference(promised: str, printed: str) -> str:
    """What is promised and was not printed, or nothing."""
    left = [line for line in printed.splitlines() if line.strip()]
    pieces: list[list[str]] = [[]]
    for line in promised.splitlines():
        if line.strip() == "…":
            pieces.append([])
        elif line.strip():
            pieces[-1].append(line)
    at = 0
    for place, piece in enumerate(pieces):
        is_first, is_last = place == 0, place == len(pieces) - 1
        starts = [len(left) - len(piece)] if is_last and piece and not is_first else range(at, len(left) + 1)
        starts = [0] if is_first else starts
        fits = (start for start in starts if start >= at and all_alike(piece, left[start : start + len(piece)]))
        start = next(fits, None)
        if start is None:
            return f"expected {piece!r}"
        at = start + len(piece)
    return "" if at == len(left) or not pieces[-1] else f"expected nothing after {pieces[-1]!r}"


def all_alike(promised: list[str], printed: list[str]) -> bool:
    return len(promised) == len(printed) and all(map(alike, promised, printed))


def alike(promised: str, printed: str) -> bool:
    """Whether a line is the promised one, but for rounding and for what `…` stands for."""
    numbers: list[str] = NUMBER.findall(promised)
    texts = NUMBER.split(promised)
    patterns = [re.sub(r"(\\ )+", r"\\s+", re.escape(" ".join(text.split(" ")))).replace("…", ".*") for text in texts]
    found = re.fullmatch(rf"({NUMBER.pattern})".join(patterns).rstrip() + r"\s*", printed.rstrip() + " ")
    return found is not None and all(map(near, numbers, found.groups()))


def near(promised: str, printed: str) -> bool:
    if re.fullmatch(r"-?\d+", promised):
        return promised == printed
    digits = re.match(r"-?\d+(?:\.(\d+))?(?:e(-?\d+))?", promised)
    assert digits is not None
    last = 10.0 ** (int(digits[2] or 0) - len(digits[1] or ""))
    return abs(float(promised) - float(printed)) <= max(2.5 * last, 0.01 * abs(float(promised)))


# --- Pages and notebooks, run ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_table(tmp_path: Path):
    follow_page(ONE_TABLE, tmp_path)


@pytest.mark.slow
def test_many_sites(tmp_path: Path):
    follow_page(MANY_SITES, tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_three_sites_over_the_network(tmp_path: Path):
    pytest.importorskip("nvflare")
    follow_page(NETWORK, tmp_path)


def follow_page(path: Path, folder: Path) -> None:
    """A page in an empty folder, for as long as a busy machine may need."""
    (folder / "page").mkdir()
    follow(path.read_text(encoding="utf-8"), folder / "page", timeout=1500)


SKELETONS = ["a model", "a solver", pytest.param("an engine", marks=pytest.mark.slow)]


@pytest.mark.parametrize("what", SKELETONS)
def test_each_skeleton_of_the_guide_runs(what: str, capsys: pytest.CaptureFixture[str]):
    """In this process, as strict about types as all tests are: what it makes may become a part of tacit."""
    page = EXTEND.read_text(encoding="utf-8")
    title = f"## {what.capitalize()}\n"
    start = page.index(title)
    section = page[start : page.find("\n## ", start)] + "\n"
    (block,) = blocks_of(section)
    exec(compile(block.text, f"docs/extend.md, {what}", "exec"), {"__name__": "page"})
    assert difference(block.printed or "", capsys.readouterr().out) == ""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_warns_of_nothing(path: Path, tmp_path: Path):
    run_notebook(path, tmp_path)


def run_notebook(path: Path, folder: Path) -> None:
    """Run a notebook in a kernel of its own; an error, or a word on its standard error, is an AssertionError."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    # Not by TCP: whatever looks at the machine's ports would end up in the notebook.
    config = Config({"KernelManager": {"transport": "ipc", "ip": str(folder / "kernel")}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter, about itself
        try:
            where = {"metadata": {"path": str(folder)}}
            NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where, config=config).execute()
        except CellExecutionError as error:
            raise AssertionError(f"{path.name}: {error}") from None
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type == "stream", f"{path.name}: {output.output_type} in\n{cell.source}"
            assert output.name == "stdout", f"{path.name} says on standard error: {output.text}"


# --- What can be seen without running it -------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_pages_blocks_can_be_read_and_its_files_are_named(path: Path):
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.text, f"{path.name}:{block.line}", "exec")
        elif block.language == "toml":
            tomllib.loads(block.text)


def commands_of(page: str) -> list[str]:
    """All commands of a page, also those within sentences, which are not run."""
    shell = [block.text.replace("\\\n", " ") for block in blocks_of(page) if block.language == "sh"]
    return [line for text in shell for line in re.findall(r"(?m)^\s*(tacit .*)$", text)] + re.findall(
        r"`(tacit [^`]*)`", page
    )


def unknown(command: str) -> list[str]:
    """What of a command does not exist: the command itself, or options."""
    words = shlex.split(re.split(r"[>|&]", command)[0], comments=True)[1:]
    named = [word for word in words[:2] if re.fullmatch("[a-z]+", word)]
    told = help_of(tuple(named[:1]))
    if "COMMAND [ARGS]" in told:  # a group
        told = help_of(tuple(named))
    if not told:
        return [" ".join(named)]
    return [option for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)) if option not in told]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_exists_with_its_options(path: Path):
    commands = commands_of(path.read_text(encoding="utf-8"))
    assert commands or path == EXTEND
    assert {command: unknown(command) for command in commands if unknown(command)} == {}


@pytest.mark.parametrize(
    ("command", "lacking"),
    [("tacit fits a.csv", "fits"), ("tacit fit a.csv --epsilom 1", "--epsilom"), ("tacit network leave x", "leave")],
)
def test_a_command_or_option_that_does_not_exist_is_reported(command: str, lacking: str):
    page = f"Say `{command}`.\n\n```sh\n{command} --out x > log &\n```\n"
    assert len(commands_of(page)) == 2
    assert all(lacking in " ".join(unknown(found)) for found in commands_of(page))


@functools.cache
def help_of(names: tuple[str, ...]) -> str:
    """The help of a command; nothing if there is none of this name."""
    done = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    return done.output if done.exit_code == 0 else ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_of_a_page_lead_somewhere(path: Path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists() or target in MADE_BY_THE_BUILD, target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small(path: Path):
    assert path.stat().st_size < 30_000


# --- A runner that lets nothing pass -----------------------------------------------------------------------------

SOUND = """
```python
# file: deep/make.py
from pathlib import Path

Path("made.txt").write_text("3 sites, 0.1234\\n")
print("made")
```

```sh
python deep/make.py
ls *.txt
false || echo "exit code $?"
sleep 60 &
```

```text
made
…
exit code 1
```

```toml
# file: study.toml
rounds = 5
```

```python
import tomllib
from pathlib import Path

print(tomllib.loads(Path("study.toml").read_text())["rounds"], "rounds")
```

```sh
kill %1
cat made.txt
```

```text
3 sites, 0.1236
```
"""


@pytest.mark.parametrize(
    ("sound", "broken", "words"),
    [
        ("python deep/make.py", "python deep/make.py; exit 3", "line 10 ended with exit code 3"),
        ('print("made")', 'raise ValueError("planted")', "line 10 ended with exit code 1"),
        ("ls *.txt", "ls lacking.txt", "line 10 ended with exit code 2"),
        ("made\n…", "made\nreport.html\n…", "line 10 printed something else"),
        ("exit code 1\n```", "exit code 1\nmore\n```", "line 10 printed something else"),
        ("3 sites, 0.1236", "4 sites, 0.1236", "printed something else"),
        ("3 sites, 0.1236", "3 sites, 0.1336", "printed something else"),
        ("3 sites, 0.1236", "3 clinics, 0.1236", "printed something else"),
        ("3 sites, 0.1236", "…, 0.1236 more", "printed something else"),
        ("kill %1", "sleep 60", "took longer than 3 s"),
        ("import tomllib", "import warnings\nimport tomllib\nwarnings.warn('planted')", "ended with exit code 1"),
    ],
)
def test_a_page_that_does_not_do_what_it_says_is_reported(tmp_path: Path, sound: str, broken: str, words: str):
    assert SOUND.count(sound) >= 1
    page = broken.join(SOUND.rsplit(sound, 1))
    (tmp_path / "page").mkdir()
    with pytest.raises(AssertionError, match=words):
        follow(page, tmp_path / "page", timeout=3 if "longer" in words else 60)


def test_a_sound_page_is_not_reported_and_leaves_no_process(tmp_path: Path):
    (tmp_path / "page").mkdir()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    follow(SOUND, tmp_path / "page", timeout=60)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("page", ["```ini\na = 1\n```\n", "```toml\na = 1\n```\n", "```text\nsaid\n```\n"])
def test_a_block_that_would_not_be_run_is_reported(page: str):
    with pytest.raises(AssertionError, match="line 1: "):
        blocks_of(page)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["1 / 0", "import warnings; warnings.warn('planted')", "3"])
def test_a_notebook_that_fails_warns_or_shows_what_it_did_not_print_is_reported(tmp_path: Path, source: str):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    nbformat.write(new_notebook(cells=[new_code_cell(source)]), tmp_path / "planted.ipynb")
    with pytest.raises(AssertionError, match=r"planted\.ipynb"):
        run_notebook(tmp_path / "planted.ipynb", tmp_path)
