"""`jitdnn demo`: the whole library in a minute, on real handwritten digits.

It prints how each convolution of LeNet runs and why, trains the net, compares an iteration with the im2col +
BLAS way, saves snapshot and curves, and classifies some digits in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.bench.timing import QUIET, Method, Neighbours, interleaved, median, ratio
from jitdnn.caffe import Net, Solver, load_solver
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.paths import find
from jitdnn.cli.console import progress, say, working
from jitdnn.cli.curves import save_png
from jitdnn.cli.train import Reporter
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument
from jitdnn.handle import current_handle
from jitdnn.settings import current, settings

SOLVER = "package:models/lenet_solver.prototxt"
#: Digits drawn in the terminal; the margin around a digit is not drawn.
DRAWN = 4
_MARGIN = 4


def run_demo(folder: Path, threads: int | None) -> None:
    """Run the demonstration and leave its files in `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made: {error.strerror}") from None
    with settings(**({} if threads is None else {"threads": threads})):
        values = current()
        say(f"jitdnn on {host(values.threads, values.cpu).name}")
        reporter = Reporter()
        solver = load_solver(SOLVER, listener=reporter, snapshot_prefix=str(folder / "lenet"))
        say("LeNet, 4,000 real handwritten digits to learn from and 1,000 others to be tested with.")
        _explain(solver.net)
        seconds = _train(solver, reporter)
        accuracy = reporter.history.tests["accuracy"][-1][1]
        say(f"\n{accuracy:.1%} of 1,000 digits not seen before are right, after {seconds:.1f} s of training.")
        _compare()
        _classify(solver.test_nets[0])
    _save(reporter, folder)
    say("\nWhat to try next:")
    say("  jitdnn time package:models/lenet.prototxt          how long each layer takes")
    say('  jitdnn plan "conv_fwd n64 c20 h11 w11 k50 r5 s5" --find     measure instead of estimating')
    say("  jitdnn bench --suite resnet18 --batch 8 --peer im2col       other networks' layers")
    say(f"  jitdnn train {SOLVER} --resume {reporter.snapshots[0]}")
    say(f"  copy the prototxt files from {find('package:models/lenet.prototxt').parent},")
    say("  change the net, and train yours")


def _explain(net: Net) -> None:
    """Print the plan of every convolution that training needs."""
    for node in net.nodes:
        if not isinstance(node.layer, ConvolutionLayer):
            continue
        for direction in ("fwd", "bwd_filter", *(["bwd_data"] if node.propagate[0] else [])):
            problem = node.layer.problem(direction, node.bottom[0].shape)
            say(f"\n{node.layer.name}: {current_handle().plan(problem).explain()}")


def _train(solver: Solver, reporter: Reporter) -> float:
    """Train, telling what happens; seconds that it took, tests and snapshots included."""
    say()
    start = perf_counter()
    with progress(solver.parameter.max_iter, "training") as reporter.advance:
        solver.solve()
    return perf_counter() - start


def _compare() -> None:
    """Time an iteration side by side with one whose convolutions are im2col and NumPy's BLAS."""
    ours, theirs = (load_solver(SOLVER, algorithm=algorithm) for algorithm in (None, "im2col"))
    calls = [_iteration(ours), _iteration(theirs)]
    has_limits = find_spec("threadpoolctl") is not None
    if has_limits:
        # threads of the BLAS that wait for work keep those of the other layers from working: the baseline
        # is measured without them too, and the faster way counts
        calls.append(_with_one_blas_thread(calls[1]))
    neighbours = Neighbours()
    with working("comparing with im2col + BLAS"):
        own, *baselines = interleaved(calls, Method(rounds=9, seconds=1.0))
    baseline = min(baselines, key=median)
    times = ratio(baseline, own)
    say(f"\nAn iteration of {len(ours.net.blobs['data'].data)} digits (forward, backward, update) takes")
    say(f"  {1e3 * median(own):7.1f} ms with the generated kernels,")
    say(f"  {1e3 * median(baseline):7.1f} ms with every convolution as im2col + BLAS, Caffe's way:")
    say(
        f"training is {times:.2f} times as fast, {abs(times - 1):.0%} {'faster' if times >= 1 else 'slower'}."
    )
    say("(With its first release, in 2014, cuDNN made Caffe 36% faster on the GPUs of the day.)")
    if not has_limits:
        say("The BLAS ran with all its threads only: pip install 'jitdnn[demo]' to try it with one as well.")
    busy = neighbours.processors()
    if busy is not None and busy > QUIET:
        say(f"Other programs kept {busy:.1f} processors busy meanwhile: on a quiet machine this may differ.")


def _iteration(solver: Solver) -> Callable[[int], None]:
    def run(number: int) -> None:
        solver.net.clear_gradients()
        solver.net.forward()
        solver.net.backward()
        solver.method.update(solver.parameter.base_lr, solver.iteration)

    return run


def _with_one_blas_thread(call: Callable[[int], None]) -> Callable[[int], None]:
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()

    def run(number: int) -> None:
        with controller.limit(limits=1, user_api="blas"):
            call(number)

    return run


def _classify(net: Net) -> None:
    """Draw some digits of a test batch, some of them wrong if there are such, with what the net makes of
    them."""
    net.forward()
    images, labels = net.blobs["data"].data, net.blobs["label"].data.astype(int)
    scores = net.blobs["ip2"].data
    guesses = scores.argmax(axis=1)
    wrong = np.flatnonzero(guesses != labels)[:1]
    right = np.flatnonzero(guesses == labels)[: DRAWN - len(wrong)]
    chosen = np.concatenate([right, wrong])
    say(
        "\nSome of the test digits, as the net sees them" + (", the last one misread:" if len(wrong) else ":")
    )
    drawings = [draw(images[index, 0]) for index in chosen]
    for line in zip(*drawings, strict=True):
        say("  ".join(line).rstrip())
    captions = (
        f"{guesses[i]} ({_share(scores[i]):.0%} sure)"
        + ("" if guesses[i] == labels[i] else f", is {labels[i]}")
        for i in chosen
    )
    width = len(drawings[0][0])
    say("  ".join(caption.center(width) for caption in captions).rstrip())


def _share(scores: npt.NDArray[np.floating[Any]]) -> float:
    """The softmax of the largest score."""
    return float(1.0 / np.exp(scores - scores.max()).sum())


def draw(image: npt.NDArray[np.floating[Any]]) -> list[str]:
    """A grey image (rows, columns) as lines of text without its margin: a character is two pixels, one above
    the other, and ink is what is darker than half of the darkest."""
    marks = " ▄▀█"
    try:
        marks.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        marks = " _'#"
    ink = (image > 0.5 * image.max())[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN]
    pairs = 2 * ink[0::2].astype(int) + ink[1::2]
    return ["".join(marks[pair] for pair in row) for row in pairs]


def _save(reporter: Reporter, folder: Path) -> None:
    say(f"\nsnapshot: {reporter.snapshots[-1]}")
    if find_spec("matplotlib") is None:
        say("no curves: matplotlib is not installed; pip install 'jitdnn[plot]'")
        return
    curves = folder / "training.png"
    save_png(reporter.history, curves, "LeNet on 5,000 handwritten digits")
    say(f"curves:   {curves}")
