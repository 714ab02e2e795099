"""What each format of weights and cache costs, against float32: `python -m tools.quality`.

For every position of some texts the distribution of the next token is compared with float32's, on
the native backend: Kullback-Leibler divergence, and how often both have the same first choice.
The texts are held-out items of the bundled model, prompt and answer; and random tokens for random
models in whose residual stream a few channels are many times larger than the others, which is
what makes real models hard to round. The result is a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tools.demo_model.example import END, END_OF_TEXT, render_answer, render_prompt
from tools.demo_model.score import held_out_by_skill

from quire.backends.base import Backend, CompileOptions, Dtype, KVCacheSpec, StepBatch
from quire.backends.cpu import CpuBackend
from quire.models import build_program, name_map
from quire.program import Program, keep_all
from quire.program.passes import run_passes
from quire.program.values import WeightFormat
from quire.weights import HostTensor, WeightStore, bind, open_checkpoint

Floats = NDArray[np.float32]
Text = Sequence[int]


class Choice(NamedTuple):
    """The number formats of a run."""

    dtype: Dtype
    weights: WeightFormat
    kv_cache: str


FORMATS: dict[str, Choice] = {
    "bfloat16": Choice("bfloat16", "dense", "bfloat16"),
    "bfloat16, KV int8": Choice("bfloat16", "dense", "int8"),
    "int8": Choice("bfloat16", "int8", "bfloat16"),
    "int8, KV int8": Choice("bfloat16", "int8", "int8"),
    "int8_w8a8": Choice("bfloat16", "int8_w8a8", "bfloat16"),
    "int8_w8a8, KV int8": Choice("bfloat16", "int8_w8a8", "int8"),
    "int4": Choice("bfloat16", "int4", "bfloat16"),
    "int4_w4a8": Choice("bfloat16", "int4_w4a8", "bfloat16"),
    "int4_w4a8, KV int8": Choice("bfloat16", "int4_w4a8", "int8"),
}
BLOCK_SIZE = 16
MAX_TOKENS = 1024
DEMO = Path(__file__).parents[1] / "src" / "quire" / "demo_model"
RANDOM_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "float32",
}  # fmt: skip
OUTLIER_CHANNELS = 6
# Left out of the bundled model's texts: the published table was measured without them.
_NOT_COMPARED = (
    "parallel calls", "parallel replies", "two-step tasks", "words, new phrasings",
    "numbers, completion",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model and the texts it is judged on; positions before `first` of a text do not count."""

    name: str
    program: Program
    store: WeightStore
    texts: Sequence[tuple[Text, int]]


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


def demo_subject(per_skill: int) -> Subject:
    """The bundled model on held-out items; what is compared are the tokens of the answers."""
    config = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    texts = []
    for skill, items in held_out_by_skill(per_skill, seed=1).items():
        for item in items if skill not in _NOT_COMPARED else ():
            prompt, answer = (
                tokenizer.encode(text, add_special_tokens=False).ids
                for text in (
                    render_prompt(item),
                    render_answer(item) + (END_OF_TEXT if item.completion else END),
                )
            )
            texts.append(((*prompt, *answer)[:-1], len(prompt) - 1))
    program = build_program(config)
    store = bind(program, open_checkpoint(DEMO), name_map(config).canonical)
    return Subject("demo model, held-out answers", program, store, texts)


def random_subject(factor: float, num_texts: int) -> Subject:
    """A random model with outliers of this size; 1 for none."""
    program = build_program(RANDOM_CONFIG)
    random = np.random.default_rng(7)
    texts = [(random.integers(0, 4096, 128).tolist(), 0) for _ in range(num_texts)]
    name = (
        f"random model, {OUTLIER_CHANNELS} channels x {factor:g}"
        if factor != 1
        else ("random model, no outliers")
    )
    return Subject(name, program, OutlierStore(program, factor), texts)


def logits_of(backend: Backend, subject: Subject, choice: Choice) -> Iterator[Floats]:
    """The logits of one text after the other, [positions that count, V]."""
    program = run_passes(subject.program, choice.weights)
    options = CompileOptions(choice.dtype, MAX_TOKENS, max_num_seqs=1, max_model_len=MAX_TOKENS)
    blocks = MAX_TOKENS // BLOCK_SIZE
    kv = KVCacheSpec(blocks, BLOCK_SIZE, choice.kv_cache, keep_all(program))
    model = backend.compile(program, subject.store, kv, options)
    try:
        for tokens, first in subject.texts:
            count = len(tokens)
            batch = StepBatch(
                token_ids=np.array(tokens, np.int32),
                positions=np.arange(count, dtype=np.int32),
                seq_starts=np.array([0, count], np.int32),
                context_lens=np.array([count], np.int32),
                block_tables=np.arange(blocks, dtype=np.int32)[None, None],
                logits_rows=np.arange(first, count, dtype=np.int32),
                sampling=None,
                want_logits=True,
            )
            logits = model.step(batch).logits
            if logits is None:
                raise RuntimeError("no logits came")
            yield logits
    finally:
        model.close()


def log_probabilities(logits: Floats) -> NDArray[np.float64]:
    """Row by row."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


def divergences(truth: Floats, logits: Floats) -> NDArray[np.float64]:
    """KL(truth || logits) of every position, in nats."""
    p, q = log_probabilities(truth), log_probabilities(logits)
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return result


def rows_of(backend: Backend, subject: Subject) -> Iterator[str]:
    """Lines of the table, one a format."""
    truths = list(logits_of(backend, subject, Choice("float32", "dense", "float32")))
    positions = sum(len(truth) for truth in truths)
    for name, choice in FORMATS.items():
        kl, agreed = [], 0
        for truth, logits in zip(truths, logits_of(backend, subject, choice), strict=True):
            kl.append(divergences(truth, logits))
            agreed += int((truth.argmax(axis=1) == logits.argmax(axis=1)).sum())
        every = np.concatenate(kl)
        yield (
            f"| {subject.name} | {name} | {every.mean():.2e} | {np.quantile(every, 0.99):.2e} "
            f"| {100 * agreed / positions:.2f} % | {positions:,} |"
        )


def total_bytes(program: Program, backend: Backend) -> str:
    """Megabytes of the weights in each format."""
    sizes = []
    for name, choice in FORMATS.items():
        if choice.kv_cache != choice.dtype:
            continue
        held = backend.weight_bytes(run_passes(program, choice.weights), choice.dtype)
        sizes.append(f"{name} {held / 1e6:.2f} MB")
    count = sum(prod(param.shape) for param in program.params())
    return f"{program.name}, {count / 1e6:.2f} M parameters: " + ", ".join(sizes)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-skill", type=int, default=20, help="held-out items of a skill")
    parser.add_argument("--texts", type=int, default=8, help="texts for each random model")
    parser.add_argument("--isa", help="tier of the native library; the best by default")
    choice = parser.parse_args()
    backend = CpuBackend(isa=choice.isa)
    print(backend.capabilities.description, flush=True)
    print("| model | format | KL mean | KL 99 % | same first choice | positions |")
    print("|---|---|---|---|---|---|", flush=True)
    subjects = [demo_subject(choice.per_skill)]
    subjects += [random_subject(factor, choice.texts) for factor in (1, 10, 30, 100)]
    for subject in subjects:
        for row in rows_of(backend, subject):
            print(row, flush=True)
    for subject in subjects[:2]:
        print(total_bytes(subject.program, backend))


if __name__ == "__main__":
    main()
