"""Certificates and start-up kits of a network: who may speak, and as whom.

`provision` makes an authority, a kit for the coordinator and one for each site. A kit is a folder of four files.
None of them is a program, or a setting of one:

| file            | what                                                        |
|-----------------|-------------------------------------------------------------|
| `kit.json`      | the holder's name, and the coordinator's address and port   |
| `key.pem`       | the holder's private key, readable by its owner alone       |
| `holder.pem`    | its certificate                                             |
| `authority.pem` | the certificate of the authority that signed all of them    |

A site is known by the common name of its certificate, the coordinator by its address. Sites have
client certificates and the coordinator has a server certificate, so that no site can pose as the coordinator.
"""

import ipaddress
import json
import os
import re
import shutil
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

COORDINATOR = "coordinator"  # the name of its kit
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
TAKEN = ("server", COORDINATOR, "authority")  # "server" is FLARE's word for the coordinator
DAYS, AUTHORITY_DAYS = 360, 3650
DAYS_BEHIND = 2  # by which a site's clock may be behind the clock that dates certificates
AWAY = "the coordinator cannot be reached; still trying"
TURNED_AWAY = "the coordinator does not accept this site's certificate: expired, unknown or another's"
PATIENCE = 5.0  # seconds for each step of looking for what is wrong with a connection
RENEW = "ask the network's operator for a new kit, made by 'tacit network init --renew'"


@dataclass(frozen=True)
class Kit:
    """The credentials of one process. name: a site's, or `COORDINATOR`. host, port: the coordinator's."""

    folder: Path
    name: str
    host: str
    port: int

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "holder.pem"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def is_coordinator(self) -> bool:
        return self.name == COORDINATOR

    @property
    def common_name(self) -> str:
        """The holder's name in the certificate."""
        return self.host if self.is_coordinator else self.name

    @classmethod
    def read(cls, folder: Path) -> "Kit":
        """Read the kit in a folder. Refuses one that cannot connect, because the connection would not say why."""
        try:
            plain = json.loads((folder / "kit.json").read_text())
            kit = cls(folder, str(plain["name"]), str(plain["host"]), int(plain["port"]))
            if not ADDRESS.fullmatch(kit.host):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(f"kit={folder} is not a start-up kit; expected one made by 'tacit network init'") from None
        kit.check()
        return kit

    def check(self) -> None:
        """Refuse a certificate that is another's, of another authority, or out of date."""
        place = self.certificate
        try:
            own, root = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (place, self.authority))
            own.verify_directly_issued_by(root)
        except (OSError, ValueError, TypeError, InvalidSignature):
            raise ValueError(f"certificate={place} is not of the kit's authority; {RENEW}") from None
        found = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [part.rfc4514_string().removeprefix("CN=") for part in found]
        if names != [self.common_name]:
            whose = names[0] if names else "nobody"
            raise ValueError(f"certificate={place} is of {whose!r}, not of {self.common_name!r}; {RENEW}")
        if datetime.now(UTC) > own.not_valid_after_utc:
            raise ValueError(f"certificate={place} expired on {own.not_valid_after_utc:%Y-%m-%d}; {RENEW}")


def trouble(kit: Kit) -> str:
    """Why a site is not connected; "" if the coordinator would accept it. One attempt, by TLS alone."""
    context = ssl.create_default_context(cafile=str(kit.authority))
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(kit.certificate, kit.key)
    try:
        with socket.create_connection((kit.host, kit.port), timeout=PATIENCE) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=kit.host) as secure:
                    # A client's certificate is checked after its handshake; a server that accepts it speaks first.
                    return "" if secure.recv(1) else TURNED_AWAY
            except ssl.SSLCertVerificationError:
                return "the coordinator's certificate is not of this kit's authority, or not of its address"
            except (ssl.SSLError, ConnectionResetError):
                return TURNED_AWAY
    except OSError:
        return AWAY


