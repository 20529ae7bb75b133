"""The figures of a report, each a function of findings, in one style.

| name          | content                                                           | drawn for                    |
|---------------|-------------------------------------------------------------------|------------------------------|
| `forest`      | coefficients with their intervals                                 | regressions                  |
| `site_effects` | each site's deviation, and the spread between sites              | studies with site effects    |
| `densities`   | the posterior of the coefficients that are clearest from 0        | regressions                  |
| `privacy`     | ε against δ; the limit on any attack                              | private results              |
| `training`    | scores on public records against communications                   | studies with a test set      |
| `calibration` | observed shares against predicted probabilities                   | targets of two classes       |
"""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.links import LINKS
from tacit.report import forest, site_effects, style
from tacit.report.findings import Findings
from tacit.report.style import COLOURS

MOST_DENSITIES = 6
MOST_ROWS = 30  # of the forest in a report: more do not fit on a printed page
FORMATS = ("png", "svg", "pdf")
SCORES = {
    "accuracy": "accuracy",
    "log_likelihood": "mean log-likelihood",
    "calibration_error": "calibration error",
    "root_mean_square_error": "root mean square error",
}


Panels = Callable[..., list[Any]]  # `style.panels` or `style.apart`
Draw = Callable[[Findings, Panels], list[Any]]  # returns all axes; none if there is no such figure


def draw_forest(found: Findings, make: Panels) -> list[Any]:
    """Coefficients and intervals; those furthest from 0 if there are too many for a page."""
    if found.posterior.link not in LINKS:
        return []
    more = {"most": MOST_ROWS, "width": 2.8} if make is style.apart else {}  # for a phone, and for a printed page
    return [forest.axes_of(found.posterior, found.level, **more)]


def draw_densities(found: Findings, make: Panels) -> list[Any]:
    """Posterior densities of some coefficients, with the interval shaded."""
    if found.posterior.link not in LINKS:
        return []
    rows = [row for row in forest.effects(found.posterior, found.level) if row.width > 0]
    rows = sorted(rows, key=lambda row: -abs(row.mean) / row.width)[:MOST_DENSITIES]
    if not rows:
        return []
    import numpy as np
    from scipy import stats

    effect, sure = LINKS[found.posterior.link].effect, float(stats.norm.ppf(0.5 + found.level / 2))
    labels = [(forest.label(row, 34), effect, "density") for row in rows]
    axes = make(*labels, width=3.2, height=2.1, columns=min(3, len(rows)))
    for panel, row in zip(axes, rows, strict=True):
        sd = row.width / (2 * sure)
        places = row.mean + sd * np.linspace(-4, 4, 161)
        heights = stats.norm.pdf(places, row.mean, sd)
        inside = (places >= row.low) & (places <= row.high)
        panel.fill_between(places[inside], heights[inside], color=COLOURS[0], alpha=0.25, linewidth=0)
        panel.plot(places, heights, color=COLOURS[0])
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_yticks([])
        panel.set_ylim(bottom=0)
        panel.locator_params(axis="x", nbins=5)
        panel.title.set_fontsize(9)
        panel.title.set_parse_math(False)
    return axes


def draw_privacy(found: Findings, make: Panels) -> list[Any]:
    """ε at other δ, and the limit on an attack on one unit, each at the site with the weakest guarantee there."""
    points, attacks = found.promises(), found.attacks()
    if not points or not attacks or not found.is_private:
        return []
    unit = found.statement["unit"]
    curve, attack = make(
        ("The guarantee at other δ", "δ", "ε"),
        ("Limit on any attack", f"false positives: absent {unit}s", f"true positives: present {unit}s"),
        width=4.6,
        height=3.6,
    )
    curve.plot(list(points), list(points.values()), marker="o", markersize=4, color=COLOURS[0])
    curve.set_xscale("log")
    curve.set_ylim(bottom=0)
    # Draw only the computed points: a line between points of a concave curve would run below it.
    attack.plot(
        list(attacks), list(attacks.values()), "o", markersize=4, color=COLOURS[0], label="the most, by the guarantee"
    )
    attack.plot([0, 1], [0, 1], color="0.4", linestyle="--", label="guessing")
    attack.set_xlim(0, 1)
    attack.set_ylim(0, 1)
    attack.set_aspect("equal")
    attack.legend(loc="lower right", frameon=False)
    return [curve, attack]


