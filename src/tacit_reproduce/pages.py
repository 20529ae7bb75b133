"""Results as pages of the documentation, written by the run that made them: NAME.md, NAME.png and index.md."""

import datetime
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import tacit
from tacit_reproduce import REPRODUCTIONS, WORDS, Result, cells

COLOURS, MOST_WIDTH = 64, 1600  # of a page's picture: few and not wide, so that files are small
_MADE = re.compile(r"^\| made \| (?P<date>\S+), tacit (?P<version>\S+) \|$", re.MULTILINE)


def write(folder: Path, name: str, outcome: Result, seeds: int, seconds: float, notes: Sequence[str]) -> Path:
    """Write the page of a run that has just ended and its picture, and the index anew; the page's path."""
    from tacit.report.style import save

    chosen = REPRODUCTIONS[name]
    command = f"tacit reproduce {name}" + (f" --seeds {seeds}" if seeds != chosen.seeds else "")
    stack = ", ".join(f"{package} {metadata.version(package)}" for package in ("jax", "numpy", "dp-accounting"))
    runs = f"{seeds}, the full run" if seeds == chosen.seeds else f"{seeds}; the full run has {chosen.seeds}"
    facts = {
        "source": chosen.source,
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, tacit {tacit.__version__}",
        "with": f"Python {platform.python_version()}, {stack}",
        "seeds": runs if seeds else "none: nothing is random",
        "took": f"{seconds:.0f} s by the wall clock",
        "again": f"`{command}`",
    }
    text = [
        f"# {chosen.title}",
        f"This page was written by `{command} --page`. Nothing in it was typed by hand.",
        _table(["run", ""], list(facts.items())),
        f"![{chosen.title}]({name}.png)",
        _table(list(outcome.shown.values()), cells(outcome), [key not in WORDS for key in outcome.shown]),
        "\n".join(f"- {_inert(note)}" for note in notes),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    save(outcome.axes, folder / f"{name}.png")
    _shrink(folder / f"{name}.png")
    path = folder / f"{name}.md"
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    (folder / "index.md").write_text(index(folder), encoding="utf-8")
    return path


def index(folder: Path) -> str:
    """The page over all reproductions: with the date of each page in `folder`."""
    made = {name: _MADE.search(_text(folder / f"{name}.md")) for name in REPRODUCTIONS}
    sections = []
    for source in dict.fromkeys(found.source for found in REPRODUCTIONS.values()):
        rows = []
        for name, found in REPRODUCTIONS.items():
            if found.source == source:
                match, title = made[name], _inert(found.title)
                when = f"{match['date']}, {match['version']}" if match else "no page"
                rows.append((f"`tacit reproduce {name}`", f"[{title}]({name}.md)" if match else title, when))
        sections.append(f"## {source}\n\n{_table(('command', 'what', 'page made, version'), rows)}\n")
    return (
        "# Results\n\n"
        "Published figures, run again and compared with the originals. Each page was written by the command beside\n"
        "it with `--page docs/results`, which also wrote this list. A command without a page works too, but its full\n"
        "run is longer. `--quick` runs a smaller version within half a minute.\n\n"
        f"{sum(match is not None for match in made.values())} of {len(made)} have a page.\n\n" + "\n".join(sections)
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """A Markdown table; columns that are `right` are right-aligned, all others left-aligned."""
    rule = ["---:" if side else "---" for side in right] or ["---"] * len(headers)
    return "\n".join(f"| {' | '.join(map(_inert, line))} |" for line in (headers, rule, *rows))


def _inert(text: str) -> str:
    """Escape text outside of code for a table: nothing in it ends a cell or becomes a formula."""
    return text.replace("|", "\\|").replace("$", "\\$").replace("\n", " ")


def _shrink(path: Path) -> None:
    """The same picture, no wider than a page and with few colours."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB")
    small.thumbnail((MOST_WIDTH, MOST_WIDTH))
    small.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
