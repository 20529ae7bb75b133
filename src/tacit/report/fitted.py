"""The output of `tacit fit`: files and terminal."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import rounded_up
from tacit.report import page
from tacit.study.statements import UNCOUNTED

MOST_PRINTED, PRINTED = 30, 20  # coefficients in the terminal: all up to the first number; of more, the clearest


def write(out: Path, posterior: Posterior, result: dict[str, Any], level: float) -> dict[str, Any]:
    """Write all files into the folder `out`; return the result with its rows and the files' names."""
    rows = posterior.summary(level)
    if not all(math.isfinite(row["mean"]) and math.isfinite(row["sd"]) for row in rows):
        raise ValueError(
            f"the fit did not end in finite numbers, and ε = {posterior.epsilon:.3g} was spent on it; expected "
            "settings (clip, prior) of ordinary size"
        )
    return page.leave(out, posterior, result | {"level": level})


def show(out: Path, posterior: Posterior, result: dict[str, Any], level: float) -> None:
    """Print the coefficients, the first lines of the statement, and where the files are."""
    console = Console()
    rows, title = result["summary"], page.title(result)
    if len(rows) > MOST_PRINTED:
        rows = sorted(rows, key=lambda row: -abs(row["mean"]) / row["sd"])[:PRINTED]
        title += f"\nthe {PRINTED} of {len(result['summary'])} coefficients clearest from 0"
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
    if counted := result["ledger"]:
        total = f"{rounded_up(counted['spent'])} of {counted['epsilon']:g}"
        console.print(Text(f"In total ε = {total} is spent, by the ledger {counted['name']}."))
    else:
        console.print(Text(UNCOUNTED))
    console.print(Text(f"\nWritten to {out}: {', '.join(result['files'])}"))
