"""`bind`: a program gets every tensor it asks for, or a message that names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from weight_files import numbers, write_safetensors

from quire.errors import CheckpointError
from quire.program import Embed, Logits, Param, Program, Tensor, Value
from quire.weights import bind, open_checkpoint
from quire.weights.dummy import DummyStore


def program() -> Program:
    hidden, logits = Value("x", 4), Value("logits", 6)
    table = Param("table", (6, 4), (Tensor("model.embed", (6, 4)),))
    head = Param("head", (6, 4), (Tensor("model.top", (2, 4)), Tensor("model.bottom", (4, 4))))
    return Program("tiny", (Embed(hidden, table), Logits(hidden, logits, head)))


def canonical(name: str) -> str | None:
    if name.endswith("inv_freq"):
        return None
    return name if name.startswith("model.") else f"model.{name}"


TENSORS = {"embed": numbers(6, 4), "model.top": numbers(2, 4), "model.bottom": numbers(4, 4)}


def test_tensors_come_under_the_programs_names(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "model.safetensors", {**TENSORS, "model.rotary.inv_freq": numbers(3)}
    )
    bound = bind(program(), open_checkpoint(tmp_path), canonical)
    assert set(bound.names()) == {"model.embed", "model.top", "model.bottom"}
    tensor = bound.get("model.embed")
    assert tensor.name == "model.embed"
    assert (tensor.to_float32() == TENSORS["embed"]).all()
    bound.prefetch()
    bound.release("model.embed")
    bound.release("embed")
    with pytest.raises(CheckpointError, match="no tensor 'embed'"):
        bound.get("embed")
    bound.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed": None}, r"missing tensor 'model.embed' of shape \[6, 4\]"),
        ({"model.extra": numbers(1)}, "unexpected tensor 'model.extra': tiny has no place"),
        (
            {"embed": numbers(4, 6)},
            r"model\.safetensors: tensor 'embed' has shape \[4, 6\].*requires \[6, 4\]",
        ),
        ({"model.embed": numbers(6, 4)}, "tensor 'model.embed' is stored twice"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    changed = {**TENSORS, **changes}
    tensors = {name: value for name, value in changed.items() if value is not None}
    write_safetensors(tmp_path / "model.safetensors", tensors)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=message):
        bind(program(), open_checkpoint(tmp_path), canonical)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    more = {f"model.extra{index}": numbers(1) for index in range(20)}
    write_safetensors(tmp_path / "model.safetensors", {**TENSORS, **more})
    with pytest.raises(CheckpointError, match=r"extra7.*; and 12 more$") as caught:
        bind(program(), open_checkpoint(tmp_path), canonical)
    assert "extra9" not in str(caught.value)


def test_dummy_weights_are_random_and_the_same_each_time() -> None:
    first, again = DummyStore(program()), DummyStore(program())
    bound = bind(program(), first, lambda name: name)
    assert set(bound.names()) == {"model.embed", "model.top", "model.bottom"}
    for name in first.names():
        values = first.get(name).to_float32()
        assert (values == again.get(name).to_float32()).all()
        assert 0.005 < values.std() < 0.05
    assert (
        first.get("model.bottom").to_float32() != first.get("model.embed").to_float32()[:4]
    ).any()
    with pytest.raises(CheckpointError, match="no tensor"):
        first.get("other")
    first.close()