def draw_training(found: Findings, make: Panels) -> list[Any]:
    """Scores on the public test set against communications."""
    scores = found.result.get("scores") or {}
    names = [name for name in ("accuracy", "log_likelihood", "root_mean_square_error") if name in scores]
    rows = [row for row in found.result.get("history", ()) if all(name in row for name in names)]
    if not names or not rows:
        return []
    labels = [(SCORES[name].capitalize(), "communications", "on the public test set") for name in names]
    axes = make(*labels, width=4.6, height=3.2)
    for panel, name in zip(axes, names, strict=True):
        panel.plot([row["communications"] for row in rows], [row[name] for row in rows], marker="o", markersize=3)
        panel.set_xlim(left=0)
    return axes


def draw_calibration(found: Findings, make: Panels) -> list[Any]:
    """Observed shares against predicted probabilities, from public records or from released sums."""
    scores, released = found.result.get("scores") or {}, found.result.get("released") or {}
    is_public = bool(scores.get("calibration"))
    rows: Sequence[Mapping[str, Any]] = scores["calibration"] if is_public else released.get("calibration") or ()
    rows = [row for row in rows if row["share"] is not None and row["mean_probability"] is not None]
    if not rows:
        return []
    which = "the public test set" if is_public else "held-out records, released with noise"
    (axes,) = make((f"On {which}", "predicted probability", "share of records with class 1"), width=4.6, height=4.0)
    errors = [1.96 * _sd(row, is_public) for row in rows]
    label = "observed; bars: 95 % of chance" if is_public else "observed; bars: 95 % of the noise"
    places, shares = ([row[part] for row in rows] for part in ("mean_probability", "share"))
    axes.plot([0, 1], [0, 1], color="0.4", linestyle="--", label="perfectly calibrated")
    axes.errorbar(places, shares, yerr=errors, fmt="o", markersize=4, capsize=2, color=COLOURS[0], label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left", frameon=False)
    return [axes]


def _sd(row: Mapping[str, Any], is_public: bool) -> float:
    """The sd of a bin's share: from counting its records, or from the added noise."""
    if not is_public:
        return float(row["sd"])
    return math.sqrt(max(row["share"] * (1 - row["share"]), 0.0) / row["count"])


FIGURES: dict[str, Draw] = {
    "forest": draw_forest,
    "site_effects": site_effects.draw,
    "densities": draw_densities,
    "privacy": draw_privacy,
    "training": draw_training,
    "calibration": draw_calibration,
}


def save(found: Findings, folder: Path, form: str) -> list[Path]:
    """Draw all available figures into files NAME.`form`; return their paths."""
    if form not in FORMATS:
        raise ValueError(f"figures={form!r}; expected one of {', '.join(FORMATS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; expected a folder that can be written to") from None
    places = {folder / f"{name}.{form}": draw for name, draw in FIGURES.items()}
    return [place for place, draw in places.items() if save_one(draw, found, place)]


def save_one(draw: Draw, found: Findings, path: Path) -> bool:
    """Draw a figure into a file; False if these findings have no such figure, or without matplotlib."""
    axes = _axes(draw, found, style.panels)
    if axes:
        style.save(axes[0], path)
    return bool(axes)


def inside(found: Findings, name: str) -> list[str]:
    """A figure's panels as data URLs, to embed in a page; none without matplotlib."""
    made = []
    for j, axes in enumerate(_axes(FIGURES[name], found, style.apart)):
        import matplotlib

        file = io.BytesIO()
        with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": f"{name}{j}"}):  # the same bytes each time
            axes.figure.savefig(file, format="svg", metadata={"Date": None})
        made.append("data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode())
    return made


def _axes(draw: Draw, found: Findings, make: Panels) -> list[Any]:
    return draw(found, make) if find_spec("matplotlib") else []
