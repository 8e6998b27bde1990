"""Memory of large results that stays with the process: parts in use never overlap, and free ones are used again."""

from __future__ import annotations

import copy
import gc
import mmap
import pickle
import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import arena as module  # noqa: E402
from jitdnn.frameworks.torch.arena import SMALLEST, STALE, Arena, in_arena  # noqa: E402
from jitdnn.frameworks.torch.fresh import fresh  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have none")
MIB = 1 << 20
CPU = torch.device("cpu")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Arena:
    """One of the test alone, of 64 MiB, in the place of the process's."""
    made = Arena(64 * MIB)
    monkeypatch.setattr(module, "_arena", made)
    monkeypatch.setattr(module, "_is_asked", True)
    monkeypatch.setattr(module, "_models", weakref.WeakSet())
    monkeypatch.setattr(module, "_limits", weakref.WeakKeyDictionary())
    return made


def resident(arena: Arena) -> int:
    """Bytes of the arena that the system has given memory for."""
    begin = torch.frombuffer(arena._whole, dtype=torch.uint8).data_ptr()
    place = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            low, high = (int(number, 16) for number in head.split("-"))
            place = low <= begin < high
        elif place and head == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("the arena is not mapped")


def address(view: memoryview) -> int:
    found: int = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    return found


def test_a_free_part_is_used_again(own: Arena) -> None:
    first = own.take(3 * MIB)
    assert first is not None
    begin = address(first)
    kept = own.take(5 * MIB)
    del first
    again = own.take(3 * MIB)
    assert again is not None
    assert kept is not None
    assert address(again) == begin
    assert len(again) == 3 * MIB


def test_free_parts_side_by_side_are_one(own: Arena) -> None:
    parts = [own.take(size * MIB) for size in (2, 3, 4, 5)]
    extent = own.extent
    del parts[1:3]
    large = own.take(7 * MIB)  # where the two were
    assert large is not None
    assert own.extent == extent
    del parts, large
    assert own.used == 0
    whole = own.take(own.capacity - 4096)
    assert whole is not None


def test_the_smallest_gap_that_fits_is_taken(own: Arena) -> None:
    parts: dict[int, Any] = {}
    for size in (8, 1, 4, 2, 6, 3):
        parts[size] = own.take(size * MIB)
    begin = address(parts[4])
    del parts[8], parts[4], parts[6]
    found = own.take(4 * MIB - 100)
    assert found is not None
    assert address(found) == begin


def test_where_there_is_no_place_torch_allocates(own: Arena) -> None:
    kept = own.take(60 * MIB)
    assert own.take(5 * MIB) is None
    made = fresh((5 * MIB,), (1,), torch.uint8, CPU)()
    assert made.untyped_storage().resizable()
    del kept
    assert own.take(5 * MIB) is not None


def test_memory_that_is_not_in_use_is_given_back(own: Arena) -> None:
    parts: list[Any] = [own.take(2 * MIB) for _ in range(3)]
    for part in parts:
        torch.frombuffer(part, dtype=torch.uint8).fill_(7)
    begin = address(parts[1])
    parts[1] = None
    own.give_back()
    parts[1] = own.take(2 * MIB)
    assert address(parts[1]) == begin
    sums = [int((torch.frombuffer(part, dtype=torch.uint8) == 7).sum()) for part in parts]
    assert sums[0] == sums[2] == 2 * MIB
    assert sums[1] <= 2 * mmap.PAGESIZE  # fresh pages are zeros; those at the ends are shared with the others
    parts[1][0] = 1


