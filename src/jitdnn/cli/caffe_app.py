"""The arguments of Caffe's commands and tools; every one has its work in a module of its own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jitdnn.cli import datasets
from jitdnn.errors import InvalidArgument

app = typer.Typer()
app.command("convert-imageset")(datasets.convert_imageset)
app.command("compute-mean")(datasets.compute_mean)

Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads to use.  [default: all cores]")
]
Solver = Annotated[
    str,
    typer.Argument(help="A solver prototxt; package:models/lenet_solver.prototxt is one that is shipped."),
]
Net = Annotated[
    str, typer.Argument(help="A net prototxt; package:models/lenet.prototxt is one that is shipped.")
]
Weights = Annotated[
    list[str],
    typer.Option(metavar="A,B", help="Files to take the weights from, later ones over earlier ones."),
]
Iterations = Annotated[int, typer.Option(min=1, help="Batches to run.")]
Level = Annotated[int | None, typer.Option(help="Level of the net's state, which chooses layers.")]
Stage = Annotated[
    list[str] | None,
    typer.Option(metavar="A,B", help="Stages of the net's state, which choose layers; repeatable."),
]


Gpu = Annotated[
    list[str] | None, typer.Option("--gpu", metavar="N", help="Run on this GPU.  [default: the CPU]")
]


class Phase(StrEnum):
    """Which of its two nets a definition is read as."""

    TRAIN = "TRAIN"
    TEST = "TEST"


class BatchNorm(StrEnum):
    """Whose statistics BatchNorm layers take where several processes divide a batch."""

    synchronized = "synchronized"
    local = "local"


class Wire(StrEnum):
    """How gradients travel."""

    f32 = "f32"
    bf16 = "bf16"


class Effect(StrEnum):
    """What a signal makes a training do, after the iteration that runs."""

    stop = "stop"
    snapshot = "snapshot"
    none = "none"


@app.command()
def train(
    context: typer.Context,
    solver: Solver,
    resume: Annotated[
        Path | None, typer.Option("--resume", "--snapshot", help="Go on from this snapshot.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Start from the weights of these files, later ones over earlier ones."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write loss and accuracy as a PNG.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory for weights, activations, gradients and workspace: what does not fit is computed again. "
            "1GiB, or `least`.",
        ),
    ] = None,
    level: Level = None,
    stage: Stage = None,
    sigint_effect: Annotated[Effect, typer.Option(help="What SIGINT (Ctrl-C) does.")] = Effect.stop,
    sighup_effect: Annotated[Effect, typer.Option(help="What SIGHUP does.")] = Effect.snapshot,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", "--gpus", metavar="0,1", help="Train on these GPUs together, or all.  [default: the CPU]"
        ),
    ] = None,
    threads: Threads = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Train in so many processes together, which divide every batch."),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="Start all processes again, from the newest snapshot, when one has failed."),
    ] = 0,
    batch_norm: Annotated[
        BatchNorm,
        typer.Option(help="Statistics of several processes: of the whole batch, or of each one's rows."),
    ] = BatchNorm.synchronized,
    wire: Annotated[Wire, typer.Option(help="How gradients travel between processes.")] = Wire.f32,
    shard_state: Annotated[
        bool, typer.Option("--shard-state", help="Each process keeps a part of the solver's history alone.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="Train at a worker of the Dask cluster with this scheduler; snapshots come here.",
        ),
    ] = None,
    tls_ca_file: Annotated[
        Path | None, typer.Option(help="For --on tls://: certificate of the authority.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="For --on tls://: one's own certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="For --on tls://: the key of it.")] = None,
) -> None:
    """Train the net of a solver, on several processors or GPUs too (by torchrun, or --gpus, --processes)."""
    from jitdnn.cli.together import Together, names_of, run_together
    from jitdnn.cli.train import run_train

    together = Together(processes, max_restarts, batch_norm.value, wire.value, shard_state)
    effects = {"SIGINT": sigint_effect.value, "SIGHUP": sighup_effect.value}
    if on is not None:
        from jitdnn.cli.train_elsewhere import run_train_elsewhere

        options = {
            "--memory": memory,
            "--level": level,
            "--stage": listed(stage),
            "--weights": listed(weights),
            "--threads": threads,
        }
        tls = (tls_ca_file, tls_cert, tls_key)
        raise typer.Exit(
            run_train_elsewhere(solver, on, tls, resume, plot, options, effects, listed(gpu), together)
        )
    if tls_ca_file or tls_cert or tls_key:
        raise InvalidArgument(
            "--tls-ca-file, --tls-cert and --tls-key are for a cluster: give --on tls://HOST:PORT"
        )
    gpus = names_of(listed(gpu))
    if (code := run_together(together, gpus, context.obj)) is not None:
        raise typer.Exit(code)
    code = run_train(
        solver,
        resume,
        listed(weights),
        plot,
        memory,
        level,
        listed(stage),
        effects,
        gpus,
        threads,
        together,
    )
    raise typer.Exit(code)


@app.command()
def test(
    net: Net,
    weights: Weights,
    iterations: Iterations = 50,
    level: Level = None,
    stage: Stage = None,
    gpu: Gpu = None,
    threads: Threads = None,
) -> None:
    """Run a trained net on its test data and print the mean of every output."""
    from jitdnn.cli.train import run_test

    run_test(net, listed(weights), iterations, level or 0, listed(stage), listed(gpu), threads)


@app.command()
def time(
    net: Net,
    iterations: Iterations = 50,
    phase: Annotated[Phase, typer.Option(help="Read the net as in this phase.")] = Phase.TRAIN,
    level: Level = None,
    stage: Stage = None,
    gpu: Gpu = None,
    threads: Threads = None,
) -> None:
    """Time every layer of a net, forward and backward."""
    from jitdnn.cli.train import run_time

    run_time(net, iterations, phase.value, level or 0, listed(stage), listed(gpu), threads)


Source = Annotated[str, typer.Argument(metavar="IN", help="A prototxt.")]
Out = Annotated[
    Path | None, typer.Argument(metavar="[OUT]", help="The file that is written.  [default: print]")
]


@app.command()
def upgrade(source: Source, out: Out = None) -> None:
    """Write a net or solver of any version (V0, V1, solver_type) in today's syntax; comments are lost.

    Of a .caffemodel, whose weights stay as they are, a .caffemodel, or its definition as text."""
    from jitdnn.cli.upgrade import run_upgrade

    run_upgrade(source, out)


@app.command()
def deploy(
    source: Source,
    out: Out = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="C,H,W",
            help="Shape of images before they are cropped.  [default: those of the net's source]",
        ),
    ] = None,
    level: Level = None,
    stage: Stage = None,
) -> None:
    """Write the net that answers, of one that is trained: an input for its data, probabilities for its losses."""
    from jitdnn.cli.upgrade import run_deploy

    run_deploy(source, image, level or 0, listed(stage), out)


@app.command("import-prototxt")
def import_prototxt(
    source: Source,
    out: Out = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=N,C,H,W",
            help="Shape of a blob of a layer of data that names no source; repeatable.",
        ),
    ] = None,
) -> None:
    """Repair the text of a net from a web page (quotation marks, braces, types, bottoms), and say what was repaired."""
    from jitdnn.cli.upgrade import run_import

    run_import(source, inputs or [], out)


@app.command()
def draw(
    net: Net,
    out: Annotated[
        Path, typer.Argument(help="The file: .svg; .dot; or .png, .pdf, for which Graphviz is needed.")
    ],
    phase: Annotated[Phase, typer.Option(help="Draw the layers of this phase.")] = Phase.TRAIN,
    level: Level = None,
    stage: Stage = None,
    rankdir: Annotated[
        str | None, typer.Option(help="Have Graphviz draw: LR, TB, BT or RL, from where to where.")
    ] = None,
) -> None:
    """Draw a net."""
    from jitdnn.cli.draw import run_draw

    run_draw(net, out, phase.value, level or 0, listed(stage), rankdir)


@app.command("device-query")
def device_query(
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="0,1", help="Only these GPUs, or all.")
    ] = None,
) -> None:
    """Show the GPUs that nets can run on."""
    from jitdnn.cli.device_query import run_device_query

    run_device_query(listed(gpu))


@app.command("extract-features")
def extract_features(
    net: Net,
    out: Annotated[
        str,
        typer.Argument(
            help="The file that is written: .npz or .h5; with --backend a folder A,B for each blob."
        ),
    ],
    weights: Weights,
    blobs: Annotated[list[str], typer.Option(metavar="A,B", help="Blobs to write; repeatable.")],
    iterations: Iterations = 50,
    backend: Annotated[
        str | None, typer.Option(help="Write lmdb or leveldb databases, as Caffe's extract_features.")
    ] = None,
    gpu: Gpu = None,
    threads: Threads = None,
) -> None:
    """Write blobs of a trained net over its data to a file, or into databases."""
    from jitdnn.cli.features import run_extract

    run_extract(net, listed(weights), listed(blobs), out, iterations, backend, listed(gpu), threads)


@app.command()
def classify(
    net: Net,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Weights,
    labels: Annotated[Path | None, typer.Option(help="A text file with the name of a class a line.")] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="The mean: .binaryproto, .npy or .npz; of each channel it is one number."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 5,
    resize: Annotated[
        str | None,
        typer.Option(metavar="H,W", help="Resize images before they are cropped.  [default: the input's]"),
    ] = None,
    oversample: Annotated[
        bool, typer.Option("--oversample", help="Mean of ten parts: corners, middle, mirrored.")
    ] = False,
    raw_scale: Annotated[float, typer.Option(help="Factor of values 0 to 1, before the mean.")] = 255.0,
    input_scale: Annotated[float | None, typer.Option(help="Factor behind the mean.")] = None,
    channel_swap: Annotated[
        str | None, typer.Option(metavar="2,1,0", help="Order of the channels.  [default: blue, green, red]")
    ] = None,
    gpu: Gpu = None,
    threads: Threads = None,
) -> None:
    """Print the best classes of images, as a deploy net scores them."""
    from jitdnn.cli.classify import run_classify

    run_classify(
        net, images, listed(weights), labels, mean, top, resize, oversample, raw_scale, input_scale,
        channel_swap, listed(gpu), threads,
    )  # fmt: skip


def listed(values: list[str] | None) -> list[str]:
    """The entries of an option that may be given several times, and may hold several between commas."""
    return [part.strip() for value in values or [] for part in value.split(",") if part.strip()]
