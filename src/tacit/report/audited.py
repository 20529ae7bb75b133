"""The output of `tacit audit`: the claim, the bound that the attack proves, and the attack's ROC curve."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tacit.basics import durable

if TYPE_CHECKING:  # it loads JAX, which should load while progress is shown
    from tacit.audit.runs import Audit

LOOKS = {"trace": "every release", "value": "the final posterior"}
ASSUMES = {"nothing": "nothing (exact binomial)", "gaussian": "a Gaussian shift (μ)"}
LEAST_RATE = 1e-3  # start of the logarithmic panel
POINTS = 30  # of the claimed curve


@contextmanager
def watching() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's standard error; yields the function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} runs"))
    console = Console(stderr=True)
    settings: dict[str, Any] = {"console": console, "transient": True, "disable": not console.is_terminal}
    with Progress(*columns, TimeRemainingColumn(), **settings) as progress:
        bar = progress.add_task("Planning and compiling: some seconds", total=None)

        def move(done: int, runs: int) -> None:
            progress.update(bar, completed=done, total=runs, description="Attacking")

        yield move


def result_of(found: "Audit") -> dict[str, Any]:
    """An audit's findings as plain data."""
    bounds: dict[str, dict[str, float]] = {}
    for (look, assumption), bound in found.bounds.items():
        bounds.setdefault(look, {})[assumption] = bound.epsilon
    best = found.best
    look, assumption = next(name for name, bound in found.bounds.items() if bound is best)
    return {
        "claimed_epsilon": found.claimed_epsilon,
        "delta": found.delta,
        "lower_bound": best.epsilon,
        "confidence": found.confidence,
        "runs": found.runs,
        "tightness": best.epsilon / found.claimed_epsilon,
        "refuted": found.is_refuted,
        "looks_at": look,
        "assumes": assumption,
        "false_positive_rate": best.false_positive_rate,
        "true_positive_rate": best.true_positive_rate,
        "lower_bounds": bounds,
        "adjacency": "add-remove",
        "randomness": "seeded",
    }


def write(out: Path, result: dict[str, Any], found: "Audit | None" = None) -> dict[str, Any]:
    """Write the result and, if there is one, the ROC curve into `out`; return the result with the files' names."""
    files = ["result.json"]
    try:
        if found is not None and _draw(found, out / "roc.png"):
            files.append("roc.png")
        result = {**result, "files": files}
        words = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
        durable.write(out / "result.json", words + "\n")
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None
    return result


def show(out: Path, result: Mapping[str, Any]) -> None:
    """Print claim, bounds and verdict."""
    console = Console()
    if "lower_bounds" in result:
        table = Table(
            title=Text(f"An attack on {result['subject']}\nwith {result['runs']:,} runs, canary: {result['canary']}")
        )
        for j, name in enumerate(("the attacker sees", "the bound assumes", "ε is at least")):
            table.add_column(name, justify="right" if j == 2 else "left")
        for look, bounds in result["lower_bounds"].items():
            for assumption, epsilon in bounds.items():
                table.add_row(LOOKS[look], ASSUMES[assumption], f"{epsilon:.3f}")
        console.print(table)
    else:
        words = f"{result['correct']} of {result['guesses']} guesses about {result['canaries']} canaries were right"
        console.print(Text(f"One run of {result['subject']}: {words}."))
    lower, claimed, sure = result["lower_bound"], result["claimed_epsilon"], result["confidence"]
    console.print(
        Text(
            f"Claimed: ε = {claimed:.4g} at δ = {result['delta']:g}.\n"
            f"Shown: ε ≥ {lower:.3g} with {sure:.1%} confidence, {result['tightness']:.0%} of the claim."
        )
    )
    if result["refuted"]:
        console.print(Text("REFUTED: the program is less private than it claims. Do not use it; please report this."))
    else:
        console.print(Text("Not refuted. A failed attack proves no privacy; a successful one would have refuted it."))
    console.print(Text(f"Written to {out}: {', '.join(result['files'])}"))


def _draw(found: "Audit", path: Path) -> bool:
    """Draw the ROC curve of the attack on the trace and the claim's limit; False without matplotlib."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        return False
    import numpy as np

    from tacit.privacy.accounting import true_positive_rate
    from tacit.report import style

    scores = np.concatenate([found.without, found.within])
    order = np.argsort(-np.nan_to_num(scores, nan=np.inf))
    is_in = (np.arange(len(scores)) >= len(found.without))[order]
    alarms = np.concatenate([[0.0], np.cumsum(~is_in) / len(found.without)])
    hits = np.concatenate([[0.0], np.cumsum(is_in) / len(found.within)])
    kept = np.unique(np.linspace(0, len(alarms) - 1, 4000).astype(int))
    few = np.geomspace(LEAST_RATE, 1, POINTS)
    rates = np.unique(np.concatenate([few, 1 - few, [0.0]]))
    claimed = [true_positive_rate(found.event, float(rate)) for rate in rates]
    labels = ("false positives: runs without the canary", "true positives: runs with it")
    title = f"claimed ε = {found.claimed_epsilon:.3g}, shown ε ≥ {found.best.epsilon:.3g}"
    axes = style.panels((title, *labels), ("at low false-positive rates", *labels), width=4.6, height=4.4)
    for panel in axes:
        panel.fill_between(rates, claimed, 1, color=style.COLOURS[1], alpha=0.15, lw=0, label="would refute the claim")
        panel.plot(rates, claimed, color=style.COLOURS[1], label="the most that the claim allows")
        panel.plot(alarms[kept], hits[kept], color=style.COLOURS[0], label="the attack, on every release")
        panel.plot([0, 1], [0, 1], color="grey", ls=":", label="guessing")
        panel.set_aspect("equal" if panel is axes[0] else "auto")
    axes[1].plot(few, few, color="grey", ls=":")
    for which in "xy":
        style.logarithmic(axes[1], which)
        getattr(axes[1], f"set_{which}lim")(LEAST_RATE, 1)
        getattr(axes[1], f"set_{which}ticks")([0.001, 0.01, 0.1, 1])
    axes[0].set_xlim(0, 1)
    axes[0].set_ylim(0, 1)
    axes[0].legend(loc="lower right", fontsize=8)
    style.save(axes[0], path)
    return True
