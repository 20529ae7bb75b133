"""Runs one of FLARE's programs with less than FLARE gives it: `python -m tacit.engines.guarded MODULE ARGUMENTS...`

FLARE's processes answer more than a study needs, and ask for no right where a message does not say that one is needed:
whoever is connected could read a site's files (`sys.shell`), end its process, or look into its settings, and so could
other sites, by way of the coordinator. What is left here:

| from                                        | what                                                                |
|---------------------------------------------|---------------------------------------------------------------------|
| the coordinator, and the site's own process | messages of a job; deploy, start and end of jobs (`PROCESSORS`)     |
| another site                                | nothing                                                             |
| anybody                                     | of the network's own management, signs of life                      |

Where a message comes from is what FLARE's server has checked against certificates. A server that lies about it is the
coordinator's, which a site lets do no more than this.

At the coordinator a job goes on without a site whose process has failed: FLARE would end it for everybody, so that a
single site could stop a study for good. Here such a site is away, as one that does not answer.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Any

OWN_NAME = "TACIT_OWN_NAME"  # the variable with the name of the site; not there at a coordinator
SERVER = "server"  # what FLARE calls it
MANAGEMENT, SIGNS_OF_LIFE = "_net_manager", "heartbeat"
PR_SET_PDEATHSIG = 1  # Linux: a signal when the process that began this one ends
PROCESSORS = (
    "DeployProcessor",
    "StartJobProcessor",
    "AbortAppProcessor",
    "ClientStatusProcessor",
    "CheckResourceProcessor",
    "CancelResourceProcessor",
    "NotifyJobStatusProcessor",
    "ScopeInfoProcessor",
)


def tighten(site: str | None) -> None:
    """Take away, in this process, what a study does not need. site: whose process it is; None at a coordinator."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell

    register, start = CoreCell.register_request_cb, CoreCell.start

    def registered(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> None:
        if channel != MANAGEMENT or topic == SIGNS_OF_LIFE:
            register(self, channel, topic, cb, *args, **kwargs)

    CoreCell.register_request_cb = registered
    if site is None:
        _go_on_without_failed()
        return

    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    kept = [made for made in ClientRequestProcessors.request_processors if type(made).__name__ in PROCESSORS]
    ClientRequestProcessors.request_processors = kept

    def started(self: Any) -> None:
        self.add_incoming_filter("*", "*", lambda message: refusal(site, message))
        start(self)

    CoreCell.start = started


def _go_on_without_failed() -> None:
    from nvflare.apis.job_launcher_spec import JobReturnCode
    from nvflare.private.defs import JobFailureMsgKey
    from nvflare.private.fed.server.fed_server import FederatedServer

    process = FederatedServer.process_job_failure

    def processed(self: Any, request: Any) -> Any:
        """FLARE's, told that the site has ended in whatever way."""
        if isinstance(request.payload, dict) and JobFailureMsgKey.CODE in request.payload:
            self.logger.warning(f"a site's job has failed: {request.payload.get(JobFailureMsgKey.REASON)!s:.200}")
            request.payload = {**request.payload, JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        return process(self, request)

    FederatedServer.process_job_failure = processed


def refusal(site: str, message: Any) -> Any:
    """The reply to a request of somebody who has nothing to ask of this site; None lets it pass."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode
    from nvflare.fuel.f3.cellnet.utils import make_reply

    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    if origin.partition(".")[0] in (SERVER, site):
        return None
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None  # an answer to what was asked from here
    return make_reply(ReturnCode.AUTHENTICATION_ERROR, "only the coordinator may ask")


def main() -> None:
    """Tighten this process, then be the program that is named."""
    del sys.argv[0]
    is_job = not sys.argv[0].endswith("_train")  # FLARE begins those in threads, which end
    if sys.platform == "linux" and not is_job:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    tighten(os.environ.get(OWN_NAME))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
