"""Kernels over rows: gradients of layer normalizations in one pass, and what PyTorch's graphs compute by channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cases import Buffer, Case, Workspace, norm
from fuzz.draw import Draw
from fuzz.kernels.check import KernelProblem
from fuzz.problem import Fault, operation
from jitdnn.kernels.gpu.normalization.layer_norm_backward import FusedLayerNorm
from jitdnn.kernels.tables import rows_kernel
from jitdnn.problems import LayerNorm
from jitdnn.tensor import TensorDescriptor
from normalization_cases import inputs_of

_MULTIPROCESSORS = (4, 132, 2, 16, 3, 1, 8)
_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


@dataclass(frozen=True)
class LayerNormGradients:
    """Gradients with rows of about as many elements, so that threads have as many of them."""

    dtype: str
    count: int
    form: str
    absent: tuple[str, ...]
    is_narrow: bool
    is_wide: bool
    plan: int

    def one(self, draw: Draw) -> KernelProblem:
        """A problem of it."""
        count = max(1, self.count - draw.pick((0, 0, 0, 1, 3, 8)))
        rows = draw.pick((1, 2, 3, 5, 17, 31, 32, 33, 64, 127, 257, 1000))
        rows = max(1, min(rows, 60_000 // count))
        outer = (rows,) if draw.chance(0.5) else (draw.pick((1, 2, 3)), max(1, rows // 3))
        divisor = draw.pick([n for n in (1, 2, 3, 5, 8) if count % n == 0])
        inner = (count,) if divisor == 1 else (count // divisor, divisor)
        shape = (*outer, *inner)
        problem = LayerNorm.make(
            "bwd", shape, len(outer), self.form, self.absent, dtype=self.dtype, is_narrow=self.is_narrow,
            is_wide=self.is_wide,
        )  # fmt: skip
        if draw.chance(0.3):  # rows apart, as of some columns of a matrix
            more = draw.pick((8, 1, 64))
            steps = TensorDescriptor.packed((*outer, count + more), self.dtype).strides[: len(outer)]
            for name in draw.pick((("x",), ("dy", "dx"), ("x", "dy", "dx"))):
                tensor = getattr(problem, name)
                apart = TensorDescriptor(shape, (*steps, *tensor.strides[len(outer) :]), tensor.dtype)
                problem = replace(problem, **{name: apart})
        return KernelProblem(
            "layer norm gradients", FusedLayerNorm(), problem, None, draw.pick(_MULTIPROCESSORS), self.plan,
            draw.pick((1.0, 0.5, -0.7)), draw.pick((0.0, 1.0, 0.3)), draw.below(1 << 20), False,
            not draw.chance(0.1), inputs_of, _sizes_of_terms,
        )  # fmt: skip


def _sizes_of_terms(case: Case) -> list[float]:
    """Norms of what is summed over rows: a single dweight of terms of random signs may be next to nothing."""
    given = {
        operand.name: buffer.values.astype(np.float64)
        for operand, buffer in zip(case.problem.inputs, case.inputs, strict=True)
    }
    dy = given["dy"]
    of_weight = dy * (given["x"] - given.get("mean", 0.0)) * given["rstd"]
    terms = {"dweight": norm(of_weight), "dbias": norm(dy)}
    return [terms.get(operand.name, 0.0) for operand in case.problem.outputs]


@operation("kernels_of_layer_norms", 2, functions=(), targets=("emulated",))
def _layer_norms(draw: Draw) -> LayerNormGradients:
    dtype = draw.pick(("bf16", "f32", "f16"))
    form = draw.pick(("layer", "layer", "rms"))
    names = ((), (), ("dbias",), ("weight", "dweight"), ("weight",)) if form == "layer" else ((), ("weight",))
    absent = draw.pick(names)
    return LayerNormGradients(
        dtype, draw.pick((96, 64, 8, 1, 7, 128, 192, 384, 100, 768, 1024, 1000, 3, 2048, 3072, 5000, 8192)), form,
        absent, dtype != "f32" and draw.chance(0.5), dtype != "f32" and draw.chance(0.4), draw.below(1 << 20),
    )  # fmt: skip


#: of x, dy and numbers of channels a, b: a gate, and what passes it times x
_GATED = (
    '[["aten.mul.Tensor",["%0","%2"],{}],["aten.add.Tensor",["%4","%3"],{}],["aten.gt.Scalar",["%5",0],{}],'
    '["aten.mul.Tensor",["%1",0.5],{}],["aten.where.self",["%6","%1","%7"],{}]'
)
_GATE, _PRODUCT = _GATED + "]", _GATED + ',["aten.mul.Tensor",["%8","%0"],{}]]'


@dataclass(frozen=True)
class ByChannel:
    """Sums and moments of formulas for each channel, or what a formula with numbers of channels gives."""

    is_values: bool
    dtype: str
    is_last: bool
    by_image: bool
    results: tuple[tuple[str, str], ...]
    rank: int

    def one(self, draw: Draw) -> ChannelProblem:
        """A problem of it."""
        channels = draw.pick((24, 1, 5, 32, 64, 33, 8, 128, 65, 200))
        space = [draw.pick((7, 1, 4, 9, 16, 33, 3)) for _ in range(self.rank)]
        batch = draw.pick((2, 1, 3, 5))
        while batch * channels * int(np.prod(space)) > 60_000:
            space[int(np.argmax(space))] //= 2
        return ChannelProblem(
            self, (batch, channels, *space), draw.pick(_MULTIPROCESSORS), draw.below(1 << 20)
        )


@dataclass
class ChannelProblem:
    """Tensors of whole numbers, so that sums and gates are exact; moments within a few roundings."""

    family: ByChannel
    shape: tuple[int, ...]
    multiprocessors: int
    data: int

    def check(self, target: Any) -> tuple[Sequence[str], str | None]:
        """What was met. Raises Fault."""
        from jitdnn.frameworks.torch.channel_sums import SUM, Sums
        from jitdnn.frameworks.torch.channel_values import Values
        from jitdnn.frameworks.torch.tail import computed

        family, shape = self.family, self.shape
        facts = replace(target.gpu.facts, multiprocessors=self.multiprocessors)
        device = replace(target.gpu, facts=facts)
        layout = "nhwc" if family.is_last else "nchw"
        wide = TensorDescriptor.packed(shape, family.dtype, layout)
        extents = (shape[0] if family.by_image else 1, shape[1], *(1 for _ in shape[2:]))
        narrow = TensorDescriptor(extents, (shape[1], 1, *(1 for _ in shape[2:])), "f32")
        tensors = [wide, wide, narrow, narrow]
        forms = tuple((one.shape, one.strides, _NAMES[one.dtype]) for one in tensors)
        rng = np.random.default_rng(self.data)
        buffers = [Buffer(one) for one in tensors]
        for buffer in buffers:
            buffer.values[...] = rng.integers(-4, 5, buffer.values.shape)
        given = [torch.from_numpy(buffer.values.astype(np.float64)) for buffer in buffers]
        expected: list[tuple[np.ndarray[Any, Any], bool]] = []
        if family.is_values:
            step = Values(forms, forms[0], family.results[0][1], "").step()
            outputs = [Buffer(wide)]
            expected.append((computed(family.results[0][1], given).expand(shape).numpy(), True))
        else:
            sums = Sums(forms, family.by_image, family.results, "")
            step = sums.step()
            flat = TensorDescriptor.packed(sums.result[1:], "f32")
            outputs = [Buffer(flat) for _ in range(sums.result[0])]
            for kind, steps in family.results:
                made = computed(steps, given).expand(shape)
                if kind == SUM:
                    expected.append((made.sum(sums.axes).reshape(flat.shape).numpy(), True))
                else:
                    found = torch.var_mean(made, sums.axes, correction=0)
                    expected += [(one.reshape(flat.shape).numpy(), False) for one in reversed(found)]
        kernel, room = rows_kernel(step, device)
        workspace = Workspace(room)
        outside = [one.outside() for one in outputs]
        before = [one.bits() for one in buffers]
        kernel(None, [one.pointer for one in (*buffers, *outputs)], 1.0, 0.0, workspace.pointer)
        if not workspace.is_canary_alive():
            raise Fault("outside", "wrote beside its workspace")
        if any((a.outside() != b).any() for a, b in zip(outputs, outside, strict=True)):
            raise Fault("outside", "wrote beside an output")
        if any((a.bits() != b).any() for a, b in zip(buffers, before, strict=True)):
            raise Fault("outside", "wrote to an input")
        for number, (made, (exact, is_exact)) in enumerate(zip(outputs, expected, strict=True)):
            found = made.values.astype(np.float64)
            off = np.abs(found - exact) > (0.0 if is_exact else 1e-5 * np.abs(exact) + 1e-5)
            if not np.isfinite(found).all() or off.any():
                raise Fault("wrong", f"result {number}: {int(off.sum())} of {off.size} wrong")
        return [f"kernel by channel, {'values' if family.is_values else 'sums'}, {layout}"], None


@operation("kernels_by_channel", 2, functions=(), targets=("emulated",))
def _by_channel(draw: Draw) -> ByChannel:
    is_values = draw.chance(0.4)
    sums = draw.pick((
        (("sum", _GATE), ("sum", _PRODUCT)), (("moments", _PRODUCT),), (("sum", _GATE), ("moments", _PRODUCT)),
    ))  # fmt: skip
    return ByChannel(
        is_values, draw.pick(("bf16", "f32", "f16")), draw.chance(0.5), draw.chance(0.5),
        (("sum", _GATE),) if is_values else sums, draw.pick((2, 1, 3)),
    )  # fmt: skip
