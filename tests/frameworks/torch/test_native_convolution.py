"""Convolutions that generated code launches from the code of graphs; here with a stand-in for the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn as jd  # noqa: E402
from jitdnn.devices.cuda_driver import LaunchConfig  # noqa: E402
from jitdnn.devices.cuda_kernel import Frozen  # noqa: E402
from jitdnn.frameworks.torch import kinds, native_convolution  # noqa: E402
from jitdnn.frameworks.torch.inductor_launches import SEEN  # noqa: E402
from jitdnn.frameworks.torch.native_convolution import Calls  # noqa: E402
from jitdnn.kernels.cuda.gemm.code import ByAddress, Reordered  # noqa: E402

TEXT, GRAPH = "a text that is not one character", {SEEN: True}
TABLE_WORDS, HEAD = 16, 3


class Driver:
    """What it was called with, and what it says."""

    def __init__(self) -> None:
        self.status = 0
        self.stream = 0
        self.has_table = True
        self.arguments = 0
        self.launches: list[Any] = []
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._launch)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _launch(self, at: int, function: int, parameters: int, _: Any) -> int:
        config, words = LaunchConfig.from_address(at), []
        count = self.arguments + self.has_table
        addresses = list((ctypes.c_void_p * count).from_address(parameters))
        if self.has_table:
            table = addresses.pop(0)
            assert table is not None
            assert table % 64 == 0
            words = list((ctypes.c_uint64 * TABLE_WORDS).from_address(table))
        values = [ctypes.c_uint64.from_address(one or 0).value for one in addresses]
        self.launches.append((config.x, function, values, words))
        return self.status


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(native_convolution, "launch_address", lambda: made.address)
    monkeypatch.setattr(native_convolution, "stream_in_force", lambda: lambda index: made.stream)
    return made


def frozen(driver: Driver, pointers: int, order: Any = None, alignment: int = 1) -> Frozen:
    places = (0, 0, 0), (8, 2, 128)
    values = [0] * pointers + [0, 17, 18]
    driver.arguments = len(values)
    table = b"".join(n.to_bytes(8, "little") for n in range(TABLE_WORDS)) if driver.has_table else b""
    configs = tuple((bytes(LaunchConfig(n + 1, 1, 1, 128, 1, 1, 0)), 4711 + n) for n in range(2))
    return Frozen(
        b"".join(n.to_bytes(8, "little") for n in values), table, places if table else (), configs, None,
        order or tuple(range(pointers)), alignment,
    )  # fmt: skip


def calls(driver: Driver, pointers: int = 3, **options: Any) -> tuple[Calls, list[Any]]:
    slow: list[Any] = []

    def in_python(*args: Any, out: Any) -> None:
        slow.append((*args, out))

    made = Calls(in_python)
    made.keep(TEXT, frozen(driver, pointers, **options))
    return made, slow


def aligned(count: int = 64) -> Any:
    whole = torch.zeros(count + 16)
    return whole[-(whole.data_ptr() // 4) % 4 :][:count]


A, B, C, Y = (aligned() for _ in "abcy")


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_addresses_of_each_call(driver: Driver, has_table: bool, has_bias: bool) -> None:
    """Results come behind the two operands, a bias behind them; tables have addresses where their places say."""
    driver.has_table = has_table
    made, slow = calls(driver, 3 + has_bias)
    for a, y in ((A, Y), (Y, A)):
        driver.launches.clear()
        operands = (a, B, C) if has_bias else (a, B)
        made.call(*operands, TEXT, GRAPH, out=y)
        pointers = [one.data_ptr() for one in ((a, B, y, C) if has_bias else (a, B, y))]
        words = [*range(TABLE_WORDS)] if has_table else []
        if has_table:
            words[0], words[8] = a.data_ptr(), y.data_ptr() + 128
        assert driver.launches == [(n + 1, 4711 + n, [*pointers, 0, 17, 18], words) for n in range(2)]
    assert not slow


def another_text(made: Calls, driver: Driver) -> Any:
    return (A, B, TEXT + ".", GRAPH), Y, None


def a_graph_that_is_new(made: Calls, driver: Driver) -> Any:
    return (A, B, TEXT, {}), Y, None


def another_stream(made: Calls, driver: Driver) -> Any:
    driver.stream = 7
    return (A, B, TEXT, GRAPH), Y, None


def memory_that_no_map_can_name(made: Calls, driver: Driver) -> Any:
    return (A[1:], B, TEXT, GRAPH), Y, None


def other_settings(made: Calls, driver: Driver) -> Any:
    return (A, B, TEXT, GRAPH), Y, jd.settings(workspace_limit="1MiB")


def somebody_who_observes(made: Calls, driver: Driver) -> Any:
    return (A, B, TEXT, GRAPH), Y, kinds.apart(lambda *_: None)


@pytest.mark.parametrize(
    "change",
    [
        another_text,
        a_graph_that_is_new,
        another_stream,
        memory_that_no_map_can_name,
        other_settings,
        somebody_who_observes,
    ],
)
def test_what_is_called_in_python(driver: Driver, change: Any) -> None:
    made, slow = calls(driver)
    args, out, context = change(made, driver)
    if context is None:
        made.call(*args, out=out)
    else:
        with context:
            made.call(*args, out=out)
    assert not driver.launches
    assert len(slow) == 1
    assert all(one is other for one, other in zip(slow[0], (*args, out), strict=True))


def test_operands_in_another_order(driver: Driver) -> None:
    made, slow = calls(driver, order=(1, 2, 0))
    made.call(A, B, TEXT, GRAPH, out=Y)
    assert [launch[2][:3] for launch in driver.launches] == 2 * [[B.data_ptr(), Y.data_ptr(), A.data_ptr()]]
    assert driver.launches[0][3][0] == B.data_ptr()
    assert not slow


def test_alignment_beyond_that_of_tables(driver: Driver) -> None:
    driver.has_table = False
    made, slow = calls(driver, alignment=1 << 40)
    made.call(A, B, TEXT, GRAPH, out=Y)
    assert (len(driver.launches), len(slow)) == (0, 1)


def test_texts_of_more_operands(driver: Driver) -> None:
    made, slow = calls(driver, 4)
    made.call(A, B, TEXT, GRAPH, out=Y)
    assert (len(driver.launches), len(slow)) == (0, 1)


def test_what_the_driver_refuses_is_called_in_python(driver: Driver) -> None:
    made, slow = calls(driver)
    driver.status = 201
    made.call(A, B, TEXT, GRAPH, out=Y)
    assert (len(driver.launches), len(slow)) == (1, 1)


def test_who_measures_apart_and_calls_without_a_graph(driver: Driver) -> None:
    made, slow = calls(driver)
    with kinds.apart():
        made.call(A, B, TEXT, None, out=Y)
    assert (len(driver.launches), len(slow)) == (2, 0)


def test_errors_of_arguments_are_raised(driver: Driver) -> None:
    made, _ = calls(driver)
    with pytest.raises(TypeError):
        made.call(A, 3, TEXT, GRAPH, out=Y)
    assert not driver.launches


def test_as_many_texts_as_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    made, slow = calls(driver)
    monkeypatch.setattr(native_convolution, "MOST", 1)
    made.keep("another", frozen(driver, 3))
    made.call(A, B, "another", GRAPH, out=Y)
    made.call(A, B, TEXT, GRAPH, out=Y)
    assert (len(driver.launches), len(slow)) == (2, 1)


class Whole:
    """A kernel that says what its call is; or nothing."""

    def __init__(self, found: Frozen | None) -> None:
        self._found = found

    def frozen(self) -> Frozen | None:
        return self._found


def test_kernels_around_others(driver: Driver) -> None:
    """Operands in another order, also of such a kernel, and only where addresses are aligned."""
    inner = frozen(driver, 4, (0, 2, 1, 3), 4)
    outer = ByAddress(Reordered(Whole(inner), (1, 0)), Whole, (32, 16))  # type: ignore[arg-type]
    found = outer.frozen()
    assert (found.order, found.alignment) == ((1, 2, 0, 3), 32)
    assert found.arguments == inner.arguments
    assert ByAddress(Whole(None), Whole, (16,)).frozen() is None  # type: ignore[arg-type]
    assert Reordered(object(), (1, 0)).frozen() is None  # type: ignore[arg-type]
