"""One plain page for every result: no scripts, nothing loaded from elsewhere, readable in print."""

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tacit.posterior import Posterior
from tacit.report import forest

MOST_LETTERS = 40  # of a cell on the right; longer ones are sentences
HEADERS = ("coefficient", "mean", "deviation", "low", "high")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.15rem 0.8rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; overflow-wrap: anywhere; }}
td.words {{ text-align: left; }}
tr.clear td {{ font-weight: 600; }}
pre {{ white-space: pre-wrap; background: #f6f6f6; padding: 1rem; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{lead}</p>
{body}
<p>Made by tacit {version}.</p>
</body>
</html>
"""


def page(title: str, lead: str, sections: Iterable[str], version: str) -> str:
    """The whole page. Title, lead and version are text; sections are HTML, made by the functions below."""
    body = "\n".join(section for section in sections if section)
    return _PAGE.format(title=escape(title), lead=escape(lead), body=body, version=escape(version))


def section(heading: str, *parts: str) -> str:
    """A heading and what stands below it, in HTML."""
    return "\n".join([f"<h2>{escape(heading)}</h2>", *(part for part in parts if part)])


def paragraph(words: str) -> str:
    """Text as a paragraph."""
    return f"<p>{escape(words)}</p>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], clear: Sequence[bool] | None = None) -> str:
    """Text as a table, the first column its names; rows that are `clear` stand in bold."""
    lines = []
    for place, (name, *row) in enumerate(rows):
        kind = ' class="clear"' if clear is not None and clear[place] else ""
        kinds = (' class="words"' if len(cell) > MOST_LETTERS else "" for cell in row)
        cells = (f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr{kind}><td>{escape(name)}</td>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    return "\n".join(["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>", *lines, "</tbody>", "</table>"])


def picture(path: Path, words: str) -> str:
    """A PNG file inside the page, or nothing if it is not there."""
    if not path.exists():
        return ""
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{content}">'


def coefficients(posterior: Posterior, rows: Sequence[dict[str, Any]], level: float, forest_plot: Path) -> list[str]:
    """The sections on coefficients: a table, and the forest plot if it was drawn."""
    words = paragraph(f"{intervals(posterior, level)}; in bold where the interval leaves out 0.")
    clear = [row["low"] > 0 or row["high"] < 0 for row in rows]
    drawn = picture(forest_plot, "Coefficients and their intervals")
    found = [section("Coefficients", words, table(HEADERS, [(row["name"], *cells(row)) for row in rows], clear))]
    if drawn:
        what = "For numbers, the effect of the change in brackets; without the intercept."
        found.append(section("Picture", paragraph(what), drawn))
    return found


def statement(text: str) -> str:
    """The section on privacy."""
    return section("Privacy", f"<pre>{escape(text)}</pre>")


def intervals(posterior: Posterior, level: float) -> str:
    """What the columns low and high are."""
    noise = " that leave out the privacy noise" if forest.lacks_noise(posterior) else ""
    return f"low, high: {100 * level:g} % intervals{noise}, in the units of the data"


def cells(row: dict[str, Any]) -> list[str]:
    """Mean, deviation and ends of a coefficient, to two digits of the deviation."""
    deviation = row["deviation"]
    decimals = max(0, 1 - math.floor(math.log10(deviation))) if deviation > 0 else 3
    form = f"z.{decimals}f" if decimals <= 6 and deviation < 1e6 else ".3g"
    return [format(row[part], form) for part in ("mean", "deviation", "low", "high")]
