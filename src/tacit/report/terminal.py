"""What commands print of a posterior: a table of coefficients, and scores on held-out records."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from tacit.report import page

MOST_PRINTED, PRINTED = 30, 20  # coefficients: all up to the first number; of more, the clearest


def coefficients(result: Mapping[str, Any], plan: Mapping[str, Any], title: str = "") -> Table:
    """The table of a result's coefficients; of many, those that are clearest from 0."""
    rows = result["summary"]
    if len(rows) > MOST_PRINTED:
        rows = sorted(rows, key=lambda row: -abs(row["mean"]) / row["sd"])[:PRINTED]
        title += f"\nthe {PRINTED} of {len(result['summary'])} coefficients clearest from 0"
    title = title.strip()
    table = Table(title=Text(title) if title else None, caption=Text(page.intervals(plan, result["level"])))
    for j, name in enumerate(page.HEADERS):
        table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", no_wrap=j > 0)
    for row in rows:
        table.add_row(Text(row["name"]), *page.cells(row))
    return table


def released_scores(released: Mapping[str, Any], sites: int = 1) -> str:
    """A line for scores on held-out records, with the standard deviation of their noise."""
    rows = [f"{name} {score}{noise and f' ± {noise}'}" for name, score, noise in page.released_scores(released)]
    words = released.get("note") or f"{', '.join(rows)}; ± is the standard deviation of the noise"
    return f"On {'records that sites held out' if sites > 1 else 'held-out records'}, released with noise: {words}"
