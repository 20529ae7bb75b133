"""Published figures, run again: ours beside theirs.

One file per source, one function per figure: `function(quick, seeds, track) -> Result`, where `track` wraps its jobs
(the progress bar). This file has what they share: the closed table of names, running over seeds, and writing NAME.csv,
NAME.json and NAME.png. `pages` writes the pages of the documentation.
"""

import csv
import importlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tacit.basics.plain import finite

WORDS = ("dataset", "method")  # left-aligned columns of a printed table
Row = dict[str, Any]
Job = TypeVar("Job")


class Track(Protocol):
    """Yields the jobs one by one and shows progress."""

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Job]: ...


@dataclass(frozen=True)
class Result:
    """The result of a figure's function.

    rows: flat, the lines of the CSV file. notes: what a reader must know. shown: columns of the printed table and their
    headers; a standard error (or a standard deviation, NAME_sd) is printed beside its mean, and a share under a header
    with % as a percentage. axes: of the finished figure. printed: the rows of the printed table, if it has not all.
    """

    rows: list[Row]
    notes: list[str]
    shown: dict[str, str]
    axes: Any
    printed: list[Row] | None = None


@dataclass(frozen=True)
class Reproduction:
    """One published figure: the file and function that make it, and how many seeds they run; 0 if nothing is random."""

    module: str
    function: str
    source: str
    title: str
    seeds: int
    quick_seeds: int


_HONG = "J. Hong, Dynamic policies on differentially private learning, slides"
_JALKO = "J. Jälkö, thesis on differentially private variational inference (2017)"
_LIU = "X. Liu, Distributed variational inference and privacy, MPhil dissertation (2019)"
_SEP = "M. Vinaroz & M. Park, DP-SEP: differentially private stochastic expectation propagation (2021)"
_OURS = "Ours, after Jälkö (2017), chapter 5, and Vinaroz & Park (2021)"
_SHARMA = "M. Sharma et al., Differentially private federated variational inference (2019)"
REPRODUCTIONS: dict[str, Reproduction] = {
    "jalko-fig21": Reproduction(
        "jalko_composition", "fig21", _JALKO, "Fig. 2.1: noisy descent by composition theorem", 20, 20
    ),
    "jalko-fig22": Reproduction(
        "jalko_composition", "fig22", _JALKO, "Fig. 2.2: noise needed for (1, 0.001) by accountant", 0, 0
    ),
    "jalko-fig51": Reproduction(
        "jalko_logistic", "fig51", _JALKO, "Fig. 5.1: accuracy against ε, Abalone and Adult", 10, 3
    ),
    "jalko-fig52": Reproduction(
        "jalko_logistic", "fig52", _JALKO, "Fig. 5.2: accuracy against ε by sampling rate", 10, 3
    ),
    "jalko-fig53": Reproduction("jalko_logistic", "fig53", _JALKO, "Fig. 5.3: accuracy against ε by clip", 10, 3),
    "jalko-fig54": Reproduction(
        "jalko_mixture", "fig54", _JALKO, "Fig. 5.4: Gaussian mixture, log-likelihood against ε", 10, 3
    ),
    "jalko-fig55": Reproduction(
        "jalko_mixture", "fig55", _JALKO, "Fig. 5.5: Gaussian mixture, the posterior drawn", 1, 1
    ),
    "liu-fig33": Reproduction("liu_sites", "fig33", _LIU, "Fig. 3.3: what algorithm 3 costs, by number of sites", 0, 0),
    "liu-fig41": Reproduction(
        "liu_sites", "fig41", _LIU, "Fig. 4.1: five sites, log KL and ε by server updates", 20, 2
    ),
    "liu-fig42": Reproduction(
        "liu_batches", "fig42", _LIU, "Fig. 4.2: log KL against ε by sampling rate and clip", 10, 2
    ),
    "liu-fig43": Reproduction(
        "liu_clipping", "fig43", _LIU, "Fig. 4.3: clips that follow the gradients, 3 ways", 10, 2
    ),
    "liu-fig44": Reproduction(
        "liu_clipping", "fig44", _LIU, "Fig. 4.4: the same where a fixed clip is unstable", 10, 2
    ),
    "liu-fig45": Reproduction("liu_clipping", "fig45", _LIU, "Fig. 4.5: the same on another data set", 10, 2),
    "dataset-level": Reproduction(
        "dataset",
        "level",
        "Ours, after X. Liu (2019), section 3.3",
        "Whole sites as the unit, four ways",
        20,
        3,
    ),
    "hong-schedules": Reproduction(
        "hong", "schedules", _HONG, "Noise by eq. (10) against constant noise, at equal ε", 50, 3
    ),
    "methods": Reproduction("methods", "methods", _OURS, "DPVI, DP-SEP and DP-SGLD against ε on three data sets", 5, 1),
    "methods-coverage": Reproduction(
        "methods", "coverage", _OURS, "Coverage of 90 % intervals: EP beside VI, simulated", 200, 5
    ),
    "policies": Reproduction(
        "policies", "policies", _OURS, "The default policy beside hand-tuning that is not private", 10, 2
    ),
    "secure-sums": Reproduction(
        "secure",
        "sums",
        "Ours, after K. Bonawitz et al. (2017) and P. Kairouz et al. (2021)",
        "Secure sums beside noise of each site's own, ten sites of Adult",
        5,
        1,
    ),
    "sep-table": Reproduction("sep", "table", _SEP, "Clusters: F-norm and KL proxy by ε", 10, 2),
    "sep-fig1": Reproduction("sep", "fig1", _SEP, "Fig. 1: the clusters of one data set", 1, 1),
    "sharma-table5": Reproduction("sharma", "table5", _SHARMA, "Table 5: ten uneven sites of Adult, A to D", 5, 1),
    "sharma-fig1": Reproduction("sharma", "fig1", _SHARMA, "Fig. 1: distribution C, against communications", 5, 1),
}


