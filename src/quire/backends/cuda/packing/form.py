"""`Form`: how the weights of a format lie in the device's memory, and the forms of plain numbers.

Vectors are float32 in any model; a dense matrix or table has the model's dtype and the shape of its
slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.kernel import ITEM_BYTES, TYPE_NAMES
from quire.backends.kv_formats import narrow_to_bfloat16
from quire.backends.reference.weights import load_param
from quire.config.records import Dtype
from quire.program import Param
from quire.weights import WeightStore


class Form(ABC):
    """How the weights of a format lie in memory. Stateless."""

    @abstractmethod
    def num_bytes(self, param: Param, dtype: Dtype) -> int:
        """Bytes of a weight."""

    @abstractmethod
    def pack(
        self, param: Param, dtype: Dtype, store: WeightStore, bad_names: list[str]
    ) -> NDArray[np.generic]:
        """Reads a weight. Names of tensors that are not finite are appended to `bad_names`. Raises
        CheckpointError."""


class DenseForm(Form):
    """Numbers of the model's dtype, row after row."""

    def num_bytes(self, param: Param, dtype: Dtype) -> int:
        """One number for each element."""
        return ITEM_BYTES[TYPE_NAMES[dtype]] * param.num_elements

    def pack(
        self, param: Param, dtype: Dtype, store: WeightStore, bad_names: list[str]
    ) -> NDArray[np.generic]:
        """Rounded to nearest, ties to even."""
        values = load_param(param, store, bad_names)
        return narrow_to_bfloat16(values) if dtype == "bfloat16" else values


class VectorForm(Form):
    """Numbers of float32."""

    def num_bytes(self, param: Param, dtype: Dtype) -> int:
        """One number for each element."""
        del dtype
        return 4 * param.num_elements

    def pack(
        self, param: Param, dtype: Dtype, store: WeightStore, bad_names: list[str]
    ) -> NDArray[np.generic]:
        """The numbers are kept as they are."""
        del dtype
        return load_param(param, store, bad_names)
