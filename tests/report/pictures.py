"""The pictures of the documentation: `make pictures`, or `python -m tests.report.pictures [NAME...]`.

Each is taken of the real thing in the machine's own Chromium, and written to docs/pictures as a small PNG file.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.report.browsing import chromium, launched

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
DEMO = FOLDER.parents[1] / "demo-output"
SIZES = {"": (1280, 800), "-phone": (375, 812)}
COLOURS = 128  # of a picture, so that it is small
MOST_BYTES = 150_000
AT_ROUND, EARLIER = 9, 0.78  # the round of the dashboard's picture; ε that an earlier study took from one site


def save(data: bytes, name: str) -> None:
    """Write a PNG into docs/pictures, with few colours."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as found:
        path = FOLDER / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        found.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size} bytes; expected {MOST_BYTES} at most")
    print(f"{path.name}: {size:,} bytes", flush=True)


def of_address(browser: Any, address: str, name: str, *, until: str = "", most_height: int | None = None) -> None:
    """Pictures of a page, for a desktop and for a phone: of all of it, or of its upper part.

    until: what to wait for, as a selector.
    """
    for ending, (width, height) in SIZES.items():
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(address)
        if until:
            page.wait_for_selector(until)
        page.wait_for_timeout(500)
        more: dict[str, Any] = {"full_page": True}
        if most_height is not None:
            more["clip"] = {"x": 0, "y": 0, "width": width, "height": most_height}
        save(page.screenshot(**more), name + ending)
        context.close()


def dashboard(browser: Any) -> None:
    """The demonstration's ten sites in the middle of their study; an earlier one has left one of them little."""
    from tacit.cli import demo_study as demo
    from tacit.privacy import accounting
    from tacit.privacy.events import Gaussian
    from tacit.privacy.ledger import Ledger
    from tacit.report import dashboard, findings
    from tacit.study.front import federate
    from tacit.study.host import Snapshot

    board = dashboard.Board()
    server = dashboard.Server(board)
    sites, test = demo.sites()
    poor = sites[3]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(
            Path(folder) / "ledger.sqlite", data_set=poor.name, epsilon=poor.epsilon, delta=poor.delta
        )
        noise = accounting.calibrate(EARLIER, poor.delta).noise_multiplier
        ledger.charge(Gaussian(noise), study="an earlier one", round=0)
        sites[3] = replace(poor, ledger=Path(folder) / "ledger.sqlite")
        board.about(findings.title("demo", "logistic", "income above 50,000 dollars", len(sites)))

        class Enough(Exception):
            pass

        def show(snapshot: Snapshot) -> None:
            board.see(snapshot)
            if (snapshot.phase, snapshot.done) == ("inference", AT_ROUND):
                of_address(browser, server.address, "dashboard", until="#posterior tbody tr")
                raise Enough

        try:
            federate(demo.PLAN, sites, out=Path(folder) / "study", test=test, show=show)
        except Enough:
            pass
        finally:
            board.end("stopped", "The picture is taken.")
            server.close()


def report(browser: Any) -> None:
    """The demonstration's report, as `make demo` left it: its beginning on a desktop, on a phone and on paper."""
    found = DEMO / "report.html"
    if not found.exists():
        raise SystemExit(f"there is no {found}; run 'make demo' first")
    of_address(browser, found.as_uri(), "report", most_height=1700)
    page = browser.new_page()
    page.goto(found.as_uri())
    with tempfile.TemporaryDirectory() as folder:
        page.pdf(path=f"{folder}/report.pdf", format="A4")
        page.close()
        draw = ("pdftoppm", "-png", "-r", "80", "-singlefile", "-f", "1", f"{folder}/report.pdf", f"{folder}/first")
        subprocess.run(draw, check=True)
        save((Path(folder) / "first.png").read_bytes(), "report-print")


PICTURES: dict[str, Callable[[Any], None]] = {"dashboard": dashboard, "report": report}


def main(names: list[str]) -> None:
    if chromium() is None or shutil.which("pdftoppm") is None:
        raise SystemExit("pictures need Chromium and pdftoppm; install them, as by: apt install chromium poppler-utils")
    with launched() as browser:
        for name in names or PICTURES:
            PICTURES[name](browser)


if __name__ == "__main__":
    main(sys.argv[1:])
