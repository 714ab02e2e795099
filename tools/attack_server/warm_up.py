"""One request of each kind, so that no attack is the first to need a part of the server."""

from __future__ import annotations

from tools.attack_server.attacks import CHAT, COMPLETIONS
from tools.attack_server.client import ask, post

_WORDS = "plain words, some of them longer than others; " * 4000
_FEW = {"max_tokens": 4}
_MESSAGES = [{"role": "user", "content": "hello"}]


def warm_up(port: int) -> None:
    """Sends them one after the other, and reads the replies."""
    for path, body in (
        (COMPLETIONS, {"prompt": "abc", "n": 8, "logprobs": 20, "stream": True, **_FEW}),
        (COMPLETIONS, {"prompt": "abc", "structured_outputs": {"regex": "[ab]+"}, **_FEW}),
        (COMPLETIONS, {"prompt": "abc", "bad_words": ["x"], "logit_bias": {"5": 1}, **_FEW}),
        (CHAT, {"messages": _MESSAGES, **_FEW}),
        (CHAT + "/batch", {"messages": [_MESSAGES] * 2, **_FEW}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 4}),
        ("/tokenize", {"prompt": _WORDS, "return_token_strs": True}),
        ("/detokenize", {"tokens": [1] * 500}),
    ):
        ask(port, post(path, body))
