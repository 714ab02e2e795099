"""The prompts of `LLM`: `ChatPrompts` renders conversations in a child process; beam searches begin
here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from quire.beam_search import BeamSearchOutput, BeamSearchParams
from quire.chat.job import ChatInput, has_images
from quire.errors import RequestError, quoted
from quire.frontend.arguments import located
from quire.frontend.beams.begin import begin_search, sequences_of
from quire.frontend.beams.search import BeamSearch
from quire.frontend.inputs.images.prompts import ImagePrompts, rendered_with_images
from quire.frontend.inputs.input_processor import EngineInput
from quire.frontend.inputs.prompt_parser import PromptParser
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.offline.llm_arguments import (
    ChatOptions,
    GivenAdapters,
    as_conversations,
    one_each,
)
from quire.frontend.offline.progress_bar import Progress, counted
from quire.frontend.offline.shared_loop import SharedLoop, Ticket
from quire.inputs import PromptType, TokensPrompt
from quire.log import get_logger
from quire.outputs import RequestOutput
from quire.system.deferred_signals import deliver_signals

if TYPE_CHECKING:
    from quire.frontend.hf.tokenizer import HFTokenizer
    from quire.frontend.offline.llm_engine import LLMEngine


class ChatPrompts:
    """Renders and encodes for the model of one engine. Thread-safe."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._images = ImagePrompts(engine.model_config)

    @property
    def tokenizer(self) -> HFTokenizer:
        """Same as `get_tokenizer()`."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> HFTokenizer:
        """The model's tokenizer, with methods of `transformers` tokenizers."""
        return self._engine.get_tokenizer()

    def render_chat(self, messages: Sequence[Any], options: ChatOptions) -> list[PromptType]:
        """The prompts of one conversation or several. Raises RequestError."""
        prompts, conversations = list[PromptType](), as_conversations(messages)
        for index, one in enumerate(conversations):
            with located("messages", index, len(conversations)):
                prompts.append(self._render(options.job(one), options.mm_processor_kwargs))
            deliver_signals()
        return prompts

    def _render(self, chat: ChatInput, image_settings: Mapping[str, Any] | None) -> PromptType:
        renderer, model = self.get_tokenizer().renderer(), self._engine.model_config
        if not has_images(chat.messages):
            return renderer.render(replace(chat, no_images=model.no_images))
        text, placed = rendered_with_images(
            renderer.render, chat, self._images.changed(image_settings), self._ids
        )
        return {
            "prompt": text,
            "prompt_token_ids": placed.token_ids,
            "multi_modal_data": {"image": placed},
        }

    def _ids(self, text: str) -> list[int]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("chats need a tokenizer")
        return tokenizer.encode(text, add_special_tokens=False)

    def encode(
        self, prompts: Sequence[PromptType], tokenization_kwargs: Mapping[str, Any]
    ) -> list[TokensPrompt]:
        """Add token ids to prompts. Raises RequestError."""
        model = self._engine.model_config
        parser = PromptParser(model, self._engine.tokenizer, self._engine.config.cache.block_size)
        tokenization = Tokenization.of(tokenization_kwargs, model.max_model_len)
        encoded = []
        for index, text in enumerate(prompts):
            with located("messages", index, len(prompts)):
                ids = parser.parse(text, tokenization).token_ids
            if isinstance(text, dict):  # with images, which are placed
                encoded.append(cast(TokensPrompt, text))
            else:
                encoded.append(TokensPrompt(prompt=cast(str, text), prompt_token_ids=ids))
        return encoded


logger = get_logger(__name__)


def search_beams(
    engine: LLMEngine,
    loop: SharedLoop,
    prompts: Sequence[tuple[str, PromptType]],
    params: BeamSearchParams,
    use_tqdm: Progress,
    concurrency_limit: int | None,
    priority: int | Sequence[int] | None,
    adapters: GivenAdapters,
) -> list[BeamSearchOutput]:
    """Search the prompts, which are given with their request ids.

    All prompts are validated before any of them runs. Raises RequestError, EngineGenerateError if a
    step of a search failed, and ConfigError if only this thread could wake the engine up.
    """
    at_once = _checked_limit(concurrency_limit) or max(1, len(prompts))
    searches, processor = [], engine.input_processor
    priorities = one_each("priority", 0 if priority is None else priority, int, len(prompts))
    each = zip(prompts, priorities, adapters.each(len(prompts)), strict=True)
    for index, ((request_id, prompt), its_priority, adapter) in enumerate(each):
        with located("prompts", index, len(prompts)):
            searches.append(
                begin_search(
                    processor,
                    request_id,
                    prompt,
                    params,
                    num_logprobs=0,
                    priority=its_priority,
                    **adapter,
                )
            )
        deliver_signals()
    if use_tqdm and concurrency_limit is not None:
        logger.warning("The progress bar is not shown with a concurrency_limit.")
        use_tqdm = False
    if searches:
        engine.refuse_to_wait()
    for begin in range(0, len(searches), at_once):
        _run(engine, loop, searches[begin : begin + at_once], use_tqdm)
    tokenizer = engine.tokenizer
    return [sequences_of(search, tokenizer) for search in searches]


def _run(
    engine: LLMEngine, loop: SharedLoop, searches: Sequence[BeamSearch], use_tqdm: Progress
) -> None:
    num_steps = max(search.num_steps_left for search in searches)
    with counted(range(num_steps), use_tqdm, "Beam search") as steps:
        for _ in steps:
            going = [search for search in searches if not search.is_done]
            if not going:
                break
            inputs = [search.inputs() for search in going]
            outputs = iter(_outputs(engine, loop, [one for each in inputs for one in each]))
            for search, own in zip(going, inputs, strict=True):
                search.advance([next(outputs) for _ in own])


def _outputs(
    engine: LLMEngine, loop: SharedLoop, inputs: Sequence[EngineInput]
) -> list[RequestOutput]:
    tickets: list[Ticket] = []
    try:
        for request in inputs:
            tickets.append(Ticket(request.request_id, 1))
            engine.add_input(request, tickets[-1])
            deliver_signals()
        return cast("list[RequestOutput]", loop.collect(tickets, lambda _: None))
    except BaseException:
        engine.abort_request({ticket.request_id for ticket in tickets})
        raise


def _checked_limit(limit: object) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise RequestError(
            f"concurrency_limit must be an integer of at least 1, got {quoted(limit)}; leave it "
            "out to search all prompts at once",
            parameter="concurrency_limit",
            value=limit,
        )
    return limit
