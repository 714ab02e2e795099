"""`PoolingMethods`: the methods of `LLM` for vectors, classes and scores. Names are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.adapters import LoRARequest
from quire.config.pooling import PoolingTask
from quire.errors import EngineGenerateError, RequestError, quoted
from quire.frontend.inputs.refusals import cannot_pool, wrong_task
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.offline.calls import (
    CallOptions,
    Calls,
    Loras,
    as_prompts,
    from_column,
    one_each,
)
from quire.frontend.offline.llm_control import LLMControl
from quire.frontend.offline.progress_bar import Progress
from quire.frontend.scoring import PairForm, ScoreLimits, Scoring, pair_chat
from quire.inputs import PromptType
from quire.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from quire.protocol.pooling_params import PoolingParams
from quire.system.deferred_signals import with_signals_deferred

if TYPE_CHECKING:
    pass

Params = PoolingParams | Sequence[PoolingParams] | None
Pooled = PoolingRequestOutput[PoolingOutput]


class PoolingMethods(LLMControl):
    """Base class of `LLM`. All methods keep the prompts' order, and run none if one is invalid.
    `lora_request`: the adapter of all prompts, or one for each; None: the model itself."""

    _calls: Calls

    @with_signals_deferred
    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        lora_request: Loras = None,
        pooling_task: PoolingTask | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Pooled]:
        """Compute the model's result for each prompt, as arrays. `pooling_task` must be the
        model's; see `supported_tasks`."""
        if pooling_task is None and self.model_config.pooling is not None:
            raise RequestError(
                "pooling_task must be given to LLM.encode: "
                f"{quoted(self.model_config.pooling.task)} for this model, or use LLM.embed, "
                "LLM.classify or LLM.score",
                parameter="pooling_task",
            )
        options = CallOptions(tokenization=tokenization_kwargs, lora=lora_request)
        return self._pool(prompts, pooling_params, pooling_task, use_tqdm, options)

    @with_signals_deferred
    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: Progress = True,
        pooling_params: Params = None,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt."""
        options = CallOptions(tokenization=tokenization_kwargs, lora=lora_request)
        found = self._pool(prompts, pooling_params, "embed", use_tqdm, options)
        return [EmbeddingRequestOutput.from_base(one) for one in found]

    @with_signals_deferred
    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: Params = None,
        use_tqdm: Progress = True,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each class for each prompt."""
        options = CallOptions(tokenization=tokenization_kwargs, lora=lora_request)
        found = self._pool(prompts, pooling_params, "classify", use_tqdm, options)
        return [ClassificationRequestOutput.from_base(one) for one in found]

    @with_signals_deferred
    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Score how well the texts of each pair fit: one with one, one with each of many, or many
        with as many. `chat_template`: makes one text of a pair, given as messages of the roles
        query and document."""
        queries, documents = _texts("data_1", data_1), _texts("data_2", data_2)
        model = self.model_config
        tokenization = Tokenization.of(tokenization_kwargs, model.max_model_len, pools=True)
        limits = ScoreLimits(truncation=tokenization.truncation)
        if pooling_params is not None and pooling_params.late_chunking_params is not None:
            raise RequestError(
                "late_chunking_params must be None in LLM.score: scores compare tokens",
                parameter="late_chunking_params",
            )
        prompt_name = None if pooling_params is None else pooling_params.prompt_name
        form = self._form(chat_template, prompt_name)
        scoring = Scoring(
            model, self.llm_engine.tokenizer, queries, documents, limits, form, prompt_name
        )
        if lora_request is not None and not isinstance(lora_request, LoRARequest):
            raise TypeError("lora_request of LLM.score must be a LoRARequest for all texts")
        options = CallOptions(tokenization=tokenization_kwargs, lora=lora_request)
        return scoring.scores(self._pool(scoring.prompts, pooling_params, None, use_tqdm, options))

    def _form(self, chat_template: str | None, prompt_name: str | None) -> PairForm | None:
        """The form in which a cross-encoder reads pairs. Raises RequestError."""
        pooling = self.model_config.pooling
        if chat_template is not None and not isinstance(chat_template, str):
            raise RequestError(
                f"chat_template must be a string, got {quoted(chat_template)}",
                parameter="chat_template",
            )
        if pooling is None or pooling.scoring != "cross-encoder":
            return None
        if chat_template is None and pooling.score_form not in ("template", "messages"):
            return PairForm.own(self.model_config)
        chat = pair_chat(pooling, prompt_name=prompt_name, chat_template=chat_template)
        text = self.llm_engine.get_tokenizer().renderer().render(chat)
        is_own = chat_template is None and pooling.score_form == "messages"
        return PairForm.rendered(text, is_own=is_own)

    def _pool(
        self,
        prompts: Any,
        params: Params,
        task: PoolingTask | None,
        use_tqdm: Progress,
        options: CallOptions,
    ) -> list[Pooled]:
        pooling = self.model_config.pooling
        if pooling is None:
            raise RequestError(cannot_pool(self.model_config))
        task = task or pooling.task
        if task not in pooling.supported_tasks:
            raise RequestError(wrong_task(self.model_config, task), parameter="pooling_task")
        every = as_prompts(prompts)
        given = PoolingParams() if params is None else params
        params_of = [
            _for_task(one, task) for one in one_each("params", given, PoolingParams, len(every))
        ]
        if every:
            self.llm_engine.refuse_to_wait()
        name = None if isinstance(given, PoolingParams) else "pooling_params"
        tickets = self._calls.submit(every, params_of, options, params_name=name)
        return [_checked(one) for one in self._calls.collect(tickets, use_tqdm)]


def _for_task(params: PoolingParams, task: PoolingTask) -> PoolingParams:
    """The parameters with this task. Raises RequestError if they have another one."""
    if params.task not in (None, task):
        raise RequestError(
            f"pooling_params: task must be {task}, or be left out, in this call, got {params.task}",
            parameter="task",
            value=params.task,
        )
    own = params.clone()
    own.task = task
    return own


def _checked(output: Any) -> Pooled:
    if not isinstance(output, PoolingRequestOutput) or output.error is not None:
        raise EngineGenerateError(f"request {output.request_id}: {output.error}")
    return output


def _texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else from_column(name, value)
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise RequestError(
            f"{name} must be a text or a list of texts, got {quoted(value)}", parameter=name
        )
    return list(texts)
