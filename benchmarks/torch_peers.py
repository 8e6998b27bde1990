"""What the benchmarks of networks in PyTorch run: every way to call a model, and one process for each measurement."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

INFERENCE = (
    "eager",
    "eager_last",
    "compile",
    "freezing",
    "compile_ours",
    "freezing_ours",
    "fused",
    "fused_limited",
    "backend",
)
TRAINING = ("eager", "eager_last", "compile", "converted", "converted_last", "compile_ours")
OURS = ("compile_ours", "freezing_ours", "fused", "fused_limited", "backend", "converted", "converted_last")
MEANING = {
    "eager": "PyTorch, eager",
    "eager_last": "PyTorch, eager, channels last",
    "compile": "torch.compile",
    "freezing": "torch.compile, frozen",
    "compile_ours": "torch.compile with our pass",
    "freezing_ours": "torch.compile, frozen, with our pass",
    "fused": "jt.fuse",
    "fused_limited": "jt.fuse, memory_limit",
    "backend": 'torch.compile(backend="jitdnn")',
    "converted": "jt.convert, eager",
    "converted_last": "jt.convert, eager, channels last",
}


def network(name: str) -> Any:
    """A network by its name, in evaluation mode, the same weights at each call; `timm:NAME` where timm is installed."""
    import torch

    from torch_zoo import MODELS, settled
    from torch_zoo_axes import MODELS as AXES

    torch.manual_seed(0)
    if name in AXES:
        return AXES[name].build().eval()
    if name.startswith("timm:"):
        import timm

        return timm.create_model(name.removeprefix("timm:")).eval()
    return settled(MODELS[name]())


def names() -> list[str]:
    """All networks that have a definition here."""
    from torch_zoo import MODELS

    return list(MODELS)


def without_dropout(model: Any) -> Any:
    """The model with dropout that drops nothing: peers draw other numbers."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def _last(*given: Any) -> list[Any]:
    """Copies with channels last in memory."""
    import torch

    return [copy.deepcopy(one).to(memory_format=torch.channels_last) for one in given]


def _compiled(peer: str, own: Any, **named: Any) -> Callable[..., Any]:
    """A function of its own for each peer: what Dynamo keeps for one piece of code it would hand to all."""
    import torch

    space: dict[str, Any] = {"own": own}
    exec(compile("def run(*x):\n return own(*x)", f"<{peer}>", "exec"), space)
    return torch.compile(space["run"], **named)


def inference(
    peer: str, model: Any, x: Any, measure: str = "first", memory_limit: str | None = None
) -> Callable[[], Any]:
    """What runs a model without gradients, compiled when this returns where it is; the limit is of `fused_limited`."""
    import torch._inductor.config as inductor

    import jitdnn.torch as jt
    from jitdnn.frameworks.torch.backend import register

    if peer == "eager":
        return lambda: model(x)
    if peer == "eager_last":
        last, y = _last(model, x)
        return lambda: last(y)
    if peer in ("fused", "fused_limited"):
        limit = memory_limit if peer == "fused_limited" else None
        fused = jt.fuse(model, measure=measure, memory_limit=limit)
        return lambda: fused(x)
    own = copy.deepcopy(model)
    if peer == "backend":
        register()
        function = _compiled(peer, own, backend="jitdnn", options={"measure": measure})
        return lambda: function(x)
    function = _compiled(peer, own)
    ours = jt.InductorPass(measure=measure) if peer.endswith("_ours") else None
    with inductor.patch(freezing=peer.startswith("freezing"), post_grad_custom_pre_pass=ours):
        function(x)
    return lambda: function(x)


def training(
    peer: str, model: Any, x: Any, labels: Any, measure: str = "first"
) -> tuple[Any, Callable[[], None]]:
    """A peer's own copy of a model, and what runs one step of it: cross-entropy and the backward pass."""
    import torch

    import jitdnn.torch as jt
    from jitdnn.frameworks.torch.backend import register

    own, y = _last(model, x) if peer.endswith("_last") else (copy.deepcopy(model), x)
    if peer.startswith("converted"):
        jt.convert(own, measure=measure)
    run = own
    if peer == "compile":
        run = _compiled(peer, own)
    elif peer == "compile_ours":
        register()
        run = _compiled(peer, own, backend="jitdnn_inductor", options={"measure": measure})

    def step() -> None:
        for parameter in own.parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(run(y), labels).backward()

    return own, step


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = perf_counter()
    run()
    return perf_counter() - begin


