"""Training as a chain of steps: what each leaves for the backward pass, and what memory that takes when.

A step is a layer, or some that belong together because one works in place on what another made. The chain is cut into
segments. What a segment makes and only its own backward pass needs is either kept, or dropped and made again, from what
the segments before it left, when the backward pass comes to it. So the memory of every moment follows from the segments
and from the workspace of the step that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jitdnn.planner.fronts import Point

NOTHING = (Point(0.0, 0, None),)


@dataclass(frozen=True)
class Buffer:
    """Memory that the forward pass of step `made` fills.

    `read`: the later steps whose forward pass reads it; `needed`: the steps whose backward pass does, `made` among them
    if it is one.
    """

    name: str
    bytes: int
    made: int
    read: tuple[int, ...] = ()
    needed: tuple[int, ...] = ()

    @property
    def last_read(self) -> int:
        """The last step in whose forward pass it must be there."""
        return max((self.made, *self.read))

    @property
    def first_needed(self) -> int:
        """The step after whose backward pass nobody needs it, as that pass goes from the last step to the first."""
        return min(self.needed, default=NEVER)


NEVER = 1 << 60


class Gradient(NamedTuple):
    """Memory of a gradient: taken by the backward pass of step `taken`, free after that of step `free` <= `taken`."""

    name: str
    bytes: int
    taken: int
    free: int


@dataclass(frozen=True)
class Step:
    """A step: its fronts forward, and those of each part of its backward pass, which run one after another.

    `temporary` and `backward_temporary` are bytes that it takes and gives back beside its workspace. A step that may
    not run again (`may_rerun`) has its results kept as long as anybody needs them.
    """

    name: str
    forward: tuple[Point, ...] = NOTHING
    backward: tuple[tuple[Point, ...], ...] = ()
    temporary: int = 0
    backward_temporary: int = 0
    may_rerun: bool = True


@dataclass(frozen=True)
class Segment:
    """Steps start .. stop - 1. With `is_rerun` what only they need of their results is dropped and made again."""

    start: int
    stop: int
    is_rerun: bool = False


class Contents(NamedTuple):
    """What a segment does with memory: buffers by index.

    `kept`: of its own results those that stay until the backward pass; `rerun`: the steps to run again; `remade`: what
    these make; `used`: what they read of the segments before.
    """

    kept: frozenset[int]
    rerun: tuple[int, ...]
    remade: frozenset[int]
    used: frozenset[int]


@dataclass(frozen=True)
class Chain:
    """Steps in their order, the memory between them, and the bytes that are always there (`constant`).

    `spare` are bytes that a piece of workspace takes beside those that were asked for; `fastest` the seconds of an
    iteration with any workspace, where fronts were cut short, None if they were not.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    gradients: tuple[Gradient, ...] = ()
    constant: int = 0
    spare: int = 0
    fastest: float | None = None

    @cached_property
    def _made(self) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in self.steps]
        for index, buffer in enumerate(self.buffers):
            made[buffer.made].append(index)
        return made

    @cached_property
    def _reads(self) -> list[list[int]]:
        reads: list[list[int]] = [[] for _ in self.steps]
        for index, buffer in enumerate(self.buffers):
            for step in sorted(set(buffer.read)):
                reads[step].append(index)
        return reads

    def made_by(self, step: int) -> list[int]:
        """The buffers that a step fills."""
        return self._made[step]

    def read_by(self, step: int) -> list[int]:
        """The buffers of earlier steps that the forward pass of a step reads."""
        return self._reads[step]

    def contents(self, segment: Segment) -> Contents:
        """What the segment keeps and makes again."""
        start, stop, is_rerun = segment.start, segment.stop, segment.is_rerun
        own = [index for step in range(start, stop) for index in self._made[step]]
        if not is_rerun:
            kept = frozenset(index for index in own if self.buffers[index].needed)
            return Contents(kept, (), frozenset(), frozenset())
        keeps = {index for index in own if any(step >= stop for step in self.buffers[index].needed)}
        wanted = [index for index in own if self.buffers[index].needed and index not in keeps]
        rerun: set[int] = set()
        used: set[int] = set()
        while wanted:
            index = wanted.pop()
            step = self.buffers[index].made
            if not self.steps[step].may_rerun:
                keeps.add(index)
            elif step not in rerun:
                rerun.add(step)
                for source in self._reads[step]:
                    if self.buffers[source].made < start:
                        used.add(source)
                    elif source not in keeps and self.buffers[source].made < step:
                        wanted.append(source)
        contents = Contents(frozenset(keeps), tuple(sorted(rerun)), frozenset(), frozenset(used))
        # what is kept for later segments only is gone when this one runs again, and its memory is filled all the same
        remade = (
            index
            for step in rerun
            for index in self._made[step]
            if index not in keeps or self.dead_after(index, segment, contents) >= stop
        )
        return contents._replace(remade=frozenset(remade))

    def dead_after(self, index: int, segment: Segment, contents: Contents) -> int:
        """The step after whose backward pass a buffer that the segment keeps is free, as far as the segment knows."""
        first = self.buffers[index].first_needed
        if any(step in self.buffers[index].read for step in contents.rerun):
            return min(first, segment.start)
        return first

    def is_read_later(self, index: int, step: int, segment: Segment, contents: Contents) -> bool:
        """Whether what `step` of a rerun made or read has a reader after it, in the rerun or the backward pass."""
        buffer = self.buffers[index]
        if buffer.first_needed < segment.stop:
            return True
        return any(later > step and later in contents.rerun for later in buffer.read)


