"""`Architecture`: what is known of one value of `general.architecture`.

A row says which architecture of config.json it is, how its tensors are called there, and what
llama.cpp's conversion did to them. Source: llama.cpp, conversion/ and
gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quire.gguf.keys import Keys

Config = dict[str, Any]
Form = Literal["same", "vector", "conv", "frames"]
"""The dimensions of a tensor there: those of the file; one; [C, 1, W], where the file may have
[C, W]; or [D, C, frames, H * W], of which the file has a tensor [D, C, H, W] for each frame."""

ANY_EXPERT = "*"
"""Stands for an expert's number in a name, or for a head's where each has a norm of its own."""

_LAYER = re.compile(
    r"blk\.(?P<layer>\d{1,4})\.(?P<part>[a-z]\w*(?:\.[a-z]\w*)??)(?:\.(?P<expert>\d{1,4}))?"
    r"(?:\.(?P<kind>weight|bias|scale))?"
)
_PREDICTION = re.compile(r"blk\.(?P<layer>\d{1,4})\.nextn\.(?P<part>\w+)\.(?P<kind>weight|bias)")
_SHARED_HEAD = {"shared_head_norm": "shared_head.norm", "shared_head_head": "shared_head.head"}
_TOP = re.compile(r"(?P<part>\w+(?:\.\w+)?)\.(?P<kind>weight|bias)")
TOP_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_UNUSED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that become a part of the configuration."""


@dataclass(frozen=True, slots=True)
class Place:
    """The name that a tensor of a file, or half of it, has in checkpoints of transformers."""

    name: str
    """`ANY_EXPERT`: each expert has a tensor of its own. Those of a layer are relative to it in
    `Architecture.parts`, and are a module, to which the kind is added, "weight", "bias" or "scale";
    or a whole name, where the key has the kind too."""
    half: int | None = None
    """0 or 1: it is the first or the second half of the rows of a tensor there (gate and up); 0 to
    2: a third of it (q, k and v)."""
    share: int | None = None
    """0 or 1: the first or the second half of its rows is a tensor there."""
    is_row: bool = False
    """A vector in the file, a matrix of one row there."""
    form: Form = "same"

    @property
    def is_of_experts(self) -> bool:
        """Whether its first dimension counts experts, which have a tensor each."""
        return ANY_EXPERT in self.name


Parts = Mapping[str, str | tuple[Place, ...]]
"""By the names in the file, without their kind or with it. A name of the file that has no kind ends
with a dot here. A text is a `Place` of that name."""


def no_config(keys: Keys) -> Config:  # noqa: ARG001
    """The configuration of architectures without keys of their own."""
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`."""

    hf_name: str
    model_type: str
    parts: Parts
    """Names of a layer's modules, in the file and in checkpoints of transformers."""
    top: Mapping[str, str] = field(default_factory=lambda: TOP_PARTS)
    """Names of the modules outside of layers."""
    layers: str = "model.layers."
    """Name prefix of the layers, before the number."""
    eps: Literal["layer_norm_rms_epsilon", "layer_norm_epsilon"] = "layer_norm_rms_epsilon"
    """The key of what the norms add to a variance."""
    has_paired_rows: bool = False
    """Rows of q and k lie in the order of a rotation of neighbours, and are put back."""
    has_ungrouped_rows: bool = False
    """The one tensor of q, k and v has the rows of all q first, and those of a kv head lie together
    in checkpoints of transformers."""
    norm_offset: float = 0.0
    """Number that was added to the weights of norms, and is subtracted."""
    plain_norms: tuple[str, ...] = ()
    """Ends of the names of norms to which nothing was added."""
    attention: Literal["heads", "latent", "none"] = "heads"
    """Whether K and V of layers with attention have heads or are latent; or no layer has it."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Tensors of one number in a layer that files have as a key with a list: the keys, by the names
    relative to the layer."""
    config: Callable[[Keys], Config] = no_config
    """Keys of config.json in addition to those that all architectures share."""
    has_own_rope: bool = False
    """Whether `config` contains all settings of the rotation."""
    yarn: Config = field(default_factory=dict)
    """Keys of `rope_scaling` of kind yarn that files lack."""

    def places(self, name: str) -> tuple[Place, ...]:
        """Names of the tensor in checkpoints of transformers; empty if it is not a weight. An
        unknown name is kept, so that binding refuses it."""
        if name in _UNUSED:
            return ()
        if match := _PREDICTION.fullmatch(name):
            part = _SHARED_HEAD.get(match["part"], match["part"])
            return (Place(f"{self.layers}{int(match['layer'])}.{part}.{match['kind']}"),)
        if match := _LAYER.fullmatch(name):
            found = self._of_layer(match["part"], match["expert"], match["kind"])
            prefix = f"{self.layers}{int(match['layer'])}."
            if found:
                return tuple(replace(place, name=prefix + place.name) for place in found)
        match = _TOP.fullmatch(name)
        if match and match["part"] in self.top:
            return (Place(f"{self.top[match['part']]}.{match['kind']}"),)
        return (Place(name),)

    def _of_layer(self, part: str, expert: str | None, kind: str | None) -> tuple[Place, ...]:
        """With whole names. `expert`: of files that have a tensor for each expert, as llama.cpp
        wrote them until April 2024."""
        if expert is not None:
            of_all = self.parts.get(f"{part}_exps")
            if not isinstance(of_all, str) or ANY_EXPERT not in of_all:
                return ()
            return (Place(f"{of_all.replace(ANY_EXPERT, str(int(expert)))}.{kind}"),)
        whole = self.parts.get(f"{part}.{kind or ''}")
        if whole is not None:
            return (Place(whole),) if isinstance(whole, str) else whole
        if kind is None:
            return ()
        modules = self.parts.get(part, ())
        if isinstance(modules, str):
            modules = (Place(modules),)
        return tuple(replace(module, name=f"{module.name}.{kind}") for module in modules)
