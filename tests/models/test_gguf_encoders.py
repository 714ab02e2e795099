"""GGUF files of encoders, as gguf-py writes them: tensors and vectors are those of the checkpoint,
bit for bit, and texts become the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from jina_bert import EPS, HEADS, HIDDEN, INNER, LAYERS, VOCAB, write_jina_bert
from numpy.typing import NDArray
from safetensors.numpy import load_file
from test_encoders import CASES, distance, made, results, texts, wanted
from tokenizers import models, normalizers, pre_tokenizers

from quire import LLM
from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.errors import UnsupportedModelError
from quire.gguf.keys import Keys
from quire.gguf.split import read_headers
from quire.gguf.tokenizers.files import tokenizer_files
from quire.models import build_program, name_map
from quire.models.pooling.head import PoolingHead, marked
from quire.tokenizer import Tokenizer
from quire.weights import bind, open_checkpoint

gguf = pytest.importorskip("gguf")

Floats = NDArray[np.float32]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "red",
    "sky",
    "un",
    "##s",
    "##red",
    ".",
    "[x]",
]
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁red", -1.0),
          ("▁sk", -3.0), ("y", -2.5), ("s", -2.6), (".", -2.0)]  # fmt: skip
TEXTS = ["red sky", "Reds unreds.", "  the  rèd [x] sky ", "", "red\tsky. 红"]
BY_NAME = {case.name: case for case in CASES}
KINDS = {
    "bert": "bert", "xlm-roberta": "bert", "distilbert": "bert", "nomic": "nomic-bert",
    "modernbert": "modern-bert", "eurobert": "eurobert", "roberta-classes": "bert",
    "modernbert-classes": "modern-bert",
}  # fmt: skip
"""The architecture of a file, by the names of `CASES`."""


pytestmark = pytest.mark.usefixtures("own_cache")


def tensors_of(checkpoint: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Floats]]:
    """What llama.cpp's conversion keeps, under its names for checkpoints."""
    offset = config["pad_token_id"] + 1 if "oberta" in config["model_type"] else 0
    for name, array in load_file(checkpoint / "model.safetensors").items():
        for root in ("bert.", "roberta.", "distilbert.", "model."):
            name = name.removeprefix(root)
        if "position_embeddings" in name:
            array = array[offset:]
        if name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        if config["model_type"] == "modernbert" and name.startswith("classifier."):
            name = name.replace("classifier.", "classifier.out_proj.")
        yield name, array


def add_tokenizer(writer: Any, kind: str, vocab_size: int, words: Sequence[str] = WORDS) -> None:
    """WordPiece of these words, or Unigram without a table of characters, with fillers."""
    types = gguf.TokenType
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    fillers = [f"[unused{index}]" for index in range(vocab_size)]
    if kind == "bert":
        names = [*words, *fillers][:vocab_size]
        kinds = [types.CONTROL if index < 5 else types.NORMAL for index in range(vocab_size)]
        stored = [
            text if one is types.CONTROL else text[2:] if text.startswith("##") else "▁" + text
            for text, one in zip(names, kinds, strict=True)
        ]
        writer.add_bos_token_id(2)
        writer.add_sep_token_id(3)
        writer.add_unk_token_id(1)
    else:
        stored = [*[text for text, _ in PIECES], *fillers][:vocab_size]
        kinds = [types.UNUSED] * vocab_size
        kinds[: len(PIECES)] = [types.NORMAL] * len(PIECES)
        kinds[:4] = [types.CONTROL, types.CONTROL, types.CONTROL, types.UNKNOWN]
        scores = [*[score for _, score in PIECES], *[-1e4] * vocab_size][:vocab_size]
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        for role, token_id in (("bos", 0), ("eos", 2), ("unk", 3)):
            getattr(writer, f"add_{role}_token_id")(token_id)
    writer.add_token_list(stored)
    writer.add_token_types(kinds)


