"""Messages of a study between machines, against what the channel alone does with messages of the same size.

python -m benchmarks.network [--columns 13] [--updates 60]

Three sites and a coordinator on this machine, each a process of its own, over mutual TLS. First the channel alone:
sites that send bytes back. Then a study, asynchronous and synchronous, with everything that a site does: price, charge,
read, store, log. Compiling is not counted: times are between the steps of a study that runs.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tacit.network.certificates import COORDINATOR, Kit, provision
from tacit.network.channel import Exchange, Post

SITES = ("north", "south", "west")
SECONDS = 10.0  # of echoes

# --- The channel alone --------------------------------------------------------------------------------------------

ECHO = """
import sys, time
from pathlib import Path
from tacit.engines.certificates import Kit
from tacit.engines.nvflare import Answerer, Connection

kit = Path(sys.argv[1])
line = Connection(Kit.read(kit), Answerer(lambda study: lambda data: (data, "")), kit / "log.txt")
while True:
    time.sleep(1)
"""


def echoes(size: int) -> float:
    """Messages a second that sites send back, each asked again as soon as it has answered."""
    with tempfile.TemporaryDirectory() as folder:
        network = Path(folder) / "network"
        provision(network, "echo", SITES, "localhost", free_port())
        command = [sys.executable, "-c", ECHO]
        sites = [subprocess.Popen([*command, str(network / "sites" / name / "kit")]) for name in SITES]
        exchange = Exchange(Kit.read(network / COORDINATOR), SITES, network / "log.txt")
        try:
            while len(exchange.connected()) < len(SITES):
                time.sleep(0.1)
            post, payload, count = Post(exchange, b"{}", 60.0, 60.0), os.urandom(size), 0
            for site in SITES:
                post.ask(site, payload)
            begin = time.perf_counter()
            while time.perf_counter() - begin < SECONDS:
                site, _ = post.receive()
                count += 1
                post.ask(site, payload)
            post.close()
            return count / (time.perf_counter() - begin)
        finally:
            exchange.close()
            for process in sites:
                process.kill()
                process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# --- A study ------------------------------------------------------------------------------------------------------


def study(place: Path, schedule: str, columns: int, updates: int) -> None:
    """A study file, and records of three sites, which are made up."""
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(columns - 1)]
    entries = []
    for site in SITES:
        x = rng.uniform(-1, 1, (200, len(names)))
        y = (x[:, 0] + rng.normal(size=200) > 0).astype(int)
        rows = [",".join(f"{value:.6f}" for value in row) + f",{label}" for row, label in zip(x, y, strict=True)]
        (place / f"{site}.csv").write_text("\n".join([",".join([*names, "y"]), *rows]) + "\n")
        entries.append(f'[[site]]\nname = "{site}"\nfile = "{place / site}.csv"\nplaces = 200\n')
    bounds = "\n".join(f"{name} = [-1.0, 1.0]" for name in names)
    (place / "study.toml").write_text(
        f'name = "bench"\nmodel = "logistic"\nrounds = {updates}\nschedule = "{schedule}"\nepsilon = 8.0\n'
        f'delta = 1e-3\ntarget = "y"\ncolumns = {json.dumps(names)}\n\n[facts]\nclasses = ["0", "1"]\n'
        f"[facts.bounds]\n{bounds}\n\n" + "\n".join(entries)
    )


def studies(schedule: str, columns: int, updates: int, cache: Path) -> tuple[float, int]:
    """(updates a second while the study runs, bytes of an answer)."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        study(place, schedule, columns, updates)
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
        command = [str(Path(sysconfig.get_path("scripts")) / "tacit")]

        def tacit(*arguments: str) -> subprocess.Popen[bytes]:
            log = (place / "log.txt").open("ab")
            return subprocess.Popen([*command, *arguments], cwd=place, env=environment, stdout=log, stderr=log)

        if tacit("network", "init", "study.toml", "--port", str(free_port())).wait():
            raise RuntimeError((place / "log.txt").read_text())
        joined = [tacit("join", f"network/sites/{site}/site.toml") for site in SITES]
        try:
            if tacit("serve", "study.toml").wait():
                raise RuntimeError((place / "log.txt").read_text())
        finally:
            for process in joined:
                process.terminate()
            for process in joined:
                process.wait()
        lines = [json.loads(line) for line in (place / "study-output" / "log.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["event"] == "step" and line["phase"] == "inference" and line["done"]]
        each = 1 if schedule == "asynchronous" else len(SITES)
        times = {line["done"]: datetime.fromisoformat(line["time"]).timestamp() for line in steps}
        # The middle half: all programs are compiled, and no site has finished.
        first, last = (min(times, key=lambda done, at=at: abs(done - at * max(times))) for at in (0.5, 0.9))
        store = place / "network" / "sites" / SITES[0] / "state"
        size = next(store.glob("study-*/inference.store")).stat().st_size // 2
        return each * (last - first) / (times[last] - times[first]), size


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--columns", type=int, default=13, help="parameters of the model; a factor has d + d² numbers")
    parser.add_argument("--updates", type=int, default=60, help="of each site")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        free, size = studies("asynchronous", given.columns, given.updates, Path(cache))
        together, _ = studies("synchronous", given.columns, given.updates, Path(cache))
    alone = echoes(size)
    table = Table(title=f"Three sites over mutual TLS on this machine, {size:,} bytes a message")
    for name in ("", "messages or updates a second", "of the channel alone"):
        table.add_column(name, justify="left" if not name else "right")
    for name, rate in {"channel alone": alone, "study, asynchronous": free, "study, synchronous": together}.items():
        table.add_row(name, f"{rate:.1f}", f"{rate / alone:.0%}")
    console = Console()
    console.print(table)
    console.print(f"Synchronous: {len(SITES) / together:.3f} s a round.")


if __name__ == "__main__":
    main()
