"""Makes `import vllm` import Quire in a script and in the processes that it starts.

Python runs this file when it starts, because `python -m quire.vllm` puts its folder on PYTHONPATH.
The file hides any other `sitecustomize` and therefore runs it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

with suppress(ModuleNotFoundError):  # a child process may be a Python without Quire
    import quire.vllm  # noqa: F401

_HERE = os.path.dirname(__file__)
_spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != _HERE])
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(module_from_spec(_spec))
