"""The commands' arguments, and what a script sees of them: exit codes and one line on standard error.

0 done; 1 the work failed (a JitdnnError, a wrong result); 2 wrong usage; 75 of several processes another one failed;
130 interrupted.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from jitdnn import __version__, targets
from jitdnn.cli.caffe_app import Threads
from jitdnn.cli.caffe_app import app as caffe_commands
from jitdnn.cli.options import (
    Batch,
    Direction,
    Divide,
    Find,
    Host,
    Json,
    Limit,
    Memory,
    Names,
    NetDirection,
    Port,
    UseVendor,
)
from jitdnn.cli.studio_app import app as studio_commands
from jitdnn.errors import JitdnnError, ProcessGroupError
from jitdnn.settings import parse_bytes

#: forms of generated code, of all targets
CODE_FORMS = tuple(form for target in targets.registered() for form in target.code_forms)

app = typer.Typer(
    name="jitdnn",
    help="Deep-learning primitives whose kernels are generated at run time.",
    epilog="Settings are environment variables, JITDNN_THREADS for one: `jitdnn info` lists them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"jitdnn {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Deep-learning primitives whose kernels are generated at run time."""


@app.command()
def info(as_json: Json = False) -> None:
    """Show devices, instruction sets, targets, settings and caches."""
    from jitdnn.cli.info import show_info

    show_info(as_json)


@app.command()
def plan(
    problems: Annotated[
        list[str],
        typer.Argument(
            help="A problem string, 'conv_fwd n8 c64 h27 w27 k192 r5 s5 pad2'; or a net: several of them, suites or "
            "networks (bench --list), .txt, .csv or .prototxt files.",
        ),
    ],
    workspace_limit: Limit = None,
    memory: Memory = None,
    share: Annotated[
        bool, typer.Option("--share", help="All layers take turns in one workspace, instead of one each.")
    ] = False,
    direction: NetDirection = None,
    batch: Batch = None,
    find: Find = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda or cuda:1, ..., or sm_90a for a GPU that is not here (default: that of JITDNN_TARGET, cpu)"
        ),
    ] = None,
    vendor: UseVendor = None,
    division: Divide = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time against workspace of every layer as a PNG.")
    ] = None,
    alternatives: Annotated[
        bool,
        typer.Option(
            "--alternatives",
            help="Look for divisions of every layer, as --plot, --json and --memory do, and not only where its fastest "
            "algorithm does not fit.",
        ),
    ] = False,
    code: Annotated[
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(CODE_FORMS)}]",
            help="Print the code that runs: ir or asm on the CPU, cuda or ptx, opencl.",
        ),
    ] = None,
    as_json: Json = False,
    threads: Threads = None,
) -> None:
    """Show every algorithm for a problem, or how the layers of a net share workspace, and why."""
    from jitdnn.cli.plan import chosen_settings, show_plan

    if code is not None and code not in CODE_FORMS:
        raise typer.BadParameter(f"{code!r} is not one of {', '.join(CODE_FORMS)}", param_hint="--code")
    overrides = chosen_settings(workspace_limit, threads, find, vendor, division)
    is_net = len(problems) > 1 or " " not in problems[0]
    if is_net and code is not None:
        raise typer.BadParameter(
            "it shows the code of one problem, which is given as a string", param_hint="--code"
        )
    if is_net or memory is not None or share or plot is not None or as_json or batch or direction:
        from jitdnn.cli.plan_net import show_net

        towards = None if direction is None else direction.value
        show_net(problems, memory, share, towards, batch, device, plot, as_json, alternatives, overrides)
    else:
        show_plan(problems[0], device, code, overrides)


@app.command()
def tune(
    names: Names = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, or GPUs of one model: cuda:0,cuda:1 (default: that of JITDNN_TARGET, cpu)"),
    ] = None,
    workspace_limit: Limit = None,
    memory: Memory = None,
    direction: NetDirection = None,
    batch: Batch = None,
    vendor: UseVendor = None,
    division: Divide = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to measure each problem.")] = 1.0,
    threads: Threads = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Take in this exported file first; repeatable.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write all that is stored to this file.")] = None,
) -> None:
    """Measure problems, and the parts that they may be divided into, ahead, into the tuning store."""
    from jitdnn.cli.plan import chosen_settings
    from jitdnn.cli.tune import run_tune

    overrides = chosen_settings(workspace_limit, threads, False, vendor, division, memory)
    towards = None if direction is None else direction.value
    code = run_tune(names or [], device, towards, batch, seconds, merge or [], export, overrides)
    raise typer.Exit(code)


