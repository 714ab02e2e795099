"""The socket that a server listens on: bound before anything is loaded, so that a port in use
is told at once, and gone when the server is.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from quire.errors import ConfigError, quoted
from quire.server.args import ServerArgs

_BACKLOG = 2048


def bind(args: ServerArgs) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError if the address is not free."""
    return _bind_unix(Path(args.uds)) if args.uds is not None else _bind_tcp(args)


def release(args: ServerArgs) -> None:
    """Removes what `bind` left in the file system."""
    if args.uds is not None:
        with suppress(OSError):  # its directory may be gone, or read-only by now
            Path(args.uds).unlink(missing_ok=True)


def url(args: ServerArgs, bound: socket.socket) -> str:
    """Where clients find the server."""
    if args.uds is not None:
        return f"unix:{args.uds}"
    scheme = "https" if args.ssl_certfile else "http"
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}{args.root_path}"


def _bind_tcp(args: ServerArgs) -> socket.socket:
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((args.host, args.port))
    except (OSError, UnicodeError) as error:  # a host name may be too long to look up
        bound.close()
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise ConfigError(
            f"cannot listen on host {quoted(args.host)[1:-1]}:{args.port}: {reason}; "
            "--port 0 takes a free port"
        ) from None
    return bound


def _bind_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # the owner alone may connect
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on uds {quoted(str(path))}: {reason}") from None
    finally:
        os.umask(mask)
    return bound


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody answers on any more; never anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"uds {quoted(str(path))} cannot be used: {error.strerror}; try /tmp/quire.sock"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"uds {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise ConfigError(f"another server is listening on uds {path}")
    path.unlink()
