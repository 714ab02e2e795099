"""Runs unchanged programs written for vLLM on Quire.

    python -m quire.vllm script.py arguments...     as `python script.py arguments...`
    python -m quire.vllm -m module arguments...     also `-c code`
    python -m quire.vllm serve MODEL ...            vLLM's command line

In these processes and their child processes, `import vllm` imports Quire, even if vLLM is
installed. `import quire.vllm` has the same effect for the rest of the current process. With `import
quire.vllm as vllm`, a script needs a change of only one line. `import quire` alone does not affect
the name `vllm`.

`vllm.__version__` and `importlib.metadata.version("vllm")` are the version of vLLM whose names are
offered (`surface.VLLM_VERSION`). `surface.py` lists the modules and names. For a name that vLLM has
and Quire lacks, the error names the missing feature (`missing.py`). A class of the public
interface, such as `LoRARequest`, raises the error when it is used, so that a script can import it
for an option that is not set. Any other name raises it when it is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.vllm.finder import install
from quire.vllm.surface import VLLM_VERSION

if TYPE_CHECKING:
    from types import ModuleType

__version__ = VLLM_VERSION
_vllm: ModuleType = install()

__all__ = ["__version__", *_vllm.__all__]


def __getattr__(name: str) -> Any:
    return getattr(_vllm, name)


def __dir__() -> list[str]:
    return dir(_vllm)
