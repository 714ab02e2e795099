"""`LLMControl`: the methods of `LLM` that are not about requests. Names are vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from quire.config.records import ModelConfig
from quire.frontend.control import Operation
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.offline.engine_control import BlockingControl
from quire.params import SamplingParams

if TYPE_CHECKING:
    from quire.frontend.hf_tokenizer import HFTokenizer
    from quire.frontend.offline.llm_engine import LLMEngine
    from quire.metrics.reader import Metric

Result = TypeVar("Result")


class LLMControl(BlockingControl):
    """Base class of `LLM`. Any thread may call."""

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
        """The number of devices that compute: one."""
        del include_dp
        return 1

    def run_operation(self, operation: Operation[Result]) -> Result:
        """Has the engine run an operation of `quire.frontend.control`."""
        return self.llm_engine.run_operation(operation)

    @property
    def engine_class(self) -> type[LLMEngine]:
        """The class of `llm_engine`."""
        return type(self.llm_engine)

    @property
    def model_config(self) -> ModelConfig:
        """The configuration of the model."""
        return self.llm_engine.model_config

    @property
    def input_processor(self) -> InputProcessor:
        """The object that validates requests."""
        return self.llm_engine.input_processor

    @property
    def default_sampling_params(self) -> dict[str, Any]:
        """The sampling parameters that the model recommends."""
        return self.model_config.get_diff_sampling_param()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """The tasks of the model."""
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
