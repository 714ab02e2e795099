"""Models with sounds, tiny and random, against transformers in float32, through the engine."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from output_bits import bits_of
from sound_files import at_rate
from vision_cases import CASES, SOUND_CASES, check_prompt, check_reply

from quire import LLM, SamplingParams
from quire.backends.reference import ReferenceBackend
from quire.config.checkpoint.model_files import read_config
from quire.errors import ConfigError
from quire.images.sound.rules import RATE, Sound
from quire.images.sound.spectrum import log_mel
from quire.images.sound.wav import wav_of
from quire.models.media import whisper
from quire.models.media.families import vision_model
from quire.models.media.settings import with_image_processor
from quire.program import HeadLayout
from quire.weights import open_encoder
from quire.worker.image_encoder import ImageEncoder

_NUM_TOKENS = 32
_PARAMS = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True, logprobs=3)
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>{% endif %}{% endfor %}{% endfor %}"
)


def _sound(seconds: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 0.2, round(seconds * RATE)).astype(np.float32)


def _values(path: Path, name: str, sounds: list[Any]) -> dict[str, torch.Tensor]:
    """The arguments that transformers' model gets for sounds."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(path)
    if name == "qwen2-audio":
        given = extractor(
            sounds, sampling_rate=RATE, return_attention_mask=True, padding="max_length",
            return_tensors="pt",
        )  # fmt: skip
        return {
            "input_features": given["input_features"],
            "feature_attention_mask": given["attention_mask"],
        }
    parts = []
    for one in sounds:
        given = extractor(
            one, sampling_rate=RATE, padding=True, truncation=False, pad_to_multiple_of=RATE,
            return_tensors="pt",
        )  # fmt: skip
        parts.append(given["input_features"].reshape(20, -1, 100).transpose(0, 1))
    return {"input_features": torch.cat(parts)}


def _model(path: Path) -> Any:
    kind = getattr(transformers, read_config(path)["architectures"][0])
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", SOUND_CASES)
def test_tokens_and_logprobs_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    SOUND_CASES[name](tmp_path)
    with LLM(
        str(tmp_path), backend=backend, dtype="float32", max_model_len=1024, max_num_seqs=4,
        num_gpu_blocks_override=200, max_num_batched_tokens=11,
    ) as llm:  # fmt: skip
        vision = vision_model(llm.llm_engine.model_config.hf_config)
        assert vision is not None
        place = vision.placeholder
        longest = 1.0 if name == "qwen2-audio" else 2.3
        groups = [[_sound(longest)], [_sound(0.437, 1), _sound(0.9995, 2)], []]
        prompts = [
            {"prompt": f"Hi {place} what?", "multi_modal_data": {"audio": (groups[0][0], RATE)}},
            {"prompt": f"A{place}B, then {place}C", "multi_modal_data": {"audio": groups[1]}},
            {"prompt": "no sound at all"},
        ]
        outputs = llm.generate(prompts, _PARAMS, use_tqdm=False)
        again = llm.generate(prompts, _PARAMS, use_tqdm=False)
        of_prompts = llm.generate(
            prompts, SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False
        )
    model = _model(tmp_path)
    for sounds, output, second, told in zip(groups, outputs, again, of_prompts, strict=True):
        given = _values(tmp_path, name, sounds) if sounds else {}
        check_reply(model, output, _NUM_TOKENS, **given)
        check_prompt(model, told, **given)
        assert second.outputs[0].token_ids == output.outputs[0].token_ids
        if sounds:
            assert second.num_cached_tokens >= 16


def _rows(path: Path) -> Any:
    """The rows of the text for two sounds."""
    vision = vision_model(with_image_processor(read_config(path), path))
    assert vision is not None
    assert isinstance(vision.resizing, Sound)
    with closing(open_encoder(path)) as store:
        encoder = ImageEncoder(ReferenceBackend(), vision, store, "float32", 512)
    found = []
    with closing(encoder):
        for sound in (_sound(0.99), _sound(0.41, 1)):
            spectrum = log_mel(sound, vision.resizing)
            rows = encoder.begin(spectrum).advance(math.inf)
            assert rows is not None
            found.append(rows)
    return np.concatenate(found)


