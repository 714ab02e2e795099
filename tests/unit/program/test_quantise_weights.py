"""Which weights the pass gives another format, and what it leaves alone."""

from __future__ import annotations

import pytest
from small_model import small_program

from quire.config.quantization import Quantization
from quire.program import ActivationBits, Attention, Embed, Logits, Program, WeightFormat
from quire.program.passes import quantise_weights, take_rows_early
from quire.program.printer import format_program


def formats(program: Program) -> dict[str, str]:
    return {param.name: param.format for param in program.params()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_matrices_and_nothing_else(tied: bool) -> None:
    program = quantise_weights(small_program(tied=tied), "int8_w8a8")
    program.check()
    found = formats(program)
    by_shape = {param.name: len(param.shape) for param in program.params()}
    stays = {name for name, found_format in found.items() if found_format == "dense"}
    tables = {"embed_positions"} if tied else {"embed_positions", "embed_tokens"}
    assert {name for name in stays if by_shape[name] == 2} == tables
    assert all(name in stays for name, rank in by_shape.items() if rank == 1)
    assert sum(found_format == "int8_w8a8" for found_format in found.values()) == 9


def test_a_tied_table_is_one_weight_still() -> None:
    program = quantise_weights(small_program(), "int8")
    [embed] = [op for op in program.ops if isinstance(op, Embed)]
    assert isinstance(program.logits, Logits)
    assert embed.table == program.logits.weight
    assert embed.table.format == "int8"


def test_it_goes_with_other_passes_and_can_be_undone() -> None:
    program = small_program()
    one = take_rows_early(quantise_weights(program, "int8"))
    assert one == quantise_weights(take_rows_early(program), "int8")
    assert quantise_weights(quantise_weights(program, "int8"), "dense") == program


@pytest.mark.parametrize(("weight_format", "bits"), [("int8", 16), ("int4_w4a8", 8)])
def test_attention_has_the_activations_of_the_format(
    weight_format: WeightFormat, bits: ActivationBits
) -> None:
    program = quantise_weights(small_program(), weight_format)
    found = {op.activation_bits for op in program.ops if isinstance(op, Attention)}
    assert found == {bits}


def test_the_format_is_printed() -> None:
    text = format_program(quantise_weights(small_program(), "int8"))
    assert "o.weight[8x8 int8]" in text
    assert "embed_positions[34x8]" in text


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("quantization", "body", "head"),
    [
        ("int4", "int4", "int8"),
        ("int4_w4a8", "int4_w4a8", "int8_w8a8"),
        ("int4_head4", "int4", "int4"),
        ("int4_w4a8_head4", "int4_w4a8", "int4_w4a8"),
        ("int8_w8a8", "int8_w8a8", "int8_w8a8"),
    ],
)
def test_the_head_has_a_format_of_its_own(
    tied: bool, quantization: Quantization, body: str, head: str
) -> None:
    program = quantise_weights(small_program(tied=tied), quantization)
    assert isinstance(program.logits, Logits)
    found = formats(program)
    assert found.pop(program.logits.weight.name) == head
    assert set(found.values()) == {body, "dense"}
    attention = {op.activation_bits for op in program.ops if isinstance(op, Attention)}
    assert attention == {8 if "a8" in quantization else 16}
