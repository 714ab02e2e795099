"""Rerankers that are language models: their scores are the logits of one token or two.

Called by `choice`, for config.json with `classifier_from_token`, as vLLM has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, quoted
from quire.tokenizer import Tokenizer


def token_rows(hf_config: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """The ids of the tokens whose logits are a reranker's scores."""
    texts = hf_config.get("classifier_from_token")
    if texts is None:
        return ()
    if not isinstance(texts, list) or len(texts) not in (1, 2):
        raise CheckpointError(
            f"config.json: classifier_from_token is {quoted(texts)}; it must be one token or two, "
            'for example ["no", "yes"]'
        )
    backend = Tokenizer.from_directory(path).backend
    found = [backend.token_to_id(str(text)) for text in texts]
    ids = tuple(one for one in found if one is not None)
    if len(ids) < len(found):
        raise CheckpointError(
            f"config.json: classifier_from_token {quoted(texts)}: the tokenizer has no such token"
        )
    return ids
