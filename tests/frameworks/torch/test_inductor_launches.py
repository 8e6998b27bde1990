"""Kernels of Triton's in the code of a graph, launched by a shorter way; here by a stand-in for Inductor's classes."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.devices.cuda_driver import LaunchConfig  # noqa: E402
from jitdnn.frameworks.torch import inductor_launches  # noqa: E402
from jitdnn.frameworks.torch.inductor_launches import SEEN, shorten  # noqa: E402


class Static:
    """A loaded kernel of two tensors and two integers, of which it takes one; with an address that it does not use."""

    function, num_warps, shared, arg_tys = 4711, 4, 16, "OOi"
    has_global_scratch, has_profile_scratch = True, False

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def run(self, *given: Any) -> None:
        self.launches.append(given)


class Tuner:
    """As `CachingAutotuner` of PyTorch 2.11, with a launcher as it generates them."""

    dump_launch_params = triton_interpret = False

    def __init__(self, code: str = "a, b, n", has_one: bool = True) -> None:
        self.static, self.inductor_meta = Static(), dict[str, Any]()
        names: dict[str, Any] = {"runner": self.static.run}
        exec(f"def launcher(a, b, n, m, stream): runner((n + 15) // 16, m, 1, stream, {code})", names)
        launcher = names["launcher"]
        launcher.config, launcher.store_cubin = SimpleNamespace(), False
        self.launchers = [launcher] if has_one else [launcher, launcher]
        self.runs = 0

    def run(self, *args: Any, stream: int) -> None:
        self.runs += 1
        self.launchers[0](*args, stream=stream)


class Addressed(torch.Tensor):
    """A tensor of this processor taken for a GPU's."""

    is_cuda = True


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the driver was called with: sizes and stream, the function, and its arguments, of 8 bytes each."""
    found: list[Any] = []

    def launch(at: int, function: int, parameters: int, _: Any) -> int:
        config = LaunchConfig.from_address(at)
        sizes = [getattr(config, name) for name in ("x", "y", "z", "threads_x", "shared", "stream")]
        arguments = [
            ctypes.c_uint64.from_address(one).value for one in (ctypes.c_void_p * 4).from_address(parameters)
        ]
        found.append((sizes, function, arguments))
        return direct_status[0]

    direct_status[0] = 0
    as_the_drivers = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(launch)
    address = ctypes.cast(as_the_drivers, ctypes.c_void_p).value
    # which keeps the function, too
    monkeypatch.setattr(inductor_launches, "launch_address", lambda: (as_the_drivers, address)[1])
    monkeypatch.setitem(sys.modules, inductor_launches._HEURISTICS, SimpleNamespace(CachingAutotuner=Tuner))
    return found


direct_status = [0]
A, B, C = (torch.zeros(n).as_subclass(Addressed) for n in (1, 2, 3))


def test_later_launches_have_other_tensors(direct: list[Any]) -> None:
    tuner = Tuner()
    names = {"triton_0": tuner, "extern_kernels": 1}
    shorten(names)
    assert names[SEEN]
    assert names["extern_kernels"] == 1
    kernel: Any = names["triton_0"]
    kernel.run(A, B, 40, 2, stream=7)
    assert (tuner.runs, len(tuner.static.launches), direct) == (1, 1, [])
    for one, other, stream in ((B, C, 8), (C, A, 9)):
        kernel.run(one, other, 40, 2, stream=stream)
        sizes, function, arguments = direct.pop()
        assert sizes == [3, 2, 1, 4 * 32, 16, stream]
        assert function == 4711
        assert arguments == [one.data_ptr(), other.data_ptr(), 40, 0]
    assert tuner.runs == 1
    assert kernel.inductor_meta is tuner.inductor_meta


def test_what_the_driver_refuses_is_launched_as_before(direct: list[Any]) -> None:
    tuner = Tuner()
    names: dict[str, Any] = {"triton_0": tuner}
    shorten(names)
    direct_status[0] = 1
    for _ in range(2):
        names["triton_0"].run(A, B, 40, 2, stream=7)
    assert (tuner.runs, len(direct)) == (2, 1)


@pytest.mark.parametrize(
    ("types", "numbers", "packed"),
    [
        ("il", (-2, 1 << 40), b"\xfe\xff\xff\xff\0\0\0\0" + (1 << 40).to_bytes(8, "little")),
        ("fd", (0.5, 2.0), b"\0\0\0\x3f\0\0\0\0" + b"\0" * 7 + b"\x40"),
        ("", (), b""),
    ],
)
def test_numbers_as_kernels_take_them(types: str, numbers: Any, packed: bytes) -> None:
    assert inductor_launches._packed(types, numbers) == packed


def test_other_numbers_and_who_profiles_take_the_long_way(
    direct: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner()
    names: dict[str, Any] = {"triton_0": tuner}
    shorten(names)
    kernel = names["triton_0"]
    kernel.run(A, B, 40, 2, stream=7)
    kernel.run(A, B, 41, 2, stream=7)
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    kernel.run(A, B, 40, 2, stream=7)
    assert (tuner.runs, direct) == (3, [])
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    kernel.run(A, B, 40, 2, stream=7)
    assert (tuner.runs, len(direct)) == (3, 1)


def several() -> Tuner:
    return Tuner(has_one=False)


def without_the_first() -> Tuner:
    return Tuner("b, b, n")


def traced() -> Tuner:
    tuner = Tuner()
    tuner.dump_launch_params = True
    return tuner


def searching() -> Tuner:
    tuner = Tuner()
    tuner.inductor_meta["coordinate_descent_tuning"] = True
    return tuner


def of_another_class() -> Tuner:
    tuner = Tuner()
    tuner.launchers[0].__globals__["runner"] = lambda *_: None
    return tuner


def of_no_number() -> Tuner:
    return Tuner("a, b, None")


def of_another_type() -> Tuner:
    tuner = Tuner()
    tuner.static.arg_tys = "OOx"  # type: ignore[misc]
    return tuner


def not_loaded() -> Tuner:
    tuner = Tuner()
    tuner.static.function = None  # type: ignore[assignment]
    return tuner


@pytest.mark.parametrize(
    "made",
    [
        several,
        without_the_first,
        traced,
        searching,
        of_another_class,
        of_no_number,
        of_another_type,
        not_loaded,
    ],
)
def test_what_is_not_as_expected_is_launched_as_before(direct: list[Any], made: Any) -> None:
    tuner = made()
    names: dict[str, Any] = {"triton_0": tuner}
    shorten(names)
    for _ in range(3):
        names["triton_0"].run(A, B, 40, 2, stream=7)
    assert (tuner.runs, direct) == (3, [])


def test_versions_with_a_short_way_of_their_own_keep_it(
    direct: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuner, "_build_fast_launcher", None, raising=False)
    tuner = Tuner()
    names: dict[str, Any] = {"triton_0": tuner}
    shorten(names)
    assert names["triton_0"] is tuner
