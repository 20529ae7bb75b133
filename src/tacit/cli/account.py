"""tacit account"""

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.checks import show
from tacit.cli.options import RATE, STEPS, AccountantOption, AdjacencyOption, AsJsonOption, DeltaOption


def account(
    delta: DeltaOption,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise relative to the clip.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    steps: Annotated[int | None, typer.Option(help=STEPS)] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A CSV file of levels: noise_multiplier, sampling_rate, steps.")
    ] = None,
    accountant: AccountantOption = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Draw ε against steps into this PNG, SVG or PDF file.")] = None,
) -> None:
    """The price of a plan: ε at a given δ."""
    from tacit.files.schedule_file import read_schedule
    from tacit.privacy import accounting
    from tacit.privacy.events import compose

    plan: dict[str, Any]
    levels: list[Any]
    if schedule is not None:
        if (noise_multiplier, sampling_rate, steps) != (None, None, None):
            raise ValueError(
                "give either --noise-multiplier, --sampling-rate and --steps, or --schedule with all of them"
            )
        levels = read_schedule(schedule)
        plan = {"schedule": str(schedule), "levels": len(levels), "steps": sum(level.steps for level in levels)}
    elif noise_multiplier is not None:
        rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
        levels = [accounting.subsampled_plan(noise_multiplier, rate, count)]
        plan = {"noise_multiplier": noise_multiplier, "sampling_rate": rate, "steps": count}
    else:
        raise ValueError("give either --noise-multiplier (with --sampling-rate and --steps) or --schedule FILE.csv")
    event = compose(*levels)
    epsilon = accounting.epsilon(event, delta, accountant, adjacency)  # type: ignore[arg-type]  # checked there
    if plot is not None:
        _plot_steps(levels, delta, accountant, adjacency, plot)
    result = {"epsilon": epsilon, "delta": delta, "accountant": accountant, "adjacency": adjacency, **plan}
    show(result, as_json, f"ε = {epsilon:.6g} at δ = {delta:g} ({accountant}, {adjacency})")


def _plot_steps(levels: list[Any], delta: float, accountant: str, adjacency: str, path: Path) -> None:
    """Plot ε after each of about thirty step counts, through the levels in order."""
    from tacit.privacy import accounting
    from tacit.privacy.events import Repeated, compose
    from tacit.report.style import figure, save

    total = sum(level.steps for level in levels)
    counts = sorted({max(1, round(total * i / 30)) for i in range(1, 31)})
    prices = []
    for count in counts:
        done, left = [], count
        for level in levels:
            now = min(left, level.steps)
            if now:
                done.append(Repeated(level.event, now))
            left -= now
        prices.append(accounting.epsilon(compose(*done), delta, accountant, adjacency))  # type: ignore[arg-type]
    axes = figure(f"Privacy cost at δ = {delta:g}", "steps", f"ε ({accountant}, {adjacency})")
    axes.plot(counts, prices, marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    save(axes, path)
