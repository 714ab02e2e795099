"""The options of TLS, and the certificates that are loaded again when their files change."""

from __future__ import annotations

import os
import ssl
import sys
from typing import Any

from quire.errors import ConfigError, quoted, reason
from quire.log import get_logger
from quire.server.args import ServerArgs

logger = get_logger("quire.server.connection.http_server")


class CertificateRefresh:
    """Reloads certificates when their files have changed; open connections keep
    theirs. Owned by the event loop."""

    def __init__(self, args: ServerArgs, context: ssl.SSLContext) -> None:
        self._args = args
        self._context = context
        self._seen = self._state()

    def check(self) -> None:
        """Looks at the files. Files that do not match, for example while they are being replaced,
        are reported in the log and change nothing."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            _load_files(self._args, self._context)
        except OSError as error:
            logger.warning("the new TLS files cannot be used, the old ones stay: %s", error)
        else:
            logger.info("the TLS files were read again")

    def _state(self) -> list[tuple[int, int, int] | None]:
        paths = (self._args.ssl_keyfile, self._args.ssl_certfile, self._args.ssl_ca_certs)
        return [None if path is None else _state_of(path) for path in paths]


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _load_files(args: ServerArgs, context: ssl.SSLContext) -> None:
    """Raises OSError, and leaves the context as it was if the pair does not fit."""
    assert args.ssl_certfile is not None
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for one in (trial, context):
        one.load_cert_chain(args.ssl_certfile, args.ssl_keyfile)
        if args.ssl_ca_certs is not None:
            one.load_verify_locations(args.ssl_ca_certs)


def tls_options(args: ServerArgs) -> dict[str, Any]:
    """Arguments of asyncio's `connect_accepted_socket`; empty without TLS. Raises ConfigError for
    files that cannot be used."""
    if args.ssl_certfile is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _load_files(args, context)
    except OSError as error:  # ssl.SSLError is one
        names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        files = [f"{name}={path!r}" for name in names if (path := getattr(args, name)) is not None]
        raise ConfigError(
            f"{', '.join(files)}: these TLS files cannot be used: {reason(error)}; they must be "
            "PEM files: a certificate, its key, and certificates of authorities"
        ) from None
    if args.ssl_ca_certs is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    if args.ssl_cert_reqs is not None:
        context.verify_mode = ssl.VerifyMode(int(args.ssl_cert_reqs))
    if args.ssl_ciphers is not None:
        try:
            context.set_ciphers(args.ssl_ciphers)
        except OSError:
            raise ConfigError(
                f"ssl_ciphers={quoted(args.ssl_ciphers)} names no TLS ciphers; try ECDHE+AESGCM"
            ) from None
    context.set_alpn_protocols(["http/1.1"])
    options: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": args.header_timeout}
    if sys.version_info >= (3, 11):
        options["ssl_shutdown_timeout"] = args.linger_timeout
    return options
