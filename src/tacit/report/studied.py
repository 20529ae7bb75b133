"""What `tacit simulate` leaves behind: result, posterior, statement, figures and a page.

All of it is made of public settings, released values and scores on public records.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # it loads JAX, which is to be loaded while something is shown
    from tacit.study import Federation

LEVEL = 0.95  # of intervals
MOST_PRINTED = 30  # sites in the terminal's table
SCORES = {
    "accuracy": "accuracy",
    "log_likelihood": "mean log-likelihood",
    "calibration_error": "calibration error",
    "root_mean_square_error": "root mean square error",
}


def write(
    out: Path, found: "Federation", about: Mapping[str, Any], budgets: Mapping[str, float], test_records: int
) -> dict[str, Any]:
    """Write all files into the folder `out`, result.json last; the result.

    about: what the result begins with. budgets: ε of each site's ledger, which other studies may share.
    """
    from tacit.report import forest

    posterior = found.posterior
    summary = posterior.summary(LEVEL)
    if not all(math.isfinite(row["mean"]) and math.isfinite(row["deviation"]) for row in summary):
        raise ValueError("the study did not end in finite numbers; expected settings (clip, prior) of ordinary size")
    rows = [{**row, "budget": _finite(budgets[row["name"]])} for row in found.sites]
    spent = [row["spent"] for row in rows]
    seeded = any(site["randomness"] == "seeded" for site in posterior.statement["sites"].values())
    files = ["result.json", "posterior.json", "statement.txt", "statement.json"]
    result = {
        **about,
        "epsilon": None if None in spent else max(spent),
        "delta": max(row["delta"] for row in rows),
        "adjacency": posterior.statement["adjacency"],
        "randomness": "seeded" if seeded else "secure",
        "communications": found.communications,
        "members": found.members,
        "sites": rows,
        "scores": None if found.scores is None else {"test_set": "public", "records": test_records, **found.scores},
        "released": found.released,
        "history": found.history,
        "level": LEVEL,
        "summary": summary,
        "plan": posterior.plan,
        "files": files,
    }
    try:
        posterior.save(out / "posterior.json")
        _put(out / "statement.txt", posterior.statement_text)
        _put(out / "statement.json", json.dumps(posterior.statement, indent=2, ensure_ascii=False) + "\n")
        drawn = {"forest.png": forest.draw(posterior, out / "forest.png", LEVEL)}
        drawn["curve.png"] = _draw_curve(result, out / "curve.png")
        for name, is_drawn in drawn.items():
            if is_drawn:
                files.append(name)
            else:
                (out / name).unlink(missing_ok=True)  # an earlier run's
        files.append("report.html")
        _put(out / "report.html", _page(out, found, result))
        _put(out / "result.json", json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None
    return result


def show(out: Path, result: Mapping[str, Any]) -> None:
    """Print the sites, the scores and where the files are."""
    console, sites = Console(), result["sites"]
    table = Table(title=Text(_title(result)))
    for j, name in enumerate(("site", "ε spent", "of", "δ", "updates")):
        table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", no_wrap=j > 0)
    for row in sites[:MOST_PRINTED]:
        table.add_row(*map(Text, _cells(row)))
    if len(sites) > MOST_PRINTED:
        table.caption = Text(f"{MOST_PRINTED} of {len(sites)} sites; all are in result.json")
    console.print(table)
    lines = [f"{row['name']} refused: {row['refused']}" for row in sites if row["refused"]]
    if len(lines) > MOST_PRINTED:
        lines[MOST_PRINTED:] = [f"{len(lines) - MOST_PRINTED} more sites refused; result.json has their reasons"]
    lines += [*_remarks(result), *_scores(result)]
    if result["randomness"] == "seeded":
        lines.append(
            "Randomness: SEEDED. Whoever knows or guesses the seed can remove the noise. For simulations only."
        )
    console.print(Text("\n".join([*lines, "", f"Written to {out}: {', '.join(result['files'])}"])))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _put(path: Path, text: str) -> None:
    """All or nothing: a reader finds the old file or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


# --- Words -------------------------------------------------------------------------------------------------------


def _title(result: Mapping[str, Any]) -> str:
    of = f" of {result['target']}" if result["target"] else ""
    count = result["members"]
    return f"{result['name']}: a {result['model']} regression{of} at {count} site{'s' * (count != 1)}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Name, ε spent, budget, δ, updates."""
    spent, budget = ("no budget", "") if row["spent"] is None else (f"{row['spent']:.4g}", f"{row['budget']:g}")
    return [row["name"], spent, budget, f"{row['delta']:g}", str(row["updates"])]


def _remarks(result: Mapping[str, Any]) -> list[str]:
    found = [] if result["epsilon"] is not None else ["NOT differentially private: epsilon = inf promises nothing."]
    shared = [row for row in result["sites"] if row["epsilon"] != row["budget"]]
    if shared:
        allowed = ", ".join(f"{row['name']} ε = {row['epsilon']:g}" for row in shared[:MOST_PRINTED])
        found.append(f"Ledgers of the sites' own count all studies; this one may spend: {allowed}.")
    if all(row["updates"] == 0 for row in result["sites"]):
        found.append("No site has made an update: the posterior is the prior.")
    return found


