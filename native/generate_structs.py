"""Writes the C structs of native ops and sampling columns, and the ops' checks, as Python has them.

Run by the build. The declarations are read, not imported: they need no library.
    python generate_structs.py SRC FOLDER       writes quire_ops.h, op_traits.h, quire_sampling.h

An op is a class below `KernelOp` (program/), whose fields are the struct's, or below `NativeOp`
(backends/cpu/lowering/ops/). `member` of backends/cpu/encode.py declares what a field of a type
becomes. A `Literal` becomes an enum.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

_FILES = (
    "program/*ops.py", "backends/cpu/lowering/ops/*.py", "backends/cpu/encode.py",
    "sampling/columns.py",
)  # fmt: skip
_COLUMNS = {
    "NDArray[np.float32]": "const float*",
    "NDArray[np.int32]": "const int32_t*",
    "NDArray[np.uint64]": "const uint64_t*",
    "TokenLists": "quire_token_lists",
    "TokenMasks": "quire_token_masks",
}


@dataclass
class Declarations:
    """The declarations of the files, by name."""

    choices: dict[str, list[str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    fields: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    members: dict[str, tuple[str, str]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Adds those of a file."""
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name("Literal"), choices)):
                    self.choices[name] = list(ast.literal_eval(choices))
                case ast.ClassDef(name, bases):
                    self.bases[name] = [ast.unparse(base) for base in bases]
                    self.fields[name] = [
                        (one.target.id, ast.unparse(one.annotation))
                        for one in node.body
                        if isinstance(one, ast.AnnAssign)
                        and isinstance(one.target, ast.Name)
                        and not ast.unparse(one.annotation).startswith("ClassVar")
                    ]
                case ast.Call(ast.Name("member"), arguments):
                    name, *texts = map(ast.literal_eval, arguments)
                    self.members[name] = (texts[0], texts[1] if len(texts) > 1 else "")

    def is_below(self, name: str, *bases: str) -> bool:
        """Whether a class has one of these bases."""
        return any(one in bases or self.is_below(one, *bases) for one in self.bases.get(name, ()))

    def structs(self, *bases: str) -> dict[str, str]:
        """By the name of a struct, the class of which it is: those that no other class is below."""
        inner = {base for bases in self.bases.values() for base in bases}
        return {
            snake_case(name.removeprefix("Native")): name
            for name in self.bases
            if self.is_below(name, *bases)
            and name not in inner
            and not self.is_below(name, "NativeKernel")
        }

    def texts(self, name: str, which: int) -> list[str]:
        """The members of a class's struct (0) or their checks (1). Raises KeyError for a type of
        Python that has none."""
        found = []
        for one, kind in self.fields[name]:
            count = len(self.choices.get(kind.removesuffix(" | None"), ()))
            found.append(self.members[kind][which].format(name=one, choices=count))
        return [text for text in found if text]


def snake_case(name: str) -> str:
    """`soft_cap` for `SoftCap`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def struct_text(name: str, members: list[str]) -> list[str]:
    """The lines of a struct."""
    return ["", f"typedef struct {name} {{", *(f"  {one};" for one in members), f"}} {name};"]


def columns(found: Declarations) -> str:
    """The struct of the sampling columns. Raises KeyError for a type of Python that has none in
    C."""
    members = [
        f"{_COLUMNS[kind.removesuffix(' | None')]} {name}"
        for name, kind in found.fields["SamplingColumns"]
    ]
    note = "// Generated from sampling/columns.py. A null column means the neutral value."
    return "\n".join((note, *struct_text("quire_sampling", members), ""))


def header(found: Declarations) -> str:
    """The enums, the structs and the record of any op."""
    lines = ["// Generated from the declarations in Python, which say what the members mean."]
    for name, choices in found.choices.items():
        if name in found.members:
            prefix = f"QUIRE_{snake_case(name)}_".upper()
            texts = (f"  {prefix}{text.upper()} = {code}," for code, text in enumerate(choices))
            count = f"  {prefix}COUNT = {len(choices)}"
            lines += ["", f"enum quire_{snake_case(name)} {{", *texts, count, "};"]
    ops = found.structs("KernelOp", "NativeOp")
    for struct, name in {**found.structs("NativePart"), **ops}.items():
        lines += struct_text(f"quire_{struct}", found.texts(name, 0))
    kinds = [f"  QUIRE_OP_{struct.upper()} = {kind}," for kind, struct in enumerate(ops)]
    lines += ["", "enum quire_op_kind {", *kinds, f"  QUIRE_NUM_OP_KINDS = {len(ops)}", "};", ""]
    lines += ["typedef struct quire_op {", "  int32_t kind;", "  int32_t rows;", "  union {"]
    lines += [f"    quire_{struct} {struct};" for struct in ops]
    return "\n".join((*lines, "  } u;", "} quire_op;", ""))


def traits(found: Declarations) -> str:
    """`OpTraits` of each op, for ops/kernel.h."""
    lines = [
        "// Generated: number, name, struct and checks of an op, by its struct.",
        "#pragma once",
        '#include "quire.h"',
        "namespace quire {",
        "template <class Op>",
        "struct OpTraits;",
    ]
    for struct, name in found.structs("KernelOp", "NativeOp").items():
        lines += [
            "template <>",
            f"struct OpTraits<quire_{struct}> {{",
            f"  static constexpr int32_t kId = QUIRE_OP_{struct.upper()};",
            f'  static constexpr const char* kName = "{struct}";',
            f"  static const quire_{struct}& of(const quire_op& op) {{ return op.u.{struct}; }}",
            "  template <class Checks>",
            f"  static void check(const Checks& checks, const quire_{struct}& op) {{",
            *(f"    checks.{text};" for text in found.texts(name, 1)),
            "  }",
            "};",
        ]
    return "\n".join((*lines, "}  // namespace quire", ""))


def read(source: Path) -> Declarations:
    """The declarations of all files."""
    found = Declarations()
    for pattern in _FILES:
        for path in sorted(source.glob(pattern)):
            found.read(path)
    return found


def main(source: str, folder: str) -> None:
    """Writes headers whose text changes. Otherwise their users need not be compiled again."""
    found = read(Path(source))
    texts = {"quire_ops.h": header, "op_traits.h": traits, "quire_sampling.h": columns}
    for path, text in ((Path(folder) / name, write(found)) for name, write in texts.items()):
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
