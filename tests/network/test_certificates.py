"""Kits: who may speak, and as whom. A kit is looked at before anything is dialled with it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tacit.network import certificates
from tacit.network.certificates import COORDINATOR, Kit, check_site_name, provision

SITES = ("north", "south")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits that are not changed."""
    return provisioned(tmp_path_factory.mktemp("network"))


def provisioned(folder: Path) -> Path:
    provision(folder, "clinics", SITES, "localhost", 8102)
    return folder


def kits(folder: Path) -> dict[str, Path]:
    return {COORDINATOR: folder / COORDINATOR} | {name: folder / "sites" / name / "kit" for name in SITES}


def certificate(kit: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((kit / "holder.pem").read_bytes())


def test_each_holder_has_a_key_and_a_certificate_of_one_authority(network: Path) -> None:
    roots, keys = set(), set()
    for name, place in kits(network).items():
        kit, own = Kit.read(place), certificate(place)
        assert (kit.name, kit.host, kit.port, kit.is_coordinator) == (name, "localhost", 8102, name == COORDINATOR)
        root = x509.load_pem_x509_certificate(kit.authority.read_bytes())
        own.verify_directly_issued_by(root)
        key = serialization.load_pem_private_key(kit.key.read_bytes(), None)
        assert key.public_key() == own.public_key()
        (subject,) = own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert subject.value == kit.common_name == ("localhost" if name == COORDINATOR else name)
        roots.add(kit.authority.read_bytes())
        keys.add(kit.key.read_bytes())
    assert (len(roots), len(keys)) == (1, 3)


def test_only_the_coordinator_s_certificate_is_one_of_a_server(network: Path) -> None:
    """So that no site can stand in for it, whatever a library makes of names."""
    for name, place in kits(network).items():
        own = certificate(place)
        usage = list(own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        expected = ExtendedKeyUsageOID.SERVER_AUTH if name == COORDINATOR else ExtendedKeyUsageOID.CLIENT_AUTH
        assert usage == [expected]
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["localhost" if name == COORDINATOR else name]
        assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_an_address_in_numbers_is_one_in_the_certificate(tmp_path: Path) -> None:
    provision(tmp_path / "network", "clinics", ["north"], "127.0.0.1", 8102)
    names = certificate(tmp_path / "network" / COORDINATOR).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(found) for found in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_secrets_are_for_their_owner_alone(network: Path) -> None:
    secret = [place for place in network.rglob("*") if place.is_file() and b"PRIVATE KEY" in place.read_bytes()]
    assert len(secret) == 4
    for place in secret:
        assert place.name == "key.pem"
        assert place.stat().st_mode & 0o777 == 0o600
        assert place.parent.stat().st_mode & 0o777 == 0o700


def test_a_kit_is_four_files_and_no_program(network: Path) -> None:
    for place in kits(network).values():
        assert {file.name for file in place.iterdir()} == {"kit.json", "key.pem", "holder.pem", "authority.pem"}
        assert set(json.loads((place / "kit.json").read_text())) == {"name", "host", "port"}


def test_a_kit_that_is_renewed_is_new_and_the_others_stay(tmp_path: Path) -> None:
    folder = provisioned(tmp_path / "network")
    before = {name: certificate(kit) for name, kit in kits(folder).items()}
    (folder / "sites" / "north" / "site.toml").write_text("# mine\n")
    provision(folder, "clinics", (*SITES, "east"), "localhost", 8102, renew=["north", COORDINATOR])
    after = {name: certificate(kit) for name, kit in kits(folder).items()}
    assert {name for name in before if before[name] != after[name]} == {"north", COORDINATOR}
    assert after["north"].public_key() != before["north"].public_key()
    for kit in [*kits(folder).values(), folder / "sites" / "east" / "kit"]:
        Kit.read(kit)
    assert {place.name for place in (folder / "sites" / "north").iterdir()} == {"kit", "site.toml"}
    root = (folder / "sites" / "east" / "kit" / "authority.pem").read_bytes()
    assert root == (kits(folder)["south"] / "authority.pem").read_bytes()  # the same authority


@pytest.mark.parametrize("name", ["north", "site-01", "ward_7", "ab", "yesterday", "yes", "X" * 63])
def test_names_for_certificates(name: str) -> None:
    check_site_name(name)


ODD = ["", "1", "01", "a b", "ü", "𝐚𝐛", "a/b", "../a", "-a", "_a", "a.b", "a=b", "a,b", ".", ".."]


@pytest.mark.parametrize("name", [*ODD, "server", "Server", COORDINATOR, "authority", "X" * 64, "north\n", "a\0"])
def test_names_that_no_certificate_or_folder_should_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="for a certificate"):
        check_site_name(name)
    with pytest.raises(ValueError, match="for a certificate"):
        provision(tmp_path / "network", "clinics", [name], "localhost", 8102)
    assert not (tmp_path / "network").exists()


@pytest.mark.parametrize("name", ["localhost", "LocalHost"])
def test_no_site_has_the_name_by_which_sites_know_their_coordinator(name: str, tmp_path: Path) -> None:
    """Its certificate would be that of the coordinator's address."""
    with pytest.raises(ValueError, match="has the name of the coordinator's address; give it another name"):
        provision(tmp_path / "network", "clinics", ["north", name], "localhost", 8102)
    assert not (tmp_path / "network").exists()


def test_sites_whose_names_a_file_system_may_not_tell_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names that differ in more than capital letters"):
        provision(tmp_path / "network", "clinics", ["north", "North"], "localhost", 8102)


@pytest.mark.parametrize("host", ["", "a b", "-x", "x;reboot", "http://x", "x:1", "x\n", "ü", "x" * 64])
def test_addresses_that_are_none_are_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="address="):
        provision(tmp_path / "network", "clinics", ["north"], host, 8102)
    assert not (tmp_path / "network").exists()


