"""tacit report"""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import show
from tacit.cli.options import AsJsonOption


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished fit, simulate, serve or demo.")],
    figures: Annotated[
        str | None, typer.Option(help="Also draw every figure into FOLDER/figures, as png, svg or pdf.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Remake report.html, and figures for print, from released values. It reads no record."""
    from tacit.report import figures as drawn
    from tacit.report import findings, page

    found, made = findings.read(folder), []
    if figures is not None:
        made = drawn.save(found, folder / "figures", figures)
        if not made:
            raise ValueError("figures need matplotlib; install tacit[report]")
    made = [page.write(folder), *made]
    show({"files": list(map(str, made))}, as_json, "Written: " + ", ".join(map(str, made)))
