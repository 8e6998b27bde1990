"""Which tests a run of the whole suite takes where they cost the most: a part of each file a day, all in some days.

Only tests of `FOLDERS`, which compile kernels for every case or start processes, and the files of `WALKS`; and only
where pytest was started without paths: a file or folder that is named runs whole, and so does everything with
`JITDNN_TESTS=thorough`. A file of fewer tests than days has days without any. `JITDNN_TESTS_DAY` repeats a day by its
number, which the head of the report says.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from examples import THOROUGH

#: how many days all tests of `FOLDERS` take, and of `WALKS`
DAYS, FEW_DAYS = 20, 3
#: below tests/
FOLDERS = (
    # kernels are compiled for every case
    "caffe/test_caffe_compiled.py", "caffe/test_caffe_memory.py", "caffe/test_caffe_real_nets.py",
    "caffe/test_caffe_zoo.py", "frameworks/", "fuzz/", "gpu/", "graph/", "kernels/", "ops/", "planner/", "rtcg/",
    "studio/nets/test_studio_gallery.py", "studio/nets/test_studio_gallery_runs.py", "tensor/", "test_arguments.py",
    # several processes import, compile and wait for each other
    "caffe/test_caffe_decode_processes.py", "cluster/", "devices/test_openmp.py", "distributed/",
    "package/test_faults_disks.py", "package/test_faults_processes.py",
    "studio/work/test_studio_cluster_kill.py", "studio/work/test_studio_ranks.py",
)  # fmt: skip
#: slow files that notice much of what is changed elsewhere; each runs whole, as tests of a walk build on each other
WALKS = (
    "studio/web/test_data_walk.py", "test_retention.py", "studio/web/test_train_pages.py",
    "cli/test_cli.py", "studio/web/test_look_walk.py", "studio/work/test_studio_worker.py",
    "studio/web/test_look_pages.py", "studio/web/test_more_pages.py",
)  # fmt: skip
DAY = "JITDNN_TESTS_DAY"


def set_day(is_whole_suite: bool) -> None:
    """Choose today's cases, for this process and those that it starts: workers must agree, even at midnight."""
    if is_whole_suite and not THOROUGH:
        os.environ.setdefault(DAY, str(datetime.date.today().toordinal()))
    else:
        os.environ.pop(DAY, None)


def header() -> str | None:
    """What the report says of the choice; None where there is none."""
    day = os.environ.get(DAY)
    if day is None:
        return None
    part = f"part {int(day) % DAYS + 1} of {DAYS} of large files, {int(day) % FEW_DAYS + 1} of {FEW_DAYS} of walks"
    return f"tests: {part}, again by {DAY}={day}; JITDNN_TESTS=thorough runs all"


def of_the_day(names: Sequence[str], day: int, days: int = DAYS) -> set[str]:
    """Those of a file's tests whose turn it is: over `days` days each has one, and no day has none if they suffice."""
    # in an order that has nothing to do with the parameters', so that no day has all of one device or type; small files
    # begin on different days
    ordered = sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))
    begin = day if len(ordered) >= days else day + zlib.crc32(ordered[0].encode())
    return set(ordered[begin % days :: days])


def split(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Collected tests that run, and those that have their turn another day."""
    if DAY not in os.environ:
        return list(items), []
    files = defaultdict(list)
    day = int(os.environ[DAY])
    waiting = set()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(FOLDERS):
            files[name.partition("::")[0]].append(item.nodeid)
        elif name.startswith(WALKS) and (WALKS.index(name.partition("::")[0]) - day) % FEW_DAYS:
            waiting.add(item.nodeid)
    waiting |= {name for names in files.values() for name in set(names) - of_the_day(names, day)}
    return [i for i in items if i.nodeid not in waiting], [i for i in items if i.nodeid in waiting]
