"""The output of `tacit fit`: files and terminal."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import rounded_up
from tacit.report import page
from tacit.report.terminal import coefficients, released_scores
from tacit.study.statements import UNCOUNTED


def write(out: Path, posterior: Posterior, result: dict[str, Any], level: float) -> dict[str, Any]:
    """Write all files into the folder `out`; return the result with its rows and the files' names."""
    rows = posterior.summary(level)
    if not all(math.isfinite(row["mean"]) and math.isfinite(row["sd"]) for row in rows):
        raise ValueError(
            f"the fit did not end in finite numbers, and ε = {posterior.epsilon:.3g} was spent on it; expected "
            "settings (clip, prior) of ordinary size"
        )
    return page.leave(out, posterior, result | {"level": level})


def show(out: Path, posterior: Posterior, result: dict[str, Any]) -> None:
    """Print the coefficients, released scores, the first lines of the statement, and where the files are."""
    console = Console()
    console.print(coefficients(result, posterior.plan, page.title(result)))
    if result.get("released") is not None:
        console.print(Text("\n" + released_scores(result["released"])))
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
