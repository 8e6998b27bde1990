"""Pareto fronts of time against workspace: the published example, brute force, and what must hold of any front."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument
from jitdnn.planner.fronts import (
    POLICIES,
    Point,
    even_sizes,
    fastest,
    front,
    in_turn,
    micro_batches,
    sizes,
)

MIB = 1 << 20
INSTANCES = 10_000

points = st.lists(
    st.builds(Point, st.integers(1, 40).map(float), st.integers(0, 12), st.integers(0, 99)), max_size=5
)
singles_of = st.dictionaries(st.integers(1, 12), points, max_size=6)


def combinations(total: int, ways: Sequence[tuple[int, Point]]) -> Iterator[list[Point]]:
    """Every multiset of ways whose sizes sum to the total."""
    if total == 0:
        yield []
    for start, (size, point) in enumerate(ways):
        if size <= total:
            for others in combinations(total - size, ways[start:]):
                yield [point, *others]


def brute_force(
    total: int, singles: Mapping[int, Sequence[Point]], limit: int | None
) -> list[tuple[float, int, int]]:
    """(seconds, workspace, parts) of every division that no other beats, of equal ones that with the fewest parts."""
    ways = [
        (size, point)
        for size, found in singles.items()
        for point in found
        if limit is None or point.workspace <= limit
    ]
    results = {
        (math.fsum(p.seconds for p in parts), max(p.workspace for p in parts), len(parts))
        for parts in combinations(total, ways)
    }
    return sorted(
        (
            mine
            for mine in results
            if not any(
                (other[0] <= mine[0] and other[1] < mine[1])
                or (other[0] < mine[0] and other[1] <= mine[1])
                or (other[:2] == mine[:2] and other[2] < mine[2])
                for other in results
            )
        ),
        key=lambda result: result[1],
    )


def instance(rng: random.Random) -> tuple[int, dict[int, list[Point]], int | None]:
    """Half of them with few different times, so that there are ties; gaps in the sizes, and limits."""
    total = rng.randint(1, 9)
    has_ties = rng.random() < 0.5
    singles = {}
    for size in range(1, total + 2):
        if rng.random() < 0.7:
            singles[size] = [
                Point(
                    float(rng.randint(1, 9)) if has_ties else rng.uniform(0.5, 2 + size), rng.randint(0, 6), n
                )
                for n in range(rng.randint(0, 3))
            ]
    return total, singles, rng.choice([None, None, rng.randint(0, 6)])


class TestMicroBatches:
    def test_published_example(self) -> None:
        singles = {
            1 << n: [
                Point(0.1 * (1 << n) + 0.01, (1 << n) * MIB, "fast"),
                Point(10 * (1 << n) + 0.1, 1 << n, "slow"),
            ]
            for n in range(9)
        }
        # the published limit of 64 MiB is exclusive
        found = micro_batches(256, singles, 64 * MIB - 1)
        assert [(round(p.seconds, 9), p.workspace, len(p.what)) for p in reversed(found)] == [
            (25.68, 33554432, 8),
            (25.76, 16777216, 16),
            (25.92, 8388608, 32),
            (26.24, 4194304, 64),
            (26.88, 2097152, 128),
            (28.16, 1048576, 256),
            (2560.10, 256, 1),
            (2560.20, 128, 2),
            (2560.40, 64, 4),
            (2560.80, 32, 8),
            (2561.60, 16, 16),
            (2563.20, 8, 32),
            (2566.40, 4, 64),
            (2572.80, 2, 128),
            (2585.60, 1, 256),
        ]
        assert found[-1].what == ((32, "fast"),) * 8
        assert micro_batches(256, singles, 64 * MIB)[-1].what == ((64, "fast"),) * 4

    @pytest.mark.parametrize("seed", range(4))
    def test_brute_force(self, seed: int) -> None:
        rng = random.Random(seed)
        feasible = divided = 0
        for _ in range(INSTANCES // 4):
            total, singles, limit = instance(rng)
            found = micro_batches(total, singles, limit)
            expected = brute_force(total, singles, limit)
            assert [(p.workspace, len(p.what)) for p in found] == [result[1:] for result in expected]
            assert [p.seconds for p in found] == [result[0] for result in expected]
            best = fastest(total, singles, limit)
            if best is None:
                assert not expected
            else:
                assert best.seconds == expected[-1][0]
                assert best.workspace >= expected[-1][1]
                assert len(best.what) <= expected[-1][2]
            feasible += bool(found)
            divided += any(len(p.what) > 1 for p in found)
        assert feasible > INSTANCES // 8
        assert divided > INSTANCES // 16

    @given(st.integers(1, 12), singles_of, st.none() | st.integers(0, 12))
    def test_what_holds_of_any(self, total: int, singles: dict[int, list[Point]], limit: int | None) -> None:
        found = micro_batches(total, singles, limit)
        assert found == front(found)
        for way in found:
            assert sum(size for size, _ in way.what) == total
            assert sorted((size for size, _ in way.what), reverse=True) == [size for size, _ in way.what]
            choices = [
                [p for p in singles[size] if p.what == what and p.workspace <= way.workspace]
                for size, what in way.what
            ]
            assert all(choices)
            least = sum(min(p.seconds for p in choice) for choice in choices)
            assert way.seconds == least
            assert limit is None or way.workspace <= limit
        # another byte of limit never costs time
        by_limit = [fastest(total, singles, allowed) for allowed in range(13)]
        for less, more in pairwise(by_limit):
            assert less is None or (more is not None and more.seconds <= less.seconds)
        if limit is not None:
            best = by_limit[limit]
            assert (best is None) == (not found)
            assert best is None or best.seconds == found[-1].seconds

    def test_a_tie_goes_to_fewer_parts_even_if_the_times_only_differ_by_rounding(self) -> None:
        # in floats 3 * 0.1 > 0.3: whichever way the rounding goes, one part of 3 or of 6 is as good
        singles = {size: [Point(0.1 * size, 8, "a")] for size in range(1, 65)}
        for total in (3, 6, 7, 31, 64):
            assert micro_batches(total, singles)[-1].what == ((total, "a"),)
            best = fastest(total, singles, None)
            assert best is not None
            assert best.what == ((total, "a"),)

    def test_a_gain_by_rounding_is_not_worth_workspace(self) -> None:
        singles = {1: [Point(0.1, 1, "small")], 3: [Point(math.nextafter(0.3, 0), 1000, "large")]}
        assert [p.workspace for p in micro_batches(3, singles)] == [1]

    def test_fewer_parts_come_before_less_workspace(self) -> None:
        singles = {1: [Point(1.0, 0, "one")], 2: [Point(2.0, 7, "two"), Point(2.0, 9, "worse")]}
        assert micro_batches(2, singles) == (Point(2.0, 0, ((1, "one"), (1, "one"))),)
        assert fastest(2, singles, None) == Point(2.0, 7, ((2, "two"),))
        assert fastest(2, singles, 6) == Point(2.0, 0, ((1, "one"), (1, "one")))

    def test_of_as_many_parts_that_with_less_workspace(self) -> None:
        singles = {1: [Point(1.0, 9, "a")], 3: [Point(3.0, 1, "b")], 2: [Point(2.0, 4, "c")]}
        assert fastest(4, singles, None) == Point(4.0, 4, ((2, "c"), (2, "c")))
        # 0.1 + 0.7 < 0.4 + 0.4 in floats, but that is rounding
        tenths = {1: [Point(0.1, 9, "a")], 7: [Point(0.7, 9, "b")], 4: [Point(0.4, 1, "c")]}
        assert fastest(8, tenths, None) == Point(0.8, 1, ((4, "c"), (4, "c")))

    def test_sizes_that_do_not_compose(self) -> None:
        singles = {3: [Point(1.0, 0, "a")], 5: [Point(1.0, 0, "b")]}
        assert [bool(micro_batches(n, singles)) for n in range(1, 11)] == [
            n not in (1, 2, 4, 7) for n in range(1, 11)
        ]
        assert [fastest(n, singles, None) is not None for n in range(1, 11)] == [
            n not in (1, 2, 4, 7) for n in range(1, 11)
        ]

    def test_nothing_to_choose_from(self) -> None:
        tables: list[dict[int, list[Point]]] = [
            {},
            {1: []},
            {9: [Point(1.0, 0, "too large")]},
            {2: [Point(1.0, 50, "over")]},
        ]
        for singles in tables:
            assert micro_batches(4, singles, 49) == ()
            assert fastest(4, singles, 49) is None

    @pytest.mark.parametrize("function", [micro_batches, fastest])
    def test_what_is_wrong(self, function: object) -> None:
        assert callable(function)
        with pytest.raises(InvalidArgument, match="0 cannot be divided: it must be at least 1"):
            function(0, {}, None)
        with pytest.raises(InvalidArgument, match="a part has size 0: it must be at least 1"):
            function(4, {0: [], 1: []}, None)

    def test_a_batch_of_256_with_every_size(self) -> None:
        rng = random.Random(7)
        singles = {
            size: [
                Point(
                    size * (1 + rng.random()) * 2**-n + 0.3 * n,
                    int(size * 1000 * 4**n * (1 + rng.random())),
                    n,
                )
                for n in range(6)
            ]
            for size in sizes(256, "all")
        }
        start = process_time()
        found = micro_batches(256, singles)
        best = fastest(256, singles, None)
        # 0.06 s here; the bound is for a machine that is busy with something else
        assert process_time() - start < 2
        assert best is not None
        assert math.isclose(best.seconds, found[-1].seconds, rel_tol=1e-9)
        assert len(found) > 10
        for way in found[:: len(found) // 8]:
            again = fastest(256, singles, way.workspace)
            assert again is not None
            assert math.isclose(again.seconds, way.seconds, rel_tol=1e-9)


class TestFront:
    def test_drops_what_is_beaten(self) -> None:
        a, b, c = Point(3.0, 0, "a"), Point(2.0, 5, "b"), Point(1.0, 9, "c")
        beaten = [Point(3.0, 1, "d"), Point(2.5, 5, "e"), Point(2.0, 5, "f"), Point(1.0, 10, "g")]
        assert front([c, b, *beaten, a]) == (a, b, c)
        assert front([]) == ()

    @given(points)
    def test_keeps_whatever_is_not(self, given_points: list[Point]) -> None:
        found = front(given_points)
        assert all(p.workspace < q.workspace and p.seconds > q.seconds for p, q in pairwise(found))
        assert front(found) == found
        for point in given_points:
            assert any(p.seconds <= point.seconds and p.workspace <= point.workspace for p in found)


class TestInTurn:
    @given(st.lists(points, max_size=4))
    def test_brute_force(self, fronts: list[list[Point]]) -> None:
        found = in_turn(fronts)
        expected = front(
            Point(sum(p.seconds for p in way), max((p.workspace for p in way), default=0), None)
            for way in product(*fronts)
        )
        assert [p[:2] for p in found] == [p[:2] for p in expected]
        for way in found:
            assert len(way.what) == len(fronts)

    def test_whats_are_in_order(self) -> None:
        a = [Point(2.0, 0, "a0"), Point(1.0, 4, "a4")]
        b = [Point(5.0, 2, "b2"), Point(3.0, 3, "b3")]
        assert in_turn([a, b]) == (
            Point(7.0, 2, ("a0", "b2")),
            Point(5.0, 3, ("a0", "b3")),
            Point(4.0, 4, ("a4", "b3")),
        )


class TestSizes:
    def test_policies(self) -> None:
        assert POLICIES == ("undivided", "power_of_two", "all")
        assert sizes(100, "undivided") == (100,)
        assert sizes(100, "power_of_two") == (100, 64, 32, 16, 8, 4, 2, 1)
        assert sizes(64, "power_of_two") == (64, 32, 16, 8, 4, 2, 1)
        assert sizes(4, "all") == (4, 3, 2, 1)
        for policy in POLICIES:
            assert sizes(1, policy) == (1,)

    def test_what_is_wrong(self) -> None:
        with pytest.raises(
            InvalidArgument, match="'powerOfTwo': it must be one of undivided, power_of_two, all"
        ):
            sizes(4, "powerOfTwo")
        with pytest.raises(InvalidArgument, match="0 cannot be divided"):
            sizes(0, "all")

    @given(st.integers(1, 200), st.data())
    def test_even_sizes(self, extent: int, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, extent))
        found = even_sizes(extent, count)
        assert len(found) == count
        assert sum(found) == extent
        assert max(found) - min(found) <= 1
        assert list(found) == sorted(found, reverse=True)

    def test_too_many_even_sizes(self) -> None:
        for count in (0, 4):
            with pytest.raises(
                InvalidArgument, match=f"3 cannot be divided into {count} parts: choose from 1 to 3"
            ):
                even_sizes(3, count)
