"""Which of vLLM's test files could pass, and why others cannot: by what they import, and by where
they lie."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from quire.vllm.missing import explain, missing_names
from quire.vllm.surface import SURFACE, surface_names

FEATURES: dict[str, tuple[str, ...]] = {
    "pooling models; the bundled model generates": (
        "pooling", "generation_ppl_test", "test_pooling", "generative_scoring",
        "test_multi_vector", "pooling_mteb_test",
    ),
    "images, audio, video; the bundled model has text alone": (
        "multimodal", "speech_to_text", "_vlm", "test_chat_completion_with_prompt_embeds",
        "with_prompt_embeds", "test_short_mm", "audio", "terratorch",
    ),
    "speculative decoding": ("spec_decode", "eagle", "kv_sharing_fast_prefill"),
    "several processes and machines": (
        "distributed", "_dp", "multi_api_servers", "ray", "executor", "sharded", "pp_", "test_mp_",
    ),
    "GPUs, their kernels and compilers": (
        "kernels", "compile", "cuda", "rocm", "jit_monitor", "cudagraph", "attention",
        "test_gpu_utilization", "zentorch", "b12x", "mono_numerics", "kda", "glm5next",
        "v1/determinism", "v1/worker/",
    ),
    "other engines' K/V transfer": ("kv_connector", "kv_offload", "ec_connector", "kv_transfer"),
    "models and weights that are not here": (
        "tests/models/", "tests/evals", "model_executor", "quantization", "plugins_tests/test_",
        "plugins_tests/gguf", "plugins_tests/bitsandbytes", "offload",
        "tool_use/mistral", "tool_use/test_chat_completions", "tool_use/test_parallel",
        "tool_use/test_tool_calls", "test_no_bad_words", "linear_attn", "replayssm", "correctness",
        "test_accuracy", "test_oracle",
    ),
    "vLLM's repository and its packages": (
        "tools/", "standalone_tests", "test_cmake", "embedded_commit", "test_version",
        "test_rust_bench", "test_remote_vllm_server", "offline_mode",
    ),
    "other routes": ("cohere", "structured_decisions", "grpc", "derender", "return_routed_experts"),
}  # fmt: skip
"""Subject of the tests of a file, by a part of its path."""
_PACKAGES = {
    module.rsplit(".", depth)[0] for module in SURFACE for depth in range(module.count(".") + 1)
}


def test_files(source: Path) -> dict[str, str]:
    """Every test file of vLLM's source, by its path below `tests`, with the reason why it is not
    run; empty for those that are."""
    tests = source / "tests"
    return {
        (name := path.relative_to(tests).as_posix()): _feature(name) or _missing(path)
        for path in sorted(tests.rglob("test_*.py"))
    }


def _feature(name: str) -> str:
    return next(
        (
            what
            for what, parts in FEATURES.items()
            if any(part in f"tests/{name}" for part in parts)
        ),
        "",
    )


def _missing(path: Path) -> str:
    """Why nothing that the file imports is there; empty if something is."""
    names = list(_imports(path))
    if not names or any(map(_is_offered, names)):
        return ""
    return explain(names[0]).partition(": ")[2].partition("; did you mean")[0]


def _imports(path: Path) -> Iterator[str]:
    """The modules of vLLM that a file imports at its top, and the names from them."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and _is_vllm(node.module or ""):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _is_vllm(one.name))


def _is_vllm(module: str) -> bool:
    return module.partition(".")[0] == "vllm"


def _is_offered(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return (
        name in _PACKAGES
        or last in surface_names(module)
        or last in missing_names(module)
        or "*" in SURFACE.get(module, {}).values()
    )