def run(name: str | None, out: Path, quick: bool, seeds: int | None, as_json: bool, page: Path | None = None) -> None:
    """Run one reproduction, write its three files into `out`, and print ours beside theirs.

    page: also write it as a page of the documentation into this folder.
    """
    from tacit.report.progress import watching
    from tacit.report.style import figure, save

    chosen = _chosen(name)
    assert name is not None
    if quick and page is not None:
        raise ValueError(f"page={page} with --quick: a page needs a full run; leave out one of the two")
    count = _count(name, chosen, quick, seeds)
    figure("", "", "")  # refuses a missing matplotlib before the work, not after
    for what, folder in (("out", out), ("page", page)):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{what}={folder}: {error.strerror}; expected a folder that can be written to") from None
    started = time.monotonic()
    with watching() as watch:
        function = getattr(importlib.import_module(f"tacit_reproduce.{chosen.module}"), chosen.function)
        watch.say(f"{name}: {chosen.title}", f"settings × {count} seeds" if count > 1 else "settings")
        outcome: Result = function(quick, count, watch.track)
    notes = list(outcome.notes)
    if count:
        seeded = "seed 0" if count == 1 else f"seeds 0 to {count - 1}"
        notes.append(f"The noise is seeded ({seeded}, the same for all rows): a simulation, not private.")
    if quick:
        notes.append("Quick: fewer settings and seeds than published; a check that it runs, not a result.")
    rows = [
        {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
        for row in outcome.rows
    ]
    result = {
        "name": name,
        "source": f"{chosen.source}. {chosen.title}",
        "quick": quick,
        "seeds": count,
        "notes": notes,
        "rows": rows,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _write_csv(out / f"{name}.csv", outcome.rows)
    save(outcome.axes, out / f"{name}.png")
    written = str(out / f"{name}.csv, .json, .png")
    if page is not None:
        from tacit_reproduce import pages

        written += f"; {pages.write(page, name, outcome, count, time.monotonic() - started, notes)}"
    if as_json:
        print(json.dumps(result))
    else:
        _print(f"{chosen.title} ({name})", outcome, notes, written)


def _chosen(name: str | None) -> Reproduction:
    if name is None:
        raise ValueError(f"no name given; expected one of {', '.join(REPRODUCTIONS)}, or --list")
    if name not in REPRODUCTIONS:
        raise ValueError(f"name={name!r}; expected one of {', '.join(REPRODUCTIONS)}")
    return REPRODUCTIONS[name]


def _count(name: str | None, chosen: Reproduction, quick: bool, seeds: int | None) -> int:
    if seeds is None:
        return chosen.quick_seeds if quick else chosen.seeds
    if chosen.seeds == 0:
        raise ValueError(f"seeds={seeds}; {name} draws nothing at random, so leave --seeds out")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}; expected a whole number of at least 1")
    return seeds


# --- Over seeds --------------------------------------------------------------------------------------------------


def over_seeds(one: Callable[..., Any], seeds: int, *arguments: Any) -> Any:
    """`one(key, *arguments)` for each seed, in one compiled program; the first axis of the result is the seeds."""
    import jax
    import jax.numpy as jnp

    from tacit.privacy.randomness import insecure_key

    keys = jnp.stack([insecure_key(seed) for seed in range(seeds)])
    return jax.jit(jax.vmap(one, (0, *(None for _ in arguments))))(keys, *arguments)


def mean_and_error(name: str, values: Any) -> Row:
    """Columns `name` and `name_standard_error`: the mean over seeds and its standard error (None for one seed,
    and where a value is not finite)."""
    numbers = [float(value) for value in values]
    has_error = len(numbers) > 1 and all(map(math.isfinite, numbers))
    error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if has_error else None
    return {name: statistics.fmean(numbers), f"{name}_standard_error": error}


# --- Files and table ---------------------------------------------------------------------------------------------


def _write_csv(path: Path, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))  # in the order in which rows first have them
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cell(row: Row, name: str, unit: float) -> str:
    value, error = row.get(name), row.get(f"{name}_standard_error", row.get(f"{name}_sd"))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    shown = "∞" if math.isinf(value) else f"{value * unit:.4g}"
    return shown if error is None else f"{shown} ± {error * unit:.2g}"


