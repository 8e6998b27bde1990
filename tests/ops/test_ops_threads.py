"""Ops called from many threads at once, through one handle and many, and in a child after a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import jitdnn as jd
from jitdnn.handle import current_handle

THREADS, TURNS = 6, 12


def together(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Run `work(number)` in threads that start at once; the first error is raised here."""
    start, errors = threading.Barrier(threads), []

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def data(number: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng((number, turn))
    # half of the threads do the same problem, half one of their own
    n = 2 if number % 2 else 1 + number
    return (
        generator.standard_normal((n, 4, 12, 11)).astype(np.float32),
        generator.standard_normal((8, 4, 3, 3)).astype(np.float32),
    )


@pytest.mark.parametrize("algorithm", [None, "im2col"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_threads_do_not_disturb_each_other(algorithm: str | None, is_shared: bool) -> None:
    shared = jd.Handle() if is_shared else None

    def work(number: int) -> None:
        for turn in range(TURNS):
            x, w = data(number, turn)
            y = jd.conv(x, w, padding=1, algorithm=algorithm, handle=shared)
            expected = F.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1)
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)

    together(work)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


LSTM_WEIGHTS = [normal(64, 9), normal(64, 16), normal(64), normal(64)]
# large enough for several tasks, with partial results in scratch memory
SHARED = {
    "layer_norm_backward": lambda x: jd.layer_norm_backward(
        x[0, 0], x[0, 1], x[0, 2, 0], np.zeros((40, 1), "f"), np.ones((40, 1), "f")
    ),
    "batch_norm": lambda x: jd.batch_norm(x, save=True),
    "reduce": lambda x: jd.reduce(x, "norm2", (0, 2), indices=False),
    "max_pool": lambda x: jd.max_pool(x, 3, stride=2, padding=1, return_indices=True),
    "embedding_backward": lambda x: jd.embedding_backward(x[0, 0], np.arange(40) % 7, 7),
    "cross_entropy": lambda x: jd.cross_entropy(x[0, 0], np.arange(40) % 50, return_saved=True),
    "attention": lambda x: jd.attention(x, x, x, causal=True, return_lse=True),
    "attention_backward": lambda x: jd.attention_backward(x, x, x, x, x, x[..., 0]),
    "lstm": lambda x: jd.lstm(np.ascontiguousarray(x[0, :, :, :9]), LSTM_WEIGHTS, training=True),
    "dropout": lambda x: jd.dropout(x, 0.5, jd.DropoutState(3))[:1],
    "elementwise": lambda x: jd.gelu(x),
}


def test_four_threads_share_a_handle() -> None:
    """Each thread begins with another op, and meets the others on the way: every result is that of one thread."""
    inputs = [normal(2, 3, 40, 50), 1 + normal(2, 3, 40, 50)]
    with jd.Handle():
        expected = {(name, i): as_tuple(run(x)) for name, run in SHARED.items() for i, x in enumerate(inputs)}
    shared, names = jd.Handle(), list(SHARED)

    def work(number: int) -> None:
        with shared:
            for turn in range(5 * len(names)):
                name, chosen = names[(turn + 3 * number) % len(names)], (turn + number) % 2
                found = as_tuple(SHARED[name](inputs[chosen]))
                for one, other in zip(found, expected[name, chosen], strict=True):
                    np.testing.assert_array_equal(one, other)

    together(work, 4)


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_a_race_for_a_new_kind_of_call_makes_one_plan() -> None:
    handle = jd.Handle()
    x, w = data(1, 0)
    seen: list[Any] = []

    class Recorder(jd.Handle):
        def run(self, plan: Any, *rest: Any) -> None:
            seen.append(plan)
            super().run(plan, *rest)

    handle = Recorder()
    together(lambda number: seen.append(None) or jd.conv(x, w, dilation=2, handle=handle))
    plans = [plan for plan in seen if plan is not None]
    assert len(plans) == THREADS
    assert all(plan is plans[0] for plan in plans)


def test_every_thread_has_a_handle_of_its_own_unless_one_is_entered() -> None:
    handles: list[jd.Handle] = []
    together(lambda number: handles.append(current_handle()))
    assert len(set(map(id, handles))) == THREADS
    with jd.Handle() as outer:
        assert current_handle() is outer
        with jd.Handle() as inner:
            assert current_handle() is inner
        assert current_handle() is outer
    assert current_handle() is not outer


def test_a_child_process_computes_after_a_fork() -> None:
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, jitdnn as jd
x, w = np.ones((4, 8, 32, 32), "f"), np.ones((16, 8, 3, 3), "f")
with jd.settings(threads=2):
    before = jd.conv(x, w, padding=1)
    child = os.fork()
    after = jd.conv(x, w, padding=1)
    other = jd.conv(x, w[:8], padding=1)
    good = np.array_equal(before, after) and np.array_equal(before[:, :8], other)
if child == 0:
    os._exit(0 if good else 1)
_, status = os.waitpid(child, 0)
print("parent", good, "child", status == 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "parent True child True\n", done.stderr
