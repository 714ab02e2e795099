"""The tokens around a text, for files that do not say them: by flags and class in
tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.tokenizer.pieces import library_errors

if TYPE_CHECKING:
    import tokenizers

_BEFORE = {
    "ChatGLMTokenizer": ("[gMASK]", "sop"),
    "ChatGLM4Tokenizer": ("[gMASK]", "<sop>"),
    "WhisperTokenizer": ("<|startoftranscript|>", "<|notimestamps|>"),
}
"""Classes that begin every text with tokens of their own."""
_BEHIND_PIECES = {"ChatGLMTokenizer": ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")}
"""Tokens whose ids follow the vocabulary's, of classes that do not list them."""


def add_frame(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], roles: Mapping[str, str], source: Path
) -> None:
    """A start token, unless `add_bos_token` is false, and an end token if `add_eos_token` is true.

    `source`: the file of `config`. Raises CheckpointError for a token that the vocabulary lacks.
    """
    from tokenizers import processors

    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    before, after = list(_BEFORE.get(name, ())), []
    if not before and config.get("add_bos_token") is not False and "bos_token" in roles:
        before = [roles["bos_token"]]
    if config.get("add_eos_token") is True and "eos_token" in roles:
        after = [roles["eos_token"]]
    if not before and not after:
        return
    extra = _BEHIND_PIECES.get(name, ())
    num_pieces = backend.get_vocab_size(with_added_tokens=False)
    ids = {text: num_pieces + place for place, text in enumerate(extra)}
    for text in (*before, *after):
        found = backend.token_to_id(text)
        if found is not None:
            ids[text] = found
        elif text not in ids:
            raise CheckpointError(
                f"{source}: texts begin or end with {text!r:.60}, which is not in the vocabulary; "
                "set add_bos_token or add_eos_token to false, or add the token"
            )
    with library_errors(lambda words: CheckpointError(f"{source}: bos or eos: {words}")):
        backend.post_processor = processors.TemplateProcessing(
            single=[*(f"{text}:0" for text in before), "$A:0", *(f"{text}:0" for text in after)],
            pair=[*(f"{text}:0" for text in before), "$A:0", "$B:1", *(f"{t}:0" for t in after)],
            special_tokens=[(text, ids[text]) for text in dict.fromkeys((*before, *after))],
        )
