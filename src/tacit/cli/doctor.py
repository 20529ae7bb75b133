"""tacit doctor"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import AsJsonOption


def doctor(
    folder: Annotated[Path, typer.Option(help="Folder in which to try a ledger.")] = Path(),
    as_json: AsJsonOption = False,
) -> None:
    """Check that tacit works on this machine: packages, randomness, ledger, one private step. Exit code 1 if not.

    Each part is run, not only looked up. Optional parts may be missing; the output says how to install them.
    """
    from tacit.cli import doctor_checks
    from tacit.report.progress import watching

    with watching() as watch:
        findings = doctor_checks.examine(folder, lambda name: watch.say(f"Trying: {name}"))
    if as_json:
        typer.echo(json.dumps(doctor_checks.result_of(findings)))
    else:
        doctor_checks.show(findings)
    if faults := doctor_checks.faults(findings):
        typer.echo(f"tacit: {faults[0].name}: {faults[0].words}; {faults[0].remedy}", err=True)
        raise typer.Exit(1)
