"""Finds values whose columns can be divided by factors without a change of the result.

A matrix that reads the value has its columns multiplied by the factors, and what computes the value
is divided by them: the weight of a norm, the rows of v or of up. The steps of whole numbers then
suit the columns better (Source: Xiao et al. 2023, "SmoothQuant", section 4; Lin et al. 2024,
"AWQ", section 3.2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quire.program.ops import Attention, Experts, KeepSources, LayerNorm, Linear, Op, RmsNorm
from quire.program.pointwise_ops import Glu
from quire.program.program import Program
from quire.program.values import Param, Value

_Ops = Sequence[Op]


@dataclass(frozen=True, slots=True)
class DividedRows:
    """Rows of a weight that are divided by the factors."""

    param: Param
    first: int = 0
    """The row of the first factor."""
    offset: float = 0.0
    """Number that the op adds to what it reads."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A value with such columns."""

    value: Value
    matrices: tuple[Param, ...]
    """The weights that are multiplied with it, in order of the ops."""
    divided: tuple[DividedRows, ...]
    head_dim: int
    """Columns of a head; all columns, where heads do not share factors."""
    sharing: int = 1
    """Neighbouring heads that have the same factors."""


def folds(program: Program) -> tuple[Fold, ...]:
    """All such values of a program whose weights have other names for each op, in its order."""
    return tuple(_Finder(program).found())


class _Finder:
    def __init__(self, program: Program) -> None:
        self._ops = program.ops
        self._writers: Mapping[str, Op] = {
            value.name: op for op in program.ops for value in op.outputs()
        }
        self._readers: dict[str, list[Op]] = defaultdict(list)
        self._uses: Counter[str] = Counter()
        for op in program.ops:
            for name in {value.name for value in op.inputs()}:
                self._readers[name].append(op)
            self._uses.update({part.name for param in op.params() for part in param.parts})
        attends = program.attention_ops()
        self._memories = Counter(op.layer for op in attends if op.layer is not None)
        self._memories.update(op.layer for op in program.ops if isinstance(op, KeepSources))

    def found(self) -> Iterator[Fold]:
        for op in self._ops:
            for value in op.outputs():
                matrices = self._matrices(value)
                fold = self._fold(op, value, matrices) if matrices else None
                weights = [*matrices, *(rows.param for rows in fold.divided)] if fold else []
                if fold and all(self._is_alone(param) for param in weights):
                    yield fold

    def _is_alone(self, param: Param) -> bool:
        """Whether no other op has one of its tensors, and all have plain shapes."""
        return all(
            self._uses[part.name] == 1 and (len(part.shape) > 1 or len(param.shape) == 1)
            for part in param.parts
        )

    def _matrices(self, value: Value) -> tuple[Param, ...]:
        """The weights that are multiplied with a value; none if it is read in another way, too."""
        found = []
        for op in self._readers[value.name]:
            if isinstance(op, Linear):
                found.append(op.weight)
            elif isinstance(op, Experts) and op.x == value != op.routes:
                found.append(op.gate_up)
            else:
                return ()
        return tuple(found)

    def _fold(self, op: Op, value: Value, matrices: tuple[Param, ...]) -> Fold | None:
        match op:
            case RmsNorm(weight=Param() as weight):
                rows = [DividedRows(weight, offset=op.weight_offset)]
                return Fold(value, matrices, tuple(rows), value.dim)
            case LayerNorm(weight=Param() as weight):
                rows = [DividedRows(weight, offset=op.weight_offset)]
                rows += [] if op.bias is None else [DividedRows(op.bias)]
                return Fold(value, matrices, tuple(rows), value.dim)
            case Glu() if op.act != "swiglu_oai" and op.up != op.gate:
                up = self._rows_of(op.up)
                return Fold(value, matrices, up, value.dim) if up else None
            case Attention(v=Value() as v) if op.layer is None or self._memories[op.layer] == 1:
                rows_of_v = self._rows_of(v)
                dim, sharing = op.value_dim or op.head_dim, op.num_heads // op.num_kv_heads
                return Fold(value, matrices, rows_of_v, dim, sharing) if rows_of_v else None
        return None

    def _rows_of(self, value: Value) -> tuple[DividedRows, ...]:
        """The rows of a linear that give a value which one op reads; none if there are not such."""
        op = self._writers.get(value.name)
        if not isinstance(op, Linear) or len(self._readers[value.name]) != 1:
            return ()
        names = [out.name for out in op.outs]
        first = sum(out.dim for out in op.outs[: names.index(value.name)])
        params = [op.weight] if op.bias is None else [op.weight, op.bias]
        return tuple(DividedRows(param, first) for param in params)
