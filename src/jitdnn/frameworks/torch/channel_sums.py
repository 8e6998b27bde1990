"""`torch.ops.jitdnn.channel_sums`: what formulas make of tensors, reduced to one number for each channel.

Normalizations read their tensors twice: for sums over the pixels of each channel, and with these to make the result. In
a graph of Inductor's the first of the two becomes this operator (inductor_sums.py). A text says all but the operands:
their forms, whether each image has results of its own, and of each result whether it is a sum or the moments, and the
steps of its formula (tail.py) over the operands. As settled.py has it, Inductor's code calls `launch`.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.torch.inductor_launches import SEEN, shorten
from jitdnn.frameworks.torch.kinds import DTYPES, at
from jitdnn.frameworks.torch.launch import KernelLaunch, Placed
from jitdnn.frameworks.torch.native_run import Place
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.tail import computed, expression_of
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.kernels.tables import rows_kernel
from jitdnn.retention import Recent
from jitdnn.rtcg.expression import Graph, finish
from jitdnn.tensor import TensorDescriptor

SUM, MOMENTS = "sum", "moments"
"""A sum; the mean and the variance, divided by how many there are."""
#: shape, strides, and the name of the type
Form = tuple[tuple[int, ...], tuple[int, ...], str]
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def checked_forms(given: Any) -> tuple[Form, ...]:
    """The forms of a text. Raises ValueError, TypeError and AttributeError for anything else."""
    found = tuple(
        (tuple(map(int, shape)), tuple(map(int, strides)), str(name)) for shape, strides, name in given
    )
    types = {getattr(torch, name) for _, _, name in found}
    ranks = {len(one) for shape, strides, _ in found for one in (shape, strides)}
    if not types <= {*_TYPES} or len(ranks) != 1 or min(ranks) < 2:
        raise ValueError(f"types {types}, {sorted(ranks)} axes")
    return found


def shape_of(forms: Sequence[Form]) -> tuple[int, ...]:
    """The shape that tensors of some forms broadcast to. Raises RuntimeError."""
    return tuple(torch.broadcast_shapes(*(shape for shape, _, _ in forms)))


def descriptor_of(form: Form) -> TensorDescriptor:
    shape, strides, name = form
    return TensorDescriptor(shape, strides, DTYPES[getattr(torch, name)])


@dataclass(frozen=True)
class Sums:
    """What a text says.

    `forms`: shape, strides and type of each operand, broadcast to (N, C, space); `is_by_image`: results are (N, C),
    else (C). `results`: SUM or MOMENTS, and the text of a formula of the operands. Raises InvalidArgument for others.
    """

    forms: tuple[Form, ...]
    is_by_image: bool
    results: tuple[tuple[str, str], ...]
    options: str

    def __str__(self) -> str:
        return repr((self.forms, self.is_by_image, self.results, self.options))

    @staticmethod
    def of(text: str) -> Sums:
        try:
            forms, is_by_image, results, options = literal_eval(text)
            made = tuple((str(kind), str(steps)) for kind, steps in results)
            found = Sums(checked_forms(forms), bool(is_by_image), made, str(options))
            if not made or not {kind for kind, _ in made} <= {SUM, MOMENTS} or not found.shape:
                raise ValueError(f"results {made}")
        except (ValueError, TypeError, SyntaxError, AttributeError, RuntimeError) as error:
            raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::channel_sums: {error}") from None
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """That all operands broadcast to."""
        return shape_of(self.forms)

    @property
    def axes(self) -> tuple[int, ...]:
        """Those that are summed over."""
        return tuple(
            axis for axis in range(len(self.shape)) if axis > 1 or (axis == 0 and not self.is_by_image)
        )

    @property
    def result(self) -> tuple[int, int, int]:
        """The shape of all results: a row for each number of a channel, of moments the mean first."""
        batch, channels, *_ = self.shape
        rows = sum(2 if kind == MOMENTS else 1 for kind, _ in self.results)
        return rows, batch if self.is_by_image else 1, channels

    def step(self) -> Step:
        """The program over rows that computes them: one pass over the pixels of each channel."""
        reductions: list[tuple[str, Any]] = []
        outputs: list[tuple[int, int]] = []
        scalars: list[Any] = []
        known, total = 1, self.result[0]  # of the row values the share of an element comes first
        for kind, steps in self.results:
            reductions.append(
                ("moments" if kind == MOMENTS else "add", expression_of(steps, len(self.forms) - 1))
            )
            outputs.append((len(outputs), known))
            if kind == MOMENTS:
                graph = Graph([f"v{number}" for number in range(1 + total + len(scalars))])
                scalars.append(finish(graph, graph.input(known + 1) * graph.input(0)))
                outputs.append((len(outputs), total + len(scalars)))
            known += 2 if kind == MOMENTS else 1
        shape, axes = self.shape, self.axes
        share = 1.0 / max(1, prod(shape[axis] for axis in axes))
        row = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        strides = tuple(0 if axis in axes else (shape[1], 1)[axis] for axis in range(len(shape)))
        out = TensorDescriptor(row, strides, "f32")
        program = Program((Pass(tuple(reductions), tuple(scalars)),), tuple(outputs), (share,))
        tensors = (*map(descriptor_of, self.forms), *[out] * len(outputs))
        return Step(program, tensors, axes, tuple(range(len(outputs))), compute="f32")

    def places(self) -> list[int]:
        """How many bytes behind the first one each row of the result begins."""
        rows, batch, channels = self.result
        return [4 * row * batch * channels for row in range(rows)]


def launcher(
    step: Callable[[str], Step],
    places: Callable[[str], Sequence[int]],
    options: Callable[[str], str],
    compute: Callable[[str, Sequence[Tensor], Tensor], None],
) -> Callable[..., None]:
    """What Inductor's code calls to run what a text says: `launch(*operands, text, names, out=...)`, which checks
    nothing. `names`: the global names of the code that calls it (settled.py).

    Of the text, `step` is the program over rows, `places` the bytes from the beginning of `out` to each of its results,
    `options` the text of options.py; `compute` does the same on processors.
    """
    known: Recent[tuple[str, int], Placed] = Recent(4096)

    def prepared(text: str, device: torch.device, operands: int) -> Placed:
        runner = at(device, handle_of(options(text), device.type))
        kernel, bytes = rows_kernel(step(text), runner.device)
        results = [Place(operands, begin) for begin in places(text)]
        return Placed(
            KernelLaunch(runner, kernel, bytes, device),
            operands + 1,
            [*map(Place, range(operands)), *results],
        )

    def launch(*given: Any, out: Tensor) -> None:
        *operands, text, names = given
        if names is not None and SEEN not in names:
            shorten(names)
        if out.device.type == "cpu":
            compute(text, operands, out)
            return
        key = (text, out.get_device())
        found = known.get(key) or known.older(key)
        if found is None:
            found = known.put(key, prepared(text, out.device, len(operands)))
        found.run(*operands, out)

    return launch


def _compute(text: str, operands: Sequence[Tensor], out: Tensor) -> None:
    """The same by PyTorch's operators."""
    sums, row = Sums.of(text), 0
    shape = sums.shape
    for kind, steps in sums.results:
        made = computed(steps, [one.float() for one in operands]).expand(shape)
        if kind == SUM:
            out[row].copy_(made.sum(sums.axes).view(out[row].shape))
            row += 1
        else:
            variance, mean = torch.var_mean(made, sums.axes, correction=0)
            out[row].copy_(mean.view(out[row].shape))
            out[row + 1].copy_(variance.view(out[row].shape))
            row += 2


