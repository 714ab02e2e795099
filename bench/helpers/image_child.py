"""One engine in a process of its own, driven by `images.py` over lines of JSON.

    python image_child.py ENGINE CHECKPOINT OPTIONS_JSON

Runs in the engine's own virtual environment, so it imports nothing but the standard library, that
engine and `peer_child.py`. Says `ready`, then answers each `{"picture": FILE, "question": text,
"output_len": n}` with the seconds that took, from the file of the picture to the last token. The
prompt is the picture and then the question. Engines keep what they can of earlier pictures.
Quire also answers `{"encode": FILE}` with the seconds and the operations of its encoder alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peer_child

WARM_UP = "How large is it?"


class ImageEngine(ABC):
    """An engine that is loaded and waits. Anything it prints goes to stderr."""

    version = "unknown"

    @abstractmethod
    def ask(self, picture: str, question: str, output_len: int) -> int:
        """Answers a question about a picture; returns how many tokens were generated."""


class VllmLike(ImageEngine):
    """vLLM, and Quire, whose names are the same."""

    def __init__(self, package: str, checkpoint: str, options: dict[str, Any]) -> None:
        self._package, self._place = package, options.pop("place")
        module = __import__(package)
        self.version = module.__version__
        self._make_params = module.SamplingParams
        own = {"speculation": False} if package == "quire" else {}
        self._llm = module.LLM(model=checkpoint, **{**own, **options})
        self._checkpoint, self._options = checkpoint, options
        self._encoder: Any = None

    def ask(self, picture: str, question: str, output_len: int) -> int:
        params = self._make_params(
            temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False
        )
        prompt = {
            "prompt": self._place + question,
            "multi_modal_data": {"image": self._opened(picture)},
        }
        [reply] = self._llm.generate([prompt], params, use_tqdm=False)
        return len(reply.outputs[0].token_ids)

    def _opened(self, picture: str) -> Any:
        if self._package == "quire":
            return Path(picture).read_bytes()
        from PIL import Image

        return Image.open(picture)

    def encode(self, picture: str) -> tuple[float, int]:
        """Seconds and floating-point operations of Quire's encoder for the tiles of a picture."""
        from image_encoder import Encoder

        if self._encoder is None:
            self._encoder = Encoder(self._checkpoint, self._options)
        measured: tuple[float, int] = self._encoder.measure(Path(picture).read_bytes())
        return measured


