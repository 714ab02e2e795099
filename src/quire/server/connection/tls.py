"""The TLS options of a server, for Python's `ssl`."""

from __future__ import annotations

import ssl
import sys
from typing import Any

from quire.errors import ConfigError
from quire.server.args import ServerArgs


def tls_options(args: ServerArgs) -> dict[str, Any]:
    """Arguments of asyncio's `connect_accepted_socket`; empty without TLS. Raises ConfigError for
    files that cannot be used."""
    if args.ssl_certfile is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile)
        if args.ssl_ca_certs is not None:
            context.load_verify_locations(args.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
        if args.ssl_cert_reqs is not None:
            context.verify_mode = ssl.VerifyMode(int(args.ssl_cert_reqs))
        if args.ssl_ciphers is not None:
            context.set_ciphers(args.ssl_ciphers)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"the TLS files cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    options: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": args.header_timeout}
    if sys.version_info >= (3, 11):
        options["ssl_shutdown_timeout"] = args.linger_timeout
    return options
