"""Drawing that figures share: curves with error bars, an axis of ε, a legend beside the axes."""

from collections.abc import Sequence
from typing import Any

from tacit.report.style import logarithmic
from tacit_reproduce import Row


def curve(axes: Any, rows: list[Row], y: str, label: str, published: str | None = None, x: str = "epsilon") -> None:
    """A column of `rows` against another, with error bars where there are any, and published values in open marks."""
    ordered = sorted(rows, key=lambda row: row[x])
    errors = [row.get(f"{y}_standard_error") or 0.0 for row in ordered]
    places = [row[x] for row in ordered]
    (line, *_) = axes.errorbar(
        places, [row[y] for row in ordered], yerr=errors, marker="o", markersize=4, capsize=2, label=label
    )
    theirs = [(row[x], row[published]) for row in ordered if published is not None and row[published] is not None]
    if theirs:
        axes.plot(*zip(*theirs, strict=True), "D", color=line.get_color(), markerfacecolor="none", markersize=6)


def epsilon_axis(axes: Any, rows: list[Row]) -> None:
    """A logarithmic axis with some room beside the values of ε in `rows`."""
    logarithmic(axes, "x")
    epsilons = [row["epsilon"] for row in rows]
    axes.set_xlim(min(epsilons) / 1.5, max(epsilons) * 1.5)


def legend_beside(axes: Any) -> None:
    """The legend, to the right of the axes."""
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def columns(rows: Sequence[Row], *names: str) -> list[list[float]]:
    """The named columns of `rows`, each as a list."""
    return [[row[name] for row in rows] for name in names]
