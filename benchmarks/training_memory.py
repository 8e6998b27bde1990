"""Training within limits on memory: predicted and measured peaks, and what they cost in time.

    python benchmarks/training_memory.py [NET ...] [--iterations N] [--timed] [--explain]

For each net what it takes without a limit, where all memory is kept for good, and for each limit: the peak that the
plan predicts and the peak that is seen (NumPy's memory, by tracemalloc; what is there all the time is counted in both),
how many steps run twice, seconds of an iteration with the plan and without, of planning, and whether losses and
gradients are those of the net without a limit: "bits" for equal bit by bit, else the largest relative difference of a
gradient, as other algorithms round otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from time import perf_counter
from typing import Any

import numpy as np

from jitdnn.caffe import Net, load_net
from jitdnn.settings import format_bytes


def _data(shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}\n'
        f'layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: {shape[0]} }} }} }}\n'
    )


def _layer(kind: str, name: str, bottom: str, more: str = "", top: str | None = None) -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top or name}" {more} }}\n'


def _conv(name: str, bottom: str, outputs: int, kernel: int, more: str = "") -> str:
    parameter = (
        f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} {more} "
        'weight_filler { type: "xavier" } }'
    )
    return _layer("Convolution", name, bottom, parameter) + _layer("ReLU", f"relu_{name}", name, top=name)


def _dense(name: str, bottom: str, outputs: int) -> str:
    return _layer(
        "InnerProduct",
        name,
        bottom,
        f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}',
    )


_LRN = "lrn_param { local_size: 5 alpha: 1e-4 beta: 0.75 }"


def _pool(kernel: int) -> str:
    return f"pooling_param {{ pool: MAX kernel_size: {kernel} stride: 2 }}"


def _top(bottom: str, width: int) -> str:
    text, below = "", bottom
    for number in (6, 7):
        text += _dense(f"fc{number}", below, width)
        text += _layer("ReLU", f"relu{number}", f"fc{number}", top=f"fc{number}")
        text += _layer("Dropout", f"drop{number}", f"fc{number}", top=f"fc{number}")
        below = f"fc{number}"
    return text + _dense("fc8", below, 100) + _layer("SoftmaxWithLoss", "loss", 'fc8" bottom: "t')


def alexnet(batch: int = 16, width: int = 1024) -> str:
    """CaffeNet's layers, its dense ones narrower."""
    return (
        _data((batch, 3, 227, 227))
        + _conv("conv1", "x", 96, 11, "stride: 4")
        + _layer("LRN", "norm1", "conv1", _LRN)
        + _layer("Pooling", "pool1", "norm1", _pool(3))
        + _conv("conv2", "pool1", 256, 5, "pad: 2 group: 2")
        + _layer("LRN", "norm2", "conv2", _LRN)
        + _layer("Pooling", "pool2", "norm2", _pool(3))
        + _conv("conv3", "pool2", 384, 3, "pad: 1")
        + _conv("conv4", "conv3", 384, 3, "pad: 1 group: 2")
        + _conv("conv5", "conv4", 256, 3, "pad: 1 group: 2")
        + _layer("Pooling", "pool5", "conv5", _pool(3))
        + _top("pool5", width)
    )


def vgg(batch: int = 8, side: int = 64) -> str:
    """The convolutions of VGG 16, a quarter as wide, on small images."""
    text, below = _data((batch, 3, side, side)), "x"
    for block, (count, outputs) in enumerate([(2, 16), (2, 32), (3, 64), (3, 128), (3, 128)], start=1):
        for number in range(1, count + 1):
            name = f"conv{block}_{number}"
            text += _conv(name, below, outputs, 3, "pad: 1")
            below = name
        text += _layer("Pooling", f"pool{block}", below, _pool(2))
        below = f"pool{block}"
    return text + _top(below, 256)


def branches(batch: int = 16) -> str:
    """Branches that end in losses of their own, as GoogLeNet's do."""
    text = _data((batch, 3, 64, 64))
    text += _conv("stem", "x", 32, 5, "pad: 2") + _layer("LRN", "norm", "stem", _LRN)
    text += _layer("Pooling", "pool", "norm", _pool(3))
    for name, outputs, kernel in (("a", 32, 1), ("b", 48, 3), ("c", 32, 5)):
        text += _conv(f"{name}1", "pool", outputs, 1) + _conv(f"{name}2", f"{name}1", outputs, kernel)
        text += _layer("Pooling", f"{name}p", f"{name}2", "pooling_param { pool: AVE global_pooling: true }")
        text += _layer("Flatten", f"{name}f", f"{name}p") + _dense(f"{name}y", f"{name}f", 100)
        text += _layer("SoftmaxWithLoss", f"{name}loss", f'{name}y" bottom: "t', "loss_weight: 0.3")
    return text


