"""The form of each format of `Param.format`."""

from __future__ import annotations

from collections.abc import Mapping

from quire.backends.cuda.packing.coded import GroupedForm, RoundedForm, eight_bits, four_bits
from quire.backends.cuda.packing.form import DenseForm, Form, VectorForm
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.program import Param
from quire.program.values import GroupedFormat

_VECTOR, _GROUPED = VectorForm(), GroupedForm()
FORMS: Mapping[object, Form] = {
    "dense": DenseForm(),
    "int8": RoundedForm(eight_bits),
    "int8_w8a8": RoundedForm(eight_bits),
    "int4": RoundedForm(four_bits),
    "int4_w4a8": RoundedForm(four_bits),
}
"""The form of a matrix or a table, by the name of its format."""


def form_of(param: Param) -> Form:
    """Raises BackendError for a format that this backend does not hold."""
    if len(param.shape) == 1:
        return _VECTOR
    if isinstance(param.format, GroupedFormat):
        return _GROUPED
    form = FORMS.get(param.format)
    if form is None:
        raise BackendError(f"the CUDA backend has no weight format {param.format}")
    return form


def packed_bytes(param: Param, dtype: Dtype) -> int:
    """Bytes of a weight on the device."""
    return form_of(param).num_bytes(param, dtype)
