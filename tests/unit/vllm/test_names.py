"""The tables of names: all of Quire's names exist, and what is missing says why."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType

import pytest

import quire
import quire.vllm
from quire.errors import ConfigError, EngineDeadError, RequestError
from quire.vllm.finder import install
from quire.vllm.missing import MISSING_MODULES, MISSING_NAMES, missing_names
from quire.vllm.surface import PROGRAMS, SURFACE, VLLM_VERSION, surface_names

OFFERED = [(module, name) for module in SURFACE for name in surface_names(module) if name != "*"]
MODULES_WITH_GAPS = sorted({module for names in MISSING_NAMES.values() for module in names})
MISSING = [(module, name) for module in MODULES_WITH_GAPS for name in missing_names(module)]


@pytest.mark.parametrize(("module", "name"), OFFERED)
def test_an_offered_name_exists(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize(("module", "name"), MISSING)
def test_a_missing_name_can_be_imported_and_says_why_it_cannot_be_used(
    module: str, name: str
) -> None:
    assert name not in surface_names(module)
    found = getattr(importlib.import_module(module), name)
    with pytest.raises(ConfigError, match=f"{module}.{name}: ...") as error:
        found("argument", key=1)
    assert missing_names(module)[name] in str(error.value)


def test_nothing_is_called_missing_that_is_there() -> None:
    homes = [(home, name) for module, name in MISSING for home in SURFACE.get(module, {})]
    assert [pair for pair in homes if hasattr(importlib.import_module(pair[0]), pair[1])] == []


@pytest.mark.parametrize("package", MISSING_MODULES)
def test_a_missing_module_says_why(package: str) -> None:
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module(f"{package}.no_such_module")
    assert str(error.value).startswith(f"Quire has no {package}")
    assert str(error.value).endswith(f": {MISSING_MODULES[package]}")


def test_quires_own_names_are_all_offered() -> None:
    assert set(quire.__all__) <= {name for module in SURFACE for name in surface_names(module)}


def test_the_names_are_quires() -> None:
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    assert (LLM, SamplingParams, EngineArgs) == (quire.LLM, quire.SamplingParams, quire.EngineArgs)
    assert quire.vllm.LLM is vllm.LLM is quire.LLM
    assert {"LLM", "SamplingParams"} <= set(dir(vllm)) & set(dir(quire.vllm)) & set(vllm.__all__)


def test_a_module_says_whose_it_is() -> None:
    import vllm.sampling_params

    assert vllm.__file__ == vllm.sampling_params.__file__ == quire.vllm.__file__


def test_submodules_are_attributes() -> None:
    import vllm

    assert vllm.sampling_params.SamplingParams is quire.SamplingParams
    assert quire.vllm.v1.engine.async_llm.AsyncLLM is quire.AsyncLLMEngine


def test_modules_have_a_name_under_quire_too() -> None:
    from quire.vllm.sampling_params import SamplingParams

    assert SamplingParams is quire.SamplingParams
    assert sys.modules["quire.vllm.sampling_params"] is sys.modules["vllm.sampling_params"]
    with pytest.raises(ModuleNotFoundError, match=r"no vllm\.lora\.layers: LoRA"):
        importlib.import_module("quire.vllm.lora.layers")


def test_an_unknown_name_says_which_is_near() -> None:
    import vllm.sampling_params

    with pytest.raises(ImportError, match=r"no vllm\.sampling_params\.SamplingParam: .*; did you "
                       r"mean SamplingParams\?"):  # fmt: skip
        from vllm.sampling_params import SamplingParam  # noqa: F401
    with pytest.raises(AttributeError, match="did you mean SamplingParams"):
        _ = vllm.sampling_params.SamplingParam
    assert not hasattr(vllm.sampling_params, "SamplingParam")


def test_a_missing_class_can_be_named_in_annotations_and_not_be_derived_from() -> None:
    from vllm import PoolingParams, SamplingParams
    from vllm.config import CompilationMode, LoRAConfig

    assert not isinstance(SamplingParams(), PoolingParams)
    assert SamplingParams | PoolingParams
    with pytest.raises(ConfigError, match="LoRA adapters"):
        type("Mine", (LoRAConfig,), {})
    with pytest.raises(AttributeError, match="compiled"):
        _ = CompilationMode.NONE


def test_the_version_is_vllms() -> None:
    import vllm

    assert vllm.__version__ == quire.vllm.__version__ == VLLM_VERSION
    assert vllm.__version_tuple__ == tuple(int(part) for part in VLLM_VERSION.split("."))
    assert importlib.metadata.version("vllm") == VLLM_VERSION
    assert importlib.metadata.version("numpy") != VLLM_VERSION


def test_errors_are_caught_by_vllms_names() -> None:
    from vllm.exceptions import VLLMError, VLLMServerError, VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError as TheirEngineDeadError

    assert issubclass(RequestError, VLLMValidationError)
    assert issubclass(RequestError, VLLMError)
    assert issubclass(EngineDeadError, VLLMServerError)
    assert TheirEngineDeadError is EngineDeadError


def test_every_program_is_a_module_with_code() -> None:
    for program in PROGRAMS:
        spec = importlib.util.find_spec(f"{program}.__main__")
        assert spec is not None
        assert spec.loader.get_code(spec.name) is not None


def test_vllm_that_is_imported_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("vllm")
    theirs.__file__ = "/somewhere/vllm/__init__.py"
    monkeypatch.setitem(sys.modules, "vllm", theirs)
    with pytest.raises(ImportError, match="imported already, from /somewhere/vllm"):
        install()
    assert sys.modules["vllm"] is theirs
