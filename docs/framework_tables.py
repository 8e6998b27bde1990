"""Tables of the documentation that tell what the frameworks' doors cover: ONNX, PyTorch, and cuDNN's interface."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from jitdnn.kernels.reference import REFERENCE
from jitdnn.kernels.tables import table
from jitdnn.problems.problem import Problem

DOCS = Path(__file__).resolve().parent
SEVERAL = "(several)"  # tests of graphs of several operators


def _onnx_record() -> dict[str, Any]:
    """What tests/helpers/onnx_nodes.py wrote, and tests/frameworks/test_onnx.py holds against the code."""
    return dict(json.loads((DOCS / "onnx.json").read_text(encoding="utf-8")))


def onnx_counts() -> str:
    """How many of ONNX's node tests pass, of which operators."""
    record = _onnx_record()
    passed, refused = sum(record["passed"].values()), sum(map(len, record["refused"].values()))
    several = record["passed"].get(SEVERAL, 0)
    lines = [
        textwrap.fill(
            f"Of the {record['tests']} node tests in onnx {record['onnx']}, **{passed} pass**, {refused} are refused, "
            f"none fails. {record['plain']} of those that pass compute nothing (views, "
            f"shapes, constants, type conversions, sequences, branches); "
            f"{several} are whole graphs, the definition of an operator by others.",
            120,
        ),
        "",
        "| operators covered | tests passed of each |",
        "| --- | --- |",
    ]
    rows: dict[int, list[str]] = {}
    for name in record["operators"]:
        rows.setdefault(record["passed"].get(name, 0), []).append(f"`{name}`")
    for count, names in sorted(rows.items(), reverse=True):
        lines.append(f"| {', '.join(names)} | {count or 'within graphs only'} |")
    others = {name: n for name, n in record["passed"].items() if name not in {*record["operators"], SEVERAL}}
    if others:
        listed = ", ".join(f"`{name}` {count}" for name, count in sorted(others.items()))
        lines += ["", textwrap.fill(f"Composed of these, as ONNX defines them: {listed}.", 120)]
    models = record["models"]
    left = sum(map(len, models["refused"].values()))
    lines += [
        "",
        textwrap.fill(
            f"Of the {models['passed'] + left} small models in files that ship with onnx too, {models['passed']} pass "
            f"and {left} are refused: {'; '.join(models['refused'])}.",
            120,
        ),
    ]
    return "\n".join(lines) + "\n"


def onnx_microsoft() -> str:
    """The operators of onnxruntime's own domain."""
    from jitdnn.frameworks.onnx import OPERATORS

    names = sorted(name for domain, name in OPERATORS if domain == "com.microsoft")
    return textwrap.fill(", ".join(f"`{name}`" for name in names), 120) + "\n"


def onnx_refused() -> str:
    """Every node test that is refused, by reason."""
    lines = ["| reason | tests |", "| --- | --- |"]
    for reason, names in _onnx_record()["refused"].items():
        lines.append(f"| {reason} | {', '.join(name.removeprefix('test_') for name in names)} |")
    return "\n".join(lines) + "\n"


def torch_samples() -> str:
    """What became of the samples that ship with PyTorch, as tests/helpers/torch_samples.py wrote it."""
    record = json.loads((DOCS / "torch_samples.json").read_text(encoding="utf-8"))
    lines = [
        "| operator | agree | gradients compared | refused |",
        "| --- | --- | --- | --- |",
    ]
    total = dict.fromkeys(("samples", "tried", "agreed", "gradients", "refused"), 0)
    for name, kinds in record["operators"].items():
        counts = {key: sum(kind[key] for kind in kinds.values()) for key in list(total)[:4]}
        reasons: dict[str, int] = {}
        for kind in kinds.values():
            for reason, count in kind["refused"].items():
                reasons[reason] = reasons.get(reason, 0) + count
        for key, count in (*counts.items(), ("refused", sum(reasons.values()))):
            total[key] += count
        listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.items())
        few = counts["tried"] < counts["samples"]
        of = f"{counts['tried']}" + (f" taken from {counts['samples']}" if few else "")
        short = name.removeprefix("nn.functional.")
        lines.append(f"| `{short}` | {counts['agreed']} of {of} | {counts['gradients']} | {listed} |")
    head = (
        f"PyTorch {record['torch']}, {len(record['operators'])} operators and variants of operators: of "
        f"{total['tried']} samples (evenly taken from {total['samples']}) **{total['agreed']} agree**, "
        f"{total['gradients']} of them with their gradients, {total['refused']} are refused, none differs."
    )
    return "\n".join([textwrap.fill(head, 120), "", *lines]) + "\n"


