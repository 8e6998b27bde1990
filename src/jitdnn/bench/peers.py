"""What jitdnn is compared with: PyTorch's CPU convolution in both memory orders, and im2col + NumPy's
BLAS."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.bench import quantized_peer
from jitdnn.errors import InvalidArgument
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

FloatArray = npt.NDArray[np.floating[Any]]
#: A peer is another program's arithmetic: it must only be computing the same thing.
PEER_BOUND = {"f64": 1e-10, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
#: Runs the peer on the n-th set of inputs and returns its own kind of array; a second function reads it.
Runner = Callable[[int], Any]


class Peer(ABC):
    """Another way to compute a problem. `family` is what the command line calls it; of several members of one
    family (memory orders) the fastest counts."""

    name: str
    family: str

    @abstractmethod
    def refuse(self, problem: Problem) -> str | None:
        """Why this peer cannot run the problem, or None."""

    @abstractmethod
    def prepare(self, problem: Problem, sets: Sequence[Sequence[FloatArray]]) -> Runner:
        """A function of the number of the set to run on. The inputs are brought into the peer's memory order
        here, outside of what is timed; the output is allocated inside, as in anybody's program."""

    @abstractmethod
    def to_numpy(self, output: Any) -> FloatArray:
        """A result of the runner as an array of the logical shape."""

    def threads(self, count: int) -> AbstractContextManager[Any]:
        """Limit the peer to that many threads while the context is open."""
        return nullcontext()


class Torch(Peer):
    """PyTorch's convolution on the CPU (oneDNN in the usual builds), in one memory order."""

    family = "torch"

    def __init__(self, layout: str) -> None:
        self.name = f"torch_{layout}"
        self._layout = layout
        self._torch: Any = importlib.import_module("torch")

    def refuse(self, problem: Problem) -> str | None:
        if not isinstance(problem, Convolution):
            return f"only convolutions are compared with it, not {problem.kind}"
        if any(before != after for before, after in problem.padding):
            return "PyTorch pads both sides alike"
        if problem.mode != "cross_correlation":
            return "PyTorch has cross-correlation only"
        if problem.is_integer:
            return quantized_peer.refuse(problem)
        if problem.has_float8:
            return "PyTorch has no convolutions of 8-bit reals"
        if problem.dtype not in PEER_BOUND:
            return f"PyTorch's convolutions are of reals, not of {problem.dtype}"
        return None

    def prepare(self, problem: Problem, sets: Sequence[Sequence[FloatArray]]) -> Runner:
        assert isinstance(problem, Convolution)
        torch = self._torch
        rank = len(problem.spatial)
        # PyTorch orders 1-D tensors channels-last only as 2-D ones
        lift = 1 if rank == 1 and self._layout == "nhwc" else 0
        order = torch.contiguous_format
        if self._layout == "nhwc":
            order = torch.channels_last_3d if rank == 3 else torch.channels_last
        if problem.is_integer:
            return quantized_peer.prepare(torch, problem, sets, order)

        def tensor(array: FloatArray) -> Any:
            if problem.dtype == "bf16":  # a type of NumPy's that PyTorch does not know
                made = torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
            else:
                made = torch.from_numpy(np.ascontiguousarray(array))
            return (made.unsqueeze(2) if lift else made).contiguous(memory_format=order)

        stride, dilation = [1] * lift + [*problem.stride], [1] * lift + [*problem.dilation]
        padding = [0] * lift + [before for before, _ in problem.padding]
        tensors = [[tensor(array) for array in arrays] for arrays in sets]
        forward = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[rank + lift]
        backward = torch.ops.aten.convolution_backward
        zeros = [0] * (rank + lift)
        groups = problem.groups
        if problem.direction == "fwd":

            def run(number: int) -> Any:
                x, w = tensors[number % len(tensors)]
                return forward(x, w, None, stride, padding, dilation, groups)

        elif problem.direction == "bwd_data":
            x = tensor(
                np.empty(problem.x.shape, sets[0][0].dtype)
            )  # only its shape and memory order are read

            def run(number: int) -> Any:
                dy, w = tensors[number % len(tensors)]
                wanted = (True, False, False)
                return backward(dy, x, w, None, stride, padding, dilation, False, zeros, groups, wanted)[0]

        else:
            w = tensor(np.empty(problem.w.shape, sets[0][0].dtype))

            def run(number: int) -> Any:
                x, dy = tensors[number % len(tensors)]
                wanted = (False, True, False)
                return backward(dy, x, w, None, stride, padding, dilation, False, zeros, groups, wanted)[1]

        def without_gradient(number: int) -> Any:
            with torch.no_grad():
                result = run(number)
            return result.squeeze(2) if lift else result

        return without_gradient

    def to_numpy(self, output: Any) -> FloatArray:
        if output.is_quantized:
            return quantized_peer.to_numpy(output)
        wide = output.float() if output.dtype == self._torch.bfloat16 else output
        array: FloatArray = wide.numpy()
        return array

    def threads(self, count: int) -> AbstractContextManager[Any]:
        # PyTorch has a setting for the process, not a context; every run of the driver sets it anew
        self._torch.set_num_threads(count)
        return nullcontext()


def torch_peers() -> tuple[Peer, ...]:
    """PyTorch in both memory orders. Raises InvalidArgument if PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InvalidArgument("peer torch: PyTorch is not installed; pip install 'jitdnn[bench]' brings it")
    return Torch("nchw"), Torch("nhwc")
