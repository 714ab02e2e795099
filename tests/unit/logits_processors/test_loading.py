"""Logits processors are found by name, as classes, and as entry points; all else is refused."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import logits_processors
import pytest
from logits_processors import Ledger, TargetToken

from quire.config.engine_args import EngineArgs
from quire.core.process_channel import EngineBoot, boot_decoder, encoder
from quire.errors import ConfigError
from quire.logits_processors import LogitsProcessor
from quire.logits_processors.loading import GROUPS, load_processors, processor_names
from quire.planning.plan import build_engine_config

NAME = "logits_processors:TargetToken"


class Outer:
    class Inner(Ledger):
        pass


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The entry points of installed packages, by group."""
    found: dict[str, list[Any]] = {}

    def entry_points() -> EntryPoints:
        return EntryPoints(
            EntryPoint(f"e{i}", value, group)
            for group, values in found.items()
            for i, value in enumerate(values)
        )

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return found


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ()),
        ([], ()),
        ([TargetToken], (NAME,)),
        ([NAME], (NAME,)),
        ([f" {NAME} ", Ledger], (NAME, "logits_processors:Ledger")),
        ([Outer.Inner], (f"{__name__}:Outer.Inner",)),
    ],
)
def test_names(given: Any, names: tuple[str, ...]) -> None:
    assert processor_names(given) == names
    for cls in load_processors(names):
        assert issubclass(cls, LogitsProcessor)


def test_a_class_that_has_no_name_elsewhere_stays_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Ledger):
        pass

    class Main(Ledger):
        pass

    Main.__module__, Main.__qualname__ = "__main__", "Main"
    monkeypatch.setattr(sys.modules["__main__"], "Main", Main, raising=False)
    assert processor_names([Local, Main]) == (Local, Main)
    assert load_processors((Local, Main)) == [Local, Main]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "no colon",
            "FQCN 'no colon'. Expected format: '<module>:<type>'",
        ),
        ("a:b:c", "Invalid logits processor FQCN 'a:b:c'"),
        (":b", "Invalid logits processor FQCN ':b'"),
        ("no_such_module_here:X", "importing no_such_module_here failed: ModuleNotFoundError"),
        ("broken_module:X", "importing broken_module failed: ZeroDivisionError"),
        ("logits_processors:Nothing", "has no attribute 'Nothing'"),
        ("logits_processors:arg", "must be a subclass of LogitsProcessor"),
        ("builtins:int", "logits processor builtins:int must be a subclass of LogitsProcessor"),
        (int, "logits processor builtins:int must be a subclass of LogitsProcessor"),
        (3, "3 must be a class or a name such as 'package.module:Class'"),
        (LogitsProcessor, "must define __init__, apply, is_argmax_invariant, update_state"),
    ],
    ids=str,
)
def test_what_is_none_is_refused(
    given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        processor_names([given])
    assert message in str(error.value)


def test_entry_points_come_first_and_once(entries: dict[str, list[Any]]) -> None:
    entries[GROUPS[0]] = [NAME]
    entries[GROUPS[1]] = [NAME, "logits_processors:FlatTop"]
    names = processor_names(["logits_processors:Ledger"])
    assert names == (NAME, "logits_processors:FlatTop", "logits_processors:Ledger")
    entries[GROUPS[1]] = ["no_such_module_here:X"]
    with pytest.raises(ConfigError, match=r"entry point 'e0' of quire\.logits_processors: "):
        processor_names(None)


def test_an_argument_of_an_engine(model_dir: Path, entries: dict[str, list[Any]]) -> None:
    def names(**given: Any) -> tuple[Any, ...]:
        args = EngineArgs(str(model_dir), backend="reference", max_num_seqs=4, **given)
        return build_engine_config(args).model.logits_processors

    assert names() == ()
    assert names(logits_processors=[logits_processors.Ledger]) == ("logits_processors:Ledger",)
    for wrong in ("a:b", [3], {"a": 1}):
        with pytest.raises(ConfigError, match="logits_processors must be a list"):
            names(logits_processors=wrong)
    entries[GROUPS[0]] = [NAME]
    assert names() == (NAME,)


def test_the_way_to_an_engine_process(model_dir: Path) -> None:
    """Names go there; a class without one is refused, and nothing is pickled."""

    class Local(Ledger):
        pass

    def boot(processor: Any) -> EngineBoot:
        args = EngineArgs(str(model_dir), backend="reference", logits_processors=[processor])
        config = build_engine_config(args)
        sent = encoder.encode(EngineBoot(core_factory="a:b", config=config, epoch=0.0))
        return boot_decoder.decode(sent)

    assert boot(TargetToken).config.model.logits_processors == (NAME,)
    with pytest.raises(ConfigError, match=r"Local cannot be sent to an engine process, .*; put the "
                       "class into a module of its own"):  # fmt: skip
        boot(Local)
