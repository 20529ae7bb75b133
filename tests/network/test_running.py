"""The commands of a study between machines, up to where processes begin: `network init`, `serve`, `join`, `status`."""

import fcntl
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tacit.files.site_file import read_site
from tacit.network import certificates, join, provision, serve
from tacit.network.agreement import Agreement
from tacit.network.audit_log import AuditLog
from tacit.network.status import withdrawn

Run = Callable[..., tuple[int, str, str]]
NAMES = ["north", "south", "west"]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: Any, **rest: Any) -> Any:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(serve, "Exchange", opened)
    monkeypatch.setattr(join, "Connection", opened)


@pytest.fixture
def network(clinics: Any) -> Path:
    """Kits of all sites of the study."""
    provision.init(clinics.study, clinics.folder / "network", [], "localhost", 8102)
    return clinics.folder / "network"


def check_refused(found: tuple[int, str, str], *words: str) -> None:
    """Exit code 2, one sentence, no traceback."""
    code, out, err = found
    assert code == 2
    assert out == ""
    plain = " ".join(err.split())
    assert len(err.strip().splitlines()) <= 6
    assert "Traceback" not in err
    for word in words:
        assert word in plain


# --- tacit network init -------------------------------------------------------------------------------------------


def test_init_makes_kits_and_site_files_for_this_machine_alone_by_default(clinics: Any, run: Run) -> None:
    network = clinics.folder / "network"
    code, out, _ = run("network", "init", clinics.study.path, "--out", network, "--json")
    assert code == 0
    own = [network / "sites" / name for name in NAMES]
    assert json.loads(out) == {
        "network": str(network),
        "address": "localhost",
        "port": 8102,
        "sites": [str(place) for place in own],
    }
    assert network.stat().st_mode & 0o777 == 0o700
    for name, place in zip(NAMES, own, strict=True):
        assert {inner.name for inner in place.iterdir()} == {"kit", "site.toml"}
        site = read_site(place / "site.toml")
        assert (site.settings.name, site.kit_folder) == (name, place / "kit")
        assert site.settings.insecure_seed is None
        assert json.loads((place / "kit" / "kit.json").read_text()) == {"name": name, "host": "localhost", "port": 8102}
    noted = json.loads((network / "network.json").read_text())
    assert noted == {"host": "localhost", "port": 8102, "sites": NAMES}
    assert provision.read_network(network) == noted


def test_init_says_what_to_do_next(clinics: Any, run: Run) -> None:
    network = clinics.folder / "network"
    code, out, _ = run("network", "init", clinics.study.path, "--sites", "south", "--out", network)
    assert code == 0
    assert "Kits for 1 sites, which will connect to localhost:8102:" in out
    assert f"tacit join {network / 'sites' / 'south' / 'site.toml'}" in out
    assert f"{network / 'authority'} signs certificates: keep it off the network" in out


def test_init_given_again_adds_what_is_lacking_and_keeps_the_rest(clinics: Any, run: Run) -> None:
    network = clinics.folder / "network"
    first = ("network", "init", clinics.study.path, "--out", network)
    assert run(*first, "--sites", "north")[0] == 0
    (network / "sites" / "north" / "site.toml").write_text("# mine\n")
    certificate = network / "sites" / "north" / "kit" / "holder.pem"
    before = certificate.read_bytes()
    assert run(*first)[0] == 0
    assert (network / "sites" / "north" / "site.toml").read_text() == "# mine\n"
    assert certificate.read_bytes() == before
    assert {place.name for place in (network / "sites").iterdir()} == set(NAMES)
    assert run(*first, "--renew", "north")[0] == 0
    assert certificate.read_bytes() != before
    assert (network / "sites" / "north" / "site.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sites", "east"], "site 'east' is not in the study; expected some of north, south, west"),
        (["--renew", "east"], "site 'east' is not in the study"),
        (["--port", "0"], "port=0; expected a number from 1 to 65535"),
        (["--port", "65536"], "port=65536; expected a number from 1 to 65535"),
        (["--address", "a b"], "address='a b'; expected the host name"),
        (["--address", "x;reboot"], "address='x;reboot'; expected the host name"),
    ],
)
def test_init_refuses_in_a_sentence_and_makes_nothing(clinics: Any, run: Run, options: list[str], words: str) -> None:
    network = clinics.folder / "network"
    check_refused(run("network", "init", clinics.study.path, "--out", network, *options), words)
    assert not network.exists()


