"""Decides whether a model generates or pools, and resolves how it pools.

Called where config.json is read. What the files say, `models/pooling/reading.py` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.config.engine_args import EngineArgs
from quire.config.pooling import (
    PoolerConfig,
    PoolingActivation,
    PoolingConfig,
    PoolingTask,
    PoolingType,
    ScoreForm,
)
from quire.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError, quoted
from quire.models.base import ModelFamily
from quire.models.config_reader import ConfigReader
from quire.models.pooling.head import DenseLayer, PoolingHead, marked
from quire.models.pooling.reading import (
    CLASSIFIES,
    SentenceModel,
    default_pooling,
    default_task,
    labels_of,
    num_labels,
    read_sentence_model,
    score_activation,
    token_layers,
)
from quire.models.registry import ModelRegistry, architectures_of, resolve
from quire.models.text_part import has_other_parts, text_part
from quire.protocol.pooling_params import PoolingParams
from quire.tokenizer import Tokenizer

_OLD_TASKS: Mapping[str, tuple[str, str]] = {
    "auto": ("auto", "auto"),
    "generate": ("generate", "auto"),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "classify": ("pooling", "classify"),
    "score": ("pooling", "classify"),
    "reward": ("pooling", "auto"),
}
"""Runner and convert for each value of the former argument `task`."""
_CONVERTED: Mapping[str, PoolingTask] = {"embed": "embed", "classify": "classify"}
_WITH_INNER_LAYER = ("Qwen2ForProcessRewardModel", "Qwen2ForRewardModel")
_TEMPLATED = "qwen3-reranker"


@dataclass(frozen=True, slots=True)
class Pooled:
    """A configuration that may be marked as one of a model that pools, and how it does."""

    hf_config: dict[str, Any]
    pooling: PoolingConfig | None


def with_pooling(args: EngineArgs, hf_config: dict[str, Any], path: Path) -> Pooled:
    """Raises ConfigError for arguments that do not fit the model, CheckpointError for damaged files
    and UnsupportedModelError for kinds of pooling that are not implemented."""
    runner, convert = _asked(args)
    name = architectures_of(hf_config)[0]
    text = text_part(hf_config)
    if not ModelRegistry.row_name(architectures_of(text)[0]):
        return _unknown(hf_config, runner)
    family = resolve(ModelRegistry, text, has_other_parts(hf_config))
    sentence = read_sentence_model(path)
    if not _pools(runner, convert, name, family, sentence is not None):
        if args.pooler_config is not None:
            raise ConfigError(
                f"pooler_config: {name} generates text; set runner='pooling' for vectors"
            )
        return Pooled(hf_config, None)
    config = PoolerConfig.of(args.pooler_config)
    sentence = sentence or SentenceModel(normalizes=True)
    own_task = "classify" if sentence.logit_rows else default_task(name)
    task = config.task or _CONVERTED.get(convert) or own_task
    rows: tuple[int, ...] = ()
    if task == "classify":
        rows = token_rows(hf_config, path) or sentence.logit_rows
    reader = ConfigReader(text)
    dense = sentence.dense if task.endswith("embed") else ()
    own_layers: tuple[DenseLayer, ...] = ()
    if task.startswith("token_") and not CLASSIFIES.search(name):
        own_layers = token_layers(path, task, family.facts(reader).hidden_size)
    dense = own_layers or dense
    head = PoolingHead(
        _pooling_type(config, sentence, task) or default_pooling(family, task, reader),
        dense,
        0 if rows or dense or task.endswith("embed") else num_labels(hf_config, name),
        has_inner_layer=name in _WITH_INNER_LAYER,
        has_bias=name.endswith("ForTokenClassification"),
        by_token=task == "token_classify",
        token_rows=rows,
    )
    if head.num_labels and not CLASSIFIES.search(name):
        raise ConfigError(_no_classes(name))
    pooling = _settings(config, hf_config, sentence, task, head)
    if own_layers:
        pooling = replace(pooling, outer_tokens=_outer_tokens(hf_config, task))
    width = pooling.width or family.facts(reader).hidden_size
    form = _score_form(args, hf_config, sentence, has_rows=bool(rows))
    pooling = replace(pooling, width=width, score_form=form)
    _check_returned(pooling)
    _check_dimensions(config, pooling, str(args.model))
    if task == "embed" and _gives_tokens(args, path, pooling):
        pooling = replace(pooling, tokens=_of_tokens(config, pooling))
    return Pooled(marked(hf_config, head), pooling)


def _gives_tokens(args: EngineArgs, path: Path, pooling: PoolingConfig) -> bool:
    """Whether an embedder gives a vector for each token too. BGE-M3 has other layers for that, and
    ranks that share memory cannot leave out the mean."""
    is_shared = pooling.pooling_type == "mean" and args.tensor_parallel_size > 1
    return not is_shared and not token_layers(path, "token_embed", pooling.width)


def _of_tokens(config: PoolerConfig, pooling: PoolingConfig) -> PoolingConfig:
    """The pooling of an embedder's requests for a vector of each token."""
    return replace(
        pooling,
        task="token_embed",
        pooling_type="all",
        is_activated=config.use_activation is not False,
        is_chunked=False,
    )


