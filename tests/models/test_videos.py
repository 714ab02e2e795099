"""Videos as frames, tiny and random, against transformers in float32, through the engine."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from vision_cases import CASES, check_prompt, check_reply

Image = pytest.importorskip("PIL.Image")

from quire import LLM, SamplingParams  # noqa: E402
from quire.config.checkpoint.model_files import read_config  # noqa: E402
from quire.images.picture import Picture, picture_of  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.models.media.model import normalised  # noqa: E402
from quire.models.media.settings import (  # noqa: E402
    with_image_processor,
    with_processor_kwargs,
)

_NUM_TOKENS = 32
_PARAMS = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True, logprobs=3)
_FPS = 8.0
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% endif %}{% endfor %}{% endfor %}"
)


def _frames(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return rng.integers(0, 256, (count, height, width, 3)).astype(np.uint8)


def _file(frame: Any, kind: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    frame.save(file, kind, **more)
    return file.getvalue()


def _rows(picture: Picture, resizing: Any) -> tuple[torch.Tensor, list[int]]:
    """What transformers' `patchify` makes of a picture or a video, and its grid in patches."""
    layout, (height, width) = picture.layout, picture.layout.sizes[0]
    frames = np.frombuffer(picture.pixels, np.uint8).reshape(-1, height, width, 3)
    if layout.frames == 1:
        frames = np.repeat(frames, 2, axis=0)
    values = normalised(frames, resizing).transpose(0, 3, 1, 2)
    grid = [len(values) // 2, height // 4, width // 4]
    cut = values.reshape(grid[0], 2, 3, grid[1] // 2, 2, 4, grid[2] // 2, 2, 4)
    rows = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(np.prod(grid), -1)
    return torch.tensor(np.ascontiguousarray(rows)), grid


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_tokens_and_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    CASES[family](tmp_path)
    rng = np.random.default_rng(3)
    picture, frames = _frames(rng, 1, 40, 24)[0], _frames(rng, 5, 24, 40)
    kwargs = {"fps": _FPS}
    text = "Hi <|image_pad|> and <|vision_start|><|video_pad|><|vision_end|> what is this?"
    with LLM(
        str(tmp_path), backend="cpu", dtype="float32", max_model_len=1024, max_num_seqs=4,
        num_gpu_blocks_override=200, max_num_batched_tokens=24, num_threads=2,
    ) as llm:  # fmt: skip
        settings = with_processor_kwargs(llm.llm_engine.model_config.hf_config, kwargs)
        data = {"video": frames, "image": picture}
        prompt = {"prompt": text, "multi_modal_data": data, "mm_processor_kwargs": kwargs}
        [output] = llm.generate(prompt, _PARAMS, use_tqdm=False)
        [again] = llm.generate(prompt, _PARAMS, use_tqdm=False)
        [of_prompt] = llm.generate(
            prompt, SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False
        )
        slower = llm.generate({**prompt, "mm_processor_kwargs": {"fps": 1}}, _PARAMS)[0]
    vision = vision_model(settings)
    assert vision is not None
    assert vision.video is not None
    image = picture_of(_file(Image.fromarray(picture)), vision.resizing)
    files = [_file(Image.fromarray(frame)) for frame in frames]
    video = picture_of(files[0], vision.video.resizing, files[1:])
    (image_rows, image_grid), (rows, grid) = (
        _rows(image, vision.resizing), _rows(video, vision.video.resizing)
    )  # fmt: skip
    assert grid[0] == 3
    ids = torch.tensor([output.prompt_token_ids])
    kinds = (ids == vision.row_token_id).int() + 2 * (ids == vision.video.row_token_id).int()
    assert (kinds == 2).sum() == np.prod(grid) // 4
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    more = {"second_per_grid_ts": [2 / _FPS]} if family == "qwen2.5-vl" else {}
    given: dict[str, Any] = {
        "mm_token_type_ids": kinds, "pixel_values": image_rows, "pixel_values_videos": rows,
        "image_grid_thw": torch.tensor([image_grid]), "video_grid_thw": torch.tensor([grid]),
        **more,
    }  # fmt: skip
    check_reply(model, output, _NUM_TOKENS, **given)
    check_prompt(model, of_prompt, **given)
    assert again.outputs[0].token_ids == output.outputs[0].token_ids
    assert again.num_cached_tokens >= 16
    if family == "qwen3-vl":
        decoded = bytes(one for one in output.prompt_token_ids if one < 256)
        assert len(decoded) > 3 * len("<0.1 seconds>")
    if family != "qwen2-vl":  # whose tiles are counted, not timed
        assert slower.outputs[0].logprobs != output.outputs[0].logprobs


def test_spellings_of_a_video_give_one_answer_and_others_say_why(tmp_path: Path) -> None:
    CASES["qwen2-vl"](tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(_TEMPLATE)
    frames = _frames(np.random.default_rng(4), 4, 24, 40)
    images = [Image.fromarray(frame) for frame in frames]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(
        str(tmp_path / "model"), backend="cpu", dtype="float32", max_model_len=512, num_threads=1,
        num_gpu_blocks_override=100, limit_mm_per_prompt={"video": 1},
    ) as llm:  # fmt: skip
        text = "<|vision_start|><|video_pad|><|vision_end|>?"

        def ask(video: Any) -> Any:
            prompt = {"prompt": text, "multi_modal_data": {"video": video}}
            return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

        def chat(url: str) -> Any:
            parts = [
                {"type": "video_url", "video_url": {"url": url}},
                {"type": "text", "text": "?"},
            ]
            message = [{"role": "user", "content": parts}]
            return llm.chat(message, params, use_tqdm=False)[0].outputs[0].token_ids

        wanted = ask(frames)
        animated = _file(images[0], "WEBP", save_all=True, append_images=images[1:], lossless=True)
        for given in (images, [frames], torch.tensor(frames), list(frames), animated):
            assert ask(given) == wanted
        encoded = [base64.b64encode(_file(one)).decode() for one in images]
        assert chat("data:video/jpeg;base64," + ",".join(encoded)) == wanted
        whole = base64.b64encode(animated).decode()
        assert chat(f"data:image/webp;base64,{whole}") == wanted
        assert ask(frames[:3]) != wanted
        mp4 = b"\0\0\0\x20ftypisom" + bytes(60)
        for given, message in (
            (mp4, "containers such as mp4 cannot be decoded"),
            ([frames, frames], r"At most 1 video"),
            ([images[0], images[1].resize((8, 8))], "must have one size"),
            ([], "once for each video"),
            (np.zeros((0, 4, 4, 3), np.uint8), "must have as a video"),
            (3, "must have as a video"),
        ):
            with pytest.raises(Exception, match=message):
                ask(given)
        for url in ("data:video/mp4;base64," + base64.b64encode(mp4).decode(),
                    "data:video/jpeg;base64," + encoded[0] + ",AAAA"):  # fmt: skip
            with pytest.raises(Exception, match=r"cannot be decoded|must be a file of type"):
                chat(url)


def test_times_of_frames_are_those_of_transformers(tmp_path: Path) -> None:
    CASES["qwen3-vl"](tmp_path)
    config = with_image_processor(read_config(tmp_path), tmp_path)
    processor = transformers.models.qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor
    for fps in (2.0, 1.0, 0.3, 7.0):
        vision = vision_model(with_processor_kwargs(config, {"fps": fps}))
        assert vision is not None
        assert vision.video is not None
        for count in range(1, 9):
            indices = list(range(count))
            times = processor._calculate_timestamps(None, indices, fps, 2)
            text = vision.video.expansion(vision.video.resizing.of_frames((24, 40), count))
            assert re.findall(r"<([\d.]+) seconds>", text) == [f"{one:.1f}" for one in times]


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen3-vl"])
def test_narrow_pictures_and_short_videos_are_computed(family: str, tmp_path: Path) -> None:
    CASES[family](tmp_path)
    rng = np.random.default_rng(4)
    given = [
        ("image", _frames(rng, 1, 2000, 10)[0], {}),
        ("image", _frames(rng, 1, 3, 600)[0], {"min_pixels": 2000, "max_pixels": 2000}),
        ("video", _frames(rng, 1, 300, 400), {}),
        ("video", _frames(rng, 3, 5, 1000), {}),
    ]
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=1024, max_num_seqs=4,
        num_gpu_blocks_override=200,
    ) as llm:  # fmt: skip
        for kind, data, kwargs in given:
            text = f"<|vision_start|><|{kind}_pad|><|vision_end|>"
            prompt = {"prompt": text, "multi_modal_data": {kind: data}}
            prompt["mm_processor_kwargs"] = kwargs
            [output] = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
            assert output.outputs[0].token_ids
