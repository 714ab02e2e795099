"""`leave_out_torchvision`: lets transformers work next to a torchvision that cannot be imported.

A torchvision for another version of torch raises as it is imported, and with it most classes of
transformers, which use it for images alone. Called before transformers is imported; imports neither
of them unless torchvision is installed.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec

from quire.errors import reason
from quire.log import get_logger

logger = get_logger(__name__)

_NAME = "torchvision"


def leave_out_torchvision() -> None:
    """Hides torchvision from this process if it is installed and cannot be imported, and logs why.
    It works too where transformers is imported already."""
    try:
        if find_spec(_NAME) is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(_NAME)
    except Exception as error:
        logger.warning(
            "the installed torchvision cannot be imported, and transformers works without it: %s; "
            "install the torchvision for your version of torch, or uninstall it", reason(error),
        )  # fmt: skip
        for name in [one for one in sys.modules if one.startswith(f"{_NAME}.")]:
            del sys.modules[name]
        sys.modules[_NAME] = None  # type: ignore[assignment]  # Python's mark of a missing module
        checks = vars(sys.modules.get("transformers.utils.import_utils", object))
        for name, check in checks.items():
            if _NAME in name and hasattr(check, "cache_clear"):
                check.cache_clear()
