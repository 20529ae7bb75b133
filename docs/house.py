"""The rooms of tacit: who may import whom, declared once, and the drawing that opens docs/design.md.

`python docs/house.py` draws it anew, from the imports. `tests/test_architecture.py` keeps the rules by a walk over the
source, and fails when the drawing is out of date.

A room is a package directly under `src/tacit`, or `src/tacit_reproduce`. Names of modules are written without "tacit.";
the package itself is `index`.
"""

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "house.svg"
COMMAND = "python docs/house.py"
PACKAGES = ("tacit", "tacit_reproduce")
INDEX = "index"
NEAR = 100  # lines: a number in the drawing is rounded to this, and stays until it is wrong by as much


# --- The rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """may_import: rooms and modules of other rooms. Every room may also import itself and `basics`."""

    name: str
    about: str
    may_import: str = ""


# From the top floor to the ground. A room may only import rooms on lower floors, or to its left on its own floor.
FLOORS: tuple[tuple[str, tuple[Room, ...]], ...] = (
    (
        "What people use",
        (
            Room(
                "estimators",
                "Regressions as in scikit-learn.",
                "posterior.posterior privacy.events study tables.standardising",
            ),
            Room(
                "tacit_reproduce",
                "Figures of the sources, run again.",
                "data engines families federated index models planning posterior.diagnostics "
                "privacy report.progress report.style solvers study tables",
            ),
            Room(
                "cli",
                "The commands, a file for each.",
                "audit data families federated.secure_terms files index links models network planning "
                "posterior.posterior privacy report solvers study tables",
            ),
        ),
    ),
    (
        "Before, after and between machines",
        (
            Room(
                "audit",
                "Attacks on tacit's claims; lower bounds on ε.",
                "engines families federated.algorithm federated.held_out federated.simulated files.study_file privacy "
                "study.phases study.plan study.setup study.sites tables.scaling tables.table",
            ),
            Room(
                "planning",
                "What a budget buys; learned policies.",
                "data.simulated federated.secure_terms federated.simulated files.task_file index links privacy study "
                "tables",
            ),
            Room(
                "report",
                "Pages and figures, made of released values.",
                "audit.runs index links planning.forecast posterior.posterior privacy.accounting "
                "privacy.statement study.coordinator study.host study.statements",
            ),
            Room(
                "network",
                "Sites on other machines, with their own limits.",
                "engines.coordinator federated files index privacy report.dashboard report.studied study tables",
            ),
        ),
    ),
    (
        "One site, many sites",
        (
            Room(
                "study",
                "One site or many, in one call.",
                "engines families federated links posterior privacy solvers tables",
            ),
            Room(
                "files",
                "Files that users write.",
                "data links privacy.events privacy.filters privacy.ledger study tables",
            ),
        ),
    ),
    (
        "Records in, rounds, results out",
        (
            Room("posterior", "Intervals, predictions, diagnostics.", "families links"),
            Room("tables", "Files into numbers, by public facts.", "links"),
            Room("data", "Public data sets; stand-in records.", "links tables.table"),
            Room(
                "federated",
                "What sites compute and send.",
                "families privacy.allowance privacy.clipping privacy.events privacy.ledger privacy.ledger_file "
                "privacy.mechanism privacy.randomness privacy.released privacy.shared solvers.base tables.scaling",
            ),
            Room(
                "engines",
                "Who is asked, and when. No mathematics.",
                "federated.algorithm federated.messages",
            ),
        ),
    ),
    (
        "Mathematics and privacy",
        (
            Room("families", "Densities, by their natural parameters."),
            Room("models", "Prior, and likelihood of one record.", "families"),
            Room("links", "Kinds of regression, declared once.", "models"),
            Room("privacy", "The only way to records: clip, noise, price, ledger."),
            Room(
                "solvers",
                "From private records to a released posterior.",
                "families privacy.clipping privacy.mechanism privacy.released",
            ),
        ),
    ),
    ("Ground", (Room("basics", "Durable files, schemas, plain data, words. Every room may use it."),)),
)

