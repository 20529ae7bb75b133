"""tacit plan"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import compute_in_one_thread, make_folder
from tacit.cli.options import PLANNED_MODELS, AsJsonOption, DeltaOption, among, either


def plan(
    records: Annotated[int, typer.Option(help="Number of records, at all sites together.")],
    features: Annotated[int, typer.Option(help="Number of columns; a category with k values counts as k - 1.")],
    epsilon: Annotated[float, typer.Option(help="The ε to spend; a range around it is tried.")],
    delta: DeltaOption,
    sites: Annotated[int, typer.Option(help="Number of sites; each protects its own records with ε.")] = 1,
    model: Annotated[
        str,
        typer.Option(help=f"{either(PLANNED_MODELS)}.", autocompletion=among(*PLANNED_MODELS)),
    ] = "logistic",
    numbers: Annotated[int | None, typer.Option(help="How many features are numeric; by default all.")] = None,
    secure_sum: Annotated[
        bool, typer.Option("--secure-sum", help="Whether sites share one noise in secure sums.")
    ] = False,
    rounds: Annotated[str | None, typer.Option(help="Rounds to compare, as 5,10,20; by default the policy's.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy that 'tacit policy learn' wrote.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figure and table; made if needed.")] = Path("plan-output"),
    as_json: AsJsonOption = False,
) -> None:
    """Forecast what a budget buys, without data: expected accuracy and interval widths, from simulations."""
    from tacit.report.progress import watching

    compute_in_one_thread()
    with watching() as watch:
        from tacit.planning.forecast import Question, forecast
        from tacit.study.policy import Policy

        chosen = () if rounds is None else _whole_numbers("rounds", rounds)
        found = None if policy is None else Policy.read(policy)
        question = Question(model, records, features, epsilon, delta, sites, numbers, chosen, secure_sum)
        make_folder(out)
        watch.say(f"Simulating {len(question.epsilons)} values of ε around {epsilon:g}", "numbers of rounds")
        rows = forecast(question, found, watch.move)
        watch.say("Writing")
        from tacit.report import planned

        result = planned.write(out, question, rows)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        planned.show(question, rows, out)


def _whole_numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}={text!r}; expected whole numbers, as 5,10,20") from None
