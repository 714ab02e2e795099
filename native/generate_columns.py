"""Writes the C struct of the sampling columns from their declaration in Python.

Run by the build. The declaration is read, not imported: it needs no library.
    python generate_columns.py columns.py quire_sampling.h
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

_C_TYPES = {
    "NDArray[np.float32]": "const float*",
    "NDArray[np.int32]": "const int32_t*",
    "NDArray[np.uint64]": "const uint64_t*",
    "TokenLists": "quire_token_lists",
    "TokenMasks": "quire_token_masks",
}


def struct(declaration: str) -> str:
    """The C text. Raises KeyError for a type of Python that has none in C."""
    classes = [node for node in ast.parse(declaration).body if isinstance(node, ast.ClassDef)]
    [columns] = [node for node in classes if node.name == "SamplingColumns"]
    members = [
        f"  {_C_TYPES[ast.unparse(node.annotation).removesuffix(' | None')]} {node.target.id};"
        for node in columns.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return "\n".join(
        (
            "// Generated from SamplingColumns of sampling/columns.py, which says what they mean.",
            "// A null column means the neutral value. Included by quire.h.",
            "typedef struct quire_sampling {",
            *members,
            "} quire_sampling;",
            "",
        )
    )


def main(declaration: str, header: str) -> None:
    """Writes `header` if its text changes. Otherwise its users need not be compiled again."""
    text, path = struct(Path(declaration).read_text("utf-8")), Path(header)
    if not path.is_file() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
