"""`Program`: a model as data, and the invariants that every pass must keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.errors import IntegrityError
from quire.program.ops import Attention, LearnedPositions, Logits, Module, Op
from quire.program.values import Param


@dataclass(frozen=True, slots=True)
class Program:
    """A flat list of ops in the order of execution; the last one is `Logits`, or the only one is
    a `Module`.

    Invariant (`check`): every value is written exactly once, before it is read.
    """

    name: str
    ops: tuple[Op, ...]

    def params(self) -> Iterator[Param]:
        """Every weight slot once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for param in op.params():
                if param.name not in seen:
                    seen.add(param.name)
                    yield param

    def attention_layers(self) -> tuple[Attention, ...]:
        """The attention ops that write K and V, in order of their `layer`, which is 0, 1, ...
        without gaps."""
        found = [op for op in self.attention_ops() if op.k is not None]
        return tuple(sorted(found, key=lambda op: op.layer))

    def attention_ops(self) -> tuple[Attention, ...]:
        """All attention ops in their order: those too that read what another one has written."""
        found = [op for op in self.ops if isinstance(op, Attention)]
        if (module := self.module) is not None:
            found.extend(module.layers)
        return tuple(found)

    @property
    def logits(self) -> Logits:
        """The last op."""
        last = self.ops[-1] if self.ops else None
        if not isinstance(last, Logits):
            raise IntegrityError(f"program {self.name}: the last op is {last}, not Logits")
        return last

    @property
    def module(self) -> Module | None:
        """The only op of a model that transformers computes; None: it is made of ops."""
        [first, *rest] = self.ops or (None,)
        return first if isinstance(first, Module) and not rest else None

    @property
    def vocab_size(self) -> int:
        """Rows of the head: the width of the logits."""
        module = self.module
        return self.logits.weight.shape[0] if module is None else module.out.dim

    @property
    def position_limit(self) -> int | None:
        """How many positions the learned position tables hold; None where there are none."""
        tables = [op for op in self.ops if isinstance(op, LearnedPositions)]
        return min((op.table.shape[0] - op.offset for op in tables), default=None)

    def check(self) -> None:
        """Raises IntegrityError if a value is read before it is written, or written twice, and if
        the attention layers or the last op are wrong."""
        written: set[str] = set()
        for op in self.ops:
            for value in op.inputs():
                if value.name not in written:
                    raise IntegrityError(f"{type(op).__name__} reads {value} before it is written")
            for value in op.outputs():
                if value.name in written:
                    raise IntegrityError(f"{type(op).__name__} writes {value} a second time")
                written.add(value.name)
        self._check_shared_layers()
        layers = [op.layer for op in self.attention_layers()]
        if layers != list(range(len(layers))):
            raise IntegrityError(f"attention layers are numbered {layers}")
        _ = self.vocab_size

    def _check_shared_layers(self) -> None:
        """Attention without k and v reads what an earlier op has written for it."""
        writers: dict[int, Attention] = {}
        for op in self.attention_ops():
            if (op.k is None) != (op.v is None):
                raise IntegrityError(f"attention of layer {op.layer} has k or v alone")
            if op.k is not None:
                writers[op.layer] = op
            elif (writer := writers.get(op.layer)) is None or not shares_layer(writer, op):
                raise IntegrityError(
                    f"attention reads layer {op.layer}, which no op like it has written before"
                )


def shares_layer(writer: Attention, reader: Attention) -> bool:
    """Whether the reader may attend over the K and V that the writer has written."""
    fields = ("num_kv_heads", "head_dim", "window", "is_chunked")
    return all(getattr(writer, name) == getattr(reader, name) for name in fields)
