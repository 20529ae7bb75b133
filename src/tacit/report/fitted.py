"""What `tacit fit` leaves behind: the result, the posterior, the statement, a forest plot, and a page of all of it."""

import base64
import json
import math
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.posterior import Posterior
from tacit.report import forest

MOST_PRINTED, PRINTED = 30, 20  # coefficients in the terminal: all up to the first, else the clearest of them
HEADERS = ("coefficient", "mean", "deviation", "low", "high")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.15rem 0.8rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; overflow-wrap: anywhere; }}
tr.clear td {{ font-weight: 600; }}
pre {{ white-space: pre-wrap; background: #f6f6f6; padding: 1rem; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{lead}</p>
<h2>Coefficients</h2>
<p>{intervals}; in bold where the interval leaves out 0.</p>
<table>
<thead><tr>{headers}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
{picture}<h2>Privacy</h2>
<pre>{statement}</pre>
<p>Made by tacit {version}.</p>
</body>
</html>
"""


def write(out: Path, posterior: Posterior, result: dict[str, Any], level: float) -> dict[str, Any]:
    """Write all files into the folder `out`; the result, with its rows and the files' names."""
    files = ["result.json", "posterior.json", "statement.txt", "statement.json"]
    rows = posterior.summary(level)
    if not all(math.isfinite(row["mean"]) and math.isfinite(row["deviation"]) for row in rows):
        raise ValueError("the fit did not end in finite numbers; expected settings (clip, prior) of ordinary size")
    result = {**result, "plan": posterior.plan, "summary": rows, "files": files}
    try:
        posterior.save(out / "posterior.json")
        (out / "statement.txt").write_text(posterior.statement_text, encoding="utf-8")
        words = json.dumps(posterior.statement, indent=2, ensure_ascii=False)
        (out / "statement.json").write_text(words + "\n", encoding="utf-8")
        picture = out / "forest.png"
        if forest.draw(posterior, picture, level):
            files.append(picture.name)
        else:
            picture.unlink(missing_ok=True)  # an earlier fit's
        files.append("report.html")
        (out / "report.html").write_text(_page(posterior, result, level, picture), encoding="utf-8")
        words = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
        (out / "result.json").write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None
    return result


def show(out: Path, posterior: Posterior, result: dict[str, Any], level: float) -> None:
    """Print the coefficients, the first lines of the statement, and where the files are."""
    console = Console()
    rows, title = result["summary"], _title(result)
    if len(rows) > MOST_PRINTED:
        rows = sorted(rows, key=lambda row: -abs(row["mean"]) / row["deviation"])[:PRINTED]
        title += f"\nthe {PRINTED} of {len(result['summary'])} coefficients that are clearest from 0"
    table = Table(title=Text(title), caption=Text(_intervals(posterior, level)))
    for j, name in enumerate(HEADERS):
        table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", no_wrap=j > 0)
    for row in rows:
        table.add_row(Text(row["name"]), *_cells(row))
    console.print(table)
    lines = posterior.statement_text.splitlines()
    end = next((j for j, line in enumerate(lines) if line.startswith("Accountant:")), len(lines))
    seeded = [line for line in lines if line.startswith("Randomness: SEEDED")]
    console.print(Text("\n".join(["", *lines[:end], *seeded]).rstrip()))
    console.print(Text(f"\nWritten to {out}: {', '.join(result['files'])}"))


def _title(result: dict[str, Any]) -> str:
    unit = "persons" if "persons" in result else "records"
    return f"A {result['model']} regression of {result['target']} on {result[unit]:,} {unit}"


def _intervals(posterior: Posterior, level: float) -> str:
    noise = " that leave out the privacy noise" if forest.lacks_noise(posterior) else ""
    return f"low, high: {100 * level:g} % intervals{noise}, in the units of the data"


def _cells(row: dict[str, Any]) -> list[str]:
    """Mean, deviation and ends, to two digits of the deviation."""
    deviation = row["deviation"]
    decimals = max(0, 1 - math.floor(math.log10(deviation))) if deviation > 0 else 3
    form = f"z.{decimals}f" if decimals <= 6 and deviation < 1e6 else ".3g"
    return [format(row[part], form) for part in ("mean", "deviation", "low", "high")]


def _page(posterior: Posterior, result: dict[str, Any], level: float, picture: Path) -> str:
    lines = []
    for row in result["summary"]:
        kind = ' class="clear"' if row["low"] > 0 or row["high"] < 0 else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (row["name"], *_cells(row)))
        lines.append(f"<tr{kind}>{cells}</tr>")
    image = ""
    if picture.exists():
        content = base64.b64encode(picture.read_bytes()).decode()
        image = (
            "<h2>Picture</h2>\n<p>For numbers, the effect of the change in brackets; without the intercept.</p>\n"
            f'<img alt="Coefficients and their intervals" src="data:image/png;base64,{content}">\n'
        )
    return _PAGE.format(
        title=escape(_title(result)),
        lead=escape(posterior.statement_text.splitlines()[0]),
        intervals=escape(_intervals(posterior, level)),
        headers="".join(f"<th>{name}</th>" for name in HEADERS),
        rows="\n".join(lines),
        picture=image,
        statement=escape(posterior.statement_text),
        version=escape(result["version"]),
    )
