"""`LLMControl`: what `LLM` can be asked as a whole; its `LLMEngine` does it. vLLM's names.

Base class of `LLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.config.records import ModelConfig
from quire.core.pausing import PauseMode
from quire.frontend.input_processor import InputProcessor
from quire.frontend.offline.llm_engine import LLMEngine
from quire.params import SamplingParams

if TYPE_CHECKING:
    from quire.frontend.hf.tokenizer import HFTokenizer
    from quire.metrics.reader import Metric


class LLMControl:
    """Sleep, caches, metrics and facts. Any thread may call."""

    llm_engine: LLMEngine

    def get_tokenizer(self) -> HFTokenizer:
        """The model's tokenizer, with the methods of one of `transformers`."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's recommended parameters; vLLM's defaults for the others."""
        return SamplingParams.from_optional(**self.default_sampling_params)

    def get_metrics(self) -> list[Metric]:
        """The metrics now, under vLLM's names. Raises ConfigError unless the LLM was made with
        `disable_log_stats=False`."""
        return self.llm_engine.get_metrics()

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many devices compute: one."""
        del include_dp
        return 1

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pauses, then gives memory back to the system until `wake_up`.

        `level` 0: none. 1: the KV cache's; the weights stay, since there is no other memory to
        move them to. 2: the weights' too, which are loaded from disk again. `mode`: requests in
        flight are aborted (`abort`), run to their end first (`wait`), or kept (`keep`). Calls of
        `generate` wait until another thread calls `wake_up`.
        """
        self.llm_engine.sleep(level, mode)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Takes memory again: of `weights`, `kv_cache`, or None for all. Once none is missing,
        requests go on. `scheduling` alone ends a `sleep(0)`. Whether the engine is awake."""
        return self.llm_engine.wake_up(tags)

    def release_kv_cache_memory(self) -> None:
        """Gives the KV cache's memory back, after `sleep(0)`."""
        self.llm_engine.release_kv_cache_memory()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets all cached prompts. False, with none forgotten, while requests are running,
        unless `reset_running_requests` lets them compute their tokens again. There is no
        connector to reset."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """There are no images here, so nothing is cached of them."""
        self.llm_engine.reset_mm_cache()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of the worker between two steps; a list with its value.

        A function is given the worker first. Raises ConfigError for an unknown method, and for a
        `timeout`: the call runs on this thread, which nothing can end.
        """
        return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """What a function returns of the compiled model, in a list: there is no `nn.Module`."""
        return self.llm_engine.apply_model(func)

    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Records the engine's steps from now on: after `delay_iterations` of them, at most
        `max_iterations` (0: all); None: as `profiler_config` says. `profile_prefix` begins the
        file's name. Raises ConfigError without a directory, and in another session."""
        self.llm_engine.start_profile(
            profile_prefix, delay_iterations=delay_iterations, max_iterations=max_iterations
        )

    def stop_profile(self) -> None:
        """Ends the recording; writes it to the directory of `profiler_config`, for Perfetto."""
        self.llm_engine.stop_profile()

    @property
    def engine_class(self) -> type[LLMEngine]:
        """The class of `llm_engine`."""
        return type(self.llm_engine)

    @property
    def model_config(self) -> ModelConfig:
        """What is being served."""
        return self.llm_engine.model_config

    @property
    def input_processor(self) -> InputProcessor:
        """What validates requests."""
        return self.llm_engine.input_processor

    @property
    def default_sampling_params(self) -> dict[str, Any]:
        """What the model recommends."""
        return self.model_config.get_diff_sampling_param()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """What the model can do."""
        return self.llm_engine.get_supported_tasks()

    @property
    def runner_type(self) -> str:
        """`generate`."""
        return self.model_config.runner_type

    @property
    def chat_template(self) -> str | None:
        """The user's own; None: the checkpoint's."""
        return self.model_config.chat_template

    def __repr__(self) -> str:
        return f"LLM(model={self.model_config.model!r})"
