"""Clients that keep to no rule of HTTP, and those that keep to its rarer ones.

None of them makes the server hold more, wait longer or answer in another order than it says, and
health and readiness answer all the while.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import RunningServer, engine_options

KEY = "secret"


@pytest.fixture(scope="session")
def guarded(tiny_model: Path) -> Iterator[RunningServer]:
    """A server with a key and little patience."""
    running = RunningServer(
        engine_options(tiny_model),
        {
            "port": 0, "api_key": [KEY], "max_connections": 20, "reserved_connections": 4,
            "header_timeout": 1.0, "body_timeout": 1.0, "keep_alive_timeout": 1.0,
            "linger_timeout": 0.5,
        },
    )  # fmt: skip
    yield running.wait_until_serving()
    running.stop()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", path, "-out", f"{path}.crt"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path
