"""Certificates for TLS between the machines of an engine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def write_certificates(directory: Path) -> dict[str, str]:
    """Writes an authority, and a certificate that it has signed; the environment that names
    them."""
    directory.mkdir(parents=True, exist_ok=True)
    authority_key, key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    authority = _certificate("authority", authority_key, "authority", authority_key, is_ca=True)
    own = _certificate("node", key, "authority", authority_key, is_ca=False)
    written = {
        "QUIRE_RANK_CERT": own.public_bytes(Encoding.PEM),
        "QUIRE_RANK_CERT_KEY": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "QUIRE_RANK_CA": authority.public_bytes(Encoding.PEM),
    }
    for name, data in written.items():
        (directory / f"{name}.pem").write_bytes(data)
    return {name: str(directory / f"{name}.pem") for name in written}


def _certificate(
    name: str, key: Ed25519PrivateKey, issuer: str, issuer_key: Ed25519PrivateKey, *, is_ca: bool
) -> x509.Certificate:
    now = datetime.now(timezone.utc)
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .sign(issuer_key, None)
    )
