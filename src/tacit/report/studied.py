"""The output of `tacit simulate` and `serve`: files and terminal.

All of it comes from public settings, released values and scores on public records.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.privacy.statement import rounded_up
from tacit.report import findings, page
from tacit.report.figures import SCORES
from tacit.report.terminal import coefficients, released_scores

if TYPE_CHECKING:  # it loads JAX, which should load while progress is shown
    from tacit.study.coordinator import StudyResult

LEVEL = 0.95  # of intervals
MOST_PRINTED = 30  # sites in the terminal's table


def write(out: Path, found: "StudyResult", about: Mapping[str, Any], test_records: int) -> dict[str, Any]:
    """Write all files into the folder `out`, result.json last; return the result.

    about: the first entries of the result. test_records: the number of records in the public test set.
    """
    posterior = found.posterior
    if not all(math.isfinite(row["mean"]) and math.isfinite(row["sd"]) for row in posterior.summary(LEVEL)):
        raise ValueError("the study did not end in finite numbers; expected settings (clip, prior) of ordinary size")
    stated = findings.statements_of(posterior.statement)
    promised, rows = [one["epsilon"] for one in stated.values()], found.sites
    seeded = any(one["randomness"] == "seeded" for one in stated.values())
    result = {
        **about,
        "study": found.name,
        "epsilon": None if None in promised else max(promised),
        "delta": max(row["delta"] for row in rows),
        "adjacency": posterior.statement["adjacency"],
        "randomness": "seeded" if seeded else "secure",
        "communications": found.communications,
        "site_count": found.site_count,
        "sites": rows,
        "scores": None if found.scores is None else {"test_set": "public", "records": test_records, **found.scores},
        "released": found.released,
        **({} if found.tolerance is None else {"tolerance": found.tolerance}),
        "history": found.history,
        "level": LEVEL,
    }
    return page.leave(out, posterior, result)


def show(out: Path, result: Mapping[str, Any]) -> None:
    """Print the sites, the coefficients, the scores, the guarantee and where the files are."""
    console, sites = Console(), result["sites"]
    console.print(Text(page.title(result)), style="bold")  # not the table's own, which breaks at its width
    table = Table()
    for j, name in enumerate(("site", "ε spent", "of", "δ", "updates")):
        table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", no_wrap=j > 0)
    for row in sites[:MOST_PRINTED]:
        table.add_row(*map(Text, _cells(row)))
    if len(sites) > MOST_PRINTED:
        table.caption = Text(f"{MOST_PRINTED} of {len(sites)} sites; all are in result.json")
    console.print(table)
    lines = [f"{row['name']} refused: {row['refused']}" for row in sites if row["refused"]]
    present = sum(row["is_present"] for row in sites)
    if present < len(sites):
        lines.insert(0, f"{present} of {len(sites)} sites are in the result")
    if len(lines) > MOST_PRINTED:
        lines[MOST_PRINTED:] = [f"{len(lines) - MOST_PRINTED} more sites refused; result.json has their reasons"]
    if result.get("tolerance"):
        lines.append(f"{result['tolerance']} {findings.dropped(result)}")
    lines += page.remarks(result)
    if any(row["updates"] for row in sites):  # else the posterior is the prior
        console.print(Text("\n".join(lines)), end="\n" if lines else "")
        console.print(coefficients(result, result["plan"]))
        lines = []
    lines += [*_scores(result), *_promise(result)]
    if result["randomness"] == "seeded":
        lines.append(
            "Randomness: SEEDED. Whoever knows or guesses the seed can remove the noise. For simulations only."
        )
    console.print(Text("\n".join([*lines, "", f"Written to {out}: {', '.join(result['files'])}"])))


# --- Words -------------------------------------------------------------------------------------------------------


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Name, ε spent, ε of the study, δ, updates."""
    spent, epsilon = ("no budget", "") if row["spent"] is None else (rounded_up(row["spent"]), f"{row['epsilon']:g}")
    return [row["name"], spent, epsilon, f"{row['delta']:g}", str(row["updates"])]


def _promise(result: Mapping[str, Any]) -> list[str]:
    """The guarantee that holds at every site, in a sentence; none without privacy, of which `page.remarks` tells."""
    if result["epsilon"] is None:
        return []
    unit, found = result["plan"]["unit"], f"(ε = {rounded_up(result['epsilon'])}, δ = {result['delta']!r})"
    where = " at every site" if unit != "site" and result["sites"][1:] else ""
    own = " statement.txt has each site's own guarantee." if where else ""
    return [f"This result is {found}-differentially private for each {unit}{where}.{own}"]


def _scores(result: Mapping[str, Any]) -> list[str]:
    """A line for scores on public records and one for released scores."""
    lines, scores, released = [], result["scores"], result["released"]
    if scores is not None:
        words = ", ".join(f"{name} {scores[key]:.4g}" for key, name in SCORES.items() if key in scores)
        lines.append(f"On the public test set ({scores['records']:,} records): {words}")
    if released is not None:
        lines.append(released_scores(released, result["site_count"]))
    return lines
