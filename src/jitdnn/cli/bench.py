"""`jitdnn bench`: the driver's rows as a table, as JSON, and in one line for each peer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO, TypeVar

from jitdnn import targets
from jitdnn.bench import gpu_cases, gpu_driver, gpu_memory_bound, memory_bound
from jitdnn.bench import sequences as sequence_cases
from jitdnn.bench.choices import run_choices, summary_lines
from jitdnn.bench.driver import Options, Row, run
from jitdnn.bench.report import (
    JsonRow,
    families,
    markdown,
    of_family,
    read_rows,
    save_plot,
    summaries,
    write_json,
)
from jitdnn.bench.suites import Layer, built_in, load, towards_each, unique
from jitdnn.bench.timing import QUIET, Method, geometric_mean
from jitdnn.cli.console import print_table, progress, say
from jitdnn.errors import InvalidArgument
from jitdnn.problems import parse
from jitdnn.settings import current

AnyRow = TypeVar("AnyRow", bound=JsonRow)


def _require_measured(target: str) -> None:
    """Raises InvalidArgument for a target that nothing measures: neither a processor nor GPUs that PyTorch works on."""
    measured = [one.name for one in targets.registered() if not one.is_gpu or one.memory.torch is not None]
    if target not in measured:
        raise InvalidArgument(f"target {target!r}: it is measured on {' or '.join(measured)}")


def list_built_in() -> None:
    """Print the built-in suites and networks with their numbers of layers."""
    rows = [(name, str(len(layers)), str(len(unique(layers)))) for name, layers in built_in().items()]
    print_table("", ("suite", "layers", "different"), rows, "lrr")


def run_bench(
    problems: Sequence[str],
    suites: Sequence[str],
    direction: str,
    batch: int | None,
    threads: int | None,
    workspace_limit: str | None,
    peers: Sequence[str],
    algorithm: str | None,
    find: bool,
    json_rows: Path | None,
    seconds: float,
    batch_limit: int | None = None,
    most_bytes: int | None = None,
    resume: bool = False,
    choices: bool = False,
    target: str = "cpu",
    dtype: str | None = None,
    layout: str | None = None,
) -> int:
    """Measure and print. Returns 1 if any result was wrong or nothing could run a problem, else 0."""
    _require_measured(target)
    layers = select(problems, suites, direction, batch, batch_limit, most_bytes, dtype, layout)
    options = Options(
        peers=() if list(peers) == ["none"] else tuple(dict.fromkeys(peers)),
        algorithm=algorithm,
        threads=threads,
        workspace_limit=workspace_limit,
        choice="find" if find else None,
        method=Method(seconds=seconds),
    )
    if choices:
        return _run_choices(layers, options, json_rows)
    rows: list[Row] = []
    if resume:
        rows, layers = _measured_before(json_rows, layers, options)
    with ExitStack() as stack:
        stream = _open(json_rows, stack)
        advance = stack.enter_context(progress(len(layers), "measuring", is_quiet=True))
        on_gpu = targets.is_gpu(target)
        measured = (
            gpu_driver.run(layers, options, advance, target) if on_gpu else run(layers, options, advance)
        )
        rows += _collect(measured, stream)
    if stream is not sys.stdout:
        show(rows)
    return 1 if any(row.failure for row in rows) else 0


def _measured_before(
    path: Path | None, layers: Sequence[Layer], options: Options
) -> tuple[list[Row], list[Layer]]:
    """The rows of a file that answer what is asked now, and the layers that are left."""
    if path is None or str(path) == "-":
        raise InvalidArgument("--resume goes on with the file of --json, which is not given")
    threads = options.threads or current().threads
    known: dict[str, Row] = {}
    if path.exists():
        for row in read_rows(path):
            peers = {name.split("_")[0] for name in (*row.peers, *row.refused_peers)}
            if (
                row.failure is None and row.threads == threads and peers >= set(options.peers)
                and options.algorithm in (None, row.algorithm)
            ):  # fmt: skip
                known[row.problem] = row
    left = [layer for layer in layers if str(layer.problem) not in known]
    return [known[str(layer.problem)] for layer in layers if str(layer.problem) in known], left


def _run_choices(layers: Sequence[Layer], options: Options, json_rows: Path | None) -> int:
    """Measure every algorithm of every layer beside the planner's pick, and print."""
    with ExitStack() as stack:
        stream = _open(json_rows, stack)
        advance = stack.enter_context(progress(len(layers), "measuring", is_quiet=True))
        rows = _collect(run_choices(layers, options, advance), stream)
    if stream is not sys.stdout:
        cells = [
            [
                f"{row.network}:{row.name}" if row.name else " ".join(row.problem.split()[1:]),
                row.problem.split()[0], row.chosen or "-", row.best or "-",
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                " ".join(
                    f"{name}:{1e3 * row.estimates[name]:.3f}/{1e3 * seconds:.3f}"
                    for name, seconds in sorted(row.measured.items(), key=lambda pair: pair[1])
                ),
            ]
            for row in rows
        ]  # fmt: skip
        columns = ["layer", "kind", "chosen", "best", "x best", "estimate/measured, ms"]
        print_table(f"{rows[0].device}, {rows[0].date}", columns, cells, "llllrl")
        for row in rows:
            if row.failure is not None:
                say(f"FAILED {row.problem}: {row.failure}")
            for name, reason in row.wrong.items():
                say(f"WRONG {name}: {row.problem}: {reason}")
        for line in summary_lines(rows):
            say(line)
    return 1 if any(row.failure is not None or row.wrong for row in rows) else 0


