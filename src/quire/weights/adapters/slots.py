"""`AdapterSlots`: the places of a program that an adapter can change, by the module's name.

The name of a module is that of its tensor in the checkpoint without `.weight`. Experts that are in
one tensor `X.experts.gate_up_proj` have the names that they would have in separate tensors, such as
`X.experts.3.gate_proj`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from quire.config.records import Dtype
from quire.program import Embed, Experts, Linear, Logits, Param, Program, Tensor
from quire.units import round_up

HEAD = "lm_head"
_LANES = 16
_LAYER = re.compile(r"(.*?\.\d+)\.")
"""The beginning of a module's name, up to the number of its layer."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place of a module's weight: rows of a slot of the program."""

    param: Param
    tensor: Tensor
    first_row: int
    """Counted over the rows of all experts, one expert after the other."""
    is_embedding: bool
    expert: int | None = None
    """The expert, if `tensor` has all experts of a layer. The runs of `tensor` are then those of
    the module."""

    @property
    def key(self) -> tuple[str, int, bool]:
        """Identifies the slot."""
        return self.param.name, self.first_row, self.is_embedding

    @property
    def can_change(self) -> bool:
        """Whether its rows are whole rows of the tensor."""
        return len(self.param.shape) > 1 and not (self.tensor.transposed and self.tensor.rows)


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """The slots of a layer's experts."""

    inner: list[list[Slot]]
    """For each expert, the slots of gate and up, or of up alone."""
    down: list[list[Slot]]
    alternates: bool
    """Whether transformers has the rows of gate and up in turn (gpt-oss)."""


class AdapterSlots:
    """Looks for the slots of modules."""

    def __init__(self, program: Program) -> None:
        self._modules: _ByName[list[Slot]] = _ByName()
        self._embeddings: _ByName[list[Slot]] = _ByName()
        self._experts: _ByName[ExpertSlots] = _ByName()
        """By the name of the layer."""
        seen: set[tuple[str, bool]] = set()
        embeds = [op for op in program.ops if isinstance(op, Embed)]
        tables = {part.name for op in embeds for part in op.table.parts}
        for op in program.ops:
            if isinstance(op, Experts):
                self._add_experts(op)
            if not isinstance(op, Linear | Logits | Embed):
                continue
            is_embedding = isinstance(op, Embed)
            param = op.table if isinstance(op, Embed) else op.weight
            if (param.name, is_embedding) in seen:
                continue
            seen.add((param.name, is_embedding))
            for slot in _slots_of(param, is_embedding=is_embedding):
                # A table that is the head, too, has the name of the embedding.
                if is_embedding or slot.tensor.name not in tables:
                    self._add(_module_of(slot.tensor), slot)
            if isinstance(op, Logits) and HEAD not in self._modules:
                whole = Slot(param, param.parts[0], 0, is_embedding=False)
                self._modules[HEAD] = [whole] if len(param.parts) == 1 else []

    def find(self, module: str, *, is_embedding: bool) -> list[Slot]:
        """The slots of a module; none if the program has no such module. A name with another
        beginning, such as that of a model with more parts, is found by its end, if one alone ends
        so."""
        return (self._embeddings if is_embedding else self._modules).find(module) or []

    def experts(self, module: str) -> ExpertSlots | None:
        """The slots of all experts of a module's layer."""
        layer = _LAYER.match(module)
        return None if layer is None else self._experts.find(layer[1])

    def all(self) -> list[Slot]:
        """Every slot once."""
        named = (*self._modules.values(), *self._embeddings.values())
        found = {slot.key: slot for slots in named for slot in slots}
        return [slot for slot in found.values() if slot.can_change]

    def _add(self, module: str, slot: Slot) -> None:
        of = self._embeddings if slot.is_embedding else self._modules
        of.setdefault(module, []).append(slot)

    def _add_experts(self, op: Experts) -> None:
        inner = self._of_experts(op.gate_up, ("gate_proj", "up_proj") if op.gated else ("up_proj",))
        down = self._of_experts(op.down, ("down_proj",))
        layer = _LAYER.match(op.down.parts[0].name)
        if layer is not None and all(slot.can_change for slots in down for slot in slots):
            self._experts[layer[1]] = ExpertSlots(inner, down, op.gate_up_bias is not None)

    def _of_experts(self, param: Param, names: tuple[str, ...]) -> list[list[Slot]]:
        """The slots of each expert. `names`: those of an expert's modules."""
        slots = list(_slots_of(param, is_embedding=False, num_cuts=len(names)))
        each = len(slots) // param.shape[0]
        for index, slot in enumerate(slots):
            module = _module_of(slot.tensor)
            if slot.expert is not None:
                module = f"{module.rpartition('.')[0]}.{slot.expert}.{names[index % each]}"
            self._add(module, slot)
        return [slots[first : first + each] for first in range(0, len(slots), each)]


