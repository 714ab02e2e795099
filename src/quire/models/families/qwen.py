"""Qwen 2 and 3: Llama with sliding windows in some models. Qwen 2 has biases on q, k and v; Qwen 3
norms the heads of q and k."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import qwen_windows, read_spec
from quire.models.spec import DecoderSpec, QkNorm
from quire.models.text_part import DEEPSTACK


def _qwen2(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="none")
    attention = replace(spec.attention, windows=qwen_windows(reader), qkv_bias=True)
    return replace(spec, attention=attention)


def _qwen3(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="attention")
    attention = replace(spec.attention, windows=qwen_windows(reader), qk_norm=QkNorm())
    deepstack = reader.count(DEEPSTACK, spec.num_layers, default=0)
    return replace(spec, attention=attention, num_deepstack=deepstack)


QWEN2 = decoder_family(
    "qwen2",
    ("Qwen2ForCausalLM",),
    _qwen2,
    models="Qwen 2 and 2.5, QwQ, DeepSeek-R1-Distill-Qwen; the texts of Qwen2-VL and 2.5-VL",
)
QWEN3 = decoder_family(
    "qwen3",
    ("Qwen3ForCausalLM",),
    _qwen3,
    models="Qwen 3; the text of Qwen3-VL",
    defaults={"head_dim": 128},
)