def torch_operators() -> str:
    """The modules of PyTorch that jitdnn.torch converts: on which types of elements, layouts and devices ours run."""
    from jitdnn import problems
    from jitdnn.frameworks.torch import functional
    from jitdnn.frameworks.torch.kinds import DEVICES, DTYPES
    from jitdnn.frameworks.torch.modules import CONVERTED

    kinds = [kind.__name__ for kind in CONVERTED]
    lines = ["| modules | types | layouts | devices |", "| --- | --- | --- | --- |"]
    for names, types, layouts, needed in (
        (r"(Lazy)?Conv\w*", DTYPES, "any strides", (problems.Convolution,)),
        (r"Linear", DTYPES, "dense rows", (problems.Convolution,)),
        (r"BatchNorm\w*", functional.BATCH_NORMALIZED, "any strides", (problems.BatchNorm,)),
        (
            r"SyncBatchNorm",
            functional.NORMALIZED,
            'any strides; eager calls only; on cuda with `measure="never"`',
            (problems.BatchNorm,),
        ),
        (
            r"GroupNorm",
            functional.BATCH_NORMALIZED,
            "any strides; eager calls only, under autocast on cuda, too",
            (problems.GroupNorm,),
        ),
        (
            r"InstanceNorm\w*",
            functional.BATCH_NORMALIZED,
            "any strides; eager calls only, under autocast, too",
            (problems.GroupNorm,),
        ),
        (r"RMSNorm", functional.NORMALIZED, "any strides; eager calls only", (problems.LayerNorm,)),
        (r"Adaptive\w*", DTYPES, "any strides; eager calls only", (problems.Pooling,)),
        (
            r"LayerNorm",
            functional.NORMALIZED,
            "any strides (copied where not dense); f16 and bf16 under autocast on cuda",
            (problems.LayerNorm,),
        ),
        (r"(Max|Avg)Pool\w*", DTYPES, "any strides", (problems.Pooling,)),
        (
            r"ELU|GELU|SiLU|Mish|Hardswish|Tanh|Sigmoid",
            DTYPES,
            "dense in any order of axes",
            (problems.Activation,),
        ),
        (
            r"(Log)?Softmax|CrossEntropyLoss",
            DTYPES,
            "any strides; eager calls only",
            (problems.Softmax, problems.CrossEntropy),
        ),
        (r"Upsample", DTYPES, "any strides; eager calls only", (problems.Resize,)),
        (r"LSTM|GRU|RNN", DTYPES, "any strides; eager calls only", (problems.Recurrent,)),
    ):
        listed = [kind for kind in kinds if re.fullmatch(names, kind)]
        kinds = [kind for kind in kinds if kind not in listed]
        short = ", ".join(f"`{kind}`" for kind in listed)
        devices = [device for device in DEVICES if all(_has_kernels(one, device) for one in needed)]
        lines.append(
            f"| {short} | {', '.join(DTYPES[one] for one in types)} | {layouts} | {', '.join(devices)} |"
        )
    if kinds == ["ReLU"]:  # by torch's kernels
        types = ", ".join(DTYPES.values())
        lines.append(f"| `ReLU` | {types} | training by PyTorch's kernels, into reused memory | cpu |")
    elif kinds:
        raise KeyError(f"no row has {kinds}")
    return "\n".join(lines) + "\n"


def _has_kernels(problem: type[Problem], target: str) -> bool:
    """Whether a target has kernels for problems of a class, beside the reference on the host."""
    return any(
        algorithm is not REFERENCE
        for (kind, _), found in table(target).items()
        if kind is problem
        for algorithm in found
    )


def torch_left() -> str:
    """The modules of PyTorch that jitdnn.torch leaves alone, with the reasons."""
    from jitdnn.frameworks.torch.left import LEFT

    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {reason} |" for names, reason in LEFT.items()]
    return "\n".join(["| modules | why they stay PyTorch's |", "| --- | --- |", *rows]) + "\n"


def cudnn_functions() -> str:
    """Every function of cuDNN's legacy interface: its arguments and what it does, or why it is refused."""
    import jitdnn.cudnn  # noqa: F401 - it fills the table
    from jitdnn.frameworks.cudnn_api.registry import FUNCTIONS

    groups: dict[str, list[str]] = {}
    for entry in FUNCTIONS.values():
        if entry.reason is not None:
            groups.setdefault("Refused", []).append(f"| `{entry.name}` |  | {entry.reason} |")
            continue
        names = ", ".join(f"`{name}`" for name in inspect.signature(entry.function).parameters)
        about = entry.about.rstrip(".").replace("|", "\\|")
        title = (
            (sys.modules[entry.function.__module__].__doc__ or "").split("\n")[0].split(": ")[0].rstrip(".")
        )
        groups.setdefault(title, []).append(f"| `{entry.name}` | {names} | {about} |")
    refused = groups.pop("Refused")
    total = len(FUNCTIONS)
    lines = [f"{total} functions: {total - len(refused)} work, {len(refused)} are refused by name.", ""]
    for title, rows in (*groups.items(), ("Refused functions, and why", refused)):
        lines += [
            f"### {title}",
            "",
            "| function | arguments | what it does |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    return "\n".join(lines) + "\n"
