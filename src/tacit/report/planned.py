"""The output of `tacit plan`: expected accuracy and interval widths over a range of ε and rounds."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.basics import durable
from tacit.links import link_of
from tacit.planning.forecast import Question
from tacit.report.style import COLOURS, logarithmic, panels, save

NOTE = (
    "From simulated data of these sizes, with two kinds of signal; no record was read. Real data differ: read the "
    "numbers as orders of magnitude. ± is the standard deviation between studies."
)


def is_share(question: Question) -> bool:
    """Whether the error is a share of misclassified records."""
    return link_of(question.kind).target.has_two_classes


def write(out: Path, question: Question, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write plan.json, plan.csv and plan.png into a folder; return the result as plain data."""
    result = {"question": question.to_dict(), "note": NOTE, "rows": rows}
    durable.write(out / "plan.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    with (out / "plan.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    save(draw(question, rows), out / "plan.png")
    return result


def draw(question: Question, rows: list[dict[str, Any]]) -> Any:
    """Three panels against ε, a line for each number of rounds."""
    worse = "points of accuracy lost" if is_share(question) else "rise of the prediction error, %"
    labels = (
        ("Prediction", "error_rise", 100.0, worse),
        ("Likelihood", "log_likelihood_loss", 1.0, "log-likelihood lost per test record"),
        ("Intervals", "interval_widening", 1.0, "times as wide as without privacy"),
    )
    budget = f"ε at δ = {question.delta:g}" + (", of each site" if question.sites > 1 else "")
    found = panels(*((title, budget, words) for title, _, _, words in labels), width=4.4, height=3.6)
    counts = list(dict.fromkeys(row["rounds"] for row in rows))
    for axes, (_, name, unit, _) in zip(found, labels, strict=True):
        for colour, count in zip(COLOURS, counts, strict=False):
            own = [row for row in rows if row["rounds"] == count]
            epsilons, values = [row["epsilon"] for row in own], [unit * row[name] for row in own]
            errors = [unit * row[f"{name}_sd"] for row in own]
            shift = 1 + 0.03 * (counts.index(count) - (len(counts) - 1) / 2)  # side by side
            places = [epsilon * shift for epsilon in epsilons]
            axes.errorbar(places, values, yerr=errors, color=colour, marker="o", capsize=2, label=f"{count} rounds")
        axes.axvline(question.epsilon, color="grey", linestyle=":", linewidth=1)
        logarithmic(axes)
        axes.axhline(1.0 if name == "interval_widening" else 0.0, color="black", linewidth=0.8)
    logarithmic(found[2], "y")
    found[0].legend(frameon=False, fontsize=8)
    return found[0]


def show(question: Question, rows: list[dict[str, Any]], out: Path) -> None:
    """A table for a terminal."""
    from rich.console import Console
    from rich.table import Table

    sums = " with secure sums" if question.secure_sum else ""
    sites = f" over {question.sites} sites{sums}" if question.sites > 1 else ""
    shape = (
        f"{question.records:,} records, {question.features} features{sites}, {question.kind}, δ = {question.delta:g}"
    )
    table = Table(title=f"What to expect: {shape}", caption_justify="left")
    share = is_share(question)
    headers = (
        *("ε", "rounds"),
        "accuracy lost, points" if share else "error up, %",
        *("log-likelihood lost", "intervals, times wider"),
    )
    for header in headers:
        table.add_column(header, justify="right")
    for row in rows:
        is_asked = row["epsilon"] == question.epsilon
        table.add_row(
            f"{row['epsilon']:g}",
            str(row["rounds"]),
            _spread(row, "error_rise", 100),
            _spread(row, "log_likelihood_loss", 1),
            f"{row['interval_widening']:.3g}",
            style="bold" if is_asked else None,
        )
    console = Console()
    console.print(table)
    best = min((row for row in rows if row["epsilon"] == question.epsilon), key=lambda row: row["log_likelihood_loss"])
    console.print(_sentence(question, best), highlight=False)
    console.print(f"- {NOTE}", highlight=False)
    console.print(f"Written: {out}/plan.json, .csv, .png", highlight=False, markup=False, soft_wrap=True)


def _sentence(question: Question, row: Mapping[str, Any]) -> str:
    """The forecast at the requested ε, with the best number of rounds."""
    where = f"At ε = {question.epsilon:g}"
    rounds = f" in {row['rounds']} rounds"
    exact, reached = row["error_without_privacy"], row["error"]
    if is_share(question):
        what = (
            f"accuracy of about {100 * (1 - reached):.1f} % where {100 * (1 - exact):.1f} % is reached without privacy"
        )
    else:
        what = f"a prediction error {100 * row['error_rise']:.2g} % above that without privacy"
    return f"{where}{rounds}: {what}, and intervals {row['interval_widening']:.2g} times as wide."


def _spread(row: Mapping[str, Any], name: str, unit: float) -> str:
    return f"{unit * row[name]:.3g} ± {unit * row[f'{name}_sd']:.2g}"
