"""A rogue with a true certificate: it speaks FLARE's own protocol past tacit's, and tells what came back.

`python -m tests.network.rogue KIT TARGET`, with the site that is to be attacked. KIT is the coordinator's or a site's.
Prints one JSON object: for each thing that was tried, the return code and the reply.
"""

import io
import json
import os
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message

from tacit.network import channel as nvflare
from tacit.network.certificates import Kit

TIMEOUT = 0.15  # seconds for each that is tried
MARK = "it-ran"  # the file that code of a job would leave in the site's folder
CODE = """
from pathlib import Path
for folder in Path({root!r}).rglob("kit"):
    (folder.parent / {mark!r}).touch()
"""


def zipped(names: dict[str, bytes], link: str = "") -> bytes:
    """A job. link: an entry that is a symbolic link to the site's folder."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in names.items():
            file.writestr(name, content)
        if link:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = 0o120777 << 16
            file.writestr(entry, "../../..")
    return data.getvalue()


def jobs(root: str) -> Iterator[tuple[str, str, str, bytes]]:
    """(what, id in the header, id in the meta, the job): each of them broke, or could break, a site that takes jobs."""
    code = CODE.format(root=root, mark=MARK).encode()
    plain = {"config/study.json": b"{}", "custom/sitecustomize.py": code}
    usual = str(uuid.uuid4())
    deep = "/".join(["d" * 120] * 12) + "/x"
    yield "code in a job", usual, usual, zipped(plain)
    yield "a path too long for the kit", "j" * 200, "j" * 200, zipped(plain | {deep: b"x"})
    yield "another id in the meta", usual, "j" * 200, zipped({"config/study.json": b"{}"})
    for name in ("local", "startup", "state", "kit", ".", "..", "../state", "../../" + MARK):
        yield f"the id {name!r}", name, name, zipped({"config/study.json": b"{}"})
    yield "a path that leads out", usual, usual, zipped({f"../../../{MARK}": b"x", f"/tmp/{MARK}": b"x"})
    yield "a symbolic link", usual, usual, zipped({f"link/{MARK}": b"x"}, link="link")
    yield "a job of 64 MiB that is small on its way", usual, usual, zipped({"config/study.json": bytes(2**26)})
    yield "another site's signature", usual, usual, zipped({"config/study.json": b"{}", ".__nvfl_sig.json": b"{}"})


def commands(root: str) -> Iterator[tuple[str, str, str, Any]]:
    """(what, channel, topic, payload) of FLARE's own requests."""
    for what, header, meta, body in jobs(root):
        for topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.DELETE_RUN):
            command = Command(topic=topic, body=body)
            command.set_header(RequestHeader.JOB_ID, header)
            command.set_header(RequestHeader.JOB_META, {"job_id": meta, "name": "study"})
            command.set_header(RequestHeader.APP_NAME, "app")
            yield f"{topic}: {what}", CellChannel.CLIENT_MAIN, topic, command
    for topic, body in (
        (SysCommandTopic.SHELL, "head -n 2 *.csv"),
        (SysCommandTopic.SHELL, f"touch {root}/{MARK}"),
        (SysCommandTopic.SYS_INFO, ""),
        (TrainingTopic.SHUTDOWN, ""),
        (TrainingTopic.RESTART, ""),
    ):
        yield topic, CellChannel.CLIENT_MAIN, topic, Command(topic=topic, body=body)
    for topic in ("process_info", "config_vars", "comm_config", "stop_cell", "echo"):
        yield topic, "_net_manager", topic, None
    for topic in ("bye", "bulk", "cert_exchange"):
        yield topic, CellChannel.CELLNET, topic, {"cert_content": b"", "cert_ca_content": b""}
    yield "objects to our topic", nvflare.CHANNEL, nvflare.TOPIC, {"data": b"hello"}
    yield "another topic of ours", nvflare.CHANNEL, "more", b"hello"


def attack(kit: Kit, target: str, root: str) -> dict[str, Any]:
    """All of it, and then what an honest coordinator would ask, so that silence is known to be a refusal."""
    role = "server" if kit.is_coordinator else "client"
    credentials = {"ca_cert": str(kit.authority), "connection_security": "mtls"}
    credentials |= {f"{role}_cert": str(kit.certificate), f"{role}_key": str(kit.key)}
    own = nvflare.SERVER if kit.is_coordinator else kit.name
    cell = CoreCell(own, f"grpc://{kit.host}:{kit.port}", True, credentials, auth_identity_map={"server": kit.host})
    cell.start()
    peer = target if kit.is_coordinator else nvflare.SERVER
    end = time.monotonic() + 60
    while peer not in cell.agents and time.monotonic() < end:
        time.sleep(0.1)
    found: dict[str, Any] = {"connected": peer in cell.agents}
    hello = nvflare.ASK + bytes(nvflare.SESSION + nvflare.DIGEST) + b"hello"

    def ask(what: str, channel: str, topic: str, payload: Any, timeout: float = TIMEOUT, **headers: Any) -> None:
        """To all that can be reached from here."""
        cell.out_req_filter_reg.reg.clear()
        changes = {getattr(MessageHeaderKey, name): value for name, value in headers.items()}
        cell.add_outgoing_request_filter("*", "*", lambda message: message.headers.update(changes))
        for whom in {peer, target}:
            message = new_cell_message({}, payload)
            reply = cell.send_request(channel, topic, whom, message, timeout=timeout, optional=True)
            found[f"{whom}: {what}"] = [reply.get_header(MessageHeaderKey.RETURN_CODE), repr(reply.payload)]

    for what, channel, topic, payload in commands(root):
        ask(what, channel, topic, payload)
    ours = (nvflare.CHANNEL, nvflare.TOPIC, hello)
    ask("in another's name", *ours, ORIGIN="south", FROM_CELL="south")
    ask("passed on, with an address to dial", *ours, ORIGIN="x", CONN_URL="tcp://127.0.0.1:1")
    ask("honest", *ours, timeout=5.0)
    cell.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(attack(Kit.read(Path(sys.argv[1])), sys.argv[2], sys.argv[3])), flush=True)
    os._exit(0)  # FLARE's threads would go on
