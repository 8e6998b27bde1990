"""Writes the tables of the documentation that are made from the code; `--check` only tells whether they are
current.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->` in a Markdown file of this folder; the
names are the keys of `TABLES`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import framework_tables
import torch_results

from jitdnn import limits, targets
from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.tables import algorithms, has_generator, table
from jitdnn.problems import parse
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.isa import isa
from jitdnn.settings import format_bytes, table_markdown

DOCS = Path(__file__).resolve().parent
_ELSEWHERE = "see the module's text"
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What each page shows as examples: sizes that bring out who refuses what, and why.
EXAMPLES = {
    "batch_norm": (
        "batch_norm_fwd spatial shape8x64x56x56 f32",
        "batch_norm_inference spatial relu shape8x64x56x56 f32 nhwc",
        "batch_norm_bwd spatial relu add shape8x64x56x56 f32",
        "batch_norm_bwd per_activation shape32x1000 f64",
    ),
    "layer_norm": (
        "layer_norm_fwd shape8x128x768 axis2 f32",
        "layer_norm_bwd shape8x128x768 axis2 f32",
        "layer_norm_bwd shape8x64x28x28 axis1 f32 nhwc",
        "rms_norm_fwd shape1024x4096 axis1 bf16",
    ),
    "group_norm": (
        "group_norm_fwd shape8x64x28x28 groups32 f32",
        "group_norm_fwd shape8x64x28x28 groups32 f32 nhwc",
        "group_norm_bwd shape8x64x28x28 groups64 f32",
    ),
    "convolution": (
        "conv_fwd n8 c64 h56 w56 k64 r3 s3 pad1 f32 nchw",
        "conv_fwd n8 c3 h224 w224 k64 r7 s7 stride2 pad3 f32 nchw",
        "conv_fwd n8 c96 h56 w56 k96 r3 s3 pad1 g96 f32 nhwc",
        "conv_fwd n8 c256 h14 w14 k256 r1 s1 f64 nchw",
        "conv_bwd_data n8 c64 h56 w56 k64 r3 s3 pad1 f32 nchw",
        "conv_bwd_filter n8 c64 h56 w56 k64 r3 s3 pad1 f32 nchw",
        "conv_bwd_bias n8 k64 p56 q56 f32 nchw",
    ),
    "pooling": (
        "pool_fwd max n8 c64 h112 w112 window3 stride2 pad1 f32 nchw",
        "pool_fwd avg n8 c64 h112 w112 window2 stride2 f32 nhwc",
        "pool_bwd max n8 c64 h112 w112 window3 stride2 pad1 f32 nchw",
        "pool_bwd avg n8 c64 h112 w112 window2 stride2 f32 nchw",
        "pool_fwd max n8 c64 h112 w112 window3 stride2 pad1 indices64 bf16 nchw",
        "pool_fwd avg n8 c64 h56 w56 adaptive6 f32 nhwc",
    ),
    "unpooling": (
        "unpool_fwd shape8x64x56x56 to112x112 f32 nchw",
        "unpool_bwd shape8x64x56x56 to112x112 f32 nhwc",
    ),
    "lrn": (
        "lrn_fwd across shape8x96x55x55 size5 f32 nchw",
        "lrn_fwd across shape8x96x55x55 size5 f32 nhwc",
        "lrn_fwd within shape8x32x32x32 size3 f32 nchw",
        "lrn_bwd across shape8x96x55x55 size5 f32 nchw",
    ),
    "divisive_norm": (
        "divisive_norm_fwd means shape8x32x32x32 size5 f32 nchw",
        "divisive_norm_bwd means shape8x32x32x32 size5 f32 nhwc",
    ),
    "rnn": (
        "rnn_fwd lstm t50 n32 inputs256 hidden256 f32",
        "rnn_fwd gru t50 n32 inputs256 hidden256 layers2 bidirectional lengths64 training f32",
        "rnn_fwd lstm t50 n32 inputs256 hidden256 f32 weight_ih_l0=s1,1024",
        "rnn_bwd_data lstm t50 n32 inputs256 hidden256 f32",
        "rnn_bwd_weights lstm t50 n32 inputs256 hidden256 f32",
    ),
    "softmax": (
        "softmax_fwd accurate shape8x1000 axis1 f32",
        "softmax_fwd log shape8x21x64x64 axis1 f32",
        "softmax_bwd accurate shape8x1000 axis1 f32",
    ),
    "reduce": (
        "reduce add shape8x64x56x56 axis0x2x3 f32",
        "reduce max shape8x1000 axis1 indices_u32 f32",
        "reduce norm2 shape8x64x56x56 axis0x1x2x3 bf16",
    ),
    "activation": (
        "activation_fwd relu shape8x64x56x56 f32",
        "activation_bwd sigmoid shape8x64x56x56 f32",
        "activation_fwd gelu shape8x64x56x56 f32",
    ),
    "fused_convolution": (
        "fused_conv_fwd n8 c64 h56 w56 k64 r3 s3 pad1 f32 nchw prologue=relu sums",
        "fused_conv_fwd n8 c256 h14 w14 k256 r1 s1 f32 nhwc sums",
        "fused_conv_bwd_filter n8 c64 h56 w56 k64 r3 s3 pad1 f32 nchw prologue=relu",
    ),
    "prelu": (
        "prelu_fwd shape8x64x56x56 axis1 f32",
        "prelu_bwd shape8x64x56x56 axis1 f32",
    ),
    "matmul": ("matmul m512 n512 k512 f32", "matmul m1 n1000 k4096 f64"),
    "dropout": ("dropout p0.5 shape8x64x56x56 f32", "dropout p0.1 mask shape512x768 bf16"),
    "random": (
        "random uniform low0.0 high1.0 shape1024x1024 f32",
        "random normal mean0.0 std1.0 shape1024x1024 f64",
    ),
    "resize": (
        "resize_fwd linear shape8x64x56x56 out112x112 f32 nchw",
        "resize_fwd nearest shape8x64x56x56 out112x112 f32 nhwc",
        "resize_bwd cubic shape8x64x56x56 out112x112 f32 nchw",
    ),
    "embedding": (
        "embedding_fwd rows50000 columns768 shape16x512 indices64 f32",
        "embedding_bwd rows50000 columns768 shape16x512 indices64 padding0 f32",
    ),
    "spatial_transformer": (
        "affine_grid_fwd shape8x56x56 f32",
        "affine_grid_bwd shape8x56x56 f32",
        "grid_sample_fwd linear zeros shape8x64x56x56 out56x56 f32 nchw",
        "grid_sample_bwd_data linear zeros shape8x64x56x56 out56x56 f32 nhwc",
        "grid_sample_bwd_grid linear zeros shape8x64x56x56 out56x56 f32 nchw",
    ),
    "tensor_ops": (
        "add shape8x64x56x56 f32",
        "copy shape8x64x56x56 f32",
        "op_tensor max shape8x64x56x56 bf16",
        "fill shape8x64x56x56 f32",
    ),
    "transform": (
        "transform shape8x64x56x56 pad0x0x1x1 f32",
        "transform shape8x3x224x224 pad0 u8 to_f16 y=nhwc",
        "fold shape8x64x56x56 by2 f32",
        "concat shape8x128x28x28 axis1 parts64x64 f32",
    ),
    "attention": (
        "attention_fwd n4 h8 t512 s512 d64 right0 f32",
        "attention_bwd n4 h8 t512 s512 d64 right0 f32",
        "attention_bwd n1 h1 t2048 s2048 d64 f32",
        "attention_fwd n4 h8 t512 s512 d64 bf16",
    ),
    "cross_entropy": (
        "cross_entropy_fwd mean shape8192x1000 classes64 save f32",
        "cross_entropy_bwd mean shape8192x1000 classes64 f32",
        "cross_entropy_fwd none shape8x21x128x128 classes64 bf16",
    ),
    "ctc_loss": (
        "ctc_loss_fwd mean t200 n32 a80 s40 f32",
        "ctc_loss_bwd mean t200 n32 a80 s40 f32",
    ),
}


def _device() -> CpuDevice:
    """The same on every machine that generates: the tables must not depend on where they were made."""
    return CpuDevice(isa("avx2"), threads=2)


def _summary(algorithm: Algorithm) -> str:
    """The first sentence about an algorithm: of its module if it has that for itself, else of its class."""
    kind = type(algorithm)
    module = sys.modules[kind.__module__]
    neighbours = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == kind.__module__]
    alone = sum(issubclass(neighbour, Algorithm) for neighbour in neighbours) == 1
    text = _first(kind.__doc__)
    if alone or text.lower().startswith(_ELSEWHERE):
        text = _first(module.__doc__)
    return text.removesuffix(f"; {_ELSEWHERE}")


def _first(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split()).rstrip(".")


def algorithm_table(page: str) -> str:
    """Which targets run the kinds of problem on a page, and every algorithm: what it is, and whether it is
    deterministic."""
    owners = {type(parse(example)) for example in EXAMPLES[page]}
    rows: dict[tuple[str, str], tuple[Algorithm, dict[str, list[str]]]] = {}
    every = ((target, key, listed) for target in targets.names() for key, listed in table(target).items())
    for target, (owner, direction), listed in every:
        if owner in owners:
            for algorithm in listed:
                name = algorithm.name, _summary(algorithm)
                where = rows.setdefault(name, (algorithm, {}))[1].setdefault(target, [])
                where.append(direction or " ".join(_kinds(owner)))
    lines = [_targets_of(page), ""]
    lines += [
        "| algorithm | targets and directions | what it does | deterministic |",
        "| --- | --- | --- | --- |",
    ]
    for (name, summary), (algorithm, where) in rows.items():
        deterministic = "yes" if algorithm.deterministic else "no"
        lines.append(f"| `{name}` | {_places(where)} | {summary} | {deterministic} |")
    return "\n".join(lines) + "\n"


def _kinds(owner: type[Problem]) -> list[str]:
    return [kind for kind, known in Problem.registry.items() if known is owner]


def _places(where: dict[str, list[str]]) -> str:
    """Targets and what an algorithm runs there, those that run the same together: `cuda opencl: fwd, bwd`."""
    alike: dict[str, list[str]] = {}
    for target, directions in where.items():
        alike.setdefault(", ".join(directions), []).append(target)
    return "; ".join(f"{' '.join(those)}: {directions}" for directions, those in alike.items())


def _missing(page: str, target: str) -> list[str]:
    """What a page is about and a target does not run, as kinds of problem strings."""
    owners = dict.fromkeys(type(parse(example)) for example in EXAMPLES[page])
    there = table(target)
    found = []
    for owner, direction in table("cpu"):
        if owner in owners and (owner, direction) not in there:
            kinds = _kinds(owner)
            found += [kind for kind in kinds if direction is None or kind.endswith(f"_{direction}")] or kinds
    return list(dict.fromkeys(found))


def _targets_of(page: str) -> str:
    """A sentence on the targets that run what a page is about."""
    lacking = {target: _missing(page, target) for target in targets.names()}
    kinds = [
        kind for owner in dict.fromkeys(type(parse(e)) for e in EXAMPLES[page]) for kind in _kinds(owner)
    ]
    having = [target for target in targets.names() if not lacking[target]]
    if having == ["cpu"] and all(set(lacking[target]) >= set(kinds) for target in targets.gpu_names()):
        return "Runs on `cpu` only: arrays on a GPU are refused."
    lines = [f"Runs on {', '.join(f'`{target}`' for target in having)}."]
    for target, missing in lacking.items():
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            lines.append(f"On `{target}` {names} {'is' if len(missing) == 1 else 'are'} not supported yet.")
    return " ".join(lines)


def targets_table() -> str:
    """What runs on which target, by page."""
    names = targets.names()
    lines = ["| operator | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for page in EXAMPLES:
        kinds = {kind for e in EXAMPLES[page] for kind in _kinds(type(parse(e)))}
        cells = []
        for target in names:
            missing = _missing(page, target)
            none = kinds <= set(missing)
            cells.append("no" if none else f"yes, except {', '.join(missing)}" if missing else "yes")
        lines.append(f"| [{page.replace('_', ' ')}](ops/{page}.md) | {' | '.join(cells)} |")
    for name in ("elementwise", "reduction", "scan"):
        cells = ["yes" if has_generator(name, target) else "no" for target in names]
        lines.append(f"| [`jd.{name}`](ops/user_kernels.md) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def example_table(page: str) -> str:
    """Workspace and error bound of every algorithm for the example problems of a page, or why it refuses."""
    return "\n".join(_examples(page)) + "\n"


def _examples(page: str) -> Iterator[str]:
    device = _device()
    yield (
        "Algorithms of `cpu`, with the workspace for two threads with AVX2. The error bound is the largest\n"
        "`||out - reference|| / ||reference||` on well-conditioned data, against the float64 reference; tests check it."
    )
    yield ""
    yield "| problem | algorithm | workspace | error bound |"
    yield "| --- | --- | --- | --- |"
    for example in EXAMPLES[page]:
        problem = parse(example)
        for algorithm in algorithms(problem, "cpu"):
            refused = algorithm.refuse(problem, device)
            if refused is not None:
                yield f"| `{problem}` | `{algorithm.name}` | refuses: {refused} | |"
                continue
            workspace = format_bytes(algorithm.workspace(problem, device))
            bound = algorithm.error_bound(problem)
            yield f"| `{problem}` | `{algorithm.name}` | {workspace} | {bound:.1e} |"


TABLES: dict[str, Callable[[], str]] = {
    "settings": table_markdown,
    "limits": limits.table_markdown,
    "cudnn-functions": framework_tables.cudnn_functions,
    "targets": targets_table,
    "onnx-counts": framework_tables.onnx_counts,
    "onnx-microsoft": framework_tables.onnx_microsoft,
    "onnx-refused": framework_tables.onnx_refused,
    "torch-left": framework_tables.torch_left,
    "torch-operators": framework_tables.torch_operators,
    "torch-results": torch_results.table,
    "torch-samples": framework_tables.torch_samples,
}
for _page in EXAMPLES:
    TABLES[f"{_page}-algorithms"] = lambda page=_page: algorithm_table(page)  # type: ignore[misc]
    TABLES[f"{_page}-examples"] = lambda page=_page: example_table(page)  # type: ignore[misc]


def fill(text: str) -> str:
    """`text` with every marked table made anew. Raises KeyError for a name that is not in `TABLES`."""
    return _BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def pages() -> Iterator[Path]:
    """The Markdown files of this folder that have generated tables."""
    for path in sorted(DOCS.rglob("*.md")):
        if _BLOCK.search(path.read_text(encoding="utf-8")):
            yield path


def main() -> int:
    """Write the tables, or with `--check` return 1 if any is not current."""
    stale = 0
    for path in pages():
        text = path.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            stale += 1
            sys.stdout.write(
                f"{'stale' if '--check' in sys.argv else 'wrote'} {path.relative_to(DOCS.parent)}\n"
            )
            if "--check" not in sys.argv:
                path.write_text(filled, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
