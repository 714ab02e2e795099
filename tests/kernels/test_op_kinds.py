"""Every op of a program has native ops; every kind of native op has a class and a kernel."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from quire.backends.cpu import Library, load
from quire.backends.cpu.lowering import NativeOp
from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.ops.kernels import NativeKernel
from quire.errors import BackendError
from quire.program import Op, Program, ops
from quire.program.ops import KernelOp
from quire.program.printer import snake_case


def kinds(library: Library) -> dict[str, int]:
    """quire_op_kind, without its last entry, the number of kinds."""
    found: dict[str, int] = library.ffi.typeof("enum quire_op_kind").relements
    return {name: kind for name, kind in found.items() if name != "QUIRE_NUM_OP_KINDS"}


def below(base: type) -> list[type]:
    """All classes below `base`."""
    return [one for child in base.__subclasses__() for one in (child, *below(child))]


def leaves(base: type) -> dict[str, type]:
    """The classes below `base` that have no subclass, by name: a dataclass with slots replaces a
    class of the same name, which may still be there."""
    found = below(base)
    inner = {one.__name__ for one in found if one.__subclasses__()}
    return {one.__name__: one for one in found if one.__name__ not in inner}


def test_every_op_of_a_program_has_native_ops() -> None:
    own = {name: op for name, op in leaves(Op).items() if op.__module__.startswith("quire.")}
    without = {name for name, op in own.items() if lower.dispatch(op) is lower.dispatch(object)}
    # A `Module` is a whole model of transformers, which has a backend of its own.
    assert without == {"Module"}


def test_an_op_without_native_ops_is_named() -> None:
    with pytest.raises(BackendError, match="the CPU backend does not support the op Op"):
        lower(Op(), Graph(Program("none", ())))


def structs() -> dict[str, type]:
    """By the name of a struct, the class whose fields it has."""
    own = {**leaves(KernelOp), **leaves(NativeOp)}
    return {
        snake_case(name.removeprefix("Native")): op
        for name, op in own.items()
        if op.__module__.startswith("quire.") and not issubclass(op, NativeKernel)
    }


def test_every_kind_has_a_class(isa: str) -> None:
    assert {f"QUIRE_OP_{name.upper()}" for name in structs()} == set(kinds(load(isa)))


def test_the_structs_have_the_members_that_are_declared(isa: str) -> None:
    """A native library that was built from other declarations is found here."""
    root = Path(__file__).parents[2]
    generator = runpy.run_path(str(root / "native/generate_structs.py"))
    found = generator["read"](root / "src/quire")
    for name, op in structs().items():
        texts = " ".join(found.texts(op.__name__, 0)).replace(";", "").replace("[3]", "").split()
        members = [one for one, _ in load(isa).ffi.typeof(f"quire_{name}").fields]
        assert members == texts[1::2], name


@pytest.mark.parametrize("alias", ["Activation", "NormKind", "RouteScore"])
def test_the_enums_have_the_texts_of_the_declarations(isa: str, alias: str) -> None:
    texts = get_args(getattr(ops, alias))
    for code, text in enumerate(texts):
        assert load(isa).code(f"QUIRE_{snake_case(alias)}_{text}".upper()) == code
    assert load(isa).code(f"QUIRE_{snake_case(alias)}_COUNT".upper()) == len(texts)


@pytest.fixture
def model(isa: str) -> Iterator[Any]:
    """A native model without weights, ready for its ops."""
    library = load(isa)
    spec = library.ffi.new("quire_model_spec *")
    spec.kv = (1, [0], 1, 1, 16, [1], [16], [16], [0], 0, library.code("QUIRE_F32"))
    spec.ranks.num_ranks, spec.ranks.shared_fd = 1, -1
    spec.max_num_tokens = spec.max_num_seqs = spec.max_model_len = spec.vocab_size = 16
    pool = library.lib.quire_pool_create(1, 0)
    model = library.lib.quire_model_create(pool, spec)
    assert model != library.ffi.NULL
    yield model
    library.lib.quire_model_destroy(model)
    library.lib.quire_pool_destroy(pool)


def refusal(library: Library, model: Any, kind: int) -> str:
    """What the library says of two ops of a kind that are all zeros: none is right."""
    ops = library.ffi.new("quire_op[2]")
    ops[0].kind = ops[1].kind = kind
    assert library.lib.quire_set_ops(model, ops, 2) != 0
    return str(library.error("refused")).removeprefix("refused: ")


def test_every_kind_has_a_kernel(isa: str, model: Any) -> None:
    library = load(isa)
    for name, kind in kinds(library).items():
        assert refusal(library, model, kind) != "op: unknown kind", name


def test_another_kind_is_refused(isa: str, model: Any) -> None:
    library = load(isa)
    for kind in (-1, library.code("QUIRE_NUM_OP_KINDS"), 2**31 - 1):
        assert refusal(library, model, kind) == "op: unknown kind"
