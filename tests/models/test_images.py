"""Models with images, tiny and random, against transformers in float32, through the engine."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf_images import ImagesModel
from vision_cases import CASES, GGUF_CASES, check_prompt, check_reply, gemma4_values

Image = pytest.importorskip("PIL.Image")

from quire import LLM, SamplingParams  # noqa: E402
from quire.images.picture import picture_of  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.models.media.model import VisionModel, normalised  # noqa: E402

_NUM_TOKENS = 32
_PARAMS = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True, logprobs=3)


def _picture(rng: np.random.Generator, height: int, width: int) -> Any:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _values(vision: VisionModel, images: list[Any]) -> dict[str, torch.Tensor]:
    """The arguments that transformers' model gets for images; `test_rules` holds the pixel values
    against the library's processors."""
    tiles = []
    for image in images:
        picture = picture_of(_png(image), vision.resizing)
        for tile in vision.tiles(picture.layout, picture.pixels):
            tiles.append(normalised(tile, vision.resizing).transpose(2, 0, 1))
    if vision.family == "qwen_vl":
        return _qwen_values(tiles)
    if vision.family == "pixtral":
        return _padded_values(tiles)
    if vision.family == "gemma4":
        return gemma4_values(vision, tiles)
    if vision.family == "llava_next":
        sizes = torch.tensor([[image.height, image.width] for image in images])
        return {"pixel_values": torch.tensor(np.array(tiles)), "image_sizes": sizes}
    found = torch.tensor(np.array(tiles))
    return {"pixel_values": found[None] if vision.family == "idefics3" else found}


def _padded_values(tiles: list[Any]) -> dict[str, torch.Tensor]:
    """Images of different sizes, padded with zeros to the largest."""
    sizes = [one.shape[1:] for one in tiles]
    most = np.max(sizes, axis=0)
    padded = [np.pad(one, ((0, 0), *((0, m - n) for m, n in zip(most, one.shape[1:], strict=True))))
              for one in tiles]  # fmt: skip
    return {"pixel_values": torch.tensor(np.array(padded)), "image_sizes": torch.tensor(sizes)}


def _qwen_values(tiles: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of patches of 4 x 4 pixels, in squares of 2 x 2 patches, as transformers orders them."""
    rows, grids = [], []
    for tile in tiles:
        height, width = tile.shape[1] // 4, tile.shape[2] // 4
        cut = tile.reshape(3, height // 2, 2, 4, width // 2, 2, 4)
        patches = cut.transpose(1, 4, 2, 5, 0, 3, 6).reshape(height * width, 3, 1, 16)
        rows.append(np.repeat(patches, 2, axis=2).reshape(height * width, -1))
        grids.append([1, height, width])
    return {
        "pixel_values": torch.tensor(np.concatenate(rows)),
        "image_grid_thw": torch.tensor(grids),
    }


@pytest.fixture(autouse=True)
def _masks_of_gemma4_unified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of an image see each other in layers with windows alone, as the masks that
    transformers prepares for static caches say; its `forward` forgets it for this model."""
    module = transformers.models.gemma4_unified.modeling_gemma4_unified
    every = module.create_masks_for_generate

    def masks(block_sequence_ids: Any = None, **given: Any) -> Any:
        if block_sequence_ids is None:
            return every(**given)
        return module.create_masks_for_vision_model(block_sequence_ids=block_sequence_ids, **given)

    monkeypatch.setattr(module, "create_masks_for_generate", masks)


_BACKENDS = ("reference", "cpu")
_GGUF_RUNS = [
    # Half of them by default: the backends are the same as those of the checkpoints.
    pytest.param(name, _BACKENDS[(at + half) % 2], marks=[pytest.mark.long] * half)
    for half in range(2)
    for at, name in enumerate(GGUF_CASES)
]


@pytest.mark.sweep(10)
@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_logprobs_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    CASES[name](tmp_path)
    _compare(name, tmp_path, tmp_path, backend)


@pytest.mark.sweep(9)
@pytest.mark.parametrize(("name", "backend"), _GGUF_RUNS)
def test_gguf_files_give_the_tokens_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    GGUF_CASES[name](tmp_path)
    _compare(name, tmp_path, ImagesModel(tmp_path).write(tmp_path / "gguf"), backend)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_an_emulated_gpu_has_the_tokens_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    CASES[name](tmp_path)
    _compare(name, tmp_path, tmp_path, "cuda")


def _compare(name: str, checkpoint: Path, model_path: Path, backend: str) -> None:
    """The tokens and log probabilities of an engine and of transformers."""
    rng = np.random.default_rng(5)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # Files of Gemma 4 do not say how many tokens an image has.
    kwargs = {"max_soft_tokens": 18} if model_path.suffix and "gemma4" in name else None
    with LLM(
        str(model_path), backend=backend, dtype="float32", max_model_len=1024,
        num_gpu_blocks_override=200, max_num_batched_tokens=48, max_num_seqs=4,
        mm_processor_kwargs=kwargs,
    ) as llm:  # fmt: skip
        vision = vision_model(llm.llm_engine.model_config.hf_config)
        assert vision is not None
        place = vision.placeholder
        groups = [[_picture(rng, 61, 23)], [_picture(rng, 20, 30), _picture(rng, 33, 90)], []]
        prompts = [
            {"prompt": f"Hi {place} what?", "multi_modal_data": {"image": groups[0][0]}},
            {"prompt": f"A{place}B, then {place}C", "multi_modal_data": {"image": groups[1]}},
            {"prompt": "no picture"},
        ]
        outputs = llm.generate(prompts, _PARAMS, use_tqdm=False)
        again = llm.generate(prompts, _PARAMS, use_tqdm=False)
        of_prompts = llm.generate(
            prompts, SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False
        )
    for images, output, second, told in zip(groups, outputs, again, of_prompts, strict=True):
        ids = torch.tensor([output.prompt_token_ids])
        given = _values(vision, images) if images else {}
        if vision.family in ("qwen_vl", "gemma4"):
            given["mm_token_type_ids"] = (ids == vision.row_token_id).int()
        if vision.family == "gemma3":
            given["token_type_ids"] = (ids == vision.row_token_id).int()
        check_reply(model, output, _NUM_TOKENS, **given)
        check_prompt(model, told, **given)
        assert second.outputs[0].token_ids == output.outputs[0].token_ids
        if images:
            assert second.num_cached_tokens >= 16


def test_another_picture_never_hits_and_a_text_model_says_why(tmp_path: Path) -> None:
    CASES["smolvlm"](tmp_path)
    rng = np.random.default_rng(6)
    first, second = _picture(rng, 40, 40), _picture(rng, 40, 40)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=512,
        num_gpu_blocks_override=100, limit_mm_per_prompt={"image": 1},
    ) as llm:  # fmt: skip
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

        def ask(image: Any) -> Any:
            prompt = {"prompt": "What is <image> this?", "multi_modal_data": {"image": image}}
            return llm.generate(prompt, params, use_tqdm=False)[0]

        one, other, again = ask(first), ask(second), ask(first)
        assert one.outputs[0].token_ids != other.outputs[0].token_ids
        assert other.num_cached_tokens == 0
        assert again.num_cached_tokens > 0
        assert again.outputs[0].token_ids == one.outputs[0].token_ids
        with pytest.raises(Exception, match="At most 1 image"):
            ask([first, second])
        with pytest.raises(Exception, match="once for each image"):
            llm.generate({"prompt": "no", "multi_modal_data": {"image": first}}, params)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=512,
        num_gpu_blocks_override=100, limit_mm_per_prompt={"image": 0},
    ) as llm, pytest.raises(Exception, match="takes no images and no audio: limit_mm"):  # fmt: skip
        llm.generate({"prompt": "<image>", "multi_modal_data": {"image": first}}, params)


