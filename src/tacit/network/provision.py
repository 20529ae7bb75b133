"""`tacit network init`: certificates, start-up kits and site files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.files.example_site import example_site
from tacit.files.study_file import StudyFile
from tacit.network import certificates
from tacit.network.agreement import Agreement
from tacit.network.certificates import COORDINATOR


def init(
    study: StudyFile, folder: Path, sites: Sequence[str], host: str, port: int, renew: Sequence[str] = ()
) -> list[Path]:
    """Make certificates, a start-up kit and a site file for each site of a study; return the folders to hand out.

    sites: those to make kits for; all of the study by default. A folder that exists gets what it lacks.
    """
    Agreement.of(study)  # refuses a study that could not be served
    known = study.names()
    odd = [name for name in (*sites, *renew) if name not in (*known, COORDINATOR)]
    if odd:
        raise ValueError(f"site {odd[0]!r} is not in the study; expected some of {', '.join(known[:10])}")
    place = folder / "network.json"
    noted: dict[str, Any] = {}
    if place.exists():
        noted = read_network(folder)
        if (noted["host"], noted["port"]) != (host, port):
            raise ValueError(
                f"network={folder} is for {noted['host']}:{noted['port']}; expected the same address, or a new folder"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"network={folder} is not empty and not a network's; take a new folder")
    chosen = list(dict.fromkeys([*noted.get("sites", []), *(sites or known)]))
    texts = {name: example_site(study, name) for name in chosen if name in known}
    certificates.check(chosen, host)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    certificates.provision(folder, study.plan.name, chosen, host, port, renew)
    place.write_text(json.dumps({"host": host, "port": port, "sites": chosen}, indent=1) + "\n")
    made = []
    for name in chosen:
        own = folder / "sites" / name
        if name in texts and not (own / "site.toml").exists():
            (own / "site.toml").write_text(texts[name], encoding="utf-8")
        made.append(own)
    return made


def read_network(folder: Path) -> dict[str, Any]:
    """The settings of a network, as `init` noted them."""
    try:
        return json.loads((folder / "network.json").read_text())
    except (OSError, ValueError):
        raise ValueError(f"network={folder} has no network.json; make it by 'tacit network init'") from None
