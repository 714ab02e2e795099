"""Training loops: new weights in a running engine, from files and from memory, give the tokens of
an engine that was started with them; what cannot be loaded changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_adapter
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters import LoRARequest
from quire.config.engine_args import AsyncEngineArgs
from quire.errors import CheckpointError, ConfigError
from quire.frontend.online.async_llm import AsyncLLM
from quire.llm import LLM
from quire.params import SamplingParams
from quire.weights.adapters import bind_adapter
from quire.worker import adapter_loading as loading
from quire.worker.worker import Worker

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS: list[Any] = [[number] * 40 for number in range(1, 4)]
OPTIONS: dict[str, Any] = {"max_model_len": 128, "num_gpu_blocks_override": 64, "num_threads": 1}
Weights = dict[str, np.ndarray[Any, Any]]


class Extension:
    """What training loops add: a method for a single weight, one for all, one for a file."""

    def update_weight(self, name: str, value: Any) -> str:
        self.model_runner.model.load_weights(weights=[(name, value)])  # type: ignore[attr-defined]
        return str(self.device)  # type: ignore[attr-defined]

    def update_weights(self, path: str) -> int:
        model = self.model_runner.model  # type: ignore[attr-defined]
        return len(model.load_weights(load_file(path).items()))

    def touch(self, name: str) -> Any:
        target: Any = self
        for part in name.split("."):
            target = getattr(target, part)
        return target


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sets of weights for one config.json."""
    home = tmp_path_factory.mktemp("models")
    return [write_tiny_checkpoint(home / f"m{seed}", seed=seed) for seed in (3, 5)]


@pytest.fixture(scope="module")
def wanted(folders: list[Path], backend: str) -> list[Any]:
    """The tokens of either."""
    found = []
    for folder in folders:
        with LLM(str(folder), backend=backend, **OPTIONS) as llm:  # type: ignore[arg-type]
            found.append(tokens(llm))
    assert found[0] != found[1]
    return found


@pytest.fixture
def llm(folders: list[Path], backend: str) -> Iterator[LLM]:
    extension = f"{__name__}.Extension"
    with LLM(
        str(folders[0]),
        backend=backend,  # type: ignore[arg-type]
        worker_extension_cls=extension,
        **OPTIONS,
    ) as made:
        yield made


def tokens(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


def weights(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def from_files(llm: LLM, folder: Path) -> None:
    assert llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)}) == [None]


def from_an_iterator(llm: LLM, folder: Path) -> None:
    llm.collective_rpc("reload_weights", args=(weights(folder).items(),))


def at_once(llm: LLM, folder: Path) -> None:
    path = str(folder / "model.safetensors")
    assert llm.collective_rpc("update_weights", args=(path,)) == [len(weights(folder))]


def one_by_one(llm: LLM, folder: Path) -> None:
    for name, value in weights(folder).items():
        llm.collective_rpc("update_weight", args=(name, value))


def through_the_executor(llm: LLM, folder: Path) -> None:
    worker = llm.llm_engine.model_executor.driver_worker  # type: ignore[attr-defined]
    for name, value in weights(folder).items():
        worker.model_runner.model.load_weights([(name, value)])


def through_apply_model(llm: LLM, folder: Path) -> None:
    llm.apply_model(lambda model: model.load_weights(weights(folder).items()))


