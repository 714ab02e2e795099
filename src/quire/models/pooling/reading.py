"""Decides whether a model pools, and how: from its files and the engine's arguments.

Called where config.json is read. The files are those of sentence-transformers: `modules.json`, a
folder for each module, and two files of settings. Names and rules are vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from quire.config.checkpoint.model_files import (
    parse_json_object,
    read_optional_json_object,
    read_text,
    transformer_file,
)
from quire.config.pooling import PoolingActivation, PoolingTask, PoolingType
from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.models.base import ModelFamily
from quire.models.config_reader import MAX_HIDDEN, ConfigReader
from quire.models.pooling.head import DenseLayer
from quire.program import Activation

_MODES: Mapping[str, PoolingType] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_DENSE_ACTIVATIONS: Mapping[str, Activation | None] = {
    "Identity": None, "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu", "SiLU": "silu",
}  # fmt: skip
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize", "LogitScore")
_TASKS = {
    "feature-extraction": ("token_embeddings", "last_hidden_state"),
    "sequence-classification": ("scores", "logits"),
    "text-generation": ("causal_logits", "logits"),
}
"""Result of the module Transformer, and its name in transformers, by `transformer_task`."""
_WITHOUT_EFFECT = frozenset([
    "attn_implementation", "cache_dir", "clean_up_tokenization_spaces", "device_map", "dtype",
    "fix_mistral_regex", "local_files_only", "pad_to_multiple_of", "padding", "padding_side",
    "return_tensors", "revision", "token", "torch_dtype", "trust_remote_code", "truncation",
    "use_cache", "use_fast",
])  # fmt: skip
"""Arguments of transformers that change no vector."""
_OF_TEXTS = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
_SCORE_ACTIVATIONS: Mapping[str, PoolingActivation] = {
    "Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax",
}  # fmt: skip
CLASSIFIES = re.compile(r"For(Sequence|Token)Classification$|Reward")
_BY_TOKEN = re.compile(r"ForTokenClassification$|ForProcessRewardModel$")
_MAX_LABELS = 1 << 16


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """Settings from the files of sentence-transformers."""

    pooling_type: PoolingType | None = None
    dense: tuple[DenseLayer, ...] = ()
    normalizes: bool = False
    max_tokens: int | None = None
    """Longer texts were cut in training."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dimensions: int | None = None
    """The length to which vectors are shortened."""
    score_activation: PoolingActivation | None = None
    """Function from a classifier's numbers to probabilities; None: config.json decides."""
    logit_rows: tuple[int, ...] = ()
    """The tokens whose logits are a score: one, or two whose difference is."""
    template_settings: Mapping[str, Any] | None = None
    """Variables of the chat template that makes one text of a pair; None: the pair is read."""


def read_sentence_model(path: Path) -> SentenceModel | None:
    """Read the files of sentence-transformers; None if there is no `modules.json`. Raises
    CheckpointError for damaged ones, and UnsupportedModelError for unknown modules."""
    if not (path / "modules.json").is_file():
        return None
    pooling: PoolingType | None = None
    dense: list[DenseLayer] = []
    normalizes = False
    longest: Any = None
    logit_rows: tuple[int, ...] = ()
    template: Mapping[str, Any] | None = None
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    _check_order(path / "modules.json", kinds)
    settings = read_optional_json_object(path / "config_sentence_transformers.json")
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(one, str | None) for one in prompts.values()
    ):
        raise CheckpointError(f"{path}: prompts must be an object of strings")
    prompts = {name: text or "" for name, text in prompts.items()}
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise CheckpointError(
            f"{path}: default_prompt_name {quoted(default)} must be a name of prompts, which has "
            f"{', '.join(prompts) or 'none'}"
        )
    for kind, folder in modules:
        file = path / folder / "config.json"
        match kind:
            case "Transformer":
                longest, template = _transformer(path / folder, "LogitScore" in kinds)
            case "Pooling":
                pooling = _pooling(file)
                if pooling != "last" and any(prompts.values()):
                    _check_settings(file, {"include_prompt": True})
            case "Dense":
                dense.append(_dense(path, folder))
            case "LogitScore":
                logit_rows = _logit_rows(file)
            case _:
                normalizes = True
                _check_settings(file, _OF_TEXTS)
    return SentenceModel(
        pooling,
        tuple(dense),
        normalizes,
        longest if isinstance(longest, int) and longest > 0 else None,
        prompts,
        default,
        ConfigReader(settings, str(path)).count("truncate_dim", MAX_HIDDEN, default=0) or None,
        None if (name := settings.get("activation_fn")) is None else _score_activation(name),
        logit_rows,
        template,
    )


