"""Databases in processes that fork, are interrupted, or end while their threads read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_databases import records, write_lmdb

HELD = """
import faulthandler, os, sys, threading
sys.path[:0] = {path!r}
from jitdnn import locks
from jitdnn.caffe import databases, load_net
net = load_net({text!r}, "TRAIN", seed=1)
net.forward()
work = net.layers[0]._pipeline._work
held, end = threading.Event(), threading.Event()

def hold(lock):
    with lock:
        held.set()
        end.wait(30)

def use():  # in the child: what another thread held is free there
    with locks_of[{which!r}]:
        pass
    load_net({text!r}, "TRAIN", seed=1).forward()
    net.forward()
    os._exit(0)

locks_of = {{"databases": databases._lock, "pipeline": work.changed, "made": locks.lock()}}
threading.Thread(target=hold, args=[locks_of[{which!r}]], daemon=True).start()
held.wait(30)
child = os.fork()
if not child:
    locks_of["pipeline"] = work.changed  # a new one
    faulthandler.dump_traceback_later(20, exit=True)  # it waits for ever
    use()
print(os.waitpid(child, 0)[1])
end.set()
"""


@pytest.mark.parametrize("which", ["databases", "pipeline", "made"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_lock_that_another_thread_held_at_a_fork_is_free_behind_it(tmp_path: Path, which: str) -> None:
    write_lmdb(tmp_path / "db", records("png"))
    text = f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
                        data_param {{ source: "{tmp_path}/db" batch_size: 4 prefetch: 2 }} }}"""
    script = HELD.format(path=sys.path, text=text, which=which)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


READING = """
import faulthandler, os, sys, threading
from pathlib import Path
sys.path[:0] = {path!r}
from jitdnn.caffe.databases import open_database
database = open_database(Path({folder!r}))
end = threading.Event()

def read():
    while not end.is_set():
        list(database.records(1))

threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(60):
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(10, exit=True)  # it waits for ever
        count = len(list(open_database(Path({folder!r})).records()))
        os._exit(0 if count == 11 else 3)
    codes.add(os.waitpid(child, 0)[1])
end.set()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_database_that_other_threads_read_can_be_opened_behind_a_fork(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "db", records())
    script = READING.format(path=sys.path, folder=str(tmp_path / "db"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("{0}", "")


PROCESS = """
import os, sys
sys.path[:0] = {path!r}
from jitdnn.caffe import load_net
net = load_net({text!r}, "TRAIN", seed=1)
net.forward()
if {kind!r} == "fork":
    child = os.fork()
    found = net.forward()["label"].tolist() + net.forward()["label"].tolist()
    if child:
        code = os.waitpid(child, 0)[1]
        print(found, code)
    else:
        os._exit(0 if found == [104.0, 105.0, 106.0, 107.0, 108.0, 109.0, 110.0, 100.0] else 1)
elif {kind!r} == "interrupt":
    import signal, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    net.layers[0].source.decode = lambda record: threading.Event().wait(60)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            net.forward()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("exit", ""),
        ("fork", f"{[float(100 + i % 11) for i in range(4, 12)]} 0"),
        ("interrupt", "interrupted"),
    ],
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_ends_forks_and_is_interrupted(tmp_path: Path, kind: str, output: str) -> None:
    write_lmdb(tmp_path / "db", records("png"))
    text = f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
                        data_param {{ source: "{tmp_path}/db" batch_size: 4 prefetch: 2 }} }}"""
    script = PROCESS.format(path=sys.path, text=text, kind=kind)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout.strip(), done.stderr) == (output, "")
