"""A study of two small files in which the order of rows matters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROWS, DELTA = 200, 1e-5


def in_order(folder: Path, **settings: Any) -> Path:
    """A study of two small files in an order in which places matter: every fifth row is unlike the one after it."""
    places = np.arange(ROWS)
    kinds = {"a": np.where(places % 5 == 4, 9.5, np.where(places % 5 == 0, 0.5, 5.0)) + 0.002 * places}
    kinds["y"] = np.where(places % 5 == 4, "no", "yes")
    for site in ("north", "south"):
        pd.DataFrame(kinds).to_csv(folder / f"{site}.csv", index=False)
        kinds["a"] = kinds["a"] + 0.001
    given = {"name": "rows", "model": "logistic", "target": "y", "rounds": 1, "epsilon": 1.0, "delta": DELTA}
    lines = [f"{name} = {json.dumps(value)}" for name, value in (given | settings).items()]
    lines += ["[facts]", 'classes = ["no", "yes"]', "[facts.bounds]", "a = [0, 10]"]
    lines += [f'[[site]]\nname = "{site}"\nfile = "{site}.csv"' for site in ("north", "south")]
    path = folder / "study.toml"
    path.write_text("\n".join(lines))
    return path
