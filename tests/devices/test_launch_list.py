"""Lists of launches: the bits of the calls they were made of, from many threads, on either pool, and after a fork."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices import openmp
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.devices.launch_list import LaunchList, Recorder
from jitdnn.errors import InvalidArgument
from jitdnn.recorders import NotRecordable, recorder_here
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa

Floats = np.ndarray[Any, np.dtype[np.float32]]
RNG = np.random.default_rng(7)
W1 = RNG.standard_normal((24, 5, 3, 3), np.float32)
W2 = RNG.standard_normal((9, 24, 1, 1), np.float32)
B = RNG.standard_normal((1, 9, 1, 1), np.float32)
KEPT = jd.KeptFilter(W1)


@jd.elementwise
def swish_and_scale(x: Any, s: Any) -> Any:
    return x / (1.0 + jd.exp(-x)) * s


def program(x: Floats, a: Floats, b: Floats, c: Floats, y: Floats) -> None:
    """Convolutions with and without a kept filter, fused and alone, a pool, a kernel with a number, a softmax."""
    jd.conv(x, KEPT, padding=1, out=a, algorithm="direct")
    swish_and_scale(a, 0.75, out=b)
    jd.conv(b, W2, B, epilogue=lambda a, b: jd.relu(a + b), out=c, algorithm="implicit_gemm")
    jd.softmax(c, axis=1, out=y)
    jd.add(y, B, out=y)


SHAPES = ((2, 5, 13, 11), (2, 24, 13, 11), (2, 24, 13, 11), (2, 9, 13, 11), (2, 9, 13, 11))


def fresh() -> list[Floats]:
    """Poisoned memory for all that is computed, at other addresses each time."""
    return [np.full(shape, np.nan, np.float32) for shape in SHAPES]


def addresses(arrays: Sequence[Floats]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def recorded(arrays: Sequence[Floats], work: Callable[..., object] = program) -> LaunchList:
    recorder = Recorder()
    for number, array in enumerate(arrays):
        assert recorder.memory(array.ctypes.data, array.nbytes) == number
    for constant in (W1, W2, B):
        recorder.constant(constant.ctypes.data, constant.nbytes, constant)
    with recorder:
        work(*arrays)
    return recorder.finish()


def expected(x: Floats) -> Floats:
    arrays = [x, *fresh()[1:]]
    program(*arrays)
    return arrays[-1]


def check(launches: LaunchList, rounds: int = 1) -> None:
    """Runs with other inputs and in other memory give the calls' bits, and write nothing else."""
    for _ in range(rounds):
        arrays = fresh()
        arrays[0][...] = RNG.standard_normal(SHAPES[0], np.float32)
        launches.run(addresses(arrays))
        np.testing.assert_array_equal(arrays[-1], expected(arrays[0]))
        assert not np.isnan(arrays[2]).any()