def _spec(**changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    read = whisper._spec
    return lambda patch: patch.setattr(
        whisper, "_spec", lambda audio: replace(read(audio), **changes)
    )


def _order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(whisper, "_side_by_side", lambda taps: np.concatenate(taps, axis=1))


@pytest.mark.parametrize(
    "change",
    [
        _spec(num_layers=2),
        _spec(activation="relu"),
        _spec(eps=1e-1),
        _spec(heads=HeadLayout(2, 2, 18)),
        _spec(norm_first=False),
        lambda patch: patch.setattr(whisper, "_EPS", 1e-1),
        _order,
    ],
)
def test_another_value_gives_other_rows(
    change: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SOUND_CASES["qwen2-audio"](tmp_path)
    model, wanted = _model(tmp_path).model, []
    for sound in (_sound(0.99), _sound(0.41, 1)):
        given = _values(tmp_path, "qwen2-audio", [sound])
        frames = given["feature_attention_mask"].sum(-1)
        count, num_rows = model.audio_tower._get_feat_extract_output_lengths(frames)
        mask = torch.zeros(1, 1, 50, 50)
        mask[..., int(count) :] = -torch.inf
        with torch.no_grad():
            states = model.audio_tower(given["input_features"], attention_mask=mask)
            rows = model.multi_modal_projector(states.last_hidden_state)
        wanted.append(rows[0, : int(num_rows)].numpy())
    assert np.abs(_rows(tmp_path) - np.concatenate(wanted)).max() < 1e-4
    change(monkeypatch)
    assert np.abs(_rows(tmp_path) - np.concatenate(wanted)).max() > 1e-3


def test_prompts_in_company_have_the_bits_that_they_have_alone(tmp_path: Path) -> None:
    SOUND_CASES["qwen2-audio"](tmp_path)
    params = [
        SamplingParams(temperature=1, seed=at, max_tokens=12, ignore_eos=True, logprobs=1)
        for at in range(6)
    ]
    prompts = [
        {
            "prompt": "Hear <|AUDIO|> and <|AUDIO|>"[: 14 if at % 2 else None],
            "multi_modal_data": {"audio": [_sound(0.3 + at / 9, at)] * (2 - at % 2)},
        }
        for at in range(6)
    ]
    options = {"backend": "cpu", "dtype": "float32", "max_model_len": 128, "kv_store": False}
    with LLM(str(tmp_path), num_gpu_blocks_override=100, **options) as llm:
        alone = [
            bits_of(llm.generate(prompt, one, use_tqdm=False)[0])
            for prompt, one in zip(prompts, params, strict=True)
        ]
    with LLM(
        str(tmp_path), num_gpu_blocks_override=11, max_num_batched_tokens=7, max_num_seqs=4,
        **options,
    ) as llm:  # fmt: skip
        assert [bits_of(one) for one in llm.generate(prompts, params, use_tqdm=False)] == alone


def test_spellings_of_a_sound_give_one_answer_and_others_say_why(tmp_path: Path) -> None:
    SOUND_CASES["qwen2-audio"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text(_TEMPLATE)
    (tmp_path / "sounds").mkdir()
    sound = _sound(0.7)
    file = wav_of(sound, RATE)
    (tmp_path / "sounds" / "a.wav").write_bytes(file)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=128,
        num_gpu_blocks_override=40, limit_mm_per_prompt={"audio": 2},
        allowed_local_media_path=str(tmp_path / "sounds"),
    ) as llm:  # fmt: skip

        def ask(given: Any, text: str = "<|audio_bos|><|AUDIO|><|audio_eos|>?", **more: Any) -> Any:
            prompt = {"prompt": text, "multi_modal_data": {"audio": given}, **more}
            return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

        def chat(*parts: Any) -> Any:
            messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]
            return llm.chat(messages, params, use_tqdm=False)[0].outputs[0].token_ids

        wanted = ask((sound, RATE))
        stereo = np.stack([sound, sound])
        spellings = [
            sound, [sound], [(sound, RATE)], (sound.astype(np.float64), float(RATE)), file, [file],
            torch.tensor(sound), (stereo, RATE), (stereo.T, RATE),
        ]  # fmt: skip
        for given in spellings:
            assert ask(given) == wanted
        assert ask(sound, multi_modal_uuids={"audio": ["a"]}) == wanted
        high = at_rate(sound, RATE, 24_000)
        assert ask((high, 24_000)) == ask(at_rate(high, 24_000, RATE))
        text = base64.b64encode(file).decode()
        url = f"data:audio/wav;base64,{text}"
        for part in (
            {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}, "uuid": "a"},
            {"type": "audio_url", "audio_url": {"url": url}},
            {"type": "audio_url", "audio_url": url},
            {"audio_url": {"url": f"file://{tmp_path}/sounds/a.wav"}},
        ):
            assert chat(part) == wanted
        assert chat({"type": "text", "text": "<|AUDIO|>"}) != wanted
        for given, error in (
            ([sound] * 3, r"At most 2 audio\(s\)"),
            ([sound] * 2, "once for each audio"),
            ((sound, 0), "a whole rate"),
            ((sound, 16000.5), "a whole rate"),
            ((sound, math.nan), "a whole rate"),
            ((sound, 10**400), "a whole rate"),
            (np.zeros(9, np.int16), "floating-point samples"),
            (np.zeros((2, 2, 2), np.float32), "floating-point samples"),
            (np.zeros((0, 2), np.float32), "floating-point samples"),
            (3, "floating-point samples"),
            ([None], "floating-point samples"),
            (np.full(9999, np.inf, np.float32), "not numbers"),
            (_sound(1.01), "hears at most 1 s"),
            (_sound(0.02), "too short"),
            (b"#!AMR" + bytes(99), "must be a file of type"),
            ("file:///etc/passwd", "must point to a file below"),
            ("http://127.0.0.1/a.wav", "not fetched"),
        ):
            with pytest.raises(Exception, match=error):
                ask(given)
        with pytest.raises(Exception, match="multi_modal_uuids must"):
            ask(sound, multi_modal_uuids={"audio": ["a", "b"]})
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with pytest.raises(Exception, match="this model takes no images"):
            chat(image)
        for part in (
            {"type": "input_audio", "input_audio": {"data": "!", "format": "wav"}},
            {"type": "input_audio", "input_audio": {}},
            {"type": "audio_url", "audio_url": None},
            {"type": "audio_embeds", "audio_embeds": "AAAA"},
        ):
            with pytest.raises(Exception, match=r"base64|must have the URL of audio|this model"):
                chat(part)


