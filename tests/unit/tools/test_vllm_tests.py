"""How vLLM's test files and their results are sorted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tools.vllm_tests import page, sorting
from tools.vllm_tests.adapter import write_adapter
from tools.vllm_tests.running import check_state, give_room, link_models, result_file

import quire
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.weights.adapters.read import read_adapter


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {
        "v1/test_public.py": "import pytest\nfrom vllm import LLM, SamplingParams\n",
        "v1/test_slow.py": "from vllm.sampling_params import SamplingParams\n",
        "v1/test_private.py": "from vllm.v1.core.block_pool import BlockPool\n",
        "v1/test_missing.py": "from vllm.lora.request import LoRARequest\n",
        "v1/test_partly.py": "from vllm import LLM\nfrom vllm.v1.core.block_pool import A\n",
        "pooling/test_any.py": "from vllm import LLM\n",
        "utils.py": "from vllm.nothing import x\n",
    }
    for name, text in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_files_are_sorted_by_what_they_import(source: Path) -> None:
    found = sorting.test_files(source)
    assert found.pop("v1/test_private.py") == "a part of vLLM's engine, which Quire does not share"
    assert found == {
        "pooling/test_any.py": "pooling models; the bundled model generates",
        "v1/test_missing.py": "",  # a placeholder can be imported
        "v1/test_partly.py": "",
        "v1/test_public.py": "",
        "v1/test_slow.py": "",
    }


def test_the_page_counts_results_and_reasons(source: Path, tmp_path: Path) -> None:
    results = [
        ["tests/v1/test_public.py::test_one", "passed", ""],
        ["tests/v1/test_public.py::test_two", "failed", "AssertionError: 1 == 2"],
        ["tests/v1/test_public.py::test_x[lora-a]", "failed", "404"],
        ["tests/v1/test_public.py::test_y", "skipped", "no GPU"],
        ["tests/v1/test_public.py::test_z", "failed", "[XPASS(strict)] of vLLM"],
        ["tests/v1/test_public.py::test_late", "unfinished", "did not end in time"],
        [
            "tests/v1/test_public.py::test_w",
            "failed",
            "Quire has no vllm.a.b: private; did you mean",
        ],
    ]
    missing = "ConfigError: vllm.lora.request.LoRARequest: LoRA adapters do not work yet"
    for name, rows in (
        ("v1/test_public.py", results),
        ("v1/test_missing.py", [["tests/v1/test_missing.py", "failed", missing]]),
        ("v1/test_partly.py", [["tests/v1/test_partly.py::test_a", "skipped", ""]]),
    ):
        is_earlier = name == "v1/test_partly.py"
        path = result_file(tmp_path / "earlier" if is_earlier else tmp_path, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "examples.jsonl").write_text('["basic.py", ""]\n["chat.py --x", "an error"]\n')
    text = page.page(source, tmp_path)
    assert "1 tests pass, 3 fail, 2 are skipped by themselves. 1 more" in text
    assert "`v1/test_partly.py` (earlier) |" in text
    assert "the 1 rows that are marked so" in text
    why = "not sorted (1); LoRA adapters (1); did not end in time (1)"
    assert f"| `v1/test_public.py` | 1 | 1 | 3 | 1 | 1 | {why} |" in text
    assert "| 1 | private |" in text
    assert "| 1 | not run yet; " in text
    assert "`v1/test_slow.py`" not in text
    assert "`v1/test_missing.py`" not in text  # all of its tests use a missing part
    assert "| 2 | LoRA adapters |" not in text
    assert "| 1 | LoRA adapters do not work yet |" in text
    assert "| 1 | a part of vLLM's engine, which Quire does not share |" in text
    assert "| `basic.py` | works |" in text
    assert "| `chat.py --x` | an error |" in text


def test_results_of_two_states_of_the_code_do_not_mix(tmp_path: Path) -> None:
    check_state(tmp_path)
    check_state(tmp_path)
    (tmp_path / "state").write_text("another")
    with pytest.raises(SystemExit, match="another state of the code; name a new folder"):
        check_state(tmp_path)


def test_hub_ids_are_the_local_model_with_as_much_room_as_is_asked_for(tmp_path: Path) -> None:
    for name in ("model", "marks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    text = 'M = "org/name"\nP = "tests/x.py"\nargs = ["--max-model-len", "10100"]'
    link_models(tmp_path, text)
    link_models(tmp_path, text, "marks")
    assert (tmp_path / "org/name").resolve() == tmp_path / "marks"
    assert not (tmp_path / "tests").exists()
    for asked, room in ((text, 10100), ("", 2048), ("max_model_len=512", 2048)):
        give_room(tmp_path, asked)
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        assert config["max_position_embeddings"] == room


def test_what_has_no_result_keeps_what_the_page_said(source: Path, tmp_path: Path) -> None:
    rows = [
        ["tests/v1/test_public.py::test_x[lora-a]", "failed", "404"],
        ["tests/v1/test_public.py::test_y", "passed", ""],
    ]
    first = result_file(tmp_path, "v1/test_public.py")
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "examples.jsonl").write_text('["basic.py", ""]\n')
    before = page.page(source, tmp_path) + "\n## Texts of replies\n\nWhat parsers say\n"
    later = tmp_path / "later"
    later.mkdir()
    merged = page.page(source, later, before)
    assert (
        "an earlier state of the code are the 1 rows that are marked so and the examples" in merged
    )
    for line in before.splitlines():
        if line.startswith("|"):
            assert line.replace("public.py`", "public.py` (earlier)") in merged
    assert page.page(source, later, merged) == merged
    assert merged.endswith("## Texts of replies\n\nWhat parsers say\n")
    new = result_file(later, "v1/test_slow.py")
    new.write_text(json.dumps(["tests/v1/test_slow.py::a", "passed", ""]) + "\n")
    assert "2 tests pass, 1 fail" in page.page(source, later, before)


_PARTLY = """
import pytest
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.core import block_pool
from vllm.v1.request import Request, RequestStatus

