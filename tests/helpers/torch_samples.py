"""PyTorch's own samples of its operators, run through this package and compared: `python tests/helpers/torch_samples.py
[--write] [operators]` runs them all, or those whose name contains a word, and tells what differs."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

import jitdnn as jd
import torch_arithmetic  # noqa: F401  its adapters
import torch_networks  # noqa: F401
import torch_pointwise  # noqa: F401
from paths import ROOT
from torch_adapters import ADAPTERS, REFUSALS, Refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

# each list of samples looks for its unittest through the whole stack, sources and all: a quarter of the time
for _module in (common_utils, core):
    _module.extract_test_fn = lambda: None

RECORD = ROOT / "docs" / "torch_samples.json"
DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
# operators have up to 1440 samples: of more than these as many are taken, evenly spread (a sample's shapes and options
# compile kernels of its own, in float32 and in float64)
MOST = {torch.float64: 8, torch.float32: 4}
# PyTorch's derivative multiplies by 1/6 rounded to float32, also in float64
COARSE = {"nn.functional.hardsigmoid": 1e-7}


class Outcome(NamedTuple):
    """What became of an operator's samples; `refused` counts by reason, `failed` says what and why."""

    samples: int
    tried: int
    agreed: int
    gradients: int
    refused: dict[str, int]
    failed: tuple[str, ...]


def label(info: Any) -> str:
    return info.name + (f" ({info.variant_test_name})" if info.variant_test_name else "")


OPERATORS = {
    label(info): info
    for info in op_db
    if info.name in ADAPTERS and set(DTYPES) <= set(info.supported_dtypes("cpu"))
}


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among the arguments, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one)


def copy_of(value: Any) -> Any:
    """The same arguments in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: copy_of(one) for key, one in value.items()}
    return type(value)(map(copy_of, value)) if type(value) in (list, tuple) else value


def agree(mine: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Equal up to rounding, with PyTorch's shapes and types."""
    if isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs), what
        for one, other in zip(mine, theirs, strict=True):
            agree(one, other, tolerance, what)
        return
    theirs = theirs.detach()
    finite = theirs.double().nan_to_num(0, 0, 0)
    scale = max(1.0, float(finite.abs().max())) if theirs.numel() else 1.0
    torch.testing.assert_close(
        mine.detach(), theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


def compare(info: Any, sample: Any, dtype: torch.dtype) -> bool:
    """Compare one sample: the result, what is updated in place, gradients; returns whether any gradient was."""
    tolerance = max(TOLERANCE[dtype], COARSE.get(info.name, 0.0))
    arguments = [sample.input, list(sample.args), dict(sample.kwargs)]
    copies = copy_of(arguments)
    theirs = info(copies[0], *copies[1], **copies[2])
    mine, gradients = ADAPTERS[info.name](arguments[0], *arguments[1], **arguments[2])
    agree(mine, theirs, tolerance, "result")
    tensors = [t for t in tensors_of(copies) if t.is_floating_point()]
    agree([t for t in tensors_of(arguments) if t.is_floating_point()], tensors, tolerance, "arguments")
    wanted = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    if gradients is None or not wanted or not isinstance(theirs, torch.Tensor) or not theirs.requires_grad:
        return False
    generator = torch.Generator().manual_seed(0)
    dy = torch.randn(theirs.shape, generator=generator, dtype=theirs.dtype)
    expected = torch.autograd.grad(theirs, [tensors[n] for n in wanted], dy, allow_unused=True)
    found = gradients(dy)
    assert len(found) == len(tensors), f"{len(found)} gradients of {len(tensors)} tensors"
    compared = False
    for number, other in zip(wanted, expected, strict=True):
        if found[number] is not None:
            zeros = torch.zeros_like(tensors[number])
            agree(found[number], zeros if other is None else other, tolerance, f"gradient {number}")
            compared = True
    return compared


def run(info: Any, dtype: torch.dtype) -> Outcome:
    """Compare an operator's samples of this type."""
    torch.manual_seed(0)
    agreed, gradients, refused, failed = 0, 0, Counter[str](), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=info.supports_autograd))
        tried, most = samples, MOST[dtype]
        if len(samples) > most:
            tried = [samples[number * (len(samples) - 1) // (most - 1)] for number in range(most)]
        for sample in tried:
            try:
                gradients += compare(info, sample, dtype)
            except Refused as reason:
                refused[str(reason)] += 1
            except Exception as error:
                reason = REFUSALS.get(next((part for part in REFUSALS if part in str(error)), ""))
                if reason is not None and isinstance(error, jd.JitdnnError):
                    refused[reason] += 1
                    continue
                failed.append(f"{sample.summary()}: {type(error).__name__}: {error}")
            else:
                agreed += 1
    return Outcome(len(samples), len(tried), agreed, gradients, dict(sorted(refused.items())), tuple(failed))


def recorded(outcome: Outcome) -> dict[str, Any]:
    """What the record keeps of an outcome."""
    kept = outcome._asdict()
    del kept["failed"]
    return kept


def main() -> int:
    """Run all; tell what failed, and write the record with `--write`."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    made: dict[str, dict[str, Any]] = {}
    failures = 0
    for name, info in OPERATORS.items():
        if words and not any(word in name for word in words):
            continue
        for dtype in DTYPES:
            start = time.process_time()
            outcome = run(info, dtype)
            spent = time.process_time() - start
            made.setdefault(name, {})[str(dtype).removeprefix("torch.")] = recorded(outcome)
            failures += len(outcome.failed)
            sys.stdout.write(f"{name} {dtype}: {recorded(outcome)}, {spent:.1f} s\n")
            for text in outcome.failed:
                sys.stdout.write(f"  failed: {text}\n")
            sys.stdout.flush()
    if "--write" in sys.argv and not words and not failures:
        record = {"torch": torch.__version__.split("+")[0], "operators": made}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