def run_report(files: Sequence[Path], plots: Path | None) -> None:
    """Print the table of each file of rows as Markdown, and draw the ratios of each."""
    for path in files:
        rows = read_rows(path)
        rows = list({(row.problem, row.network, row.name, row.threads): row for row in rows}.values())
        for threads in dict.fromkeys(row.threads for row in rows):
            of_threads = [row for row in rows if row.threads == threads]
            name = path.stem if len({row.threads for row in rows}) == 1 else f"{path.stem}-{threads}"
            words = "1 thread" if threads == 1 else f"{threads} threads"
            say(f"{name}, {words}, {of_threads[0].device}\n")
            say(markdown(of_threads))
            if plots is not None:
                plots.mkdir(parents=True, exist_ok=True)
                save_plot(of_threads, plots / f"{name}.png", f"{name}, {words}")
                say(f"{plots / name}.png\n")


def select(
    problems: Sequence[str],
    suites: Sequence[str],
    direction: str,
    batch: int | None,
    batch_limit: int | None = None,
    most_bytes: int | None = None,
    dtype: str | None = None,
    layout: str | None = None,
) -> list[Layer]:
    """The different problems that were asked for, each once. Raises InvalidArgument if there are none."""
    layers = [Layer(parse(problem)) for problem in problems]
    layers += [layer for suite in suites for layer in load(suite)]
    if not layers:
        raise InvalidArgument(
            "nothing to measure: give a problem string or --suite (--list shows those there are)"
        )
    layers = [layer.stored(dtype, layout) for layer in layers]
    if batch is not None:
        layers = [layer.with_batch(batch) for layer in layers]
    if batch_limit is not None or most_bytes is not None:
        smaller = [layer.limited(batch_limit, most_bytes) for layer in layers]
        for layer, limited in zip(layers, smaller, strict=True):
            if limited is None:
                say(f"left out, too large even for one image: {layer.label}", file=sys.stderr)
        layers = [layer for layer in smaller if layer is not None]
    return unique(towards_each(layers, direction))


