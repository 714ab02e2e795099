"""`image_embeds`: an image that the caller has encoded gives what the image itself gives."""

from __future__ import annotations

import base64
import io
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vision_cases import CASES

Image = pytest.importorskip("PIL.Image")

from quire import LLM, SamplingParams  # noqa: E402
from quire.images.picture import picture_of  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402

_PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}PLACE{% endif %}"
    "{% endfor %}{% endfor %}"
)


def _llm(path: Path, **options: Any) -> LLM:
    return LLM(
        str(path), backend="cpu", dtype="float32", max_model_len=512, num_threads=1,
        num_gpu_blocks_override=100, max_num_batched_tokens=64, max_num_seqs=4, **options,
    )  # fmt: skip


def _encoded(llm: LLM, picture: Any) -> np.ndarray[Any, Any]:
    """The rows of all tiles, as the worker gives them."""
    worker = llm.llm_engine.engine_core.executor.driver_worker
    found, begin = [], 0
    for tile, (height, width) in enumerate(picture.layout.sizes):
        size = picture.layout.num_bytes(tile)
        worker.begin_tile(picture.pixels[begin : begin + size], height, width)
        data = worker.encode_tile(inf)
        rows = vision_model(llm.llm_engine.model_config.hf_config).patching.num_rows(
            (height, width)
        )
        found.append(np.frombuffer(data, "<f4").reshape(rows, -1))
        begin += size
    return np.concatenate(found)


@pytest.mark.parametrize(
    "family", ["llava-clip", "qwen2-vl", "qwen3-vl", "gemma3", "gemma4", "internvl"]
)
def test_rows_of_the_encoder_give_what_the_image_gives(family: str, tmp_path: Path) -> None:
    CASES[family](tmp_path)
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (40, 48, 3)).astype(np.uint8))
    with _llm(tmp_path, enable_mm_embeds=True) as llm:
        vision = vision_model(llm.llm_engine.model_config.hf_config)
        assert vision is not None
        file = io.BytesIO()
        image.save(file, "PNG")
        picture = picture_of(file.getvalue(), vision.resizing)
        rows = _encoded(llm, picture)

        def ask(*given: Any) -> Any:
            text = "A" + vision.placeholder * len(given) + "?"
            data = {"image": given[0] if len(given) == 1 else list(given)}
            [found] = llm.generate({"prompt": text, "multi_modal_data": data}, _PARAMS)
            return found.outputs[0].token_ids, found.outputs[0].cumulative_logprob

        wanted = ask(image)
        given: Any = rows
        if family.startswith("qwen"):
            grid = [1, picture.layout.sizes[0][0] // 4, picture.layout.sizes[0][1] // 4]
            given = {"image_embeds": torch.tensor(rows), "image_grid_thw": torch.tensor([grid])}
            assert ask({**given, "image_grid_thw": [grid]}) == wanted
            with pytest.raises(Exception, match="must be a dict with image_embeds"):
                ask(rows)
            for wrong in (
                [1, 3, 4], [2, 4, 6], [1, 4, 2], "x", [[0, 0, 0]], [float("nan")] * 3,
                [[1, 4, 4], [1]],
            ):  # fmt: skip
                with pytest.raises(Exception, match="image_grid_thw"):
                    ask({**given, "image_grid_thw": wrong})
        else:
            for one in (rows[None], torch.tensor(rows), [rows]):
                assert ask(one) == wanted
            assert ask(image, rows) == ask(rows, image) == ask(image, image)
            wrong = np.concatenate([rows, rows]) if family == "gemma4" else rows[:-1]
            with pytest.raises(Exception, match=r"must have (1 to )?\d+ rows"):
                ask(wrong)
        assert ask(given) == wanted
        other = rows.copy()
        other[-1] += 1  # the last row, in the last block
        if not family.startswith("qwen"):
            assert ask(other) != wanted
            rows[0, 0] = np.inf
            for wrong in (rows, rows[:, 1:]):
                with pytest.raises(Exception, match=r"image_embeds` (must be finite|hidden_size)"):
                    ask(wrong)


def test_a_chat_has_tensors_in_base64_which_are_not_unpickled(tmp_path: Path) -> None:
    CASES["llava-clip"](tmp_path / "model")
    template = _TEMPLATE.replace("PLACE", "<image>")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    rows = np.random.default_rng(6).normal(size=(16, 48)).astype(np.float32)
    tensor, array, code = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(torch.tensor(rows), tensor)
    np.save(array, rows)
    np.save(code, np.array([{"a": 1}], object), allow_pickle=True)

    def part(data: Any, **more: Any) -> dict[str, Any]:
        text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
        return {"type": "image_embeds", "image_embeds": text, **more}

    with _llm(tmp_path / "model", enable_mm_embeds=True) as llm:

        def chat(one: dict[str, Any]) -> Any:
            messages = [{"role": "user", "content": [one, {"type": "text", "text": "What?"}]}]
            return llm.chat(messages, _PARAMS, use_tqdm=False)[0].outputs[0].token_ids

        width = vision_model(llm.llm_engine.model_config.hf_config).row_width
        assert rows.shape[1] == width
        count = vision_model(llm.llm_engine.model_config.hf_config).patching.most_rows
        assert rows.shape[0] == count
        wanted = chat(part(tensor.getvalue(), uuid="a"))
        assert chat(part(array.getvalue())) == wanted
        assert chat(part({"image_embeds": base64.b64encode(array.getvalue()).decode()})) == wanted
        for wrong in (code.getvalue(), b"\x80\x02]q\x00.", b"", tensor.getvalue()[:-200], "?"):
            with pytest.raises(Exception, match=r"image_embeds` (could not be|must be base64)"):
                chat(part(wrong))
        with pytest.raises(Exception, match="must be a tensor, or a dict"):
            chat(part({"rows": "x"}))
    with _llm(tmp_path / "model") as llm, pytest.raises(Exception, match="enable-mm-embeds"):
        chat(part(array.getvalue()))
