"""tacit demo"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import make_folder
from tacit.cli.options import AsJsonOption


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; made if needed.")] = Path("demo-output"),
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Fit Adult over ten uneven sites, each with its own ε = 1; compare with no privacy and with each site alone."""
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.cli.demo_study import run, show

        make_folder(out)
        result = run(out, insecure_seed, watch)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        show(out, result)
