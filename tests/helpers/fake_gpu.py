"""A GPU of PyTorch that is not there: what its clocks say of calls whose times a test makes up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from jitdnn.frameworks.torch import choice


class Gpu:
    """A host and a GPU that runs what the host enqueues, in order, with a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.free_at = 0.0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Any) -> None:
                assert stream is gpu
                self.at = gpu.free_at = max(gpu.now, gpu.free_at)

            def synchronize(self) -> None:
                gpu.now = max(gpu.now, self.at)

            def query(self) -> bool:
                return gpu.now >= self.at

            def elapsed_time(self, last: Any) -> float:
                return 1e3 * float(last.at - self.at)

        monkeypatch.setattr(choice, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.call(0.0, 1e-9 * cycles)())

    def synchronize(self) -> None:
        self.now = max(self.now, self.free_at)

    def call(self, host: float, device: float) -> Callable[[], None]:
        """A function that takes the host so long to enqueue, and the GPU so long to run."""

        def run() -> None:
            self.now += host
            self.free_at = max(self.now, self.free_at) + device

        return run