def _settings(
    config: PoolerConfig,
    hf_config: Mapping[str, Any],
    sentence: SentenceModel,
    task: PoolingTask,
    head: PoolingHead,
) -> PoolingConfig:
    """Finish and names of results. A width of 0 is the width of the hidden states."""
    is_sparse = task == "token_classify" and bool(head.dense)
    is_classes = task.endswith("classify") and not is_sparse
    width = head.dense[-1].out_features if head.dense else head.num_labels
    if head.token_rows:
        width = len(head.token_rows) if is_apart(hf_config) else 1
    return PoolingConfig(
        task=task,
        pooling_type=head.pooling_type,
        activation=(sentence.score_activation if is_classes else None)
        or _activation(hf_config, width, is_classes, is_sparse),
        is_activated=_is_activated(config, task, sentence),
        width=width,
        labels=labels_of(hf_config) if is_classes else {},
        dimensions=_dimensions(hf_config),
        own_dimensions=config.dimensions or sentence.dimensions,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        template_settings=sentence.template_settings or {},
        is_difference=len(head.token_rows) == 2 and not is_apart(hf_config),
        max_tokens=sentence.max_tokens,
        is_sparse=is_sparse,
        step_tag_id=config.step_tag_id,
        returned_columns=_returned(config, task),
        is_chunked=_is_chunked(config, task),
        max_embed_len=config.max_embed_len,
        logit_mean=config.logit_mean or 0.0,
        logit_sigma=1.0 if config.logit_sigma is None else config.logit_sigma,
        has_activations=any(layer.activation is not None for layer in head.dense),
    )


def _score_form(
    args: EngineArgs, hf_config: Mapping[str, Any], sentence: SentenceModel, *, has_rows: bool
) -> ScoreForm:
    """Form in which a query and a document are read, decided as by vLLM and
    sentence-transformers."""
    if args.chat_template is not None:
        return "template"
    if sentence.template_settings is not None:
        return "messages"
    is_qwen3 = hf_config.get("is_original_qwen3_reranker") is True
    if is_qwen3 or _TEMPLATED in str(args.model).lower():
        return "qwen3"
    is_joined = hf_config.get("use_sep_token", not has_rows) is False
    return "joined" if is_joined and not sentence.logit_rows else "pair"


def _pooling_type(
    config: PoolerConfig, sentence: SentenceModel, task: PoolingTask
) -> PoolingType | None:
    """Pooling type from the user or the files; None: neither has one."""
    if task.startswith("token_"):
        return "all"
    return config.type_for_texts or (sentence.pooling_type if task == "embed" else None)


def _no_classes(name: str) -> str:
    return (
        f"{name} has no head for classes; give hf_overrides={{'architectures': "
        "['...ForSequenceClassification'], 'classifier_from_token': ['no', 'yes']}, or use "
        "runner='pooling' with convert='embed'"
    )


def _is_activated(config: PoolerConfig, task: PoolingTask, sentence: SentenceModel) -> bool:
    if config.use_activation is not None:
        return config.use_activation
    return task != "embed" or sentence.normalizes


def _activation(
    hf_config: Mapping[str, Any], width: int, is_classes: bool, is_sparse: bool
) -> PoolingActivation:
    if is_classes:
        return score_activation(hf_config, width)
    return "identity" if is_sparse else "normalize"


def _outer_tokens(hf_config: Mapping[str, Any], task: PoolingTask) -> tuple[int | None, int | None]:
    """The tokens around a text for which BGE-M3 has no vectors, or no weights. The defaults are
    those of XLM-R."""
    first, last = hf_config.get("bos_token_id", 0), hf_config.get("eos_token_id", 2)
    return (first, last if task == "token_classify" else None)