def _scores(result: Mapping[str, Any]) -> list[str]:
    """A line for scores on public records and one for scores that were paid for."""
    lines, scores, released = [], result["scores"], result["released"]
    if scores is not None:
        words = ", ".join(f"{name} {scores[key]:.4g}" for key, name in SCORES.items() if key in scores)
        lines.append(f"On the public test set ({scores['records']:,} records): {words}")
    if released is not None:
        rows = [f"{name} {score}{noise and f' ± {noise}'}" for name, score, noise in _released(released)]
        words = released.get("note") or f"{', '.join(rows)}; ± is the deviation of the noise"
        lines.append(f"On records that sites held out, released with noise: {words}")
    return lines


def _released(released: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and deviation of each score that was paid for."""
    rows = []
    for key, name in SCORES.items():
        if released.get(key) is not None:
            noise = released.get(f"{key}_deviation")
            rows.append((name, f"{released[key]:.4g}", "" if noise is None else f"{noise:.2g}"))
    return rows


# --- Figure and page ---------------------------------------------------------------------------------------------


def _draw_curve(result: Mapping[str, Any], path: Path) -> bool:
    """Scores on the public test set against communications; False if there are none, or no matplotlib."""
    from tacit.report.style import panels, save

    names = [
        name for name in ("accuracy", "log_likelihood", "root_mean_square_error") if name in (result["scores"] or ())
    ]
    rows = [row for row in result["history"] if all(name in row for name in names)]
    if not names or not rows:
        return False
    labels = [(SCORES[name].capitalize(), "communications", "on the public test set") for name in names]
    try:
        found = panels(*labels)
    except ValueError:  # no matplotlib
        return False
    for axes, name in zip(found, names, strict=True):
        axes.plot([row["communications"] for row in rows], [row[name] for row in rows], marker="o", markersize=3)
        axes.set_xlim(left=0)
    save(found[0], path)
    return True


def _page(out: Path, found: "Federation", result: Mapping[str, Any]) -> str:
    from tacit.report import page

    rounds, sites = result["plan"]["rounds"], result["sites"]
    headers = ("site", "ε spent", "of", "δ", "updates", "refused")
    refused = [row["refused"] or "" for row in sites]
    cells = [(*_cells(row), why) for row, why in zip(sites, refused, strict=True)]
    words = (
        f"Records: {result['data']}. Schedule: {result['plan']['schedule']}, {rounds} rounds, "
        f"{result['communications']:,} communications."
    )
    who = page.section(
        "Sites", page.paragraph(words), *map(page.paragraph, _remarks(result)), page.table(headers, cells)
    )
    posterior = found.posterior
    sections = [
        who,
        *_score_sections(out, result),
        *_comparison(result),
        *page.coefficients(posterior, result["summary"], LEVEL, out / "forest.png"),
        page.statement(posterior.statement_text),
    ]
    return page.page(_title(result), _lead(found, result), sections, result["version"])


def _lead(found: "Federation", result: Mapping[str, Any]) -> str:
    """What is promised to the records of the site that spent most."""
    worst = max(result["sites"], key=lambda row: math.inf if row["spent"] is None else row["spent"])["name"]
    words = found.statements[worst].splitlines()[0]
    if result["epsilon"] is not None and len(result["sites"]) > 1:
        words += f" That is the promise to the records at {worst}, where most was spent; each site's own is below."
    return words + (" Noise was SEEDED: for simulations only." if result["randomness"] == "seeded" else "")


def comparison(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and cells of a comparison: rows with a name, scores, and the ε of each site they have."""
    scores = list(SCORES)[:3]

    def budget(row: Mapping[str, Any]) -> str:
        return "∞" if row["epsilon"] is None else f"{row['epsilon']:.3g}"

    cells = [(row["name"], *(f"{row[key]:.4f}" for key in scores), budget(row)) for row in rows]
    return ("", "accuracy", "log-lik.", "calibration error", "ε"), cells


def _comparison(result: Mapping[str, Any]) -> list[str]:
    from tacit.report import page

    if "comparison" not in result:
        return []
    words = page.paragraph("On the same public test set.")
    return [page.section("Compared", words, page.table(*comparison(result["comparison"])))]


def _score_sections(out: Path, result: Mapping[str, Any]) -> list[str]:
    from tacit.report import page

    sections, scores, released = [], result["scores"], result["released"]
    if scores is not None:
        rows = [(name, f"{scores[key]:.4g}") for key, name in SCORES.items() if key in scores]
        curve = page.picture(out / "curve.png", "Scores on the public test set against communications")
        words = page.paragraph(f"{scores['records']:,} public records.")
        sections.append(
            page.section("Scores on the public test set", words, page.table(("score", "value"), rows), curve)
        )
    if released is not None:
        if "note" in released:
            parts = [page.paragraph(f"{released['note']}.".capitalize())]
        else:
            bins = [
                (f"{row['low']:.1f} to {row['high']:.1f}", *(f"{row[part]:.3f}" for part in _BIN))
                for row in released["calibration"]
            ]
            parts = [
                page.paragraph(
                    "Every fifth place for a record, in sums released with noise and paid for by each site; a record's "
                    f"log-likelihood counts as {released['least_log_likelihood']:g} at least."
                ),
                page.table(("score", "value", "deviation of the noise"), _released(released)),
                page.table(("predicted", "mean of predictions", "share of ones", "deviation of the noise"), bins)
                if bins
                else "",
            ]
        sections.append(page.section("Scores on held-out records", *parts))
    return sections


_BIN = ("mean_probability", "share", "deviation")
