"""`python -m quire` is `quire`."""

from __future__ import annotations

import sys

from quire.cli import main

sys.exit(main())
