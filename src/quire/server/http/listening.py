"""The server's listening socket. It is bound before the model is loaded, so that a port in use is
an error at once, and removed when the server ends.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from quire.errors import ConfigError
from quire.log import get_logger
from quire.server.args import ServerArgs

logger = get_logger(__name__)

BACKLOG = 4096
"""Most connections that wait to be accepted; the system may allow fewer."""
_OTHER_FILES = 256
"""Open files besides connections: model, threads, logs."""
_FEWEST_WITHOUT_CONNECTION = 16


def allow_open_files(args: ServerArgs) -> None:
    """Raises this process's limit of open files for all clients; warns if the system does not allow
    `max_connections`."""
    needed = _files_of_connections(args)
    wanted = needed + BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        logger.warning(
            "the system allows %d open files, too few for max_connections %d: "
            "raise the limit (ulimit -n %d), or give --max-connections %d",
            allowed, args.max_connections, needed,
            max(1, (allowed - _OTHER_FILES) // _files_of_each(args) - args.reserved_connections),
        )  # fmt: skip


def most_without_connection(args: ServerArgs) -> int:
    """Maximum number of accepted clients without a connection, to be answered 503: as many as may
    wait to be accepted, or fewer if the system's limit of open files is low."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return BACKLOG
    return max(_FEWEST_WITHOUT_CONNECTION, min(BACKLOG, soft - _files_of_connections(args)))


def _files_of_connections(args: ServerArgs) -> int:
    num_slots = args.max_connections + args.reserved_connections
    return num_slots * _files_of_each(args) + _OTHER_FILES


def _files_of_each(args: ServerArgs) -> int:
    """With TLS as many clients again may be open, to be answered 503 (`ConnectionSlots`)."""
    return 1 if args.ssl_certfile is None else 2


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket, and its file if it is a unix socket."""

    socket: socket.socket
    url: str
    """URL or path of the server."""
    path: Path | None
    file_id: tuple[int, int] | None
    """Device and inode of the socket's file at `path`."""

    def close(self) -> None:
        """Frees the address. Leaves a socket file that another server has created since."""
        self.socket.close()
        if self.path is not None and _file_id(self.path) == self.file_id:
            self.path.unlink(missing_ok=True)


def listen(args: ServerArgs) -> Listener:
    """Raises ConfigError if the address cannot be bound.

    The socket listens at once: before that, the system allows a second server to bind its port.
    """
    path = None if args.uds is None else Path(args.uds)
    bound = socket.socket(_family(args), socket.SOCK_STREAM)
    try:
        if path is None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((args.host, args.port))
        else:
            _bind_to_path(bound, path)
        bound.listen(BACKLOG)
    except (OSError, ValueError) as error:  # ValueError: what no host or path can be called
        bound.close()
        raise _refused(args, error) from None
    file_id = None if path is None else _file_id(path)
    return Listener(bound, _url(args, bound), path, file_id)


def _family(args: ServerArgs) -> socket.AddressFamily:
    if args.uds is not None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in args.host else socket.AF_INET


def _url(args: ServerArgs, bound: socket.socket) -> str:
    if args.uds is not None:
        return f"unix:{args.uds}"
    scheme = "https" if args.ssl_certfile else "http"
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}{args.root_path}"


def _refused(args: ServerArgs, error: Exception) -> ConfigError:
    if isinstance(error, ConfigError):
        return error
    reason = getattr(error, "strerror", None) or error
    if args.uds is not None:
        return ConfigError(f"cannot listen on uds {args.uds}: {reason}; choose another path")
    where = f"{args.host}:{args.port}"
    return ConfigError(f"cannot listen on {where}: {reason}; --port 0 takes a free port")


def _bind_to_path(bound: socket.socket, path: Path) -> None:
    mask = os.umask(0o177)  # the owner alone may connect
    try:
        _remove_stale(path)
        bound.bind(str(path))
    finally:
        os.umask(mask)


def _remove_stale(path: Path) -> None:
    """Removes the file of a socket that no server listens on; no other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"uds {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code in {0, errno.EAGAIN}:  # EAGAIN: so many connect that we would have to wait
        raise ConfigError(f"another server is listening on uds {path}; choose another path")
    if code != errno.ECONNREFUSED:
        raise OSError(code, os.strerror(code))
    path.unlink(missing_ok=True)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