# Rows of their own for modules, in place of their room's: what is here, and nothing else.
FINER: dict[str, str] = {
    # Public names, which are imported at their first use.
    INDEX: "audit basics.lazy data estimators families links models posterior privacy solvers study tables",
    "__main__": "cli.app",
    # The parts of the theorem do not know each other; `mechanism` couples them.
    "privacy.events privacy.ledger_file privacy.losses privacy.randomness": "",
    "privacy.checks privacy.parts": "privacy.events",
    "privacy.clipping": "basics.trees",
    "privacy.noise": "basics.trees privacy.randomness",
    "privacy.sampling": "privacy.randomness",
    "privacy.released": "privacy.events privacy.randomness",
    "privacy.mechanism": "basics.trees privacy.clipping privacy.events privacy.noise privacy.randomness "
    "privacy.released privacy.sampling",
    # A price is made of events: no accountant sees a mechanism, a release or a ledger.
    "privacy.accountants": "privacy.accountants privacy.checks privacy.events privacy.losses privacy.parts",
    "privacy.accounting": "privacy.accountants privacy.checks privacy.events privacy.losses privacy.parts",
    "posterior.diagnostics": "basics.trees families",
    # Of tables, `scaling` alone reads records, and `standardising` alone knows models and posteriors.
    "tables.scaling": "privacy.clipping privacy.mechanism privacy.released",
    "tables.standardising": "basics.plain families links posterior.posterior posterior.site_effects tables.scaling "
    "tables.table",
    # What moves, and the protocol of secure sums, know nothing of methods.
    "federated.algorithm": "basics.trees privacy.mechanism privacy.released",
    "federated.messages": "basics.trees families privacy.events",
    "federated.secure_sum": "",
    "engines.schedule": "",
    "study.plan": "basics links study.own_models study.policy",
    # The channel carries bytes: it knows no study, no message and no number.
    "network.certificates": "",
    "network.channel": "network.certificates",
    # A report is made of released values: nothing that could read a record, a store or a ledger is in reach.
    "report.figures report.findings report.forest report.page report.site_effects report.style": "basics.durable "
    "basics.methods links posterior.posterior privacy.statement report.figures report.findings report.forest "
    "report.site_effects report.style",
    "cli.options": "links privacy.accountants tacit_reproduce",
    "cli.reproduce": "cli tacit_reproduce",
}

# Imports against the rules that are known, by importing and imported module. A test fails when one is no longer needed.
EXCEPTIONS: set[tuple[str, str]] = set()

ROOMS = {room.name: room for _, rooms in FLOORS for room in rooms}
ORDER = [room.name for _, rooms in reversed(FLOORS) for room in rooms]  # each imports only what comes before it
ROWS: dict[str, tuple[str, ...]] = {name: (name, "basics", *room.may_import.split()) for name, room in ROOMS.items()}
ROWS |= {module: tuple(row.split()) for modules, row in FINER.items() for module in modules.split()}


# --- What is imported --------------------------------------------------------------------------------------------


def short(module: str) -> str:
    """A module's name without "tacit."

    >>> short("tacit.cli.app"), short("tacit"), short("tacit_reproduce.liu")
    ('cli.app', 'index', 'tacit_reproduce.liu')
    """
    return INDEX if module == "tacit" else module.removeprefix("tacit.")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return short(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def files() -> dict[str, Path]:
    """Every module, by its name."""
    return {name_of(path): path for package in PACKAGES for path in sorted((ROOT / "src" / package).rglob("*.py"))}


FILES = files()
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}


def room_of(module: str) -> str:
    return module.partition(".")[0]


def is_within(module: str, homes: Collection[str]) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def row_of(module: str) -> str | None:
    """Whose row counts for a module: the longest name that holds it."""
    return max((name for name in ROWS if is_within(module, (name,))), key=len, default=None)


