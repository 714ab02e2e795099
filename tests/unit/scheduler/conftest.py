"""Makes the fake model of tests/sim and the helpers of tests/fakes importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in ("sim", "fakes")]
