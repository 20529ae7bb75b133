"""The demonstration: Adult over ten uneven sites, each with a budget of its own, and what that costs and gains.

Sharma's distribution C: five small sites with nearly all large incomes, five large ones with few. One posterior is
learnt from all of them at ε = 1 each; beside it stand the same study without privacy and each site alone at that ε.
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

from tacit import __version__, study
from tacit.data import Table, adult, partition
from tacit.privacy.randomness import insecure_key
from tacit.report import page, studied
from tacit.report.progress import Watch
from tacit.study import Member, Plan

SITES, SPLIT, EPSILON, DELTA = 10, "C", 1.0, 1e-4
EXACT_ROUNDS = 8  # without noise there is nothing to average
PLAN = Plan("logistic", name="demo")
SEED = 2019  # of the split, which is public


def sites() -> tuple[list[Member], Table]:
    """The ten sites, and a public test set."""
    found = adult()
    table = Table.of_dataset(found)
    places = partition.rho_kappa(table.target, SITES, seed=SEED, **partition.SHARMA[SPLIT])
    members = [
        Member(f"site-{m + 1}", replace(table, features=table.features[at], target=table.target[at]), EPSILON, DELTA)
        for m, at in enumerate(places)
    ]
    return members, replace(table, features=found.test_features[:, 1:], target=found.test_target)


def run(out: Path, insecure_seed: int | None, watch: Watch) -> dict[str, Any]:
    """The study and what it is compared with, written into `out`; a finished one is read there."""
    if insecure_seed is not None:
        insecure_key(insecure_seed)  # refused before anything is made
    done = out / "result.json"
    if done.is_file() and (out / "study.json").is_file():
        found = json.loads(done.read_text(encoding="utf-8"))
        if found.get("name") == PLAN.name:
            return found | {"note": f"This was run before; remove {out} to run it anew."}
    members, test = sites()
    watch.budgets = {member.name: member.epsilon for member in members}
    watch.say("Ten sites: planning and compiling")
    together = study.federate(PLAN, members, out=out, test=test, insecure_seed=insecure_seed, observe=watch.step)
    assert together.scores is not None
    capacity = max(len(member.table.target) for member in members)
    watch.spent = {}
    watch.say("The same without privacy")
    free = [replace(member, epsilon=math.inf) for member in members]
    exact = study.federate(replace(PLAN, rounds=EXACT_ROUNDS), free, insecure_seed=insecure_seed)
    alone = []
    watch.say("Each site alone, at the same ε", "sites")
    for member in watch.track(members):
        # As many places as all sites have: the program is compiled already.
        found = study.federate(PLAN, [member], capacity=capacity, insecure_seed=insecure_seed)
        alone.append(_row(f"{member.name} alone", study.scores(found.posterior, test), EPSILON))
    watch.say("Writing")
    spent = max(row["spent"] for row in together.sites)
    rows = [
        _row("all sites together", together.scores, spent),
        _row("the same, not private", study.scores(exact.posterior, test), None),
        *alone,
    ]
    about = {
        "version": __version__,
        "name": PLAN.name,
        "model": PLAN.link,
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
    words = f"Each site spent ε = {min(spent):.4f} to {max(spent):.4f} of its {EPSILON:g}, by its own ledger"
    console.print(f"{words} (δ = {DELTA:g}; {out}/sites).", highlight=False)
    console.print(f"Written to {out}: {', '.join(result['files'])}. Look at report.html.", highlight=False)
    if result["randomness"] == "seeded":
        console.print("The noise was SEEDED: a simulation, private for nobody.", highlight=False)
    if "note" in result:
        console.print(result["note"], highlight=False)
