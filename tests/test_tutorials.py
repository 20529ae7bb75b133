"""The tutorials, the guide to extending and the notebooks do what they say: every block of code in them is run.

A page is run as a reader would, from top to bottom in an empty folder:

| block                                        | what becomes of it                                                     |
|----------------------------------------------|------------------------------------------------------------------------|
| any whose first line is `# file: NAME`       | it is written to that file                                             |
| sh                                           | bash runs it; all of a page are one session, and a failure ends it     |
| python                                       | a Python of its own runs it, warnings as errors                        |
| text                                         | it must be what the block before it printed                            |

In a text block `…` stands for anything within a line, and alone on a line for any lines. Whole numbers must be equal;
others may differ by rounding, since machines add in different orders.
"""

import contextlib
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

from tacit.cli import app

ROOT = Path(__file__).parents[1]
ONE_TABLE, MANY_SITES, NETWORK, EXTEND = (
    ROOT / "docs" / name
    for name in ("tutorials/one-table.md", "tutorials/many-sites.md", "tutorials/network.md", "extend.md")
)
PAGES = (ONE_TABLE, MANY_SITES, NETWORK, EXTEND)
NOTEBOOKS = tuple(sorted((ROOT / "examples").glob("*.ipynb")))
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
