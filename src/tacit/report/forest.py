"""A forest plot: each coefficient as a point with its interval, in the order of the columns.

Coefficients of numbers are for the change in brackets, so that years and incomes share an axis. That change is the
scale by which the fit divided the column: a released standard deviation, or half the public range. Coefficients whose
interval excludes 0 are drawn in colour. The intercept is left out, because its scale differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit.links import link_of

MOST_ROWS = 200  # of more, those furthest from 0 in standard deviations
MOST_LETTERS = 60  # of a name
INTERCEPT = "intercept"


@dataclass(frozen=True)
class Effect:
    """A coefficient times `per`, the change in its column that it is drawn for."""

    name: str
    per: float
    mean: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The width of the interval."""
        return self.high - self.low

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def effects(posterior: Any, level: float = 0.95) -> list[Effect]:
    """All coefficients except intercepts; those of numbers per scale of their column."""
    numbers = [place + 1 for place in posterior.plan.get("numbers", ())]
    scales = dict(zip(numbers, posterior.details.get("scale", ()), strict=False))
    rows = posterior.summary(level)
    size = len(rows) // (max(2, len(posterior.classes or ())) - 1 if link_of(posterior.link).is_multiclass else 1)
    found = []
    for j, row in enumerate(rows):
        if j % size:
            per = scales.get(j % size, 1.0)
            found.append(Effect(row["name"], per, *(row[part] * per for part in ("mean", "low", "high"))))
    return found


def lacks_noise(plan: Mapping[str, Any]) -> bool:
    """Whether the intervals of a posterior's plan leave out added noise."""
    noise = plan.get("releases", {}).get("gradients", {}).get("noise_multiplier", 0)
    return plan.get("method") == "vi" and noise > 0


def axes_of(posterior: Any, level: float = 0.95, most: int = MOST_ROWS, width: float = 4.6) -> Any:
    """Plot at most `most` coefficients. width: in inches, without the names."""
    from tacit.report.style import COLOURS, figure

    rows, left_out = effects(posterior, level), 0
    if len(rows) > most:
        by_size = sorted(rows, key=lambda row: -abs(row.mean) / row.width)
        kept = set(by_size[:most])
        rows, left_out = [row for row in rows if row in kept], len(rows) - most
    names = [label(row) for row in rows]
    title = f"Coefficients and {100 * level:g} % intervals\nblue: away from 0"
    if left_out:
        title += f"\n{left_out} near 0 are left out"
    if lacks_noise(posterior.plan):
        title += "\nintervals without privacy noise"
    width += 0.075 * max(map(len, names), default=0)  # room for the longest name
    axes = figure(title, link_of(posterior.link).effect, "", width=width, height=1.3 + 0.19 * len(rows))
    for is_clear, colour in ((False, "0.55"), (True, COLOURS[0])):
        chosen = [(place, row) for place, row in enumerate(rows) if row.is_clear == is_clear]
        if chosen:
            places, drawn = zip(*chosen, strict=True)
            axes.hlines(places, [row.low for row in drawn], [row.high for row in drawn], color=colour, linewidth=1.6)
            axes.plot([row.mean for row in drawn], places, "o", color=colour, markersize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=9, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    if len(rows) > 40:  # a long plot has values at the top too
        axes.tick_params(top=True, labeltop=True)
    return axes


def label(row: Effect, most: int = MOST_LETTERS) -> str:
    """The name of an effect in at most `most` letters, and the change that it is for."""
    name = row.name
    if len(name) > most:
        name = name[: most // 2] + "…" + name[-most // 2 + 1 :]
    return name if row.per == 1 else f"{name} (per {float(f'{row.per:.3g}'):,.6g})"