@functools.cache
def imports(module: str, source: str) -> tuple[tuple[int, str], ...]:
    """(line, whole name) of every import, also those inside functions, for type checkers, and by name.

    By name: `importlib.import_module("...")`, and a string that names a module of another room, as "tacit.models.glm"
    or "tacit.models.glm:LogisticRegression", which something imports later.
    """
    return tuple(_imports(module, ast.parse(source)))


def _imports(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if short(whole) in FILES else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = node.value.partition(":")[0]
            is_ours = named.startswith("tacit.") and short(named) in FILES
            if is_ours and room_of(short(named)) != room_of(module):
                yield node.lineno, named


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that `from ... import` names, also where it is relative."""
    if not node.level:
        return node.module or ""
    whole = "tacit" if module == INDEX else module if is_within(module, PACKAGES) else f"tacit.{module}"
    is_package = module in FILES and FILES[module].name == "__init__.py"
    steps = whole.split(".")[: None if is_package else -1]
    return ".".join([*steps[: len(steps) - node.level + 1], *([node.module] if node.module else [])])


def our_imports(module: str, source: str) -> list[tuple[int, str]]:
    """(line, short name) of those of our own modules; a name that is both imported and called counts once a line."""
    return sorted({(line, short(name)) for line, name in imports(module, source) if is_within(name, PACKAGES)})


def links_between_rooms() -> dict[str, set[str]]:
    """Which rooms each room imports, apart from `basics`, itself and the exceptions."""
    found: dict[str, set[str]] = {name: set() for name in ROOMS}
    for module, source in SOURCES.items():
        own = room_of(module)
        for _, name in our_imports(module, source):
            other = room_of(name)
            if own in ROOMS and other in ROOMS and other not in (own, "basics") and (module, name) not in EXCEPTIONS:
                found[own].add(other)
    return found


def sizes() -> dict[str, tuple[int, int]]:
    """The files and lines of each room."""
    found = {}
    for name in ROOMS:
        sources = [source for module, source in SOURCES.items() if room_of(module) == name]
        found[name] = len(sources), sum(source.count("\n") for source in sources)
    return found


# --- Two paths ---------------------------------------------------------------------------------------------------

# Each step: a module, a name in it, and what happens there.
RECORD = (
    ("tables.files", "read_frame", "a row of a file"),
    ("tables.table", "Table", "numbers, by public facts alone"),
    ("study.charging", "ready", "can the ledger pay for it all?"),
    ("privacy.mechanism", "Access", "the only way to records"),
    ("privacy.mechanism", "SubsampledGaussian", "clips, adds noise"),
    ("privacy.released", "Released", "a sum with its receipt"),
    ("solvers.base", "Solver", "from released sums to q"),
    ("posterior.posterior", "Posterior", "in the units of the data"),
    ("report.page", "render", "one page, of released values"),
)
MESSAGE = (
    ("study.coordinator", "coordinate", "begins a phase"),
    ("engines.coordinator", "run", "asks the sites of a round"),
    ("federated.messages", "encode", "the broadcast as bytes"),
    ("network.channel", "Post", "carries it to the site's gate"),
    ("network.site_session", "SiteSession", "the site's own limits"),
    ("federated.responder", "Responder", "price, charge, read, store"),
    ("network.channel", "Connection", "carries the answer back"),
    ("network.remote", "Line", "judges size, encoding, name"),
    ("engines.coordinator", "aggregate", "the next broadcast"),
)


def missing_steps() -> list[str]:
    """Steps of the two paths that are not in the source."""
    found = []
    for module, name, _ in (*RECORD, *MESSAGE):
        body = ast.parse(SOURCES.get(module, "")).body
        names = {getattr(node, "name", None) for node in body}
        names |= {
            target.id
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if name not in names:
            found.append(f"{module}.{name}")
    return found


# --- The drawing -------------------------------------------------------------------------------------------------

WIDTH, MARGIN, GAP = 960, 16, 12
LETTER = 7.1  # of text, in a font that is wide
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 13px }
.page { fill: #ffffff } .floor { fill: #eef1f6 } .box { fill: #ffffff; stroke: #b9c2d2 } .own { fill: #d9dfe9 }
text { fill: #1b2431 } .quiet { fill: #4b586c } .name { font-size: 16px; font-weight: 700 } .small { font-size: 12px }
.title { font-size: 15px; font-weight: 700 } .strong { font-weight: 600 }
.grid { stroke: #dde3ec } .dot { fill: #34435a } .ring { fill: #ffffff; stroke: #34435a; stroke-width: 1.6 }
.record { fill: #1d5fbf } .message { fill: #a8480b } .number { fill: #ffffff; font-size: 12px; font-weight: 700 }
@media (prefers-color-scheme: dark) {
  .page { fill: #14181f } .floor { fill: #1d232d } .box { fill: #272f3c; stroke: #4a566a } .own { fill: #3a4556 }
  text { fill: #eef2f8 } .quiet { fill: #b7c2d3 } .grid { stroke: #333d4c }
  .dot { fill: #c9d4e5 } .ring { fill: #14181f; stroke: #c9d4e5 }
  .record { fill: #8cbcff } .message { fill: #ffb36b } .number { fill: #14181f }
}
""".strip()


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text x="{x:g}" y="{y:g}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}{where}>{escape(words)}</text>'
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str, radius: float = 6) -> str:
    size = f'width="{width:g}" height="{height:g}" rx="{radius:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>'


