"""These tests need Triton (`quire-engine[cuda-build]`), and no GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports it
collect_ignore_glob = [] if find_spec("triton") or os.environ.get("CI") else ["test_*"]
