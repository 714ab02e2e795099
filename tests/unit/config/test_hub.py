"""From the name of a model to its directory: local first, the hub last, and clear words."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hub_cache import write_repo
from hub_server import COMMIT, HubServer
from whisper_files import random_model, write_ct2, write_ggml

from quire import env
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.config.model_lookup.download import retry_after
from quire.config.model_lookup.hub import hub_name, resolve_model
from quire.config.model_lookup.library import find_model, models_of
from quire.config.model_lookup.short_names import short_names
from quire.errors import ConfigError, ModelNotFoundError

SAFETENSORS = {
    "config.json": b"{}",
    "generation_config.json": b"{ }",
    "tokenizer.json": b"{  }",
    "merges.txt": b"",
    "chat_template.jinja": b"template",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same again",
    "consolidated.safetensors": b"and again",
    "original/params.json": b"{}",
    "README.md": b"words",
    "modeling.py": b"code",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nobody may so much as open a socket."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def write_snapshot(
    cache: Path, files: list[str], *, repo: str = "org--name", revision: str = "main"
) -> Path:
    base = cache / f"models--{repo}"
    snapshot = base / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / revision).write_text(COMMIT)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


def test_a_directory_is_used_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/org/name") == tmp_path / "org" / "name"


@pytest.mark.parametrize("model", ["./foo", "/no/such/dir", "../foo", "a/b/c", "~/nope", "", "a b"])
def test_a_mistyped_path_is_no_hub_id(model: str) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no directory"):
        resolve_model(model)


@pytest.mark.parametrize("model", ["x" * 5000, "/" + "x" * 300, "~nobody-of-that-name/x"])
def test_a_name_that_no_directory_can_have(model: str) -> None:
    with pytest.raises((ModelNotFoundError, ConfigError)):
        resolve_model(model)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("x")
    with pytest.raises(ModelNotFoundError, match="neither a GGUF file nor one of whisper"):
        resolve_model(str(path))


def test_a_complete_snapshot_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = write_snapshot(tmp_path, ["config.json", "tokenizer.json", "model.safetensors"])
    assert resolve_model("org/name", download_dir=tmp_path) == snapshot
    assert resolve_model("org/name", download_dir=tmp_path, revision=COMMIT) == snapshot
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert resolve_model("org/name") == snapshot


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert env.hub_cache_dir() == Path("/home/me/.cache/huggingface/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert env.hub_cache_dir() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert env.hub_cache_dir() == Path("/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/cache")
    assert env.hub_cache_dir() == Path("/cache")


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ([], "the tokenizer, config.json, the weights"),
        (["config.json", "model.safetensors"], "the tokenizer"),
        (["config.json", "tokenizer.json"], "the weights"),
        (["tokenizer.json", "pytorch_model.bin"], "config.json"),
    ],
)
def test_offline_says_what_is_missing_and_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], lacks: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_snapshot(tmp_path, files)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("org/name", download_dir=tmp_path)
    assert f"lacks {lacks} of the model" in str(caught.value)
    assert f"hf download org/name --cache-dir {tmp_path}" in str(caught.value)
    with pytest.raises(ModelNotFoundError, match=r"--include '\*Q4_0\*\.gguf'"):
        resolve_model("org/name:Q4_0", download_dir=tmp_path)
    with pytest.raises(ModelNotFoundError, match="--revision v2"):
        resolve_model("org/name", download_dir=tmp_path, revision="v2")


def test_a_missing_shard_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = write_snapshot(tmp_path, ["config.json", "tokenizer.json", "a.safetensors"])
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFoundError, match=r"lacks b\.safetensors of"):
        resolve_model("org/name", download_dir=tmp_path)
    os.symlink("../../blobs/none", snapshot / "b.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"lacks b\.safetensors of"):
        resolve_model("org/name", download_dir=tmp_path)
    (snapshot / "model.safetensors").touch()  # the index is stale, and not read
    assert resolve_model("org/name", download_dir=tmp_path) == snapshot


def test_a_tokenizer_alone_needs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = write_snapshot(tmp_path, ["tokenizer.json"])
    assert resolve_model("org/name", download_dir=tmp_path, needs_weights=False) == snapshot


# --- with a hub, in a process of its own (its address is read once, at import) -------------------

SCRIPT = """
import sys
from quire.config.model_lookup.hub import resolve_model
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.errors import QuireError
if len(sys.argv) > 3:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    print(resolve_model(sys.argv[1], download_dir=sys.argv[2]))
except QuireError as error:
    print("refused:", error)