# --- Making them --------------------------------------------------------------------------------------------------


def check_site_name(name: str) -> None:
    """Refuse names that cannot be in a certificate, and reserved ones."""
    if not NAME.fullmatch(name) or name.lower() in TAKEN:
        raise ValueError(
            f"site {name!r}; expected a name of letters, digits, - and _, a letter first, for a certificate"
        )


def check(sites: Sequence[str], host: str) -> None:
    """Refuse what `provision` would."""
    for name in sites:
        check_site_name(name)
        if name.lower() == host.lower():
            raise ValueError(f"site {name!r} has the name of the coordinator's address; give it another name")
    if len({name.lower() for name in sites}) < len(sites):  # some file systems ignore case
        raise ValueError(f"sites={list(sites)}; expected names that differ in more than capital letters")
    if not ADDRESS.fullmatch(host):
        raise ValueError(f"address={host!r}; expected the host name of the coordinator, as sites will dial it")


def provision(
    folder: Path, project: str, sites: Sequence[str], host: str, port: int, renew: Collection[str] = ()
) -> None:
    """Make certificates and kits: `folder/coordinator`, and `folder/sites/NAME/kit` for each site.

    `folder/authority` holds the key that signs them all. Existing kits stay as they are, except those named in
    `renew` (`COORDINATOR` too), which get new keys and certificates.
    """
    check(sites, host)
    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    root, key = _authority(authority, project)
    for name in (COORDINATOR, *sites):
        kit = Kit(folder / COORDINATOR if name == COORDINATOR else folder / "sites" / name / "kit", name, host, port)
        if kit.folder.exists() and name not in renew:
            continue
        fresh = kit.folder.with_name(f"{kit.folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        _fill(Kit(fresh, name, host, port), root, key)
        if kit.folder.exists():  # whole kits only: a crash leaves the old one or the new one
            old = kit.folder.with_name(f"{kit.folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            kit.folder.rename(old)
            fresh.rename(kit.folder)
            shutil.rmtree(old)
        else:
            fresh.rename(kit.folder)


def _authority(folder: Path, project: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of a network, made on first use."""
    place, secret = folder / "authority.pem", folder / "key.pem"
    if place.exists():
        key = serialization.load_pem_private_key(secret.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(place.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{project} authority")
    made = _begun(name, name, key.public_key(), AUTHORITY_DAYS)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    root = made.add_extension(x509.KeyUsage(**usage), critical=True).sign(key, hashes.SHA256())
    _put_key(secret, key)
    place.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    return root, key


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _fill(kit: Kit, root: x509.Certificate, signer: ec.EllipticCurvePrivateKey) -> None:
    """A new key, its certificate, and the rest of a kit."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = certificate(kit.common_name, root.subject, signer, key.public_key(), is_server=kit.is_coordinator)
    _put_key(kit.key, key)
    kit.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kit.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    plain = {name: value for name, value in asdict(kit).items() if name != "folder"}
    (kit.folder / "kit.json").write_text(json.dumps(plain, indent=1) + "\n")


def certificate(
    name: str,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    public: ec.EllipticCurvePublicKey,
    *,
    is_server: bool,
    days: float = DAYS,
) -> x509.Certificate:
    """A signed certificate of a holder. It ends `days` from now; below 0 it has ended."""
    made = _begun(_name(name), issuer, public, days)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectAlternativeName([_address(name)]), critical=False)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    return made.add_extension(x509.ExtendedKeyUsage([purpose]), critical=True).sign(signer, hashes.SHA256())


def _begun(
    name: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    end = datetime.now(UTC) + timedelta(days=days)
    start = min(datetime.now(UTC), end) - timedelta(days=DAYS_BEHIND)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
    return made.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _address(name: str) -> x509.GeneralName:
    """The alternative name: without one, TLS libraries take the common name for an address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _put_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key, readable by its owner alone from the first byte on."""
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, *plain))
