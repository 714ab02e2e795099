"""Models in the folders of Ollama, LM Studio, llama.cpp and of the user: found, named, and used;
and what hostile folders cannot do."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import jinja2
import pytest
from gguf_files import byte_level_metadata, float_tensors, gguf_bytes, model_metadata
from hub_cache import write_repo
from ollama_store import write_blob, write_manifest, write_model

from quire.config.model_lookup.disk import found as found_module
from quire.config.model_lookup.disk.found import LocalModel, Scan
from quire.config.model_lookup.disk.go_templates import is_plain, jinja_of
from quire.config.model_lookup.disk.places import Found, found_models
from quire.config.model_lookup.disk.use import options_of
from quire.errors import ConfigError, ModelNotFoundError

GGUF = b"GGUF" + bytes(60)
LIBRARY = "registry.ollama.ai/library"
CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}" \
    "<|im_start|>assistant\n"  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("HOME", "home"), ("XDG_CACHE_HOME", "cache"), ("HF_HUB_CACHE", "hub")):
        monkeypatch.setenv(name, str(tmp_path / place))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "home/.ollama/models"


def write(path: Path, content: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(found: Found) -> list[str]:
    return [one.name for one in found.models]


def test_each_program_has_its_folder(tmp_path: Path, store: Path) -> None:
    home = tmp_path / "home"
    write_model(store, f"{LIBRARY}/llama/latest", GGUF, system="Hi", params={"temperature": 0})
    write_model(store, "registry.ollama.ai/me/mine/1b", GGUF + b"1")
    write_model(store, "hf.co/org/some-GGUF/Q4_K_M", GGUF + b"2")
    write(home / ".lmstudio/models/pub/repo/new-Q8_0.gguf")
    write(home / ".lmstudio/models/pub/repo/mmproj-new.gguf")
    write(home / ".cache/lm-studio/models/pub/repo/old.gguf")
    write(tmp_path / "cache/llama.cpp/org_repo_flat.gguf", GGUF + b"flat")
    write_repo(tmp_path / "cache/llama.cpp", "org/hub", {"m-Q4_0.gguf": GGUF})
    found = found_models()
    assert found.notes == ()
    assert [(one.name, one.source) for one in found.models] == [
        ("hf.co/org/some-GGUF:Q4_K_M", "ollama"), ("llama:latest", "ollama"),
        ("me/mine:1b", "ollama"), ("new-Q8_0", "lm studio"), ("old", "lm studio"),
        ("org_repo_flat", "llama.cpp"), ("org/hub:Q4_0", "llama.cpp"),
    ]  # fmt: skip
    llama = found.find("llama")
    assert llama is not None
    assert llama is found.find("llama:latest") is found.find(f"{LIBRARY}/llama:latest")
    assert llama.path.read_bytes() == GGUF
    assert llama.settings.to_json() == {"system_prompt": "Hi", "sampling": {"temperature": 0.0}}
    assert found.find("new-Q8_0.gguf") is found.find("pub/repo/new-Q8_0") is found.models[3]
    assert found.find("nothing") is None
    assert found.models[5].num_bytes == len(GGUF) + 4


def test_variables_name_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llamas"))
    write_model(tmp_path / "elsewhere", f"{LIBRARY}/a/latest", GGUF)
    write(tmp_path / "llamas/b.gguf")
    assert names(found_models()) == ["a:latest", "b"]
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "hub"))  # the hub's cache is listed elsewhere
    write(tmp_path / "hub/c.gguf")
    assert names(found_models()) == ["a:latest"]


def test_without_a_home_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert found_models().models == ()


def test_files_and_folders_of_a_named_folder_are_models(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write(root / "one.gguf")
    write(root / "UPPER.GGUF")
    for number in (1, 2):
        write(root / f"big/big-Q4-0000{number}-of-00002.gguf")
    write(root / "late-00002-of-00002.gguf")
    write(root / "text.gguf", b"no model")
    write(root / "checkpoint/config.json", b"{}")
    write(root / "checkpoint/model.safetensors", b"12345")
    write(root / "no-weights/config.json", b"{}")
    write(root / "a/b/c/too-deep.gguf")
    write(root / "a/one.gguf", GGUF + b"another")
    (root / "again").symlink_to(root)
    (root / "pipe.gguf").parent.mkdir(exist_ok=True)
    os.mkfifo(root / "pipe.gguf")
    found = found_models([str(root)])
    by_name = {one.name: one for one in found.models}
    assert sorted(by_name) == ["UPPER", "a/one", "big-Q4", "checkpoint", "one"]
    big = by_name["big-Q4"]
    assert (big.path.name, big.num_bytes) == ("big-Q4-00001-of-00002.gguf", 2 * len(GGUF))
    assert (by_name["checkpoint"].kind, by_name["checkpoint"].num_bytes) == ("safetensors", 7)
    assert found.find("one") is by_name["one"]
    assert found.notes == ()


def test_files_of_whisper_cpp_are_models(tmp_path: Path) -> None:
    file = write(tmp_path / "speech/ggml-base.bin", b"lmgg" + bytes(20))
    write(tmp_path / "speech/other.bin", bytes(24))
    os.mkfifo(tmp_path / "speech/pipe.bin")
    [found] = found_models([str(tmp_path / "speech")]).models
    assert (found.name, found.kind, found.num_bytes) == ("ggml-base", "ggml", 24)
    assert options_of(found)["model"] == str(file)


def test_a_folder_may_be_another_programs(tmp_path: Path, store: Path) -> None:
    write_model(store, f"{LIBRARY}/a/latest", GGUF)
    for folder in (store, store.parent):
        assert names(found_models([str(folder)])) == ["a:latest"]
    assert names(found_models([str(store), str(store)])) == ["a:latest"]
    for wrong in (tmp_path / "nowhere", store / f"manifests/{LIBRARY}/a/latest", "x" * 5000, "\0"):
        with pytest.raises(ConfigError, match="models_dir"):
            found_models([str(wrong)])


def test_an_image_encoder_may_be_named_after_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "models/vision"
    write(folder / "Small-VL-Q4_K_M.gguf")
    projector = write(folder / "Small-VL-mmproj-f16.gguf")
    write(folder / "other.gguf")
    found = found_models([str(folder)])
    assert [(one.name, one.projector) for one in found.models] == [
        ("Small-VL-Q4_K_M", projector), ("other", None),
    ]  # fmt: skip


def test_llama_cpp_names_what_it_fetched(tmp_path: Path) -> None:
    cache = tmp_path / "cache/llama.cpp"
    write(cache / "org_repo_m-Q4.gguf")
    projector = write(cache / "org_repo_mmproj-m.gguf")
    record = {"ggufFile": {"rfilename": "m-Q4.gguf"}, "mmprojFile": {"rfilename": "mmproj-m.gguf"}}
    write(cache / "manifest=org=repo=Q4.json", json.dumps(record).encode())
    write(cache / "manifest=org=repo=bad.json", b'{"ggufFile": [')
    write(cache / "manifest=org=repo=other.json", b'{"ggufFile": {"rfilename": 5}}')
    found = found_models()
    assert names(found) == ["org_repo_m-Q4"]
    assert found.find("org/repo:Q4") is found.models[0]
    assert found.models[0].projector == projector


DIGEST = f"sha256:{'0' * 64}"
MODEL = "application/vnd.ollama.image.model"


@pytest.mark.parametrize(
    "layers",
    [
        None, 3, [3], [{}], [{"mediaType": MODEL}], [{"mediaType": 5, "digest": DIGEST}],
        [{"mediaType": MODEL, "digest": "sha256:../../../../../etc/passwd"}],
        [{"mediaType": MODEL, "digest": "/etc/passwd"}],
        [{"mediaType": MODEL, "digest": "sha256-" + "../" * 21 + "x"}],
        [{"mediaType": MODEL, "digest": DIGEST + "\n"}],
        [{"mediaType": MODEL, "digest": [DIGEST]}],
        [{"mediaType": f"{MODEL}{number}", "digest": DIGEST} for number in range(20)],
    ],
)  # fmt: skip
def test_a_hostile_manifest_is_a_note(store: Path, layers: Any) -> None:
    write_manifest(store, f"{LIBRARY}/bad/latest", layers)
    write_model(store, f"{LIBRARY}/good/latest", GGUF)
    found = found_models()
    assert names(found) == ["good:latest"]
    assert "bad/latest" in found.notes[0]
    assert len(found.notes[0]) < 1000


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"{" + b" " * (1 << 20) + b"}"]
)
def test_a_damaged_manifest_is_a_note(store: Path, content: bytes) -> None:
    write_manifest(store, f"{LIBRARY}/bad/latest", []).write_bytes(content)
    found = found_models()
    assert (found.models, len(found.notes)) == ((), 1)


@pytest.mark.parametrize("is_loop", [False, True])
def test_texts_outside_the_folder_are_not_read(tmp_path: Path, store: Path, is_loop: bool) -> None:
    secret = write(tmp_path / "secret", b"the secret")
    write_model(store, f"{LIBRARY}/a/latest", GGUF, system="public", template="{{ .Prompt }}")
    for text in (b"public", b"{{ .Prompt }}"):
        blob = store / "blobs" / write_blob(store, text).replace(":", "-")
        blob.unlink()
        blob.symlink_to(blob if is_loop else secret)
    [model] = found_models().models
    assert (model.settings.system_prompt, model.go_template) == ("", "")
    assert len(model.notes) == 2
    assert "secret" not in str(model.notes)


def test_weights_that_cannot_be_used_are_a_problem(store: Path) -> None:
    layer = {"mediaType": MODEL, "digest": DIGEST}
    write_manifest(store, f"{LIBRARY}/gone/latest", [layer])
    write_manifest(store, f"{LIBRARY}/cloud/latest", [])
    write_model(store, f"{LIBRARY}/text/latest", b"no model")
    write_model(store, f"{LIBRARY}/lora/latest", GGUF, adapter=GGUF + b"a")
    write_manifest(store, f"{LIBRARY}/parts/latest", [layer, layer])
    tensor = {"mediaType": "application/vnd.ollama.image.tensor; name=x", "digest": DIGEST}
    write_manifest(store, f"{LIBRARY}/tensors/latest", [tensor])
    found = found_models()
    problems = {one.name.removesuffix(":latest"): one.problem for one in found.models}
    for name, words in {
        "gone": "weights are missing", "cloud": "no weights", "text": "no GGUF file",
        "lora": "--lora-modules", "parts": "several files", "tensors": "separate tensors",
    }.items():  # fmt: skip
        assert words in problems[name]
        with pytest.raises(ModelNotFoundError, match=words):
            found.find(name)


@pytest.mark.parametrize("name", ["folder", "loop", "fifo"])
def test_a_blob_that_is_no_file_is_missing(store: Path, name: str) -> None:
    layer = {"mediaType": MODEL, "digest": DIGEST}
    write_manifest(store, f"{LIBRARY}/a/latest", [layer])
    blob = store / "blobs" / DIGEST.replace(":", "-")
    if name == "folder":
        blob.mkdir()
    elif name == "loop":
        blob.symlink_to(blob)
    else:
        os.mkfifo(blob)
    [model] = found_models().models
    assert "missing" in model.problem


def test_parameters_that_are_not_here_are_noted(store: Path) -> None:
    params = {
        "temperature": 0.5, "stop": ["a", "b"], "mirostat": 2, "new_one": 1, "num_thread": 3,
        "top_k": "many", "seed": None, "num_ctx": 2048,
    }  # fmt: skip
    write_model(store, f"{LIBRARY}/a/latest", GGUF, params=params, messages=[], license="MIT")
    [model] = found_models().models
    assert model.settings.sampling == {"temperature": 0.5, "stop": ["a", "b"]}
    assert model.settings.max_model_len == 2048
    text = " ".join(model.notes)
    assert len(model.notes) == 4
    for name in ("mirostat", "new_one", "top_k", "messages"):
        assert name in text


def test_a_search_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_module, "MAX_ENTRIES", 50)
    monkeypatch.setattr(
        "quire.config.model_lookup.disk.places.Scan", lambda: Scan(left=found_module.MAX_ENTRIES)
    )
    for number in range(80):
        write(tmp_path / f"many/{number}.gguf", GGUF)
    found = found_models([str(tmp_path / "many")])
    assert len(found.models) == 50
    assert "stopped after 50" in found.notes[0]
    assert len(found.notes) == 1


def test_a_search_reads_so_many_bytes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.config.model_lookup.disk.places.Scan", lambda: Scan(bytes_left=900))
    for number in range(9):
        write_model(store, f"{LIBRARY}/a/{number}", GGUF)
    found = found_models()
    assert 0 < len(found.models) < 9
    assert len(found.notes) == 1
    assert "of manifests and texts" in found.notes[0]


def test_a_folder_that_cannot_be_read_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "models/closed/a.gguf")
    write(tmp_path / "models/b.gguf")
    scandir = os.scandir

    def refusing(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = found_models([str(tmp_path / "models")])
    assert names(found) == ["b"]
    assert "cannot be read: Permission denied" in found.notes[0]


def test_names_that_cannot_be_printed_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "models/a\x1b[31m\n.gguf")
    write(tmp_path / "models/b\u202e.gguf")
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/models/c\xff.gguf")))
    write(tmp_path / "models/d.gguf")
    found = found_models([str(tmp_path / "models")])
    assert names(found) == ["d"]
    assert len(found.notes) == 3
    assert all(note.isprintable() for note in found.notes)


def test_names_without_a_letter_or_digit_are_left_out(tmp_path: Path) -> None:
    for name in ("...gguf", "..gguf", "-.gguf", "模型 ü.gguf", "x" * 240 + ".gguf", "1.gguf"):
        write(tmp_path / "dir" / name)
    found = found_models([str(tmp_path / "dir")])
    assert sorted(names(found)) == ["1", "x" * 240, "模型 ü"]
    assert len([note for note in found.notes if "has no letter or digit" in note]) == 3


def test_a_name_that_may_be_several_is_refused(tmp_path: Path) -> None:
    for place in ("x", "y"):
        write(tmp_path / f"models/{place}/same.gguf", GGUF + place.encode())
    found = found_models([str(tmp_path / "models")])
    assert names(found) == ["same", "y/same"]
    assert found.find("same") is found.models[0]
    with pytest.raises(ModelNotFoundError, match=r"may be any of 'same', 'y/same'"):
        found.find("same.gguf")


# --- use

CONFIG: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 256,
}  # fmt: skip


def whole_file(*, has_template: bool = False, adds_bos: bool = False) -> bytes:
    from gguf_files import as_llama_cpp_has_it, random_tensors

    config = {
        **CONFIG, "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "tie_word_embeddings": False, "dtype": "float32",
    }  # fmt: skip
    metadata = {**model_metadata("llama", config), **byte_level_metadata(288)}
    if not has_template:
        del metadata["tokenizer.chat_template"]
    metadata["tokenizer.ggml.add_bos_token"] = adds_bos
    tensors = as_llama_cpp_has_it(random_tensors(config), "llama", config)
    return gguf_bytes(metadata, float_tensors(tensors))


def used(store: Path, caplog: pytest.LogCaptureFixture, weights: bytes, **parts: Any) -> Any:
    write_model(store, f"{LIBRARY}/a/latest", weights, **parts)
    model = found_models().find("a")
    assert isinstance(model, LocalModel)
    with caplog.at_level(logging.INFO, "quire"):
        return options_of(model)


def test_a_manifest_becomes_options(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = used(
        store, caplog, whole_file(), template=CHATML, system="Be brief.",
        params={"num_ctx": 100_000, "stop": "<|im_end|>"}, projector=GGUF,
    )  # fmt: skip
    template = options.pop("chat_template")
    path = options.pop("model")
    assert Path(path).parent == store / "blobs"
    assert options == {
        "served_model_name": "a:latest", "system_prompt": "Be brief.", "max_model_len": 256,
        "override_generation_config": {"stop": ["<|im_end|>"]},
    }  # fmt: skip
    assert "takes no images" in caplog.text
    assert "its num_ctx is 100000; the model's 256 is used" in caplog.text
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    made = jinja2.Template(template).render(messages=messages, add_generation_prompt=True)
    assert made == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_files_own_template_comes_first(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = used(store, caplog, whole_file(has_template=True), template=CHATML)
    assert "chat_template" not in options


def test_an_unknown_form_is_said(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = used(store, caplog, whole_file(), template="Q: {{ .Prompt }}\nA:")
    assert "chat_template" not in options
    assert "give a Jinja template with --chat-template" in caplog.text


def test_a_model_that_begins_with_a_token(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = used(store, caplog, whole_file(adds_bos=True), template=CHATML)
    assert options["chat_template"].startswith("{{ bos_token }}")


FORMS = {
    "llama3": "{{ if .System }}<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}"
    "<|eot_id|>{{ end }}<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{{ .Response }}<|eot_id|>",
    "gemma": "<start_of_turn>user\n{{ if .System }}{{ .System }} {{ end }}{{ .Prompt }}"
    "<end_of_turn>\n<start_of_turn>model\n{{ .Response }}<end_of_turn>\n",
    "phi3": "{{ if .System }}<|system|>\n{{ .System }}<|end|>\n{{ end }}<|user|>\n{{ .Prompt }}"
    "<|end|>\n<|assistant|>\n{{ .Response }}<|end|>\n",
    "zephyr": "<|system|>\n{{ .System }}</s>\n<|user|>\n{{ .Prompt }}</s>\n<|assistant|>\n",
    "llama2": "[INST] <<SYS>>\n{{ .System }}\n<</SYS>>\n\n{{ .Prompt }} [/INST]",
    "mistral": "[INST] {{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}[/INST]",
    "phi4": "<|im_start|>{{ .Role }}<|im_sep|>{{ .Content }}<|im_end|><|im_start|>assistant"
    "<|im_sep|>",
    "deepseek": "{{ .System }}<｜User｜>{{ .Prompt }}<｜Assistant｜>",
    "granite": "<|start_of_role|>user<|end_of_role|>{{ .Prompt }}<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>",
    "chatml": CHATML,
}


@pytest.mark.parametrize("name", FORMS)
def test_known_forms(name: str) -> None:
    found = jinja_of(FORMS[name].replace("\n", "\r\n"), begins=False)
    assert found is not None
    assert found[0] == name
    turns = [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")]
    messages = [{"role": role, "content": text} for role, text in turns]
    made = jinja2.Template(found[1]).render(messages=messages, add_generation_prompt=True)
    places = [made.find(text) for text in ("S", "U", "A", "V")]
    assert made.count("V") == 1
    assert made.rstrip().endswith(FORMS[name].rstrip().rpartition("{{ .Response")[0].rstrip()[-6:])
    if name == "gemma":
        assert made == (
            "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
            "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n"
        )
    if name == "mistral":
        assert made == "[INST] S\n\nU[/INST] A</s>[INST] V[/INST]"
    if name == "llama2":
        assert made == "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A</s><s>[INST] V [/INST]"
    assert -1 not in places


def test_forms_that_only_look_alike_are_not_known() -> None:
    assert jinja_of("<|start|>user<|message|>{{ .Prompt }}<|end|><|channel|>", begins=False) is None
    assert jinja_of("[gMASK]<sop><|user|>\n{{ .Prompt }}<|assistant|>\n", begins=False) is None
    assert jinja_of("<|im_start|>{{ .Role }} says {{ .Content }}<|im_end|>", begins=False) is None
    assert is_plain("{{ .Prompt }}")
    assert is_plain("{{ .System }}\n{{- .Prompt }}")
    assert not is_plain("Q: {{ .Prompt }}")
    assert not is_plain("{{ .Prompt }}" + " " * 100_000 + "x")


def test_files_of_one_name_in_two_folders_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.gguf").write_bytes(b"GGUF" + bytes(100))
    found = found_models([str(tmp_path / "one"), str(tmp_path / "two")])
    assert [model.name for model in found.models] == ["same", "two/same"]
    assert found.find("two/same") == found.models[1]
