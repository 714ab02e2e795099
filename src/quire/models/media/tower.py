"""`Tower`: a vision transformer whose tiles have one size, as a program, and its `SquarePatches`.

The program's input rows are the normalised pixels of the patches. Of a tower with a class token,
the first row is zeros, and its embedding is in the table of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.images.rules import Layout, Size
from quire.models.base import ACTIVATIONS
from quire.models.config_reader import ConfigReader
from quire.models.media.model import ClassRow, Floats, Ints, Patching, TileStep
from quire.models.pooling.encoder import EncoderNames, EncoderSpec, encoder_layers
from quire.program import Activation, Builder, HeadLayout, Program, Tensor, Value

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

    @property
    def class_token(self) -> ClassRow | None:
        """Place of the class token; None: there is none."""
        if not self.class_row:
            return None
        bias = f"{self.patches}.bias" if self.patch_bias else ""
        return ClassRow(self.class_row, self.positions, bias)

    def patching(self, factor: int = 1) -> SquarePatches:
        """Its patches, of which squares of `factor` x `factor` become a row of the text."""
        return SquarePatches(self.patch, self.side, bool(self.class_row), factor)

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


@dataclass(frozen=True)
class SquarePatches(Patching):
    """Patches row by row, of a tile whose sides have `side` of them."""

    patch: int
    side: int
    has_class_row: bool
    factor: int
    has_means: bool = False
    """Whether a row is the mean of its patches, instead of all of them."""
    sees_itself: bool = False

    @property
    def most_patches(self) -> int:  # type: ignore[override]
        """The patches of each tile, and the class token."""
        return self.side * self.side + self.has_class_row

    @property
    def most_rows(self) -> int:  # type: ignore[override]
        """The rows of each tile."""
        return (self.side // self.factor) ** 2

    def num_rows(self, size: Size) -> int:
        del size
        return self.most_rows

    def step(self, values: Floats, tables: Sequence[Floats]) -> TileStep:
        del tables
        side, patch = self.side, self.patch
        cut = values[: side * patch, : side * patch].reshape(side, patch, side, patch, 3)
        flat = cut.transpose(0, 2, 4, 1, 3).reshape(side * side, 3 * patch * patch)
        if not self.has_class_row:
            return TileStep(np.ascontiguousarray(flat))
        return TileStep(np.concatenate([np.zeros((1, flat.shape[1]), np.float32), flat]), 1)

    def merged(self, hidden: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        del size, tables
        factor, count = self.factor, self.side // self.factor
        parts = hidden.reshape(count, factor, count, factor, -1)
        if self.has_means:
            means: Floats = parts.mean(axis=(1, 3), dtype=np.float32)
            return means.reshape(count * count, -1)
        width = factor * factor * hidden.shape[1]
        return np.ascontiguousarray(parts.transpose(0, 2, 1, 3, 4).reshape(-1, width))


@dataclass(frozen=True)
class TiledPatches(SquarePatches):
    """Tiles of a grid after a copy of the whole picture. In the text, a line of the grid goes
    through all tiles, lacks the padding, and ends with a row that is the same for all (LLaVA-NeXT).
    """

    line_end: Tensor = field(kw_only=True)

    @property
    def tables(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """The row at the end of lines."""
        return (self.line_end,)

    @property
    def most_rows(self) -> int:  # type: ignore[override]
        """The rows of each tile, and that at the end of lines."""
        return self.side**2 + 1

    def ordered(self, rows: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        del size
        return np.concatenate([rows, tables[0][None]])

    def order(self, layout: Layout) -> Ints:
        side, (top, left) = self.side, layout.margins
        of_tile = np.arange(side * side, dtype=np.int32).reshape(side, side)
        tiles = np.arange(1, layout.rows * layout.columns + 1, dtype=np.int32) * self.most_rows
        grid = tiles.reshape(layout.rows, 1, layout.columns, 1) + of_tile[:, None]
        lines = grid.reshape(layout.rows * side, layout.columns * side)
        lines = lines[top : len(lines) - top, left : lines.shape[1] - left]
        ends = np.full((len(lines), 1), side * side, np.int32)
        found: Ints = np.concatenate([of_tile.reshape(-1), np.hstack([lines, ends]).reshape(-1)])
        return found


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
    name: str, width: int, dim: int, layers: list[tuple[str, bool]], act: Activation, norm: str = ""
) -> Program:
    """From merged hidden states of `width` numbers to rows of the text model. `layers`: the names
    of the linear layers, and whether they have a bias."""
    builder = Builder(f"{name}-projector")
    x: Value = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width)))
    if norm:
        x = builder.layer_norm(x, PROJECTOR + norm, 1e-5)
    for index, (layer, bias) in enumerate(layers):
        if index:
            x = builder.act(x, act)
        x = builder.linear(x, PROJECTOR + layer, dim, bias=bias, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    return builder.program()