def test_a_chat_takes_images_and_the_text_of_users_stays_text(tmp_path: Path) -> None:
    CASES["idefics3"](tmp_path)
    image = _picture(np.random.default_rng(7), 40, 40)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=512,
        num_gpu_blocks_override=100,
    ) as llm:  # fmt: skip

        def chat(*parts: Any) -> Any:
            return llm.chat([{"role": "user", "content": [*parts]}], params, use_tqdm=False)[0]

        picture = {"type": "image_pil", "image_pil": image}
        plain = chat(picture, {"type": "text", "text": "x"})
        tricky = chat(picture, {"type": "text", "text": "<image>x"})
        token = llm.get_tokenizer().convert_tokens_to_ids("<image>")
        ids = [list(one.prompt_token_ids) for one in (plain, tricky)]
        # The user's text adds one token, and no picture.
        assert ids[1].count(token) == ids[0].count(token) + 1
        assert len(ids[1]) == len(ids[0]) + 1
        for url, message in (
            ("http://127.0.0.1/x.png", "not fetched"),
            ("file:///etc/passwd", "allowed-local-media-path"),
            ("data:image/png;base64,AAAA", "must be a file of type"),
        ):
            with pytest.raises(Exception, match=message):
                chat({"type": "image_url", "image_url": {"url": url}})


def test_spellings_settings_and_the_cache_of_the_encoder(tmp_path: Path) -> None:
    CASES["qwen2-vl"](tmp_path)
    image = _picture(np.random.default_rng(9), 40, 48)
    array = np.asarray(image)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=48,
        num_gpu_blocks_override=40, enable_prefix_caching=False, kv_store=False,
    ) as llm:  # fmt: skip

        def ask(given: Any, **more: Any) -> Any:
            prompt = {"prompt": "A <|image_pad|>?", "multi_modal_data": {"image": given}, **more}
            return llm.generate(prompt, params, use_tqdm=False)[0]

        wanted = ask(image)
        spellings = [
            [image], (image,), _png(image), array, array.transpose(2, 0, 1), torch.tensor(array),
        ]  # fmt: skip
        for given in spellings:
            assert ask(given).outputs[0].token_ids == wanted.outputs[0].token_ids
        settings = {"max_pixels": 512, "min_pixels": 64}
        small = ask(image, mm_processor_kwargs=settings)
        assert len(small.prompt_token_ids) < len(wanted.prompt_token_ids)
        prompt = {"prompt": "A <|image_pad|>?", "multi_modal_data": {"image": image}}
        [again] = llm.generate(prompt, params, mm_processor_kwargs=settings, use_tqdm=False)
        assert again.outputs[0].token_ids == small.outputs[0].token_ids
        for wrong in ({"max_pixels": 10**6}, {"image_mean": [0, 0, 0]}, {"max_pixels": "x"}, "x"):
            with pytest.raises(Exception, match="mm_processor_kwargs"):
                ask(image, mm_processor_kwargs=wrong)
        for wrong in (_picture(np.random.default_rng(1), 2, 500), np.zeros((4, 4, 4), np.uint8)):
            with pytest.raises(Exception, match=r"too narrow|must have a Pillow image"):
                ask(wrong)
        with pytest.raises(Exception, match="maximum context length"):
            ask(_picture(np.random.default_rng(1), 80, 80))  # more rows than fit
        cache = llm.llm_engine.engine_core._capabilities._stages[0].cache
        assert len(cache) == 3  # by the bytes of files and the settings
        llm.llm_engine.reset_mm_cache()
        assert len(cache) == 0
        assert ask(image).outputs[0].token_ids == wanted.outputs[0].token_ids
