"""One budget of workspace for several handles."""

from __future__ import annotations

import gc
import threading

import pytest

import jitdnn
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.planner.fronts import Point
from jitdnn.planner.shares import Shares
from jitdnn.problems import parse

TEXT = "conv_bwd_filter n12 c48 h13 w11 k64 r3 s3 pad1 f32 nchw"


class Owner:
    def __init__(self) -> None:
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    def trim(self) -> None:
        pass


STEEP = (Point(10.0, 0, "slow"), Point(1.0, 60, "fast"))
FLAT = (Point(10.0, 0, "slow"), Point(9.0, 60, "fast"))


def test_the_only_handle_may_use_all() -> None:
    shares, one = Shares(100), Owner()

    def never() -> tuple[Point, ...]:
        raise AssertionError("there is nothing to divide")

    assert shares.limit(one, "a", never) == 100
    assert shares.limit(one, "b", never) == 100
    assert one.forgotten == 0


def test_it_goes_where_it_gains_most() -> None:
    shares, one, other = Shares(100), Owner(), Owner()
    shares.limit(one, "a", lambda: FLAT)
    assert shares.limit(other, "b", lambda: STEEP) == 60
    assert shares.limit(one, "a", lambda: FLAT) == 0
    assert (one.forgotten, other.forgotten) == (1, 0)
    # one arena serves all that a handle runs
    assert (
        shares.limit(one, "c", lambda: tuple(Point(p.seconds * 100, p.workspace, p.what) for p in STEEP))
        == 60
    )
    assert other.forgotten == 1


def test_a_handle_that_is_gone_leaves_its_share() -> None:
    shares, one, other = Shares(100), Owner(), Owner()
    shares.limit(other, "b", lambda: STEEP)
    assert shares.limit(one, "a", lambda: FLAT) == 0
    del other
    gc.collect()
    assert shares.limit(one, "c", lambda: FLAT) == 100


def test_a_budget_that_is_too_small_is_an_error() -> None:
    shares, one, other = Shares(10), Owner(), Owner()
    shares.limit(other, "b", lambda: STEEP)
    with pytest.raises(InvalidArgument, match="60"):
        shares.limit(one, "a", lambda: (Point(1.0, 60, "all"),))


def test_plans_keep_to_a_budget() -> None:
    with jitdnn.settings(cache=False):
        unlimited = jitdnn.plan(TEXT, handle=Handle()).workspace
        with jitdnn.settings(total_workspace=unlimited // 2):
            one = Handle()
            assert 0 < jitdnn.plan(TEXT, handle=one).workspace <= unlimited // 2
            assert len(jitdnn.plan(TEXT, handle=one).parts) > 1
            other = Handle()
            arenas = [jitdnn.plan(TEXT, handle=each).workspace for each in (other, one, other)]
            assert arenas[0] == arenas[2]
            assert arenas[0] + arenas[1] <= unlimited // 2


def test_threads_have_arenas_of_their_own() -> None:
    needs: list[int] = []
    barrier = threading.Barrier(2)

    def work() -> None:
        with jitdnn.settings(total_workspace="1 MiB", cache=False), Handle() as handle:
            barrier.wait()
            handle.plan(parse(TEXT))
            barrier.wait()
            needs.append(handle.plan(parse(TEXT)).workspace)
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(needs) == 2
    assert sum(needs) <= 1 << 20


def test_ever_new_problems_do_not_fill_the_memory() -> None:
    class Plan:
        pass

    shares, one, other = Shares(100), Owner(), Owner()
    used = Plan()
    shares.limit(one, "used", lambda: STEEP)
    shares.made(one, "used", used)
    for number in range(50):
        shares.limit(one, number, lambda: STEEP, most=8)
        shares.made(one, number, Plan())  # which is dropped at once
        assert len(shares._wanted[one]) <= 8
    assert "used" in shares._wanted[one], "there is a plan of it"
    shares.limit(other, "b", lambda: STEEP, most=8)
    shares.limit(one, "new", lambda: FLAT, most=8)
