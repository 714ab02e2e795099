"""What generation_config.json forbids, and what of it has no effect."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config import resolve
from quire.config.checkpoint.model_files import GenerationConfig
from quire.config.checkpoint.never_generated import never_generated
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.forbidden_tokens import ForbiddenTokens


def _found(**values: Any) -> ForbiddenTokens:
    return never_generated(values, "g.json", (7, 8), 100)


def test_tokens_and_words() -> None:
    """As in transformers, a word that is an end token may be generated, and ids without a row have
    no effect."""
    assert _found(suppress_tokens=[3, 7, 100]) == ForbiddenTokens([[3], [7]])
    assert _found(bad_words_ids=[[8], [8, 9], [5], [5, 100]]) == ForbiddenTokens([[8, 9], [5]])
    assert _found(suppress_tokens=None, bad_words_ids=None) == ForbiddenTokens()


def test_the_first_tokens_of_a_reply() -> None:
    assert _found(begin_suppress_tokens=[3, 100], min_new_tokens=4).first == [(1, [3]), (4, [7, 8])]
    assert _found(begin_suppress_tokens=[100], min_new_tokens=0).first == []
    tokens = _found(suppress_tokens=[5], bad_words_ids=[[1, 2]], min_new_tokens=2,
                    begin_suppress_tokens=[3])  # fmt: skip
    assert [tokens.at_first(count) for count in (0, 1, 2)] == [{3, 5, 7, 8}, {5, 7, 8}, {5}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"suppress_tokens": 5}, r"g.json: suppress_tokens must be a list of token ids.*got 5"),
        ({"suppress_tokens": [True]}, "suppress_tokens must be a list of token ids"),
        ({"suppress_tokens": [-1]}, "suppress_tokens must be a list of token ids"),
        ({"bad_words_ids": [5]}, "bad_words_ids must be a list of token ids"),
        ({"bad_words_ids": {}}, "bad_words_ids must be a list of lists"),
        ({"bad_words_ids": [[]]}, "bad_words_ids must be a list of lists with an id"),
        ({"begin_suppress_tokens": [2**70, -1]}, "begin_suppress_tokens must be a list of token"),
        ({"min_new_tokens": -1}, "min_new_tokens must be a number of tokens"),
        ({"min_new_tokens": True}, "min_new_tokens must be a number of tokens"),
        ({"suppress_tokens": list(range(100))}, "forbids all 100 tokens"),
        (
            {"suppress_tokens": [*range(90)], "begin_suppress_tokens": [*range(90, 100)]},
            "forbids all 100 tokens",
        ),
        ({"suppress_tokens": [1] * 70000}, "forbids 70000 tokens; at most 65536"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{message}.*'vllm'"):
        _found(**values)


def test_the_users_own_settings_win(caplog: pytest.LogCaptureFixture) -> None:
    own = GenerationConfig({"suppress_tokens": [3], "no_repeat_ngram_size": 0}, "g.json")
    for given, wanted in ((None, [[3]]), ({"suppress_tokens": []}, []), ({"top_k": 1}, [[3]])):
        args = EngineArgs(override_generation_config=given)
        assert resolve.resolve_never_generated(args, own, (), 100) == ForbiddenTokens(wanted)
    assert not caplog.records


def test_settings_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    values = {
        "no_repeat_ngram_size": 3, "begin_suppress_tokens": [], "min_new_tokens": 0,
        "forced_bos_token_id": 0, "typical_p": 1.0, "num_beams": 1, "sequence_bias": {},
        "temperature": 0.5, "do_sample": True,
    }  # fmt: skip
    own = GenerationConfig(values, "g.json")
    assert resolve.resolve_never_generated(EngineArgs(), own, (), 100) == ForbiddenTokens()
    [record] = caplog.records
    assert record.getMessage() == (
        "These settings of g.json have no effect here: no_repeat_ngram_size=3, "
        "forced_bos_token_id=0"
    )
