"""These tests need Triton (`quire-engine[cuda-build]`), and no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
