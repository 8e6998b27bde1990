"""`torch.ops.jitdnn.convolution_sums`: a convolution, or its data's gradient, and sums by channel of its results.

What a normalization behind a convolution reads first, and in front of its gradient what the normalization's own
gradient reads first. Where the convolution's kernel adds it up as its results leave, nothing reads these for it. In a
graph of Inductor's it takes the place of `jitdnn::settled_convolution` and of `jitdnn::channel_sums`
(inductor_convolution_sums.py), and as these it is told all but its operands by a text: that of the convolution, that of
the sums, and which of their operands is the result; Inductor's code calls `launch`. Of moments it gives the sums of
results and of their squares.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, get_num_threads

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.frameworks.torch import settled
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Form, Sums, descriptor_of, laid
from jitdnn.frameworks.torch.convolution import problem_of
from jitdnn.frameworks.torch.fresh import fresh
from jitdnn.frameworks.torch.inductor_launches import SEEN, shorten
from jitdnn.frameworks.torch.kinds import at
from jitdnn.frameworks.torch.launch import Direct, KernelLaunch, Placed, direct
from jitdnn.frameworks.torch.native_run import Place
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.tail import computed, expression_of
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.tables import summed_convolution_kernel
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.retention import Recent

_ALIGNMENT = 16  # of what the copy engine reads, and of what is read and stored by as much
#: by text, threads and the number of the GPU, -1 for the processor
_known: Recent[tuple[str, int, int], Placed] = Recent(4096)
#: what allocates the result and the sums of a call of the operator
_made: Recent[tuple[str, torch.device], tuple[Callable[[], Tensor], Callable[[], Tensor]]] = Recent(4096)


@dataclass(frozen=True)
class Summed:
    """What a text says: that of a `settled_convolution` forward or to the data without a bias, that of `channel_sums`
    of its result, and the place of the result among their operands. Two sums, or moments. Raises InvalidArgument."""

    own: str
    sums: Sums
    place: int

    def __str__(self) -> str:
        return repr((self.own, str(self.sums), self.place))

    @staticmethod
    @lru_cache(512)
    def of(text: str) -> Summed:
        try:
            own, sums, place = literal_eval(text)
            found = Summed(str(own), Sums.of(str(sums)), int(place))
            direction, _, has_bias, _, _ = settled.parsed(found.own)
            if direction not in ("forward", "data") or has_bias:
                raise ValueError(f"{direction}, with a bias: {has_bias}")
            kinds = [kind for kind, _ in found.sums.results]
            if kinds not in ([MOMENTS], [SUM, SUM]) or not 0 <= found.place < len(found.sums.forms):
                raise ValueError(f"{kinds} of operand {found.place}")
            shape, strides, dtype = found.y
            if found.sums.forms[found.place] != (shape, strides, str(dtype).removeprefix("torch.")):
                raise ValueError(f"the sums are of {found.sums.forms[found.place]}")
        except (ValueError, TypeError, SyntaxError) as error:
            raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::convolution_sums: {error}") from None
        return found

    @property
    def is_moments(self) -> bool:
        """Whether the sums are those of results and of their squares."""
        return self.sums.results[0][0] == MOMENTS

    @cached_property
    def y(self) -> settled.Form:
        """The form of the convolution's result."""
        return settled.form_of_result(self.own)

    @cached_property
    def form(self) -> settled.Form:
        """The form of the sums, (2, N or 1, channels)."""
        _, batch, channels = self.sums.result
        return (2, batch, channels), (batch * channels, channels, 1), torch.float32

    @property
    def behind(self) -> int:
        """How many bytes behind the first sums the others begin."""
        return 4 * prod(self.form[0][1:])

    @cached_property
    def given(self) -> tuple[Form, ...]:
        """The forms of the operands of the convolution."""
        return tuple(
            (shape, strides, str(dtype).removeprefix("torch."))
            for shape, strides, dtype in settled.forms_of_operands(self.own)
        )

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Those of all operands, as `launch` takes them."""
        return (*self.given, *self.beside)

    @cached_property
    def beside(self) -> tuple[Form, ...]:
        """The forms of the operands of the sums beside the result."""
        return tuple(form for place, form in enumerate(self.sums.forms) if place != self.place)

    @property
    def count(self) -> int:
        """Of numbers that are summed for each."""
        return prod(self.sums.shape[axis] for axis in self.sums.axes)

    def convolution(self) -> Convolution | None:
        """The convolution as a problem; None where ours has none, of other types or without elements."""
        direction, forms, _, geometry, _ = settled.parsed(self.own)
        x, w, y = (torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in forms)
        made = torch.empty_strided(*self.y[:2], dtype=self.y[2], device="meta")
        found = problem_of(direction, *((made, w, y) if direction == "data" else (x, w, made)), geometry)
        return found if isinstance(found, Convolution) else None

    def problem(self) -> FusedConvolution | None:
        """Moments as a problem of the planner's."""
        found = self.convolution()
        try:
            own = (
                None
                if found is None
                else FusedConvolution.of(found, None, sums=True, by_image=self.sums.is_by_image)
            )
        except JitdnnError:
            return None
        return own

    def kernel(self, handle: Handle) -> tuple[Kernel, int] | str:
        """The kernel of two formulas, and its bytes of workspace; or why there is none."""
        found = self.convolution()
        if found is None or self.is_moments:
            return "there is no such problem"
        formulas = [expression_of(steps, len(self.sums.forms) - 1) for _, steps in self.sums.results]
        operands = [descriptor_of(form) for form in self.sums.forms]
        return summed_convolution_kernel(
            found, formulas, operands, self.place, self.sums.is_by_image, handle.device
        )

    @property
    def others(self) -> list[int]:
        """Places of the operands beside the result, in the order of the kernel: those of every element first."""
        left = [place for place in range(len(self.sums.forms)) if place != self.place]
        return sorted(left, key=lambda place: self.sums.forms[place][0] != self.sums.shape)