launch = launcher(
    lambda text: Sums.of(text).step(),
    lambda text: Sums.of(text).places(),
    lambda text: Sums.of(text).options,
    _compute,
)


def laid(operands: Sequence[Tensor], forms: Sequence[Form]) -> list[Tensor]:
    """Operands as the forms of a text say. Raises InvalidArgument and InvalidShape for others."""
    if len(operands) != len(forms):
        raise InvalidArgument(f"{len(operands)} operands: the text is of {len(forms)}")
    found = []
    for one, (shape, strides, name) in zip(operands, forms, strict=True):
        if tuple(one.shape) != shape or one.dtype is not getattr(torch, name):
            raise InvalidShape(f"an operand is {tuple(one.shape)} {one.dtype}: the text is of {shape} {name}")
        if one.stride() != strides:
            one = torch.empty_strided(shape, strides, dtype=one.dtype, device=one.device).copy_(one)
        found.append(one)
    return found


def form_of_result(text: str) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """The form of what `text` gives."""
    rows, batch, channels = Sums.of(text).result
    return (rows, batch, channels), (batch * channels, channels, 1), torch.float32


def _kernel(operands: Sequence[Tensor], text: str) -> Tensor:
    out = _fake(operands, text)
    launch(*laid(operands, Sums.of(text).forms), text, None, out=out)
    return out


def _fake(operands: Sequence[Tensor], text: str) -> Tensor:
    shape, _, dtype = form_of_result(text)
    return torch.empty(shape, dtype=dtype, device=operands[0].device)


channel_sums = define(
    "channel_sums(Tensor[] operands, str text) -> Tensor", _kernel, _fake, has_batching=True
)
