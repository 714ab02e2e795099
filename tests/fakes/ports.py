"""Ports for programs that cannot choose one themselves."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import count

_START, _NUM = 10_000, 22_000
"""Below the ports that the kernel gives to whoever asks for any (`ip_local_port_range`): one of
those may be taken before the program of a test listens to it."""
_offsets = count(os.getpid() * 5003)  # other processes that run tests begin elsewhere


def free_ports(num_ports: int = 1) -> int:
    """The first of some neighbouring ports that are free. No port is given twice."""
    for _ in range(_NUM // num_ports):
        ports = [_START + next(_offsets) % _NUM for _ in range(num_ports)]
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        if ports[-1] - ports[0] == num_ports - 1:
            return ports[0]
    raise RuntimeError("no ports are free")
