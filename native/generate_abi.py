"""Converts the C headers to the Python module from which cffi loads the interface.

Run by the build (it needs cffi and pycparser there; at run time neither is parsed again):
    python generate_abi.py quire.h FOLDER abi.py        FOLDER has the headers that it includes
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi


def declarations(header: str) -> str:
    """The header without what cffi does not read: directives, and the C++ guards' contents."""
    plain = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", header, flags=re.DOTALL)
    kept = [
        line
        for line in plain.splitlines()
        if not line.startswith("#") or re.fullmatch(r"#define \w+ \d+", line)
    ]
    return "\n".join(kept)


def main(header: str, folder: str, module: str) -> None:
    """Writes `module` from `header`, which includes headers of `folder`."""

    def included(match: re.Match[str]) -> str:
        return (Path(folder) / match[1]).read_text("utf-8")

    text = re.sub(r'#include "(\w+\.h)"\n', included, Path(header).read_text("utf-8"))
    ffi = cffi.FFI()
    ffi.set_source("abi", None)
    ffi.cdef(declarations(text))
    ffi.emit_python_code(module)
    path = Path(module)
    path.write_text(f"# ruff: noqa\n# mypy: ignore-errors\n{path.read_text('utf-8')}", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
