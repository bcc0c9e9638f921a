"""The installation's own authority, and the certificates of its services for mutual TLS.

    authority.pem, authority.key     made once, for ten years
    <service>.pem, <service>.key     for a year; renewed when half of it is over, under the same key

A key is written before its certificate, and a renewal replaces the certificate's file only, in one step: at every
moment the two files of a service belong together. Keys are readable by their owner only.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.core.domain.errors import WeftError
from services.core.runtime.address import TlsFiles
from services.core.runtime.durable_files import write_text

_AUTHORITY: Final = "authority"
_AUTHORITY_DAYS: Final = 3650
_SERVICE_DAYS: Final = 365
_RENEWED_BEFORE_END: Final = dt.timedelta(days=_SERVICE_DAYS / 2)
_CLOCK_SKEW: Final = dt.timedelta(days=1)
"""Certificates begin to be valid so long before they are made, for machines whose clock is behind."""


def issue(
    folder: Path, services: Iterable[str], now: dt.datetime, *, hosts: Mapping[str, str] | None = None
) -> list[str]:
    """Makes the authority and the services' certificates where they are missing or at half of their time.

    Returns the services whose certificate is new. ``now`` has a time zone. ``hosts``: service -> a name or address by
    which it is reached besides those of this machine. Raises WeftError for a file that cannot be read, NoSpace.
    """
    hosts = hosts or {}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    authority_key, authority = _authority(folder, now)
    issued = []
    for service in services:
        files = TlsFiles.of(folder, service)
        with suppress(FileNotFoundError):
            current = _certificate(files.certificate)
            signed_by_us = _is_signed_by(current, authority)
            lasts = current.not_valid_after_utc - now > _RENEWED_BEFORE_END
            if signed_by_us and lasts and _is_for(current, hosts.get(service)):
                continue
        key = _key(files.key)
        certificate = _sign(_service_builder(service, key, now, hosts.get(service)), authority, authority_key)
        write_text(files.certificate, _pem(certificate))
        issued.append(service)
    return issued


def valid_until(certificate: Path) -> dt.datetime:
    """The end of a certificate's validity. Raises WeftError if it cannot be read."""
    try:
        return _certificate(certificate).not_valid_after_utc
    except OSError as error:
        raise WeftError(f"cannot read {certificate}: {error.strerror}") from None


def _authority(folder: Path, now: dt.datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    files = TlsFiles.of(folder, _AUTHORITY)
    key = _key(files.key)
    with suppress(FileNotFoundError):
        return key, _certificate(files.certificate)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Weft installation")])
    certificate = (
        _builder(name, key, now, _AUTHORITY_DAYS)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_text(files.certificate, _pem(certificate))
    return key, certificate


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _is_for(certificate: x509.Certificate, host: str | None) -> bool:
    """Whether the certificate names the host; True without one."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return host is None or _general_name(host) in list(names)


def _service_builder(
    service: str, key: ec.EllipticCurvePrivateKey, now: dt.datetime, host: str | None
) -> x509.CertificateBuilder:
    hosts = [service, "localhost", socket.gethostname(), "127.0.0.1", "::1", *([host] if host else [])]
    here = dict.fromkeys(hosts)
    names = [_general_name(name) for name in here]
    return (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, service)]), key, now, _SERVICE_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            # Each service is a server, and a client of others.
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
    )


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    return (
        builder.issuer_name(authority.subject)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - each reason means the same: it needs another one
        return False
    return True


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in the file, which is made where it is missing. Raises WeftError, NoSpace."""
    try:
        key = serialization.load_pem_private_key(_read_private(path), password=None)
    except FileNotFoundError:
        made = ec.generate_private_key(ec.SECP256R1())
        write_text(path, _key_pem(made))
        return made
    except ValueError:
        raise WeftError(f"{path} is damaged; remove {path.parent} to make an authority and certificates anew") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise WeftError(f"{path} is no key of an elliptic curve; remove {path.parent} to make all anew")
    return key


def _read_private(path: Path) -> bytes:
    """Raises WeftError if others may read it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            raise WeftError(f"{path} is readable by others; remove {path.parent} to make all anew")
        return file.read()


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise WeftError(f"{path} is damaged; remove {path.parent} to make an authority and certificates anew") from None


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