NETS = {
    "lenet": "package:models/lenet.prototxt",
    "alexnet": alexnet(),
    "vgg": vgg(),
    "branches": branches(),
}


def _make(name: str) -> Net:
    return load_net(NETS[name], "TRAIN", seed=1)


def _values(net: Net) -> dict[str, Any]:
    if not net.inputs:
        return {}
    random = np.random.default_rng(0)
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    return {
        name: random.standard_normal(shape) if len(shape) > 1 else random.integers(0, 10, shape)
        for name, shape in shapes.items()
    }


def _iterate(net: Net, values: dict[str, Any]) -> float:
    net.clear_gradients()
    net.forward(**values)
    loss = net.loss
    net.backward()
    return loss


def _results(net: Net, values: dict[str, Any]) -> tuple[float, list[Any]]:
    loss = _iterate(net, values)
    return loss, [parameter.blob.diff.copy() for parameter in net.parameters]


def _seconds(net: Net, values: dict[str, Any], iterations: int) -> float:
    _iterate(net, values)
    times = []
    for _ in range(iterations):
        start = perf_counter()
        _iterate(net, values)
        times.append(perf_counter() - start)
    return float(np.median(times))


def _peak(net: Net, values: dict[str, Any], always: int) -> int:
    """The peak of an iteration by tracemalloc; `always`: what is there all the time."""
    assert net._memory is not None
    tracemalloc.start()
    net._memory.handle.trim()
    _iterate(net, values)
    net._memory.handle.trim()
    base, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(2):
        _iterate(net, values)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most - base + always


def _compared(found: tuple[float, list[Any]], expected: tuple[float, list[Any]]) -> str:
    pairs = list(zip(found[1], expected[1], strict=True))
    if found[0] == expected[0] and all(np.array_equal(one, other) for one, other in pairs):
        return "bits"
    worst = max(float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30) for a, b in pairs)
    return f"{worst:.1e}"


def _kept_for_good(plan: Any) -> int:
    """What the net takes without a limit: every blob, every gradient, and the largest workspace."""
    chain = plan.chain
    blobs = sum(buffer.bytes for buffer in chain.buffers) + sum(
        gradient.bytes for gradient in chain.gradients
    )
    return int(chain.constant + blobs + max(moment.workspace for moment in plan.moments))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", default=list(NETS), metavar="NET", help=", ".join(NETS))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--timed", action="store_true", help="plan by measured seconds")
    parser.add_argument("--explain", action="store_true", help="print the plans")
    options = parser.parse_args()
    _say(
        f"{'net':<14}{'limit':>10}{'predicted':>11}{'measured':>10}{'off':>7}{'of it always':>14}{'rerun':>7}"
        f"{'seconds':>9}{'plain':>9}{'planning':>10}  results"
    )
    for name in options.nets:
        plain = _make(name)
        values = _values(plain)
        expected = _results(plain, values)
        before = _seconds(plain, values, options.iterations)
        del plain
        span: list[int] = []
        for limit in ("1 TiB", "least", 0.66, 0.33):
            net = _make(name)
            asked = limit if isinstance(limit, str) else round(span[1] + limit * (span[0] - span[1]))
            start = perf_counter()
            plan = net.limit_memory(asked, is_timed=options.timed or None)
            planning = perf_counter() - start
            assert plan is not None
            span.append(plan.peak)
            if len(span) == 1:
                _say(f"{name:<14}{'none':>10}{'':>11}{format_bytes(_kept_for_good(plan)):>10}")
            same = _compared(_results(net, values), expected)
            seconds = _seconds(net, values, options.iterations)
            measured = _peak(net, values, plan.chain.constant)
            shown = asked if isinstance(asked, str) else format_bytes(asked)
            _say(
                f"{name:<14}{shown:>10}{format_bytes(plan.peak):>11}{format_bytes(measured):>10}"
                f"{100 * (plan.peak / measured - 1):>6.1f}%{format_bytes(plan.chain.constant):>14}"
                f"{len(plan.rerun):>3}/{len(plan.chain.steps):<3}{seconds:>9.4f}{before:>9.4f}"
                f"{planning:>10.1f}  {same}"
            )
            if options.explain:
                _say(plan.explain())


if __name__ == "__main__":
    main()
