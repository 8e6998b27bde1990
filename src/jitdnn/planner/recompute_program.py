"""The integer program that cuts a chain into segments and chooses a point of its front for every step.

Variables: y_s, 1 if segment s is one of those that the chain is cut into (a path from the first step to the last, so
every step lies in exactly one); x_tp, 1 if step t runs by point p of its front, forward, and of each front of its
backward pass; z_tp, which is x_tp if the step runs twice, else 0; and e_b, 1 if buffer b is kept for the rerun of a
later segment alone. Least is the sum of seconds. For every moment (a step forward, again or backward)

    sum over the segments y_s * (bytes that s has there then) + sum e_b * bytes + workspace by x or z <= limit

which needs no large constants, since of the segments that a step can lie in exactly one is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.errors import needed
from jitdnn.planner.fronts import Point
from jitdnn.planner.recompute_chain import Chain, Contents, Segment

# A rerun begins and ends at one of this many places, those where the least memory lies between two steps: the
# program grows with their square.
MOST_CUTS = 40
_SECONDS = 30.0  # after which the best plan found so far is taken
_GAP = 1e-4


def segments_of(chain: Chain) -> list[Segment]:
    """The segments to choose among: every step by itself, and all that save something by a rerun."""
    steps = len(chain.steps)
    between = [
        sum(b.bytes for b in chain.buffers if b.made < cut and any(r >= cut for r in (*b.read, *b.needed)))
        for cut in range(1, steps)
    ]
    best = sorted(range(1, steps), key=lambda cut: between[cut - 1])[:MOST_CUTS]
    cuts = sorted({0, steps, *best})
    result = [Segment(step, step + 1) for step in range(steps)]
    for position, start in enumerate(cuts):
        for stop in cuts[position + 1 :]:
            segment = Segment(start, stop, is_rerun=True)
            if chain.contents(segment).rerun:
                result.append(segment)
    return result


class Program:
    """The program of a chain; `solve` runs it."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.segments = segments_of(chain)
        self.contents = [chain.contents(segment) for segment in self.segments]
        self._count = 0
        self._costs: list[float] = []
        self._integer: list[bool] = []
        # rows: {variable: coefficient}, lower, upper
        self._rows: list[tuple[dict[int, float], float, float]] = []
        # moments: {variable: bytes}, bytes that are there in any case
        self._moments: list[tuple[dict[int, float], float]] = []

        y_costs = [
            sum(chain.steps[t].forward[0].seconds for t in contents.rerun if len(chain.steps[t].forward) == 1)
            for contents in self.contents
        ]
        self.y = [self._add(cost) for cost in y_costs]
        self._path()
        self.x: list[list[int]] = [self._points(step.forward) for step in chain.steps]
        self.x_back = [[self._points(front) for front in step.backward] for step in chain.steps]
        self.z = [self._reruns(step) for step in range(len(chain.steps))]
        self._kept_for_others()
        self._memory()

    def solve(self, limit: int | None) -> tuple[list[Segment], list[Point], list[list[Point]]] | None:
        """The fastest choice within the limit, or, with None, the one that needs the least memory.

        None if nothing fits. Raises NotSupported without SciPy.
        """
        with needed(
            "planning under a limit on memory needs SciPy, which is not installed: pip install scipy"
        ):
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import csr_array
        count = self._count + 1  # the last is the largest sum of bytes, in units
        unit = max(1.0, limit / 1000 if limit else max(sum(row.values()) for row, _ in self._moments) / 1000)
        upper = np.ones(count)
        upper[-1] = np.inf if limit is None else limit / unit
        costs = np.zeros(count)
        if limit is None:
            costs[-1] = 1.0
        else:
            costs[:-1] = self._costs
            costs /= max(float(costs.sum()), 1e-30) / 1000
        rows = [(row, low, high) for row, low, high in self._rows]
        for row, fixed in self._moments:
            scaled = {variable: value / unit for variable, value in row.items()}
            scaled[count - 1] = -1.0
            rows.append((scaled, -np.inf, -fixed / unit))
        indptr = np.cumsum([0, *(len(row) for row, _, _ in rows)])
        indices = np.fromiter((variable for row, _, _ in rows for variable in row), np.int64)
        values = np.fromiter((value for row, _, _ in rows for value in row.values()), np.float64)
        matrix = csr_array((values, indices, indptr), shape=(len(rows), count))
        result: Any = milp(
            costs,
            integrality=np.array([*self._integer, False], dtype=np.int64),
            bounds=Bounds(np.zeros(count), upper),
            constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
            options={"time_limit": _SECONDS, "mip_rel_gap": _GAP},
        )
        return None if result.x is None else self._read(result.x)

    def _read(self, values: Any) -> tuple[list[Segment], list[Point], list[list[Point]]]:
        taken = [segment for segment, y in zip(self.segments, self.y, strict=True) if values[y] > 0.5]

        def pick(front: Sequence[Point], x: list[int]) -> Point:
            return front[int(np.argmax(values[x]))] if len(x) else front[0]

        steps = self.chain.steps
        forward = [pick(step.forward, x) for step, x in zip(steps, self.x, strict=True)]
        backward = [
            [pick(front, x) for front, x in zip(step.backward, fronts, strict=True)]
            for step, fronts in zip(steps, self.x_back, strict=True)
        ]
        return sorted(taken, key=lambda segment: segment.start), forward, backward

    # ---- building

    def _add(self, cost: float = 0.0, *, is_integer: bool = True) -> int:
        self._costs.append(cost)
        self._integer.append(is_integer)
        self._count += 1
        return self._count - 1

    def _path(self) -> None:
        """From the first step to the last: as many segments end at a place as begin there."""
        positions: dict[int, dict[int, float]] = defaultdict(dict)
        for segment, y in zip(self.segments, self.y, strict=True):
            positions[segment.start][y] = 1.0
            positions[segment.stop][y] = -1.0
        last = len(self.chain.steps)
        for position, row in positions.items():
            flow = 1.0 if position == 0 else -1.0 if position == last else 0.0
            self._rows.append((row, flow, flow))

    def _points(self, front: Sequence[Point]) -> list[int]:
        """One variable for each point, of which one is 1; none where there is no choice."""
        if len(front) == 1:
            return []
        x = [self._add(point.seconds) for point in front]
        self._rows.append((dict.fromkeys(x, 1.0), 1.0, 1.0))
        return x

    def _reruns(self, step: int) -> list[int]:
        """Variables that are x where the step runs twice: they add up to 1 there, and none exceeds its x."""
        x = self.x[step]
        if not x:
            return []
        runs = [y for y, contents in zip(self.y, self.contents, strict=True) if step in contents.rerun]
        if not runs:
            return []
        z = [self._add(point.seconds, is_integer=False) for point in self.chain.steps[step].forward]
        self._rows.append((dict.fromkeys(z, 1.0) | dict.fromkeys(runs, -1.0), 0.0, 0.0))
        for one, other in zip(z, x, strict=True):
            self._rows.append(({one: 1.0, other: -1.0}, -np.inf, 0.0))
        return z

    def _kept_for_others(self) -> None:
        """e_b for buffers that their own segment may not keep, though a later one reads them when it runs again."""
        self.e: dict[int, int] = {}
        for index, buffer in enumerate(self.chain.buffers):
            if not buffer.needed:
                continue  # kept for nobody else: charged to the segment that reads it
            keeps = [
                y
                for segment, contents, y in zip(self.segments, self.contents, self.y, strict=True)
                if segment.start <= buffer.made < segment.stop and index in contents.kept
            ]
            for reader in set(buffer.read):
                uses = [
                    y
                    for segment, contents, y in zip(self.segments, self.contents, self.y, strict=True)
                    if segment.start <= reader < segment.stop and index in contents.used
                ]
                if uses:
                    if index not in self.e:
                        self.e[index] = self._add(is_integer=False)
                    row = dict.fromkeys(uses, 1.0) | dict.fromkeys(keeps, -1.0) | {self.e[index]: -1.0}
                    self._rows.append((row, -np.inf, 0.0))

    def _memory(self) -> None:
        chain = self.chain
        count = len(chain.steps)
        forward: list[dict[int, float]] = [defaultdict(float) for _ in range(count)]
        again: list[dict[int, float]] = [defaultdict(float) for _ in range(count)]
        back: list[dict[int, float]] = [defaultdict(float) for _ in range(count)]
        fixed = np.zeros((2, count))
        for buffer in chain.buffers:
            fixed[0, buffer.made : buffer.last_read + 1] += buffer.bytes
        for gradient in chain.gradients:
            fixed[1, gradient.free : gradient.taken + 1] += gradient.bytes
        for segment, contents, y in zip(self.segments, self.contents, self.y, strict=True):
            self._of_segment(segment, contents, y, forward, again, back)
        for index, e in self.e.items():
            buffer = chain.buffers[index]
            for t in range(max(buffer.made + 1, buffer.first_needed), count):
                back[t][e] = again[t][e] = buffer.bytes
            for t in range(buffer.last_read + 1, count):
                forward[t][e] = buffer.bytes
        for t, step in enumerate(chain.steps):
            base = chain.constant + fixed[0, t] + step.temporary
            self._moment(forward[t], base, step.forward, self.x[t])
            if again[t] and any(t in contents.rerun for contents in self.contents):
                self._moment(again[t], chain.constant, step.forward, self.z[t], is_rerun=t)
            base = chain.constant + fixed[1, t] + step.backward_temporary
            if not step.backward:
                self._moment(back[t], base, (), [])
            for front, x in zip(step.backward, self.x_back[t], strict=True):
                self._moment(back[t], base, front, x)

    def _of_segment(
        self,
        segment: Segment,
        contents: Contents,
        y: int,
        forward: list[dict[int, float]],
        again: list[dict[int, float]],
        back: list[dict[int, float]],
    ) -> None:
        """Add the bytes that the segment has at every moment."""
        chain, count = self.chain, len(self.chain.steps)
        buffers = chain.buffers
        dead = {index: chain.dead_after(index, segment, contents) for index in contents.kept}
        for index in contents.kept:
            for t in range(buffers[index].last_read + 1, count):
                forward[t][y] += buffers[index].bytes
            for t in range(dead[index], count):
                back[t][y] += buffers[index].bytes
                if t >= segment.stop:
                    again[t][y] += buffers[index].bytes
        for index in contents.remade:
            if buffers[index].first_needed < segment.stop:
                for t in range(buffers[index].first_needed, segment.stop):
                    back[t][y] += buffers[index].bytes
        for index in contents.used:
            # from where its own segment needs it, if at all, it is that one's (or e's)
            until = min(count, buffers[index].first_needed)
            for t in range(segment.start, until):
                back[t][y] += buffers[index].bytes
                again[t][y] += buffers[index].bytes
            if not buffers[index].needed:
                for t in range(buffers[index].last_read + 1, count):
                    forward[t][y] += buffers[index].bytes
        if not contents.rerun:
            return
        stop = segment.stop
        inside = sum(buffers[index].bytes for index in contents.kept if dead[index] < stop)
        inside += sum(g.bytes for g in chain.gradients if g.taken >= stop and g.free < stop)
        for step in contents.rerun:
            bytes = inside + chain.steps[step].temporary
            for index in contents.remade:
                made = buffers[index].made
                is_there = made == step or (
                    made < step and chain.is_read_later(index, step - 1, segment, contents)
                )
                if is_there:
                    bytes += buffers[index].bytes
            # of earlier segments what this one needs further down, and this step's row does not count
            bytes += sum(
                b.bytes
                for i, b in enumerate(buffers)
                if b.made < segment.start and step < b.first_needed < stop and i not in contents.used
            )
            if len(chain.steps[step].forward) == 1:
                bytes += self._workspace(chain.steps[step].forward[0])
            again[step][y] += bytes

    def _workspace(self, point: Point) -> int:
        return point.workspace + self.chain.spare if point.workspace else 0

    def _moment(
        self,
        row: dict[int, float],
        fixed: float,
        front: Sequence[Point],
        x: list[int],
        is_rerun: int | None = None,
    ) -> None:
        row = dict(row)
        if x:
            for variable, point in zip(x, front, strict=True):
                if point.workspace:
                    row[variable] = self._workspace(point)
        elif is_rerun is None and front:
            fixed += self._workspace(front[0])
        self._moments.append((row, fixed))
