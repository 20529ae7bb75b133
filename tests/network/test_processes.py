"""Three sites and a coordinator as processes over mutual TLS: the posterior of one process, and no code from a job."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.network.drills import Consortium

from tacit.engines import nvflare
from tacit.network.running import CONTROLLER, EXECUTOR

pytestmark = pytest.mark.xdist_group("processes")

EVIL = """
from pathlib import Path
from nvflare.apis.executor import Executor

Path({mark!r}).touch()

class Evil(Executor):
    def __init__(self):
        super().__init__()
        Path({mark!r}).touch()
"""


def test_the_posterior_is_that_of_one_process_bit_for_bit(tmp_path: Path):
    with Consortium(tmp_path, rounds=5, study={"evaluation": 0.1}) as all:
        all.start()
        result = all.wait_finished(300)
        all.check()
        assert {row["name"]: row["updates"] for row in result["sites"]} == dict.fromkeys(all.names, 5)
        assert result["randomness"] == "seeded"
        for name in all.names:
            all.stop(name)  # they would wait for the next study
    all.tacit("simulate", all.study, "--out", tmp_path / "one", "--insecure-seed", all.seed)
    one = json.loads((tmp_path / "one" / "posterior.json").read_text())
    many = json.loads((all.out / "posterior.json").read_text())
    words = {"statement", "statement_text"}  # each names who keeps the ledgers
    assert {key: value for key, value in many.items() if key not in words} == {
        key: value for key, value in one.items() if key not in words
    }
    alone = json.loads((tmp_path / "one" / "result.json").read_text())
    assert result["released"] == alone["released"]
    assert [row["spent"] for row in result["sites"]] == [row["spent"] for row in alone["sites"]]


@pytest.mark.slow
def test_secure_sums_between_processes_are_those_of_one_to_the_bit(tmp_path: Path):
    with Consortium(tmp_path, rounds=5, study={"secure_sum": True, "evaluation": 0.1}) as all:
        all.introduce()
        all.start()
        result = all.wait_finished(300)
        for name in all.names:
            assert len(all.audit(name, "answered")) == 3 * (1 + 5 + 1)
            assert len(all.audit(name, "exchanged")) == 2 * (1 + 5 + 1)
            ledger = all.ledger(name)
            assert ledger is not None
            assert ledger.verify()
            assert len(ledger.entries()) == 1 + 5 + 1
            all.stop(name)
        assert {row["name"]: row["dropped"] for row in result["sites"]} == dict.fromkeys(all.names, 0)
        assert result["trust"].startswith("The coordinator sees sums over sites alone")
    all.tacit("simulate", all.study, "--out", tmp_path / "one", "--insecure-seed", all.seed)
    one, many = (json.loads((path / "posterior.json").read_text()) for path in (tmp_path / "one", all.out))
    words = {"statement", "statement_text"}
    assert {k: v for k, v in many.items() if k not in words} == {k: v for k, v in one.items() if k not in words}
    assert result["released"] == json.loads((tmp_path / "one" / "result.json").read_text())["released"]


SUBMIT = """
import sys, time
from pathlib import Path
from tacit.engines.nvflare import Operator

operator = Operator(Path(sys.argv[1]))
while "north" not in operator.connected():
    time.sleep(0.2)
for job in sys.argv[2:]:
    begun = operator.submit(Path(job))
    while not operator.is_over(begun):
        time.sleep(0.2)
operator.close()
"""


def job_of(folder: Path, sites: list[str], executor: dict[str, Any]) -> Path:
    """A job like ours with another executor."""
    job = nvflare.write_job(folder, "study", sites, CONTROLLER, EXECUTOR, b"{}")
    config = job / "app" / "config" / "config_fed_client.json"
    plain = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": executor}]}
    config.write_text(json.dumps(plain))
    return job


def test_no_job_brings_code_to_a_site(tmp_path: Path):
    """Its coordinator lets everything pass; the site does not. Nothing of the job runs, and nothing is charged."""
    with Consortium(tmp_path, sites=1) as all:
        mark = tmp_path / "it-ran"
        kit = all.network / "coordinator"
        nvflare.harden(kit, ["*"], tmp_path)
        policy = kit / "local" / "authorization.json"
        everything = {"format_version": "1.0", "permissions": {"project_admin": "any"}}
        policy.write_text(json.dumps(everything))
        (tmp_path / "served.json").write_text(
            json.dumps({"study": str(all.study), "out": str(tmp_path / "never"), "patience": 5, "longest": 5})
        )
        server = nvflare.start(kit, tmp_path / "server.log", {"TACIT_SERVED": str(tmp_path / "served.json")})
        all.start_site("north")
        try:
            # Code in the job.
            coded = job_of(tmp_path / "coded", ["north"], {"path": "evil.Evil", "args": {}})
            (coded / "app" / "custom").mkdir()
            (coded / "app" / "custom" / "evil.py").write_text(EVIL.format(mark=str(mark)))
            # A class that every Python has.
            classed = job_of(
                tmp_path / "classed", ["north"], {"path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
            )
            # A component beside our executor.
            more = job_of(tmp_path / "more", ["north"], {"path": EXECUTOR, "args": {}})
            place = more / "app" / "config" / "config_fed_client.json"
            plain = json.loads(place.read_text())
            plain["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}]
            place.write_text(json.dumps(plain))
            command = [sys.executable, "-c", SUBMIT, all.network / "operator", coded, classed, more]
            subprocess.run(list(map(str, command)), check=True, timeout=240, capture_output=True)
        finally:
            nvflare.stop(server)
        assert not mark.exists()
        assert all.charges("north") == []
        logs = "".join(path.read_text() for path in all.kit("north").rglob("log.txt"))
        assert "BYOC not permitted" in logs + (tmp_path / "server.log").read_text()
        assert "is not in allow_list" in logs


# What a rogue does inside of a job's process, of the coordinator or of a site: FLARE's own requests, and forged ones.
ROGUE = """
import json, os, sys, threading, time

