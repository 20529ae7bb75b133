"""Messages of a study between machines, against what FLARE itself does with messages of the same size.

python -m benchmarks.network [--columns 13] [--updates 60]

Three sites and a coordinator on this machine, each a process of its own, over mutual TLS. First FLARE alone: a
controller that sends bytes to executors that send them back, as tasks (FLARE's usual way, with its intervals lowered)
and as auxiliary requests (what tacit uses). Then a study, asynchronous and synchronous, with everything that a site
does: price, charge, read, store, log. Compiling is not counted: times are between the steps of a study that runs.
"""

import argparse
import json
import os
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from rich.console import Console
from rich.table import Table

from tacit.engines import nvflare
from tacit.engines.nvflare import Answer, Answerer, Coordinator, Post
from tacit.network.running import compiled

SITES = ("north", "south", "west")
SECONDS = 10.0  # of each kind of echo
RESULT = "TACIT_BENCHMARK"
ROOT = Path(__file__).resolve().parents[1]


# --- FLARE alone --------------------------------------------------------------------------------------------------


class Echo(Answerer):
    """Sends back what it is sent."""

    def open(self, study: bytes) -> Answer:
        return lambda data: (data, "")

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        reply = make_reply(ReturnCode.OK)
        reply["data"] = shareable["data"]
        return reply


class EchoController(Coordinator):
    """Counts echoes: requests first, then tasks. Each site is asked again as soon as it has answered."""

    def __init__(self) -> None:
        super().__init__()
        self._task_check_period = 0.01

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        self.fl_ctx = fl_ctx
        super().control_flow(abort_signal, fl_ctx)

    def conduct(self, post: Post) -> None:
        place = Path(os.environ[RESULT])
        payload = bytes(int(place.with_suffix(".size").read_text()))
        found = {"requests": self._requests(post, payload), "tasks": self._tasks(post, payload)}
        place.write_text(json.dumps(found))

    def _requests(self, post: Post, payload: bytes) -> float:
        for site in post.sites:
            post.ask(site, b"ready")
        for _ in post.sites:
            post.receive()
        begin, count = time.perf_counter(), 0
        for site in post.sites:
            post.ask(site, payload)
        while time.perf_counter() - begin < SECONDS:
            site, _ = post.receive()
            count += 1
            post.ask(site, payload)
        return count / (time.perf_counter() - begin)

    def _tasks(self, post: Post, payload: bytes) -> float:
        begin, counted, ended = time.perf_counter(), [0], threading.Event()

        def again(site: str) -> None:
            def received(client_task: Any, fl_ctx: Any) -> None:
                del client_task, fl_ctx
                counted[0] += 1

            def done(task: Any, fl_ctx: Any) -> None:
                del task, fl_ctx
                if not ended.is_set():
                    again(site)

            task = Task("echo", Shareable({"data": payload}), result_received_cb=received, task_done_cb=done)
            self.send(task=task, fl_ctx=self.fl_ctx, targets=[site])

        for site in post.sites:
            again(site)
        time.sleep(SECONDS)
        ended.set()
        return counted[0] / (time.perf_counter() - begin)


def echoes(size: int) -> dict[str, float]:
    """Messages a second of FLARE alone, by kind."""
    with tempfile.TemporaryDirectory() as folder, _paths():
        place = Path(folder)
        network, result = place / "network", place / "result.json"
        result.with_suffix(".size").write_text(str(size))
        nvflare.provision(network, "echo", SITES, "localhost", free_port())
        kits = [network / "coordinator", *(network / "sites" / name / "kit" for name in SITES)]
        processes = []
        for kit in kits:
            nvflare.harden(kit, ["benchmarks.network.Echo", "benchmarks.network.EchoController"], place)
            processes.append(nvflare.start(kit, place / "log.txt", {RESULT: str(result)}))
        try:
            operator = nvflare.Operator(network / "operator")
            while len(operator.connected()) < len(SITES):
                time.sleep(0.2)
            controller, executor = "benchmarks.network.EchoController", "benchmarks.network.Echo"
            job = nvflare.write_job(place / "job", "echo", SITES, controller, executor, b"{}")
            config = job / "app" / "config" / "config_fed_server.json"
            plain = json.loads(config.read_text()) | {"server": {"task_request_interval": 0.01}}
            config.write_text(json.dumps(plain))
            operator.submit(job)
            while not result.exists():
                time.sleep(0.2)
            time.sleep(0.5)
            operator.close()
            return json.loads(result.read_text())
        finally:
            for process in processes:
                nvflare.stop(process, 3.0)


@contextmanager
def _paths() -> Iterator[None]:
    """FLARE's processes find this file."""
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH") if old is None else os.environ.update(PYTHONPATH=old)


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
        environment = {**os.environ, **compiled(cache)}
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
        size = next(store.glob("bench-*/inference.store")).stat().st_size // 2
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
    for name in ("", "messages or updates a second", "of FLARE's tasks", "of FLARE's requests"):
        table.add_column(name, justify="left" if not name else "right")
    rows = {
        "FLARE alone, tasks": alone["tasks"],
        "FLARE alone, requests": alone["requests"],
        "study, asynchronous": free,
        "study, synchronous": together,
    }
    for name, rate in rows.items():
        table.add_row(name, f"{rate:.1f}", f"{rate / alone['tasks']:.0%}", f"{rate / alone['requests']:.0%}")
    console = Console()
    console.print(table)
    console.print(f"Synchronous: {len(SITES) / together:.3f} s a round. Aim: at least 80 % of FLARE's tasks.")


if __name__ == "__main__":
    main()
