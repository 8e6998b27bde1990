"""Steps of fused graphs that are joined to one list of launches: the same results, whatever happens around them."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn as jd  # noqa: E402
import jitdnn.torch as jt  # noqa: E402
from jitdnn.devices.launch_list import LaunchList, Recorder  # noqa: E402
from jitdnn.frameworks.torch import joined  # noqa: E402
from jitdnn.frameworks.torch.program import Program  # noqa: E402
from jitdnn.handle import Handle  # noqa: E402
from jitdnn.ops.kept_filter import KeptFilter  # noqa: E402
from torch_zoo import settled  # noqa: E402


class Branches(nn.Module):
    """Residuals, a mean, a normalization, and an operator in the middle that is PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.three, self.four = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 24, 1)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.one(x))
        y = nn.functional.gelu(self.two(y)) + y
        y = self.four(torch.relu(self.four(y)))
        y = self.four(self.three(torch.flip(y, (2,)))) + y
        return self.out(self.norm(nn.functional.max_pool2d(y, 2).mean((2, 3))))


def model() -> nn.Module:
    torch.manual_seed(0)
    return settled(Branches())


def images(count: int = 2, seed: int = 0) -> Any:
    return torch.randn(count, 3, 14, 13, generator=torch.Generator().manual_seed(seed))


def program(fused: Any) -> Program:
    ((function, _),) = fused._functions.values()
    prepared = [*function._programs.young.values(), *function._programs.old.values()]
    found: Program = prepared[-1].program
    return found


def calls(text: str) -> tuple[int, int]:
    """Stretches that are joined in a program's text, and steps that are not."""
    found = [name[0] for name in re.findall(r"\b[lf]\d+\(", text)]
    return found.count("l"), found.count("f")


def agrees(got: Any, net: nn.Module, x: Any) -> None:
    torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[1, 2])
def fused(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield jt.fuse(model(), measure="never")
    torch.set_num_threads(before)


def test_stretches_before_and_behind_what_is_pytorchs(fused: Any) -> None:
    with torch.no_grad():
        for seed in range(4):
            x = images(seed=seed)
            agrees(fused(x), fused.model, x)
    stretches, alone = calls(program(fused).text)
    assert stretches == 2
    assert alone == 4  # what reads the input, what gives the result, the flip and what reads that


def test_new_weights(fused: Any) -> None:
    x = images()
    with torch.no_grad():
        for _ in range(2):
            fused(x)
        fused.model.two.weight.mul_(-1.5)
        fused.model.norm.bias.add_(1.0)
        for _ in range(3):
            agrees(fused(x), fused.model, x)


def test_filters_are_kept_once_for_several_kinds_of_inputs(
    fused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches read those that the next kind finds: none has another copy."""
    made: list[LaunchList] = []

    def replayer(self: Handle, launches: LaunchList) -> Any:
        if len(launches) > 1:  # no step that is measured by itself
            made.append(launches)
        return launches.run

    monkeypatch.setattr(Handle, "replayer", replayer)
    with torch.no_grad():
        for count in (2, 3, 2, 5, 3, 2):  # with each new kind all are joined anew
            x = images(count)
            agrees(fused(x), fused.model, x)
    assert len(made) == 2 * 6
    ((function, _),) = fused._functions.values()
    kept = [one for one in function._shared.values() if isinstance(one, KeptFilter)]
    known = {id(prepared.memory) for one in kept for _, prepared in one._all()}
    read = {id(one) for launches in made[-6:] for one in launches._owners if isinstance(one, np.ndarray)}
    assert read
    assert read <= known


def test_threads_at_once(fused: Any) -> None:
    x = [images(seed=seed) for seed in range(4)]
    found: dict[int, Any] = {}
    with torch.no_grad():
        fused(x[0])
        wanted = [fused.model(one) for one in x]

    def run(number: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                found[number] = fused(x[number]).clone()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in found.items():
        torch.testing.assert_close(one, wanted[number], rtol=1e-4, atol=1e-4)


def test_each_kernel_is_logged_where_that_is_asked_for(fused: Any, caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad(), jd.settings(log="debug"), caplog.at_level(logging.DEBUG, "jitdnn"):
        fused(images())
        caplog.clear()
        fused(images())
    assert not calls(program(fused).text)[0]
    assert sum("ran conv_fwd" in record.getMessage() for record in caplog.records) >= 7


def test_who_records_launches_sees_each(fused: Any) -> None:
    x = images()
    with torch.no_grad():
        fused(x)
        fused(x)
        recorder = Recorder()
        with recorder:
            agrees(fused(x), fused.model, x)
        assert not len(recorder)  # none is in memory that it knows


def test_a_list_has_all_of_a_step_or_nothing() -> None:
    arena, given = torch.zeros(64), torch.ones(8)
    steps = [
        joined.Step(0, lambda: None, ()),  # launches nothing
        joined.Step(1, lambda: double(given, arena[:8]), (given,)),
        joined.Step(2, lambda: double(arena[:8], arena[16:24]), ()),
        joined.Step(3, lambda: double(torch.ones(8), arena[32:40]), ()),  # reads what nobody knows
        joined.Step(4, lambda: double(given, arena[48:56]), (given,)),
    ]
    found = joined.stretches([steps], arena, lambda launches: launches.run)
    assert [(one.first, one.last) for one in found] == [(1, 2)]
    assert not arena.any()  # nothing has run
    found[0].run([arena.data_ptr()])
    assert arena[:8].tolist() == [2.0] * 8
    assert arena[16:24].tolist() == [4.0] * 8
    assert not arena[24:].any()


def double(x: Any, out: Any) -> None:
    jd.elementwise(lambda a: a + a)(x, out=out)
