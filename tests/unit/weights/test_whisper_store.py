"""One random Whisper model in the three forms in which it is found: the same tensors and tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from weight_files import read_all
from whisper_files import (
    Model,
    ct2_arrays,
    ct2_file,
    random_model,
    texts,
    write_ct2,
    write_ggml,
    write_hf,
)

from quire.config.model_lookup.hub import resolve_model
from quire.config.whisper.alignment_heads import heads_by_name
from quire.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from quire.models import shipped_format
from quire.models.quantised.block_formats import BlockFormats
from quire.tokenizer import Tokenizer
from quire.weights import WeightStore, open_checkpoint
from quire.weights.quantised.store import as_shipped

_WORST = {"Q4_0": 0.13, "Q4_1": 0.07, "Q5_0": 0.07, "Q5_1": 0.035, "Q8_0": 0.005}
"""Largest error of a type, as a part of the largest number of a tensor."""


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _opened(path: Path) -> tuple[Path, WeightStore]:
    directory = resolve_model(str(path))
    return directory, open_checkpoint(directory)


def _check_near(store: WeightStore, model: Model, worst: float) -> None:
    found = read_all(store)
    found = {name: array for name, array in found.items() if not name.endswith("_scale")}
    assert found.keys() == model.tensors.keys()
    for name, array in model.tensors.items():
        assert found[name].shape == array.shape, name
        assert np.abs(found[name] - array).max() <= worst * np.abs(array).max(), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_forms_have_the_same_bits(tmp_path: Path, model: Model, dtype: str) -> None:
    stores = [
        _opened(write_hf(tmp_path / "hf", model, dtype))[1],
        _opened(write_ct2(tmp_path / "ct2", model, dtype))[1],
        _opened(write_ggml(tmp_path / "m.bin", model, "F32" if dtype == "float32" else "F16"))[1],
    ]
    assert len({frozenset(store.names()) for store in stores}) == 1
    for name, array in model.tensors.items():
        first, *others = [store.get(name) for store in stores]
        for other in others:
            assert other.shape == first.shape == array.shape == other.to_float32().shape
            assert np.array_equal(other.to_float32(), array), name
        assert others[0].dtype == first.dtype
        assert np.array_equal(others[0].data, first.data)
        assert all(other.is_mapped for other in others)


def test_all_forms_say_the_same_of_the_model(tmp_path: Path, model: Model) -> None:
    hf = json.loads((write_hf(tmp_path / "hf", model) / "config.json").read_text())
    for path in (write_ct2(tmp_path / "ct2", model), write_ggml(tmp_path / "g.bin", model)):
        directory = resolve_model(str(path))
        config = json.loads((directory / "config.json").read_text())
        assert config.items() >= hf.items()
        sound = json.loads((directory / "preprocessor_config.json").read_text())
        assert (sound["feature_size"], sound["n_samples"]) == (8, 20 * 320)
        end = model.end
        generation = json.loads((directory / "generation_config.json").read_text())
        assert config["eos_token_id"] == generation["eos_token_id"] == end
        assert generation["decoder_start_token_id"] == end + 1
    generation = json.loads(
        (resolve_model(str(tmp_path / "ct2")) / "generation_config.json").read_text()
    )
    assert generation["alignment_heads"] == [[1, 0], [2, 3]]
    assert generation["suppress_tokens"] == [1, 2, 7]
    assert generation["begin_suppress_tokens"] == [220]


def test_a_thousand_texts_have_the_same_tokens(tmp_path: Path, model: Model) -> None:
    places = {
        "hf": write_hf(tmp_path / "hf", model),
        "ct2": write_ct2(tmp_path / "ct2", model),
        "vocabulary": write_ct2(tmp_path / "plain", model, has_tokenizer=False),
        "ggml": write_ggml(tmp_path / "g.bin", model),
    }
    directories = {name: resolve_model(str(path)) for name, path in places.items()}
    assert (directories["ct2"] / "tokenizer.json").is_file()
    assert not (directories["vocabulary"] / "tokenizer.json").exists()
    tokenizers = {name: Tokenizer.from_directory(one) for name, one in directories.items()}
    first = tokenizers["hf"]
    words = [*texts(1000), "", "<|en|> and <|0.02|> and <|30.00|>"]
    wanted = first.encode_batch(words, add_special_tokens=False)
    for name, one in tokenizers.items():
        assert one.encode_batch(words, add_special_tokens=False) == wanted, name
        assert one.backend.decode_batch(wanted, skip_special_tokens=False) == words
    assert len({tuple(one.encode("again")) for one in tokenizers.values()}) == 1
    size = model.config["vocab_size"]
    for one in tokenizers.values():
        assert one.backend.get_vocab_size() == size
        assert one.backend.id_to_token(size - 1) == "<|30.00|>"


def test_an_empty_token_may_be_the_last_of_a_vocabulary(tmp_path: Path) -> None:
    """Multilingual models have one."""
    model = random_model()
    sizes = {**model.config, "vocab_size": model.config["vocab_size"] + 1}
    table = np.concatenate([model.tensors[_TABLE], np.ones((1, 32), np.float32)])
    wider = Model(sizes, {**model.tensors, _TABLE: table}, model.tokenizer, model.words)
    path = write_ggml(tmp_path / "g.bin", wider, has_empty_token=True)
    tokenizer = Tokenizer.from_directory(resolve_model(str(path)))
    end = model.end
    assert tokenizer.backend.token_to_id("<|endoftext|>") == end + 1
    ids = tokenizer.encode("again")
    assert ids[1:-1] == [tokenizer.backend.token_to_id("<|notimestamps|>"), *_ids(model, "again")]
    assert (ids[0], ids[-1]) == (end + 2, end + 1)


def _ids(model: Model, text: str) -> list[int]:
    found: list[int] = model.tokenizer.encode(text, add_special_tokens=False).ids
    return found


_TABLE = "model.decoder.embed_tokens.weight"


@pytest.mark.parametrize("kind", list(_WORST))
def test_blocks_of_whisper_cpp_are_kept(tmp_path: Path, model: Model, kind: str) -> None:
    directory, store = _opened(write_ggml(tmp_path / "g.bin", model, kind))
    _check_near(store, model, _WORST[kind])
    config = json.loads((directory / "config.json").read_text())
    formats = shipped_format(config)
    assert isinstance(formats, BlockFormats)
    assert set(formats.types.values()) == {kind}
    for name in ("model.encoder.layers.1.fc2.weight", _TABLE):
        held = store.stored(name)
        assert (held.dtype, held.is_mapped) == ("BLOCKS", True)
        assert held.format == formats.format_of(name, 0)
        assert held.shape == model.tensors[name].shape
    assert store.stored("model.encoder.conv1.weight").dtype == "F16"
    assert store.stored("model.encoder.conv1.bias").dtype == "F32"


def test_codes_of_ctranslate2_are_kept(tmp_path: Path, model: Model) -> None:
    directory, store = _opened(write_ct2(tmp_path / "ct2", model, "int8"))
    config = json.loads((directory / "config.json").read_text())
    held = as_shipped(store, shipped_format(config))
    assert set(held.names()) == model.tensors.keys()
    for layer in ("encoder.layers.0.self_attn.v_proj", "decoder.layers.2.encoder_attn.k_proj"):
        tensor = held.get(f"model.{layer}.weight")
        assert tensor.dtype == "GROUPED"
        array = model.tensors[f"model.{layer}.weight"]
        assert np.abs(tensor.to_float32() - array).max() <= 0.0045 * np.abs(array).max()
    for name in (_TABLE, "model.encoder.conv2.weight", "model.decoder.layer_norm.weight"):
        assert held.get(name).dtype == "F32"
    _check_near(held, model, 0.0045)


@pytest.mark.parametrize(("kind", "worst"), [("int16", 8e-4), ("bfloat16", 0.0079)])
def test_other_codes_are_expanded(tmp_path: Path, model: Model, kind: str, worst: float) -> None:
    directory, store = _opened(write_ct2(tmp_path / "ct2", model, kind))
    assert "quantization_config" not in (directory / "config.json").read_text()
    _check_near(store, model, worst)


def test_which_path_is_such_a_model(tmp_path: Path, model: Model) -> None:
    ct2 = write_ct2(tmp_path / "ct2", model)
    first = resolve_model(str(ct2))
    assert resolve_model(str(ct2 / "model.bin")) == first == resolve_model(str(ct2))
    folder = tmp_path / "ggml"
    folder.mkdir()
    alone = resolve_model(str(write_ggml(folder / "ggml-base.bin", model)))
    assert resolve_model(str(folder)) == alone != first
    write_ggml(folder / "ggml-tiny.bin", model, "Q8_0")
    with pytest.raises(ModelNotFoundError, match=r"ggml-base\.bin, ggml-tiny\.bin"):
        resolve_model(str(folder))
    hf = write_hf(tmp_path / "hf", model)
    for name in ("model.bin", "ggml-model.bin"):  # a converter's output next to its input
        (hf / name).write_bytes((folder / "ggml-base.bin").read_bytes())
    (hf / "model.bin").write_bytes((ct2 / "model.bin").read_bytes())
    assert resolve_model(str(hf)) == hf


def test_a_pipe_is_not_waited_for(tmp_path: Path, model: Model) -> None:
    path = write_ct2(tmp_path / "ct2", model)
    (path / "model.bin").unlink()
    os.mkfifo(path / "model.bin")
    os.mkfifo(path / "ggml-base.bin")
    assert resolve_model(str(path)) == path
    with pytest.raises(CheckpointError, match="must be a regular file"):
        open_checkpoint(path)


def test_weights_of_torch_are_not_looked_for_in_it(tmp_path: Path, model: Model) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin: not a PyTorch checkpoint"):
        open_checkpoint(write_ct2(tmp_path / "ct2", model))


def test_a_changed_file_is_read_again(tmp_path: Path, model: Model) -> None:
    path = write_ct2(tmp_path / "ct2", model)
    first = resolve_model(str(path))
    (path / "config.json").write_text('{"suppress_ids": [3]}')
    second = resolve_model(str(path))
    assert first != second
    assert "suppress_tokens" in (second / "generation_config.json").read_text()
    (path / "model.bin").unlink()
    resolve_model(str(write_ggml(tmp_path / "g.bin", model)))
    assert not any(directory.exists() for directory in (first, second))


def test_files_of_other_models(tmp_path: Path, model: Model) -> None:
    path = write_ct2(tmp_path / "ct2", model)
    arrays = ct2_arrays(model)
    (path / "model.bin").write_bytes(ct2_file(arrays, "TransformerSpec"))
    with pytest.raises(UnsupportedModelError, match="of kind 'TransformerSpec'"):
        resolve_model(str(path))
    (path / "model.bin").write_bytes(ct2_file({**arrays, "decoder/activation": np.int8(0)}))
    with pytest.raises(UnsupportedModelError, match="decoder/activation is 0; it must be 3"):
        resolve_model(str(path))
    other = {**arrays, "decoder/layer_0/self_attention/rotary": np.zeros(3, np.float32)}
    (path / "model.bin").write_bytes(ct2_file(other))
    with pytest.raises(UnsupportedModelError, match="self_attention/rotary' does not"):
        resolve_model(str(path))
    for numbers in ([32000, 4096, 256, 32, 32, 128, 2], [10, 1, 2, 3]):  # LLaMA's, others
        file = tmp_path / "other.bin"
        file.write_bytes(b"lmgg" + np.array(numbers * 4, np.int32).tobytes())
        with pytest.raises(UnsupportedModelError, match="of another model than Whisper"):
            resolve_model(str(file))
    old = bytearray(write_ggml(tmp_path / "g.bin", model, "Q5_0").read_bytes())
    old[44:48] = np.int32(8).tobytes()
    (tmp_path / "g.bin").write_bytes(old)
    with pytest.raises(UnsupportedModelError, match="blocks of an old version"):
        resolve_model(str(tmp_path / "g.bin"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("encoder/conv2/weight", np.zeros((32, 32, 2), np.float32), r"has shape \[32, 32, 2\]"),
        ("encoder/layer_0/ffn/linear_0/bias", np.zeros(3, np.float32), r"must have \[64\]"),
        ("decoder/num_heads", np.int16(5), "divisor of the model's width, 32"),
        ("encoder/layer_5/ffn/linear_0/bias", np.zeros(3, np.float32), "numbered from 0"),
        ("decoder/layer_norm/gamma", np.zeros(32, np.int32), "numbers of type I32"),
        ("decoder/embeddings/weight", np.zeros(3, np.float32), "must have a matrix decoder/emb"),
        ("encoder/layer_0/ffn/linear_0/weight_scale", np.zeros(5, np.float32), "has 5 scales"),
    ],
)
def test_sizes_that_lie(
    tmp_path: Path, model: Model, name: str, value: NDArray[Any], words: str
) -> None:
    path = write_ct2(tmp_path / "ct2", model)
    arrays = {**ct2_arrays(model, "int8" if "scale" in name else "float32"), name: value}
    (path / "model.bin").write_bytes(ct2_file(arrays))
    with pytest.raises(ModelError, match=words):
        resolve_model(str(path))


def test_heads_that_do_not_divide_the_width(tmp_path: Path) -> None:
    path = write_ggml(tmp_path / "g.bin", random_model(decoder_attention_heads=3))
    with pytest.raises(CheckpointError, match=r"g\.bin: the width of the model, 32, must be a mul"):
        resolve_model(str(path))


def test_large_v1_is_known_by_its_name() -> None:
    sizes = {
        "d_model": 1280, "decoder_layers": 32, "decoder_attention_heads": 20, "vocab_size": 51865,
    }  # fmt: skip
    assert heads_by_name("ggml-large-v1-q5_0.bin", sizes)[::8] == ((9, 19), (23, 15))
    assert heads_by_name("ggml-large-v2.bin", sizes) == ()
    assert heads_by_name("ggml-large-v1.bin", {**sizes, "decoder_attention_heads": 16}) == ()


def test_scales_by_which_nothing_can_be_divided(tmp_path: Path, model: Model) -> None:
    path = write_ct2(tmp_path / "ct2", model)
    name = "decoder/embeddings/weight_scale"
    arrays = ct2_arrays(model, "int8")
    for scale in (0.0, np.nan, -1.0):
        arrays[name] = np.full_like(arrays[name], scale)
        (path / "model.bin").write_bytes(ct2_file(arrays))
        store = _opened(path)[1]
        with pytest.raises(CheckpointError, match="must be positive"):
            store.get(_TABLE)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.json", '{"alignment_heads": 3}', "alignment_heads must be a list"),
        ("config.json", "[]", "expected a JSON object"),
        ("tokenizer.json", '{"added_tokens": []}', r"must have <\|endoftext\|>"),
        ("tokenizer.json", '{"added_tokens": 3}', r"must have <\|endoftext\|>"),
        ("vocabulary.json", '["a", "b"]', "must be a list of tokens"),
        ("vocabulary.json", '[3, "<|endoftext|>"]', "all of them strings"),
        ("vocabulary.json", '["é", " ", "<|endoftext|>"]', "not a letter of GPT-2's alphabet"),
        ("vocabulary.json", '["a", "<|endoftext|>"]', "cannot belong to each other"),
    ],
)
def test_settings_that_cannot_be(
    tmp_path: Path, model: Model, name: str, text: str, words: str
) -> None:
    path = write_ct2(tmp_path / "ct2", model, has_tokenizer="vocabulary" not in name)
    (path / name).write_text(text)
    with pytest.raises(CheckpointError, match=words):
        resolve_model(str(path))