@pytest.mark.parametrize(
    ("name", "limits", "error"),
    [
        ("voxtral", {"image": 1}, "must have no image: the model takes audio alone"),
        ("smolvlm", {"audio": 1}, "must have no audio: the model takes image alone"),
    ],
)
def test_limits_name_what_the_model_takes(
    name: str, limits: dict[str, int], error: str, tmp_path: Path
) -> None:
    ({**CASES, **SOUND_CASES})[name](tmp_path)
    with pytest.raises(ConfigError, match=error):
        LLM(str(tmp_path), limit_mm_per_prompt=limits, max_model_len=64)


def test_no_sound_is_allowed_where_the_limit_says_so(tmp_path: Path) -> None:
    SOUND_CASES["voxtral"](tmp_path)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=64,
        num_gpu_blocks_override=20, limit_mm_per_prompt={"audio": 0, "image": 0},
    ) as llm, pytest.raises(Exception, match="audio: limit_mm_per_prompt allows"):  # fmt: skip
        llm.generate({"prompt": "[AUDIO]", "multi_modal_data": {"audio": _sound(0.5)}}, _PARAMS)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hop_length": 80}, "hop_length must be 160"),
        ({"padding_value": 0.5}, "padding_value must be 0"),
        ({"padding_side": "left"}, "padding_side must be right"),
        ({"feature_size": 21}, "feature_size must be 20"),
        ({"dither": 1.0}, "must be off"),
        ({"do_normalize": True}, "must be off"),
    ],
)
def test_other_feature_extractors_are_refused(
    changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    SOUND_CASES["voxtral"](tmp_path)
    config = with_image_processor(read_config(tmp_path), tmp_path)
    mark = "quire_image_processor"
    with pytest.raises(Exception, match=error):
        vision_model({**config, mark: {**config[mark], **changes}})
