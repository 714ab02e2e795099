"""A conversation with an engine in this process, for `quire run`.

Drives `LLMEngine` step by step, so that text is shown after each step and Ctrl+C takes effect
between two steps. Owned by the main thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from quire.chat.job import ChatInput, has_images
from quire.chat.renderer import ChatRenderer
from quire.chat.templates import ChatTemplates
from quire.cli.http_client import SamplingDefaults
from quire.cli.repl import Conversation, TokenCounts
from quire.config.checkpoint.model_files import chat_sampling_params
from quire.config.engine_args import EngineArgs
from quire.errors import RequestError
from quire.frontend.inputs.images.prompts import ImagePrompts, rendered_with_images
from quire.frontend.offline.llm_engine import LLMEngine
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.parsers.detection.finder import find_blocking
from quire.parsers.detection.found import FoundFormat
from quire.parsers.detection.names import FormatChoice
from quire.parsers.events import Content, Event
from quire.parsers.format import ReplyFormat
from quire.parsers.kept_tokens import kept_token_ids
from quire.parsers.parser import ReplyParser
from quire.tokenizer.tokenizer import Tokenizer


class LocalConversation(Conversation):
    """A conversation with a model in this process.

    A model without a chat template continues the last message as plain text, without the history.
    """

    def __init__(self, args: EngineArgs, system_prompt: str | None = None) -> None:
        super().__init__(system_prompt)
        self.engine = LLMEngine.from_engine_args(args)
        self._images = ImagePrompts(self.engine.model_config)
        special_tokens = self.engine.get_tokenizer().inner.roles
        templates = ChatTemplates.of_model(self.engine.model_config, special_tokens)
        self._renderer = ChatRenderer(templates)
        if templates:
            self._renderer.start()
        model_defaults = self.engine.model_config.default_sampling_params
        self.defaults = SamplingDefaults(model_defaults, chat_sampling_params(model_defaults))
        self._numbers = itertools.count()
        self._reasoning_parser = args.reasoning_parser
        self._found: FoundFormat | None = None

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._renderer.templates)

    def stream(self, messages: list[dict[str, Any]]) -> Iterator[Event]:
        """Yields the reasoning and the answer in pieces; closing the generator aborts the
        request."""
        if not self.is_chat:
            if has_images(messages):
                raise RequestError("images need a model with a chat template")
            for text in self._generate({"prompt": messages[-1]["content"]}, self._params()):
                yield from _as_content(text)
            return
        tokenizer = self.engine.get_tokenizer().inner
        prompt, engine_prompt = self._rendered(messages, tokenizer)
        format, params = self._format(), self._params()
        params.keep_tokens(kept_token_ids(format, tokenizer, has_tools=False))
        tags = format.reasoning
        parser = ReplyParser(format, is_reasoning=tags is not None and tags.is_open_in(prompt))
        for text in self._generate(engine_prompt, params):
            yield from parser.feed(text)
        yield from parser.finish()

    def _rendered(
        self, messages: list[dict[str, Any]], tokenizer: Tokenizer
    ) -> tuple[str, dict[str, Any]]:
        chat = ChatInput(messages, variables=self.template_variables())

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        if not has_images(messages):
            prompt = self._renderer.render(chat)
            return prompt, {"prompt_token_ids": encode(prompt)}
        prompt, placed = rendered_with_images(self._renderer.render, chat, self._images, encode)
        data = {"image": placed}
        return prompt, {"prompt_token_ids": placed.token_ids, "multi_modal_data": data}

    def _format(self) -> ReplyFormat:
        """The model's reply format, which is detected for the first message."""
        if self._found is None:
            choice = FormatChoice.of(None, self._reasoning_parser)
            self._found = find_blocking(choice, self.engine.model_config, self._renderer)
        return self._found.reply

    def _generate(self, prompt: Any, params: SamplingParams) -> Iterator[str]:
        request_id = f"run-{next(self._numbers)}"
        self.engine.add_request(request_id, prompt, params)
        self.counts = TokenCounts()
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if not isinstance(output, RequestOutput):
                        continue
                    self.counts.prompt = len(output.prompt_token_ids or ())
                    self.counts.cached = output.num_cached_tokens or 0
                    for completion in output.outputs:
                        self.counts.completion += len(completion.token_ids)
                        yield completion.text
        finally:
            self.engine.abort_request(request_id)

    def _params(self) -> SamplingParams:
        """Sampling parameters from the user's settings and the defaults; no limit of
        `max_tokens`."""
        defaults = self.engine.model_config.default_sampling_params
        wanted = {"max_tokens": None, **defaults, **self.sampling()}
        return SamplingParams.from_optional(output_kind=RequestOutputKind.DELTA, **wanted)

    def close(self) -> None:
        """Free the model."""
        self._renderer.close()
        self.engine.shutdown()


def _as_content(text: str) -> Iterator[Event]:
    if text:
        yield Content(text)