def test_random_parts_never_overlap(own: Arena) -> None:
    numbers = random.Random(1)
    held: list[tuple[Any, int]] = []
    taken = 0
    for step in range(400):
        if held and numbers.random() < 0.5:
            view, value = held.pop(numbers.randrange(len(held)))
            assert view[0] == view[len(view) // 2] == view[-1] == value
            del view
        view = own.take(numbers.randrange(1, 4 * MIB))
        if view is not None:
            taken += 1
            value = step % 251
            view[0] = view[len(view) // 2] = view[-1] = value
            held.append((view, value))
            del view
    assert taken > 100
    for view, value in held:
        assert view[0] == view[len(view) // 2] == view[-1] == value
    del view, held
    assert own.used == 0
    assert own.extent <= own.capacity


def test_a_part_is_in_use_as_long_as_any_view_of_its_tensor(own: Arena) -> None:
    made = fresh((4, MIB), (MIB, 1), torch.float32, CPU)()
    assert own.used >= 4 * 4 * MIB
    assert not made._is_view()
    row = made[2]
    row.fill_(3.0)
    del made
    other = fresh((4, MIB), (MIB, 1), torch.float32, CPU)()
    other.fill_(5.0)
    assert bool((row == 3).all())
    array = row.numpy()
    del row, other
    assert own.used
    assert (array == 3).all()
    del array
    gc.collect()
    assert own.used == 0


def test_autograd_adds_gradients_up_in_place(own: Arena) -> None:
    """As it does where nobody else holds the memory of a gradient."""

    class Twice(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return torch.mul(dy, 2, out=fresh((MIB,), (1,), torch.float32, CPU)())

    x = torch.ones(MIB, requires_grad=True)
    y, found = x * 1, []
    y.register_hook(lambda dy: found.append(dy.untyped_storage().resizable()))
    (Twice.apply(y) + Twice.apply(y)).sum().backward()
    assert found == [False]
    assert bool((x.grad == 4).all())


def test_copies_have_memory_of_their_own(own: Arena) -> None:
    made = fresh((MIB,), (1,), torch.float32, CPU)()
    made.copy_(torch.arange(MIB))
    others = [copy.deepcopy(made), made.clone(), pickle.loads(pickle.dumps(made))]
    wanted = torch.arange(MIB, dtype=torch.float32)
    made.zero_()
    assert all(torch.equal(one, wanted) for one in others)


def test_memory_that_is_shared_with_processes_is_no_part_any_more(own: Arena) -> None:
    made = fresh((MIB,), (1,), torch.float32, CPU)()
    made.fill_(2.0).share_memory_()
    other = fresh((MIB,), (1,), torch.float32, CPU)()
    other.fill_(7.0)
    assert made.is_shared()
    assert bool((made == 2).all())


@pytest.mark.parametrize("form", [((MIB,), (1,)), ((2, 3, 512, 512), (786432, 1, 1536, 3))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forms(form: tuple[tuple[int, ...], tuple[int, ...]], dtype: Any, own: Arena) -> None:
    made = fresh(*form, dtype, CPU)()
    assert (tuple(made.shape), made.stride(), made.dtype) == (*form, dtype)
    assert made.untyped_storage().nbytes() == made.numel() * dtype.itemsize
    assert made.data_ptr() % 64 == 0
    assert not made.requires_grad
    assert own.used


def test_small_ones_and_those_with_gaps_are_torchs(own: Arena) -> None:
    fresh((SMALLEST // 4 - 1,), (1,), torch.float32, CPU)()
    fresh((SMALLEST,), (2,), torch.float32, CPU)()
    assert own.extent == 0


def test_where_addresses_are_limited_torch_allocates() -> None:
    """The range would take what the rest of the process needs."""
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
import torch
from jitdnn.frameworks.torch.fresh import fresh
made = fresh((1 << 20,), (1,), torch.float32, torch.device("cpu"))()
assert made.untyped_storage().resizable()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_modes_and_transforms_see_nothing(own: Arena) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(function)

    with Watching():
        assert in_arena((MIB,), (1,), torch.float32, 4 * MIB) is None
    inside = []

    def function(x: Any) -> Any:
        inside.append(in_arena((MIB,), (1,), torch.float32, 4 * MIB))
        return x

    torch.func.vmap(function)(torch.ones(2))
    assert inside == [None]


def test_threads(own: Arena) -> None:
    """Parts are given back in one thread while another one takes them."""
    wrong: list[int] = []

    def work(value: int) -> None:
        numbers = random.Random(value)
        for _ in range(150):
            view = own.take(numbers.randrange(MIB, 4 * MIB))
            if view is not None:
                view[0] = view[-1] = value
                if view[0] != value or view[-1] != value:
                    wrong.append(value)
                del view

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert own.used == 0


def test_steps_of_a_training_need_no_more_than_the_first(own: Arena) -> None:
    import jitdnn.torch as jt

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(inplace=True))
    model = jt.convert(torch.nn.Sequential(*layers), measure="never")
    reference = copy.deepcopy(jt.revert(copy.deepcopy(model))).double()
    x = torch.randn(2, 3, 128, 128)
    extents = []
    for _ in range(4):
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        extents.append(own.extent)
    assert extents[0]
    assert (
        extents[1:] == extents[1:2] * 3
    )  # from the second step on normalization and rectifier are one operation
    wanted = reference(x.double())
    wanted.square().sum().backward()
    own_grads, grads = (
        torch.cat([one.grad.double().flatten() for one in net.parameters()]) for net in (model, reference)
    )
    assert (own_grads - grads).norm() <= 1e-4 * grads.norm()
    torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)
    del y
    model.zero_grad()
    gc.collect()
    assert own.used == 0


def test_what_steps_do_not_use_again_goes_back(own: Arena) -> None:
    def step(sizes: list[int]) -> None:
        parts = [torch.frombuffer(own.take(size * MIB), dtype=torch.uint8).fill_(1) for size in sizes]
        del parts

    step([8, 24, 16])
    large, whole = resident(own), own.kept
    assert large >= 48 * MIB
    assert whole >= 48 * MIB
    for _ in range(STALE):  # its places are used again
        step([8, 24, 16])
    assert resident(own) == large
    for _ in range(2 * STALE * 48 // 6 + 2):
        step([2, 4])
    assert resident(own) <= 12 * MIB
    assert own.kept <= 12 * MIB
    step([8, 24, 16])
    assert resident(own) == large


def test_the_heap_is_trimmed_as_the_range_grows(own: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in steps that find their places: what they free there they take again."""
    ends: list[int] = []
    monkeypatch.setattr(module, "return_free_memory", lambda: ends.append(own.extent))
    for _ in range(3):
        parts = [own.take(8 * MIB - 1024) for _ in range(7)]
        del parts
    assert [end // MIB for end in ends] == [7, 47]


def test_what_is_in_use_stays_while_steps_go_on(own: Arena) -> None:
    held = own.take(20 * MIB)
    assert held is not None
    tensor = torch.frombuffer(held, dtype=torch.uint8).fill_(7)
    for _ in range(100):
        part = own.take(6 * MIB)
        assert part is not None
        torch.frombuffer(part, dtype=torch.uint8).fill_(1)
        del part
    assert bool((tensor == 7).all())


def _net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)
    )


def test_a_model_that_dies_gives_its_memory_back(own: Arena) -> None:
    import jitdnn.torch as jt

    model = jt.convert(_net(), measure="never")
    for _ in range(2):
        y = model(torch.randn(4, 3, 128, 128))
        y.sum().backward()
    assert own.used
    assert resident(own) >= 4 * MIB
    del model
    gc.collect()
    assert own.used  # y is there, and what its graph keeps
    del y
    gc.collect()
    assert own.used == 0
    assert resident(own) <= MIB
    assert own.kept <= 4 * MIB  # pages of 2 MiB at the ends of parts


def test_finalizers_may_run_while_a_part_is_looked_for(own: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may die wherever Python collects garbage."""
    held = [own.take(4 * MIB) for _ in range(4)]
    del held[1:3]
    place = own._place

    def interrupted(size: int) -> int | None:
        own.leave()
        return place(size)

    monkeypatch.setattr(own, "_place", interrupted)
    part = own.take(6 * MIB)
    assert part is not None
    del part, held
    assert own.used == 0


def test_a_limit_on_memory_bounds_what_stays(own: Arena) -> None:
    import jitdnn.torch as jt

    x = torch.randn(4, 3, 128, 128)
    model = jt.convert(_net(), measure="never", memory_limit="18 MiB", example=(x,))
    assert own.limit == 18 * MIB
    assert own.used == 0
    for _ in range(2):
        model(x).sum().backward()
        assert own.extent <= 18 * MIB
    other = jt.convert(_net(), measure="never")  # which has no limit
    assert own.limit == own.capacity
    jt.revert(other)
    assert own.limit == 18 * MIB
    jt.revert(model)
    assert own.limit == own.capacity
