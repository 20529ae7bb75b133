"""tacit calibrate"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.basics.shapes import SHAPES
from tacit.cli.checks import show
from tacit.cli.options import RATE, STEPS, AccountantOption, AdjacencyOption, AsJsonOption, DeltaOption, among

LEVEL_COLUMNS = ("noise_multiplier", "sampling_rate", "steps")  # of a schedule's file

EpsilonOption = Annotated[float, typer.Option(help="The ε to stay within.")]
RateOption = Annotated[float | None, typer.Option(help=RATE)]
StepsOption = Annotated[int | None, typer.Option(help=STEPS)]
ShapeOption = Annotated[
    str | None,
    typer.Option(help=f"How noise changes over the steps: {', '.join(SHAPES)}.", autocompletion=among(*SHAPES)),
]
NoiseEndOption = Annotated[float | None, typer.Option(help="The last step's noise, relative to the first's.")]
PowerOption = Annotated[
    float | None, typer.Option(help="For shape polynomial; above 1 noise changes late. By default 2.")
]
StagesOption = Annotated[int | None, typer.Option(help="For shape stepwise: number of stages. By default 4.")]
ContractionOption = Annotated[
    float | None, typer.Option(help="For shape influence: factor by which a step shrinks earlier errors, in the loss.")
]
MomentumOption = Annotated[float | None, typer.Option(help="For shape influence: decay of the momentum, if any.")]
RateEndOption = Annotated[
    float | None, typer.Option(help="The last step's sampling rate, if it changes from --sampling-rate.")
]
LevelsOption = Annotated[
    Path | None, typer.Option(help="A CSV file of levels, as for account; their noise is scaled together.")
]
OutOption = Annotated[Path | None, typer.Option(help="Write the levels to this CSV file, for account --schedule.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw noise against steps into this PNG, SVG or PDF file.")]


def calibrate(
    epsilon: EpsilonOption,
    delta: DeltaOption,
    sampling_rate: RateOption = None,
    steps: StepsOption = None,
    shape: ShapeOption = None,
    noise_end: NoiseEndOption = None,
    power: PowerOption = None,
    stages: StagesOption = None,
    contraction: ContractionOption = None,
    momentum: MomentumOption = None,
    rate_end: RateEndOption = None,
    schedule: LevelsOption = None,
    accountant: AccountantOption = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJsonOption = False,
    out: OutOption = None,
    plot: PlotOption = None,
) -> None:
    """Find the least noise that keeps a plan within ε.

    With --shape or --schedule, noise changes over the steps in at most 32 levels; the command finds its scale.
    """
    from tacit.privacy import accounting

    rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
    settings = {"noise_end": noise_end, "power": power, "stages": stages}
    settings |= {"contraction": contraction, "momentum": momentum}
    given = {name: value for name, value in settings.items() if value is not None}
    if schedule is not None:
        _refuse_beside_schedule(
            {"sampling_rate": sampling_rate, "steps": steps, "shape": shape, "rate_end": rate_end, **given}
        )
        found_schedule, about = _read_levels(schedule), {"schedule": str(schedule)}
    elif (shape, rate_end, out, plot) != (None, None, None, None):
        found_schedule, about = _shaped(shape or "constant", given, rate, rate_end, count)
    elif given:
        name, value = next(iter(given.items()))
        raise ValueError(f"{name}={value} without --shape; expected one of {', '.join(SHAPES)}")
    else:
        found_schedule, about = None, {"sampling_rate": rate, "steps": count}
    found = accounting.calibrate(
        epsilon,
        delta,
        sampling_rate=rate,
        steps=count,
        plan=None if found_schedule is None else found_schedule.event,
        accountant=accountant,  # type: ignore[arg-type]  # checked there
        adjacency=adjacency,  # type: ignore[arg-type]
    )
    result = {"noise_multiplier": found.noise_multiplier, "epsilon": found.epsilon, "target_epsilon": epsilon}
    result |= {"delta": delta, "accountant": accountant, "adjacency": adjacency, **about}
    what = "noise multiplier" if found_schedule is None else "scale of the noise"
    words = f"{what} {found.noise_multiplier:.6g}: ε = {found.epsilon:.6g} at δ = {delta:g}"
    words = f"{words} ({accountant}, {adjacency})"
    if found_schedule is not None:
        more, words = _leave_levels(found_schedule, found, delta, words, out, plot)
        result |= more
    show(result, as_json, words)


def _refuse_beside_schedule(others: dict[str, Any]) -> None:
    refused = [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]
    if refused:
        raise ValueError(f"{', '.join(refused)} with --schedule, whose file gives all of it; use one or the other")


def _leave_levels(
    schedule: Any, found: Any, delta: float, words: str, out: Path | None, plot: Path | None
) -> tuple[dict[str, Any], str]:
    """Write and plot the levels of a schedule if asked; return them as a result and as text after `words`."""
    multipliers = schedule.noise_multipliers(found.noise_multiplier)
    levels = list(zip(multipliers, schedule.sampling_rate, schedule.steps, strict=True))
    result = {
        "steps": schedule.total,
        "levels": [dict(zip(LEVEL_COLUMNS, level, strict=True)) for level in levels],
        "quantisation_error": schedule.error,
        "largest_difference": schedule.largest,
    }
    words = "\n".join(_words_of_levels(words, levels, schedule.error, schedule.largest))
    if out is not None:
        _write_levels(out, levels)
        result["out"] = str(out)
        words = f"{words}\nWritten to {out}"
    if plot is not None:
        _plot_levels(levels, delta, found.epsilon, plot)
    return result, words


def _shaped(
    shape: str, given: dict[str, Any], rate: float, rate_end: float | None, steps: int
) -> tuple[Any, dict[str, Any]]:
    """The schedule of a shape, relative to the first step's noise, and its settings."""
    from tacit.privacy import schedules
    from tacit.privacy.events import check_sampling_rate

    check_sampling_rate(rate)
    if rate_end is not None and not 0 < rate_end <= 1:
        raise ValueError(f"rate_end={rate_end}; expected a number above 0 and at most 1")
    noise = schedules.shaped(shape, steps, **given)
    rates = rate if rate_end is None else schedules.between(shape, steps, rate, rate_end, **given)
    about = {"shape": shape, **given, "sampling_rate": rate, **({} if rate_end is None else {"rate_end": rate_end})}
    return schedules.Schedule.of(noise, rates), about


