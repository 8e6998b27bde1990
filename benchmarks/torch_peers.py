"""What the benchmarks of networks in PyTorch run: every way to call a model, and one process for each measurement."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
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
    "backend",
)
TRAINING = ("eager", "eager_last", "compile", "converted", "converted_last", "compile_ours")
OURS = ("compile_ours", "freezing_ours", "fused", "backend", "converted", "converted_last")
MEANING = {
    "eager": "PyTorch, eager",
    "eager_last": "PyTorch, eager, channels last",
    "compile": "torch.compile",
    "freezing": "torch.compile, frozen",
    "compile_ours": "torch.compile with our pass",
    "freezing_ours": "torch.compile, frozen, with our pass",
    "fused": "jt.fuse",
    "backend": 'torch.compile(backend="jitdnn")',
    "converted": "jt.convert, eager",
    "converted_last": "jt.convert, eager, channels last",
}


def network(name: str) -> Any:
    """A network by its name, in evaluation mode, the same weights at each call; `timm:NAME` where timm is installed."""
    import torch

    from torch_zoo import MODELS, settled

    torch.manual_seed(0)
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


def inference(peer: str, model: Any, x: Any, measure: str = "first") -> Callable[[], Any]:
    """What runs a model without gradients; compiled peers are compiled when this returns."""
    import torch._inductor.config as inductor

    import jitdnn.torch as jt
    from jitdnn.frameworks.torch.backend import register

    if peer == "eager":
        return lambda: model(x)
    if peer == "eager_last":
        last, y = _last(model, x)
        return lambda: last(y)
    if peer == "fused":
        fused = jt.fuse(model, measure=measure)
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


def children(
    script: str, calls: Sequence[Sequence[str]], limit: float, into: Path | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a script once for each list of words, each in a process of its own, and give the rows that they wrote.

    What takes longer than `limit` seconds is ended and told in the second list, as is what fails. `into` has all rows
    so far after each call, so that nothing is lost when the script is stopped.
    """
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for words in calls:
            file = Path(folder, "rows.jsonl")
            file.unlink(missing_ok=True)
            command = [sys.executable, script, *words, "--json", str(file)]
            begin = perf_counter()
            try:
                code = subprocess.run(
                    command, stdout=subprocess.DEVNULL, timeout=limit, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
            took = f"{' '.join(words)}: {perf_counter() - begin:.0f} s"
            if file.exists():
                rows += [json.loads(line) for line in file.read_text().splitlines()]
            if code != 0:
                failures.append(
                    f"{took}: {'longer than --limit' if code is None else f'ended with status {code}'}"
                )
            sys.stderr.write(f"{took}\n")
            if into is not None:
                write(rows, into)
    return rows, failures


def write(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Rows as lines of JSON; the file is replaced at once."""
    part = file.with_name(file.name + ".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(file)
