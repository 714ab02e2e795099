"""The choice of kernels that are compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_model import OPTIONS, small_program
from tools.gpu_check.needed import needed_kernels

from quire.backends.base import KVCacheSpec
from quire.backends.cuda import compiled, cubin
from quire.backends.cuda.build import chosen_kernels
from quire.backends.cuda.kernel import TYPE_NAMES
from quire.backends.cuda.lowering.table import all_kernels
from quire.config.records import Dtype
from quire.program import keep_all


@pytest.mark.parametrize("dtype", TYPE_NAMES)
def test_the_kernels_of_a_dtype_are_enough_for_its_models(dtype: Dtype) -> None:
    chosen = set(chosen_kernels([dtype]))
    assert chosen < set(all_kernels())
    program = small_program()
    kv = KVCacheSpec(8, 16, dtype, keep_all(program))
    assert needed_kernels(program, kv, replace(OPTIONS, dtype=dtype)) <= chosen


def test_all_dtypes_have_all_kernels() -> None:
    assert chosen_kernels(list(TYPE_NAMES)) == list(all_kernels())


def test_an_installation_says_what_it_has_kernels_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled, "archive_of", lambda one: cubin.archive_of(one, tmp_path))
    assert compiled.shipped_architectures() == []
    cubin.archive_of(90, tmp_path).touch()
    assert compiled.shipped_architectures() == [90]
