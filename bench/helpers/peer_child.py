"""One engine in a process of its own, driven by `peers.py` over lines of JSON.

    python peer_child.py ENGINE CHECKPOINT OPTIONS_JSON

Runs in the engine's own virtual environment, so it imports nothing but the standard library
and that engine. It loads, generates one token, says `ready`, then answers every
`{"prompts": [[ids], ...], "output_len": n}` with the seconds that took. Greedy, no
end-of-sequence, no prefix cache, no guesses: every engine does the same work. Quire guesses if the
options have `speculation` or `speculative_config`. With `"schemas": [...]`, one
JSON schema for each prompt, texts keep to these and may end earlier. With `"adapters": [...]`, a
folder or null for each prompt, the prompt uses that LoRA adapter.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Made = TypeVar("Made")


class Engine(ABC):
    """An engine that is loaded and waits. Anything it prints goes to stderr."""

    version = "unknown"

    @abstractmethod
    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        """Continues all prompts at once; returns how many tokens were generated."""

    def generate_json(self, prompts: list[list[int]], schemas: list[Any], output_len: int) -> int:
        """The same, with texts that keep to JSON schemas."""
        raise NotImplementedError

    def generate_adapted(
        self, prompts: list[list[int]], adapters: list[str | None], output_len: int
    ) -> int:
        """The same, with a LoRA adapter for each prompt that has one."""
        raise NotImplementedError


class VllmLike(Engine):
    """vLLM, and Quire, whose names are the same."""

    def __init__(self, package: str, checkpoint: str, options: dict[str, Any]) -> None:
        module = __import__(package)
        self.version = module.__version__
        settings = {"max_model_len": 4096, "enable_prefix_caching": False, **options}
        if package == "quire" and "speculative_config" not in options:
            # Random weights repeat themselves, and right guesses would count as speed.
            settings.setdefault("speculation", False)
        self._make_params = module.SamplingParams
        names = "vllm.sampling_params" if package == "vllm" else "quire.vllm.sampling_params"
        self._make_structure = importlib.import_module(names).StructuredOutputsParams
        names = "vllm.lora.request" if package == "vllm" else "quire.adapters"
        self._make_adapter = importlib.import_module(names).LoRARequest
        self._adapters: dict[str, Any] = {}
        self._llm = module.LLM(model=checkpoint, **settings)

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        params = self._make_params(temperature=0, max_tokens=output_len, ignore_eos=True)
        return self._count(prompts, params)

    def generate_json(self, prompts: list[list[int]], schemas: list[Any], output_len: int) -> int:
        params = [
            self._make_params(
                temperature=0,
                max_tokens=output_len,
                structured_outputs=self._make_structure(json=schema),
            )
            for schema in schemas
        ]
        return self._count(prompts, params)

    def generate_adapted(
        self, prompts: list[list[int]], adapters: list[str | None], output_len: int
    ) -> int:
        params = self._make_params(temperature=0, max_tokens=output_len, ignore_eos=True)
        return self._count(prompts, params, [path and self._adapter(path) for path in adapters])

    def _adapter(self, path: str) -> Any:
        if path not in self._adapters:
            number = len(self._adapters) + 1
            self._adapters[path] = self._make_adapter(f"adapter-{number}", number, path)
        return self._adapters[path]

    def _count(self, prompts: list[list[int]], params: Any, adapters: Any = None) -> int:
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False, lora_request=adapters)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


class OpenVino(Engine):
    """OpenVINO GenAI's continuous batching; CHECKPOINT is an exported directory."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._np, self._ov, self._genai = numpy, openvino, openvino_genai
        self.version = openvino_genai.__version__
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.pop("cache_size", 4)
        scheduler.max_num_batched_tokens = options.pop("max_num_batched_tokens", 2048)
        scheduler.max_num_seqs = 256
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipe = openvino_genai.ContinuousBatchingPipeline(
            checkpoint, scheduler, "CPU", options
        )

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_len
        config.ignore_eos, config.do_sample = True, False
        tensors = [self._ov.Tensor(self._np.array([ids], dtype=self._np.int64)) for ids in prompts]
        results = self._pipe.generate(tensors, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)


