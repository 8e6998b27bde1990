"""Certificates of a cluster, made by its own authority: one for the server, one for all workers.

The folder `tls` of the home has `ca.pem`, `server.pem` and `worker.pem` (a certificate and its key in one file) and the
authority's key, which never leaves it. A machine that shall train needs copies of `ca.pem` and `worker.pem`.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any

from jitdnn.errors import needed
from jitdnn.files import write_secret

_DAYS = 3650
_RENEWED = 90  # days before its end


def make_certificates(folder: Path, host: str) -> None:
    """Make what is missing, too old, or not for this `host`, a name or address. NotSupported without cryptography."""
    with needed('a cluster needs certificates: pip install "jitdnn[cluster]"'):
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_good(folder / "ca.pem"):
        key, authority = _made("jitdnn studio", None, None, [])
        write_secret(folder / "ca-key.pem", _key_bytes(key))
        write_secret(folder / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
        for name in ("server.pem", "worker.pem"):
            (folder / name).unlink(missing_ok=True)
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    authority_key = serialization.load_pem_private_key((folder / "ca-key.pem").read_bytes(), None)
    for name, hosts in (("server", sorted({host, *_own_names()})), ("worker", [])):
        path = folder / f"{name}.pem"
        if _is_good(path) and set(hosts) <= set(_names_of(path)):
            continue
        key, made = _made(f"jitdnn studio {name}", authority, authority_key, hosts)
        write_secret(path, made.public_bytes(serialization.Encoding.PEM) + _key_bytes(key))


def server_context(folder: Path) -> ssl.SSLContext:
    """What the server accepts: TLS, with a certificate of the same authority on the other side."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def worker_context(folder: Path) -> ssl.SSLContext:
    """What a worker accepts: the server with that authority's certificate for its name."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "worker.pem")
    return context


def _made(name: str, authority: Any, authority_key: Any, hosts: list[str]) -> tuple[Any, Any]:
    """A key and its certificate, signed by the authority, or by itself where there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if hosts:
        names = [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    issuer = (authority_key or key).public_key()
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
    )
    if authority is None:
        usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    return key, builder.sign(authority_key or key, hashes.SHA256())


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_bytes(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


def _is_good(path: Path) -> bool:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return False
    left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return bool(left > datetime.timedelta(days=_RENEWED))


def _names_of(path: Path) -> list[str]:
    from cryptography import x509

    extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found]


def _own_names() -> set[str]:
    return {"localhost", "127.0.0.1", socket.gethostname()}
