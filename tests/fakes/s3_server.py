"""A local server that speaks S3 (moto's), and the environment of a client of it."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest
from ports import free_ports
from redis_server import wait_for_port

BUCKET = "kv-chunks"


class S3Server:
    """Use it in a `with` statement. Has the bucket `BUCKET`."""

    def __init__(self) -> None:
        self.port = free_ports()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> S3Server:
        pytest.importorskip("moto.server")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self.port)
        bucket = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket, timeout=60).close()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