def test_a_new_certificate_is_valid_by_clocks_that_are_a_day_behind_or_ahead(network: Path) -> None:
    for place in network.rglob("*.pem"):
        if place.name == "key.pem":
            continue
        found = x509.load_pem_x509_certificate(place.read_bytes())
        for days in (-1, 0, 1, 300):
            assert found.not_valid_before_utc < datetime.now(UTC) + timedelta(days=days) < found.not_valid_after_utc


def test_another_sites_certificate_is_refused(tmp_path: Path) -> None:
    folder = provisioned(tmp_path / "network")
    for file in ("holder.pem", "key.pem"):
        (kits(folder)["south"] / file).write_bytes((kits(folder)["north"] / file).read_bytes())
    with pytest.raises(ValueError, match=r"is of 'north', not of 'south'; ask .* --renew"):
        Kit.read(kits(folder)["south"])


@pytest.mark.parametrize(("is_known", "words"), [(True, r"expired on \d{4}-"), (False, "not of the kit's authority")])
def test_expired_and_unknown_certificates_are_refused(tmp_path: Path, is_known: bool, words: str) -> None:
    folder = provisioned(tmp_path / "network")
    root = x509.load_pem_x509_certificate((folder / "authority" / "authority.pem").read_bytes())
    known = serialization.load_pem_private_key((folder / "authority" / "key.pem").read_bytes(), None)
    signer = known if is_known else ec.generate_private_key(ec.SECP256R1())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    made = certificates.certificate("south", root.subject, signer, public, is_server=False, days=-1)
    (kits(folder)["south"] / "holder.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(ValueError, match=words):
        Kit.read(kits(folder)["south"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kit: (kit / "kit.json").unlink(),
        lambda kit: (kit / "kit.json").write_text("{half"),
        lambda kit: (kit / "kit.json").write_text('{"name": "north"}'),
        lambda kit: (kit / "holder.pem").write_text("nothing"),
        lambda kit: (kit / "authority.pem").unlink(),
    ],
)
def test_a_folder_that_is_no_kit_is_refused_in_a_sentence(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    kit = kits(provisioned(tmp_path / "network"))["north"]
    spoil(kit)
    with pytest.raises(ValueError, match=r"is not a start-up kit|is not of the kit's authority"):
        Kit.read(kit)


def test_a_coordinator_that_cannot_be_reached_is_named(network: Path) -> None:
    kit = Kit.read(kits(network)["north"])
    gone = Kit(kit.folder, kit.name, "localhost", 1)
    assert certificates.trouble(gone) == "the coordinator cannot be reached; still trying"
