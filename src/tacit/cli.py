"""The command line. Every command: `--help`, `--json` where it prints a result, exit code 2 and a sentence if refused.

Nothing heavy is imported here: commands import what they need when they run.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit

app = typer.Typer(
    name="tacit",
    help="Bayesian posteriors from data that may not be shared: federated and differentially private.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Delta = Annotated[float, typer.Option(help="δ: the probability with which the guarantee may fail. Below 1 / records.")]
RATE = "Probability with which each record is in a step's sample; 1, the default, is all."
STEPS = "How many noisy steps; 1 by default."
Accountant = Annotated[str, typer.Option(help="pld (tight), rdp, moments, zcdp, tcdp, advanced or basic.")]
AdjacencyOption = Annotated[str, typer.Option(help="add-remove (one record) or replace-one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version


@app.command()
def account(
    delta: Delta,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise relative to the clip.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    steps: Annotated[int | None, typer.Option(help=STEPS)] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A CSV file of levels: noise_multiplier, sampling_rate, steps.")
    ] = None,
    accountant: Accountant = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Draw ε against steps into this PNG, SVG or PDF file.")] = None,
) -> None:
    """What a plan costs: ε at a given δ."""
    from tacit.config import read_schedule
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
    _show(result, as_json, f"ε = {epsilon:.6g} at δ = {delta:g} ({accountant}, {adjacency})")


@app.command()
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The ε to stay within.")],
    delta: Delta,
    sampling_rate: Annotated[float, typer.Option(help=RATE)] = 1.0,
    steps: Annotated[int, typer.Option(help=STEPS)] = 1,
    accountant: Accountant = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJson = False,
) -> None:
    """The least noise that keeps a plan within ε."""
    from tacit.privacy import accounting

    found = accounting.calibrate(
        epsilon,
        delta,
        sampling_rate=sampling_rate,
        steps=steps,
        accountant=accountant,  # type: ignore[arg-type]  # checked there
        adjacency=adjacency,  # type: ignore[arg-type]
    )
    result = {
        "noise_multiplier": found.noise_multiplier,
        "epsilon": found.epsilon,
        "target_epsilon": epsilon,
        "delta": delta,
        "accountant": accountant,
        "adjacency": adjacency,
        "sampling_rate": sampling_rate,
        "steps": steps,
    }
    words = f"noise multiplier {found.noise_multiplier:.6g}: ε = {found.epsilon:.6g} at δ = {delta:g}"
    _show(result, as_json, f"{words} ({accountant}, {adjacency})")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; made if it is not there.")] = Path("demo-output"),
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    as_json: AsJson = False,
) -> None:
    """A private Bayesian linear regression at several ε, beside the exact posterior, on simulated data."""
    from tacit.demo import run

    run(out, insecure_seed, as_json)


def _show(result: dict[str, Any], as_json: bool, words: str) -> None:
    if as_json:
        result = {k: (None if isinstance(v, float) and v == float("inf") else v) for k, v in result.items()}
    typer.echo(json.dumps(result) if as_json else words)


def _plot_steps(levels: list[Any], delta: float, accountant: str, adjacency: str, path: Path) -> None:
    """ε after each of some thirty step counts, through the levels in order."""
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


def _usage(error: Exception, arguments: list[str]) -> str:
    """The command line library's usage errors (wrong options and the like) in one line; others are raised again."""
    if not hasattr(error, "format_message"):
        raise error
    words = error.format_message().strip()  # type: ignore[attr-defined]
    if words.startswith("Usage:"):  # no command at all
        return words
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in arguments[:-1]:  # its words leave out what was given
            value = arguments[len(arguments) - arguments[::-1].index(option)]
            words = f"{option}={value!r} is not valid: {words.partition(': ')[2]}"
    return f"tacit: {' '.join(words.split()).rstrip('.')}. See 'tacit --help'."


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a refusal is one sentence on standard error and exit code 2, never a traceback."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except KeyboardInterrupt:
        typer.echo("tacit: interrupted", err=True)
        sys.exit(130)
    except ValueError as error:
        typer.echo(f"tacit: {error}", err=True)
        sys.exit(2)
    except Exception as error:
        typer.echo(_usage(error, sys.argv[1:] if arguments is None else arguments), err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
