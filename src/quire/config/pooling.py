"""The results of pooling models for a text, vectors or classes, and the way from hidden states to
them.

Resolved once by `planning` from the checkpoint and the arguments; read by the worker, the front
ends and the server. Names and values are vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from quire.errors import ConfigError, quoted

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
PoolingType = Literal["cls", "last", "mean", "all", "late"]
"""Which states of a text become its result: that of the first or the last token, the mean of all,
or each token's own. `late`: the classes of each token are computed, and their mean is the result.
"""
ScoreForm = Literal["pair", "joined", "qwen3", "template", "messages"]
"""Form in which a cross-encoder reads a query and a document: as a pair of texts, as one text after
the other, in Qwen3-Reranker's form, or as messages with these two roles, by the chat template that
the user gave (`template`) or by the checkpoint's (`messages`)."""
PoolingActivation = Literal["normalize", "softmax", "sigmoid", "identity"]
"""Last operation on a result, unless a request has `use_activation=False`. `normalize`: a vector is
divided by its length."""


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """Pooling of an engine."""

    task: PoolingTask
    pooling_type: PoolingType
    activation: PoolingActivation
    is_activated: bool
    """Whether the activation is done for requests that do not say."""
    width: int
    """Numbers in a vector, or classes."""
    labels: Mapping[int, str] = field(default_factory=dict)
    """Names of classes, as config.json has them."""
    dimensions: tuple[int, ...] | None = ()
    """Lengths to which a request may shorten a vector, which then keeps its meaning (Matryoshka);
    empty: any length; None: the model is not trained for that."""
    own_dimensions: int | None = None
    """The length of vectors of requests that name none; None: `width`."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before an input, by name: what sentence-transformers calls prompts."""
    default_prompt: str | None = None
    """The name of the prompt for inputs whose request names none."""
    score_form: ScoreForm = "pair"
    template_settings: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the checkpoint's chat template."""
    is_difference: bool = False
    """Whether the score is the second of two numbers less the first: those of two tokens."""
    max_tokens: int | None = None
    """The longest texts that the model was trained for; None: as long as its positions allow."""
    is_sparse: bool = False
    """Whether the one number of each token is its weight in a sparse vector (BGE-M3)."""
    outer_tokens: tuple[int | None, int | None] = (None, None)
    """The first and the last token of a text, which have no results; None: it has one."""
    step_tag_id: int | None = None
    """If set, the results of a text are those of tokens with this id alone: the ends of steps."""
    returned_columns: tuple[int, ...] = ()
    """If set, the numbers of each result that are returned."""
    is_chunked: bool = False
    """Whether longer texts are cut into pieces, whose vectors are averaged."""
    max_embed_len: int | None = None
    """The longest text in tokens; None: `max_model_len`, or no limit if texts are cut."""
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    """Scores are moved and scaled before the activation: (x - mean) / sigma."""
    has_activations: bool = False
    """Whether dense layers after the pooling have activations."""
    tokens: PoolingConfig | None = None
    """How an embedder's requests for a vector of each token are finished; None: it has none."""

    def of(self, task: str | None) -> PoolingConfig:
        """The pooling of requests for a task; None: of those that name none."""
        return self.tokens if self.tokens is not None and task == self.tokens.task else self

    def inner(self, token_ids: Sequence[int]) -> slice:
        """The tokens of a text that have results."""
        first, last = self.outer_tokens
        count = len(token_ids)
        return slice(int(token_ids[0] == first), count - int(token_ids[-1] == last))

    @property
    def is_by_token(self) -> bool:
        """Whether each token has a result."""
        return self.task.startswith("token_")

    @property
    def needs_all_rows(self) -> bool:
        """Whether one step must compute all tokens of a text. The last token's state alone does not
        depend on what earlier steps, the prefix cache or the KV store have given."""
        return self.pooling_type != "last"

    @property
    def vector_width(self) -> int:
        """Numbers in a vector of a request that names no length."""
        return min(self.own_dimensions or self.width, self.width)

    @property
    def supported_tasks(self) -> tuple[PoolingTask, ...]:
        """The tasks of requests."""
        return (self.task,) if self.tokens is None else (self.task, self.tokens.task)

    def longest_text(self, max_model_len: int) -> int | None:
        """The most tokens that a text may have; None: any number."""
        if self.is_chunked:
            return self.max_embed_len
        return min(max_model_len, self.max_embed_len or max_model_len)

    @property
    def scoring(self) -> str | None:
        """vLLM's name of how pairs of texts are scored; None: they are not."""
        if self.task == "classify":
            return "cross-encoder" if self.width == 1 else None
        return {"embed": "bi-encoder", "token_embed": "late-interaction"}.get(self.task)


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """A user's choices about pooling: the engine's argument `pooler_config`. None: the checkpoint
    decides. Raises ConfigError for a value that does not work."""

    task: PoolingTask | None = None
    pooling_type: str | None = None
    """`CLS`, `LAST`, `MEAN` or `ALL`; the next two say the same for one kind of task."""
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    """Length of all vectors of requests that name none."""
    enable_chunked_processing: bool | None = None
    """Cut texts that are longer than max_model_len into pieces, and average their vectors."""
    max_embed_len: int | None = None
    """The longest text in tokens."""
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    """Return the results of tokens with this id alone."""
    returned_token_ids: list[int] | None = None
    """Return these numbers of each token's result alone."""

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in POOLING_TASKS:
            raise _error("task", self.task, f"one of {', '.join(POOLING_TASKS)}")
        for name in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
            value = getattr(self, name)
            allowed = _TYPES[name]
            if value is not None and value not in allowed:
                raise _error(name, value, f"one of {', '.join(allowed)}")
        if self.step_tag_id is not None and not _is_id(self.step_tag_id):
            raise _error("step_tag_id", self.step_tag_id, "the id of a token")
        ids = self.returned_token_ids
        if ids is not None and not (isinstance(ids, list) and all(map(_is_id, ids))):
            raise _error("returned_token_ids", ids, "a list of ids of tokens")
        if self.logit_sigma == 0:
            raise _error("logit_sigma", 0, "a number other than 0")
        for name in ("dimensions", "max_embed_len"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise _error(name, value, "a whole number from 1 up")
        if not isinstance(self.enable_chunked_processing, bool | None):
            raise _error(
                "enable_chunked_processing", self.enable_chunked_processing, "True or False"
            )

    @classmethod
    def of(cls, given: Any) -> PoolerConfig:
        """From the argument: such a record, a dict, or None."""
        if isinstance(given, cls):
            return given
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"pooler_config must be a dict such as {{'pooling_type': 'MEAN'}}, got "
                f"{quoted(given)}"
            )
        known = {one.name for one in fields(cls)}
        values = {_OLD_NAMES.get(str(name), str(name)): one for name, one in given.items()}
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"pooler_config has no {quoted(name)}; it has {', '.join(sorted(known))}"
                )
        return cls(**values)

    @property
    def type_for_texts(self) -> PoolingType | None:
        """The kind of pooling of tasks with one result for a text; None: the checkpoint's."""
        name = self.seq_pooling_type or self.pooling_type
        return None if name in (None, "ALL", "STEP") else _BY_NAME[name or ""]


_TYPES = {
    "pooling_type": ("CLS", "LAST", "MEAN", "ALL", "STEP"),
    "seq_pooling_type": ("CLS", "LAST", "MEAN"),
    "tok_pooling_type": ("ALL", "STEP"),
}
_BY_NAME: Mapping[str, PoolingType] = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}
_OLD_NAMES = {
    "normalize": "use_activation",
    "activation": "use_activation",
    "softmax": "use_activation",
    "logit_bias": "logit_mean",
}
"""Names in earlier versions of vLLM, with the present ones."""


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _error(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"pooler_config: {name} must be {wanted}, got {quoted(value)}")
