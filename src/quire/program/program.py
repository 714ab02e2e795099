"""`Program`: a model as data, and the invariants that every pass must keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.errors import IntegrityError
from quire.program.ops import (
    Attention,
    Embed,
    GivenColumns,
    LearnedPositions,
    Logits,
    MeanRows,
    Memory,
    Module,
    Op,
    Receive,
    RowsIn,
    SourcesEnd,
    TokenTypes,
)
from quire.program.values import Param


@dataclass(frozen=True, slots=True)
class Program:
    """A flat list of ops in order of execution; the last one gives the result.

    Invariant (`check`): every value is written exactly once, before it is read, and memories are
    numbered 0, 1, ... without gaps.
    """

    name: str
    ops: tuple[Op, ...]
    row_widths_of_whole: tuple[int, int] | None = None
    """`row_widths` of the program of which this one is a stage; None: it is whole."""

    @property
    def row_widths(self) -> tuple[int, int]:
        """How many numbers a row has that is given in place of an embedding (0: no token is looked
        up), and how many with those that `GivenColumns` reads."""
        if self.row_widths_of_whole is not None:
            return self.row_widths_of_whole
        embedding = max((op.out.dim for op in self.ops if isinstance(op, Embed)), default=0)
        ends = [op.first + op.out.dim for op in self.ops if isinstance(op, GivenColumns)]
        return embedding, max([*ends, embedding])

    def params(self) -> Iterator[Param]:
        """Every weight slot once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for param in op.params():
                if param.name not in seen:
                    seen.add(param.name)
                    yield param

    def memories(self) -> tuple[Memory, ...]:
        """State of each request that its ops keep between steps, in order of `layer`."""
        found = [memory for op in self.ops for memory in op.memories()]
        return tuple(sorted(found, key=lambda memory: memory.layer))

    def attention_ops(self) -> tuple[Attention, ...]:
        """All attention ops in order, including those that read K and V of another one."""
        found = [op for op in self.ops if isinstance(op, Attention)]
        if (module := self.module) is not None:
            found.extend(module.layers)
        return tuple(found)

    @property
    def num_sources(self) -> int:
        """Positions of each request that are rows of an encoder; 0: the model has a decoder
        alone."""
        return next((op.num_sources for op in self.ops if isinstance(op, SourcesEnd)), 0)

    @property
    def is_repeatable(self) -> bool:
        """Whether a step may be computed twice."""
        return all(op.is_repeatable for op in self.ops)

    @property
    def result(self) -> Op:
        """The last op."""
        last = self.ops[-1] if self.ops else None
        if last is None or not last.is_result:
            raise IntegrityError(
                f"program {self.name}: {last} is the last op but does not give a result"
            )
        return last

    @property
    def logits(self) -> Logits:
        """The last op of a program that ends with logits."""
        last = self.result
        if not isinstance(last, Logits):
            raise IntegrityError(f"program {self.name}: the last op is {last}, not Logits")
        return last

    @property
    def head_name(self) -> str | None:
        """The name of the head's weight; None: the program does not end in logits."""
        last = self.result
        return last.weight.name if isinstance(last, Logits) else None

    @property
    def num_token_types(self) -> int:
        """Token types are below it; 1: the program has no token types, so that all are 0."""
        tables = [op.table.shape[0] for op in self.ops if isinstance(op, TokenTypes)]
        return min(tables, default=1)

    @property
    def needs_whole_requests(self) -> bool:
        """Whether a step must have all tokens of each of its requests."""
        return any(
            isinstance(op, MeanRows) or (isinstance(op, Attention) and op.layer is None)
            for op in self.ops
        )

    @property
    def result_width(self) -> int:
        """Numbers in a row of the result."""
        [out] = self.result.outputs()
        return out.dim

    @property
    def module(self) -> Module | None:
        """The only op of a model that transformers computes; None for other models."""
        [first, *rest] = self.ops or (None,)
        return first if isinstance(first, Module) and not rest else None

    @property
    def vocab_size(self) -> int:
        """Upper bound of token ids: the width of the logits, or else the rows of the embedding."""
        match self.result:
            case Logits() as logits:
                return logits.out.dim
            case Module() as module:
                return module.out.dim
        tables = [
            _num_rows(op) if isinstance(op, Embed) else op.vocab_size
            for op in self.ops
            if isinstance(op, Embed | Receive) or (isinstance(op, RowsIn) and op.vocab_size)
        ]
        if not tables:
            raise IntegrityError(f"program {self.name} reads no token ids")
        return min(tables)

    @property
    def reads_rows(self) -> bool:
        """Whether a step needs rows from its caller, as that of a draft head does."""
        return any(isinstance(op, RowsIn) for op in self.ops)

    @property
    def position_limit(self) -> int | None:
        """Number of positions in the learned position tables; None without such tables."""
        tables = [op for op in self.ops if isinstance(op, LearnedPositions)]
        return min((op.table.shape[0] - op.offset for op in tables), default=None)

    def check(self) -> None:
        """Raises IntegrityError if a value is read before it is written, or written twice, and if
        the memories or the last op are wrong."""
        written: set[str] = set()
        for op in self.ops:
            if isinstance(op, SourcesEnd):
                written.clear()  # what is computed of sources is not there for other tokens
            for value in op.inputs():
                if value.name not in written:
                    raise IntegrityError(f"{type(op).__name__} reads {value} before it is written")
            for value in op.outputs():
                if value.name in written:
                    raise IntegrityError(f"{type(op).__name__} writes {value} a second time")
                written.add(value.name)
        self._check_shared_layers()
        layers = [memory.layer for memory in self.memories()]
        if layers != list(range(len(layers))):
            raise IntegrityError(f"the memories of {self.name} are numbered {layers}")
        _ = self.result

    def _check_shared_layers(self) -> None:
        """Checks that attention without k and v has an earlier op that writes them."""
        writers: dict[int, Attention] = {}
        for op in self.attention_ops():
            if op.k is None and op.v is not None:
                raise IntegrityError(f"attention of layer {op.layer} has v alone")
            if op.is_latent and (op.num_kv_heads != 1 or op.window or op.value_dim is None):
                raise IntegrityError(f"attention of layer {op.layer} is latent, with heads of K")
            if op.layer is None:
                if op.k is None:
                    raise IntegrityError("attention without a memory has no k")
            elif op.k is not None:
                writers[op.layer] = op
            elif (writer := writers.get(op.layer)) is None or not shares_layer(writer, op):
                raise IntegrityError(
                    f"attention reads layer {op.layer}, which no op like it has written before"
                )


def _num_rows(op: Embed) -> int:
    """Rows of the table, those of other ranks included."""
    return op.table.shape[0] if op.owners is None else op.owners.total


def shares_layer(writer: Op, reader: Attention) -> bool:
    """Whether the reader can attend to the K and V of the writer."""
    fields = ("num_kv_heads", "head_dim", "value_dim", "window", "is_chunked")
    return isinstance(writer, Attention) and all(
        getattr(writer, name) == getattr(reader, name) for name in fields
    )
