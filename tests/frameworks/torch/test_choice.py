"""Never slower: which of the two runs, by times that these tests make up; what is stored; what is refused."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn as jd  # noqa: E402
import jitdnn.torch as jt  # noqa: E402
from fake_gpu import Gpu  # noqa: E402
from jitdnn.errors import DeviceError, InvalidArgument, NotSupported  # noqa: E402
from jitdnn.frameworks.torch import choice, functional, kinds  # noqa: E402
from jitdnn.frameworks.torch.options import Options, canonical, counting, handle_of, parse  # noqa: E402
from jitdnn.handle import Handle  # noqa: E402
from jitdnn.planner.plan import note_stand_in  # noqa: E402
from jitdnn.planner.store import Store  # noqa: E402
from jitdnn.problems.convolution import Convolution  # noqa: E402
from torch_kernels import random, watched  # noqa: E402

F = torch.nn.functional


class Clock:
    """In place of measuring: the times that it is told, and how often it was asked."""

    def __init__(self, seconds: float, stock_seconds: float) -> None:
        self.times = seconds, stock_seconds
        self.asked = 0

    def __call__(self, ours: Any, stock: Any, device: Any, clock: Any) -> tuple[float, float]:
        ours(), stock()  # both must run
        self.asked += 1
        return self.times


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    made = Store(tmp_path / "times.sqlite")
    monkeypatch.setattr(Store, "default", staticmethod(lambda: made))
    return made


def run(x: Any, w: Any) -> Any:
    with watched() as seen:
        torch.testing.assert_close(functional.conv(x, w), F.conv2d(x, w), rtol=1e-5, atol=1e-5)
    (kind,) = seen
    return kind


@pytest.mark.parametrize(
    ("seconds", "stock_seconds", "is_ours"), [(1.0, 2.0, True), (2.0, 1.0, False), (1.0, 1.0, True)]
)
def test_the_faster_runs_and_is_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, stock_seconds: float, is_ours: bool
) -> None:
    clock = Clock(seconds, stock_seconds)
    monkeypatch.setattr(choice, "_measured", clock)
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    kind = run(x, w)
    assert kind.decision.is_ours is is_ours
    assert kind.decision.reason.startswith("measured")
    assert (kind.decision.seconds, kind.decision.stock_seconds) == (seconds, stock_seconds)
    assert kind.decision.ratio == stock_seconds / seconds
    assert run(x, w) is kind  # known: neither measured nor looked up
    assert clock.asked == 1
    kinds.forget()  # as another process finds it
    monkeypatch.setattr(choice, "_measured", lambda *_: pytest.fail("measured again"))
    again = run(x, w)
    assert again is not kind
    assert again.decision.reason.startswith("stored")
    assert (again.decision.is_ours, again.decision.seconds) == (is_ours, seconds)


class Compiling:
    """A kernel that is being compiled until the test says otherwise."""

    name = "gemm"
    is_done = False

    def wait(self) -> None: ...
    def check(self) -> None: ...


def test_torchs_runs_until_ours_is_compiled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pending, run_plan, runs = Compiling(), Handle.run, []

    def run_meanwhile(self: Handle, *arguments: Any) -> None:
        runs.append(arguments)
        if not pending.is_done:
            note_stand_in(pending)
        run_plan(self, *arguments)

    clock = Clock(1.0, 2.0)
    monkeypatch.setattr(choice, "_measured", clock)
    monkeypatch.setattr(Handle, "run", run_meanwhile)
    x, w = random(1, 3, 5, 5), random(2, 3, 3, 3)
    kind = run(x, w)
    assert (kind.decision.is_ours, kind.decision.reason, clock.asked) == (False, "ours is being compiled", 0)
    assert len(runs) == 1
    assert run(x, w) is kind  # ours is not asked again
    assert len(runs) == 1
    assert store.rows() == [], "what stands in is not what would be measured"
    pending.is_done = True
    monkeypatch.setattr(kinds, "_is_capturing", lambda: True)
    assert run(x, w) is kind  # a capture is no time to measure
    monkeypatch.undo()
    monkeypatch.setattr(choice, "_measured", clock)
    with jd.settings(cache=False):
        again = run(x, w)
    assert (again.decision.is_ours, clock.asked) == (True, 1)
    assert run(x, w) is again


def test_the_loser_is_not_called(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for seconds, expected in (((1.0, 2.0), "ours"), ((2.0, 1.0), "stock")):
        ways = {name: (lambda *_, name=name: called.append(name)) for name in ("ours", "stock")}
        made = kinds.Ways(ways["ours"], ways["stock"], what=f"of a test {seconds}")
        computation = kinds.Computation("forward", lambda *_, made=made: made, 1)
        monkeypatch.setattr(choice, "_measured", Clock(*seconds))
        computation("", random(3))
        called.clear()
        for _ in range(3):
            computation("", random(3))
        assert called == [expected] * 3


def test_what_makes_another_kind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0, 2.0)
    monkeypatch.setattr(choice, "_measured", clock)
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    calls = [
        lambda: functional.conv(x, w),
        lambda: functional.conv(x[:, :, 1:], w),
        lambda: functional.conv(x.contiguous(memory_format=torch.channels_last), w),
        lambda: functional.conv(x.double(), w.double()),
        lambda: functional.conv(x, w, padding=1),
        lambda: functional.conv(x, w, random(3)),
        lambda: functional.conv(x, w, options="math=fp64"),
    ]
    for number, call in enumerate(calls, 1):
        for _ in range(2):
            call()
        assert clock.asked == number
    torch.set_num_threads(2)
    calls[0]()
    assert clock.asked == len(calls) + 1


def test_never_does_not_ask_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_measured", Clock(2.0, 1.0))
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    assert not run(x, w).decision.is_ours
    with watched() as seen:
        functional.conv(x, w, options="measure=never")
    assert seen[0].decision.is_ours
    assert seen[0].decision.seconds is None


def test_a_refusal_goes_to_torch_and_is_told_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def refuses(*_: Any) -> Any:
        raise NotSupported("ours cannot")

    made = kinds.Ways(refuses, lambda x: x + 1, what="of a test that refuses")
    for how in ("", "measure=never"):
        computation = kinds.Computation("forward", lambda *_: made, 1)
        caplog.clear()
        for _ in range(3):
            assert torch.equal(computation(how, torch.ones(2)), torch.full((2,), 2.0))
            kinds.forget()
        told = [record.message for record in caplog.records if "of a test that refuses" in record.message]
        assert len(told) == 1
        assert "ours cannot" in told[0]


def test_a_broken_device_is_no_refusal(store: Store) -> None:
    def breaks(*_: Any) -> Any:
        raise DeviceError("gone")

    made = kinds.Ways(breaks, lambda x: x, what="of a device")
    for how in ("", "measure=never"):
        with pytest.raises(DeviceError):
            kinds.Computation("forward", lambda *_: made, 1)(how, torch.ones(2))


def test_measuring_takes_both_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(choice, "_seconds", lambda run, calls, *_: run() or {"a": 3.0, "b": 2.0}[order[-1]])
    monkeypatch.setattr(choice, "_LONG", math.inf)
    monkeypatch.setattr(choice, "settle", lambda: None)
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    found = choice._measured(lambda: order.append("a"), lambda: order.append("b"), torch.device("cpu"))
    assert found == (3.0, 2.0)
    assert order[:4] == ["a", "b", "a", "b"]
    assert order[4:] == ["a", "a", "b", "b"] * choice._LEAST_ROUNDS


def test_long_calls_run_once_before_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(choice, "_seconds", lambda run, *_: run() or {"a": 0.5, "b": 1e-3}[order[-1]])
    monkeypatch.setattr(choice, "settle", lambda: order.append("settle"))
    found = choice._measured(lambda: order.append("a"), lambda: order.append("b"), torch.device("cpu"))
    assert found == (0.5, 1e-3)
    assert order == ["a", "b", "b", *["settle", "a", "settle", "b", "b"] * 2]


def test_time_that_others_have_the_core_takes_no_samples_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_seconds", lambda run, *_: run() or 1.0)
    monkeypatch.setattr(choice, "_LONG", math.inf)
    monkeypatch.setattr(choice, "settle", lambda: None)
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    called: list[int] = []
    ways = [lambda: called.append(0), lambda: called.append(1)]
    choice.least_seconds(ways, torch.device("cpu"), lambda: 0.0)  # the thread's own time stands still
    assert len(called) == 4 + 4 * choice._MOST_ROUNDS


@pytest.mark.parametrize(
    ("ours", "stock", "rounds"),
    [
        ([1.0, 1.4, 1.4], [3.0, 3.0, 3.0], 2),  # twice as fast in all samples
        ([3.0, 3.0, 3.0], [1.4, 1.0, 1.4], 2),
        ([1.0, 1.6, 1.0], [3.0, 3.0, 3.0], 3),  # a sample in which others had the core
        ([1.0, 1.0, 1.0], [3.0, 1.9, 3.0], 3),
        ([1.0, 1.0, 1.0], [1.9, 1.9, 1.9], 3),
    ],
)
def test_no_more_is_measured_than_tells_a_clear_winner(
    monkeypatch: pytest.MonkeyPatch, ours: list[float], stock: list[float], rounds: int
) -> None:
    called: list[str] = []
    warming = [0.0, 0.0]  # the first two of each do not count
    samples = {"a": iter([*warming, *ours]), "b": iter([*warming, *stock])}
    monkeypatch.setattr(choice, "_seconds", lambda run, calls, *_: run() or next(samples[called[-1]]))
    monkeypatch.setattr(choice, "_LONG", math.inf)
    monkeypatch.setattr(choice, "settle", lambda: None)
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    found = choice._measured(lambda: called.append("a"), lambda: called.append("b"), torch.device("cpu"))
    assert found == (min(ours[:rounds]), min(stock[:rounds]))
    assert called[4:] == ["a", "a", "b", "b"] * rounds


@pytest.mark.parametrize(
    ("ratio", "disturbed", "rounds"),
    [(1.3, 0, 3), (1 / 1.3, 0, 3), (1.1, 0, 5), (1.04, 0, 12), (1.3, 1, 12), (1.3, 2, 12), (2.1, 0, 2)],
)
def test_rounds_of_measuring_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, ratio: float, disturbed: int, rounds: int
) -> None:
    """One of two that are nearly as fast is told by more of them; so is one whose samples others disturbed."""
    called: list[str] = []
    count = [0, 0]

    def seconds(run: Any, calls: int, *_: Any) -> float:
        run()
        place = "ab".index(called[-1])
        count[place] += 1
        slow = 1.35 if count[0] == 4 and disturbed == 1 and ratio > 1 and not place else 1.0
        slow = 0.7 if count[1] == 4 and disturbed == 2 and place else slow
        return slow * (ratio if place else 1.0)

    monkeypatch.setattr(choice, "_seconds", seconds)
    monkeypatch.setattr(choice, "_LONG", math.inf)
    monkeypatch.setattr(choice, "settle", lambda: None)
    monkeypatch.setattr(choice, "SECONDS", 1e9)
    choice._measured(lambda: called.append("a"), lambda: called.append("b"), torch.device("cpu"))
    assert len(called) == 4 + 4 * rounds


@pytest.mark.parametrize(
    ("ours", "stock", "expected"),
    [
        ((41e-6, 5e-6), (23e-6, 9e-6), (41e-6, 23e-6)),  # small: the host decides, whatever the GPU says
        ((41e-6, 400e-6), (23e-6, 600e-6), (400e-6, 600e-6)),  # large: the host is through before the GPU
        ((41e-6, 30e-6), (23e-6, 50e-6), (41e-6, 50e-6)),  # between
        ((60e-6, 5e-3), (20e-6, 5.02e-3), (5e-3, 5.02e-3)),  # one call a sample, and no host in it
    ],
)
def test_on_a_gpu_the_larger_of_host_and_device_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch, ours: Any, stock: Any, expected: tuple[float, float]
) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(choice, "_device_name", lambda handle, device: "a GPU")
    ways = gpu.call(*ours), gpu.call(*stock)
    for how in ("measured", "stored"):
        found = choice.decide("a layer", handle_of(""), torch.device("cuda", 0), "first", *ways)
        assert (found.seconds, found.stock_seconds) == pytest.approx(expected)
        assert found.reason.startswith(how)
        assert found.is_ours is (expected[0] <= expected[1])
        alone = choice.decide("a layer", handle_of(""), torch.device("cuda", 0), "kernels", *ways)
        assert (alone.seconds, alone.stock_seconds) == pytest.approx((ours[1], stock[1]))
        assert alone.reason == f"stored: {'faster' if ours[1] <= stock[1] else 'slower'}"
        host = choice.decide("a layer", handle_of(""), torch.device("cuda", 0), "host", *ways)
        assert (host.is_ours, host.seconds) == (ours[0] <= stock[0], pytest.approx(ours[0]))
        # a quarter of the host's
        part = choice.decide("a layer", handle_of(""), torch.device("cuda", 0), choice.PARTS, *ways)
        assert part.is_ours is (ours[1] + ours[0] / 4 <= stock[1] + stock[0] / 4)
        assert (part.seconds, part.stock_seconds) == pytest.approx((ours[1], stock[1]))


@pytest.mark.parametrize("host", [1e-6, 60e-6, 900e-6])
def test_the_gpu_is_timed_behind_a_slow_host(monkeypatch: pytest.MonkeyPatch, host: float) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(choice, "_cycles", {})
    ways = gpu.call(host, 5e-6), gpu.call(3e-5, 9e-6)
    kernels, hosts = choice._measured_on_gpu(*ways, torch.device("cuda", 0))
    assert kernels == pytest.approx((5e-6, 9e-6))
    assert hosts == pytest.approx((host, 3e-5))


def test_a_host_that_is_slower_than_any_wait_is_timed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(choice, "_cycles", {})
    found = choice._behind_others(gpu.call(1.0, 0.25), 1, torch.device("cuda", 0))
    assert found[1] == pytest.approx(1.0)
    assert found[0] >= 0.25
    # a wait that was in vain is not that of all that are timed later
    before = gpu.now
    choice._behind_others(gpu.call(1e-5, 1e-5), 1, torch.device("cuda", 0))
    assert gpu.now - before < 0.01


def test_without_the_host_the_kernels_decide(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, handle = Gpu(monkeypatch), handle_of("")
    monkeypatch.setattr(choice, "_device_name", lambda handle, device: "a GPU")
    ways = gpu.call(60e-6, 5e-6), gpu.call(23e-6, 9e-6)
    for how in ("measured", "stored"):
        with choice.without_host():
            decision = choice.decide("a layer", handle, torch.device("cuda", 0), "first", *ways)
        assert (decision.is_ours, decision.reason) == (True, f"{how}: faster")
        assert not choice.decide("a layer", handle, torch.device("cuda", 0), "first", *ways).is_ours
        assert decision.hosts == pytest.approx((60e-6, 23e-6))


def test_the_store_keeps_what_was_measured_otherwise_apart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, handle = Gpu(monkeypatch), handle_of("")
    monkeypatch.setattr(choice, "_device_name", lambda handle, device: "a GPU")
    store.record("a layer", "", "a GPU", [("jitdnn", 2, 1.0, 0), ("torch", 2, 2.0, 0)])
    ways = gpu.call(41e-6, 5e-6), gpu.call(23e-6, 9e-6)
    for how in ("measured", "stored"):
        decision = choice.decide("a layer", handle, torch.device("cuda", 0), "first", *ways)
        assert (decision.is_ours, decision.reason) == (False, f"{how}: slower")


def test_the_real_clock_gives_times(store: Store) -> None:
    kind = run(random(1, 2, 5, 5), random(3, 2, 3, 3))
    assert kind.decision.seconds is not None
    assert 0 < kind.decision.seconds < 10
    assert 0 < kind.decision.stock_seconds < 10
    assert kind.decision.is_ours is (kind.decision.seconds <= kind.decision.stock_seconds)


def test_one_thread_is_timed_by_its_own_time_and_several_by_the_clock() -> None:
    before = torch.get_num_threads()
    cpu = torch.device("cpu")
    try:
        torch.set_num_threads(1)
        has_fine_clock = time.get_clock_info("thread_time").resolution <= 1e-6
        alone = time.thread_time if has_fine_clock else time.perf_counter
        assert choice.clock_of(handle_of(""), cpu) is alone
        assert choice.clock_of(handle_of("threads=2"), cpu) is time.perf_counter
        assert choice.clock_of(handle_of(""), torch.device("cuda", 0)) is time.perf_counter
        torch.set_num_threads(2)
        assert choice.clock_of(handle_of(""), cpu) is time.perf_counter
        assert choice.clock_of(handle_of("threads=1"), cpu) is time.perf_counter
    finally:
        torch.set_num_threads(before)
    ticks = iter(range(100))
    assert choice._seconds(lambda: next(ticks), 4, lambda: float(next(ticks))) == 5 / 4


def test_options() -> None:
    for options in (Options.of(), Options.of("never", threads=3, math="fp64", workspace_limit="1MiB")):
        assert parse(str(options)) == options
    for wrong in ("measure", "measure=perhaps", "speed=1", "threads=none"):
        with pytest.raises(InvalidArgument):
            parse(wrong)
    assert handle_of("") is handle_of("")
    assert handle_of("threads=1") is not handle_of("")
    assert handle_of("measure=kernels") is handle_of("")  # with the plans of the other one
    assert counting("threads=1", "kernels") == "measure=kernels;threads=1"
    assert counting("measure=kernels;threads=1") == canonical("measure=calls;threads=1") == "threads=1"
    assert counting("measure=never", "host") == "measure=never"
    one = handle_of("")
    torch.set_num_threads(2)
    assert handle_of("") is not one
    assert str(Options.of(measure="never")) == "measure=never"


def test_the_options_of_a_model_reach_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = kinds.handle_of
    monkeypatch.setattr(kinds, "handle_of", lambda text, *device: given.append(text) or real(text, *device))
    model = jt.convert(torch.nn.Conv2d(2, 3, 3), measure="never", math="fp64")
    model(random(1, 2, 5, 5)).sum().backward()
    assert set(given) == {"measure=never;math=fp64"}
    assert len(given) == 3


def test_no_second_pool_of_threads_beside_torchs() -> None:
    """The last layer of a classifier for one image, which NumPy's BLAS alone would be fastest at."""
    x, w = random(1, 1280), random(1000, 1280)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        handle = handle_of("")
        problem = Convolution.make("fwd", (1, 1280, 1, 1), (1000, 1280, 1, 1), layout="nhwc")
        assert handle.plan(problem).algorithm != "im2col"
    y = functional.linear(x, w, options="measure=never")
    torch.testing.assert_close(y, F.linear(x, w), rtol=1e-4, atol=1e-4)
