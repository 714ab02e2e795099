"""A request leaves nothing that refers to itself.

Such objects stay until Python's collector looks for them. A server has it look rarely, as it stops
everything meanwhile; large texts and compiled grammars would pile up until then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_ports

PROGRAM = Path(__file__).with_name("garbage_of_requests.py")


@pytest.mark.long
def test_requests_leave_no_cyclic_garbage() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(free_ports())],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found) > 10
    assert {name: count for name, count in found.items() if count >= 1} == {}