class Mine(Request): pass

@pytest.mark.parametrize("status", [RequestStatus.WAITING, *RequestStatus])
def test_lacks(status: Request | None): status.name

def test_private(): block_pool.BlockPool(1)

@RequestStatus.decorate
def test_decorated(): pass

def test_subclass(): Mine()

def test_instance(): isinstance(1, Request)

def test_inside():
    from vllm.v1.request import Other

def test_config(): VllmConfig()

def test_there(): assert SamplingParams(n=2).n == 2
"""


def test_only_tests_that_use_a_missing_name_fail(tmp_path: Path) -> None:
    stand_ins = Path(page.__file__).parent / "stand_ins"
    (tmp_path / "tests").mkdir()
    for name in ("placeholders.py", "partial_report.py"):
        shutil.copy(stand_ins / name, tmp_path / "tests")
    (tmp_path / "tests" / "test_partly.py").write_text(_PARTLY)
    plugins = ("no:cacheprovider", "tests.placeholders", "tests.partial_report")
    options = [word for name in plugins for word in ("-p", name)]
    command = ["-m", "quire.vllm", "-m", "pytest", "tests/test_partly.py", "-q", *options]
    paths = os.pathsep.join([str(tmp_path), str(Path(quire.__file__).parents[1])])
    report = tmp_path / "report.jsonl"
    subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "REPORT": str(report),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        timeout=300,
        check=False,
    )
    lines = map(json.loads, report.read_text().splitlines())
    found = {name: (outcome, text) for name, outcome, text in lines}
    passed = [name for name, (outcome, _) in found.items() if outcome == "passed"]
    assert passed == ["tests/test_partly.py::test_there"]
    assert len(found) == 9
    for name, (outcome, text) in found.items():
        if name not in passed:
            assert outcome == "failed", name
            assert "Quire has no vllm.v1." in text or "vllm.config.VllmConfig: " in text, name


def test_the_stand_in_for_a_server_makes_urls_as_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tests.placeholders", types.SimpleNamespace(of_tests=None))
    path = Path(sorting.__file__).parent / "stand_ins" / "utils.py"
    spec = importlib.util.spec_from_file_location("stand_in_utils", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = object.__new__(module.RemoteOpenAIServer)
    server.host, server.port = "127.0.0.1", 1
    for parts in (("v2/embed",), ("/v2/embed",), ("v2", "embed/"), ("/v2/", "", "/embed")):
        assert server.url_for(*parts) == "http://127.0.0.1:1/v2/embed"


def test_the_adapter_of_the_tests_fits_the_model(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", DEMO_MODEL_PATH)
    files = read_adapter(tmp_path / "adapter", max_rank=8, max_bytes=1 << 30)
    assert {module.name.rpartition(".")[2] for module in files.modules} == {"q_proj", "v_proj"}
    (tmp_path / "config.json").write_text('{"text_config": {}}')
    write_adapter(tmp_path / "none", tmp_path)
    assert not (tmp_path / "none").exists()
