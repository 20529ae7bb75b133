"""Site effects in a report: each site's deviation from the common coefficients, and the spread between sites."""

from collections.abc import Callable, Iterator
from typing import Any

from tacit.links import LINKS
from tacit.report.style import COLOURS

MOST_SITES = 60  # in a figure; of more, those whose deviation is clearest from 0
PER_SITE = 0.19  # inches


def axes_of(posterior: Any, make: Callable[..., list[Any]], level: float = 0.95, width: float = 4.6) -> list[Any]:
    """Axes for each column: a row for each site, and a band of one standard deviation between sites around 0."""
    effects = posterior.site_effects
    if effects is None:
        return []
    rows = effects.at_middle(level)
    shown = {name: _clearest(sites) for name, sites in rows.items()}
    height = 1.3 + PER_SITE * max(map(len, shown.values()))
    effect = LINKS[posterior.link].effect
    labels = [(f"{name}: deviation of each site", effect, "") for name in shown]
    axes = make(*labels, width=width, height=height)
    spread = {row["name"]: row["median"] for row in effects.spread(level)}
    for panel, (name, sites) in zip(axes, shown.items(), strict=True):
        places = range(len(sites))
        band = {"color": COLOURS[1], "alpha": 0.15, "linewidth": 0}
        panel.axvspan(-spread[name], spread[name], label="one standard deviation between sites", **band)
        for is_clear, colour in ((False, "0.4"), (True, COLOURS[0])):
            chosen = [(place, row) for place, row in zip(places, sites, strict=True) if _is_clear(row) == is_clear]
            if chosen:
                at, drawn = zip(*chosen, strict=True)
                panel.hlines(at, [row["low"] for row in drawn], [row["high"] for row in drawn], color=colour)
                panel.plot([row["mean"] for row in drawn], at, "o", color=colour, markersize=4)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_yticks(list(places), [row["site"] for row in sites], fontsize=9, parse_math=False)
        panel.set_ylim(len(sites) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")
        panel.title.set_parse_math(False)
    return axes


def draw(found: Any, make: Callable[..., list[Any]]) -> list[Any]:
    """The figure of some findings."""
    return axes_of(found.posterior, make, found.level)


def content(posterior: Any, level: float, cells: Callable[[Any], list[str]]) -> dict[str, Any] | None:
    """Words and tables for a page; None without site effects. cells: writes mean, sd and ends of a row."""
    effects = posterior.site_effects
    if effects is None:
        return None
    spread = [
        (row["name"], *(f"{row[part]:.3g}" for part in ("median", "low", "high"))) for row in effects.spread(level)
    ]
    sites = [(f"{row['site']}: {row['name']}", *cells(row)) for row in effects.summary(level)]
    return {
        "words": list(_words(effects)),
        "figure": (
            f"Points: each site's deviation from the common coefficient; lines: {100 * level:g} % intervals; band: "
            f"one standard deviation between sites around 0.{_left_out(effects)}"
        ),
        "spread": spread,
        "spread_head": ("coefficient", "between sites", "low", "high"),
        "spread_caption": f"Standard deviation between sites: median and {100 * level:g} % interval",
        "sites": sites,
        "sites_head": ("deviation", "mean", "sd", "low", "high"),
        "sites_caption": f"Deviations of sites, with {100 * level:g} % intervals, in the units of the data",
    }


def _words(effects: Any) -> Iterator[str]:
    names = " and ".join(effects.columns)
    yield (
        f"Sites differ in {names}: a coefficient of a site is the common one plus its own deviation. Predictions for a "
        "new site allow for the spread between sites."
    )
    if "intercept" in effects.columns and effects.middle:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in effects.middle.items())
        yield f"In the figure, and in the spread, the intercept is taken at {values}."


def _clearest(sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(sites) <= MOST_SITES:
        return sites
    order = sorted(range(len(sites)), key=lambda j: -abs(sites[j]["mean"]) / (sites[j]["high"] - sites[j]["low"]))
    kept = set(order[:MOST_SITES])
    return [row for j, row in enumerate(sites) if j in kept]


def _left_out(effects: Any) -> str:
    more = len(effects.sites) - MOST_SITES
    return f" {more} sites near 0 are left out." if more > 0 else ""


def _is_clear(row: dict[str, Any]) -> bool:
    return row["low"] > 0 or row["high"] < 0
