"""What every layer is: shapes from shapes, weights, forward, backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jitdnn.caffe.blob import Array, Blob, Shape
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.fillers import check, fill
from jitdnn.caffe.parts import Part, Turns
from jitdnn.caffe.schema import LayerParameter
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.errors import InvalidArgument
from jitdnn.ops.tensor_ops import add


@dataclass(frozen=True)
class Context:
    """What a layer knows of the net that it is built for.

    `base` is the folder of the net's file (for paths in it), `fillers` the generator that weights are drawn
    from (None: they are another net's), `random` the layer's own, and `algorithm` the name of the algorithm that
    convolutions must use, None for the planner's choice. `device` is the GPU that has the blobs, None on the processor,
    `python_layers` the folder that layers written in Python may come from, `shapes_only` whether the blobs have no
    memory. `part` is this process's of those that train the net together, `turns` theirs where it is tested (parts.py).
    """

    phase: str
    dtype: np.dtype[Any]
    base: Path | None
    fillers: np.random.Generator | None
    random: np.random.Generator
    algorithm: str | None
    device: NetDevice | None = None
    python_layers: Path | None = None
    shapes_only: bool = False
    part: Part | None = None
    turns: Turns | None = None

    def rows(self, batch: int, what: str) -> slice:
        """Which rows of a batch that a source of data makes this process has: all, unless several divide them."""
        return slice(0, batch) if self.part is None else self.part.rows(batch, what)

    def shape_of_part(self, shape: Shape, what: str) -> Shape:
        """The shape of this process's rows of a batch of that shape."""
        if not shape or self.part is None:
            return shape
        rows = self.part.rows(shape[0], what)
        return (rows.stop - rows.start, *shape[1:])

    def whole(self, count: int) -> int:
        """How many the whole batch has of what this process's rows have `count`."""
        return count if self.part is None else self.part.whole(count)

    def draw(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Random numbers 0 to 1 for the images of a pass: of those for the whole batch this process's rows."""
        if self.part is None:
            return self.random.random(shape, dtype.type)
        first = self.part.first(shape[0])
        return self.random.random((self.part.whole(shape[0]), *shape[1:]), dtype.type)[
            first : first + shape[0]
        ]

    def blob(self, name: str) -> Blob:
        """Return a blob of the net's type, on its device."""
        return Blob(name, self.dtype, self.device, self.shapes_only)

    def empty(self, shape: Shape) -> Any:
        """Return memory of any contents where the net computes, for what a pass keeps to itself."""
        return np.empty(shape, self.dtype) if self.device is None else self.device.empty(shape, self.dtype)


class Reads(NamedTuple):
    """Whether a backward pass reads the data of the bottoms, and that of the tops."""

    bottom: bool
    top: bool


class Layer(ABC):
    """One layer of a net.

    `setup` is called once with blobs of known shape: it checks the parameters and makes the weights.
    `reshape` sets the shapes of the tops, again whenever those of the bottoms change. `forward` fills the
    tops. `backward` fills the `diff` of those bottoms that `propagate` asks for, and adds the gradients of
    weights to their `diff`.

    A layer with `is_for_gpu` computes with `Blob.values` and `gradient`, by this library's functions and nothing that
    waits for their results, so that its code is the same on the processor and on a GPU. Others use `data` and `diff`,
    NumPy's arrays, and take part in a net on a GPU too: their blobs are copied down and up in every pass.
    """

    type: ClassVar[str]
    bottoms: ClassVar[tuple[int, int | None]] = (1, 1)  # how few and how many; None: any number
    tops: ClassVar[tuple[int, int | None]] = (1, 1)
    may_be_in_place: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    # whether tops that it must have may be left out of the file, as those of a loss; nobody can read them then
    makes_tops: ClassVar[bool] = False
    # whether forward may be run again on the same bottoms, and does nothing else than fill the tops and `saved`
    may_rerun: bool = True
    # whether forward may give the tops other shapes, which the layers behind it take up then
    may_resize: ClassVar[bool] = False
    # whether forward draws from `context.random`
    is_random: ClassVar[bool] = False
    # whether forward writes all of the tops, where it works on the host: then nothing need be copied down before
    fills_tops: ClassVar[bool] = True
    # why several processes cannot divide its batch, "" where they can
    undivided: ClassVar[str] = ""
    # of each top how those of the processes become that of the whole batch: "rows" one behind the other, their "sum",
    # or the "same" in all
    parts_of_top: str = "rows"
    # whether it computes where the blobs are
    is_for_gpu: ClassVar[bool] = False
    # whether backward adds to the gradients of weights by `beta`, so that they need not be cleared before
    writes_gradients: ClassVar[bool] = False
    # what `backward_reads` returns unless it depends on the parameters
    reads: ClassVar[Reads] = Reads(bottom=True, top=True)
    # how many bottoms, the first ones, `force_backward` makes sense for (not for labels); None: all
    forced_bottoms: ClassVar[int | None] = None

    def __init__(self, parameter: LayerParameter, context: Context) -> None:
        self.parameter = parameter
        self.context = context
        self.name = parameter.name
        self.unnamed_tops: list[str] = []
        self.weights: list[Blob] = []
        self.weight_needs_gradient: list[bool] = []
        # what forward leaves for backward beside the blobs, by name (`save`)
        self.saved: dict[str, Blob] = {}
        # set by the net: whether a later layer writes over a top in place, so that backward cannot rely on it
        self.is_overwritten = False
        # set by the net: for each top, whether a loss depends on it
        self.top_has_gradient: list[bool] = []
        # set by the net: whether calls are captured into a graph, which calls `prepare` itself
        self.is_captured = False

    def layout_rule(self) -> str | None:
        """How blobs of four axes may lie in a GPU's memory: "any" way each, the "same" way all, None: packed."""
        return None

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:  # noqa: B027 - some have neither
        """Check the parameters against the bottoms, and make the weights."""

    @abstractmethod
    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give the tops their shapes."""

    @abstractmethod
    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Compute the tops' data from the bottoms' data."""

    @abstractmethod
    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Compute gradients from the tops' diff."""

    def prepare(self, bottom: Sequence[Blob]) -> None:  # noqa: B027 - most layers have nothing to do
        """Do what the host does for a forward pass and a graph of the device's calls cannot: draw, check, send."""

    def absorbed(self, top: Sequence[Blob]) -> None:  # noqa: B027 - most layers leave nothing beside their tops
        """Leave what backward needs, in the place of `forward`, where another layer has filled the tops (fusion.py)."""

    def backward_reads(self) -> Reads:
        """Tell which data of the blobs a backward pass reads; all else may be gone by then."""
        return self.reads

    def may_force_backward(self, index: int) -> bool:
        """Tell whether `force_backward` makes sense for this bottom."""
        return self.forced_bottoms is None or index < self.forced_bottoms

    def state(self) -> dict[str, Any]:
        """Return what an exact resume needs besides the weights, as plain JSON values."""
        return {"random": self.context.random.bit_generator.state}

    def skip(self) -> None:
        """Of a layer without bottoms: leave out a batch that is another process's turn."""
        raise self.invalid("several processes cannot take turns with the batches of this layer")

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""
        self.context.random.bit_generator.state = state["random"]

    def add_weight(self, shape: Shape, filler: FillerParameter) -> None:
        """Make the next weight and fill it."""
        blob = self.context.blob(f"{self.name}/{len(self.weights)}")
        blob.reshape(shape)
        if self.context.shapes_only:
            check(filler, shape)
        elif self.context.fillers is not None:
            fill(filler, blob.data, self.context.fillers)
        self.weights.append(blob)
        self.weight_needs_gradient.append(True)

    def beta(self, weight: Blob) -> float:
        """By what the gradient of a weight is multiplied as this layer adds to it: 0 where nobody has added before."""
        owner = weight.gradient_owner
        is_first, owner.is_gradient_new = owner.is_gradient_new, False
        return 0.0 if is_first else 1.0

    def save(self, name: str, shape: Shape) -> Blob:
        """Return the memory of this shape in which forward leaves something for backward."""
        if name not in self.saved:
            self.saved[name] = self.context.blob(f"{self.name}/{name}")
        self.saved[name].reshape(shape)
        return self.saved[name]

    def table(self, name: str, values: Array) -> Blob:
        """Return numbers that kernels read, where the net computes."""
        blob = self.context.blob(f"{self.name}/{name}")
        blob.reshape(values.shape)
        if not self.context.shapes_only:
            blob.data[...] = values
        return blob

    def front_axis(self, axis: int, rank: int) -> int:
        """The axis counted from the front. Raises InvalidArgument if a blob of `rank` axes has no such axis."""
        if not -rank <= axis < rank:
            raise self.invalid(f"axis {axis} does not exist in a blob of {rank} axes")
        return axis % rank

    def invalid(self, message: str, field: str | None = None) -> InvalidArgument:
        """Make an error that names the layer and its line."""
        return InvalidArgument(self.named(field) + message).at(self.parameter.place(field))

    def named(self, field: str | None = None) -> str:
        """How messages name the layer."""
        return f"layer {self.name!r} ({self.type}){self.parameter.where(field)}: "


class BottomlessLayer(Layer):
    """A layer whose tops come from outside of the net: nothing goes back through it."""

    bottoms = (0, 0)
    may_rerun = False
    reads = Reads(bottom=False, top=False)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        pass


def copy(x: Any, out: Any) -> None:
    """Copy an array to another one of its shape, on the same device."""
    if isinstance(out, np.ndarray):
        np.copyto(out, x)
    elif x.size:
        add(x, out=out)
