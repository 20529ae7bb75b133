"""tacit audit"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit
from tacit.cli.checks import check_positive, compute_in_one_thread, make_folder
from tacit.cli.options import AUDITED, CANARIES, AsJsonOption, DeltaOption, among


def audit(
    what: Annotated[
        str,
        typer.Argument(
            help="fit, vi (by Adam, on samples), sites, mechanism, or a study file in TOML.",
            autocompletion=among(*AUDITED),
        ),
    ] = "fit",
    epsilon: Annotated[float, typer.Option(help="The ε that is planned and claimed.")] = 1.0,
    delta: DeltaOption = 1e-5,
    runs: Annotated[int | None, typer.Option(help="Number of runs, half of them without the canary.")] = None,
    canary: Annotated[
        str,
        typer.Option(
            help="worst (for the clip), mislabelled or outlying (plausible records), or row (of a study's file).",
            autocompletion=among(*CANARIES),
        ),
    ] = "worst",
    steps: Annotated[int | None, typer.Option(help="For vi and mechanism: number of noisy steps.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="For vi and mechanism: rate of each record.")] = None,
    site: Annotated[str | None, typer.Option(help="With --canary row: the site; by default the first.")] = None,
    row: Annotated[int | None, typer.Option(help="With --canary row: the row, from 0; by default random.")] = None,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="One run with many canaries, if runs cannot be repeated.")
    ] = False,
    canaries: Annotated[int | None, typer.Option(help="With --one-run: number of canaries; by default 2000.")] = None,
    confidence: Annotated[float, typer.Option(help="The probability that the lower bound holds.")] = 0.999,
    seed: Annotated[int, typer.Option(help="The attack's seed; records are made up, and noise is seeded.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for result.json and roc.png.")] = Path("audit-output"),
    as_json: AsJsonOption = False,
) -> None:
    """Attack tacit's own programs and bound their ε from below. Exit code 3 if the claim is refuted.

    The mechanisms, solvers and plans of fits and studies run thousands of times on made-up records, with and without
    one record, the canary. No data is read. A study file gives its plan and its largest budget, for three made-up
    sites; its records are not read.

    With --canary row its records are read: the study runs on its own files, with one row and without it. The noise is
    seeded and nothing is charged, so that the output is not private: use public or made-up records only.
    """
    from tacit.report import audited
    from tacit.report.progress import watching

    compute_in_one_thread()
    with watching() as watch:
        from tacit.audit import named, studies

        check_positive(steps=steps)
        make_folder(out)
        if one_run:
            given = (runs, steps, sampling_rate, site, row)
            _check_one_run(what == "fit" and canary == "worst" and all(setting is None for setting in given))
            many = {} if canaries is None else {"canaries": canaries}
            watch.say("One run with many canaries: planning, compiling and running")
            result = studies.once(epsilon, delta, confidence=confidence, seed=seed, **many)
            found = None
        else:
            if canaries is not None:
                raise ValueError(f"canaries={canaries} is a setting of --one-run; leave it out")
            chosen: dict[str, Any] = {"site": site, "row": row, "seed": seed}
            subject, usual = named.named(what, epsilon, delta, canary, steps, sampling_rate, **chosen)
            watch.say(f"Attacking {subject.name}, which claims ε = {epsilon:g}", "runs")
            count = usual if runs is None else runs
            found = subject.audit(count, seed=seed, confidence=confidence, observe=watch.move)
            result = audited.result_of(found) | {"subject": subject.name, "canary": canary}
        watch.say("Writing")
        result = audited.write(out, {"version": tacit.__version__, **result}, found)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        audited.show(out, result)
    if result["refuted"]:
        raise typer.Exit(3)


def _check_one_run(is_plain: bool) -> None:
    if not is_plain:
        raise ValueError("--one-run is for a fit with the worst canaries; leave the other settings out")