OUT = os.environ.get("ROGUE_OUT")


def attack(engine):
    time.sleep(2)
    from nvflare.apis.fl_constant import ReservedKey
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message as Bare
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import CellChannel, new_cell_message

    cell, found = engine.get_cell(), []

    def ask(topic, send):
        try:
            reply = send()
            code = reply.get_header(MessageHeaderKey.RETURN_CODE)
            found.append([topic, code, str(getattr(reply.payload, "body", reply.payload))])
        except Exception as error:  # it is not answered at all
            found.append([topic, type(error).__name__, ""])

    main, more = CellChannel.CLIENT_MAIN, {"target": "north", "timeout": 1.5}
    for topic, body in json.loads(os.environ["ROGUE_ASKS"]):
        request = new_cell_message({}, Message(topic=topic, body=body))
        ask(topic, lambda: cell.send_request(channel=main, topic=topic, request=request, **more))
    for topic in ("process_info", "config_vars", "comm_config", "stop_cell"):
        core = cell.core_cell
        ask(topic, lambda: core.send_request(channel="_net_manager", topic=topic, request=Bare(), **more))
    if cell.get_fqcn().startswith("south"):
        with engine.new_context() as context:
            context.props[ReservedKey.IDENTITY_NAME]["value"] = os.environ["TACIT_COORDINATOR"]
            replies = engine.send_aux_request(
                targets=["north"], topic="tacit", request=Shareable({"data": b"hello"}), timeout=4.0, fl_ctx=context
            )
            reply = (replies or {}).get("north")
            code = "" if reply is None else reply.get_return_code().lower()
            found.append(["hello", code, str((reply or {}).get("note"))])
    with open(OUT + ".new", "w") as file:
        json.dump(found, file)
    os.replace(OUT + ".new", OUT)


class Finder:
    def find_spec(self, name, path, target=None):
        if name != "tacit.engines.nvflare":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            opened, handled = module.Post.__init__, module.Answerer.handle_event

            def post(self, engine, *rest):
                opened(self, engine, *rest)
                threading.Thread(target=attack, args=(engine,), daemon=True).start()

            def handle(self, event_type, fl_ctx):
                handled(self, event_type, fl_ctx)
                if event_type == module.EventType.START_RUN:
                    threading.Thread(target=attack, args=(fl_ctx.get_engine(),), daemon=True).start()

            module.Post.__init__, module.Answerer.handle_event = post, handle

        spec.loader.exec_module = loaded
        return spec


if OUT:
    sys.meta_path.insert(0, Finder())
"""


def test_neither_the_coordinator_nor_another_site_can_ask_flare_for_anything_else(tmp_path: Path):
    """FLARE itself would hand out any file of a site, and tell and end more, to whoever is connected."""
    (tmp_path / "rogue").mkdir()
    (tmp_path / "rogue" / "sitecustomize.py").write_text(ROGUE)
    with Consortium(tmp_path / "all", sites=2, rounds=3) as all:
        records, key = all.folder / "north.csv", all.kit("north") / "startup" / "client.key"
        asks = [["sys.shell", f"head -n 2 {records}"], ["sys.shell", f"cat {key}"], ["sys.info", ""]]
        asks += [["sys.report_env", ""], ["train.shutdown", ""]]
        found = {}
        for role in ("serve", "south"):
            out = tmp_path / f"{role}.json"
            found[role] = out
            more = {"PYTHONPATH": str(tmp_path / "rogue"), "ROGUE_OUT": str(out), "ROGUE_ASKS": json.dumps(asks)}
            arguments: list[object] = ["join", all.site_file("south")]
            if role == "serve":
                arguments = ["serve", all.study, "--network", all.network, "--out", all.out]
            all._start(role, arguments, more)
        all.start_site("north")
        all.wait_finished(300)
        all.check()
        for role, out in found.items():
            all.wait_for(out.exists, 60, f"the rogue of {role} has asked", watch_serve=False)
            replies = json.loads(out.read_text())
            assert len(replies) == len(asks) + 4 + (role == "south")
            for topic, code, body in replies:
                assert "age,dose" not in body, topic
                assert "PRIVATE KEY" not in body, topic
                assert code != "ok" or "invalid_request" in body, (role, topic, code, body)
                assert "spent" not in body, topic
        assert all.is_running("north")