class _ByName(dict[str, _T]):
    """Values by dotted names; `find` also finds them by the end of the name."""

    def find(self, name: str) -> _T | None:
        """The value of the name, or of the only name that ends as this one. A name of one word has
        no beginning that could differ."""
        if name in self:
            return self[name]
        alike = [end for end in _ends(name) if end in self] + self._longer.get(name, [])
        return self[alike[0]] if len(alike) == 1 else None

    @cached_property
    def _longer(self) -> dict[str, list[str]]:
        """The names that have more before an end."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self:
            for end in _ends(name):
                found[end].append(name)
        return found


def adapter_width(program: Program, max_rank: int) -> int:
    """The most numbers of a row between the two matrices of one slot, those of each part rounded
    up to whole vectors."""
    widths: dict[tuple[str, int], int] = defaultdict(int)
    for slot in AdapterSlots(program).all():
        if not slot.is_embedding:
            expert = slot.first_row // slot.param.shape[-2]
            widths[slot.param.name, expert] += round_up(max_rank, _LANES)
    return max(widths.values(), default=0)


def adapter_bytes(program: Program, max_rank: int, dtype: Dtype) -> int:
    """Bytes of an adapter of this rank for all modules, as backends keep it at most: with the ends
    of lines padded, and lines of A in groups of 16."""
    item = 4 if dtype == "float32" else 2
    total = 0
    for slot in AdapterSlots(program).all():
        rows, depth = slot.tensor.slot_shape[-2:]
        lines = round_up(max_rank, _LANES)
        numbers = lines * (round_up(depth, 2 * _LANES) + 2 * _LANES)
        numbers += max_rank * (round_up(rows, _LANES) + 2 * _LANES)
        total += item * numbers + 4 * (lines + 3 * rows)
    return total


def _slots_of(param: Param, *, is_embedding: bool, num_cuts: int = 1) -> Iterator[Slot]:
    """A slot for each tensor; of a tensor with all experts, `num_cuts` for each expert."""
    first = 0
    for tensor in param.parts:
        if len(tensor.shape) < 3:
            yield Slot(param, tensor, first, is_embedding)
            first += tensor.slot_shape[0]
            continue
        cuts = [tensor] if num_cuts == 1 else _halves(tensor)
        for expert in range(tensor.shape[0]):
            for cut in cuts:
                yield Slot(param, cut, first, is_embedding, expert)
                first += cut.slot_shape[-2]


def _halves(tensor: Tensor) -> list[Tensor]:
    """The gate's rows, and those of up."""
    runs = tensor.slot_runs
    if len(runs) == 1:
        [(first, count)] = runs
        runs = ((first, count // 2), (first + count // 2, count // 2))
    middle = len(runs) // 2
    return [tensor.with_slot_runs(runs[:middle]), tensor.with_slot_runs(runs[middle:])]


def _module_of(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight")


def _ends(name: str) -> Iterator[str]:
    """The name without its first word, without its first two, and so on, down to two words."""
    words = name.split(".")
    return (".".join(words[first:]) for first in range(1, len(words) - 1))
