"""What holds for every test: a cache of our own, so that nobody's is read or written."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import turns
from process_groups import Ranks

# A first call compiles, and machines are shared: no example has a deadline. CI tries the same ones each time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jitdnn"


def pytest_configure(config: pytest.Config) -> None:
    """Before anything of the library is imported. Compiled code is kept from run to run: it is named by the
    hash of all that it depends on. Measured times are not, so that none of an earlier run decides
    anything."""
    os.environ["JITDNN_CACHE_DIR"] = str(_CACHE)
    # hundreds of tests start a process that imports the library: without byte code beside its sources each compiles
    # them again, half a second of processor, wherever the environment says that none is to be written
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # tests change what plans are made of
    os.environ["JITDNN_KEEP_PLANS"] = "off"
    # plans depend on the sizes of caches: with the same ones everywhere, what a test is there for is met everywhere
    os.environ["JITDNN_DEVICE_FILE"] = str(Path(__file__).with_name("reference_processor.json"))
    # the OpenCL driver's own cache; its optimiser takes longer than small kernels run
    os.environ["POCL_CACHE_DIR"] = str(_CACHE / "pocl")
    os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
    if not hasattr(config, "workerinput"):  # once, not in every worker
        turns.set_day(config.args_source is config.ArgsSource.TESTPATHS)
        for store in _CACHE.glob("tuning-*"):
            store.unlink(missing_ok=True)


@pytest.fixture(autouse=True, scope="session")
def no_fallbacks() -> None:
    """Code that cannot be traced for all batches is an error."""
    from jitdnn.kernels.cpu import extents

    extents.is_strict = True


def pytest_report_header() -> str | None:
    return turns.header()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], waiting = turns.split(items)
    config.hook.pytest_deselected(items=waiting)


def pytest_collection_finish() -> None:
    """What is collected stays to the end, half a million objects: no later collection of garbage goes over them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(
        50_000
    )  # tracing a kernel makes tens of thousands of objects, which live until it is compiled


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes on gloo that stay for all tests."""
    pytest.importorskip("torch", reason="several processes need PyTorch")
    made = Ranks()
    yield made
    made.close()
