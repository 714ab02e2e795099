"""Makes the prompt of a conversation, which is the token ids for the engine. `chat_text` has the
text of a conversation, and `media_prompts` the prompts with parts other than text.

Generation, `/tokenize` and the render endpoints use it, so that all give the same ids. Long texts
are rendered and tokenized in the server's `WorkPool`, off the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from quire.errors import RequestError
from quire.frontend.inputs.tokenization import Truncation
from quire.frontend.kv_hand_off import FIELD as TRANSFER
from quire.server.conversation.chat_text import chat_text
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.media_prompts import media_prompt
from quire.server.conversation.reply_plan import ChatPrompt, ReplyPlan
from quire.server.requests.prompts import PreparedPrompt, encode, tokenized
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel


class PromptSource(Protocol):
    """The source of prompts that are not conversations."""

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The prompts, in order. Raises RequestError."""


AnySource = Conversation | list[Conversation] | PromptSource


async def prompts_of(
    model: ServedModel, asked: AnyRequest, *, has_reply: bool = True
) -> list[PreparedPrompt]:
    """The prompts of a request, in order; those of conversations have the plans of their replies,
    if replies are asked for (`has_reply`). Raises RequestError."""
    source: AnySource = asked.prompt
    if not isinstance(source, Conversation | list):
        return await source.prompts(model, asked)
    made: list[PreparedPrompt] = []
    for chat in [source] if isinstance(source, Conversation) else source:
        make = _planned_prompt if has_reply else _requested_prompt
        made.append(await make(model, asked, chat))
    return made


async def _planned_prompt(model: ServedModel, asked: AnyRequest, chat: Conversation) -> ChatPrompt:
    prompt = await _requested_prompt(model, asked, chat)
    plan = await ReplyPlan.of(model, asked, chat, prompt.text or "")
    predicted = await _predicted_ids(model, asked)
    return ChatPrompt(
        prompt.token_ids,
        prompt.text,
        predicted_token_ids=predicted,
        embeds=prompt.embeds,
        images=prompt.images,
        chat=chat,
        reply=plan,
    )


async def _predicted_ids(model: ServedModel, asked: AnyRequest) -> list[int]:
    """Token ids of the reply that the client expects; at most as many as the context holds."""
    text = asked.predicted
    if text is None or model.config.scheduler.speculation is None:
        return []
    ids = await model.pool.run(len(text), _ids_of_prediction, model, text)
    return ids[: model.limits.max_model_len]


def _ids_of_prediction(model: ServedModel, text: str) -> list[int]:
    return encode(model, text, False, must_fit=False)


async def _requested_prompt(
    model: ServedModel, asked: AnyRequest, chat: Conversation
) -> PreparedPrompt:
    """The prompt that another engine has made of the messages, if the request has it; otherwise the
    template's. Raises RequestError."""
    extra = asked.sampling.get("extra_args") or {}
    ids = (extra.get(TRANSFER) or {}).get("prompt_token_ids")
    if ids is None:
        return _after(chat.earlier_token_ids, await chat_prompt(model, chat), model)
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise RequestError(
            f"{TRANSFER}.prompt_token_ids must be a list of token ids", parameter=TRANSFER
        )
    return PreparedPrompt(ids, model.tokenizer().decode(ids, skip_special_tokens=False))


def _after(earlier: Sequence[int], prompt: PreparedPrompt, model: ServedModel) -> PreparedPrompt:
    """The prompt after these tokens, without a second start token."""
    if not earlier:
        return prompt
    tokenizer, own = model.tokenizer(), prompt.token_ids
    start = tokenizer.encode("a", add_special_tokens=True)[:1]
    is_second = own[:1] == start == [tokenizer.bos_token_id]
    return replace(prompt, token_ids=[*earlier, *own[is_second:]])


async def chat_prompt(model: ServedModel, chat: Conversation) -> PreparedPrompt:
    """Renders the messages by the model's chat template. Raises RequestError."""
    if any(isinstance(one.content, list) for one in chat.messages):
        prompt = await media_prompt(model, chat)
        if prompt is not None:
            return prompt
    text = await chat_text(model, chat)
    truncation = None
    if chat.most_tokens is not None:
        truncation = Truncation.of(chat.most_tokens, chat.cut_side, model.limits.max_model_len)
    token_ids = await tokenized(model, text, chat.add_special_tokens, truncation)
    return PreparedPrompt(token_ids, text)
