"""GrammarCompiler: grammars compiled on its threads, shared, kept within a bound, refused."""

from __future__ import annotations

import threading

import pytest
from small_vocabulary import VOCAB_SIZE, allowed, source

from quire.errors import GrammarError, RequestError
from quire.structured import compile as module
from quire.structured.compile import GrammarCompiler
from quire.structured.params import StructuredOutputsParams
from quire.structured.tags.texts import AddedTokens
from quire.structured.vocabulary import VocabularySource

CHOICE = StructuredOutputsParams(choice=["yes", "no"])


def choice(*words: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(choice=list(words))


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        (CHOICE, ["n", "no", "y", "ye", "yes"]),
        (StructuredOutputsParams(regex="[ab]+"), ["a", "b"]),
        (StructuredOutputsParams(grammar='start: "no" | "a"'), ["a", "n", "no"]),
        (StructuredOutputsParams(grammar='root ::= "no" | "a"'), ["a", "n", "no"]),
        (StructuredOutputsParams(json={"enum": [1, 2]}), ["1", "2"]),
        (StructuredOutputsParams(json='{"enum": [1, 2]}'), ["1", "2"]),
        (StructuredOutputsParams(json_object=True), ["{", '{"', "{}"]),
    ],
    ids=str,
)
def test_each_kind(spec: StructuredOutputsParams, first: list[str]) -> None:
    grammar = GrammarCompiler(source).submit(spec).result()
    assert len(grammar.start.mask) == -(-VOCAB_SIZE // 32)
    assert sorted(allowed(grammar.start.mask)) == first


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (StructuredOutputsParams(regex="(("), r"cannot be compiled: [\s\S]*unclosed group"),
        (StructuredOutputsParams(json={"type": "wrong"}), "cannot be compiled"),
        (StructuredOutputsParams(json="{"), "not valid JSON"),
        (StructuredOutputsParams(grammar="start: nobody"), "cannot be compiled"),
        (StructuredOutputsParams(json={"type": "string", "format": "iri"}), "cannot be compiled"),
    ],
    ids=str,
)
def test_a_wrong_grammar_is_an_error_of_its_own(
    spec: StructuredOutputsParams, message: str
) -> None:
    compiler = GrammarCompiler(source)
    with pytest.raises(RequestError, match=message) as caught:
        compiler.submit(spec).result(timeout=60)
    assert "non-verbose" not in str(caught.value)
    assert allowed(compiler.submit(CHOICE).result().start.mask)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eos_token_ids": ()}, "need an end-of-sequence token"),
        ({"eos_token_ids": (VOCAB_SIZE,)}, "need an end-of-sequence token"),
        ({"read_json": lambda: "gpt2", "token_bytes": None}, "in the form of tokenizer.json"),
        ({"read_json": lambda: "{}", "token_bytes": None}, "do not work with this model's"),
        ({"vocab_size": 200, "eos_token_ids": (7,)}, "do not work with this model's tokenizer"),
    ],
)
def test_a_model_that_grammars_do_not_work_with(changed: dict[str, object], message: str) -> None:
    good = source()
    wrong = VocabularySource(
        **{name: changed.get(name, getattr(good, name)) for name in good.__slots__}  # type: ignore[attr-defined]
    )
    with pytest.raises(GrammarError, match=message):
        GrammarCompiler(lambda: wrong).submit(CHOICE).result()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_vocabulary_is_read_once(is_prepared: bool) -> None:
    calls = []

    def read() -> VocabularySource:
        calls.append(threading.current_thread().name)
        return source()

    compiler = GrammarCompiler(read)
    if is_prepared:
        compiler.prepare()
        compiler.prepare()
    for one in [compiler.submit(choice("no", str(number))) for number in range(6)]:
        one.result()
    assert len(calls) == 1
    assert calls[0].startswith("quire-grammar")


def test_what_fails_while_preparing_fails_for_the_grammar() -> None:
    def read() -> VocabularySource:
        raise GrammarError("no tokenizer")

    compiler = GrammarCompiler(read)
    compiler.prepare()
    with pytest.raises(GrammarError, match="no tokenizer"):
        compiler.submit(CHOICE).result()


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[StructuredOutputsParams] = []
    may_go_on = threading.Event()
    grammar_of = module.grammar_of

    def slow(spec: StructuredOutputsParams, added: AddedTokens) -> str:
        compiled.append(spec)
        may_go_on.wait(60)
        return grammar_of(spec, added)

    monkeypatch.setattr(module, "grammar_of", slow)
    compiler = GrammarCompiler(source)
    first, second = compiler.submit(CHOICE), compiler.submit(choice("yes", "no"))
    other = compiler.submit(choice("no", "yes"))
    may_go_on.set()
    assert first.result() is second.result() is compiler.submit(CHOICE).result()
    assert other.result() is not first.result()
    assert len(compiled) == 2
    wrong = StructuredOutputsParams(regex="((")
    for _ in range(2):
        assert compiler.submit(wrong).exception() is not None
    assert len(compiled) == 4, "failures are not kept"


def test_what_was_not_used_for_longest_is_dropped() -> None:
    size = GrammarCompiler(source).submit(choice("a0")).result().num_bytes
    compiler = GrammarCompiler(source, max_cache_bytes=3 * size)
    first = compiler.submit(choice("a0")).result()
    for number in range(1, 4):
        compiler.submit(choice(f"a{number}")).result()
        assert compiler.submit(choice("a0")).result() is first
    second = compiler.submit(choice("a3")).result()
    for number in range(4, 8):
        compiler.submit(choice(f"a{number}")).result()
    assert compiler.submit(choice("a3")).result() is not second
    assert sum(one.result().num_bytes for one in compiler._entries.values()) <= 4 * size


def test_a_grammar_may_take_more_than_the_cache() -> None:
    compiler = GrammarCompiler(source, max_cache_bytes=0)
    assert compiler.submit(CHOICE).result()
    assert compiler.submit(choice("a")).result()
    compiler.shutdown()
    compiler.shutdown()


def test_a_grammar_that_takes_too_much_to_compile_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 0.6, 1.0, 1.8])
    monkeypatch.setattr(module, "thread_time", lambda: next(now))
    compiler = GrammarCompiler(source)
    assert compiler.submit(CHOICE).result(timeout=60).compile_s == 0.6
    with pytest.raises(GrammarError, match="more than 1 s of processor time") as caught:
        compiler.submit(choice("maybe")).result(timeout=60)
    assert caught.value.parameter == "structured_outputs"
