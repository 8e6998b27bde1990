"""Fused graphs on GPUs: prepared by the engine of graphs there, and measured beside the model itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from jitdnn import log
from jitdnn.devices.gpu import OutOfMemory
from jitdnn.errors import DeviceError, JitdnnError, NotSupported
from jitdnn.frameworks.torch.choice import decide
from jitdnn.frameworks.torch.gpu_program import Engines, GpuProgram
from jitdnn.frameworks.torch.gpu_stretches import allowed_math
from jitdnn.frameworks.torch.options import handle_of, parse


@dataclass(frozen=True)
class Unfused:
    """In the place of a program: the model itself runs, for a reason."""

    reason: str


def kind_on_gpu(device: torch.device) -> tuple[Any, ...]:
    """What tells kinds of calls on a GPU apart beside their inputs."""
    return (
        device.index,
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        *allowed_math(),
    )


class GpuEngines:
    """Those of one function, for each device and arithmetic, until its constants change."""

    def __init__(self, options: str, what: str, captured: list[Any] | None = None) -> None:
        """`captured` gets programs whose launches are in graphs that somebody captured: replays read their memory."""
        self._options, self._what = options, what
        self._engines: dict[Any, Engines] = {}
        self._captured: list[Any] = [] if captured is None else captured

    def forget(self) -> None:
        """Let go of what was made of constants that are no more."""
        self._engines = {}

    def check(self) -> None:
        """Raises NotSupported while a graph is being captured."""
        if torch.cuda.is_current_stream_capturing():
            raise NotSupported(
                f"{self._what} was not called with inputs of this kind before, and cannot be prepared while a CUDA "
                "graph is being captured: call it once before the capture"
            )

    def program(
        self, traced: GraphModule, text: str, constants: Sequence[Tensor], inputs: Sequence[Tensor],
        stock: Callable[[], Any],
    ) -> GpuProgram | Unfused:  # fmt: skip
        """The program for inputs of this kind, or why the model itself runs: too little of it can be translated, or it
        is faster."""
        device = inputs[0].device
        elsewhere = {str(one.device) for one in constants if one.device != device and one.dim()}
        if elsewhere:
            return self._unfused(f"parameters are on {', '.join(sorted(elsewhere))} and inputs on {device}")
        for is_last in (False, True):
            try:
                return self._measured(traced, text, constants, inputs, stock)
            except (OutOfMemory, torch.OutOfMemoryError) as error:
                self._engines.pop(kind_on_gpu(device), None)
                if is_last:
                    return self._unfused(f"there is no memory for it: {error}")
            torch.cuda.empty_cache()  # what PyTorch keeps for later is the driver's again
        raise AssertionError

    def _measured(
        self, traced: GraphModule, text: str, constants: Sequence[Tensor], inputs: Sequence[Tensor],
        stock: Callable[[], Any],
    ) -> GpuProgram | Unfused:  # fmt: skip
        device = inputs[0].device
        key = kind_on_gpu(device)
        engines = self._engines.get(key)
        if engines is None:
            engines = self._engines[key] = Engines(f"cuda:{device.index}", self._options, self._captured)
        try:
            program = GpuProgram(traced, constants, self._options, engines)
        except DeviceError:
            raise
        except JitdnnError as error:
            return self._unfused(str(error))
        kind = hashlib.sha256(text.encode()).hexdigest()[:24]
        decision = decide(
            f"torch graph {kind} {self._options} {sorted(engines.math.items())}", handle_of(self._options, "cuda"),
            device, parse(self._options).measure, lambda: program(*inputs), stock,
        )  # fmt: skip
        if decision.is_ours:
            return program
        times = ""
        if decision.seconds is not None and decision.stock_seconds is not None:
            times = f" ({1e3 * decision.seconds:.3f} ms beside {1e3 * decision.stock_seconds:.3f} ms)"
        return self._unfused(f"the fused graph: {decision.reason}{times}")

    def _unfused(self, reason: str) -> Unfused:
        log.fallback_once(("fused on a GPU", id(self), reason), f"{self._what} runs unfused: {reason}")
        return Unfused(reason)