def _check_dimensions(config: PoolerConfig, pooling: PoolingConfig, model: str) -> None:
    """Raises ConfigError for a length that no request could have."""
    try:
        PoolingParams(dimensions=config.dimensions).verify(pooling, model, 1)
    except RequestError as error:
        raise ConfigError(f"pooler_config: {error}") from None


def _returned(config: PoolerConfig, task: PoolingTask) -> tuple[int, ...]:
    """The columns that are returned."""
    if not task.startswith("token_") and (config.step_tag_id, config.returned_token_ids) != (
        None,
        None,
    ):
        raise ConfigError(
            "pooler_config: step_tag_id and returned_token_ids need the task token_classify or "
            f"token_embed; the task is {task}: leave them out"
        )
    return tuple(config.returned_token_ids or ())


def _check_returned(pooling: PoolingConfig) -> None:
    last = max(pooling.returned_columns, default=0)
    if last >= pooling.width:
        raise ConfigError(
            f"pooler_config: returned_token_ids must be less than the {pooling.width} numbers of a "
            f"result, got {last}"
        )


def _is_chunked(config: PoolerConfig, task: PoolingTask) -> bool:
    if config.enable_chunked_processing and task != "embed":
        raise ConfigError(
            "pooler_config: enable_chunked_processing averages the vectors of pieces of a text, "
            f"which needs the task embed; the task is {task}: leave it out"
        )
    return config.enable_chunked_processing is True


def _asked(args: EngineArgs) -> tuple[str, str]:
    """Runner and convert, which `task` may name."""
    if args.task is None:
        return args.runner, args.convert
    if args.task not in _OLD_TASKS:
        raise ConfigError(
            f"task={quoted(args.task)} is not known; use runner and convert, or one of "
            f"{', '.join(_OLD_TASKS)}"
        )
    return _OLD_TASKS[args.task]


def _unknown(hf_config: dict[str, Any], runner: str) -> Pooled:
    """A model of no family: transformers may compute it, or it is refused later."""
    if runner == "pooling":
        raise UnsupportedModelError(
            f"config.json: {architectures_of(hf_config)[0]} cannot give vectors or classes here; "
            "`quire models` lists the models that are supported"
        )
    return Pooled(hf_config, None)


def _pools(runner: str, convert: str, name: str, family: ModelFamily, is_sentence: bool) -> bool:
    if runner == "generate" and family.is_encoder:
        raise ConfigError(
            f"runner='generate': {name} is an encoder, which gives vectors and classes; leave "
            "runner out"
        )
    if runner != "auto":
        return runner == "pooling"
    if convert in ("embed", "classify") or family.is_encoder or is_sentence:
        return True
    return ModelRegistry.row_name(name) != name


def _dimensions(hf_config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The lengths to which vectors may be shortened, as vLLM reads them."""
    found = hf_config.get("matryoshka_dimensions")
    if isinstance(found, list) and all(type(one) is int for one in found) and found:
        return tuple(found)
    return () if hf_config.get("is_matryoshka") is True else None


def is_apart(hf_config: Mapping[str, Any]) -> bool:
    """Whether the logits of several tokens are classes; otherwise two have a difference."""
    return hf_config.get("method") == "no_post_processing"


def token_rows(hf_config: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """The ids of the tokens whose logits are a reranker's scores."""
    texts = hf_config.get("classifier_from_token")
    if texts is None:
        return ()
    if not isinstance(texts, list) or len(texts) not in (1, 2):
        raise CheckpointError(
            f"config.json: classifier_from_token is {quoted(texts)}; it must be one token or two, "
            'for example ["no", "yes"]'
        )
    method = hf_config.get("method")
    if method not in (None, "from_2_way_softmax", "no_post_processing"):
        raise UnsupportedModelError(
            f"config.json: method {quoted(method)} is not supported; supported are "
            "from_2_way_softmax and no_post_processing"
        )
    if method == "from_2_way_softmax" and len(texts) != 2:
        raise CheckpointError(
            "config.json: from_2_way_softmax needs two tokens in classifier_from_token"
        )
    backend = Tokenizer.from_directory(path).backend
    found = [backend.token_to_id(str(text)) for text in texts]
    ids = tuple(one for one in found if one is not None)
    if len(ids) < len(found):
        raise CheckpointError(
            f"config.json: classifier_from_token {quoted(texts)}: the tokenizer has no such token"
        )
    return ids
