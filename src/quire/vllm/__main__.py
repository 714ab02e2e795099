"""`python -m quire.vllm`: runs a script written for vLLM, or vLLM's command line."""

from __future__ import annotations

import sys

from quire.vllm.own.commands import main

sys.exit(main())
