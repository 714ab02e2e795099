"""`guarded`: one check of a part, whose failure does not lose the others.

An exception becomes a result, and the part goes on. A check that spoils the GPU, ends the process
or hangs ends the part's process. The parent knows the name of the check from the output, and starts
another process, which leaves out this check and all before it (`Sizes.done`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, failed

from quire.errors import DeviceError


def guarded(sizes: Sizes, name: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The results of a check. `rows` does nothing before it is asked for a result."""
    if name in sizes.done:
        return
    if sizes.is_child:
        print(json.dumps({"check": name}), flush=True)
    try:
        for row in rows:
            if not isinstance(row.value, str) and row.value != row.value:
                raise ValueError(f"{row.name} is not a number")
            yield row
    except DeviceError:
        raise
    except Exception as error:
        yield failed(name, f"{type(error).__name__}: {error}")
