"""`HFTokenizer`: the model's tokenizer with methods of `transformers` tokenizers.

Returned by `get_tokenizer()` of the engines, which create it around their own `Tokenizer`. Defaults
and results are those of transformers 5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from quire.chat.job import ChatInput
from quire.chat.renderer import ChatRenderer
from quire.chat.template_files import read_templates
from quire.chat.templates import ChatTemplates
from quire.config.model_lookup.hub import resolve_model
from quire.errors import RequestError, quoted
from quire.frontend.hf_encoding import (
    BatchEncoding,
    EncodingOptions,
    Side,
    SpecialRoles,
    encoding_options,
)
from quire.tokenizer import Tokenizer

_NO_LIMIT = int(1e30)
"""The `model_max_length` of transformers for a tokenizer without one."""


class HFTokenizer(SpecialRoles):
    """Encodes, decodes and renders. Thread-safe. `close` ends the template process."""

    is_fast = True
    model_input_names = ("input_ids", "attention_mask")

    def __init__(
        self, tokenizer: Tokenizer, name_or_path: str, read_templates: Callable[[], ChatTemplates]
    ) -> None:
        """`name_or_path`: the origin of the tokenizer, as the user wrote it. `read_templates` is
        called when a template is first needed."""
        super().__init__(tokenizer)
        self.name_or_path = name_or_path
        self._read_templates = read_templates
        self._templates: ChatTemplates | None = None
        self._renderer: ChatRenderer | None = None
        self._lock = threading.Lock()
        config = tokenizer.config
        self.padding_side: Side = "left" if config.get("padding_side") == "left" else "right"
        self.truncation_side: Side = "left" if config.get("truncation_side") == "left" else "right"
        longest = config.get("model_max_length")
        self.model_max_length: int = int(longest) if longest else _NO_LIMIT

    @classmethod
    def from_directory(cls, directory: Path, name_or_path: str | None = None) -> HFTokenizer:
        """The tokenizer of a checkpoint. Raises CheckpointError."""
        inner = Tokenizer.from_directory(directory)

        def read() -> ChatTemplates:
            return ChatTemplates(read_templates(directory), inner.roles)

        return cls(inner, name_or_path or str(directory), read)

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo_id: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | None = None,
        token: str | bool | None = None,
        trust_remote_code: bool = False,
    ) -> HFTokenizer:
        """The tokenizer of a directory or a hub id; code from there is never run. Raises
        ModelNotFoundError, CheckpointError."""
        del trust_remote_code
        directory = resolve_model(
            str(path_or_repo_id),
            revision=revision,
            download_dir=cache_dir,
            hf_token=token,
            needs_weights=False,
        )
        return cls.from_directory(directory, str(path_or_repo_id))

    # --- text to ids

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: None = None,
        add_special_tokens: bool = True,
        padding: bool | str | None = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        *,
        return_tensors: str | None = None,
        return_attention_mask: bool | None = None,
    ) -> BatchEncoding:
        """`input_ids` and `attention_mask` of a text, or lists of them for several texts.

        `return_tensors` is None for lists, or `np`. Raises RequestError.
        """
        if text_pair is not None:
            raise RequestError("text_pair is not supported", parameter="text_pair")
        is_batch = not isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        if not all(isinstance(one, str) for one in texts):
            raise RequestError(f"text must be a string or a list of strings, got {quoted(text)}")
        options = self._options(truncation, padding, max_length, return_tensors)
        encoded = [self._encode(one, add_special_tokens, options) for one in texts]
        found = options.finish(encoded, is_batch=is_batch)
        if return_attention_mask is False:
            del found["attention_mask"]
        return found

    def encode(
        self,
        text: str,
        text_pair: None = None,
        add_special_tokens: bool = True,
        padding: bool | str | None = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        *,
        return_tensors: str | None = None,
    ) -> Any:
        """The token ids of a text, as returned by `__call__`. Raises RequestError."""
        return self(
            text,
            text_pair,
            add_special_tokens,
            padding,
            truncation,
            max_length,
            return_tensors=return_tensors,
        ).input_ids

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, as spelled in the vocabulary."""
        ids = self.inner.encode(text, add_special_tokens=add_special_tokens)
        return self.convert_ids_to_tokens(ids)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Number of special tokens added around a text."""
        if pair:
            raise RequestError("pairs of texts are not supported", parameter="pair")
        frame = self.inner.special_frame
        return len(frame.before) + len(frame.after)

    # --- ids to text

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> Any:
        """The text of some ids, or the texts of several lists of ids."""
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if isinstance(ids, int):
            ids = [ids]
        if len(ids) and isinstance(ids[0], (list, tuple)):
            return [self.decode(one, skip_special_tokens) for one in ids]
        return self.inner.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: Sequence[Any], skip_special_tokens: bool = False
    ) -> list[str]:
        """The text of each list of ids, or of each id."""
        return [self.decode(one, skip_special_tokens) for one in sequences]

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = ...) -> str: ...

    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = ...
    ) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The vocabulary's spelling of an id, or of each of several; None for unknown ids."""
        if isinstance(ids, int):
            return self.inner.id_to_token(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self.inner.id_to_token(int(one)) for one in ids if int(one) not in skipped]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or of each of several. An unknown token gets the id of the unknown
        token, or None if there is none."""
        if isinstance(tokens, str):
            found = self.inner.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(one) for one in tokens]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens that are spelled as in the vocabulary."""
        decoder = self.inner.backend.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    # --- the vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of tokens without added tokens; `len` counts all tokens."""
        return self.inner.backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.inner.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """All tokens with their ids."""
        return self.inner.backend.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, int]:
        """Alias of `get_vocab`."""
        return self.get_vocab()

    def get_added_vocab(self) -> dict[str, int]:
        """The added tokens with their ids."""
        return {token: token_id for token_id, token in sorted(self.inner.added_tokens.items())}

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Alias of `get_added_vocab`."""
        return self.get_added_vocab()

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The added tokens by id."""
        return dict(sorted(self.inner.backend.get_added_tokens_decoder().items()))

    @cached_property
    def max_chars_per_token(self) -> int:
        """Length of the longest token in characters, as spelled in the vocabulary."""
        return max(map(len, self.get_vocab()))

    @property
    def max_token_id(self) -> int:
        """The highest token id."""
        return self.inner.max_token_id

    @property
    def backend_tokenizer(self) -> Any:
        """The tokenizer of the `tokenizers` library."""
        return self.inner.backend

    # --- conversations

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The chat template; a dict by name if there are several."""
        templates = self._chat_templates().templates
        if set(templates) == {"default"}:
            return templates["default"]
        return dict(templates) or None

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: bool | str | None = False,
        truncation: bool | str | None = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        **template_kwargs: Any,
    ) -> Any:
        """Render the prompt of a conversation, or the prompts of several. Returns text with
        `tokenize=False`; otherwise a `BatchEncoding`, or only the ids with `return_dict=False`.

        Further keyword arguments are variables of the template. Raises RequestError.
        """
        if not isinstance(conversation, (list, tuple)) or not conversation:
            raise RequestError("conversation must be a list of at least one message")
        if not all(isinstance(tool, Mapping) for tool in tools or ()):
            raise RequestError("tools must be a list of JSON schemas (dicts)", parameter="tools")
        is_batch = isinstance(conversation[0], (list, tuple))
        texts = [
            self.renderer().render(
                ChatInput(
                    one,
                    tools=tools,
                    documents=documents,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template=chat_template,
                    variables=template_kwargs,
                )
            )
            for one in (conversation if is_batch else [conversation])
        ]
        if not tokenize:
            return texts if is_batch else texts[0]
        found = self(
            texts if is_batch else texts[0],
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )
        return found if return_dict else found.input_ids

    def renderer(self) -> ChatRenderer:
        """The renderer of conversations, whose process starts with the first conversation."""
        templates = self._chat_templates()
        with self._lock:
            if self._renderer is None:
                self._renderer = ChatRenderer(templates)
            return self._renderer

    def close(self) -> None:
        """End the process of the renderer. Idempotent."""
        if self._renderer is not None:
            self._renderer.close()

    def __repr__(self) -> str:
        return (
            f"HFTokenizer(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size}, "
            f"model_max_length={self.model_max_length}, padding_side={self.padding_side!r}, "
            f"truncation_side={self.truncation_side!r}, special_tokens={self.special_tokens_map})"
        )

    def _chat_templates(self) -> ChatTemplates:
        if self._templates is None:
            self._templates = self._read_templates()
        return self._templates

    def _encode(self, text: str, add_special_tokens: bool, options: EncodingOptions) -> list[int]:
        if not options.truncation or options.max_length is None:
            return self.inner.encode(text, add_special_tokens=add_special_tokens)
        ids = self.inner.encode(text, add_special_tokens=False)
        if not add_special_tokens:
            return options.cut(ids, 0)
        frame = self.inner.special_frame
        return frame.before + options.cut(ids, self.num_special_tokens_to_add()) + frame.after

    def _options(
        self, truncation: Any, padding: Any, max_length: Any, return_tensors: Any
    ) -> EncodingOptions:
        return encoding_options(
            truncation=truncation,
            padding=padding,
            max_length=max_length,
            return_tensors=return_tensors,
            longest=None if self.model_max_length >= _NO_LIMIT else self.model_max_length,
            truncation_side=self.truncation_side,
            padding_side=self.padding_side,
            pad_id=self.pad_token_id,
        )
