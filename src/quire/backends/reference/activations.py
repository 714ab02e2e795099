"""Activation functions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from quire.program import Activation

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x)); exp(-|x|) cannot overflow."""
    small = np.exp(-np.abs(x))
    result: Doubles = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return result


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _silu(x: Doubles) -> Doubles:
    return x * sigmoid(x)


def _gelu(x: Doubles) -> Doubles:
    """Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; exact form."""
    result: Doubles = 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    return result


def _gelu_tanh(x: Doubles) -> Doubles:
    """The same paper's approximation by tanh."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: Mapping[str, Callable[[Doubles], Doubles]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": lambda x: _silu(1.702 * x) / 1.702,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.square(np.maximum(x, 0.0)),
    "tanh": np.tanh,
    "identity": lambda x: x,
}


def activate(x: Floats, act: Activation) -> Floats:
    """In float64, rounded once."""
    return ACTIVATIONS[act](x.astype(np.float64)).astype(np.float32)


def glu(gate: Floats, up: Floats, act: Activation) -> Floats:
    """act(gate) * up; `swiglu_oai` has limits of its own."""
    if act != "swiglu_oai":
        return activate(gate, act) * up
    g = np.minimum(gate.astype(np.float64), 7.0)
    u = np.clip(up.astype(np.float64), -7.0, 7.0)
    return ((u + 1.0) * g * sigmoid(1.702 * g)).astype(np.float32)