def _launcher(summed: Summed, device: torch.device) -> Direct | KernelLaunch:
    """What runs it as one kernel or plan on the addresses of both operands, the result, the sums of both kinds, and
    others."""
    options = settled.parsed(summed.own)[-1]
    if summed.is_moments:
        problem = summed.problem()
        if problem is None:
            return None
        given = settled.forms_of_operands(summed.own)
        metas = [torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in (*given, summed.y)]
        shape = summed.form[0][1:] if summed.sums.is_by_image else summed.form[0][2:]
        row = torch.empty(shape, device="meta")
        return direct(handle_of(options, device.type), problem, [*metas, row, row], device)
    if device.type == "cpu":
        return None
    runner = at(device, handle_of(options, device.type))
    found = summed.kernel(runner)
    return None if isinstance(found, str) else KernelLaunch(runner, *found, device, _ALIGNMENT)


def _prepared(text: str, device: torch.device) -> Placed:
    """What runs it on a, w, the other operands of the sums in the order of the text, the sums, and the result."""
    summed = Summed.of(text)
    others = [place - (place > summed.place) for place in summed.others]
    result, totals = 3 + len(others), 2 + len(others)
    places = [Place(0), Place(1), Place(result), Place(totals), Place(totals, summed.behind)]
    places += [Place(2 + place) for place in others]

    def in_parts(*tensors: Tensor) -> None:
        a, w, *operands, sums, y = tensors
        y.copy_(settled.settled_convolution.default(a, w, None, summed.own))
        _add(summed, y, operands, sums)

    found = _launcher(summed, device)
    if found is None or summed.is_moments:  # whose plan takes any addresses
        return Placed(found, result + 1, places, in_parts if found is None else None)
    wide = [2 + place for place in others if summed.beside[place][0] == summed.sums.shape]
    aligned, at = (0, 1, *wide, result), found.at

    def run(*tensors: Tensor) -> None:
        given = [one.data_ptr() for one in tensors]
        if any(given[one] % _ALIGNMENT for one in aligned):
            in_parts(*tensors)
        else:
            at([given[operand] + offset for operand, offset in places])

    return Placed(found, result + 1, places, run)


def launch(*given: Any, out: Tensor) -> None:
    """Run what a text says into `out`, which has the form of the convolution's result: nothing is checked.

    `given`: a, w, the operands of the sums beside the result, the memory of the sums, the text, and the global names of
    the code that calls it (settled.py) or None.
    """
    *tensors, text, names = given
    if names is not None and SEEN not in names:
        shorten(names)
    key = (text, get_num_threads(), out.get_device())
    found = _known.get(key) or _known.older(key)
    if found is None:
        found = _known.put(key, _prepared(text, out.device))
    found.run(*tensors, out)


def _add(summed: Summed, y: Tensor, others: Sequence[Tensor], sums: Tensor) -> None:
    """The sums by PyTorch's operators."""
    values = [one.float() for one in others]
    values.insert(summed.place, y.float())
    wide = [computed(steps, list(values)).expand(summed.sums.shape) for _, steps in summed.sums.results]
    for place, one in enumerate((wide[0], wide[0].square()) if summed.is_moments else wide):
        sums[place].copy_(one.sum(summed.sums.axes).view(sums[place].shape))


def _kernel(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor]:
    summed = Summed.of(text)
    if len(operands) != len(summed.beside):
        raise InvalidArgument(
            f"{len(operands)} operands beside the result: the text has {len(summed.beside)}"
        )
    a, w, *others = laid((a, w, *operands), summed.forms)
    key = (text, a.device)
    made = _made.get(key) or _made.older(key)
    if made is None:
        made = _made.put(key, (fresh(*summed.y, a.device), fresh(*summed.form, a.device)))
    y, sums = made[0](), made[1]()
    launch(a, w, *others, sums, text, None, out=y)
    return y, sums


def _fake(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor]:
    summed = Summed.of(text)
    y, sums = (
        torch.empty_strided(shape, strides, dtype=dtype, device=a.device)
        for shape, strides, dtype in (summed.y, summed.form)
    )
    return y, sums


convolution_sums = define(
    "convolution_sums(Tensor a, Tensor w, Tensor[] operands, str text) -> (Tensor, Tensor)",
    _kernel,
    _fake,
    has_batching=True,
)
