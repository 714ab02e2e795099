"""LLM: the script that users have, and everything around it."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams
from quire.errors import CheckpointError, ConfigError, RequestError, UnknownArgumentError
from quire.inputs import TextPrompt, TokensPrompt
from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> Iterator[LLM]:
    with LLM(str(model_dir), backend="reference", max_model_len=128) as made:
        yield made


def test_the_script_that_users_have(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["Hello, my name is", "The president of the United States is",
               "The capital of France is", "The future of AI is"]  # fmt: skip
    outputs = llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95))
    assert [output.prompt for output in outputs] == prompts
    for output in outputs:
        assert output.finished
        assert len(output.outputs) == 1
        assert 1 <= len(output.outputs[0].token_ids) <= 16
        assert isinstance(output.outputs[0].text, str)
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "est. speed input:" in shown


def test_results_keep_the_order_of_prompts_that_end_in_another(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 5)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]


def test_every_form_of_prompts(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    forms: list[Any] = [
        "abc", ["abc"], ids, [ids], TextPrompt(prompt="abc"), [TokensPrompt(prompt_token_ids=ids)],
    ]  # fmt: skip
    results = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    assert [len(outputs) for outputs in results] == [1] * 6
    tokens = [outputs[0].outputs[0].token_ids for outputs in results]
    assert all(found == tokens[0] for found in tokens)
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_one_wrong_prompt_and_none_is_run(llm: LLM) -> None:
    with pytest.raises(RequestError, match="cannot be empty"):
        llm.generate(["good", "", "good"], GREEDY, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert not llm.llm_engine.engine_core.has_unfinished_requests()
    assert len(llm.generate("good", GREEDY, use_tqdm=False)) == 1


def test_as_many_params_as_prompts(llm: LLM) -> None:
    message = r"The lengths of prompts \(2\) and params \(1\) must be the same."
    with pytest.raises(RequestError, match=message):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)


def test_the_users_params_are_left_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, output_kind=RequestOutputKind.DELTA)
    [output] = llm.generate("abc", params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 2
    assert params.output_kind is RequestOutputKind.DELTA
    assert params.seed is None


def test_n_outputs_in_order_and_repeatable(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, temperature=1.5, max_tokens=8)
    first, second = (llm.generate("abc", params, use_tqdm=False)[0] for _ in range(2))
    assert [one.index for one in first.outputs] == [0, 1, 2]
    texts = [one.text for one in first.outputs]
    assert texts == [one.text for one in second.outputs]
    assert len(set(texts)) > 1


def test_stop_strings_and_stop_tokens(llm: LLM) -> None:
    [plain] = llm.generate("xyz", GREEDY, use_tqdm=False)
    token = plain.outputs[0].token_ids[2]
    count = plain.outputs[0].token_ids.index(token) + 1
    params = SamplingParams(temperature=0, stop_token_ids=[token], ignore_eos=True)
    [stopped] = llm.generate("xyz", params, use_tqdm=False)
    one = stopped.outputs[0]
    assert (one.finish_reason, one.stop_reason) == ("stop", token)
    assert one.token_ids == plain.outputs[0].token_ids[:count]


def test_min_tokens_forbids_the_end(llm: LLM) -> None:
    [plain] = llm.generate("xyz", GREEDY, use_tqdm=False)
    first = plain.outputs[0].token_ids[0]
    params = SamplingParams(temperature=0, stop_token_ids=[first], min_tokens=4, max_tokens=20)
    [output] = llm.generate("xyz", params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) >= 4
    assert first not in output.outputs[0].token_ids[:3]


def test_max_tokens_none_fills_the_context(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    [output] = llm.generate([1] * 100, params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 28
    assert output.outputs[0].finish_reason == "length"


def test_chat_uses_the_models_template(llm: LLM) -> None:
    chat = [{"role": "user", "content": "hi"}]
    [single] = llm.chat(chat, GREEDY, use_tqdm=False)
    assert single.prompt == "[user]hi[assistant]"
    both = llm.chat([chat, chat], GREEDY, use_tqdm=False)
    assert [output.prompt for output in both] == [single.prompt] * 2
    [bare] = llm.chat(chat, GREEDY, use_tqdm=False, add_generation_prompt=False)
    assert bare.prompt == "[user]hi"
    [other] = llm.chat(chat, GREEDY, use_tqdm=False, chat_template="{{ messages[0].content }}!")
    assert other.prompt == "hi!"
    with pytest.raises(RequestError, match="messages cannot be empty"):
        llm.chat([], GREEDY)


def test_chats_can_be_encoded_or_queued(llm: LLM) -> None:
    chat = [{"role": "user", "content": "hi"}]
    [prompt] = llm.preprocess_chat(chat)
    assert prompt["prompt"] == "[user]hi[assistant]"
    tokenizer = llm.get_tokenizer()
    assert prompt["prompt_token_ids"] == tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    [expected] = llm.chat(chat, GREEDY, use_tqdm=False)
    [direct] = llm.generate([prompt], GREEDY, use_tqdm=False)
    ids = llm.enqueue_chat([chat, chat], GREEDY, use_tqdm=False)
    queued = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [output.request_id for output in queued] == ids
    for output in (direct, *queued):
        assert output.prompt == expected.prompt
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    special = {"add_special_tokens": True}
    [again] = llm.chat(chat, GREEDY, use_tqdm=False, tokenization_kwargs=special)
    assert again.prompt_token_ids == tokenizer.encode("[user]hi[assistant]")


def test_a_bar_counts_what_is_enqueued(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.enqueue(["a", "b"], GREEDY)
    assert "Rendering prompts: 100%" in capsys.readouterr().err
    assert len(llm.wait_for_completion(use_tqdm=False)) == 2


def test_enqueue_then_wait(llm: LLM) -> None:
    ids = llm.enqueue(["a", "b"], GREEDY, use_tqdm=False) + llm.enqueue("c", GREEDY)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids
    assert [output.prompt for output in outputs] == ["a", "b", "c"]


def test_what_was_enqueued_is_not_lost_to_another_call(llm: LLM) -> None:
    ids = llm.enqueue("a", GREEDY)
    [other] = llm.generate("b", GREEDY, use_tqdm=False)
    assert other.prompt == "b"
    [kept] = llm.wait_for_completion(use_tqdm=False)
    assert (kept.request_id, kept.prompt) == (ids[0], "a")
    assert llm.wait_for_completion(use_tqdm=False) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda llm, prompts: llm.generate(prompts, GREEDY, use_tqdm=False),
        lambda llm, prompts: llm.beam_search(prompts, BeamSearchParams(3, 6, ignore_eos=True)),
    ],
    ids=["generate", "beam_search"],
)
def test_ctrl_c_leaves_nothing_behind(
    llm: LLM, use: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = llm.llm_engine.engine_core
    execute = core.executor._worker.step
    calls = []

    def pressed_in_the_middle(plan: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return execute(plan)

    monkeypatch.setattr(core.executor._worker, "step", pressed_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        use(llm, ["a", "b"])
    monkeypatch.undo()
    assert len(calls) == 3
    assert not core.has_unfinished_requests()
    core.scheduler.check_integrity()
    assert len(use(llm, "a")) == 1


def test_a_progress_bar_of_ones_own(llm: LLM) -> None:
    from tqdm import tqdm

    out = io.StringIO()
    llm.generate(["a", "b"], GREEDY, use_tqdm=lambda **given: tqdm(**given, file=out))
    assert "Processed prompts: 100%" in out.getvalue()
    assert "2/2" in out.getvalue()


def test_the_prefix_cache_can_be_reset(llm: LLM) -> None:
    prompt = list(range(40))
    llm.generate(prompt, GREEDY, use_tqdm=False)
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 32
    salted = TokensPrompt(prompt_token_ids=prompt, cache_salt="mine")
    assert llm.generate(salted, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
    assert llm.reset_prefix_cache() is True
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_what_does_not_work_is_refused(llm: LLM) -> None:
    with pytest.raises(TypeError, match="lora_request must be of type LoRARequest"):
        llm.generate("a", GREEDY, lora_request=object())  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="do_lower_case is not supported; use add_special_tokens, tr"
    ):
        llm.generate("a", GREEDY, tokenization_kwargs={"do_lower_case": True})
    with pytest.raises(ConfigError, match="max_length requires truncation=True"):
        llm.generate("a", GREEDY, tokenization_kwargs={"max_length": 5})
    with pytest.raises(RequestError, match="takes no images and no audio: it is a text"):
        llm.generate({"prompt": "a", "multi_modal_data": {"image": 1}}, GREEDY)
    with pytest.raises(ConfigError, match="update_weights is not supported: Quire has no connec"):
        llm.update_weights("a")
    with pytest.raises(RequestError, match=r"gives no vectors or classes; use LLM\.generate"):
        llm.embed("a")
    with pytest.raises(RequestError, match=r"gives no vectors or classes; use LLM\.generate"):
        llm.score("a", "b")


def test_a_priority_is_ignored_under_first_come(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], GREEDY, priority=[9, 1], use_tqdm=False)
    assert all(output.finished for output in outputs)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "efg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncation": True, "max_length": 2}, "fg"),
        ({"truncation": True}, "abcdefg"),
        ({"truncate_prompt_tokens": None}, "abcdefg"),
    ],
)
def test_prompts_are_cut_when_asked_for(llm: LLM, options: dict[str, Any], kept: str) -> None:
    tokenizer = llm.get_tokenizer()
    prompts: list[Any] = ["abcdefg", tokenizer.encode("abcdefg")]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False, tokenization_kwargs=options)
    assert [tokenizer.decode(one.prompt_token_ids) for one in outputs] == [kept] * 2
    assert outputs[0].prompt == "abcdefg"


def test_prompts_may_hold_what_has_no_value(llm: LLM) -> None:
    prompt: Any = {"prompt": "a", "multi_modal_data": None, "mm_processor_kwargs": {}}
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].finished


def test_priority_orders_a_batch(model_dir: Path) -> None:
    with LLM(
        str(model_dir), backend="reference", scheduling_policy="priority", max_num_seqs=1
    ) as llm:
        outputs = llm.generate(["a", "b"], GREEDY, priority=[5, 1], use_tqdm=False)
    starts = [output.metrics.scheduled_ts for output in outputs if output.metrics]
    assert starts[1] < starts[0]


def test_two_engines_in_one_process(llm: LLM, model_dir: Path) -> None:
    wanted = llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    with LLM(model=str(model_dir), backend="reference", max_model_len=64) as other:
        assert other.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == wanted
    assert llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == wanted


def test_default_params_are_the_models(model_dir: Path) -> None:
    override = {"temperature": 0.25, "top_k": 7}
    with LLM(str(model_dir), backend="reference", override_generation_config=override) as llm:
        params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 7, 16)


def test_without_a_tokenizer(model_dir: Path) -> None:
    with LLM(str(model_dir), backend="reference", skip_tokenizer_init=True) as llm:
        [output] = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert output.outputs[0].text == ""
        assert len(output.outputs[0].token_ids) == 6
        with pytest.raises(ConfigError, match="skip_tokenizer_init"):
            llm.get_tokenizer()
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            llm.generate("text", GREEDY, use_tqdm=False)


def test_unknown_arguments_suggest_the_nearest(model_dir: Path) -> None:
    with pytest.raises(UnknownArgumentError, match="did you mean gpu_memory_utilization"):
        LLM(str(model_dir), gpu_memory_utilisation=0.5)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, vocab_size=200)
    (directory / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match="ids up to 256"):
        LLM(str(directory), backend="reference")


def test_closing_twice_is_harmless(model_dir: Path) -> None:
    llm = LLM(str(model_dir), backend="reference")
    llm.close()
    llm.close()
