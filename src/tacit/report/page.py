"""The report of a fit or a study: one self-contained page without scripts, which can be printed.

The page is `page.html`, a template that escapes all input; this file chooses the words and numbers. It reads only
findings (`findings.SHOWN`), so it cannot show unreleased values.
"""

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tacit.basics import durable
from tacit.basics.methods import METHODS
from tacit.links import INTERCEPT_SD, LINKS, Link
from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import rounded_up
from tacit.report import figures, findings, forest, site_effects
from tacit.report.figures import SCORES
from tacit.report.findings import Findings

HEADERS = ("coefficient", "mean", "sd", "low", "high")
SEEDED = "Noise was SEEDED: whoever knows or guesses the seed can remove it. This is a simulation, not private."
OPEN = "NOT differentially private: there is no guarantee (ε = ∞)."
READ = "READ FROM THE RECORDS"  # marks facts in a statement that were taken from data and not paid for
RATES = (0.001, 0.01, 0.05, 0.1)  # false-positive rates in the table
_WIDTH, _HEIGHT, _EDGE = 140.0, 22.0, (2.0, 26.0)  # of a site's small timeline, and its lower left corner


def write(folder: Path) -> Path:
    """Write report.html beside the files it is made from; it reads nothing else."""
    path = folder / "report.html"
    durable.write(path, render(findings.read(folder)))
    return path


