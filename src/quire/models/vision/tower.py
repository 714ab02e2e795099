"""`Tower`: a vision transformer whose tiles have one size, as a program.

The program's input rows are the normalised pixels of the patches. Of a tower with a class token,
the first row is zeros, and its embedding is in the table of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.base import ACTIVATIONS
from quire.models.config_reader import ConfigReader
from quire.models.pooling.encoder import EncoderNames, EncoderSpec, encoder_layers
from quire.program import Builder, HeadLayout, Program, Tensor, Value

PATCHES = "patches"
"""The table of an encoder's `Embed`, whose rows are always given."""
VISION, PROJECTOR = "vision.", "projector."
"""Prefixes of the tensors in the two programs."""
_MAX = 1 << 16
SIGLIP_NAMES = EncoderNames(
    root=VISION,
    layers="encoder.layers",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.out_proj",
    attention_norm="layer_norm1",
    up="mlp.fc1",
    down="mlp.fc2",
    mlp_norm="layer_norm2",
)


@dataclass(frozen=True, slots=True)
class Tower:
    """The sizes and names of a tower. Names are relative to its root."""

    spec: EncoderSpec
    patch: int
    side: int
    """Patches along each side of a tile."""
    patches: str = "embeddings.patch_embedding"
    patch_bias: bool = True
    positions: str = "embeddings.position_embedding.weight"
    class_row: str = ""
    """The tensor of the class token; "": there is none."""
    first_norm: str = ""
    """The norm before the first layer; "": there is none."""
    last_norm: str = ""
    """The norm after the last layer; "": there is none."""

    @property
    def patch_width(self) -> int:
        """Numbers of a patch."""
        return 3 * self.patch * self.patch

    @property
    def num_rows(self) -> int:
        """Input rows of a tile."""
        return self.side * self.side + bool(self.class_row)

    def program(self, name: str) -> Program:
        """From patches to hidden states."""
        builder, spec = Builder(f"{name}-vision"), self.spec
        root, dim = spec.names.root, spec.hidden_size
        x = builder.embed(Tensor(f"{root}{PATCHES}", (1, self.patch_width)))
        patches = f"{root}{self.patches}"
        x = builder.linear(x, patches, dim, bias=self.patch_bias, hint="patch", exact=True)
        x = builder.learned_positions(x, Tensor(f"{root}{self.positions}", (self.num_rows, dim)))
        if self.first_norm:
            x = builder.layer_norm(x, root + self.first_norm, spec.eps, hint="first_norm")
        x = encoder_layers(builder, x, spec)
        if self.last_norm:
            x = builder.layer_norm(x, root + self.last_norm, spec.eps, hint="last_norm")
        builder.vectors(builder.take_rows(x))
        return builder.program()


def tower_spec(
    reader: ConfigReader, names: EncoderNames, *, layers: int | None = None, **more: object
) -> EncoderSpec:
    """The layers of a tower. `layers`: how many are computed; None: all."""
    hidden = reader.size("hidden_size", _MAX, example=768)
    heads = reader.size("num_attention_heads", 1024, example=12)
    if hidden % heads:
        raise reader.error("hidden_size", hidden, f"a multiple of {heads} heads", heads * 64)
    count = reader.size("num_hidden_layers", 1024, example=12)
    return EncoderSpec(
        name="vision",
        num_layers=count if layers is None else layers,
        hidden_size=hidden,
        vocab_size=1,
        heads=HeadLayout(heads, heads, hidden // heads),
        mlp_size=reader.size("intermediate_size", 1 << 18, example=3072),
        activation=reader.choice("hidden_act", ACTIVATIONS, default="gelu_pytorch_tanh"),
        eps=reader.number("layer_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6),
        max_model_len=_MAX,
        norm_first=True,
        names=names,
        **more,  # type: ignore[arg-type]
    )


def square_side(reader: ConfigReader, key: str, default: int) -> int:
    """A length, or a list of two that are equal."""
    value = reader.raw(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if value is None:
        value = default
    if type(value) is not int or not 1 <= value <= _MAX:
        raise reader.error(key, value, "a whole number, or two equal ones", default)
    return value


def projector(
    name: str, width: int, dim: int, layers: list[tuple[str, bool]], act: str, norm: str = ""
) -> Program:
    """From merged hidden states of `width` numbers to rows of the text model. `layers`: the names
    of the linear layers, and whether they have a bias."""
    builder = Builder(f"{name}-projector")
    x: Value = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width)))
    if norm:
        x = builder.layer_norm(x, PROJECTOR + norm, 1e-5)
    for index, (layer, bias) in enumerate(layers):
        if index:
            x = builder.act(x, ACTIVATIONS[act])
        x = builder.linear(x, PROJECTOR + layer, dim, bias=bias, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    return builder.program()
