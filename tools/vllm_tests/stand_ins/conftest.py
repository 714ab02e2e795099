"""In the place of vLLM's tests/conftest.py: the fixtures that tests of text use."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.placeholders import of_tests as __getattr__  # noqa: F401 - all other names
from tests.utils import ASSETS
from vllm import LLM, SamplingParams

_TESTS = Path(__file__).parent


class _Hub:
    """Stand-in of the hub: an adapter of the model for every name but those of other kinds."""

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        del options
        place = _TESTS.parent / "hub" / repo_id
        if "ptune" in repo_id:
            place.mkdir(parents=True, exist_ok=True)
        else:
            shutil.copytree(_TESTS.parent / "adapter", place, dirs_exist_ok=True)
        return str(place)


_repo_utils = types.ModuleType("vllm.transformers_utils.repo_utils")
_repo_utils.hf_api = _Hub  # type: ignore[attr-defined]
_repo_utils.with_retry = lambda call, *_, **__: call()  # type: ignore[attr-defined]
sys.modules[_repo_utils.__name__] = _repo_utils


class LocalAssetServer:
    """Pictures of one colour in the place of vLLM's: files below `ASSETS`, since Quire fetches
    nothing from this machine by HTTP. Servers with images may read them (`utils.py`)."""

    def url_for(self, name: str) -> str:
        return self._path(name).as_uri()

    def get_image_asset(self, name: str) -> Image.Image:
        with Image.open(self._path(name)) as image:
            image.load()
            return image

    def _path(self, name: str) -> Path:
        path = ASSETS / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            colour = tuple(hashlib.sha256(name.encode()).digest()[:3])
            Image.new("RGB", (64, 48), colour).save(path)
        return path


class Runner:
    """The methods of vLLM's VllmRunner that generate text."""

    def __init__(self, model_name: str, **options: Any) -> None:
        for name in ("swap_space", "tokenizer_name"):
            options.pop(name, None)
        self.llm = LLM(model=model_name, **options)

    def get_llm(self) -> LLM:
        return self.llm

    def generate(
        self,
        prompts: list[Any],
        sampling_params: SamplingParams,
        *,
        return_logprobs: bool = False,
        **options: Any,
    ) -> Any:
        """For each prompt the token ids, then the texts, with the prompt before each; then the
        log-probabilities of all, if they are asked for."""
        inputs = [{"prompt_token_ids": one} if isinstance(one, list) else one for one in prompts]
        found, logprobs = [], []
        for output in self.llm.generate(inputs, sampling_params, **options):
            parts = [output.prompt_logprobs, *(one.logprobs for one in output.outputs)]
            logprobs.append([position for part in parts for position in part or ()])
            ids = list(output.prompt_token_ids or ())
            text = output.prompt or ""
            found.append(
                (
                    [ids + list(one.token_ids) for one in output.outputs],
                    [text + one.text for one in output.outputs],
                )
            )
        return (found, logprobs) if return_logprobs else found

    def generate_greedy(self, prompts: list[Any], max_tokens: int) -> list[tuple[list[int], str]]:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        return [(ids[0], texts[0]) for ids, texts in self.generate(prompts, params)]

    def generate_w_logprobs(self, prompts: list[Any], params: SamplingParams) -> list[Any]:
        """Token ids, text and log-probabilities; those of the prompt if they were asked for."""
        found = []
        for output in self.llm.generate(prompts, params):
            one = output.outputs[0]
            row = (list(one.token_ids), one.text, one.logprobs)
            found.append(row if params.prompt_logprobs is None else (*row, output.prompt_logprobs))
        return found

    def generate_greedy_logprobs(
        self,
        prompts: list[Any],
        max_tokens: int,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None = None,
        **options: Any,
    ) -> list[Any]:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            logprobs=num_logprobs,
            prompt_logprobs=num_prompt_logprobs,
            **options,
        )
        return self.generate_w_logprobs(prompts, params)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self.llm.llm_engine.shutdown()


VllmRunner = HfRunner = Runner


@pytest.fixture(scope="session")
def vllm_runner() -> type[Runner]:
    return Runner


@pytest.fixture(scope="session")
def local_asset_server() -> LocalAssetServer:
    return LocalAssetServer()


@pytest.fixture
def image_url(request: pytest.FixtureRequest, local_asset_server: LocalAssetServer) -> str:
    return local_asset_server.url_for(request.param)


@pytest.fixture
def image_urls(request: pytest.FixtureRequest, local_asset_server: LocalAssetServer) -> list[str]:
    return [local_asset_server.url_for(name) for name in request.param]


@pytest.fixture
def example_prompts() -> list[str]:
    return (_TESTS / "prompts" / "example.txt").read_text().splitlines()


@pytest.fixture(scope="session")
def cli_config_file() -> str:
    return str(_TESTS / "config" / "test_config.yaml")


@pytest.fixture(scope="session")
def cli_config_file_with_model() -> str:
    return str(_TESTS / "config" / "test_config_with_model.yaml")


@pytest.fixture
def sample_json_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    return caplog


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_TESTS_PID", str(os.getpid()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optional", action="store_true", default=False)


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("core_model", "cpu_model", "optional", "slow_test", "skip_global_cleanup"):
        config.addinivalue_line("markers", f"{mark}: of vLLM")
