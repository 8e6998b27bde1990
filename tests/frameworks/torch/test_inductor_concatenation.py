"""Concatenations of channels in Inductor's graphs: parts are written where they belong."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import as_on_gpus, close, compiled, count, trained  # noqa: E402
from jitdnn.frameworks.torch import inductor_concatenation  # noqa: E402
from jitdnn.frameworks.torch.concatenation import cat_in_place, stored  # noqa: E402
from jitdnn.frameworks.torch.kernels import channels_last_strides  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
on_gpu = as_on_gpus(inductor_concatenation)
CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
POOL = {2: nn.functional.max_pool2d, 3: nn.functional.max_pool3d}
ORDER = {2: torch.channels_last, 3: torch.channels_last_3d}


class Skip(nn.Module):
    """A level of a U-Net: a part is read by the pooling below, and put beside what comes from there."""

    def __init__(self, axes: int, gives_part: bool = False) -> None:
        super().__init__()
        conv, self._axes, self._gives_part = CONV[axes], axes, gives_part
        self.first, self.norm = conv(3, 5, 3, padding=1), NORM[axes](5, affine=True)
        self.below, self.join = conv(5, 4, 1), conv(9, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = nn.functional.leaky_relu(self.norm(self.first(x)), 0.1)
        z = nn.functional.silu(self.below(POOL[self._axes](y, 2)))
        up = z.repeat_interleave(2, -1).repeat_interleave(2, -2)
        up = up.repeat_interleave(2, 2) if self._axes == 3 else up
        joined = self.join(torch.cat((up, y), 1))
        return (joined, y) if self._gives_part else joined


def problem(axes: int, gives_part: bool = False) -> tuple[Any, Any]:
    torch.manual_seed(0)
    own = Skip(axes, gives_part).to(memory_format=ORDER[axes])
    return own, random(2, 3, *(8, 6, 4)[:axes]).contiguous(memory_format=ORDER[axes])


def by_inductor(own: Any, call: Any) -> tuple[Any, list[str]]:
    """What a call of Inductor's code gives, and the code of its graphs."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    run = torch.compile(own, options={"post_grad_custom_pre_pass": jt.InductorPass(measure="never")})
    with config.patch(fx_graph_cache=False):
        return run_and_get_code(lambda: call(run))


def places_of(code: str) -> list[tuple[str, int]]:
    """The parts that are written where they belong: of which memory, and how many elements behind its first."""
    found = re.findall(r"= reinterpret_tensor\((buf\d+), \(2, [45], .*\), (\d+)\)  # alias", code)
    return [(whole, int(offset)) for whole, offset in found]


@pytest.mark.parametrize("axes", [2, 3])
def test_a_training_step(axes: int) -> None:
    """Parts are views of memory that is allocated for the whole, and so is what was saved of them."""
    own, x = problem(axes)
    found, codes = by_inductor(own, lambda run: trained(own, run, x))
    for one, other in zip(found, trained(twin := copy.deepcopy(own), twin, x), strict=True):
        close(one, other)
    places = places_of(codes[0])
    assert sorted(offset for _, offset in places) == [0, 4]
    assert len({whole for whole, _ in places}) == 1


def test_what_the_program_is_given_lies_as_it_says() -> None:
    """A part that is a result of the model is no view of something larger."""
    own, x = problem(3, gives_part=True)
    with torch.no_grad():
        found, _ = by_inductor(own, lambda run: run(x))
    for one, other in zip(found, own(x), strict=True):
        close(one, other)
        assert one.stride() == other.stride()
    assert found[1].untyped_storage().nbytes() == 4 * found[1].numel()


def seen_by_inductor(function: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many concatenations of a function's graphs are rewritten; its results are the same."""
    counts: list[int] = []
    real = inductor_concatenation.concatenate_in_place
    monkeypatch.setattr(
        inductor_concatenation, "concatenate_in_place", lambda graph: counts.append(real(graph))
    )
    with torch.no_grad():
        found, _ = by_inductor(function, lambda run: run(x))
        close(found, function(x))
    return counts


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_others_are_left(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put side by side along other axes."""
    own = nn.Conv2d(6 if dim == 1 else 3, 4, 1).to(memory_format=torch.channels_last)

    def function(x: Any) -> Any:
        y = torch.relu(x * 3)
        return own(torch.cat((y, x * 2), dim)), y.sum()

    x = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert seen_by_inductor(function, x, monkeypatch) == [int(dim == 1)]


def test_parts_that_nothing_else_reads_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel computes them where they belong anyway."""
    own = nn.Conv2d(6, 4, 1).to(memory_format=torch.channels_last)
    x = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert seen_by_inductor(lambda x: own(torch.cat((torch.relu(x), x * 2), 1)), x, monkeypatch) == [0]


def test_a_part_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    own = nn.Conv2d(9, 4, 1).to(memory_format=torch.channels_last)

    def function(x: Any) -> Any:
        y, z = torch.relu(x * 3), x * 2 + 1
        return own(torch.cat((y, y, z), 1)), y.sum() + z.sum()

    x = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert seen_by_inductor(function, x, monkeypatch) == [1]


def test_parts_that_pointwise_operators_read_are_left() -> None:
    """Inductor computes such a concatenation where it is read."""

    def function(x: Any) -> Any:
        return torch.cat((torch.relu(x), x * 2), 1).exp()

    x = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    run, graphs, _ = compiled(function)
    close(run(x), function(x))
    assert count(graphs[0], "cat_in_place") == 0


def test_the_operators() -> None:
    xs = [random(2, 3, 4, 5), random(2, 2, 4, 5, seed=1)]
    strides = list(channels_last_strides((2, 5, 4, 5)))
    found = cat_in_place(xs, 1, strides)
    assert torch.equal(found, torch.cat(xs, 1))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.library.opcheck(cat_in_place.default, (xs, 1, strides))
    torch.library.opcheck(stored.default, (xs[0],))