def _read_levels(path: Path) -> Any:
    """The levels of a file as a schedule."""
    from tacit.files.schedule_file import read_schedule
    from tacit.privacy.events import PoissonSampled
    from tacit.privacy.schedules import Schedule

    noise, rates, steps = [], [], []
    for level in read_schedule(path):
        step: Any = level.event  # type: ignore[attr-defined]  # each is a Repeated
        rates.append(1.0)
        if isinstance(step, PoissonSampled):
            rates[-1], step = step.sampling_rate, step.event
        noise.append(step.noise_multiplier)  # type: ignore[attr-defined]  # and of Gaussian noise
        steps.append(level.steps)  # type: ignore[attr-defined]
    return Schedule(tuple(steps), tuple(noise), tuple(rates), (1.0,) * len(steps))


def _write_levels(path: Path, levels: list[tuple[float, float, int]]) -> None:
    """Write levels for `account --schedule`, each number with all its digits."""
    rows = [",".join(LEVEL_COLUMNS), *(f"{noise!r},{rate!r},{count}" for noise, rate, count in levels)]
    try:
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"out={path}: {error.strerror}; expected a file to write") from None


def _words_of_levels(first: str, levels: list[tuple[float, float, int]], error: float, largest: float) -> Iterator[str]:
    yield first
    yield f"{len(levels)} {'level' if len(levels) == 1 else 'levels'}:"
    yield f"{'noise multiplier':>18}{'sampling rate':>15}{'steps':>9}"
    for noise, rate, count in levels:
        yield f"{noise:>18.6g}{rate:>15.6g}{count:>9}"
    yield f"Quantisation error: {error:.2g} of the noise's effect; the largest difference of one step is {largest:.2g}"


def _plot_levels(levels: list[tuple[float, float, int]], delta: float, epsilon: float, path: Path) -> None:
    """Noise at each step, and the sampling rate beside it if it changes."""
    from tacit.report.style import panels, save

    ends = [0]
    for *_, count in levels:
        ends.append(ends[-1] + count)
    labels = [(f"ε = {epsilon:.3g} at δ = {delta:g}", "step", "noise multiplier")]
    if len({rate for _, rate, _ in levels}) > 1:
        labels.append(("Sampling", "step", "sampling rate"))
    found = panels(*labels, width=6.0 if len(labels) == 1 else 5.0)
    for axes, values in zip(found, zip(*levels, strict=True), strict=False):  # the counts of steps are not drawn
        axes.stairs(values, ends, baseline=None, linewidth=1.5)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    save(found[0], path)