@app.command()
def warm(
    names: Names = None,
    direction: Annotated[Direction, typer.Option(help="Direction of the convolutions.")] = Direction.given,
    batch: Batch = None,
    threads: Threads = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that compile, threads for GPUs.  [default: as many as threads]"),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(help="Take in this exported file first, and trust the code in it; repeatable."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the code that this run took, or all that there is, and its times to this file."
        ),
    ] = None,
) -> None:
    """Plan and compile ahead, into the disk cache, on all cores, and exchange what was compiled."""
    from jitdnn.cli.warm import run_warm

    raise typer.Exit(run_warm(names or [], direction.value, batch, threads, workers, merge or [], export))


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="The file that is written.")] = Path("device.json"),
    threads: Threads = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Most seconds for each of some 100 problems.")
    ] = 0.3,
) -> None:
    """Measure how far the cost models are off on this processor, into a device file for JITDNN_DEVICE_FILE."""
    from jitdnn.cli.calibrate import run_calibrate

    raise typer.Exit(run_calibrate(out, threads, seconds))


@app.command()
def bench(
    problems: Annotated[list[str] | None, typer.Argument(help="Problem strings.")] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite", help="A built-in suite or network (--list), or a .txt or .csv file; repeatable."
        ),
    ] = None,
    direction: Annotated[Direction, typer.Option(help="Direction of the convolutions.")] = Direction.given,
    batch: Batch = None,
    threads: Threads = None,
    workspace_limit: Limit = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", help="torch, im2col or none; with --target cuda: cudnn; repeatable.  [default: none]"
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Measure this algorithm, not the planner's choice.")
    ] = None,
    find: Find = False,
    json_rows: Annotated[
        Path | None, typer.Option("--json", help="Append a JSON object a row to this file; - prints them.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to measure each candidate.")] = 0.2,
    batch_limit: Annotated[
        int | None, typer.Option(min=1, help="Most images in a batch; layers with fewer keep theirs.")
    ] = None,
    most_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Fewer images where a layer's tensors would take more: 2GiB."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the file of --json: what is in it is not measured again."),
    ] = False,
    choices: Annotated[
        bool,
        typer.Option("--choices", help="Measure every algorithm of each problem, beside the planner's pick."),
    ] = False,
    target: Annotated[
        str, typer.Option(help="Where to measure: cpu, or cuda (convolutions and --memory-bound).")
    ] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="Element type in place of the suite's: f32, bf16, f16 or f64.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Memory order in place of the suite's: nchw or nhwc.")
    ] = None,
    list_suites: Annotated[bool, typer.Option("--list", help="List the built-in suites and stop.")] = False,
    memory_bound: Annotated[
        bool,
        typer.Option(
            "--memory-bound",
            help="Measure operations that move memory, all or those with these words in their names, beside PyTorch's "
            "and a copy of as many bytes.",
        ),
    ] = False,
    tensor_bytes: Annotated[
        str | None,
        typer.Option(
            "--tensor-bytes",
            metavar="SIZE",
            help="Size of a tensor with --memory-bound --target cuda.  [default: 256MiB]",
        ),
    ] = None,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="Measure elementwise formulas beside NumPy's expressions.")
    ] = False,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Measure attention and recurrent layers beside PyTorch's.")
    ] = False,
) -> None:
    """Measure problems or suites, beside other libraries if wanted."""
    from jitdnn.cli.bench import (
        list_built_in,
        run_bench,
        run_formulas,
        run_gpu_memory_bound,
        run_memory_bound,
        run_sequences,
    )

    if list_suites:
        list_built_in()
        return
    size = parse_bytes(tensor_bytes) if tensor_bytes else None
    if memory_bound and targets.is_gpu(target):
        raise typer.Exit(run_gpu_memory_bound(problems or [], dtype, layout, size, find, json_rows, target))
    if memory_bound:
        raise typer.Exit(run_memory_bound(problems or [], threads, json_rows, seconds))
    if formulas:
        run_formulas(threads, seconds)
        return
    if sequences:
        run_sequences(threads, seconds)
        return
    code = run_bench(
        problems or [], suite or [], direction.value, batch, threads, workspace_limit, peer or [], algorithm,
        find, json_rows, seconds, batch_limit, parse_bytes(most_bytes) if most_bytes else None, resume, choices,
        target, dtype, layout,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def report(
    rows: Annotated[list[Path], typer.Argument(help="Files that bench --json wrote.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw each file's ratios, sorted, as a PNG in this folder.")
    ] = None,
) -> None:
    """Print what measured rows come to, by network and direction, as Markdown tables."""
    from jitdnn.cli.bench import run_report

    run_report(rows, plot)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where snapshot and plots go.")] = Path(
        "demo-results"
    ),
    threads: Threads = None,
) -> None:
    """Train LeNet on real handwritten digits and compare with the im2col way: the library in a minute."""
    from jitdnn.cli.demo import run_demo

    run_demo(folder, threads)


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="A model of ONNX.")],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="[NAME=]FILE", help="An image, a .npy, or a .npz of all inputs by name."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the outputs: a .npz by their names, or one as .npy.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write the times of all kernels as a Chrome trace (Perfetto).")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print which kernels run, and why.")] = False,
    size: Annotated[
        str | None, typer.Option(metavar="H,W", help="Resize images.  [default: as the model says]")
    ] = None,
    scale: Annotated[float, typer.Option(help="Factor for pixels from 0 to 255.")] = 1 / 255,
    mean: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Subtracted, of red, green, blue.")
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Divided by afterwards.")] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1_000_000, help="Time so many more runs.")] = 1,
    threads: Threads = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="N", help="Run on this GPU: 0, or opencl:0.  [default: the CPU]")
    ] = None,
    math: Annotated[
        str | None, typer.Option(help="Least arithmetic for float32: fp32, tf32, bf16 or fp16.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Store float32 as float16 or bfloat16 inside of the model.")
    ] = None,
) -> None:
    """A model of ONNX on images and arrays."""
    from jitdnn.cli.run import run_model

    device = None if gpu is None else f"cuda:{gpu}" if gpu.isdecimal() else gpu
    run_model(
        model,
        input or [],
        output,
        profile,
        explain,
        size,
        scale,
        mean,
        std,
        repeat,
        threads,
        device,
        math,
        dtype,
    )


