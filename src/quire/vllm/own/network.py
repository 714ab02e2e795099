"""Free ports, addresses of this machine, and addresses such as `tcp://HOST:PORT`."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
import uuid
from contextlib import suppress
from urllib.parse import urlsplit

from quire.errors import ConfigError, quoted
from quire.vllm.own.envs import get_vllm_port

_LAST_PORT = 65535


def get_open_port() -> int:
    """Return a free TCP port, the first from `VLLM_PORT` upwards if that is set. Raises
    ConfigError."""
    return _first_open(get_vllm_port() or 0)


def get_open_ports_list(count: int = 5) -> list[int]:
    """Return `count` different free ports. Raises ConfigError."""
    found: dict[int, None] = {}
    first = get_vllm_port() or 0
    while len(found) < count:
        port = _first_open(max(first, *found) + 1 if first and found else first)
        found[port] = None
    return list(found)


def _first_open(first: int) -> int:
    if first == 0:
        return _bind(0)
    for port in range(first, _LAST_PORT + 1):
        with suppress(OSError):
            return _bind(port)
    raise ConfigError(f"no port from {first} upwards is free; unset VLLM_PORT to use any port")


def _bind(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", port))
        found: int = listener.getsockname()[1]
        return found


def get_ip() -> str:
    """Return this machine's address: `VLLM_HOST_IP`, or the source address of packets to other
    machines."""
    if given := os.environ.get("VLLM_HOST_IP"):
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; no packet is sent
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def get_loopback_ip() -> str:
    """Return the loopback address: `VLLM_LOOPBACK_IP`, or 127.0.0.1, or ::1 without IPv4."""
    if given := os.environ.get("VLLM_LOOPBACK_IP"):
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def is_valid_ipv6_address(address: str) -> bool:
    """Whether `address` is an IPv6 address without brackets."""
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def join_host_port(host: str, port: int) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if is_valid_ipv6_address(host) else f"{host}:{port}"


def split_host_port(host_port: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPV6]:PORT`. Raises ConfigError, a ValueError."""
    if host_port.startswith("["):
        host, end, port = host_port[1:].rpartition("]:")
    else:
        host, end, port = host_port.partition(":")
    if not end or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"{quoted(host_port)} must be HOST:PORT or [IPV6]:PORT")
    return host, int(port)


def get_tcp_uri(ip: str, port: int) -> str:
    """Return `tcp://HOST:PORT`."""
    return f"tcp://{join_host_port(ip, port)}"


def get_file_store_init_method() -> str:
    """Return the address of a new file, `file://...`, through which processes can connect."""
    return f"file://{tempfile.gettempdir()}/vllm_dist_{uuid.uuid4().hex}"


def make_zmq_path(scheme: str, host: str, port: int | None = None) -> str:
    """Return an address for ZeroMQ: `tcp://HOST:PORT`, or `ipc://PATH` without a port."""
    return f"{scheme}://{host if port is None else join_host_port(host, port)}"


def split_zmq_path(path: str) -> tuple[str, str, str]:
    """Return the scheme, the host or path, and the port ("" if absent) of a ZeroMQ address. Raises
    ConfigError, a ValueError."""
    scheme, sign, rest = path.partition("://")
    if sign and scheme != "tcp":
        return scheme, rest, ""
    host = port = None
    with suppress(ValueError):
        parts = urlsplit(path)
        host, port = parts.hostname, parts.port
    if scheme != "tcp" or not host or port is None:
        raise ConfigError(f"{quoted(path)} must be tcp://HOST:PORT, ipc://PATH or inproc://NAME")
    return scheme, host, str(port)


def get_open_zmq_ipc_path() -> str:
    """Return the address of a new socket in the file system, `ipc://...`."""
    return f"ipc://{tempfile.gettempdir()}/{uuid.uuid4()}"


def get_open_zmq_inproc_path() -> str:
    """Return the address of a new socket within this process, `inproc://...`."""
    return f"inproc://{uuid.uuid4()}"
