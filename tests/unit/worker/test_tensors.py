"""Logits processors that are written with torch get tensors, and all others arrays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import logits_processors
import numpy as np
import pytest

from quire.params import SamplingParams
from quire.worker.processors import guarded
from quire.worker.processors.guarded import GuardedProcessor, array_of, takes_tensors, tensor_of
from quire.worker.processors.members import Member, Members

torch = pytest.importorskip("torch")

SOURCE = """
import torch
from quire.logits_processors import AdapterLogitsProcessor, LogitsProcessor

class KeepsTheBest(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        assert device.type == "cpu"

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        best = logits.argmax(dim=-1, keepdim=True)
        kept = logits.gather(1, best).clone()
        return logits.fill_(float("-inf")).scatter_(1, best, kept)

class Doubles(KeepsTheBest):
    def apply(self, logits):
        return (logits * 2).requires_grad_()

class Adapted(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        return lambda output, logits: logits.masked_fill(logits < 1, float("-inf"))

class Halves(KeepsTheBest):
    def apply(self, logits):
        return logits.to(torch.float64)
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    import sys

    made = ModuleType("written_with_torch")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(SOURCE, made.__dict__)
    return made


def applied(cls: Any) -> tuple[list[list[float]], dict[int, str]]:
    """The processor after two rows of logits: 0, 1, 2 and 5, 4, 3."""
    processor, members = GuardedProcessor(cls, None), Members()  # type: ignore[arg-type]
    members.batch = [Member(name, SamplingParams(), [1], []) for name in "ab"]
    processor.update(members.all_added(), members)
    logits, failures = processor.apply(np.array([[0, 1, 2], [5, 4, 3]], np.float32), members)
    assert type(logits) is np.ndarray
    assert logits.dtype == np.float32
    return logits.tolist(), failures


def test_only_modules_with_names_of_torch_take_tensors(module: Any) -> None:
    assert takes_tensors(module.KeepsTheBest)
    assert takes_tensors(type("Below", (module.Doubles,), {"__module__": "elsewhere"}))
    assert not takes_tensors(logits_processors.TargetToken)
    assert not takes_tensors(logits_processors.TargetOfRequest)
    assert not hasattr(guarded, "torch")


@pytest.mark.parametrize("name", ["torch.nn.functional", "torch.Tensor"])
def test_a_part_of_torch_is_torch(module: Any, name: str) -> None:
    del module.torch
    assert not takes_tensors(module.KeepsTheBest)
    module.part = eval(name)
    assert takes_tensors(module.KeepsTheBest)


def test_a_tensor_shares_the_arrays_memory() -> None:
    array = np.zeros((2, 2), np.float32)
    tensor = tensor_of(array)
    assert isinstance(tensor, torch.Tensor)
    tensor[1, 1] = 3
    assert array[1, 1] == 3
    assert array_of(tensor) is not tensor
    assert array_of(array) is array


def test_processors_of_tensors_change_logits(module: Any) -> None:
    none = float("-inf")
    assert applied(module.KeepsTheBest) == ([[none, none, 2], [5, none, none]], {})
    assert applied(module.Doubles) == ([[0, 2, 4], [10, 8, 6]], {})
    assert applied(module.Adapted) == ([[none, 1, 2], [5, 4, 3]], {})


def test_a_tensor_of_another_type_is_an_error(module: Any) -> None:
    logits, failures = applied(module.Halves)
    assert logits == [[0, 1, 2], [5, 4, 3]]
    assert "float64" in failures[0]
    assert "float64" in failures[1]
