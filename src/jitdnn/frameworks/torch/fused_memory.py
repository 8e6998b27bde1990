"""A limit on the memory of a fused graph: which filters are prepared once and kept, and which anew by each call.

A prepared filter is a copy of its own, several times as large as the filter where Winograd's transform made it. Under a
limit every convolution and product says first in which ways it can run, with what each keeps and needs; then the bytes
that are left go where they save most time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import survey
from jitdnn.problems.problem import Problem
from jitdnn.settings import format_bytes, parse_bytes

_TRIES = 4  # graphs that are made for one limit, each with less for its filters than the one before


@dataclass(frozen=True)
class Footprint:
    """Bytes that a fused graph takes above the model and its inputs, for one kind of inputs and one call at a time.

    `filters`: prepared and kept. `arena`: results that do not leave the graph, kept. `workspace`: scratch memory of
    kernels, kept. `results`: what operators of PyTorch's and the graph itself give, for the time of a call.
    """

    filters: int
    arena: int
    workspace: int
    results: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.filters + self.arena + self.workspace + self.results

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.bytes)}: {format_bytes(self.filters)} of prepared filters, {format_bytes(self.arena)} "
            f"of results inside, {format_bytes(self.workspace)} of workspace, {format_bytes(self.results)} of results "
            "of PyTorch's operators and of the graph"
        )


class Way(NamedTuple):
    """One way to run a convolution or product: expected seconds, bytes of a filter that it keeps, bytes of scratch
    memory, and what asks the planner for it."""

    seconds: float
    kept: int
    scratch: int
    request: Request


def _cost(way: Way) -> tuple[float, int, int]:
    return way.seconds, way.kept, way.scratch


def ways(problem: Problem, handle: Handle, epilogue: Epilogue | None) -> list[Way]:
    """All ways. Raises NotSupported where there is none."""
    asked = Request.of(handle.settings)
    plain = survey(problem, handle.device, asked, epilogue, Store.default())
    keeping = survey(problem, handle.device, replace(asked, keeps_filter=True), epilogue, Store.default())
    found = []
    for one in plain:
        if one.is_open:
            found.append(Way(one.seconds, 0, one.workspace, replace(asked, algorithm=one.algorithm.name)))
    for one, other in zip(keeping, plain, strict=True):
        if one.is_open and one.algorithm is not other.algorithm:  # it prepares something
            request = replace(asked, algorithm=one.algorithm.name, keeps_filter=True)
            found.append(Way(one.seconds, one.workspace, 0, request))  # what it keeps is in its workspace
    if not found:
        reasons = {one.algorithm.name: one.summary.refused or "" for one in plain}
        raise NotSupported(f"no algorithm takes {problem} with {asked} on {handle.device.name}:", reasons)
    return found


@dataclass(frozen=True)
class Budget:
    """What kernels of a graph may keep and need: `scratch` bytes for all, `kept` bytes each by the name of its node."""

    scratch: int
    kept: Mapping[str, int]

    def request(self, name: str, problem: Problem, handle: Handle, epilogue: Epilogue | None) -> Request:
        """What to ask the planner for: the fastest way within the budget. Raises NotSupported where there is none."""
        most = self.kept.get(name, 0)
        open_ways = [
            way
            for way in ways(problem, handle, epilogue)
            if way.kept <= most and (way.kept or way.scratch <= self.scratch)
        ]
        if not open_ways:
            raise NotSupported(f"{problem} needs more than {format_bytes(self.scratch)} of workspace", {})
        return min(open_ways, key=_cost).request


@dataclass
class Listing:
    """What the convolutions and products of a graph can do, by the names of their nodes; nothing of them is run."""

    ways: dict[str, list[Way]] = field(default_factory=dict)

    def add(self, name: str, problem: Problem, handle: Handle, epilogue: Epilogue | None) -> None:
        """Note one. Raises NotSupported where there is no way to run it."""
        self.ways[name] = ways(problem, handle, epilogue)

    @property
    def least(self) -> int:
        """The least bytes that all can do with: the scratch memory of the one that needs most."""
        return max((min(way.scratch for way in own if not way.kept) for own in self.ways.values()), default=0)

    def budget(self, bytes: int) -> Budget:
        """The fastest division of so many bytes, or of `least` where that is more, into filters that are kept and
        scratch memory that all share."""
        return min(self._divisions(bytes), key=lambda one: one[0])[1]

    def _divisions(self, bytes: int) -> list[tuple[float, Budget]]:
        """A division for each amount of scratch memory, with its seconds.

        Filters are kept in the order of the time that a byte of them saves.
        """
        least = self.least
        amounts = {way.scratch for own in self.ways.values() for way in own if least < way.scratch <= bytes}
        found = []
        for scratch in sorted({least, *amounts}):
            chosen = {
                name: min((way for way in own if not way.kept and way.scratch <= scratch), key=_cost)
                for name, own in self.ways.items()
            }
            left = bytes - scratch
            savings = sorted(
                (
                    ((chosen[name].seconds - way.seconds) / way.kept, name, way)
                    for name, own in self.ways.items()
                    for way in own
                    if way.kept and way.seconds < chosen[name].seconds
                ),
                key=lambda saving: (-saving[0], saving[1]),
            )
            for _, name, way in savings:
                before = chosen[name]
                if way.seconds < before.seconds and way.kept - before.kept <= left:
                    left -= way.kept - before.kept
                    chosen[name] = way
            seconds = sum(way.seconds for way in chosen.values())
            found.append((seconds, Budget(scratch, {name: way.kept for name, way in chosen.items()})))
        return found


class Limited(Protocol):
    """What a limit holds for."""

    @property
    def footprint(self) -> Footprint:
        """What it takes."""


Made = TypeVar("Made", bound=Limited)


def within(
    limit: int | str, what: str, listed: Callable[[], tuple[Listing, int]], make: Callable[[Budget], Made]
) -> Made:
    """What `make` gives for a budget by which it takes no more than `limit` bytes, or "least".

    `listed` gives what the kernels can do, and the least bytes of all else. Raises InvalidArgument, with what
    would do, for a limit that is too small; `what` names the graph.
    """
    listing, fixed = listed()
    if limit == "least":
        return make(listing.budget(0))
    most = parse_bytes(limit)
    assert most is not None
    over = 0
    for _ in range(_TRIES):
        room = most - fixed - over
        if room < listing.least:
            break
        made = make(listing.budget(room))
        taken = made.footprint.bytes
        if taken <= most:
            return made
        over += taken - most
        del made
    # torch's operators in the place of ours have results of their own, and not every kernel may overwrite an operand
    smallest = make(listing.budget(0))
    least = smallest.footprint.bytes
    if least <= most:
        return smallest
    raise InvalidArgument(
        f"{what} takes at least {format_bytes(least)} ({least} bytes) above its weights and inputs for inputs of this "
        f'kind, and memory_limit is {format_bytes(most)}: give it more, "least", or smaller batches'
    )


def checked(memory_limit: int | str | None) -> int | str | None:
    """A limit as it was given: bytes, "least" or None. Raises InvalidArgument for what is none of these."""
    return "least" if memory_limit == "least" else parse_bytes(memory_limit)