def write_gguf(
    checkpoint: Path, path: Path, kind: str, tokenizer: str, pooling: int, **more: Floats
) -> Path:
    """The file, in float32; `more`: further tensors."""
    config = json.loads((checkpoint / "config.json").read_text())
    named = transformers.AutoConfig.from_pretrained(checkpoint).to_dict()
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(named["max_position_embeddings"])
    writer.add_embedding_length(named.get("hidden_size", named.get("dim")))
    writer.add_block_count(named.get("num_hidden_layers", named.get("n_layers")))
    writer.add_feed_forward_length(named.get("intermediate_size", named.get("hidden_dim")))
    writer.add_head_count(named.get("num_attention_heads", named.get("n_heads")))
    if named.get("num_key_value_heads"):
        writer.add_head_count_kv(named["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(named["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(named.get("layer_norm_eps", named.get("norm_eps", 1e-12)))
    rope = named.get("rope_parameters") or {}
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if kind == "modern-bert":
        writer.add_sliding_window(named["local_attention"])
        writer.add_sliding_window_pattern(3)
    if kind == "gemma-embedding":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_key_length(named["head_dim"])
        writer.add_value_length(named["head_dim"])
        writer.add_rope_freq_base(1e6)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    if pooling == gguf.PoolingType.RANK:
        labels = [named["id2label"][index] for index in sorted(named["id2label"])]
        writer.add_classifier_output_labels(labels)
    add_tokenizer(writer, tokenizer, named["vocab_size"])
    arch = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers", 3))
    for name, array in tensors_of(checkpoint, named):
        if kind == "gemma-embedding" and name.endswith("norm.weight"):
            array = array + 1
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        writer.add_tensor(found, np.ascontiguousarray(array, np.float32))
    for name, array in more.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", KINDS)
def test_vectors_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    """Bit for bit, as all tensors are."""
    case = BY_NAME[name]
    made(case, tmp_path / "checkpoint")
    pooling = 4 if case.labels else 2
    file = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf", KINDS[name], "bert", pooling)
    prompts = texts()
    with LLM(str(file), dtype="float32") as llm:
        assert llm.supported_tasks == (("classify",) if case.labels else ("embed", "token_embed"))
        found = results(llm, prompts)
    with LLM(str(tmp_path / "checkpoint"), dtype="float32", skip_tokenizer_init=True) as llm:
        wanted = results(llm, prompts)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    if name not in ("xlm-roberta", "distilbert", "roberta-classes"):  # they have BERT's names there
        check_tensors(resolve_model(str(file)), tmp_path / "checkpoint")


@pytest.mark.parametrize("has_dense", [False, True])
def test_embedding_gemma(has_dense: bool, tmp_path: Path) -> None:
    """Tokens see both ways, windows too; the mean, and two layers after it if the file has them."""
    case = BY_NAME["embedding-gemma"]
    settings = {**case.settings, "query_pre_attn_scalar": 12, "tie_word_embeddings": True}
    model = made(type(case)(case.name, case.model, settings), tmp_path / "checkpoint")
    own = tmp_path / "checkpoint" / "config.json"
    config = json.loads(own.read_text())
    config["sliding_window"] = case.settings["sliding_window"]  # transformers halves it
    own.write_text(json.dumps(config))
    random = np.random.default_rng(4)
    dense = {
        f"dense_{2 + index}.weight": random.normal(size=size).astype(np.float32)
        for index, size in enumerate([(90, 60), (60, 90)])
    }
    file = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf", "gemma-embedding", "bert", 1,
                      **(dense if has_dense else {}))  # fmt: skip
    with LLM(str(file), dtype="float32") as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        found = results(llm, texts())
        [tokens] = llm.encode(texts()[1:2], pooling_task="token_embed", use_tqdm=False)
    for text, vector in zip(texts(), found, strict=True):
        truth = wanted(case, model, text, "mean")
        for matrix in dense.values() if has_dense else ():
            truth = matrix @ truth
        assert distance(vector, truth) <= 1e-5
    truth = wanted(case, model, texts()[1], "all")
    for matrix in dense.values() if has_dense else ():
        truth = truth @ matrix.T
    truth /= np.linalg.norm(truth, axis=-1, keepdims=True)
    assert np.allclose(tokens.outputs.data, truth, atol=1e-5)


@pytest.mark.parametrize("form", ["new", "old"])
def test_jina_bert_2(form: str, tmp_path: Path) -> None:
    """Gate and up are one tensor; files from 2024 have two."""
    tensors = write_jina_bert(tmp_path)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "jina-bert-v2")
    writer.add_context_length(150)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(EPS)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    add_tokenizer(writer, "bert", VOCAB)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.JINA_BERT_V2, LAYERS)
    for name, array in tensors.items():
        parts = {name: array}
        if form == "old" and "gated_layers" in name:
            halves = np.split(array, 2)
            stem = name.removesuffix(".weight")
            parts = {f"{stem}_{end}.weight": half for end, half in zip("wv", halves, strict=True)}
        for own, values in parts.items():
            found = names.get_name(own, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    prompts = texts()
    with LLM(str(tmp_path / "m.gguf"), dtype="float32") as llm:
        found_vectors = results(llm, prompts)
    (tmp_path / "m.gguf").rename(tmp_path / "gguf")
    mean = {"pooling_type": "MEAN"}
    with LLM(str(tmp_path), dtype="float32", skip_tokenizer_init=True, pooler_config=mean) as llm:
        wanted = results(llm, prompts)
    assert [one.tobytes() for one in found_vectors] == [one.tobytes() for one in wanted]


def check_tensors(directory: Path, checkpoint: Path) -> None:
    """All tensors of the program, except tables of positions, whose unused rows files lack."""
    stores = []
    for place in (directory, checkpoint):
        config = marked(read_config(place), PoolingHead("cls"))
        stores.append(
            bind(build_program(config), open_checkpoint(place), name_map(config).canonical)
        )
    found, wanted = stores
    assert set(found.names()) == set(wanted.names())
    for name in found.names():
        if "position" not in name:
            a, b = found.get(name).to_float32(), wanted.get(name).to_float32()
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_word_pieces(tmp_path: Path) -> None:
    """Tokens of texts and of pairs are BERT's; so is the type of each token."""
    made(BY_NAME["bert"], tmp_path)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(WORDS) + "\n")
    theirs = transformers.BertTokenizer(str(vocab))
    file = write_gguf(tmp_path, tmp_path / "m.gguf", "bert", "bert", 1)
    ours = Tokenizer.from_directory(resolve_model(str(file)))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
    pair, wanted = ours.encode_pair(TEXTS[0], TEXTS[1]), theirs(TEXTS[0], TEXTS[1])
    assert pair.ids == wanted["input_ids"]
    assert pair.type_ids == wanted["token_type_ids"]