def leave(out: Path, posterior: Posterior, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write all output files of a fit or a study, result.json last; return the result as written."""
    names = [findings.RESULT, findings.POSTERIOR, "statement.txt", "statement.json"]
    level = result["level"]
    summary = posterior.summary(level)
    plain = {**result, "environment": _environment(), "summary": summary, "plan": posterior.plan, "files": names}
    try:
        posterior.save(out / findings.POSTERIOR)
        durable.write(out / "statement.txt", posterior.statement_text)
        durable.write(out / "statement.json", json.dumps(posterior.statement, indent=2, ensure_ascii=False) + "\n")
        found = findings.of(json.loads(json.dumps(plain)), out)
        drawn = {"forest.png": "forest", "site_effects.png": "site_effects", "curve.png": "training"}
        for name, draw in ((name, figures.FIGURES[figure]) for name, figure in drawn.items()):
            if figures.save_one(draw, found, out / name):
                names.append(name)
            else:
                (out / name).unlink(missing_ok=True)  # an earlier run's
        names.append("report.html")
        durable.write(out / "report.html", render(found))
        durable.write(out / findings.RESULT, json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None
    return plain


def _environment() -> dict[str, str]:
    """Versions of the software that affects the numbers."""
    found = {"Python": platform.python_version()}
    return found | {name: metadata.version(name) for name in ("jax", "numpy", "scipy", "dp-accounting")}


def render(found: Findings) -> str:
    """The whole page."""
    from jinja2 import Environment, PackageLoader

    made = Environment(loader=PackageLoader("tacit.report", ""), autoescape=True, trim_blocks=True)
    return made.get_template("page.html").render(_content(found)) + "\n"


def _content(found: Findings) -> dict[str, Any]:
    result, posterior = found.result, found.posterior
    return {
        "title": title(result),
        "lead": _lead(found),
        "reds": list(_reds(found)),
        "facts": list(_facts(found)),
        "question": list(_question(found)),
        "promise": list(_promise(found)),
        "attacks": _attacks(found),
        "releases": _releases(found),
        "unit": found.statement.get("unit", "record"),
        "notes": _notes(found),
        "sites": _sites(found) if found.is_study else None,
        "found": list(_words_on_intervals(found)),
        "forest_words": _forest_words(found),
        "coefficients": _coefficients(found),
        "site_effects": site_effects.content(posterior, found.level, cells),
        "level": f"{100 * found.level:g}",
        "performance": [*_public_scores(result), *_released_scores(found), *_compared(result)],
        "calibration_words": "Observed shares against predicted probabilities. On the dashed line they agree.",
        "again": list(_again(found)),
        "software": _software(found),
        "plan": [(name, _plain(value)) for name, value in posterior.plan.items()],
        "statement": posterior.statement_text,
        "version": result["version"],
        "has_public": bool(result.get("scores") or result.get("comparison")),
        "pictures": {name: figures.inside(found, name) for name in figures.FIGURES},
    }


# --- The head ----------------------------------------------------------------------------------------------------


def title(result: Mapping[str, Any]) -> str:
    """The title of a result."""
    if "sites" in result:
        return findings.title(*(result[part] for part in ("name", "model", "target", "site_count")))
    unit = next(name for name in ("persons", "slots", "records") if name in result)
    return f"A {LINKS[result['model']].words} of {result['target']} on {result[unit]:,} {unit}"


def _own_words(found: Findings) -> tuple[str, list[str]]:
    """The site with the weakest guarantee, and the lines of its statement; ("", all lines) for a fit."""
    words = found.posterior.statement_text.splitlines()
    if not found.is_study:
        return "", words
    promised = {name: one["epsilon"] for name, one in found.statements.items()}
    worst = max(promised, key=lambda name: math.inf if promised[name] is None else promised[name])
    heads = [j for j in range(len(words) - 1) if words[j] == worst and words[j + 1] == "-" * len(worst)]
    return worst, words[heads[0] + 2 :] if heads else words


def _lead(found: Findings) -> str:
    worst, (first, *_) = _own_words(found)
    if found.result["epsilon"] is not None and len(found.result.get("sites", ())) > 1:
        first += f" This is the guarantee for the records at {worst}, where ε is largest; each site's own is below."
    return first


def _reds(found: Findings) -> Iterator[str]:
    """Warnings."""
    if not found.is_private:
        yield OPEN
    if found.result["randomness"] == "seeded":
        yield SEEDED
    yield from (note for note in _notes(found) if READ in note)


def _facts(found: Findings) -> Iterator[tuple[str, str]]:
    result, spent = found.result, found.result["epsilon"]
    unit = found.statement.get("unit", "record")
    if found.is_study:
        whose = "the largest of a site's statement" if result["sites"][1:] else "spent"
    else:
        whose = f"spent, of {result['epsilon_asked']:g}" if result.get("epsilon_asked") else "spent"
    yield "ε = ∞" if spent is None else f"ε = {rounded_up(spent)}", whose
    if found.is_private:
        yield f"δ = {rounded_up(result['delta'])}", "probability beyond what ε allows"
        change = "adding or removing it" if result["adjacency"] == "add-remove" else "replacing it"
        yield f"one {unit}", f"is protected by the guarantee: {change}"
    if found.is_study:
        yield f"{result['site_count']:,}", f"sites, {result['communications']:,} messages from them"
    scores = result.get("scores") or {}
    for name in ("accuracy", "root_mean_square_error"):
        if name in scores:
            shown = f"{100 * scores[name]:.1f} %" if name == "accuracy" else f"{scores[name]:.4g}"
            yield shown, f"{SCORES[name]} on {scores['records']:,} public records"


def _question(found: Findings) -> Iterator[str]:
    result, plan, model = found.result, found.posterior.plan, found.result["model"]
    target, link = result.get("target") or "the target", LINKS.get(model)
    effects, predictors = len(_effects(found.posterior)), max(1, len(_intercepts(found.posterior)))
    columns = effects // predictors
    question = f"How does {target} depend on {columns} column{'s' * (columns != 1)}?"
    if found.posterior.link not in LINKS:
        question = f"What do the records say about the {effects} coefficient{'s' * (effects != 1)} of {model}?"
    yield question + (f" Records: {result['data']}." if "data" in result else "")
    if link is not None:
        yield f"A {link.words}. " + link.equation.format(target=target)
    method = METHODS.get(plan.get("method", ""))
    if method is not None:
        yield f"Method: {method}. {_prior(plan, link)}"
    if found.is_study:
        yield (
            f"Records stayed at the sites. Schedule: {plan['schedule']}, {plan['rounds']} rounds; "
            f"{result['communications']:,} messages from sites in all."
        )


def _prior(plan: Mapping[str, Any], link: Link | None) -> str:
    """The prior in words; that of a model of one's own is in its code."""
    if link is None:
        return "The prior is the model's own."
    sd = plan["prior_deviation"]
    middle = "m" if link.start is not None and plan["method"] != "vi" else "0"
    which = ", m from the released mean of the target" if middle == "m" else ""
    return (
        f"Before any data, coefficients of standardised columns were N(0, {sd:g}²), and the intercept was "
        f"N({middle}, {max(sd, INTERCEPT_SD):g}²){which}."
    )


# --- The promise -------------------------------------------------------------------------------------------------


def _promise(found: Findings) -> Iterator[str]:
    """The statement up to its numbers; in a study, the statement of the site with the largest ε."""
    for line in _own_words(found)[1]:
        if line.startswith("Accountant:"):
            break
        if line:
            yield line
    if found.is_private and found.trusts_coordinator:
        yield (
            "All sites have the same budget. Every release is charged to the coordinator's ledger before a record is "
            "read; the ledger refuses a release that would exceed the budget."
        )
    elif found.is_private and found.is_study:
        yield (
            "Each site has its own budget. Every release is charged to the site's ledger before a record is read; the "
            "ledger refuses a release that would exceed the budget."
        )
    if found.result.get("tolerance"):
        yield f"{found.result['tolerance']} {findings.dropped(found.result)}"


def _attacks(found: Findings) -> list[tuple[str, str, str]]:
    """The limit on attacks at some false-positive rates, each at the site with the weakest guarantee there."""
    most = found.attacks() if found.is_private else {}
    return [
        (f"{100 * rate:g} %", f"{rounded_up(100 * most[rate])} %", f"{100 * rate:g} %")
        for rate in RATES
        if rate in most
    ]


_KINDS = {
    "ranges": "ranges of numbers, as histograms",
    "scaling": "means and variances",
    "residual": "the spread around the mean",
    "curvature": "curvature",
    "early": "gradients, before the last curvature",
    "gradients": "gradients",
    "evaluation": "scores on held-out records",
}


def _releases(found: Findings) -> dict[str, Any] | None:
    """What the plan releases of each kind, at the first site."""
    plan = found.posterior.plan
    rows = [
        (
            "factors" if kind == "gradients" and _releases_factors(plan) else _KINDS.get(kind, kind),
            f"{row['releases']:,}",
            f"{100 * row['share']:.3g} %",
            f"{row['noise_multiplier']:.4g}",
        )
        for kind, row in plan.get("releases", {}).items()
    ]
    if not rows or not found.is_private:
        return None
    sites = found.result.get("sites", [])
    at = f" at {sites[0]['name']}; other sites differ in the noise alone" if len(sites) > 1 else ""
    return {
        "head": ("what is released", "how often", "share of the budget", "noise"),
        "rows": rows,
        "caption": f"Planned releases{at}. Noise is relative to the largest contribution of one "
        f"{found.statement.get('unit', 'record')}",
    }


def _releases_factors(plan: Mapping[str, Any]) -> bool:
    """Whether expectation propagation releases factors in place of gradients."""
    return plan.get("method") in ("ep", "sep") and "curvature" not in plan["releases"]


def _notes(found: Findings) -> list[str]:
    """Assumptions of the guarantee at all sites, each sentence once."""
    statement = found.statement
    every = list(statement.get("sites", {}).values()) or [statement]
    said = found.result.get("tolerance")  # shown above
    notes = dict.fromkeys(note for one in every for note in one.get("notes", ()) if note != said)
    slots = [note for note in notes if note.startswith("The number of slots for records at ")]
    if len(slots) > 1:  # the table of sites has them
        first = "The number of slots for records at each site is public; the table below has it."
        return [first, *(note for note in notes if note not in slots)]
    return list(notes)


# --- Sites -------------------------------------------------------------------------------------------------------


def _sites(found: Findings) -> dict[str, Any]:
    result = found.result
    rows = [
        {
            "name": row["name"],
            "slots": f"{row['slots']:,}" if row.get("slots") else "",
            "spent": "∞" if row["spent"] is None else rounded_up(row["spent"]),
            "of": "∞" if row["epsilon"] is None else f"{row['epsilon']:g}",
            "ledger": "" if row["budget"] is None else f"{rounded_up(row['ledger_spent'])} of {row['budget']:g}",
            "delta": f"{row['delta']:g}",
            "updates": f"{row['updates']:,}",
            "time": _timeline(result, found.posterior.plan["rounds"], row),
            "refused": row["refused"] or "",
        }
        for row in result["sites"]
    ]
    return {
        "rows": rows,
        "words": remarks(result),
        "caption": "ε spent on this study. The small lines rise with each answer of a site; dashed: the limit",
        "has_times": any(row["time"] for row in rows),
        "has_ledgers": any(map(_has_more, result["sites"])),
        "has_refusals": any(row["refused"] for row in rows),
    }


def remarks(result: Mapping[str, Any], most: int = 30) -> list[str]:
    """Remarks on the sites' budgets."""
    found = [] if result["epsilon"] is not None else ["NOT differentially private: epsilon = inf gives no guarantee."]
    shared = [row for row in result["sites"] if _has_more(row)]
    if shared:
        totals = ", ".join(
            f"{row['name']} ε = {rounded_up(row['ledger_spent'])} of {row['budget']:g}" for row in shared[:most]
        )
        found.append(f"Ledgers of the sites' own count all studies; with this one: {totals}.")
    if all(row["updates"] == 0 for row in result["sites"]):
        found.append("No site has made an update: the posterior is the prior.")
    return found


def _has_more(row: Mapping[str, Any]) -> bool:
    """Whether a site's ledger counts more than this study."""
    if row["budget"] is None:
        return False
    pairs = ((row["ledger_spent"], row["spent"]), (row["budget"], row["epsilon"]))
    return not all(math.isclose(whole, own, rel_tol=1e-6) for whole, own in pairs)


def _timeline(result: Mapping[str, Any], rounds: int, site: Mapping[str, Any]) -> dict[str, Any] | None:
    """A site's spent ε (or else its updates) against rounds, as the line and dots of a small drawing."""
    history, name = result.get("history") or (), site["name"]
    what, limit = ("spent", site["epsilon"]) if any(row.get("spent") for row in history) else ("updates", rounds)
    points = [(row["round"], row[what][name]) for row in history if name in row.get(what, {})]
    if not points or not limit:
        return None
    last = max(row["round"] for row in history)

    def place(round: int, value: float) -> tuple[str, str]:
        x, y = _EDGE[0] + _WIDTH * round / last, _EDGE[1] - _HEIGHT * min(1.0, value / limit)
        return f"{x:.1f}", f"{y:.1f}"

    dots = [place(round, value) for round, value in points]
    line = "M" + " ".join([",".join(place(0, 0.0)), *(f"H{x} V{y}" for x, y in dots), f"H{_EDGE[0] + _WIDTH:g}"])
    end = f"ε rises to {rounded_up(points[-1][1])}" if what == "spent" else f"updates rise to {points[-1][1]}"
    words = f"{end} of {limit:g} in {len(points)} of {last} rounds"
    return {"line": line, "dots": dots if len(dots) <= 40 else [], "words": words}


# --- Coefficients ------------------------------------------------------------------------------------------------


def _intercepts(posterior: Posterior) -> list[int]:
    """The places of intercepts among the coefficients: one, or one of each class but the first, or none."""
    names = [row["name"] for row in posterior.summary()]
    if posterior.link not in LINKS:
        return [j for j, name in enumerate(names) if name == "intercept"]
    free = max(2, len(posterior.classes or ())) - 1 if LINKS[posterior.link].is_multiclass else 1
    return list(range(0, len(names), len(names) // free))


def _effects(posterior: Posterior, level: float = 0.95) -> list[dict[str, Any]]:
    """The rows of all coefficients but intercepts."""
    left_out = _intercepts(posterior)
    return [row for j, row in enumerate(posterior.summary(level)) if j not in left_out]


def _words_on_intervals(found: Findings) -> Iterator[str]:
    rows, intercepts = _effects(found.posterior, found.level), len(_intercepts(found.posterior))
    clear = sum(row["low"] > 0 or row["high"] < 0 for row in rows)
    besides = f" besides the intercept{'s' * (intercepts > 1)}" if intercepts else ""
    words = f"{clear} of {len(rows)} coefficients{besides} are clear from 0: their {100 * found.level:g} % intervals"
    if found.posterior.link in LINKS:
        cause = " An effect of a column is conditional on the other columns; it is not evidence of a cause."
    else:
        cause = ""
    yield f"{words} exclude 0.{cause}"
    if forest.lacks_noise(found.posterior.plan):
        yield "Intervals LEAVE OUT the privacy noise: they are too narrow."


def _forest_words(found: Findings) -> str:
    count = len(_effects(found.posterior))
    most = f" Shown: the {figures.MOST_ROWS} of {count} clearest from 0." if count > figures.MOST_ROWS else ""
    return (
        f"Points: posterior means; lines: {100 * found.level:g} % intervals. Effects of numbers are for the change in "
        f"brackets. The intercept is left out.{most}"
    )


def _coefficients(found: Findings) -> dict[str, Any]:
    rows = found.posterior.summary(found.level)
    return {
        "head": HEADERS,
        "rows": [(row["name"], *cells(row)) for row in rows],
        "clear": [row["low"] > 0 or row["high"] < 0 for row in rows],
        "caption": f"{intervals(found.posterior.plan, found.level)}; bold if the interval excludes 0",
    }


def intervals(plan: Mapping[str, Any], level: float) -> str:
    """The meaning of the columns low and high."""
    noise = " that leave out the privacy noise" if forest.lacks_noise(plan) else ""
    return f"low, high: {100 * level:g} % intervals{noise}, in the units of the data"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Mean, sd and interval ends of a coefficient, to two digits of the sd."""
    sd = row["sd"]
    decimals = max(0, 1 - math.floor(math.log10(sd))) if sd > 0 else 3
    form = f"z.{decimals}f" if decimals <= 6 and sd < 1e6 else ".3g"
    return [format(row[part], form) for part in ("mean", "sd", "low", "high")]


# --- Performance -------------------------------------------------------------------------------------------------


def _public_scores(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    scores = result.get("scores")
    if scores is None:
        return
    bins = [
        (f"{row['low']:.1f} to {row['high']:.1f}", f"{row['count']:,}", *(f"{row[part]:.3f}" for part in _BIN[:2]))
        for row in scores.get("calibration") or ()
        if row["count"]
    ]
    yield {
        "title": "On the public test set",
        "words": [f"{scores['records']:,} records declared public, separate from those of the sites."],
        "head": ("score", "value"),
        "rows": [(name, f"{scores[key]:.4g}") for key, name in SCORES.items() if key in scores],
        "caption": "Scores on the public test set",
        "bins_head": ("predicted", "records", "mean of predictions", "share of ones"),
        "bins": bins,
    }


def _released_scores(every: Findings) -> Iterator[dict[str, Any]]:
    found, sites = every.result.get("released"), every.result.get("site_count", 1)
    if found is None:
        return
    part: dict[str, Any] = {"title": "On records that sites held out" if sites > 1 else "On held-out records"}
    if "note" in found:
        yield part | {"words": [f"{found['note']}.".capitalize()]}
        return
    bins = [
        (f"{row['low']:.1f} to {row['high']:.1f}", *(f"{row[name]:.3f}" for name in _BIN))
        for row in found["calibration"]
    ]
    what = "person's id" if every.statement.get("unit") == "person" else "record's content"
    paid = "each site pays for them" if sites > 1 else "part of the budget pays for them"
    yield part | {
        "words": [
            f"Scores on a fifth of the records on average, chosen by a hash of each {what}. The sums are "
            f"released with noise, and {paid}. A record's log-likelihood counts as at least "
            f"{found['least_log_likelihood']:g}."
        ],
        "head": ("score", "value", "sd of the noise"),
        "rows": released_scores(found),
        "caption": "Scores on held-out records",
        "bins_head": ("predicted", "mean of predictions", "share of ones", "sd of the noise"),
        "bins": bins,
    }


_BIN = ("mean_probability", "share", "sd")


def released_scores(released: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and noise sd of each released score."""
    rows = []
    for key, name in SCORES.items():
        if released.get(key) is not None:
            noise = released.get(f"{key}_sd")
            rows.append((name, f"{released[key]:.4g}", "" if noise is None else f"{noise:.2g}"))
    return rows


def comparison(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and cells of a comparison: rows with a name, scores, and the ε of each site they have."""
    scores = list(SCORES)[:3]

    def budget(row: Mapping[str, Any]) -> str:
        return "∞" if row["epsilon"] is None else rounded_up(row["epsilon"])

    cells = [(row["name"], *(f"{row[key]:.4f}" for key in scores), budget(row)) for row in rows]
    return ("", "accuracy", "log-lik.", "calibration error", "ε"), cells


def _compared(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "comparison" in result:
        (_, *head), cells = comparison(result["comparison"])
        words = [
            "On the same public test set: all sites together, without privacy, and each site alone. The guarantee "
            "above covers only the first line: make such a comparison with public records only."
        ]
        yield {"title": "Compared", "words": words, "head": ("fit", *head), "rows": cells, "caption": "Compared"}


# --- Again -------------------------------------------------------------------------------------------------------


def _again(found: Findings) -> Iterator[str]:
    if not found.is_private:
        yield "No noise was added: the same versions, records and plan give about the same numbers."
    elif found.result["randomness"] == "seeded":
        yield "The noise was seeded: the same versions, records, plan and seed give the same numbers."
    else:
        yield (
            "The noise was drawn from the operating system's secure source and not kept, as privacy requires: another "
            "run with the same plan gives another posterior, with the same guarantee."
        )
    if found.is_study and found.is_private:
        whose = "The coordinator's" if found.trusts_coordinator else "Every site's"
        yield f"{whose} ledger can be checked with tacit ledger verify."


def _software(found: Findings) -> list[tuple[str, str]]:
    result = found.result
    rows = [("tacit", result["version"]), *(result.get("environment") or {}).items()]
    if result.get("study"):
        rows.append(("study, by the hash of its plan", result["study"]))
    rows += [(f"SHA-256 of {name}", mark) for name, mark in found.hashes.items()]
    return rows


def _plain(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} = {_plain(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
