"""tacit reproduce"""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import show
from tacit.cli.options import AsJsonOption, reproductions


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="What to run again; --list shows the names.", autocompletion=reproductions),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Print the names with titles.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version within half a minute.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Number of runs to average; by default as published.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for CSV, JSON and PNG; made if needed.")] = Path("reproduce-output"),
    page: Annotated[Path | None, typer.Option(help="Also write a page of the documentation into this folder.")] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Run a published figure again: table with published values, data, picture. For research: the noise is seeded."""
    from tacit_reproduce import REPRODUCTIONS, run

    if names:
        titles = {name: f"{found.source}. {found.title}" for name, found in REPRODUCTIONS.items()}
        show(titles, as_json, "\n".join(f"{name}  {REPRODUCTIONS[name].title}" for name in titles))
    else:
        run(name, out, quick, seeds, as_json, page)