def _open(path: Path | None, stack: ExitStack) -> TextIO | None:
    if path is None or str(path) == "-":
        return None if path is None else sys.stdout
    try:
        return stack.enter_context(path.open("a", encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _collect(rows: Iterable[AnyRow], stream: TextIO | None) -> list[AnyRow]:
    """All rows; each is written as JSON as soon as it is there, so that what was measured is not lost."""
    collected = []
    for row in rows:
        collected.append(row)
        if stream is not None:
            write_json([row], stream)
            stream.flush()
    return collected


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table and what they come to."""
    present = families(rows)
    columns = ["layer", "kind", "algorithm", "ms", "GFLOP/s", "of peak", "error", "workspace"]
    columns += [f"x {family}" for family in present]
    title = f"{rows[0].device}, {rows[0].date}"
    print_table(title, columns, [_cells(row, present) for row in rows], "lll" + "r" * (len(columns) - 3))
    for row in rows:
        if row.failure:
            say(f"FAILED {row.problem}: {row.failure}")
        for peer, reason in row.refused_peers.items():
            say(f"without {peer}: {row.problem}: {reason}")
    peaks = [row.peak_gflops for row in rows if row.peak_gflops is not None]
    if peaks:
        say(f"multiply-add peak measured beside each row: {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s")
    busiest = max((row.neighbours or 0.0 for row in rows), default=0.0)
    if busiest > QUIET:
        say(f"other programs kept up to {busiest:.1f} processors busy: these times and ratios say little")
    for summary in summaries(rows):
        say(str(summary))


def _cells(row: Row, present: Sequence[str]) -> list[str]:
    words = row.problem.split()
    label = f"{row.network}:{row.name}" if row.name else " ".join(words[1:])
    if row.seconds is None or row.gflops is None or row.fraction is None:
        return [label, words[0], row.algorithm or "-", *["-"] * (5 + len(present))]
    cells = [
        label, words[0], row.algorithm or "-", f"{1e3 * row.seconds:.3f}", f"{row.gflops:.1f}",
        f"{row.fraction:.0%}", f"{row.error:.1e}", f"{row.workspace}",
    ]  # fmt: skip
    for family in present:
        peer = of_family(row, family)
        cells.append("-" if peer is None else f"{peer.ratio:.2f}")
    return cells


def run_memory_bound(only: Sequence[str], threads: int | None, json_rows: Path | None, seconds: float) -> int:
    """Measure operations that move memory and print them. Returns 1 if any result was wrong, else 0."""
    counts = (1, 2) if threads is None else (threads,)
    with ExitStack() as stack:
        stream = _open(json_rows, stack)
        rows = _collect(memory_bound.run(counts, only=only, method=Method(seconds=seconds)), stream)
    if not rows:
        raise InvalidArgument(f"no operation has any of {', '.join(only)} in its name")
    columns = ["operation", "layout", "threads", "ms", "torch ms", "x torch", "x copy"]
    cells = [
        [row.name, row.layout, str(row.threads), row.failure or "", "", "", ""]
        if row.seconds is None or row.torch_seconds is None
        else [
            row.name, row.layout, str(row.threads), f"{1e3 * row.seconds:.2f}", f"{1e3 * row.torch_seconds:.2f}",
            f"{row.ratio:.2f}", f"{row.over_copy:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    print_table(f"{rows[0].device}, {rows[0].date}", columns, cells, "llrrrrr")
    for layout in dict.fromkeys(row.layout for row in rows):
        for count in counts:
            done = [r for r in rows if (r.layout, r.threads) == (layout, count) and r.failure is None]
            mean = geometric_mean([r.ratio for r in done if r.ratio is not None])
            slow = [r.name for r in done if r.over_copy is not None and r.over_copy > memory_bound.COPY_LIMIT]
            say(
                f"{layout}, {count} threads: geometric mean x{mean:.2f} of PyTorch; beyond {memory_bound.COPY_LIMIT} "
                f"copies: {', '.join(slow) or 'none'}"
            )
    busiest = max((row.neighbours or 0.0 for row in rows), default=0.0)
    if busiest > QUIET:
        say(f"other programs kept up to {busiest:.1f} processors busy: these times and ratios say little")
    return 1 if any(row.failure for row in rows) else 0


def run_gpu_memory_bound(
    only: Sequence[str],
    dtype: str | None,
    layout: str | None,
    nbytes: int | None,
    is_found: bool,
    json_rows: Path | None,
    target: str,
) -> int:
    """Measure operations that move memory, on the first GPU of a target, and print them.

    Returns 1 if any has no time, else 0.
    """
    _require_measured(target)
    layouts = gpu_cases.LAYOUTS if layout is None else (layout,)
    dtypes = gpu_memory_bound.DTYPES if dtype is None else (dtype,)
    with ExitStack() as stack:
        stream = _open(json_rows, stack)
        found = gpu_memory_bound.run(
            dtypes, layouts, only, nbytes or gpu_memory_bound.BYTES, is_found, gpus=target
        )
        rows = _collect(found, stream)
    if not rows:
        raise InvalidArgument(f"no operation has any of {', '.join(only)} in its name")
    if stream is sys.stdout:
        return 1 if any(row.failure for row in rows) else 0
    cells = [
        [row.name, row.layout, row.dtype, "-", "-", "-", "-"]
        if row.seconds is None or row.torch_seconds is None
        else [
            row.name, row.layout, row.dtype, f"{1e3 * row.seconds:.3f}", f"{1e3 * row.torch_seconds:.3f}",
            f"{row.ratio:.2f}", f"{row.share:.0%}",
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["operation", "layout", "dtype", "ms", "torch ms", "x torch", "of copy"]
    print_table(f"{rows[0].device}, {rows[0].date}", columns, cells, "lllrrrr")
    for row in rows:
        if row.failure:
            say(f"FAILED {row.name} {row.layout} {row.dtype}: {row.failure}")
    least = gpu_memory_bound.SHARE
    for kind in dict.fromkeys(row.dtype for row in rows):
        done = [r for r in rows if r.dtype == kind and r.ratio is not None and r.share is not None]
        mean = geometric_mean([r.ratio for r in done if r.ratio is not None])
        low = [f"{r.name} {r.layout}" for r in done if r.share is not None and r.share < least]
        slow = [f"{r.name} {r.layout}" for r in done if r.ratio is not None and r.ratio < 1.0]
        say(f"{kind}, {len(done)} operations: geometric mean x{mean:.2f} of PyTorch")
        say(f"  slower than PyTorch: {', '.join(slow) or 'none'}")
        say(f"  below {least:.0%} of a copy: {', '.join(low) or 'none'}")
    return 1 if any(row.failure for row in rows) else 0


def run_formulas(threads: int | None, seconds: float) -> None:
    """Measure elementwise formulas beside NumPy's expressions and print them."""
    counts = (1, 2) if threads is None else (threads,)
    rows = list(memory_bound.run_formulas(counts, Method(seconds=seconds)))
    cells = [
        [name, str(count), f"{1e3 * ours:.2f}", f"{1e3 * theirs:.2f}", f"{times:.2f}"]
        for name, count, ours, theirs, times in rows
    ]
    print_table(
        "three float32 arrays of 64 MiB", ["formula", "threads", "ms", "NumPy ms", "x NumPy"], cells, "lrrrr"
    )
    say(
        f"geometric mean x{geometric_mean([row[4] for row in rows]):.2f}, least x{min(row[4] for row in rows):.2f}"
    )


def run_sequences(threads: int | None, seconds: float) -> None:
    """Measure attention and recurrent layers beside PyTorch's and print them."""
    counts = (1, 2) if threads is None else (threads,)
    cells = [
        [
            row.name, str(row.threads), f"{1e3 * row.seconds:.2f}",
            "" if row.flops is None else f"{row.flops / 1e9:.0f}", f"{row.ratio:.2f}",
        ]
        for row in sequence_cases.run(counts, Method(seconds=seconds))
    ]  # fmt: skip
    print_table("float32", ["operation", "threads", "ms", "GFLOP/s", "x torch"], cells, "lrrrr")