class LlamaCpp(Engine):
    """llama.cpp through its C API; CHECKPOINT is a GGUF file.

    One context for each number of sequences, all decoded in one batch a step, the greedy
    choice made with NumPy: about what llama.cpp's own server does. With the option
    `{"lookup": 10}` one sequence is speculated upon, by the prompt lookup of llama-cpp-python with
    so many draft tokens.
    """

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        import numpy

        self._lib, self.version = self._library()
        self._np = numpy
        self._threads = options.get("threads") or len(os.sched_getaffinity(0))
        self._lib.llama_backend_init()
        params = self._lib.llama_model_default_params()
        for name, value in options.get("model", {}).items():
            setattr(params, name, value)
        self._model = self._lib.llama_model_load_from_file(checkpoint.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {checkpoint}")
        self._vocab = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._size = (0, 0)
        self._draft: Any = None
        if num_drafts := options.get("lookup"):
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            self._draft = LlamaPromptLookupDecoding(num_pred_tokens=num_drafts)

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        self._fit(len(prompts), max(map(len, prompts)) + output_len)
        self._clear()
        last = []
        for sequence, ids in enumerate(prompts):
            rows = [(token, place, sequence, False) for place, token in enumerate(ids)]
            rows[-1] = (*rows[-1][:3], True)
            for at in range(0, len(rows), 2048):
                chosen = self._decode(rows[at : at + 2048])
            last.append(chosen[0])
        if self._draft is not None and len(prompts) == 1:
            return self._speculate([*prompts[0], *last], len(prompts[0]) + output_len)
        for step in range(1, output_len):
            last = self._decode([
                (token, len(prompts[sequence]) + step - 1, sequence, True)
                for sequence, token in enumerate(last)
            ])  # fmt: skip
        return len(prompts) * output_len

    def _speculate(self, ids: list[int], length: int) -> int:
        """Continues a sequence, of which all but the last token are decoded, to this length."""
        num_prompt = len(ids) - 1
        while len(ids) < length:
            drafts = self._draft(self._np.array(ids, self._np.intc)).tolist()
            rows = [ids[-1], *drafts[: length - len(ids) - 1]]
            first = len(ids) - 1
            chosen = self._decode([(one, first + i, 0, True) for i, one in enumerate(rows)])
            right = 0
            while right + 1 < len(rows) and rows[right + 1] == chosen[right]:
                right += 1
            ids += chosen[: right + 1]
            memory = self._lib.llama_get_memory(self._context)
            self._lib.llama_memory_seq_rm(memory, 0, len(ids) - 1, -1)
        return len(ids) - num_prompt

    def _fit(self, sequences: int, length: int) -> None:
        if self._size[0] == sequences and self._size[1] >= length:
            return
        if self._context is not None:
            self._lib.llama_free(self._context)
        params = self._lib.llama_context_default_params()
        params.n_ctx = sequences * ((length + 255) // 256 * 256)
        params.n_batch, params.n_ubatch = 2048, 512
        params.n_threads = params.n_threads_batch = self._threads
        params.n_seq_max = sequences
        self._set(params, sequences)
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._size = (sequences, length)

    def _library(self) -> tuple[Any, str]:
        import llama_cpp

        return llama_cpp, llama_cpp.__version__

    def _set(self, params: Any, sequences: int) -> None:
        del sequences
        params.kv_unified = True

    def _clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Runs the rows (token, position, sequence, wants logits); the greedy choices."""
        batch = self._lib.llama_batch_init(len(rows), 0, 1)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wants_logits
        batch.n_tokens = len(rows)
        code = self._lib.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode failed with {code}")
        chosen = []
        for i, row in enumerate(rows):
            if row[3]:
                logits = self._lib.llama_get_logits_ith(self._context, i)
                values = self._np.ctypeslib.as_array(logits, shape=(self._vocab,))
                chosen.append(int(values.argmax()))
        self._lib.llama_batch_free(batch)
        return chosen


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp (`ik-llama-cpp-python`). The option `{"model": {"repack_tensors": true,
    "use_mmap": false}}` has rows interleaved while it loads."""

    def _library(self) -> tuple[Any, str]:
        import importlib.metadata

        import ik_llama_cpp._ctypes_api

        return ik_llama_cpp._ctypes_api, importlib.metadata.version("ik-llama-cpp-python")

    def _set(self, params: Any, sequences: int) -> None:
        # With more sequences, flash attention of 0.1.5 ends the process (its issue 1910).
        params.flash_attn = sequences == 1

    def _clear(self) -> None:
        self._lib.llama_kv_cache_clear(self._context)


def chosen(engine: str, makers: Mapping[str, Callable[[], Made]]) -> Made:
    """The engine of that name. Raises SystemExit for another name."""
    if engine not in makers:
        raise SystemExit(f"unknown engine {engine!r}; known are {', '.join(makers)}")
    return makers[engine]()


def load(engine: str, checkpoint: str, options: dict[str, Any]) -> Engine:
    """The engine of that name."""
    makers: dict[str, Callable[[], Engine]] = {
        "quire": lambda: VllmLike("quire", checkpoint, options),
        "vllm": lambda: VllmLike("vllm", checkpoint, options),
        "openvino": lambda: OpenVino(checkpoint, options),
        "llamacpp": lambda: LlamaCpp(checkpoint, options),
        "ik": lambda: IkLlamaCpp(checkpoint, options),
    }
    return chosen(engine, makers)


def die_with_parent() -> None:
    """Linux kills this process when its parent ends, even while it is stopped."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def main() -> None:
    """Serves requests until stdin ends."""
    die_with_parent()
    # Engines talk on stdout; the answers go out on a descriptor that only this file knows.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    engine.generate([list(range(100, 116))], 1)
    answers.write(json.dumps({"ready": time.time(), "version": engine.version}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        prompts, output_len = request["prompts"], request["output_len"]
        if "schemas" in request:
            tokens = engine.generate_json(prompts, request["schemas"], output_len)
        elif request.get("adapters"):
            tokens = engine.generate_adapted(prompts, request["adapters"], output_len)
        else:
            tokens = engine.generate(prompts, output_len)
        seconds = time.perf_counter() - begin
        answers.write(json.dumps({"seconds": seconds, "output_tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
