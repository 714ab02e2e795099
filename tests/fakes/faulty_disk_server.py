"""`quire` on one of the disks of `faulty_disk.py`, which FAULTY_DISK names. Run as a script, with
the engine on a thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulty_disk import FAULTS

from quire.cli import main

for name, around in FAULTS[os.environ["FAULTY_DISK"]].items():
    setattr(os, name, around(getattr(os, name)))
sys.exit(main(sys.argv[1:]))
