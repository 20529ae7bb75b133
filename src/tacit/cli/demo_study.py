"""The demonstration: Adult over ten uneven sites, each with its own budget.

Sharma's distribution C: five small sites with nearly all large incomes, five large ones with few. One posterior is
learnt from all of them at ε = 1 each, and compared with the same study without privacy and with each site alone.
"""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from tacit import __version__
from tacit.data import adult, partition
from tacit.privacy.randomness import insecure_key
from tacit.report import page, studied
from tacit.report.progress import Watch
from tacit.study import front
from tacit.study.plan import Plan
from tacit.study.scores import scores
from tacit.study.sites import Site
from tacit.tables.table import Table

SITES, SPLIT, EPSILON, DELTA = 10, "C", 1.0, 1e-4
EXACT_ROUNDS = 8  # few, because there is no noise to average
PLAN = Plan("logistic", name="demo")
SEED = 2019  # of the split, which is public


def sites() -> tuple[list[Site], Table]:
    """The ten sites, and a public test set."""
    found = adult()
    table = found.to_table()
    places = partition.rho_kappa(table.target, SITES, seed=SEED, **partition.SHARMA[SPLIT])
    found_sites = [
        Site(f"site-{m + 1}", replace(table, features=table.features[at], target=table.target[at]), EPSILON, DELTA)
        for m, at in enumerate(places)
    ]
    return found_sites, found.test_table()


def run(out: Path, insecure_seed: int | None, watch: Watch) -> dict[str, Any]:
    """Run the study and its comparisons and write them into `out`; a finished one is read from there."""
    if insecure_seed is not None:
        insecure_key(insecure_seed)  # refused before anything is made
    done = out / "result.json"
    if done.is_file() and (out / "study.json").is_file():
        found = json.loads(done.read_text(encoding="utf-8"))
        if found.get("name") == PLAN.name:
            return found | {"note": f"This is an earlier run; remove {out} to run it again."}
    found_sites, test = sites()
    watch.budgets = {site.name: site.epsilon for site in found_sites}
    watch.say("Ten sites: planning and compiling")
    together = front.federate(PLAN, found_sites, out=out, test=test, insecure_seed=insecure_seed, observe=watch.step)
    assert together.scores is not None
    slots = max(len(site.table.target) for site in found_sites)
    watch.spent = {}
    watch.say("The same without privacy")
    free = [replace(site, epsilon=math.inf) for site in found_sites]
    exact = front.federate(PLAN.replace(rounds=EXACT_ROUNDS), free, insecure_seed=insecure_seed)
    alone = []
    watch.say("Each site alone, at the same ε", "sites")
    for site in watch.track(found_sites):
        # The same number of slots for all sites, so that the program is compiled once.
        found = front.federate(PLAN, [site], slots=slots, insecure_seed=insecure_seed)
        alone.append(_row(f"{site.name} alone", scores(found.posterior, test), EPSILON))
    watch.say("Writing")
    spent = max(row["spent"] for row in together.sites)
    rows = [
        _row("all sites together", together.scores, spent),
        _row("the same, not private", scores(exact.posterior, test), None),
        *alone,
    ]
    about = {
        "version": __version__,
        "name": PLAN.name,
        "model": PLAN.model,
        "target": "income above 50,000 dollars",
        "data": f"Adult over {SITES} sites by Sharma's distribution {SPLIT}",
        "comparison": rows,
    }
    return studied.write(out, together, about, len(test.target))


def _row(name: str, scores: Mapping[str, Any], epsilon: float | None) -> dict[str, Any]:
    kept = {key: scores[key] for key in ("accuracy", "log_likelihood", "calibration_error")}
    return {"name": name, **kept, "epsilon": epsilon}


def show(out: Path, result: Mapping[str, Any]) -> None:
    """Print the comparison, what each site spent, and where the files are."""
    console = Console()
    together, exact, *alone = result["comparison"]
    best, worst = (pick(alone, key=lambda row: row["log_likelihood"]) for pick in (max, min))
    mean = {key: statistics.fmean(row[key] for row in alone) for key in best if key not in ("name", "epsilon")}
    rows = [together, exact, best, _row("sites alone, on average", mean, EPSILON), worst]
    headers, cells = page.comparison(rows)
    grid = Grid(title=f"{result['data']}\non a public test set of {result['scores']['records']:,} records")
    for j, header in enumerate(headers):
        grid.add_column(header, justify="right" if j else "left")
    for row in cells:
        grid.add_row(*row)
    console.print(grid)
    spent = [row["spent"] for row in result["sites"]]
    ends = list(dict.fromkeys(page.rounded_up(end) for end in (min(spent), max(spent))))
    words = f"Each site spent ε = {' to '.join(ends)} of its {EPSILON:g}, by its own ledger"
    console.print(f"{words} (δ = {DELTA:g}; {out}/sites).", highlight=False)
    console.print(f"Written to {out}: {', '.join(result['files'])}. Open report.html.", highlight=False)
    if result["randomness"] == "seeded":
        console.print("The noise was SEEDED: a simulation, not private.", highlight=False)
    if "note" in result:
        console.print(result["note"], highlight=False)
