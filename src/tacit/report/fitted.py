"""What `tacit fit` leaves behind: the result, the posterior, the statement, a forest plot, and a page of all of it."""

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.posterior import Posterior
from tacit.report import forest, page

MOST_PRINTED, PRINTED = 30, 20  # coefficients in the terminal: all up to the first, else the clearest of them


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
    table = Table(title=Text(title), caption=Text(page.intervals(posterior, level)))
    for j, name in enumerate(page.HEADERS):
        table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", no_wrap=j > 0)
    for row in rows:
        table.add_row(Text(row["name"]), *page.cells(row))
    console.print(table)
    lines = posterior.statement_text.splitlines()
    end = next((j for j, line in enumerate(lines) if line.startswith("Accountant:")), len(lines))
    seeded = [line for line in lines if line.startswith("Randomness: SEEDED")]
    console.print(Text("\n".join(["", *lines[:end], *seeded]).rstrip()))
    console.print(Text(f"\nWritten to {out}: {', '.join(result['files'])}"))


def _title(result: dict[str, Any]) -> str:
    unit = "persons" if "persons" in result else "records"
    return f"A {result['model']} regression of {result['target']} on {result[unit]:,} {unit}"


def _page(posterior: Posterior, result: dict[str, Any], level: float, picture: Path) -> str:
    sections = [
        *page.coefficients(posterior, result["summary"], level, picture),
        page.statement(posterior.statement_text),
    ]
    return page.page(_title(result), posterior.statement_text.splitlines()[0], sections, result["version"])