@contextlib.contextmanager
def turn(folder: Path | None) -> Iterator[None]:
    """Hold one file of a folder in a block, waiting for one; nothing without a folder.

    Of all processes that name the same folder as many are in such a block at once as it has files.
    """
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open()) for path in sorted(folder.iterdir())]
        while not any(_locked(file) for file in files):
            sleep(0.1)
        yield


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def children(
    script: str, calls: Sequence[tuple[dict[str, Any], Sequence[str]]], limit: float, into: Path | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a script once for each cell of a table, each in a process of its own, and give the rows that they wrote.

    `calls`: what tells the cell's row from others, with "peers", which it must have; and the words that measure it.
    What takes longer than `limit` seconds is ended with all its processes and told in the second list, as is what
    fails. `into` has all rows so far after each call, so that nothing is lost when the script is stopped: cells that
    are in it already are not measured again.
    """
    kept = read(into)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for cell, words in calls:
            known = next((one for one in kept if is_cell(one, cell)), None)
            if known is not None:
                sys.stderr.write(f"{' '.join(words)}: in {into} already\n")
                rows.append(known)
                continue
            file = Path(folder, "rows.jsonl")
            file.unlink(missing_ok=True)
            begin = perf_counter()
            code = _ended([sys.executable, script, *words, "--json", str(file)], limit)
            took = f"{' '.join(words)}: {perf_counter() - begin:.0f} s"
            found = read(file)
            rows += found
            if code != 0:
                failures.append(
                    f"{took}: {'longer than --limit' if code is None else f'ended with status {code}'}"
                )
            sys.stderr.write(f"{took}\n")
            if into is not None:
                kept = [*(one for one in kept if not any(same_cell(one, new) for new in found)), *found]
                write(kept, into)
    return rows, failures


def _ended(command: Sequence[str], limit: float) -> int | None:
    """The status of a command; None where it took too long and was ended, and what it had started with it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(limit)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


#: what tells rows of one table apart, where they have it
CELL = ("model", "what", "batch", "threads", "side", "device", "measure", "clock", "peer", "memory_limit")


def is_cell(row: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Whether a row is that of a cell, and has all its peers."""
    return all(row.get(key) == cell.get(key) for key in CELL) and all(
        row.get(peer) is not None or peer in row.get("failed", {}) for peer in cell.get("peers", ())
    )


def same_cell(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows are of one cell, perhaps with other peers."""
    return all(one.get(key) == other.get(key) for key in CELL)


def read(file: Path | None) -> list[dict[str, Any]]:
    """The rows of a file; none of one that is not there."""
    if file is None or not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def add(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Put rows into a file, in the places of those of the same cells."""
    write([*(one for one in read(file) if not any(same_cell(one, new) for new in rows)), *rows], file)


def write(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Rows as lines of JSON; the file is replaced at once."""
    part = file.with_name(file.name + ".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(file)


def conditions() -> dict[str, Any]:
    """What a row says of where it was measured."""
    import torch

    from jitdnn.rtcg.isa import processor_name

    return {
        "torch": torch.__version__,
        "machine": processor_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def ratio_lines(
    rows: Sequence[dict[str, Any]], peers: Sequence[str], ours: Sequence[str], what: str
) -> list[str]:
    """Geometric means and least values of the times of peers over the best of ours, of the rows that have both."""
    lines = []
    for peer in (one for one in peers if one not in ours):
        ratios = {}
        for row in rows:
            best = [row[own] for own in ours if row.get(own) is not None]
            if best and row.get(peer) is not None:
                ratios[f"{row['model']} n{row['batch']}, {row['threads']} threads"] = row[peer] / min(best)
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            least = min(ratios, key=lambda one: ratios[one])
            lines.append(f"{peer} / {what}: geometric mean {mean:.2f}, least {ratios[least]:.2f} ({least})")
    return lines


def cells(row: dict[str, Any], peers: Sequence[str], width: int, digits: int) -> str:
    """The times of a row, and a dash where there is none."""
    return "".join(
        f"{row[peer]:{width}.{digits}f}" if row.get(peer) is not None else f"{'-':>{width}s}"
        for peer in peers
    )


def failed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What peers of these rows failed, a line for each."""
    return [
        f"{row['model']} n{row['batch']}: {peer}: {why}"
        for row in rows
        for peer, why in row.get("failed", {}).items()
    ]
