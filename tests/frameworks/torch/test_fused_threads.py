"""`fuse` in several threads: calls at once, and calls while another thread captures the same modules' graph."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import Tensor, nn  # noqa: E402

from jitdnn.frameworks.torch.fused import fuse  # noqa: E402
from torch_zoo import SMALL, settled  # noqa: E402


def agrees(got: Tensor, wanted: Tensor) -> None:
    """Up to 1e-5 of the largest element."""
    largest = max(1e-3, wanted.abs().max().item())
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * largest, check_stride=True)


def test_threads_that_call_at_once() -> None:
    model = settled(SMALL["mobilenet_v2"]()).eval()
    fused = fuse(model, measure="never")
    inputs = [torch.randn(1, 3, 32, 32) for _ in range(4)]
    wanted = [model(x) for x in inputs]
    fused(inputs[0])
    got: list[Any] = [None] * 4

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(5):
            got[number] = fused(inputs[number])

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(got, wanted, strict=True):
        agrees(one, other)


def during_a_capture(
    call: Callable[[], Tensor], capturing: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """Results of a call that another thread makes while `capturing`, of 5 rows of a linear layer, is in that layer; and
    of the latter. Meanwhile the layer's weights are those of the capture."""
    swapped, has_read, got = Event(), Event(), list[Tensor]()
    real = nn.Linear.forward

    def forward(self: nn.Linear, input: Tensor) -> Tensor:
        if len(input) == 5:
            swapped.set()
            has_read.wait(0.2)  # the other thread waits for the end of this
        return real(self, input)

    def work() -> None:
        swapped.wait()
        with torch.no_grad():
            got.append(call().clone())
        has_read.set()

    monkeypatch.setattr(nn.Linear, "forward", forward)
    thread = Thread(target=work)
    thread.start()
    captured = capturing()
    thread.join()
    return got[0], captured


def test_a_call_while_another_thread_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 3).eval()
    fused, x, y = fuse(model, measure="never"), torch.randn(2, 4), torch.randn(5, 4)
    wanted = fused(x).clone()
    got, captured = during_a_capture(lambda: fused(x), lambda: fused(y), monkeypatch)
    assert torch.equal(got, wanted)
    agrees(captured, model(y))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_call_of_another_function_of_a_model_while_a_thread_captures(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the weights waits, and so does a capture, which else put those of the other one there for ever."""
    model = nn.Sequential(nn.Linear(4, 3)).eval().requires_grad_(False)
    fused, other = fuse(model, measure="never"), fuse(model[0], measure="never")
    x, y = torch.randn(2, 4), torch.randn(5, 4)
    weight, wanted = model[0].weight, [model(x), model(y)]
    if is_known:
        other(x)
    got, captured = during_a_capture(lambda: other(x), lambda: fused(y), monkeypatch)
    agrees(got, wanted[0])
    agrees(captured, wanted[1])
    assert model[0].weight is weight
