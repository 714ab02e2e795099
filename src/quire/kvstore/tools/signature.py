"""Signatures of chunks in an archive, made with the secret of a store.

A checksum finds damage, but anyone can compute it. Wrong K/V changes a model's answers, so an
archive must prove that its chunks come from a trusted store. The secret is a file in the store's
directory that only its owner can read. Stores with the same secret trust each other.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from quire.errors import ConfigError
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers.base import Buffer

SECRET_NAME = "secret"
NUM_DIGITS = 64
"""Number of hex digits of a signature (HMAC-SHA256)."""
_NUM_BYTES = 32
_PURPOSE = b"quire kv archive 1\n"


def sign(secret: bytes, entry: Entry, data: Buffer) -> str:
    """Return the signature of an encoded chunk and its name."""
    mac = hmac.new(secret, _PURPOSE + f"{entry.folder}/{entry.name}\n".encode(), hashlib.sha256)
    mac.update(data)
    return mac.hexdigest()


def is_signed(secret: bytes | None, entry: Entry, data: Buffer, signature: str | None) -> bool:
    """Whether the chunk was signed with this secret; False without a secret."""
    if secret is None or signature is None:
        return False
    return hmac.compare_digest(sign(secret, entry, data).encode(), signature.encode())


def make_secret(root: Path) -> bytes:
    """Return the secret of a store; create it if missing. Raises as `secret_of` does."""
    secret = secret_of(root)
    if secret is not None:
        return secret
    unfinished = root / f".{SECRET_NAME}.{os.getpid()}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_NUM_BYTES))
        with suppress(FileExistsError):  # another process was first
            os.link(unfinished, root / SECRET_NAME)
    finally:
        unfinished.unlink()
    secret = secret_of(root)
    assert secret is not None
    return secret


def secret_of(root: Path) -> bytes | None:
    """Return the secret of a store; None if it is missing. Raises OSError, and ConfigError if the
    file is not a secret or others can access it."""
    path = root / SECRET_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
            raise ConfigError(
                f"{path} must be a file that only its owner can read; run chmod 600 {path}"
            )
        secret = file.read(_NUM_BYTES + 1)
    if len(secret) != _NUM_BYTES:
        raise ConfigError(
            f"{path} must have {_NUM_BYTES} bytes; remove it, and a new one is created by the next "
            "quire kv export"
        )
    return secret