@pytest.fixture(params=["own", "openmp"])
def pool(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "openmp":
        pytest.importorskip("torch", reason="PyTorch is not installed: its threads cannot be shared")
        if openmp.shared("openmp") is None:
            pytest.skip(f"PyTorch's threads cannot be shared here: {openmp._refusal}")
    with jd.settings(thread_pool=request.param):
        yield request.param


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_list_gives_the_bits_of_its_calls(threads: int, pool: str) -> None:
    with jd.settings(threads=threads):
        launches = recorded(fresh())
        assert len(launches) == 5
        check(launches, 5)


def test_nothing_runs_while_it_is_recorded() -> None:
    arrays = fresh()
    recorded(arrays)
    assert all(np.isnan(array).all() for array in arrays)
    assert recorder_here() is None


def test_runs_of_several_threads_at_once(pool: str) -> None:
    """Each has its own argument blocks, and its own workspace where it is given none."""
    with jd.settings(threads=2):
        launches, failures = recorded(fresh()), []
        inputs = [RNG.standard_normal(SHAPES[0], np.float32) for _ in range(4)]
        wanted = [expected(x) for x in inputs]

    def work(number: int) -> None:
        with jd.settings(thread_pool=pool):
            for _ in range(40):
                arrays = [inputs[number], *fresh()[1:]]
                launches.run(addresses(arrays))
                if not (arrays[-1] == wanted[number]).all():
                    failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_workspace_of_the_callers() -> None:
    launches = recorded(fresh())
    room = np.zeros(launches.scratch + 128, np.uint8)
    start = room.ctypes.data + -room.ctypes.data % 64
    arrays = fresh()
    arrays[0][...] = 0.5
    launches.run(addresses(arrays), start)
    np.testing.assert_array_equal(arrays[-1], expected(arrays[0]))
    before, after = start - room.ctypes.data, start - room.ctypes.data + launches.scratch
    assert not room[:before].any()
    assert not room[after:].any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore")
def test_after_a_fork(pool: str) -> None:
    with jd.settings(threads=2):
        launches = recorded(fresh())
        check(launches)
        child = os.fork()
        if child == 0:
            try:
                check(launches, 3)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(launches)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timer signals")
def test_a_signal_handler_that_launches(pool: str) -> None:
    """In the middle of recordings and of runs, with calls and with a list of its own."""
    with jd.settings(threads=2, thread_pool=pool):
        own, x = recorded(fresh()), RNG.standard_normal(SHAPES[0], np.float32)
        wanted, seen = expected(x), []

        def handler(*_: object) -> None:
            arrays = [x, *fresh()[1:]]
            program(*arrays)
            others = [x, *fresh()[1:]]
            own.run(addresses(others))
            seen.append((arrays[-1] == wanted).all() and (others[-1] == wanted).all())

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            for _ in range(30):
                launches = recorded(fresh())
                assert len(launches) == 5
                arrays = [x, *fresh()[1:]]
                launches.run(addresses(arrays))
                np.testing.assert_array_equal(arrays[-1], wanted)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        assert seen
        assert all(seen)


def counting(phases: list[int], threads: int) -> CpuKernel:
    """Task i adds 1 to element i; element 500 + the thread's number counts too."""

    def generate(module: Module) -> None:
        with module.task("count") as (k, args, task, thread):
            cells = Arguments(k, args, 1).pointer(0, "i64")
            cells.store(cells.load(task) + 1, task)
            cells.store(cells.load(thread + 500) + 1, thread + 500)

    library = load("test-list-count", 0, isa(), generate)
    return CpuKernel(library, [("count", tasks) for tasks in phases], 1, threads)


@pytest.mark.parametrize("rounds", [1, 60])
def test_every_task_runs_once(pool: str, rounds: int) -> None:
    """Launches of many phases and of none, on more and fewer threads, and long ones on one thread between them."""
    kinds = [([1], 1), ([200, 1, 3], 2), ([], 2), ([0, 300], 3), ([7], 1), ([2, 2, 2], 7), ([400] * 40, 1)]
    cells = np.zeros(520, np.int64)
    recorder = Recorder()
    recorder.memory(cells.ctypes.data, cells.nbytes)
    with recorder:
        for phases, threads in kinds:
            counting(phases, threads)(None, [cells.ctypes.data], 1.0, 0.0, 0)
    launches = recorder.finish()
    assert launches.threads == 7
    for _ in range(rounds):
        launches.run([cells.ctypes.data])
    wanted = [sum(tasks > i for phases, _ in kinds for tasks in phases) * rounds for i in range(500)]
    assert cells[:500].tolist() == wanted
    assert cells[500:507].sum() == sum(sum(phases) for phases, _ in kinds) * rounds
    assert not cells[507:].any()


def test_workers_stay_awake_in_a_list() -> None:
    """Also through launches on one thread that take longer than a worker otherwise waits: it shares what follows."""

    def generate(module: Module) -> None:
        with module.task("slow") as (k, args, task, thread):
            cells = Arguments(k, args, 1).pointer(0, "i64")
            total = k.register(k.integer(0))
            for i in k.range(2_000_000):
                total.set(total.get() * 3 + i)
            cells.store(thread + 1, task)
            cells.store(total.get(), task + 12)

    library = load("test-list-slow", 2, isa(), generate)
    alone = CpuKernel(library, [("slow", 1)], 1, 1)
    shared = CpuKernel(library, [("slow", 12)], 1, 2)
    cells = np.zeros(24, np.int64)
    recorder = Recorder()
    recorder.memory(cells.ctypes.data, cells.nbytes)
    with recorder:
        for kernel in (alone, alone, shared):
            kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)
    launches = recorder.finish()
    with jd.settings(thread_pool="own"):
        ends = time.monotonic() + 60  # on a busy machine the other core may be somebody else's for a while
        while time.monotonic() < ends:
            launches.run([cells.ctypes.data])
            if set(cells[:12].tolist()) == {1, 2}:
                return
            time.sleep(0.01)  # who waits without working is given a core sooner
    pytest.fail(f"one thread ran all: {cells}")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_hollow_list_hands_out_tasks_that_do_nothing(threads: int, pool: str) -> None:
    """As many launches, on other memory than they were recorded on; the list itself still runs."""
    with jd.settings(threads=threads):
        launches = recorded(fresh())
        hollow = launches.hollow()
        assert len(hollow) == len(launches)
        arrays = fresh()
        for _ in range(3):
            hollow.run(addresses(arrays))
        assert all(np.isnan(array).all() for array in arrays)
        assert (hollow.threads, hollow.scratch) == (launches.threads, launches.scratch)
        check(launches)


