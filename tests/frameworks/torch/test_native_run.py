"""Prepared launches as generated code: on a processor, and on a GPU with a stand-in for the driver."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn as jd  # noqa: E402
from jitdnn.devices.cuda_driver import LaunchConfig  # noqa: E402
from jitdnn.devices.cuda_kernel import WORKSPACE, Frozen, FrozenPart, frozen_parts  # noqa: E402
from jitdnn.frameworks.torch import native_run  # noqa: E402
from jitdnn.frameworks.torch.fresh import fresh  # noqa: E402
from jitdnn.frameworks.torch.launch import (  # noqa: E402
    GpuLaunch,
    KernelLaunch,
    Placed,
    descriptor,
    offering,
    prepared,
    shortening,
)
from jitdnn.frameworks.torch.native_run import OnGpu, Place, on_gpu  # noqa: E402
from jitdnn.frameworks.torch.options import handle_of  # noqa: E402
from jitdnn.kernels.formulas.row_algorithms import Chain  # noqa: E402
from jitdnn.problems.activation import Activation  # noqa: E402

CPU = torch.device("cpu")


class Owner:
    """What a short way takes the place of the long one in."""

    run: Any


def silu(rows: int = 4, is_one: bool = True) -> tuple[Any, Any]:
    """A launch in Python, and what it is as generated code."""
    x = torch.randn(rows, 8, dtype=torch.float64)

    def problem() -> Activation:
        return Activation.make("fwd", "swish", descriptor(x), "x", y=descriptor(x), coef=1.0)

    run = prepared(handle_of("threads=1", "cpu"), problem, (x,), (x,), CPU, is_one)
    assert run is not None
    owner = Owner()
    owner.run = shortening(owner, "run", run)
    for _ in range(4):
        owner.run(x)
    return run, owner.run


@pytest.mark.parametrize("is_one", [True, False])
def test_a_launch_on_a_processor(is_one: bool) -> None:
    run, native = silu(is_one=is_one)
    assert type(native) is type(len)
    x = torch.randn(4, 8, dtype=torch.float64)
    found = native(x, "what comes behind is not looked at", 3)
    y = found if is_one else found[0]
    assert is_one or len(found) == 1
    torch.testing.assert_close(y, torch.nn.functional.silu(x), rtol=1e-12, atol=1e-12)
    assert y.data_ptr() != native(x)[0 if not is_one else slice(None)].data_ptr()
    assert torch.equal(y, run(x) if is_one else run(x)[0])


def test_nothing_is_held_or_dropped_twice() -> None:
    _, native = silu()
    x = torch.randn(4, 8, dtype=torch.float64)
    before = sys.getrefcount(x)
    results = [native(x) for _ in range(50)]
    assert sys.getrefcount(x) == before
    assert {sys.getrefcount(one) for one in results} == {sys.getrefcount(one) for one in [torch.ones(2)]}
    gone = weakref.ref(results[3])
    del results
    assert gone() is None


def test_it_lives_as_long_as_it_is_held() -> None:
    """Its record is held by the function itself."""
    _, native = silu()
    gc.collect()
    junk = [bytearray(4096) for _ in range(200)]
    x = torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(native(x), torch.nn.functional.silu(x), rtol=1e-12, atol=1e-12)
    assert len(junk) == 200


def test_other_settings_and_recordings_take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    x = torch.randn(4, 8)

    def slow(*operands: Any, **named: Any) -> Any:
        calls.append((operands, named))
        return "slow"

    native = stand_in(slow, None)
    assert native(x) is not None
    assert not calls
    with jd.settings(log="debug"):
        assert native(x) == "slow"
    assert native(x, named=1) == "slow"
    assert native() == "slow"
    monkeypatch.setitem(native_run.recorders, 1, None)
    assert native(x) == "slow"
    assert [len(operands) for operands, _ in calls] == [1, 1, 0, 1]
    assert calls[1][1] == {"named": 1}


def test_each_run_is_logged_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with jd.settings(log="debug"), caplog.at_level("DEBUG", "jitdnn"):
        run, found = silu()
        assert found is run
        before = len(caplog.records)
        found(torch.randn(4, 8, dtype=torch.float64))
        assert "swish" in caplog.records[before].getMessage()


def test_errors_are_raised() -> None:
    _, native = silu()
    with pytest.raises(TypeError):
        native("no tensor")

    def refuse(*_: Any) -> Any:
        raise MemoryError("there is none")

    with pytest.raises(MemoryError, match="there is none"):
        stand_in(lambda *_: None, refuse)(torch.randn(4, 8))


def stand_in(slow: Any, make: Any) -> Any:
    """The launch of SiLU with something else around it."""
    x = torch.randn(4, 8)

    def problem() -> Activation:
        return Activation.make("fwd", "swish", descriptor(x), "x", y=descriptor(x), coef=1.0)

    found = prepared(handle_of("threads=1", "cpu"), problem, (x,), (x,), CPU, True)
    assert found is not None
    for _ in range(3):
        found(x)
    listed = found.native.args[0].listed(2)  # type: ignore[attr-defined]
    make = make or fresh((4, 8), (8, 1), torch.float32, CPU)
    native = native_run.on_cpu(listed, 1, [make], [Place(0), Place(1)], slow, True)
    assert native is not None
    return native


def test_two_threads_in_one_launch() -> None:
    """Who comes while another thread is in it takes the long way: all results are right."""
    _, native = silu(2000)
    x = torch.randn(2000, 8, dtype=torch.float64)
    wanted, wrong = torch.nn.functional.silu(x), []

    def work() -> None:
        for _ in range(200):
            if not torch.allclose(native(x), wanted, rtol=1e-12, atol=1e-12):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


class Driver:
    """What it was called with, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status = self.stream = self.gpu = 0
        self.launches: list[Any] = []
        self.slow: list[Any] = []
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._launch)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        monkeypatch.setattr(native_run, "launch_address", lambda: address)
        monkeypatch.setattr(native_run, "stream_in_force", lambda: lambda index: self.stream)
        monkeypatch.setattr(native_run, "_current_gpu", lambda: self.gpu)

    def _launch(self, at: int, function: int, parameters: int, _: Any) -> int:
        addresses = (ctypes.c_void_p * 6).from_address(parameters)
        table, *others = [one or 0 for one in addresses]
        assert table % 64 == 0
        words = [ctypes.c_uint64.from_address(table + 8 * n).value for n in (0, 1)]
        values = [ctypes.c_uint64.from_address(one).value for one in others]
        self.launches.append((LaunchConfig.from_address(at).x, function, words, values))
        return self.status

    def frozen(self, order: tuple[int, ...] = (0, 1, 2), alignment: int = 1, is_alone: bool = True) -> Frozen:
        arguments = b"".join(n.to_bytes(8, "little") for n in (0, 0, 0, 17, 18))
        table = (0).to_bytes(8, "little") + (5).to_bytes(8, "little")
        configs = tuple((bytes(LaunchConfig(n + 1, 1, 1, 128, 1, 1, 0)), 4711 + n) for n in range(2))
        return Frozen(arguments, table, ((0, 1, 128),), configs, None, order, alignment, is_alone)

    def call(
        self, kernels: Any = None, workspace: int = 0, is_one: bool = False, copies: int = 1, **form: Any
    ) -> Any:
        """Of x, None or a tensor, and statistics, whose second half is an operand, too; a result and one that is
        not there."""
        own = [FrozenPart(self.frozen(**form), ((0, 0), (1, 0), (2, 0)), 0)]
        made = partial(torch._C._dynamo.guards._empty_strided_cpu, (4,), (1,), torch.float32)

        def slow(*operands: Any) -> str:
            self.slow.append(operands)
            return "slow"

        each = OnGpu(kernels or own, [Place(0), Place(2, 64), Place(3)], workspace)
        return on_gpu([each] * copies, 0, 3, [made, None], slow, is_one)


