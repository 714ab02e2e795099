"""Programs written for vLLM, unchanged, on Quire.

    python -m quire.vllm script.py arguments...     as `python script.py arguments...`
    python -m quire.vllm -m module arguments...     also `-c code`
    python -m quire.vllm serve MODEL ...            vLLM's command line

In these processes and in those that they start, `import vllm` gives Quire, also where vLLM is
installed. `import quire.vllm` does the same for the process in which it runs, from then on; `import
quire.vllm as vllm` is a way to change a single line of a script. `import quire` alone leaves the
name `vllm` as it is.

`vllm.__version__` is the version of vLLM whose names are offered (`surface.VLLM_VERSION`), and what
`importlib.metadata.version("vllm")` gives. The names and the modules they are in are those of the
table in `surface.py`. A name that vLLM has and Quire has not says which feature is missing
(`missing.py`): a class of the public interface, such as `LoRARequest`, when it is used, so that a
script can import it for an option that is not set; any other name when it is imported.
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