class OpenVino(ImageEngine):
    """OpenVINO GenAI's pipeline with its prefix cache; CHECKPOINT is an exported directory."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        import numpy
        import openvino
        import openvino_genai

        options.pop("place")
        self._np, self._ov, self._genai = numpy, openvino, openvino_genai
        self.version = openvino_genai.__version__
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.pop("cache_size", 2)
        scheduler.enable_prefix_caching = True
        self._pipe = openvino_genai.VLMPipeline(
            checkpoint, "CPU", scheduler_config=scheduler, **options
        )

    def ask(self, picture: str, question: str, output_len: int) -> int:
        from PIL import Image

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_len
        config.ignore_eos, config.do_sample = True, False
        config.apply_chat_template = False
        pixels = self._np.array(Image.open(picture).convert("RGB"))[None]
        result = self._pipe.generate(
            question, images=[self._ov.Tensor(pixels)], generation_config=config
        )
        return int(result.perf_metrics.get_num_generated_tokens())


class LlamaCpp(ImageEngine):
    """llama.cpp with libmtmd; CHECKPOINT is a GGUF file with `mmproj-` and its name next to it.

    As its server does, it prepares every picture, but computes only the chunks of a prompt after
    those that it shares with the last one.
    """

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        from llama_cpp import mtmd_cpp

        length = options.pop("max_model_len", 4096)
        self._place: str = options.pop("place")
        self._engine = peer_child.LlamaCpp(checkpoint, options)
        self._engine._fit(1, length)
        self._lib, self._mtmd = self._engine._lib, mtmd_cpp
        self.version = self._engine.version
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = params.print_timings = False
        params.n_threads = self._engine._threads
        file = Path(checkpoint)
        projector = str(file.with_name(f"mmproj-{file.name}")).encode()
        self._context = mtmd_cpp.mtmd_init_from_file(projector, self._engine._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot load the image encoder")
        self._cached: list[tuple[Any, int]] = []
        """The last prompt's chunks in order: what each has, and its positions."""

    def ask(self, picture: str, question: str, output_len: int) -> int:
        mtmd = self._mtmd
        bitmap = mtmd.mtmd_helper_bitmap_init_from_file(self._context, picture.encode(), False)
        if not bitmap:
            raise RuntimeError(f"llama.cpp cannot read {picture}")
        mtmd.mtmd_bitmap_set_id(bitmap, picture.encode())
        chunks = mtmd.mtmd_input_chunks_init()
        text = mtmd.mtmd_default_marker() + question.encode()
        given = mtmd.mtmd_input_text(text, len(text), False, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(given), bitmaps, 1):
            raise RuntimeError("llama.cpp cannot tokenize the prompt")
        position, token = self._compute(chunks), self._chosen()
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        for step in range(output_len - 1):
            [token] = self._engine._decode([(token, position + step, 0, True)])
        memory = self._lib.llama_get_memory(self._engine._context)
        self._lib.llama_memory_seq_rm(memory, 0, position, -1)
        return output_len

    def _compute(self, chunks: Any) -> int:
        """The chunks that are not cached. Returns the position after all."""
        mtmd, context = self._mtmd, self._engine._context
        every = [
            mtmd.mtmd_input_chunks_get(chunks, index)
            for index in range(mtmd.mtmd_input_chunks_size(chunks))
        ]
        described = [self._described(chunk) for chunk in every]
        shared = 0
        while (
            shared < len(every) - 1
            and described[shared : shared + 1] == self._cached[shared : shared + 1]
        ):
            shared += 1
        position = sum(count for _, count in described[:shared])
        self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(context), 0, position, -1)
        self._cached = described
        after = self._lib.llama_pos(position)
        for index in range(shared, len(every)):
            code = mtmd.mtmd_helper_eval_chunk_single(
                self._context, context, every[index], after, 0, 2048, index == len(every) - 1,
                ctypes.byref(after),
            )  # fmt: skip
            if code:
                raise RuntimeError(f"llama.cpp failed with {code} at chunk {index}")
        return int(after.value)

    def _described(self, chunk: Any) -> tuple[Any, int]:
        mtmd, count = self._mtmd, ctypes.c_size_t()
        positions = mtmd.mtmd_input_chunk_get_n_pos(chunk)
        tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        what = [tokens[i] for i in range(count.value)] if tokens else None
        return (what or mtmd.mtmd_input_chunk_get_id(chunk), positions)

    def _chosen(self) -> int:
        logits = self._lib.llama_get_logits_ith(self._engine._context, -1)
        values = self._engine._np.ctypeslib.as_array(logits, shape=(self._engine._vocab,))
        return int(values.argmax())


def load(engine: str, checkpoint: str, options: dict[str, Any]) -> ImageEngine:
    """The engine of that name."""
    makers: dict[str, Callable[[], ImageEngine]] = {
        "quire": lambda: VllmLike("quire", checkpoint, options),
        "vllm": lambda: VllmLike("vllm", checkpoint, options),
        "openvino": lambda: OpenVino(checkpoint, options),
        "llamacpp": lambda: LlamaCpp(checkpoint, options),
    }
    return peer_child.chosen(engine, makers)


def main() -> None:
    """Serves requests until stdin ends. The first picture is an option, to warm up."""
    peer_child.die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    options = json.loads(sys.argv[3])
    first = options.pop("first")
    engine = load(sys.argv[1], sys.argv[2], options)
    engine.ask(first, WARM_UP, 2)
    answers.write(json.dumps({"ready": time.time(), "version": engine.version}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "encode" in request:
            assert isinstance(engine, VllmLike)
            seconds, operations = engine.encode(request["encode"])
            answers.write(json.dumps({"seconds": seconds, "operations": operations}) + "\n")
            continue
        begin = time.perf_counter()
        tokens = engine.ask(request["picture"], request["question"], request["output_len"])
        seconds = time.perf_counter() - begin
        answers.write(json.dumps({"seconds": seconds, "output_tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
