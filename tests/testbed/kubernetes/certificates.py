"""The certificates of a test cluster: one authority, the API server's two certificates, the key of service accounts."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=365)
_SKEW = dt.timedelta(hours=1)
"""A clock that jumps back does not make a certificate invalid."""


def write_certificates(folder: Path, *, addresses: Sequence[str], names: Sequence[str]) -> None:
    """Writes ca.crt, apiserver.{crt,key}, kubelet-client.{crt,key} and service-accounts.key.

    ``addresses`` and ``names``: those under which the API server is reached.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(_name("weft test cluster"), authority_key, None)
    _write(folder / "ca.crt", authority.public_bytes(serialization.Encoding.PEM))
    subjects = x509.SubjectAlternativeName(
        [*(x509.DNSName(name) for name in names), *(x509.IPAddress(ipaddress.ip_address(a)) for a in addresses)]
    )
    for file, subject, extension in (
        ("apiserver", _name("kube-apiserver"), subjects),
        # The API server's identity towards the kubelets: for logs and exec.
        ("kubelet-client", _name("kube-apiserver-kubelet-client", "system:masters"), None),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(subject, key, (authority, authority_key), extension)
        _write(folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        _write(folder / f"{file}.key", _pem(key))
    _write(folder / "service-accounts.key", _pem(ec.generate_private_key(ec.SECP256R1())))


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    subjects: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """``issuer``: None for the authority's own."""
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is None:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    else:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH if subjects else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if subjects is not None:
        builder = builder.add_extension(subjects, critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256())


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
