"""GPUs of other machines on paper, which note what they are to launch and compile nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.gpu_facts import FromFacts, GpuFacts, on_paper


@dataclass(frozen=True)
class PaperGpu(FromFacts):
    """A CUDA device of these facts; `made` are the sources and launches of the kernels that were asked of it."""

    facts: GpuFacts
    made: list[tuple[Source, tuple[Launch, ...]]] = field(default_factory=list, compare=False)

    target, index, threads, max_threads, has_f64 = "cuda", -1, 1, 1024, True

    @property
    def name(self) -> str:
        return self.facts.model

    @property
    def arch(self) -> str:
        return f"sm_{self.facts.capability}"

    def kernel(self, source: Source, launches: Sequence[Launch], *_: Any, **__: Any) -> Any:
        self.made.append((source, tuple(launches)))
        return object()


#: by name; the last one has half the registers that every real one has, and few threads
FACTS = {
    "A100": on_paper(80),
    "RTX 4090": on_paper(89),
    "H100": on_paper(90),
    "small": replace(on_paper(86), model="small", registers=32768, resident_threads=1024, resident_blocks=4),
}
