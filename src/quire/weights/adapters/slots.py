"""`AdapterSlots`: the places of a program that an adapter can change, by the module's name.

The name of a module is that of its tensor in the checkpoint without `.weight`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from quire.config.records import Dtype
from quire.program import Embed, Linear, Logits, Param, Program, Tensor
from quire.units import round_up

HEAD = "lm_head"
_LANES = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """A place of a module's weight: rows of a slot of the program."""

    param: Param
    tensor: Tensor
    first_row: int
    is_embedding: bool

    @property
    def can_change(self) -> bool:
        """Whether its rows are whole rows of the tensor."""
        return len(self.param.shape) == 2 and not (self.tensor.transposed and self.tensor.rows)


class AdapterSlots:
    """Looks for the slots of modules."""

    def __init__(self, program: Program) -> None:
        self._by_module: dict[tuple[str, bool], list[Slot]] = defaultdict(list)
        seen: set[tuple[str, bool]] = set()
        for op in program.ops:
            if not isinstance(op, Linear | Logits | Embed):
                continue
            is_embedding = isinstance(op, Embed)
            param = op.table if isinstance(op, Embed) else op.weight
            if (param.name, is_embedding) in seen:
                continue
            seen.add((param.name, is_embedding))
            first = 0
            for tensor in param.parts:
                slot = Slot(param, tensor, first, is_embedding)
                first += tensor.slot_shape[0]
                self._by_module[_module_of(tensor), is_embedding].append(slot)
            if isinstance(op, Logits) and (HEAD, False) not in self._by_module:
                whole = Slot(param, param.parts[0], 0, is_embedding=False)
                self._by_module[HEAD, False] = [whole] if len(param.parts) == 1 else []

    def find(self, module: str, *, is_embedding: bool) -> list[Slot]:
        """The slots of a module; none if the program has no such module. A name with another
        beginning, such as that of a model with more parts, is found by its end, if one alone ends
        so."""
        exact = self._by_module.get((module, is_embedding))
        if exact:
            return exact
        ends = [
            slots
            for (name, kind), slots in self._by_module.items()
            if kind is is_embedding and _ends_alike(name, module) and slots
        ]
        return ends[0] if len(ends) == 1 else []

    def all(self) -> list[Slot]:
        """Every slot once."""
        found = {(slot.param.name, slot.first_row, slot.is_embedding): slot
                 for slots in self._by_module.values() for slot in slots}  # fmt: skip
        return [slot for slot in found.values() if slot.can_change]


def adapter_width(program: Program, max_rank: int) -> int:
    """The most numbers of a row between the two matrices of one slot."""
    parts: dict[str, int] = defaultdict(int)
    for slot in AdapterSlots(program).all():
        if not slot.is_embedding:
            parts[slot.param.name] += max_rank
    return max(parts.values(), default=0)


def adapter_bytes(program: Program, max_rank: int, dtype: Dtype) -> int:
    """Bytes of an adapter of this rank for all modules."""
    item = 4 if dtype == "float32" else 2
    total = 0
    for slot in AdapterSlots(program).all():
        rows, depth = slot.tensor.slot_shape[-2:]
        numbers = max_rank * (round_up(rows, _LANES) + 2 * _LANES + round_up(depth, _LANES))
        total += item * numbers + 4 * (max_rank + 3 * rows)
    return total


def _module_of(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight")


def _ends_alike(a: str, b: str) -> bool:
    """Whether one name is the other with something before it; a name of one word has no
    beginning that could differ."""
    short, long = sorted((a, b), key=len)
    return "." in short and long.endswith(f".{short}")
