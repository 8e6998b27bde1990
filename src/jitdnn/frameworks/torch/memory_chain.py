"""What torch's checkpointing does with memory, as the planner's chain sees it.

A segment under `torch.utils.checkpoint` keeps its input and what later modules save of its output. When the backward
pass comes to it, it runs again from its first module up to the last that saved something, all its results are made
again, those that were kept for later modules among them (the later modules are done with them by then).
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.planner.recompute import Chain, Segment
from jitdnn.planner.recompute_chain import Contents


@dataclass(frozen=True)
class CheckpointChain(Chain):
    """A chain whose steps read the step before them and nothing else, and whose segments run as torch's do."""

    def contents(self, segment: Segment) -> Contents:
        """What the segment keeps and makes again; a segment that may not run again keeps everything."""
        start, stop = segment.start, segment.stop
        plain = super().contents(Segment(start, stop))
        if not segment.is_rerun or not all(self.steps[step].may_rerun for step in range(start, stop)):
            return plain
        saved = [self.buffers[i].made for i in plain.kept if self.buffers[i].first_needed < stop]
        if not saved:
            return plain
        rerun = tuple(range(start, max(saved) + 1))
        return Contents(
            frozenset(i for i in plain.kept if any(step >= stop for step in self.buffers[i].needed)),
            rerun,
            frozenset(i for step in rerun for i in self.made_by(step)),
            frozenset(i for i in self.read_by(start) if self.buffers[i].made < start),
        )

    def dead_after(self, index: int, segment: Segment, contents: Contents) -> int:
        """The step after whose backward pass a buffer that the segment keeps is free."""
        buffer = self.buffers[index]
        if contents.rerun:
            return min(step for step in buffer.needed if step >= segment.stop)
        return buffer.first_needed