"""


def resolve_elsewhere(
    url: str, model: str, cache: Path, *, disk_room: int | None = None, **environ: str
) -> str:
    room = [] if disk_room is None else [str(disk_room)]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, model, str(cache), *room],
        env={**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return result.stdout.strip()


def test_a_download_takes_what_is_needed_and_no_more(tmp_path: Path) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        directory = Path(resolve_elsewhere(hub.url, "org/name", tmp_path))
        assert directory.parent.name == "snapshots"
        assert (tmp_path / "models--org--name" / "refs" / "main").read_text() == COMMIT
        assert {path.name for path in directory.iterdir()} == {
            "config.json", "generation_config.json", "tokenizer.json", "merges.txt",
            "chat_template.jinja", "model.safetensors",
        }  # fmt: skip
        assert (directory / "model.safetensors").read_bytes() == b"weights"
        asked = len(hub.requests)
        assert resolve_elsewhere(hub.url, "org/name", tmp_path) == str(directory)
        assert len(hub.requests) == asked  # the second time nothing is asked


def test_bin_weights_where_there_are_no_others(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "vocab.json": b"{}", "merges.txt": b"",
             "pytorch_model.bin": b"weights", "flax_model.msgpack": b"no"}  # fmt: skip
    with HubServer("opt", files) as hub:
        directory = Path(resolve_elsewhere(hub.url, "opt", tmp_path))
        assert {path.name for path in directory.iterdir()} == files.keys() - {"flax_model.msgpack"}


def test_one_of_several_files_of_whisper_cpp(tmp_path: Path) -> None:
    model = write_ggml(tmp_path / "m.bin", random_model()).read_bytes()
    files = {"README.md": b"words", "ggml-base.bin": model, "ggml-tiny.bin": b"lmgg"}
    with HubServer("org/whisper.cpp", files) as hub:
        for name in ("org/whisper.cpp", "org/whisper.cpp:ggml-big.bin"):
            assert "ggml-base.bin, ggml-tiny.bin" in resolve_elsewhere(hub.url, name, tmp_path)
        assert not {"ggml-base.bin", "ggml-tiny.bin"} & hub.fetched()
        found = _with_cache(hub, "org/whisper.cpp:ggml-base.bin", tmp_path)
        assert (Path(found) / "model.whisper").read_bytes() == model
        assert "ggml-tiny.bin" not in hub.fetched()
        [listed] = models_of(tmp_path)
        assert find_model("org/whisper.cpp:ggml-base.bin", tmp_path) == listed
        asked = len(hub.requests)
        assert _with_cache(hub, "org/whisper.cpp:ggml-base.bin", tmp_path) == found
        assert len(hub.requests) == asked


def test_a_repository_of_faster_whisper(tmp_path: Path) -> None:
    made = write_ct2(tmp_path / "ct2", random_model())
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    with HubServer("org/faster", {**files, "README.md": b"words"}) as hub:
        found = _with_cache(hub, "org/faster", tmp_path)
        assert (Path(found) / "model.whisper").read_bytes() == files["model.bin"]
        asked = len(hub.requests)
        assert _with_cache(hub, "org/faster", tmp_path) == found
        assert len(hub.requests) == asked


def _with_cache(hub: HubServer, name: str, place: Path) -> str:
    """Resolves a name with a cache of its own for directories that are made."""
    return resolve_elsewhere(hub.url, name, place, XDG_CACHE_HOME=str(place / "made"))


def test_an_image_encoder_is_fetched_with_its_model(tmp_path: Path) -> None:
    names = ["m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"]
    with HubServer("org/name", {name: name.encode() for name in names}) as hub:
        resolve_elsewhere(hub.url, "org/name:Q4_0", tmp_path)
        assert hub.fetched() == {"m-Q4_0.gguf", "mmproj-F16.gguf"}


FOLDERS = [
    "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf",
    "Q8_0/m-Q8_0.gguf", "m-Q2_K.gguf", "mmproj-F16.gguf", "config.json", "Q4_K_M/notes.txt",
]  # fmt: skip
BOTH_PARTS = {*FOLDERS[:2], "mmproj-F16.gguf"}


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("org/name:Q4_K_M", BOTH_PARTS),
        ("org/name:q4_k_m", BOTH_PARTS),
        ("org/name:Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", BOTH_PARTS),
        ("org/name:m-q8_0.GGUF", {"Q8_0/m-Q8_0.gguf", "mmproj-F16.gguf"}),
        ("org/name", BOTH_PARTS),
    ],
)
def test_files_in_folders_are_fetched(tmp_path: Path, name: str, fetched: set[str]) -> None:
    with HubServer("org/name", {file: file.encode() for file in FOLDERS}) as hub:
        resolve_elsewhere(hub.url, name, tmp_path)
        assert hub.fetched() == fetched
    [model] = models_of(tmp_path)
    assert (model.is_complete, len(model.files)) == (True, len(fetched) - 1)


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [
        ("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M"),
        ("Llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M"),
        ("phi4:latest", "bartowski/phi-4-GGUF", "Q4_K_M"),
        ("all-minilm", "sentence-transformers/all-MiniLM-L6-v2", None),
        ("gpt2", "gpt2", None),
    ],
)
def test_short_names(tmp_path: Path, name: str, place: str, file: str | None) -> None:
    assert hub_name(name, tmp_path) == (place, file)


def test_every_short_name_has_a_place(tmp_path: Path) -> None:
    assert all("/" in hub_name(name, tmp_path)[0] for name in short_names())
    with pytest.raises(ModelNotFoundError, match=r"Did you mean qwen3:0\.6b\?"):
        hub_name("qwen3:0.6", tmp_path)


def test_a_wrong_quantisation_lists_those_that_exist(tmp_path: Path) -> None:
    with HubServer("org/name", dict.fromkeys(FOLDERS, b"")) as hub:
        said = resolve_elsewhere(hub.url, "org/name:Q9_X", tmp_path)
        assert "holds no GGUF file 'Q9_X'; it holds " in said
        assert "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf, Q8_0/m-Q8_0.gguf, m-Q2_K.gguf" in said
        assert not hub.fetched()
        hub.files = {"a-Q4_0.gguf": b"", "b-Q8_0.gguf": b""}  # not one model in two forms
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
        assert "holds 2 GGUF models; name one of them: org/name:a-Q4_0.gguf" in said


def test_only_the_missing_parts_make_a_model_incomplete(tmp_path: Path) -> None:
    parts = {f"m-Q4_0-0000{part}-of-00002.gguf": b"1" for part in (1, 2)}
    snapshot = write_repo(tmp_path, "org/name", parts)
    (snapshot.parents[1] / "blobs" / "other.1234abcd.incomplete").write_bytes(b"1")
    assert [one.is_complete for one in models_of(tmp_path)] == [True]
    (snapshot / "m-Q4_0-00002-of-00002.gguf").unlink()
    assert [one.is_complete for one in models_of(tmp_path)] == [False]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "(401): it does not exist, or it is private or gated; then set HF_TOKEN"),
        (403, "(403): accept the model's terms"),
        (404, "has no model org/name"),
        (500, "answers with the error 500; try again later"),
    ],
)
def test_a_refusal_says_what_helps(tmp_path: Path, status: int, advice: str) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.refusals = [(status, {})] * 20
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
        assert f"and the hub {hub.url} " in said
        assert "\n" not in said
        assert advice in said


def test_a_hub_that_limits_requests_is_asked_again(tmp_path: Path) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.refusals = [(429, {"Retry-After": "0"})] * 2
        assert resolve_elsewhere(hub.url, "org/name", tmp_path).startswith(str(tmp_path))
        hub.refusals = [(429, {"Retry-After": "0"})] * 100
        said = resolve_elsewhere(hub.url, "org/name", tmp_path / "other")
        assert "limits requests (429); try again later" in said


@pytest.mark.parametrize(
    ("header", "wait_s"), [("7", 7), ("-1", 0), ("9999", 60), ("nan", 0), ("x", 5), ("", 5)]
)
def test_the_wait_is_bounded(header: str, wait_s: float) -> None:
    assert retry_after(header) == wait_s


def test_what_the_hub_does_not_have(tmp_path: Path) -> None:
    with HubServer("org/name", {"config.json": b"{}"}) as hub:
        assert "neither .safetensors nor .bin" in resolve_elsewhere(hub.url, "org/name", tmp_path)
        said = resolve_elsewhere(hub.url, "org/other", tmp_path)
        assert said.startswith(
            f"refused: there is no directory 'org/other', and the hub {hub.url} has no model"
        )
        asked = len(hub.requests)
        said = resolve_elsewhere(hub.url, "org/other", tmp_path, HF_HUB_OFFLINE="1")
        assert "HF_HUB_OFFLINE forbids" in said
        assert len(hub.requests) == asked


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with HubServer("org/name", {**SAFETENSORS, "model.safetensors": bytes(100_000)}) as hub:
        said = resolve_elsewhere(hub.url, "org/name", tmp_path / "file")
        assert said.startswith(f"refused: org/name cannot be kept in {tmp_path / 'file'}: ")
        said = resolve_elsewhere(hub.url, "org/name", tmp_path / "cache", disk_room=50_000)
        assert "cannot be kept in" in said
        assert "File too large; make room there, or give another place with HF_HUB_CACHE" in said
        assert not list((tmp_path / "cache").rglob("model.safetensors"))
        said = resolve_elsewhere(hub.url, "org/name", tmp_path / "cache")
        assert (Path(said) / "model.safetensors").stat().st_size == 100_000


def test_no_hub_to_be_reached(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        said = resolve_elsewhere(url, "org/name", tmp_path)
    assert said.startswith("refused: there is no directory 'org/name', and the hub http")
    assert "cannot be reached: Connection refused. With a network, run: hf download" in said


def test_the_bundled_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model("demo") == DEMO_MODEL_PATH
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert resolve_model("demo") == Path("demo")


def test_an_error_without_the_hub_says_how_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("org/name", revision="v1", download_dir=str(tmp_path))
    message = str(caught.value)
    assert "TRANSFORMERS_OFFLINE forbids fetching it" in message
    assert f"hf download org/name --revision v1 --cache-dir {tmp_path}." in message
    assert "hf download org/name --revision v1 --local-dir name, copy the directory" in message


def test_an_error_of_the_network_says_how_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    class NoNetwork:
        def __init__(self, **_: object) -> None:
            pass

        def model_info(self, *_: object, **__: object) -> None:
            raise ConnectionError("Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", NoNetwork)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("org/name", download_dir=str(tmp_path))
    assert "Name or service not known. With a network, run: hf download" in str(caught.value)


def test_without_the_hubs_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFoundError, match="pip install huggingface_hub"):
        resolve_model("org/name", download_dir=str(tmp_path))


LATER = "Fri, 21 Oct 2095 07:28:00 GMT"


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [("7", 7, 7), ("1e9", 60, 60), ("-1", 0, 0), ("nan", 0, 0), ("", 5, 5), ("soon", 5, 5),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), (LATER, 60, 60),
     ("Wed, 99 Oct 99999 07:28:00 GMT", 5, 5)],
)  # fmt: skip
def test_how_long_a_hub_is_waited_for(header: str, least: float, most: float) -> None:
    assert least <= retry_after(header) <= most


@pytest.mark.parametrize("name", ["org/name", "org/name:Q4_K_M", "org/name:q4_k_m"])
def test_a_killed_pull_of_a_split_model_is_continued(tmp_path: Path, name: str) -> None:
    first, second = FOLDERS[:2]
    with HubServer("org/name", {file: file.encode() for file in FOLDERS}) as hub:
        resolve_elsewhere(hub.url, name, tmp_path)
        [place] = tmp_path.rglob(Path(second).name)
        place.resolve().unlink()
        place.unlink()
        hub.requests.clear()
        resolve_elsewhere(hub.url, name, tmp_path)
        assert hub.fetched() == {second}
        place.resolve().unlink()
        said = resolve_elsewhere(hub.url, name, tmp_path, HF_HUB_OFFLINE="1")
    assert f"lacks parts of {Path(first).name} of the model" in said


def test_a_gated_model_names_its_page(tmp_path: Path) -> None:
    with HubServer("org/name", {"m-Q4_0.gguf": b"x"}) as hub:
        hub.refusals = [(403, {"X-Error-Code": "GatedRepo"})] * 20
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
    assert f"accept the model's terms on its page, {hub.url}/org/name, and" in said


def test_a_name_that_ends_as_a_file_is_not_looked_for_in_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no file 'nosuch.gguf'"):
        hub_name("nosuch.gguf", tmp_path)


@pytest.mark.parametrize(
    "info", [b'{"id": "org/na', b"<html>log in</html>", b"[]", b'{"id": "org/name", "siblings": 5}']
)
def test_an_answer_that_cannot_be_read_is_named(tmp_path: Path, info: bytes) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.info = info
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
        assert said.startswith(
            f"refused: 'org/name': the hub {hub.url} gives an answer that cannot be read ("
        )
        assert "\n" not in said
    assert not list(tmp_path.rglob("models--*"))


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "model.safetensors"])
def test_a_file_that_never_ends_is_refused(tmp_path: Path, name: str) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.endless = {name}
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
        assert said == (
            f"refused: {name}: the hub sends more than the {len(SAFETENSORS[name])} bytes that it "
            "announces"
        )
        assert hub.num_sent < 1 << 28
        assert not list(tmp_path.rglob("*.incomplete"))
        assert not models_of(tmp_path)
        hub.endless = set()
        assert resolve_elsewhere(hub.url, "org/name", tmp_path).startswith(str(tmp_path))


def test_a_text_without_a_size_is_bounded(tmp_path: Path) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.size_of = {"config.json": None}
        directory = Path(resolve_elsewhere(hub.url, "org/name", tmp_path))
        assert (directory / "config.json").read_bytes() == b"{}"
        hub.endless = {"config.json"}
        said = resolve_elsewhere(hub.url, "org/name", tmp_path / "other")
        assert "config.json: the hub sends more than the 67108864 bytes" in said
        assert not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.parametrize(("size", "said"), [(1, "more than the 1 bytes"), (9, "the size, 9 bytes")])
def test_a_size_that_is_wrong_is_named(tmp_path: Path, size: int, said: str) -> None:
    with HubServer("org/name", SAFETENSORS) as hub:
        hub.size_of = {"config.json": size}
        assert said in resolve_elsewhere(hub.url, "org/name", tmp_path)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_name_that_leads_out_of_the_cache_is_refused(tmp_path: Path) -> None:
    with HubServer("org/name", {**SAFETENSORS, "../../evil.json": b"{}"}) as hub:
        said = resolve_elsewhere(hub.url, "org/name", tmp_path)
    assert said == "refused: the hub lists a file of the name '../../evil.json', which is refused"
    assert not list(tmp_path.iterdir())
