"""Three sites and a coordinator as processes over mutual TLS: the posterior of one process, and nothing for a rogue."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.network.drills import Consortium
from tests.network.rogue import MARK

from tacit.network.certificates import COORDINATOR
from tacit.network.channel import UNKNOWN

pytestmark = pytest.mark.xdist_group("processes")

ROOT = Path(__file__).resolve().parents[2]


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
        assert result["tolerance"].startswith("The coordinator sees only sums over sites")
    all.tacit("simulate", all.study, "--out", tmp_path / "one", "--insecure-seed", all.seed)
    one, many = (json.loads((path / "posterior.json").read_text()) for path in (tmp_path / "one", all.out))
    words = {"statement", "statement_text"}
    assert {k: v for k, v in many.items() if k not in words} == {k: v for k, v in one.items() if k not in words}
    assert result["released"] == json.loads((tmp_path / "one" / "result.json").read_text())["released"]


@pytest.mark.slow  # `tests.network.test_channel` has the gate in one process
@pytest.mark.parametrize("role", [COORDINATOR, "south"])
def test_a_rogue_with_a_true_certificate_gets_nothing_but_what_a_study_is(tmp_path: Path, role: str):
    """With FLARE's job machinery it ran its own code at a site, read any file of it, and deleted its folders."""
    with Consortium(tmp_path / "all") as all:  # east never comes, so no study begins
        site = all.site_file("north").parent
        if role == COORDINATOR:
            kit = all.network / COORDINATOR
        else:
            kit = all.kit("south")
            all.start_serve()
        all.start_site("north")
        before = tree(site)
        command = [sys.executable, "-m", "tests.network.rogue", kit, "north", tmp_path]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.pop("connected")
        honest = found.pop("north: honest")
        assert (honest == ["ok", repr(UNKNOWN)]) == (role == COORDINATOR)  # it is alive, and knows no such study
        assert len(found) > 60
        for what, (code, reply) in found.items():
            assert code != "ok", what
            assert reply == "None", what
        assert all.is_running("north")
        assert not list(tmp_path.rglob(MARK))
        assert all.charges("north") == []
        after = tree(site)
        own = {"state/flare.log", "state/join.lock", "state", "state/compiled"}
        assert {path: after[path] for path in after if path not in own} == before
        all.stop("north")


def tree(folder: Path) -> dict[str, str]:
    """What is in a folder, by hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }
