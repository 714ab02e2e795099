"""Writes checkpoint files by hand, also wrong ones; shared by the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from quire.weights import WeightStore


def header_bytes(header: Any) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = {"float32": "F32", "float16": "F16"}[array.dtype.name]
        raw = array.tobytes()
        header[name] = entry(dtype, list(array.shape), len(data), len(data) + len(raw))
        data += raw
    path.write_bytes(header_bytes(header) + data)
    return path


def read_all(store: WeightStore) -> dict[str, np.ndarray]:
    return {name: store.get(name).to_float32() for name in store.names()}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
