"""The real core with slow steps, which misbehave once the file named by FAULT_FILE says how."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from quire.config import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import BackendError
from quire.executor import UniProcExecutor
from quire.protocol import StepResult

_STEP_S = 0.005
"""A step takes so long at least: on a fast machine replies would end before all clients began."""


class FaultyCore(EngineCore):
    """An `EngineCore` over a faulty executor."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _FaultyExecutor(config))


class _FaultyExecutor(UniProcExecutor):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._fault = Path(os.environ["FAULT_FILE"])

    def collect(self) -> StepResult:
        time.sleep(_STEP_S)
        fault = self._fault.read_text() if self._fault.exists() else ""
        if fault == "raise":
            raise RuntimeError("the step failed on purpose")
        if fault == "hang":
            ctypes.CDLL(None).sleep(3600)  # native code, and the interpreter is free meanwhile
        while fault == "loop":
            pass
        result = super().collect()
        if fault == "backend error":
            self._fault.unlink()
            raise BackendError("the device failed on purpose")
        return result
