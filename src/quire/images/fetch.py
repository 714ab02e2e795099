"""`Fetcher`: downloads from configured domains without reaching into private networks.

The name is resolved once, all its addresses must be public, and the connection goes to one of
these addresses; each redirect is checked again. Bytes and time are bounded.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from quire.errors import RequestError
from quire.images.job import MAX_FILE_BYTES
from quire.units import format_bytes

_TIMEOUT_S = 5.0
_MAX_REDIRECTS = 3
_MAX_URL = 4096
_PIECE = 1 << 16
_PRINTABLE = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without spaces and backslashes, which parsers of URLs read differently."""
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_REDIRECTS = (301, 302, 303, 307, 308)

Resolve = Callable[[str, int], list[str]]


def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a name. Raises RequestError if it has none, or one that is not public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise RequestError(f"the domain {host} of a URL cannot be resolved") from None
    addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
    if not addresses or not all(map(is_public, addresses)):
        raise RequestError(f"the domain {host} of a URL must have public addresses alone")
    return addresses


def is_public(address: str) -> bool:
    """Whether an address is public. An IPv4 address inside an IPv6 address is checked, too."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner:
            return is_public(str(inner))
        if found in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Downloads from some domains. `resolve` is another one in tests."""

    domains: tuple[str, ...]
    resolve: Resolve = public_addresses
    timeout_s: float = _TIMEOUT_S
    max_bytes: int = MAX_FILE_BYTES

    def fetch(self, url: str) -> bytes:
        """The body of the reply. Raises RequestError."""
        deadline = time.monotonic() + self.timeout_s
        for _ in range(_MAX_REDIRECTS + 1):
            parts = self._checked(url)
            try:
                found = self._get(parts, deadline)
            except TimeoutError:
                raise RequestError(f"the URL did not answer within {self.timeout_s:g} s") from None
            except (OSError, http.client.HTTPException):
                raise RequestError("the URL could not be fetched") from None
            if isinstance(found, bytes):
                return found
            try:
                url = urljoin(url, found)
            except ValueError:
                raise RequestError("the URL redirects to an invalid URL") from None
        raise RequestError(f"the URL redirects more than {_MAX_REDIRECTS} times")

    def _checked(self, url: str) -> SplitResult:
        """The parts of a URL that may be fetched."""
        if not self.domains:
            raise RequestError(
                "files are not fetched from URLs: send a data URL, or start the server with "
                "--allowed-media-domains"
            )
        if len(url) > _MAX_URL or not _PRINTABLE.fullmatch(url):
            raise RequestError(
                f"a URL must have at most {_MAX_URL} characters of printable ASCII, without "
                "spaces and backslashes"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RequestError("the URL is not a valid URL") from None
        host = (parts.hostname or "").rstrip(".")
        if parts.scheme not in ("http", "https") or "@" in parts.netloc or port == 0:
            raise RequestError("a URL must have the form https://domain/path")
        if not _HOST.fullmatch(host) or host not in self.domains:
            allowed = ", ".join(self.domains)
            raise RequestError(f"The URL must be from one of the allowed domains: {allowed}.")
        return parts

    def _get(self, parts: SplitResult, deadline: float) -> bytes | str:
        """The body, or the place to which the reply redirects."""
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = self.resolve(host, port)[0]
        connection = socket.create_connection((address, port), _left(deadline))
        # A reply whose bytes arrive one by one would never be late by itself.
        same = connection.dup()
        alarm = threading.Timer(_left(deadline), _end, (same,))
        alarm.start()
        try:
            if parts.scheme == "https":
                context = ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=host)
            client = http.client.HTTPConnection(host, port)
            client.sock = connection
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            client.request(
                "GET", path, headers={"Accept": "image/*, audio/*", "Connection": "close"}
            )
            connection.settimeout(_left(deadline))
            response = client.getresponse()
            if response.status in _REDIRECTS:
                return response.headers.get("Location", "")
            if response.status != 200:
                raise RequestError(f"the URL answered with status {response.status}")
            return self._body(response, connection, deadline)
        except (OSError, http.client.HTTPException):
            _left(deadline)  # raises TimeoutError if the connection was ended for its lateness
            raise
        finally:
            alarm.cancel()
            same.close()
            connection.close()

    def _body(
        self, response: http.client.HTTPResponse, connection: socket.socket, deadline: float
    ) -> bytes:
        body = bytearray()
        while True:
            connection.settimeout(_left(deadline))
            piece = response.read1(_PIECE)
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > self.max_bytes:
                raise RequestError(
                    f"the file at the URL is larger than {format_bytes(self.max_bytes)}"
                )


def _end(connection: socket.socket) -> None:
    """Ends a connection that another thread reads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