class Moment(NamedTuple):
    """A step at work: "forward", "rerun" or "backward"; `part` of the backward pass.

    `bytes` are those in use without workspace, `workspace` what the step asks for, `trims` whether workspace that is
    left of earlier steps is given back before, and `held` what there is of it then.
    """

    direction: str
    step: int
    part: int
    bytes: int
    workspace: int
    trims: bool = False
    held: int = 0

    @property
    def total(self) -> int:
        return self.bytes + self.held


class Action(NamedTuple):
    """What is done, and the buffers and gradients that are taken before it and free after it."""

    direction: str
    step: int
    takes: tuple[int, ...]
    frees: tuple[int, ...]
    frees_gradients: tuple[int, ...] = ()


def actions(chain: Chain, segments: Sequence[Segment]) -> list[Action]:
    """Everything that an iteration does, in order."""
    every = [chain.contents(segment) for segment in segments]
    dead: dict[int, int] = {}  # of what is kept
    for segment, contents in zip(segments, every, strict=True):
        for index in contents.kept:
            dead[index] = chain.dead_after(index, segment, contents)
        for index in contents.used:
            dead[index] = min(dead.get(index, NEVER), segment.start)
    result = []
    for step in range(len(chain.steps)):
        live = [*chain.made_by(step), *chain.read_by(step)]
        frees = (i for i in live if i not in dead and chain.buffers[i].last_read == step)
        result.append(Action("forward", step, tuple(chain.made_by(step)), tuple(frees)))
    for segment, contents in zip(reversed(segments), reversed(every), strict=True):
        for step in contents.rerun:
            live = [i for i in (*chain.made_by(step), *chain.read_by(step)) if i in contents.remade]
            frees = (i for i in live if not chain.is_read_later(i, step, segment, contents))
            takes = tuple(i for i in chain.made_by(step) if i in contents.remade)
            result.append(Action("rerun", step, takes, tuple(frees)))
        for step in reversed(range(segment.start, segment.stop)):
            frees = (i for i, last in dead.items() if last == step)
            frees_again = (i for i in contents.remade if chain.buffers[i].first_needed == step)
            gradients = (i for i, gradient in enumerate(chain.gradients) if gradient.free == step)
            result.append(Action("backward", step, (), (*frees, *frees_again), tuple(gradients)))
    return result


def moments(
    chain: Chain,
    segments: Sequence[Segment],
    forward: Sequence[Point],
    backward: Sequence[Sequence[Point]],
    limit: int | None = None,
) -> list[Moment]:
    """The memory of an iteration, moment by moment, with the points that each step runs by.

    Workspace is one piece that grows to what a step asks for and stays, unless that would lead past the limit: then the
    piece is given back first.
    """
    bare = list(_moments(chain, segments, forward, backward))
    held = 0
    result: list[Moment] = []
    for _ in range(2):  # the second iteration begins with what the first one left
        result = []
        for moment in bare:
            need = moment.workspace + chain.spare if moment.workspace else 0
            # a larger piece is made only after the smaller one is gone
            trims = limit is not None and need <= held and moment.bytes + held > limit
            held = need if trims or need > held else held
            result.append(moment._replace(trims=trims, held=held))
    return result


def _moments(
    chain: Chain, segments: Sequence[Segment], forward: Sequence[Point], backward: Sequence[Sequence[Point]]
) -> Iterator[Moment]:
    now = chain.constant
    is_there: set[int] = set()
    gradients: set[int] = set()
    for action in actions(chain, segments):
        step = chain.steps[action.step]
        for index in action.takes:
            assert index not in is_there, (action, chain.buffers[index])
            is_there.add(index)
            now += chain.buffers[index].bytes
        if action.direction != "backward":
            yield Moment(
                action.direction, action.step, 0, now + step.temporary, forward[action.step].workspace
            )
        else:
            for index, gradient in enumerate(chain.gradients):
                if gradient.taken == action.step:
                    gradients.add(index)
                    now += gradient.bytes
            points = backward[action.step] or NOTHING
            for part, point in enumerate(points):
                yield Moment("backward", action.step, part, now + step.backward_temporary, point.workspace)
        for index in action.frees:
            if index in is_there:
                is_there.remove(index)
                now -= chain.buffers[index].bytes
        for index in action.frees_gradients:
            gradients.remove(index)
            now -= chain.gradients[index].bytes
    assert not is_there, [chain.buffers[index] for index in is_there]
    assert not gradients, [chain.gradients[index] for index in gradients]


def seconds(
    chain: Chain, segments: Sequence[Segment], forward: Sequence[Point], backward: Sequence[Sequence[Point]]
) -> float:
    """The time of an iteration."""
    rerun = (step for segment in segments for step in chain.contents(segment).rerun)
    return (
        sum(point.seconds for point in forward)
        + sum(point.seconds for points in backward for point in points)
        + sum(forward[step].seconds for step in rerun)
    )
