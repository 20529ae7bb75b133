"""The machine's own Chromium, without a window, and axe-core: for tests of pages and for pictures of them."""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)
AXE = "axe-core@4.10.3"
AXE_SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
PATIENCE = 60  # seconds for a download of half a megabyte


def chromium() -> str | None:
    """Where the browser is; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser, as playwright has it."""
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # as root it starts in no other way
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page with what went wrong on it, and every address that it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.addresses: list[str] = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))

    def strangers(self) -> list[str]:
        """Addresses that are not of this machine."""
        ours = ("http://127.0.0.1:", "file://", "data:", "blob:", "about:")
        return [address for address in self.addresses if not address.startswith(ours)]


def overflows(page: Any) -> list[str]:
    """What is wider than the window, where a reader would have to scroll sideways; boxes that scroll are no trouble."""
    return page.evaluate(
        """() => {
            const wide = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= wide) return [];
            const isOut = e => e.getBoundingClientRect().right > wide + 1;
            const found = [...document.querySelectorAll("body *")].filter(isOut);
            return ["the page", ...found.map(e => e.outerHTML.slice(0, 120))];
        }"""
    )


@cache
def axe_source() -> str | None:
    """axe-core's program, from a cache outside of the repository or from npm; None if it cannot be had."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit-tests"
    packed = cache_folder / f"{AXE.replace('@', '-')}.tgz"
    if not packed.exists():
        npm = shutil.which("npm")
        if npm is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            command = [npm, "pack", AXE, "--silent", "--pack-destination", folder]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, cwd=folder)
            except (subprocess.SubprocessError, OSError):
                return None
            cache_folder.mkdir(parents=True, exist_ok=True)
            new = packed.with_suffix(f".{os.getpid()}")
            shutil.copy(Path(folder) / packed.name, new)
            new.replace(packed)
    digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if digest != AXE_SHA512:
        raise ValueError(f"{packed} is not {AXE}; remove it")
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def findings(page: Any, source: str) -> list[str]:
    """What axe-core finds serious or critical on a page."""
    page.evaluate(source)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{row['impact']}: {row['id']}: {row['help']}: {node['html'][:160]}"
        for row in found["violations"]
        if row["impact"] in ("serious", "critical")
        for node in row["nodes"]
    ]