def test_init_refuses_another_address_and_a_folder_that_is_no_network(clinics: Any, run: Run, network: Path) -> None:
    study = clinics.study.path
    words = f"network={network} is for localhost:8102; expected the same address, or a new folder"
    check_refused(run("network", "init", study, "--out", network, "--port", 9000), words)
    check_refused(run("network", "init", study, "--out", clinics.folder / "north"), "is not empty and not a network's")
    assert not (clinics.folder / "north" / "network.json").exists()


@pytest.mark.parametrize("name", ["1", "a b", "ü", "server", "coordinator"])
def test_init_refuses_sites_that_no_certificate_can_name(clinics: Any, run: Run, name: str) -> None:
    path = clinics.study.path
    path.write_text(path.read_text().replace('name = "west"', f'name = "{name}"'))
    network = clinics.folder / "network"
    check_refused(run("network", "init", path, "--out", network), f"site {name!r}", "for a certificate")
    assert not network.exists()


def test_init_refuses_a_study_that_no_site_could_be_part_of(clinics: Any, run: Run) -> None:
    for settings in ({"unit": "site"}, {"epsilon": float("inf")}, {"name": "a/b"}):
        clinics.read(**settings)
        check_refused(run("network", "init", clinics.study.path, "--out", clinics.folder / "network"), "study=")
        assert not (clinics.folder / "network").exists()


def test_without_flare_commands_say_how_to_install_it(clinics: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in (["network", "init"], ["serve"], ["join"]):
        check_refused(run(*command, clinics.study.path), "pip install 'tacit[network]'")


# --- tacit serve, up to its process -------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--at-least", "4"], "at_least=4; expected a number of sites from 1 to 3"),
        (["--at-least", "0"], "at_least=0; expected a number of sites from 1 to 3"),
        (["--patience", "0.5"], "patience=0.5; expected seconds from 1 to 86400"),
        (["--patience", "nan"], "patience=nan; expected seconds from 1 to 86400"),
        (["--network", "nowhere"], "network=nowhere has no network.json; make it by 'tacit network init'"),
    ],
)
def test_serve_refuses_before_it_starts_anything(
    clinics: Any, run: Run, network: Path, options: list[str], words: str
) -> None:
    out = clinics.folder / "out"
    check_refused(run("serve", clinics.study.path, "--network", network, "--out", out, *options), words)
    assert not out.exists()


@pytest.mark.usefixtures("_no_network")
def test_serve_needs_a_kit_of_every_site(clinics: Any, run: Run) -> None:
    network, out = clinics.folder / "network", clinics.folder / "out"
    provision.init(clinics.study, network, ["north", "south"], "localhost", 8102)
    found = run("serve", clinics.study.path, "--network", network, "--out", out)
    check_refused(found, f"network={network} has no kit of site 'west'; make it by 'tacit network init'")
    assert not out.exists()


