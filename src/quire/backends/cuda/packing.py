"""Weights in the form in which the device holds them.

`FORMS` has one entry for each format of `Param.format`. Vectors are float32 in any model; a dense
matrix or table has the model's dtype and the shape of its slot. A format that needs more than one
array of numbers puts them one after the other into its bytes, and says where they are in its form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quire.backends.kv_formats import narrow_to_bfloat16
from quire.backends.reference.weights import load_param
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.program import Param
from quire.weights import WeightStore

ITEM_BYTES: Mapping[Dtype, int] = {"float32": 4, "bfloat16": 2}


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
        return ITEM_BYTES[dtype] * param.num_elements

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
        """As they are."""
        del dtype
        return load_param(param, store, bad_names)


_VECTOR = VectorForm()
FORMS: Mapping[object, Form] = {"dense": DenseForm()}
"""The form of a matrix or a table, by its format."""


def form_of(param: Param) -> Form:
    """Raises BackendError for a format that this backend does not hold."""
    if len(param.shape) == 1:
        return _VECTOR
    form = FORMS.get(param.format)
    if form is None:
        raise BackendError(f"the CUDA backend has no weight format {param.format}")
    return form


def packed_bytes(param: Param, dtype: Dtype) -> int:
    """Bytes of a weight on the device."""
    return form_of(param).num_bytes(param, dtype)
