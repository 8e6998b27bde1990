"""Attention and recurrent layers beside PyTorch's, over PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.bench.timing import Method, interleaved, median, ratio
from jitdnn.errors import InvalidArgument
from jitdnn.settings import settings

#: Two libraries round differently; larger differences are another result.
BOUND = 1e-4
HEADS, POSITIONS, FEATURES = (4, 8), 1024, 64
#: (steps, sequences, units)
LAYERS = ((50, 32, 256), (50, 1, 512), (20, 64, 1024))


class Row(NamedTuple):
    """One case: our seconds, operations a second where they are counted, and PyTorch's time over ours."""

    name: str
    threads: int
    seconds: float
    flops: float | None
    ratio: float


class Case(NamedTuple):
    """The same computed by both, and its operations if they are counted."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    operations: float | None = None


def run(threads: Sequence[int] = (1, 2), method: Method | None = None) -> Iterator[Row]:
    """Measure all cases. Raises InvalidArgument without PyTorch, and if results differ."""
    try:
        import torch
    except ImportError:
        raise InvalidArgument("PyTorch is not installed; pip install 'jitdnn[bench]' brings it") from None
    for count in threads:
        torch.set_num_threads(count)
        with settings(threads=count):
            for case in (*_attention(torch), *_recurrent(torch)):
                _require_equal(case)
                calls = [lambda _, c=case: c.ours(), lambda _, c=case: c.theirs()]
                times = interleaved(calls, method or Method())
                seconds = median(times[0])
                rate = None if case.operations is None else case.operations / seconds
                yield Row(case.name, count, seconds, rate, ratio(times[1], times[0]))


def _require_equal(case: Case) -> None:
    for mine, other in zip(_several(case.ours()), _several(case.theirs()), strict=False):
        error = float((mine - other).norm() / other.norm())
        if not error <= BOUND:
            raise InvalidArgument(f"{case.name}: another result than PyTorch's, relative error {error:.3g}")


def _several(result: Any) -> Sequence[Any]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _attention(torch: Any) -> Iterator[Case]:
    theirs = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(*HEADS, POSITIONS, FEATURES) for _ in range(3))
    products = 4.0 * HEADS[0] * HEADS[1] * POSITIONS**2 * FEATURES
    for causal in (False, True):
        name, share = ("causal attention", 0.5) if causal else ("attention", 1.0)
        y, lse = jd.attention(q, k, v, causal=causal, return_lse=True)
        dy = torch.randn_like(y)
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        graph = theirs(*leaves, is_causal=causal)

        def forward(causal: bool = causal) -> Any:
            with torch.no_grad():
                return theirs(q, k, v, is_causal=causal)

        def ours_backward(y: Any = y, lse: Any = lse, dy: Any = dy, causal: bool = causal) -> Any:
            return jd.attention_backward(dy, q, k, v, y, lse, causal=causal)

        def backward(graph: Any = graph, leaves: Any = leaves, dy: Any = dy) -> Any:
            return torch.autograd.grad(graph, leaves, dy, retain_graph=True)

        def ours_forward(causal: bool = causal) -> Any:
            return jd.attention(q, k, v, causal=causal)

        yield Case(f"{name}, forward", ours_forward, forward, products * share)
        yield Case(f"{name}, backward", ours_backward, backward, 2.5 * products * share)


def _recurrent(torch: Any) -> Iterator[Case]:
    for name, kind, ours in (("LSTM", torch.nn.LSTM, jd.lstm), ("GRU", torch.nn.GRU, jd.gru)):
        for steps, sequences, units in LAYERS:
            layer = kind(units, units)
            x = torch.randn(steps, sequences, units)
            weights = [weight.detach() for weight in layer._flat_weights]

            def inference(layer: Any = layer, x: Any = x) -> Any:
                with torch.no_grad():
                    return layer(x)[0]

            def own(run: Any = ours, x: Any = x, weights: Any = weights) -> Any:
                return run(x, weights)[0]

            yield Case(f"{name}, {steps} steps, batch {sequences}, {units} units", own, inference)
