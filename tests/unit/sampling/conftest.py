"""Makes the helpers in tests/fakes importable."""

from __future__ import annotations

import sys
from pathlib import Path

FAKES = str(Path(__file__).parents[2] / "fakes")
if FAKES not in sys.path:
    sys.path.insert(0, FAKES)
