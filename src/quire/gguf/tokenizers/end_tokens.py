"""The tokens that end a reply: those that a file names, and those that every known model with such
a token has for that.

Called by `files`, which marks them as special, and by `model_config`.
"""

from __future__ import annotations

from quire.gguf.keys import Keys

_ENDS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<|end_of_turn|>",
    "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "</s>", "<eos>", "<turn|>",
    "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
})  # fmt: skip
"""Whatever their type. Source: llama.cpp, src/llama-vocab.cpp; `<|end_of_turn|>` is OpenChat's."""
_OF_FILES = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Tokens before, after and between files of code: their roles, and their names where a file names
none for the role. Source: the same."""
_CONTROL = 3


def end_token_ids(keys: Keys, tokens: list[str]) -> list[int]:
    """The ids, that of the role `eos` first."""
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    by_role = _by_role(keys, tokens)
    found = [*by_role, *sorted(ids[text] for text in _ENDS & ids.keys())]
    for role, usual in _OF_FILES.items():
        named = keys.token_of(role, tokens)
        names = usual if named is None else (named,)
        found += [ids[text] for text in names if text in ids][:1]
    texts = {tokens[token_id] for token_id in found}
    kinds = keys.numbers("tokenizer.ggml.token_type", int, len(tokens))
    dropped = set()
    if texts & {"<|return|>", "<|flush|>"} and texts & {"<|call|>", "<|calls|>"}:
        dropped.add("<|end|>")  # it ends a message of several: the reasoning, a preamble
    if "<|tool_response>" in texts or not _is_control(kinds, ids.get("</s>"), by_role):
        dropped.add("</s>")  # a mark of HTML
    return [token_id for token_id in dict.fromkeys(found) if tokens[token_id] not in dropped]


def _by_role(keys: Keys, tokens: list[str]) -> list[int]:
    """The ids under the keys of files; `eos_token_ids` is Ollama's."""
    named = [
        keys.role_id(role)
        for role in ("eos", "eot", "eom")
        if keys.token_of(role, tokens) is not None
    ]
    further = keys.token_ids("eos_token_ids")
    if not all(0 <= token_id < len(tokens) for token_id in further):
        raise keys.error("tokenizer.ggml.eos_token_ids", f"a list of ids below {len(tokens)}")
    return [token_id for token_id in (*named, *further) if token_id is not None]


def _is_control(kinds: list[int] | None, token_id: int | None, by_role: list[int]) -> bool:
    return token_id is not None and (
        token_id in by_role or (kinds is not None and kinds[token_id] == _CONTROL)
    )