X, STATISTICS = torch.zeros(64), torch.zeros(64)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize("is_alone", [True, False])
def test_addresses_on_a_gpu(driver: Driver, is_alone: bool) -> None:
    y, nothing = driver.call(is_alone=is_alone)(X, None, STATISTICS, 1e-5)
    assert nothing is None
    pointers = [X.data_ptr(), STATISTICS.data_ptr() + 64, y.data_ptr()]
    words = [pointers[1] + 128, 5]
    assert driver.launches == [(n + 1, 4711 + n, words, [*pointers, 17, 18]) for n in range(2)]
    assert not driver.slow


def test_the_order_of_a_kernel(driver: Driver) -> None:
    y = driver.call(order=(2, 0, 1), is_one=True)(X, None, STATISTICS)
    assert driver.launches[0][3][:3] == [y.data_ptr(), X.data_ptr(), STATISTICS.data_ptr() + 64]


def test_workspace_is_allocated_and_not_returned(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    space = torch.zeros(32, dtype=torch.uint8)
    asked: list[Any] = []

    def own(shape: Any, *form: Any) -> Any:
        asked.append((shape, *form))
        return lambda: space

    monkeypatch.setattr(native_run, "fresh", own)
    before = sys.getrefcount(space)
    found = driver.call(workspace=32)(X, None, STATISTICS)
    assert len(found) == 2
    assert asked == [((32,), (1,), torch.uint8, torch.device("cuda", 0))]
    assert driver.launches[0][3][3:] == [space.data_ptr(), 18]
    assert sys.getrefcount(space) == before
    assert driver.call(workspace=native_run.MOST_WORKSPACE + 1) is None


def test_kernels_one_after_the_other(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a plan's addresses, moved by some bytes, and its workspace; another plan has its own."""
    spaces = [torch.zeros(256, dtype=torch.uint8) for _ in range(2)]
    left = [*spaces]
    monkeypatch.setattr(native_run, "fresh", lambda *_: lambda: left.pop(0))
    one, other = (SimpleNamespace(frozen=driver.frozen) for _ in range(2))
    chain = Chain([(0, [one, other]), (2, [one])], [4, 8, 16], [32], 64)
    parts = frozen_parts(chain, 2)
    assert parts is not None
    assert [part.places for part in parts] == [((0, 0), (1, 0), (WORKSPACE, 32))] * 2 + [
        ((0, 8), (1, 16), (WORKSPACE, 64))
    ]
    assert [part.workspace for part in parts] == [64] * 3
    driver.call(parts, workspace=256, copies=2)(X, None, STATISTICS)
    x, second = X.data_ptr(), STATISTICS.data_ptr() + 64
    wanted = []
    for space in (one.data_ptr() for one in spaces):
        wanted += [[x, second, space + 32, space + 64, 18]] * 4
        wanted += [[x + 8, second + 16, space + 64, space + 64, 18]] * 2
    assert [values for _, _, _, values in driver.launches] == wanted
    assert not driver.slow
    assert frozen_parts(Chain([(0, [one, object()])], [4, 8], [], 0), 2) is None  # type: ignore[list-item]


def test_nothing_is_launched_where_a_later_kernel_cannot_be(driver: Driver) -> None:
    places = ((0, 0), (1, 0), (2, 0))
    parts = [FrozenPart(driver.frozen(alignment=n), places, 0) for n in (1, 1 << 40)]
    assert driver.call(parts)(X, None, STATISTICS) == "slow"
    assert not driver.launches


@pytest.mark.parametrize("what", ["stream", "refused", "unaligned", "settings", "map", "gpu"])
def test_what_is_called_in_python(driver: Driver, what: str) -> None:
    operands = (X[1:] if what == "unaligned" else X, None, STATISTICS[1:] if what == "map" else STATISTICS)
    call = driver.call(alignment=16 if what == "unaligned" else 1, is_alone=what != "gpu")
    driver.gpu = 1 if what == "gpu" else 0
    driver.stream = 7 if what == "stream" else 0
    driver.status = 1 if what == "refused" else 0
    if what == "settings":
        with jd.settings(workspace_limit="1MiB"):
            assert call(*operands) == "slow"
    else:
        assert call(*operands) == "slow"
    assert len(driver.launches) == (what == "refused")
    assert len(driver.slow) == 1
    assert driver.slow[0][0] is operands[0]


def test_generated_code_waits_for_kernels_that_are_compiled_beside() -> None:
    """Another kernel stands in meanwhile, for however many calls: the tries begin behind it."""
    launch = object.__new__(GpuLaunch)
    launch._kernel = None
    asked: list[int] = []

    def run(number: int) -> int:
        return number

    def native(number: int) -> int:
        return -number

    def make() -> Any:
        asked.append(0)
        return native if len(asked) == 2 else None

    owner, told = Owner(), list[Any]()
    owner.run = shortening(owner, "run", offering(run, make, [launch]), told.append)
    assert [owner.run(number) for number in range(20)] == [*range(20)]
    assert not asked
    launch._kernel = run
    assert [owner.run(1), owner.run(1), owner.run(1)] == [1, 1, -1]
    assert owner.run is told[0] is native


class Runner:
    """What gives a kernel to the stream in Python: notes the addresses, and stream and workspace of each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def launch(self, stream: int, kernel: Any, addresses: Any, alpha: float, beta: float, bytes: int) -> None:
        assert (alpha, beta) == (1.0, 0.0)
        self.calls.append((stream, [*addresses], bytes))


@pytest.fixture
def on_stream(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: driver.stream, raising=False)


@pytest.mark.usefixtures("on_stream")
def test_a_kernel_that_is_no_plans_on_memory_of_the_caller(driver: Driver) -> None:
    """In Python, and then by generated code on the same addresses; another stream is known in Python alone."""
    runner, kernel = Runner(), SimpleNamespace(frozen=driver.frozen)
    launch = KernelLaunch(runner, kernel, 0, torch.device("cuda", 0))  # type: ignore[arg-type]
    call = Placed(launch, 2, [Place(0), Place(1, 64), Place(1)])
    x, y = X.data_ptr(), STATISTICS.data_ptr()
    call.run(X, STATISTICS)
    assert runner.calls == [(0, [x, y + 64, y], 0)]
    assert type(call.run) is type(len)
    call.run(X, STATISTICS)
    assert [values[:3] for _, _, _, values in driver.launches] == [[x, y + 64, y]] * 2
    driver.stream = 7
    call.run(STATISTICS, X)
    assert runner.calls[1:] == [(7, [y, x + 64, x], 0)]
    assert len(driver.launches) == 2


@pytest.mark.usefixtures("on_stream")
def test_what_a_kernel_asks_of_addresses_is_asked_in_python(driver: Driver) -> None:
    slow: list[Any] = []
    kernel = SimpleNamespace(frozen=driver.frozen)
    launch = KernelLaunch(Runner(), kernel, 0, torch.device("cuda", 0), 16)  # type: ignore[arg-type]
    call = Placed(launch, 2, [Place(0), Place(1, 64), Place(1)], lambda *given: slow.append(given))
    call.run(X, STATISTICS)
    assert type(call.run) is type(len)
    call.run(X, STATISTICS)
    assert (len(slow), len(driver.launches)) == (1, 2)
    call.run(X[1:], STATISTICS)
    assert (len(slow), len(driver.launches)) == (2, 2)


@pytest.mark.usefixtures("on_stream")
def test_a_kernel_that_is_more_than_launches_stays_in_python(driver: Driver) -> None:
    runner = Runner()
    call = Placed(KernelLaunch(runner, object(), 32, torch.device("cuda", 0)), 1, [Place(0)])  # type: ignore[arg-type]
    for number in range(6):
        call.run(X)
        assert runner.calls == [(0, [X.data_ptr()], 32)] * (number + 1)
    assert not driver.launches
