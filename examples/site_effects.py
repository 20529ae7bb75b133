"""Heart Disease at four hospitals with site effects: prints the posterior, and draws docs/pictures/site-effects.png.

    TACIT_DATA=FOLDER python examples/site_effects.py [PICTURE.png]

FOLDER has UCI's files processed.HOSPITAL.data; without it they are downloaded.
Each hospital keeps its records. The noise is seeded, so that the picture can be drawn again; leave the seed out with
records that are private. The open circles are of the same study without privacy, which only public records allow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.data import datasets
from tacit.report import site_effects, style
from tacit.study import Site
from tacit.tables.table import Table

EPSILON, DELTA, LEVEL = 4.0, 1e-4, 0.9
COLUMNS = ("age", "sex", "cp", "exang", "oldpeak")  # recorded at all hospitals
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "site-effects.png"


def hospitals(epsilon: float) -> list[Site]:
    """A site for each hospital, with a few columns that all hospitals record."""
    heart = datasets.heart()
    assert heart.groups is not None
    chosen = [heart.feature_names.index(name) for name in COLUMNS]
    facts: dict[str, Any] = {"names": COLUMNS, "indicators": ("sex", "exang"), "bounds": (0, 1), "classes": (0, 1)}
    found = []
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        rows = heart.groups == name
        found.append(Site(name, Table.of(heart.features[rows][:, chosen], heart.target[rows], **facts), epsilon, DELTA))
    return found


def study(epsilon: float) -> tacit.Posterior:
    """The study at one ε for each hospital."""
    settings: dict[str, Any] = {"site_effects": ["intercept"], "clip": 3.0, "insecure_seed": 1}
    return tacit.federate("logistic", hospitals(epsilon), **settings).posterior


def draw(posterior: tacit.Posterior, plain: tacit.Posterior, path: Path) -> None:
    """Each hospital's deviation, with that of the study without privacy beside it."""
    (axes,) = site_effects.axes_of(posterior, style.panels, LEVEL, width=6.0)
    assert plain.site_effects is not None
    rows = plain.site_effects.at_middle(LEVEL)["intercept"]
    means = [row["mean"] for row in rows]
    axes.plot(means, np.arange(len(rows)) + 0.25, "o", color="0.2", markerfacecolor="white", label="without privacy")
    axes.hlines(np.arange(len(rows)) + 0.25, *np.array([(r["low"], r["high"]) for r in rows]).T, color="0.2", lw=0.8)
    axes.set_title(f"Heart Disease: intercepts of hospitals, ε = {EPSILON:g} at each")
    axes.plot([], [], "o", color="0.4", markersize=4, label=f"ε = {EPSILON:g}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.36), ncol=3, frameon=False, fontsize=8)
    style.save(axes, path)


def main(path: Path) -> None:
    """Print the private posterior, and draw it."""
    posterior, plain = study(EPSILON), study(float("inf"))
    for found in (posterior, plain):
        assert found.site_effects is not None
        print(f"\nε = {found.epsilon:.3g}")
        for row in found.summary(LEVEL):
            print(f"{row['name']:12} {row['mean']:7.2f}  ({row['low']:.2f} to {row['high']:.2f})")
        for row in found.site_effects.summary(LEVEL):
            print(f"{row['site']:12} {row['mean']:7.2f}  ({row['low']:.2f} to {row['high']:.2f})")
        for row in found.site_effects.spread(LEVEL):
            print(f"between      {row['median']:7.2f}  ({row['low']:.2f} to {row['high']:.2f})")
    draw(posterior, plain, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