@pytest.mark.usefixtures("_no_network")
def test_serve_takes_one_folder_for_one_study_and_for_one_process(clinics: Any, run: Run, network: Path) -> None:
    out = clinics.folder / "out"
    out.mkdir()
    clinics.study.claim(out)
    with (out / "serve.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = run("serve", clinics.study.path, "--network", network, "--out", out)
    check_refused(found, f"another coordinator works in {out}; end that process first")
    (out / "inference.progress").touch()  # else nothing was charged, and there is room for another
    other = clinics.read(rounds=2)
    found = run("serve", other.path, "--network", network, "--out", out)
    check_refused(found, f"out={out} holds a study with another rounds, 3 and not 2, whose budget is spent")


@pytest.mark.usefixtures("_no_network")
def test_a_study_that_is_finished_is_not_served_again(clinics: Any, network: Path) -> None:
    out = clinics.folder / "out"
    out.mkdir()
    (out / "result.json").write_text("{}")
    clinics.study.claim(out)
    serve.serve(clinics.study.path, network, out)
    assert not (out / "serve.lock").exists()


@pytest.mark.parametrize(
    ("begun", "times", "expected"),
    [
        (False, [["north"], ["north", "south"], NAMES], NAMES),  # two are enough, and the third is waited for
        (False, [["north"]] + [["north", "south"]] * 9, ["north", "south"]),  # but not for good
        (True, [["north"], ["north", "south"], NAMES], ["north", "south"]),
        (True, [["north"]] * 30, ["north"]),  # patience has ended
    ],
)
def test_a_study_that_could_begin_waits_a_little_for_the_others(
    clinics: Any, monkeypatch: pytest.MonkeyPatch, begun: bool, times: list[list[str]], expected: list[str]
) -> None:
    """Those that are there may refuse it: it would fail for want of sites that are about to connect."""
    clock, looks = [0.0], iter(times)
    monkeypatch.setattr(serve, "GATHERING", 3.0)
    monkeypatch.setattr(serve.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(serve.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 1))
    exchange: Any = SimpleNamespace(connected=lambda: next(looks))
    agreement = Agreement.of(clinics.study)
    patience = 20.0 if begun else math.inf
    out = clinics.folder / "out"
    out.mkdir()
    assert serve._wait_for(exchange, agreement, 2, patience, out, lambda words: None) == expected


# --- tacit join, up to its process --------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_network")
def test_join_needs_a_kit_of_its_own(clinics: Any, run: Run, network: Path) -> None:
    check_refused(run("join", clinics.path("north")), "is not a start-up kit; expected one made by 'tacit")
    (clinics.folder / "north" / "kit").symlink_to(network / "sites" / "south" / "kit")
    check_refused(run("join", clinics.path("north")), "is of 'south'; expected one of 'north'")
    assert not clinics.state("north").exists()


@pytest.mark.usefixtures("_no_network")
def test_a_site_is_joined_once(clinics: Any, run: Run, network: Path) -> None:
    (clinics.folder / "north" / "kit").symlink_to(network / "sites" / "north" / "kit")
    clinics.state("north").mkdir()
    with (clinics.state("north") / "join.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_refused(run("join", clinics.path("north")), "site north is joined already; end that process first")


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("state", ["kit/state", "kit", "."])
def test_state_and_kit_are_folders_of_their_own(clinics: Any, run: Run, network: Path, state: str) -> None:
    """Who replaces a kit, or hands it on, must not touch the ledger."""
    (network / "sites" / "north" / "kit").rename(clinics.folder / "north" / "kit")
    clinics.set("north", state=state)
    check_refused(run("join", clinics.path("north")), "are one inside the other; give each a folder of its own")
    assert not list(clinics.folder.rglob("join.lock"))


@pytest.mark.usefixtures("_no_network")
def test_a_site_s_folders_are_its_own_and_nothing_in_them_is_removed(clinics: Any, network: Path) -> None:
    (network / "sites" / "north" / "kit").rename(clinics.folder / "north" / "kit")
    job = clinics.folder / "north" / "kit" / "0f8fad5b-d9cb-469f-a165-70867728950e"
    job.mkdir()
    with pytest.raises(AssertionError, match="a connection was opened"):
        join.join(clinics.path("north"), lambda words: None)
    assert job.is_dir()
    assert clinics.state("north").stat().st_mode & 0o777 == 0o700


def test_a_holder_is_told_when_the_connection_changes_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    here = iter([False, False, True, True, False, False, False, True])
    connection: Any = SimpleNamespace(is_connected=lambda: next(here))
    away = certificates.AWAY
    troubles = iter([away, away, away, "its certificate is false", ""])
    monkeypatch.setattr(join, "UNSETTLED", -1.0)
    monkeypatch.setattr(certificates, "trouble", lambda kit: next(troubles))
    kit: Any = SimpleNamespace(name="north")
    watch = join._Watch(kit, connection, said.append)
    for _ in range(8):
        watch.look()
    connected = "north: connected to the coordinator; waiting for what it asks"
    assert said == [
        f"north: {away}",
        connected,
        "north: the coordinator has gone; waiting for its next study",
        "north: its certificate is false",
        connected,
    ]


def test_a_holder_is_told_of_whole_lines_of_the_log_once(tmp_path: Path) -> None:
    path, said = tmp_path / "audit.jsonl", []
    assert join._tell(path, 0, said.append) == 0
    journal = AuditLog(path)
    journal.write("opened", "clinics-1", 0, b"", b"", "accepted")
    seen = join._tell(path, 0, said.append)
    journal.write("refused", "clinics-1/inference", 4, b"", b"", "no budget")
    with path.open("ab") as file:
        file.write(b'{"half')
    seen = join._tell(path, seen, said.append)
    assert join._tell(path, seen, said.append) == seen
    assert [words[9:] for words in said] == [
        "opened round 0 of clinics-1: accepted",
        "refused round 4 of clinics-1/inference: no budget",
    ]


# --- tacit network status, withdraw -------------------------------------------------------------------------------


def status_of(out: Path, **changes: Any) -> dict[str, Any]:
    """A study that is going on, of which a coordinator wrote this."""
    rows = {
        name: {"state": "here", "updates": 1, "spent": 0.5, "epsilon": 2.0, "heard": None, "reason": ""}
        for name in NAMES
    }
    rows["west"] |= {"state": "left out", "spent": None, "reason": "[red]no[/red] \\[bold]"}
    found = {
        "study": "clinics",
        "time": "2026-01-01",
        "phase": "inference",
        "done": 1,
        "of": 3,
        "sites": rows,
        **changes,
    }
    out.mkdir(exist_ok=True)
    (out / "status.json").write_text(json.dumps(found))
    return found


def test_a_status_shows_each_site_with_its_words_as_they_are(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    check_refused(run("network", "status", out), f"out={out} has no study that was begun")
    found = status_of(out)
    code, shown, _ = run("network", "status", out, "--json")
    assert (code, json.loads(shown)) == (0, found)
    code, shown, _ = run("network", "status", out)
    assert code == 0
    assert "clinics: inference, 1 of 3" in shown
    plain = "".join(shown.split())
    assert all(name in shown for name in NAMES)
    assert "[red]no" in plain.replace("│", "")
    assert "nottold" in plain.replace("│", "")
    (out / "result.json").write_text("{}")
    assert "clinics: finished" in run("network", "status", out)[1]
    (out / "status.json").write_text("{half")
    check_refused(run("network", "status", out), "has no study that was begun")


def test_a_status_of_a_study_that_failed_says_why(tmp_path: Path, run: Run) -> None:
    (tmp_path / "status.json").write_text(
        json.dumps({"study": "clinics", "time": "now", "phase": "failed", "failed": "no site took part", "sites": {}})
    )
    code, shown, _ = run("network", "status", tmp_path)
    assert code == 0
    assert "no site took part" in " ".join(shown.split())


def test_a_withdrawal_is_noted_for_the_next_step(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    check_refused(run("network", "withdraw", "north", "--out", out), f"out={out} has no study that was begun")
    status_of(out)
    for name in ("east", "../north", "", "north/"):
        found = run("network", "withdraw", name, "--out", out)
        check_refused(found, f"site {name!r} is not in the study", "expected one of north, south, west")
    assert withdrawn(out, NAMES) == ()
    code, shown, _ = run("network", "withdraw", "south", "--out", out)
    assert code == 0
    assert "south is withdrawn before the next step of the study" in " ".join(shown.split())
    assert withdrawn(out, NAMES) == [1]
    assert run("network", "withdraw", "south", "--out", out)[0] == 0
    (out / "result.json").write_text("{}")
    check_refused(run("network", "withdraw", "north", "--out", out), "is finished, and its posterior was released")
    assert withdrawn(out, NAMES) == [1]