def test_times_of_launches() -> None:
    launches, arrays = recorded(fresh()), fresh()
    arrays[0][...] = 1.0
    times = launches.times(addresses(arrays))
    assert len(times) == len(launches) + 1
    assert times == sorted(times)
    assert times[-1] > times[0]
    np.testing.assert_array_equal(arrays[-1], expected(arrays[0]))


X = np.ones((1, 4, 6, 6), np.float32)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda x, y: jd.conv(x, np.ones((4, 4, 1, 1), np.float32), out=y), "does not know"),  # another array
        (lambda x, y: jd.relu(x), "does not know"),  # a result of its own
        (lambda x, y: jd.conv(x, W3, out=y, algorithm="im2col"), "Python looks"),
        (lambda x, y: jd.conv(x, W3, out=y, algorithm="reference"), "Python looks"),
        (lambda x, y: jd.dropout(x, 0.5, jd.DropoutState(1), out=y), "does not know"),
        (
            lambda x, y: jd.embedding(INDICES, TABLE, out=y),
            "Python looks",
        ),  # checks its indices
    ],
)
def test_what_cannot_be_replayed_is_refused(work: Callable[..., object], message: str) -> None:
    x, y = X.copy(), np.empty_like(X)
    recorder = Recorder()
    recorder.memory(x.ctypes.data, x.nbytes)
    recorder.memory(y.ctypes.data, y.nbytes)
    recorder.memory(INDICES.ctypes.data, INDICES.nbytes)
    recorder.constant(W3.ctypes.data, W3.nbytes, W3)
    recorder.constant(TABLE.ctypes.data, TABLE.nbytes, TABLE)
    with recorder, pytest.raises(NotRecordable, match=message):
        work(x, y)
    assert recorder_here() is None
    assert len(recorder) == 0


W3 = np.ones((4, 4, 1, 1), np.float32)
TABLE = np.ones((8, 4), np.float32)
INDICES = np.zeros(5, np.int32)


def test_calls_on_other_memory_run() -> None:
    x = X.copy()
    recorder = Recorder()
    recorder.memory(x.ctypes.data, x.nbytes)
    with recorder:
        assert (jd.relu(-X) == 0.0).all()
    assert len(recorder) == 0


def test_recordings_do_not_nest() -> None:
    with Recorder(), pytest.raises(InvalidArgument, match="nest"), Recorder():
        pass


def test_pieces_of_memory_lie_apart() -> None:
    recorder = Recorder()
    recorder.memory(1000, 100)
    with pytest.raises(InvalidArgument, match="overlap"):
        recorder.memory(1099, 50)
    with pytest.raises(InvalidArgument, match="overlap"):
        recorder.constant(900, 101, None)
    recorder.constant(1100, 100, None)
    recorder.constant(1150, 100, None)  # constants may: views of one array
    recorder.constant(1300, 100, None)
    recorder.constant(1120, 300, None)
    assert recorder._number(1419) == recorder._number(1100) == -1
    assert recorder._number(1420) is recorder._number(999) is None
    assert recorder.takes([1150, 1099])
    assert not recorder.takes([1150, 999])


def test_an_empty_list() -> None:
    launches = Recorder().finish()
    launches.run([])
    assert (len(launches), launches.threads, launches.scratch) == (0, 1, 0)