def _modules(path: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in order."""
    text = read_text(path / "modules.json")
    entries = parse_json_object(f'{{"modules": {text}}}', str(path / "modules.json"))["modules"]
    found = []
    for entry in entries if isinstance(entries, list) else [entries]:
        match entry:
            case {"type": str(kind), "path": str(folder)} if _is_inside(folder):
                found.append((kind.rpartition(".")[2], folder))
            case _:
                raise CheckpointError(
                    f"{path / 'modules.json'}: each module must have a type and a path inside the "
                    f"checkpoint, not {quoted(entry)}"
                )
    return found


def _check_order(file: Path, kinds: Sequence[str]) -> None:
    """Raises UnsupportedModelError for modules that are not computed here."""
    for kind in kinds:
        if kind not in _ORDER:
            raise UnsupportedModelError(
                f"{file}: module {quoted(kind)} is not supported; supported are {', '.join(_ORDER)}"
            )
    is_sorted = list(kinds) == sorted(kinds, key=_ORDER.index)
    counts = [kinds.count(kind) for kind in ("Transformer", "Pooling")]
    if "LogitScore" in kinds:
        is_sorted = kinds == ["Transformer", "LogitScore"]
    if not is_sorted or max(counts) > 1 or ("Dense" in kinds and "Pooling" not in kinds):
        raise UnsupportedModelError(
            f"{file}: the modules {', '.join(kinds)} are not supported in this order; supported "
            "are Transformer, Pooling, any number of Dense, Normalize; or Transformer, LogitScore"
        )


def _transformer(folder: Path, has_logits: bool) -> tuple[Any, Mapping[str, Any] | None]:
    """The value of `max_seq_length`, without which the tokenizer says how long texts are; and the
    variables of the chat template, if texts become messages."""
    file = transformer_file(folder)
    settings = read_optional_json_object(file)
    task = settings.get("transformer_task")
    if has_logits:
        task = "text-generation"
    elif task != "sequence-classification":
        task = "feature-extraction"
    made, output = _TASKS[task]
    _check_settings(file, {"transformer_task": task, "module_output_name": made})
    wanted = {"method": "forward", "method_output_name": output}
    modes = settings.get("modality_config")
    modes = {"text": wanted} if modes is None else modes
    for name in ("text", "message"):
        one = modes.get(name) if isinstance(modes, dict) else None
        if isinstance(one, dict):
            one = {key: value for key, value in one.items() if key != "format"}
        if one != wanted and (name == "text" or one is not None):
            raise UnsupportedModelError(
                f"{file}: modality_config has {quoted(one)} for {name}; supported is {wanted}"
            )
    template = _template_settings(file, settings) if "message" in modes else None
    if template is not None and task == "feature-extraction":
        raise UnsupportedModelError(
            f"{file}: modality_config has messages, so that the chat template is applied to each "
            "text; supported is an embedder with text alone"
        )
    tokenizer = read_optional_json_object(folder / "tokenizer_config.json")
    config = read_optional_json_object(folder / "config.json")
    for name in ("tokenizer_args", "processor_kwargs"):
        _check_arguments(file, name, settings.get(name), tokenizer)
    for name in ("config_args", "config_kwargs"):
        _check_arguments(file, name, settings.get(name), config)
    for kind in ("common", "text"):
        given = _object(file, "processing_kwargs", settings.get("processing_kwargs")).get(kind)
        _check_arguments(file, f"processing_kwargs.{kind}", given, {})
    return settings.get("max_seq_length") or tokenizer.get("model_max_length"), template


def _template_settings(file: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables of the chat template."""
    given = _object(file, "processing_kwargs", settings.get("processing_kwargs"))
    found = _object(file, "processing_kwargs.chat_template", given.get("chat_template"))
    return {key: value for key, value in found.items() if key != "restore_suffix"}


def _object(file: Path, name: str, value: Any) -> dict[str, Any]:
    """The value of a key, or an empty object. Raises CheckpointError for what is none."""
    if not isinstance(value, dict | None):
        raise CheckpointError(f"{file}: {name} must be an object, not {quoted(value)}")
    return value or {}


def _check_arguments(file: Path, name: str, given: Any, own: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError for an argument of transformers that would change tokens or the
    model, unless the file that it is for has it too."""
    for key, value in _object(file, name, given).items():
        if key not in _WITHOUT_EFFECT and own.get(key) != value:
            raise UnsupportedModelError(
                f"{file}: {name} has {key} {quoted(value)}, which is not supported here; it must "
                "be a key of config.json or tokenizer_config.json"
            )


def _logit_rows(file: Path) -> tuple[int, ...]:
    """The tokens of a `LogitScore`: that which says no, if there is one, and that for yes."""
    settings = _check_settings(file, {"module_input_name": "causal_logits"})
    found = [settings.get("false_token_id"), settings.get("true_token_id")]
    rows = tuple(one for one in found if one is not None)
    if found[1] is None or not all(type(one) is int and one >= 0 for one in rows):
        raise CheckpointError(
            f"{file}: true_token_id must be the id of a token, and false_token_id one or null"
        )
    return rows


def _check_settings(file: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a module. Raises UnsupportedModelError if one of these keys has another
    value."""
    settings = read_optional_json_object(file)
    for key, value in wanted.items():
        found = settings.get(key)
        if found is not None and found != value:
            raise UnsupportedModelError(
                f"{file}: {key} is {quoted(found)}; supported is {quoted(value)}"
            )
    return settings


def token_layers(path: Path, task: PoolingTask, width: int) -> tuple[DenseLayer, ...]:
    """The layer of BGE-M3 for a task of tokens: its multi-vector head, or the weights of words in
    sparse vectors. Empty for a model without the file."""
    if task == "token_embed" and (path / "colbert_linear.pt").is_file():
        return (DenseLayer("colbert_linear", width, width, True, None),)
    if task == "token_classify" and (path / "sparse_linear.pt").is_file():
        return (DenseLayer("sparse_linear", width, 1, True, "relu"),)
    return ()


def _is_inside(folder: str) -> bool:
    return "\0" not in folder and len(PurePosixPath(folder).parts) <= 1 and folder != ".."


def _pooling(file: Path) -> PoolingType:
    config = read_optional_json_object(file)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_MODES.items() if config.get(key) is True]
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModelError(
            f"{file}: pooling {quoted(modes)} is not supported; supported is one of "
            f"{', '.join(_MODES)}"
        )
    return _MODES[modes[0]]


def _dense(path: Path, folder: str) -> DenseLayer:
    file = path / folder / "config.json"
    reader = ConfigReader(_check_settings(file, {**_OF_TEXTS, "use_residual": False}), str(file))
    path_of_class = reader.text("activation_function") or "torch.nn.modules.activation.Tanh"
    name = path_of_class.rpartition(".")[2]
    if name not in _DENSE_ACTIVATIONS or not path_of_class.startswith("torch."):
        raise UnsupportedModelError(
            f"{file}: activation_function {quoted(path_of_class)} is not supported; supported are "
            f"the classes {', '.join(_DENSE_ACTIVATIONS)} of torch"
        )
    return DenseLayer(
        folder,
        reader.size("in_features", MAX_HIDDEN, example=768),
        reader.size("out_features", MAX_HIDDEN, example=768),
        reader.flag("bias", True),
        _DENSE_ACTIVATIONS[name],
    )


def default_task(architecture: str) -> PoolingTask:
    """The task of a model of this class."""
    if _BY_TOKEN.search(architecture):
        return "token_classify"
    return "classify" if CLASSIFIES.search(architecture) else "embed"


def num_labels(hf_config: Mapping[str, Any], architecture: str) -> int:
    """The classes of a classifier; transformers' default is 2. A reward model gives one number."""
    labels = hf_config.get("id2label")
    default = 1 if architecture.endswith("ForRewardModel") else 2
    given = hf_config.get("num_labels", len(labels) if isinstance(labels, dict) else default)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MAX_LABELS:
        raise CheckpointError(f"config.json: num_labels is {quoted(given)}; it must be 1 or more")
    return given


def labels_of(hf_config: Mapping[str, Any]) -> dict[int, str]:
    """Names of classes. Numbers stand for those that have none."""
    found = hf_config.get("id2label")
    if not isinstance(found, dict):
        return {}
    return {int(key): str(name) for key, name in found.items() if str(key).isdigit()}


def default_pooling(family: ModelFamily, task: PoolingTask, reader: ConfigReader) -> PoolingType:
    """Which states a model of this family pools for a task, if no file says so."""
    if task.startswith("token_"):
        return "all"
    if task == "classify" and family.classifier_pooling is not None:
        return family.classifier_pooling(reader)
    return "cls" if family.is_encoder else "last"


def score_activation(hf_config: Mapping[str, Any], count: int) -> PoolingActivation:
    """Function from a classifier's numbers to probabilities."""
    problem = hf_config.get("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification":
        return "sigmoid"
    if problem == "single_label_classification":
        return "softmax" if count > 1 else "sigmoid"
    settings = hf_config.get("sentence_transformers")
    name = settings.get("activation_fn") if isinstance(settings, dict) else None
    name = name or hf_config.get("sbert_ce_default_activation_function")
    if isinstance(name, str):
        return _score_activation(name)
    return "softmax" if count > 1 else "sigmoid"


def _score_activation(name: object) -> PoolingActivation:
    """The activation with this name of a class of torch."""
    kind = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.nn.modules.") or kind not in _SCORE_ACTIVATIONS:
        raise UnsupportedModelError(
            f"activation_fn {quoted(name)} is not supported; supported are "
            f"torch.nn.modules.activation.{', '.join(_SCORE_ACTIVATIONS)}"
        )
    return _SCORE_ACTIVATIONS[kind]
