"""Certificates are looked at before a process is started with them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from nvflare.lighter import utils

from tacit.engines import nvflare


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    nvflare.provision(folder, "study", ["north", "south"], "localhost", 8102)
    return folder


def test_a_new_certificate_is_valid_by_clocks_that_are_a_day_behind_or_ahead(network: Path) -> None:
    for place in (
        *network.glob("*/startup/*.crt"),
        *network.glob("sites/*/kit/startup/*.crt"),
        *network.rglob("*.pem"),
    ):
        found = x509.load_pem_x509_certificate(place.read_bytes())
        for days in (-1, 0, 1, 300):
            assert found.not_valid_before_utc < datetime.now(UTC) + timedelta(days=days) < found.not_valid_after_utc


def test_sound_certificates_are_accepted(network: Path) -> None:
    nvflare.check_certificate(network / "coordinator", "localhost")
    nvflare.check_certificate(network / "operator", nvflare.OPERATOR)
    nvflare.check_certificate(network / "sites" / "north" / "kit", "north")


def test_another_sites_certificate_is_refused(network: Path) -> None:
    with pytest.raises(ValueError, match=r"is of 'north', not of 'south'; ask .* --renew"):
        nvflare.check_certificate(network / "sites" / "north" / "kit", "south")


@pytest.mark.parametrize(("is_known", "words"), [(True, r"expired on \d{4}-"), (False, "not of the kit's authority")])
def test_expired_and_unknown_certificates_are_refused(network: Path, is_known: bool, words: str) -> None:
    root = json.loads((network / "authority" / "study" / "state" / "cert.json").read_text())
    signer = utils.load_private_key(root["root_pri_key"]) if is_known else utils.generate_keys()[0]
    end = datetime.now(UTC) - timedelta(days=1)
    more = {"not_valid_before": end - timedelta(days=30), "not_valid_after": end}
    names = utils.Identity("south"), utils.Identity("study")
    made = utils.generate_cert(*names, signer, utils.generate_keys()[1], **more)
    kit = network / "sites" / "south" / "kit"
    (kit / "startup" / "client.crt").write_bytes(utils.serialize_cert(made))
    with pytest.raises(ValueError, match=words):
        nvflare.check_certificate(kit, "south")
