"""`python -m quire.server` is `quire serve`."""

from __future__ import annotations

import sys

from quire.cli import main

sys.exit(main(["serve", *sys.argv[1:]]))
