"""Models of users' own between machines: what runs at a site is what its own file allows, byte for byte."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("numpyro")

from tests.network.conftest import NORTH, RECORDS, SEED, check_refused
from tests.network.test_remote import of_study, plain

from tacit.network.agreement import Agreement
from tacit.study.front import federate
from tacit.study.own_models import Source, load

pytestmark = pytest.mark.xdist_group("clinics")

MODEL = """
import numpy as np
import numpyro
import numpyro.distributions as dist
from pathlib import Path
from tacit.models import from_numpyro

Path(__file__).with_name("it-ran").touch()

def linear(age, sex, ill):
    shift = numpyro.sample("shift", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    other = numpyro.sample("other", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", len(age)):
        numpyro.sample("ill", dist.Bernoulli(logits=shift + slope * (age - 50) / 20 + other * sex), obs=ill)

def sepsis():
    return from_numpyro(linear, (np.array([30.0, 60.0]), np.array([0.0, 1.0]), np.array([1, 0])))
"""


class Installed:
    """A module of one test, installed for all clinics."""

    def __init__(self, folder: Path, module: str) -> None:
        self.path, self.module, self.name = folder / f"{module}.py", module, f"{module}:sepsis"
        self.path.write_text(MODEL)
        self.mark = folder / "it-ran"

    @property
    def digest(self) -> str:
        return Source.of(self.name).digest

    def allow(self, clinics: Any, **changes: Any) -> None:
        """Take away the # before the line of the model in each example of a site file, as its operator does."""
        clinics.study = clinics.read(model=self.name, method="vi", rounds=2, **changes)
        for name in RECORDS:
            clinics.set(name)
            text = clinics.path(name).read_text()
            line = f'# "{self.name}" = "{self.digest}"'
            assert line in text
            clinics.path(name).write_text(text.replace(line, line[2:]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Installed:
    (tmp_path / "installed").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    return Installed(tmp_path / "installed", f"net_{abs(hash(request.node.name))}")


def test_it_is_that_of_one_process_and_of_the_model_as_an_object_bit_for_bit(
    clinics: Any, installed: Installed
) -> None:
    installed.allow(clinics, vi={"steps": 10})
    found = clinics.coordinate()
    sites, _ = clinics.study.gather()
    alone = federate(clinics.study.plan, sites, insecure_seed=SEED)
    assert plain(found) == plain(alone)
    assert of_study(found.sites) == of_study(alone.sites)
    settings = {name: getattr(clinics.study.settings, name) for name in ("rounds", "method", "vi", "name")}
    as_object = federate(load(installed.name), sites, insecure_seed=SEED, **settings)
    by_name = federate(installed.name, sites, insecure_seed=SEED, **settings)
    assert plain(as_object) == plain(by_name) == plain(alone)
    assert set(found.posterior.blocks) == {"shift", "slope", "other"}
    for name in RECORDS:
        assert clinics.ledger(name).verify()
        assert clinics.ledger(name).spent() <= clinics.ledger(name).epsilon


def proposed(clinics: Any, **changes: Any) -> dict[str, Any]:
    """The agreement as a coordinator may change it."""
    sent = json.loads(Agreement.of(clinics.study).to_json())
    sent["plan"]["model"] = changes.get("model", sent["plan"]["model"])
    sent["source"] = changes.get("source", sent["source"])
    return sent


def test_a_name_that_is_not_in_the_site_s_file_imports_nothing(clinics: Any, installed: Installed) -> None:
    """Whatever hash comes with it, even that of what is on the disk."""
    installed.allow(clinics)
    sent = Agreement.of(clinics.study).to_json()  # which the coordinator's own machine has loaded
    other = Installed(installed.path.parent, installed.module + "_rogue")
    installed.mark.unlink()
    plain = json.loads(sent)
    plain["plan"]["model"], plain["source"] = other.name, other.digest
    check_refused(clinics, clinics.open(NORTH, plain), "is not allowed here; expected one of")
    assert other.module not in sys.modules
    for name in (f"{installed.module}:linear", f"{installed.module}.sub:sepsis", "os:system", "antigravity:model"):
        check_refused(clinics, clinics.open(NORTH, proposed(clinics, model=name)), "is not allowed here")
    assert not {"antigravity", f"{installed.module}.sub"} & set(sys.modules)
    assert not installed.mark.exists()


@pytest.mark.parametrize("name", ["..outside:model", "../evil:model", "/evil:model", "a:b:c", "a.b", ".:x"])
def test_a_name_that_is_a_way_out_is_none(clinics: Any, installed: Installed, name: str) -> None:
    installed.allow(clinics)
    check_refused(clinics, clinics.open(NORTH, proposed(clinics, model=name)), "the study that was sent cannot be read")


def test_another_hash_than_the_site_s_own_is_refused_before_anything_is_run(clinics: Any, installed: Installed) -> None:
    installed.allow(clinics)
    installed.mark.unlink()
    sent = proposed(clinics, source="sha256:" + "0" * 64)
    check_refused(clinics, clinics.open(NORTH, sent), "has another source than the one that is allowed here")
    assert not installed.mark.exists()


def test_a_source_that_is_another_on_the_site_s_disk_is_not_run(clinics: Any, installed: Installed) -> None:
    """The study and the site's file agree on a hash, and what is installed is something else."""
    installed.allow(clinics)
    sent = Agreement.of(clinics.study).to_json()
    installed.mark.unlink()
    installed.path.write_text(MODEL + "\nx = 1\n")
    session = clinics.open(NORTH, sent)
    check_refused(clinics, session, f"this site does not have {installed.name} as its file says")
    assert not installed.mark.exists()
    lines = (clinics.state(NORTH) / "audit.jsonl").read_text()
    assert "has the source sha256:" in lines, "the site alone is told more"
    installed.path.unlink()
    check_refused(clinics, clinics.open(NORTH, sent), f"this site does not have {installed.name} as its file says")


def test_a_site_file_as_it_is_sent_allows_no_code(clinics: Any, installed: Installed) -> None:
    """Its operator takes away the # after a look at the source."""
    clinics.study = clinics.read(model=installed.name, method="vi")
    clinics.set(NORTH)
    with pytest.raises(ValueError, match=r"models=\[\]; expected a list of some of"):
        clinics.open(NORTH)


def test_columns_that_the_model_does_not_take_are_refused_in_a_sentence(clinics: Any, installed: Installed) -> None:
    installed.path.write_text(MODEL.replace("(age, sex, ill)", "(age, height, ill)").replace("other * sex", "other"))
    with pytest.raises(ValueError, match="the model takes 'height', and no column has this name"):
        Agreement.of(clinics.read(model=installed.name, method="vi")).setup(
            clinics.study.outline()[0][0].table, model=load(installed.name)
        )