def badge(x: float, y: float, number: int, kind: str) -> str:
    """A step's number: in a circle for the record, in a square for the message."""
    shape = (
        f'<circle cx="{x:g}" cy="{y:g}" r="9" class="{kind}"/>'
        if kind == "record"
        else rectangle(x - 9, y - 9, 18, 18, kind, 3)
    )
    return shape + text(x, y + 4.2, str(number), "number", "middle")


def wrapped(words: str, letters: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def box(room: Room, x: float, y: float, width: float, height: float, files: int, lines: int) -> str:
    """A room: its name, what it does, its size, and the steps of both paths that are in it."""
    parts = [f'<g id="room-{room.name}" data-lines="{lines}">', rectangle(x, y, width, height, "box")]
    parts.append(text(x + 10, y + 21, room.name, "name"))
    end = x + width - 15
    for kind, steps in (("message", MESSAGE), ("record", RECORD)):
        for number in reversed([n for n, step in enumerate(steps, 1) if room_of(step[0]) == room.name]):
            parts.append(badge(end, y + 16, number, kind))
            end -= 20
    about = wrapped(room.about, int((width - 18) / LETTER))
    parts += [text(x + 10, y + 41 + 16 * row, line) for row, line in enumerate(about)]
    parts.append(text(x + 10, y + height - 9, f"{files} files, {lines:,} lines", "quiet small"))
    return "\n".join([*parts, "</g>"])


def house(lines: Mapping[str, int]) -> tuple[list[str], float]:
    """The floors with their rooms, under a roof; and where they end."""
    whole = WIDTH - 2 * MARGIN
    parts = [
        f'<path d="M{MARGIN} 66 L{MARGIN + 150} 12 H{WIDTH - MARGIN - 150} L{WIDTH - MARGIN} 66 Z" class="floor"/>',
        text(WIDTH / 2, 36, "import tacit", "name", "middle"),
        text(WIDTH / 2, 55, "The index of public names. Each is imported at its first use.", "", "middle"),
    ]
    y, counted = 74.0, sizes()
    for title, rooms in FLOORS:
        width = (whole - 2 * GAP - GAP * (len(rooms) - 1)) / len(rooms)
        letters = int((width - 18) / LETTER)
        height = 52 + 16 * max(len(wrapped(room.about, letters)) for room in rooms)
        parts.append(rectangle(MARGIN, y, whole, height + 36, "floor"))
        parts.append(text(MARGIN + GAP, y + 18, title, "quiet strong"))
        for place, room in enumerate(rooms):
            x = MARGIN + GAP + place * (width + GAP)
            parts.append(box(room, x, y + 26, width, height, counted[room.name][0], lines[room.name]))
        y += height + 42
    return parts, y


def matrix(top: float) -> list[str]:
    """Who imports whom: a row imports its columns."""
    names, step, left = [name for name in ORDER if name != "basics"], 17, MARGIN + 112
    found, first = links_between_rooms(), top + 118
    parts = [text(MARGIN, top + 16, "Who imports whom", "title")]
    rule = ("Rooms import only", "rooms below them,", "or to their left.")
    parts += [text(MARGIN, top + 38 + 16 * row, words, "quiet small") for row, words in enumerate(rule)]
    for place, name in enumerate(names):
        x = left + step * place + step / 2
        parts.append(f'<g transform="rotate(-66 {x:g} {first - 6:g})">{text(x, first - 2, name, "small")}</g>')
        parts.append(f'<path d="M{x:g} {first:g} V{first + step * len(names):g}" class="grid"/>')
    for row, name in enumerate(reversed(names)):
        y = first + step * row + step / 2
        parts.append(text(left - 6, y + 4, name, "small", "end"))
        parts.append(f'<path d="M{left:g} {y:g} H{left + step * len(names):g}" class="grid"/>')
        parts.append(rectangle(left + step * names.index(name) + 3, y - 6, 12, 12, "own", 2))
        for other in sorted(found[name], key=names.index):
            parts.append(dot(left + step * names.index(other) + step / 2, y, other in ROWS[name]))
    y = first + step * len(names) + 20
    parts += [dot(MARGIN + 6, y - 4, True), text(MARGIN + 17, y, "imports", "small")]
    parts += [
        dot(MARGIN + 78, y - 4, False),
        text(MARGIN + 89, y, "imports some modules, which docs/house.py names", "small"),
    ]
    return parts


def dot(x: float, y: float, is_whole: bool) -> str:
    size, kind = (5, "dot") if is_whole else (4.2, "ring")
    return f'<circle cx="{x:g}" cy="{y:g}" r="{size}" class="{kind}"/>'


def path(title: str, steps: tuple[tuple[str, str, str], ...], kind: str, x: float, top: float) -> list[str]:
    parts = [text(x, top + 16, title, "title")]
    for row, (module, name, words) in enumerate(steps):
        y = top + 38 + 22 * row
        parts.append(badge(x + 9, y, row + 1, kind))
        where = f'<tspan class="strong">{escape(f"{module}.{name}")}</tspan>'
        what = f'<tspan class="quiet" dx="8">{escape(words)}</tspan>'
        parts.append(f'<text x="{x + 26:g}" y="{y + 4.5:g}" class="small">{where}{what}</text>')
    return parts


def drawn(lines: Mapping[str, int]) -> str:
    """The picture, with these numbers of lines."""
    if missing_steps():
        raise ValueError(f"{', '.join(missing_steps())} of the paths in docs/house.py is not in src; correct the path")
    parts, y = house(lines)
    parts += matrix(y + 10)
    parts += path("The path of one record", RECORD, "record", 502, y + 10)
    parts += path("The path of one message", MESSAGE, "message", 502, y + 10 + 38 + 22 * len(RECORD) + 14)
    height = y + 10 + 118 + 17 * (len(ORDER) - 1) + 36
    words = "Rooms of tacit in floors, who imports whom, and the paths of one record and of one message"
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    page = f'<rect width="{WIDTH}" height="{height:g}" rx="10" class="page"/>'
    return "\n".join([head, f"<title>{words}</title>", f"<style>\n{STYLE}\n</style>", page, *parts, "</svg>", ""])


def current(old: str) -> str:
    """The picture of the source as it is. Numbers of lines in `old` stay while they are near."""
    before = {name: int(lines) for name, lines in re.findall(r'id="room-(\w+)" data-lines="(\d+)"', old)}
    lines = {}
    for name, (_, now) in sizes().items():
        was = before.get(name, -NEAR)
        lines[name] = was if abs(was - now) < NEAR else max(NEAR, round(now / NEAR) * NEAR)
    return drawn(lines)


def main() -> None:
    old = PICTURE.read_text(encoding="utf-8") if PICTURE.exists() else ""
    PICTURE.write_text(current(old), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