WAYS = (
    from_files, from_an_iterator, at_once, one_by_one, through_the_executor, through_apply_model,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_awake_engine_takes_new_weights(
    llm: LLM, folders: list[Path], wanted: list[Any], way: Callable[[LLM, Path], None]
) -> None:
    for _ in range(2):
        assert tokens(llm) == wanted[0]
        way(llm, folders[1])
        assert tokens(llm) == wanted[1]
        way(llm, folders[0])
    assert tokens(llm) == wanted[0]


def test_the_cache_of_equal_weights_has_one_name(
    llm: LLM, folders: list[Path], wanted: list[Any]
) -> None:
    """So K/V in the store is found again, and that of other weights never."""
    kv = llm.llm_engine.engine_core.scheduler.kv
    roots = [kv.open().root]
    for way, folder in ((at_once, 1), (from_files, 1), (from_files, 0), (at_once, 1)):
        way(llm, folders[folder])
        assert tokens(llm) == wanted[folder]
        roots.append(kv.open().root)
    assert roots[1] == roots[4]
    assert roots[3] == roots[0]
    assert len({*roots}) == 3


def test_single_weights_are_kept_until_the_files_are_read_again(
    llm: LLM, folders: list[Path], wanted: list[Any], backend: str, tmp_path: Path
) -> None:
    old, new = (weights(folder) for folder in folders)
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    mixed = tmp_path / "mixed"
    shutil.copytree(folders[0], mixed)
    save_file({**old, **{name: new[name] for name in names}}, mixed / "model.safetensors")
    with LLM(str(mixed), backend=backend, **OPTIONS) as other:  # type: ignore[arg-type]
        expected = tokens(other)
    for name in names:
        llm.collective_rpc("update_weight", args=(name, new[name]))
        tokens(llm)
    assert tokens(llm) == expected
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        assert tokens(llm) == expected
    llm.collective_rpc("reload_weights")
    assert tokens(llm) == wanted[0]


def test_weights_that_come_in_sleep(llm: LLM, folders: list[Path], wanted: list[Any]) -> None:
    assert tokens(llm) == wanted[0]
    for way in (from_files, one_by_one):
        for level in (0, 1, 2):
            llm.sleep(level)
            way(llm, folders[1])
            llm.wake_up()
            assert tokens(llm) == wanted[1]
            llm.sleep(level)
            llm.wake_up(["weights"])
            way(llm, folders[0])
            llm.wake_up()
            assert tokens(llm) == wanted[0]


def test_requests_that_run_compute_again(llm: LLM, folders: list[Path], wanted: list[Any]) -> None:
    """What a request has generated stays, and goes on with the new weights."""
    engine = llm.llm_engine
    engine.add_request("a", PROMPTS[0], PARAMS)
    for _ in range(3):
        engine.step()
    from_files(llm, folders[1])
    [*_, last] = [output for _ in range(8) for output in engine.step()]
    [again] = llm.generate(
        [PROMPTS[0] + wanted[0][0][:3]],
        SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
        use_tqdm=False,
    )
    assert last.outputs[0].token_ids == wanted[0][0][:3] + again.outputs[0].token_ids


@pytest.mark.parametrize("way", [from_files, one_by_one, through_the_executor, through_apply_model])
def test_an_adapter_that_depends_on_the_weights_keeps_them(
    folders: list[Path], tmp_path: Path, way: Callable[[LLM, Path], None]
) -> None:
    folder = write_adapter(tmp_path / "adapter", folders[0], use_dora=True)
    adapter = LoRARequest("adapter", 1, str(folder))
    given: dict[str, Any] = {"enable_lora": True, "worker_extension_cls": f"{__name__}.Extension"}
    with LLM(str(folders[0]), **given, **OPTIONS) as llm:
        llm.llm_engine.add_lora(adapter)
        with pytest.raises(ConfigError, match="while an adapter with use_dora is loaded"):
            way(llm, folders[1])
        assert llm.llm_engine.remove_lora(1)
        way(llm, folders[1])


def test_an_adapter_that_is_being_computed_from_the_weights_keeps_them(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "adapter", folders[0], use_dora=True)
    refusals: list[str] = []
    with LLM(str(folders[0]), enable_lora=True, **OPTIONS) as llm:
        [worker] = llm.collective_rpc(lambda worker: worker)

        def bind(*args: Any) -> Any:
            with pytest.raises(ConfigError) as refusal:
                worker.reload_weights(weights_path=folders[1])
            refusals.append(str(refusal.value))
            return bind_adapter(*args)

        monkeypatch.setattr(loading, "bind_adapter", bind)
        llm.llm_engine.add_lora(LoRARequest("adapter", 1, str(folder)))
        assert llm.llm_engine.remove_lora(1)
        from_files(llm, folders[1])
    assert "while an adapter with use_dora is loaded" in refusals[0]


def test_what_does_not_fit_changes_nothing(
    llm: LLM, folders: list[Path], wanted: list[Any], tmp_path: Path
) -> None:
    rpc, good = llm.collective_rpc, weights(folders[1])
    short, misshapen = tmp_path / "short", tmp_path / "misshapen"
    for folder in (short, misshapen):
        shutil.copytree(folders[1], folder)
    save_file({**good, "model.norm.weight": np.ones(3, np.float32)},
              misshapen / "model.safetensors")  # fmt: skip
    path = short / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    cases: list[tuple[Any, type[Exception], str]] = [
        (tmp_path / "absent", ConfigError, "weights_path must be a folder"),
        (5, ConfigError, "weights_path must be a folder with the weights of a model, got 5"),
        (tmp_path, CheckpointError, "holds no weights"),
        (short, CheckpointError, "short"),
        (misshapen, CheckpointError, r"model\.norm\.weight.*\[3\]"),
    ]
    for place, kind, message in cases:
        with pytest.raises(kind, match=message):
            rpc("reload_weights", kwargs={"weights_path": place})
        assert tokens(llm) == wanted[0]
    first, norm = next(iter(good.items())), good["model.norm.weight"]
    for name, value, message in (
        ("model.nrm.weight", norm, "no weight 'model.nrm.weight'.*model.norm.weight"),
        ("model.norm.weight", np.ones(3, np.float32), r"must have shape \[64\], got \[3\]"),
        ("model.norm.weight", norm.astype(np.float64), "must be an array .* got float64"),
        ("model.norm.weight", [1.0], "must be an array .* got list"),
    ):
        with pytest.raises(ConfigError, match=message):
            llm.apply_model(lambda model, last=(name, value): model.load_weights([first, last]))
        with pytest.raises(ConfigError, match=message):
            rpc("reload_weights", args=([first, (name, value)],))
    with pytest.raises(ConfigError, match="is_checkpoint_format must be True"):
        rpc("reload_weights", kwargs={"is_checkpoint_format": False})
    with pytest.raises(ConfigError, match="only the engine may call take_new_weights"):
        rpc("take_new_weights")
    assert tokens(llm) == wanted[0]


def test_a_load_that_fails_goes_back(
    llm: LLM, folders: list[Path], wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, failures = Worker._load, [OSError("the disk is gone")]

    def fails_once(worker: Worker) -> None:
        if failures:
            raise failures.pop()
        load(worker)

    monkeypatch.setattr(Worker, "_load", fails_once)
    with pytest.raises(OSError, match="the disk is gone"):
        from_files(llm, folders[1])
    assert tokens(llm) == wanted[0]
    from_files(llm, folders[1])
    assert tokens(llm) == wanted[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cache_engine", "the worker has no cache_engine here: K/V is in"),
        ("update_config", "the worker has no update_config here: weights come from files"),
        ("model_runner.kv_caches", "model_runner has no kv_caches here: K/V is in"),
        ("model_runner.lora_manager", "model_runner has no lora_manager here: LoRA"),
        ("model_runner.model.named_parameters", "the model has no named_parameters here: the mod"),
        ("model_runner.model.state_dict", "the model has no state_dict here: the model is not"),
    ],
)
def test_what_is_not_there_is_refused_by_name(llm: LLM, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        llm.collective_rpc("touch", args=(name,))
    with pytest.raises(AttributeError, match="has no attribute 'invented'"):
        llm.collective_rpc("touch", args=("model_runner.invented",))


def test_what_is_there(llm: LLM) -> None:
    for name in ("device", "model_runner.device"):
        assert str(llm.collective_rpc("touch", args=(name,))[0]) == "cpu"
    config = llm.llm_engine.vllm_config
    for name in ("vllm_config", "model_runner.vllm_config"):
        assert llm.collective_rpc("touch", args=(name,)) == [config]
    for name in ("model_config", "model_runner.model_config"):
        assert llm.collective_rpc("touch", args=(name,)) == [config.model]
    assert llm.llm_engine.model_executor.collective_rpc("check_health") == [None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine_mode", ["thread", "process"])
async def test_an_engine_of_either_host(
    folders: list[Path], wanted: list[Any], backend: str, engine_mode: Any
) -> None:
    args = AsyncEngineArgs(str(folders[0]), backend=backend, **OPTIONS)  # type: ignore[arg-type]
    engine = AsyncLLM.from_engine_args(args, engine_mode=engine_mode)

    async def one(index: int) -> list[int]:
        stream = engine.generate(PROMPTS[index], PARAMS, f"r{index}")
        return [output async for output in stream][-1].outputs[0].token_ids

    try:
        assert await one(0) == wanted[0][0]
        path = {"weights_path": str(folders[1])}
        await engine.collective_rpc("reload_weights", kwargs=path)
        assert await one(0) == wanted[1][0]
        with pytest.raises(ConfigError, match="weights_path must be a folder"):
            await engine.collective_rpc("reload_weights", kwargs={"weights_path": "absent"})
        assert await one(1) == wanted[1][1]
    finally:
        engine.shutdown()