@pytest.mark.parametrize(
    ("lowers", "strips"),
    [(True, False), (True, None), (False, True), (False, None), (True, True), (None, None)],
)
def test_word_pieces_of_files_that_say_what_happens_to_letters(
    lowers: bool | None, strips: bool | None, tmp_path: Path
) -> None:
    """Also against the look of the vocabulary: an uncased German model keeps its umlauts, and a
    file that does not say it is of an uncased model, even if it has tokens with capital letters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"fußurBö", "für", "fur", "B", "##ä",
             "##a", "Bö", "bo", "bö", "##ß", "##s", "Bo"]  # fmt: skip
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(words) + "\n")
    lowered = lowers is not False
    theirs = transformers.BertTokenizer(str(vocab), do_lower_case=lowered, strip_accents=strips)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "bert")
    add_tokenizer(writer, "bert", len(words), words)
    if lowers is not None:
        writer.add_bool("tokenizer.ggml.normalizer.lowercase", lowers)
    if strips is not None:
        writer.add_bool("tokenizer.ggml.normalizer.strip_accents", strips)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = tokenizer_files(Keys(read_headers([tmp_path / "m.gguf"])))
    ours = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    for text in ("für Böß fur BÖß", "Für FÜR Bo bö", "fu\u0308r"):
        assert ours.encode(text).ids == theirs(text)["input_ids"], text


def test_unigram(tmp_path: Path) -> None:
    """Tokens of texts and of pairs are XLM-R's."""
    made(BY_NAME["xlm-roberta"], tmp_path)
    theirs = tokenizers.Tokenizer(models.Unigram(PIECES, unk_id=3, byte_fallback=False))
    theirs.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    file = write_gguf(tmp_path, tmp_path / "m.gguf", "bert", "t5", 1)
    ours = Tokenizer.from_directory(resolve_model(str(file)))
    for text in TEXTS:
        wanted = [0, *theirs.encode(text.strip()).ids, 2]
        assert ours.encode(text) == wanted, text
    pair = ours.encode_pair("red", "sky")
    assert pair.ids == [0, 5, 2, 2, 6, 7, 2]
    assert not any(pair.type_ids)


def test_a_mean_is_pooled(tmp_path: Path) -> None:
    """The file says how its texts are pooled."""
    made(BY_NAME["bert"], tmp_path)
    with LLM(str(write_gguf(tmp_path, tmp_path / "m.gguf", "bert", "bert", 1))) as llm:
        pooling = llm.model_config.pooling
        assert pooling is not None
        assert pooling.pooling_type == "mean"
        [vector] = llm.embed("red sky", use_tqdm=False)
        assert np.linalg.norm(vector.outputs.embedding) == pytest.approx(1, abs=1e-6)


def test_a_classifier_that_lost_its_pooler_is_refused(tmp_path: Path) -> None:
    """llama.cpp's conversion drops BERT's pooler, so that the classes cannot be computed."""
    made(BY_NAME["bert"], tmp_path)
    head = {"cls.output.weight": np.ones((1, 60), np.float32)}
    path = write_gguf(tmp_path, tmp_path / "m.gguf", "bert", "bert", 2, **head)
    with pytest.raises(UnsupportedModelError, match="a classifier without its dense layer"):
        LLM(str(path))
