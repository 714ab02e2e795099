"""One tokenizer for all engines of a process that name the same files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError
from quire.planning.plan import plan_engine
from quire.tokenizer.for_model import load_tokenizer


def test_a_tokenizer_in_use_is_not_loaded_again_unless_its_files_change(tmp_path: Path) -> None:
    config = plan_engine(EngineArgs(str(write_tiny_model(tmp_path)))).config.model
    first = load_tokenizer(config)
    assert first is not None
    assert load_tokenizer(config) is first
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**settings, "pad_token": None, "note": "changed"}))
    second = load_tokenizer(config)
    assert second is not first
    smaller = dataclasses.replace(config, vocab_size=2)
    with pytest.raises(CheckpointError):
        load_tokenizer(smaller)