def cells(outcome: Result) -> list[list[str]]:
    """The cells of the printed table, without its headers."""
    rows = outcome.rows if outcome.printed is None else outcome.printed
    return [[_cell(row, name, 100 if "%" in header else 1) for name, header in outcome.shown.items()] for row in rows]


def tables_of(title: str, outcome: Result, width: int) -> list[Any]:
    """The printed table; where its columns need more than `width`, several tables, one below the other.

    No column is squeezed. Each table repeats the columns of words (or the first one), so that rows can be read across.
    """
    from rich.table import Table

    rows, headers = cells(outcome), list(outcome.shown.items())
    needed = [max(len(header), *(len(row[j]) for row in rows)) + 3 for j, (_, header) in enumerate(headers)]
    repeated = [j for j, (name, _) in enumerate(headers) if name in WORDS] or [0]
    groups: list[list[int]] = [[]]
    for j in [j for j in range(len(headers)) if j not in repeated]:
        if groups[-1] and 1 + sum(needed[k] for k in [*repeated, *groups[-1], j]) > width:
            groups.append([])
        groups[-1].append(j)
    found = []
    for group in groups:
        table, chosen = Table(title=None if found else title), sorted([*repeated, *group])
        for name, header in [headers[j] for j in chosen]:
            table.add_column(header, justify="left" if name in WORDS else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[j] for j in chosen))
        found.append(table)
    return found


def _print(title: str, outcome: Result, notes: list[str], written: str) -> None:
    from rich.console import Console

    console = Console()
    for table in tables_of(title, outcome, console.width):
        console.print(table)
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False)
    console.print(f"Written: {written}", highlight=False, markup=False, soft_wrap=True)
