"""A net that is written layer by layer as prototxt, with the weights of its layers, and a report of each step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import JitdnnError, NotSupported

Array = NDArray[Any]
Ints = Sequence[int]
_MOST_WORDS: Final = 200


class NetWriter:
    """Layers in V2 syntax. Methods that add one return the name of what it makes.

    `report` has a row for each thing that was given: `where` it stands, `what` it is, what it `became`, and whether it
    `is_ok`.
    """

    def __init__(self, name: str, shape: Ints) -> None:
        """A net whose input `data` has shape (C, H, W)."""
        self.name, self.shape = name, tuple(shape)
        self.weights: dict[str, Array] = {}
        self.report: list[dict[str, Any]] = []
        self._layers: list[str] = []
        self._names: set[str] = set()
        self._added: list[str] = []
        dims = " ".join(f"dim: {extent}" for extent in (1, *shape))
        self.layer("Input", "data", [], f"input_param {{ shape {{ {dims} }} }}", top="data")

    @property
    def text(self) -> str:
        """The prototxt."""
        lost = [row for row in self.report if not row["is_ok"]]
        notes = [f"# not taken over: {row['where']}, {row['what']}: {row['became']}"[:500] for row in lost]
        return "\n".join([f'name: "{_plain(self.name) or "Imported"}"', *notes, *self._layers, ""])

    def step(self, where: str, what: str, add: Callable[[], object], nothing: str = "nothing") -> bool:
        """Add what something becomes, and report it: the layers that `add` made, `nothing` for none, or why not."""
        self._added.clear()
        try:
            add()
        except JitdnnError as error:
            became, is_ok = str(error), False
        else:
            became, is_ok = ", ".join(self._added) or nothing, True
        self.report.append(
            {"where": where[:_MOST_WORDS], "what": what[:_MOST_WORDS], "became": became, "is_ok": is_ok}
        )
        return is_ok

    def layer(
        self, kind: str, name: str, bottoms: Sequence[str], parameters: str = "", weights: Sequence[Array] = (),
        top: str = "",
    ) -> str:  # fmt: skip
        """A layer under that name, or one like it that is free; `top` is what it makes, a blob of its name if empty."""
        name = self._free(name or kind.lower())
        made = top or name
        bottom = "".join(f' bottom: "{each}"' for each in bottoms)
        tail = f"\n  {parameters}" if parameters else ""
        self._layers.append(f'layer {{ name: "{name}" type: "{kind}"{bottom} top: "{made}"{tail} }}')
        for index, values in enumerate(weights):
            self.weights[f"{name}/{index}"] = np.ascontiguousarray(values, np.float32)
        self._added.append(f"{kind} {name}")
        return made

    def convolution(
        self, name: str, x: str, weight: Array, bias: Array | None, stride: Ints, pad: Ints, dilation: Ints,
        groups: int, *, is_transposed: bool = False,
    ) -> str:  # fmt: skip
        """A convolution of images by filters (K, C / groups, R, S); transposed, by (C, K / groups, R, S)."""
        if weight.ndim != 4:
            raise NotSupported(f"filters have shape {weight.shape}: images have two axes, (K, C, R, S)")
        outputs = weight.shape[1] * groups if is_transposed else weight.shape[0]
        words = [f"num_output: {outputs}", *_pair("kernel", weight.shape[2:]), *_pair("stride", stride, 1),
                 *_pair("pad", pad, 0), *_both("dilation", dilation)]  # fmt: skip
        words += [f"group: {groups}"] * (groups != 1) + ["bias_term: false"] * (bias is None) + [_FILLER]
        kept = [weight] if bias is None else [weight, bias]
        kind = "Deconvolution" if is_transposed else "Convolution"
        return self.layer(kind, name, [x], f"convolution_param {{ {' '.join(words)} }}", kept)

    def product(self, name: str, x: str, weight: Array, bias: Array | None) -> str:
        """A fully connected layer of rows: weight (K, C)."""
        if weight.ndim != 2:
            raise NotSupported(f"a matrix is needed, and the weight has shape {weight.shape}")
        words = [f"num_output: {weight.shape[0]}", *["bias_term: false"] * (bias is None), _FILLER]
        kept = [weight] if bias is None else [weight, bias]
        return self.layer("InnerProduct", name, [x], f"inner_product_param {{ {' '.join(words)} }}", kept)

    def pooling(
        self, name: str, x: str, how: str, kernel: Ints, stride: Ints, pad: Ints, *, rounds_up: bool = False
    ) -> str:  # fmt: skip
        """MAX or AVE over windows; the mean counts padding, as Caffe's does."""
        words = [f"pool: {how}", *_pair("kernel", kernel), *_pair("stride", stride, 1), *_pair("pad", pad, 0)]
        words += [] if rounds_up else ["round_mode: FLOOR"]
        return self.layer("Pooling", name, [x], f"pooling_param {{ {' '.join(words)} }}")

    def global_pooling(self, name: str, x: str, how: str = "AVE") -> str:
        """One number a channel."""
        return self.layer("Pooling", name, [x], f"pooling_param {{ pool: {how} global_pooling: true }}")

    def batch_norm(
        self, name: str, x: str, mean: Array, variance: Array, weight: Array | None, bias: Array | None, epsilon: float
    ) -> str:  # fmt: skip
        """BatchNorm by fixed statistics, and Scale where there are factors."""
        one = np.ones(1, np.float32)
        found = self.layer(
            "BatchNorm", name, [x], f"batch_norm_param {{ eps: {epsilon:.9g} }}", [mean, variance, one]
        )
        if weight is None and bias is None:
            return found
        factors = np.ones_like(mean) if weight is None else weight
        kept = [factors] if bias is None else [factors, bias]
        words = "" if bias is None else "scale_param { bias_term: true }"
        return self.layer("Scale", f"{name}_scale", [found], words, kept)

    def relu6(self, name: str, x: str) -> str:
        """max(0, min(x, 6))."""
        return self.layer("ReLU6", name, [x])

    def clip(self, name: str, x: str, low: float, high: float) -> str:
        """max(low, min(x, high))."""
        if not (math.isfinite(low) and math.isfinite(high)):
            if low == 0 and high == math.inf:
                return self.layer("ReLU", name, [x])
            raise NotSupported(
                f"a clip from {low} to {high} has no layer: both ends are numbers, or it is max(0, x)"
            )
        if (low, high) == (0, 6):
            return self.relu6(name, x)
        return self.layer("Clip", name, [x], f"clip_param {{ min: {low:.9g} max: {high:.9g} }}")

    def linear(self, name: str, x: str, scale: float, shift: float) -> str:
        """scale x + shift."""
        return self.layer("Power", name, [x], f"power_param {{ scale: {scale:.9g} shift: {shift:.9g} }}")

    def per_channel(self, name: str, x: str, values: Array, *, is_scale: bool) -> str:
        """A factor or a summand for each channel."""
        return self.layer("Scale" if is_scale else "Bias", name, [x], "", [values.reshape(-1)])

    def eltwise(self, name: str, several: Sequence[str], how: str, coefficients: Sequence[float] = ()) -> str:
        """SUM, PROD or MAX of blobs of one shape."""
        words = [f"operation: {how}", *(f"coeff: {each:.9g}" for each in coefficients)]
        return self.layer("Eltwise", name, several, f"eltwise_param {{ {' '.join(words)} }}")

    def concat(self, name: str, several: Sequence[str], axis: int) -> str:
        """Beside each other along an axis."""
        return self.layer("Concat", name, several, "" if axis == 1 else f"concat_param {{ axis: {axis} }}")

    def flatten(self, name: str, x: str) -> str:
        """A row an image."""
        return self.layer("Flatten", name, [x])

    def softmax(self, name: str, x: str, axis: int) -> str:
        """Along an axis."""
        return self.layer("Softmax", name, [x], "" if axis == 1 else f"softmax_param {{ axis: {axis} }}")

    def dropout(self, name: str, x: str, ratio: float) -> str:
        """That of a share of the numbers."""
        if not 0 <= ratio < 1:
            raise NotSupported(f"a dropout of {ratio} leaves nothing: 0 and more, below 1")
        return self.layer("Dropout", name, [x], f"dropout_param {{ dropout_ratio: {ratio:.6g} }}")

    def lrn(self, name: str, x: str, size: int, alpha: float, beta: float, k: float) -> str:
        """Local response normalization across channels; alpha is that of Caffe, divided by the size."""
        if size % 2 == 0:
            raise NotSupported(f"local response normalization over {size} channels: an odd number is needed")
        words = f"local_size: {size} alpha: {alpha:.9g} beta: {beta:.9g} k: {k:.9g}"
        return self.layer("LRN", name, [x], f"lrn_param {{ {words} }}")

    def activation(self, kind: str, name: str, x: str, **values: float) -> str:
        """ReLU (negative_slope), ELU (alpha), Sigmoid, TanH, Swish, BNLL, AbsVal, Exp, Log."""
        words = " ".join(f"{key}: {value:.9g}" for key, value in values.items())
        field = {"ReLU": "relu_param", "ELU": "elu_param"}.get(kind)
        return self.layer(kind, name, [x], f"{field} {{ {words} }}" if words and field else "")

    def prelu(self, name: str, x: str, slopes: Array) -> str:
        """A slope below 0 for each channel, or one for all."""
        words = "prelu_param { channel_shared: true }" if slopes.size == 1 else ""
        return self.layer(
            "PReLU", name, [x], words, [slopes.reshape(-1) if slopes.size > 1 else slopes.reshape(())]
        )

    def _free(self, name: str) -> str:
        plain = _plain(name)[:100] or "layer"
        found, number = plain, 2
        while found in self._names:
            found, number = f"{plain}_{number}", number + 1
        self._names.add(found)
        return found


_FILLER: Final = 'weight_filler { type: "msra" }'


def _plain(name: str) -> str:
    """A name that stands between quotation marks."""
    return re.sub(r"[^\w./:-]+", "_", name).strip("_/.")


def _pair(name: str, values: Ints, default: int | None = None) -> list[str]:
    """`kernel_size: 3`, or `kernel_h: 3 kernel_w: 5`; nothing for the default."""
    first, second = (*values, *values)[:2]
    if first == second == default:
        return []
    if first == second:
        return [f"{'kernel_size' if name == 'kernel' else name}: {first}"]
    return [f"{name}_h: {first}", f"{name}_w: {second}"]


def _both(name: str, values: Ints) -> list[str]:
    first, second = (*values, *values)[:2]
    if first == second == 1:
        return []
    return [f"{name}: {first}"] if first == second else [f"{name}: {first}", f"{name}: {second}"]


def symmetric(pads: Ints) -> tuple[int, int]:
    """Padding of rows and columns of what is given as (top, left, bottom, right). Raises NotSupported."""
    if len(pads) != 4 or pads[0] != pads[2] or pads[1] != pads[3]:
        raise NotSupported(f"padding {list(pads)} differs at the two ends of an axis: layers pad both alike")
    return pads[0], pads[1]