@app.command()
def serve(
    bundle: Annotated[Path, typer.Argument(help="A bundle that the studio exported: a .zip, or its folder.")],
    host: Host = "127.0.0.1",
    port: Port = 8643,
    token: Annotated[
        str,
        typer.Option(help="What requests must carry.  [default: made anew]", envvar="JITDNN_SERVE_TOKEN"),
    ] = "",
) -> None:
    """A trained net that answers over HTTP: POST /predict, and a small page."""
    from jitdnn.cli.studio import run_serve

    run_serve(bundle, host, port, token)


app.add_typer(caffe_commands)
app.add_typer(studio_commands, name="studio")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (`sys.argv` if `arguments` is None) and exit."""
    raise SystemExit(_run(list(sys.argv[1:] if arguments is None else arguments)))


@functools.cache
def _command() -> Callable[..., Any]:
    """All commands, built once a process: Typer reads every command's type hints for it, a tenth of a second."""
    return typer.main.get_command(app)


def _run(arguments: list[str]) -> int:
    try:
        code = _command()(arguments, prog_name="jitdnn", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    except ProcessGroupError as error:
        return _complain(
            str(error), 75 if "RANK" in os.environ else 1
        )  # launch.py: another process is the cause
    except JitdnnError as error:
        return _complain(str(error), 1)
    except BrokenPipeError:  # `jitdnn ... | head`: nobody reads on, and that is fine
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    print(f"jitdnn: {'; '.join(lines)}", file=sys.stderr)
    return code
