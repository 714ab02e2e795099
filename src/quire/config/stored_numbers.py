"""`StoredNumbers`: the types in which a checkpoint's files hold the numbers of each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """Types in which a checkpoint's files hold numbers: F32, F16 or BF16 for each tensor, by the
    program's names. A float32 model may keep numbers of 16 bits as they are."""

    usual: str
    others: Mapping[str, str]
    """The tensors whose type is not the usual one."""

    @classmethod
    def of_tensors(cls, types: Mapping[str, str]) -> StoredNumbers:
        """From the types of all tensors."""
        usual = max(Counter(types.values()).items(), key=lambda one: one[1], default=("F32", 0))[0]
        return cls(usual, {name: one for name, one in types.items() if one != usual})

    def type_of(self, tensor: str) -> str:
        """The type of a tensor."""
        return self.others.get(tensor, self.usual)
