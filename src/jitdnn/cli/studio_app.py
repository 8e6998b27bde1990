"""The arguments of `jitdnn studio`, which serves it, and of what is asked of one that is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jitdnn.cli.options import Host, Json, Port

app = typer.Typer()
_MORE = "Without a command it serves; the commands ask a studio that is served, here or at --address."

Run = Annotated[int, typer.Argument(min=1, help="Number of a run.")]
Wait = Annotated[bool, typer.Option("--wait", help="Come back when it has ended, with 1 unless it is done.")]


@app.callback(
    invoke_without_command=True, help=f"Data sets, training and a look inside, in a browser. {_MORE}"
)
def studio(
    context: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Folder of data sets and runs.  [default: ~/.local/share/jitdnn-studio]",
            envvar="JITDNN_STUDIO_HOME",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8642,
    browse: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser.  [default: where there is a screen]"),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=0, max=64, help="Trainings at a time on the processor.  [default: as before, 1]"),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="Of the studio to ask, as it printed it.  [default: the one served from the home]",
            envvar="JITDNN_STUDIO_ADDRESS",
        ),
    ] = "",
    token: Annotated[
        str, typer.Option(help="Its secret.  [default: that of the home]", envvar="JITDNN_STUDIO_TOKEN")
    ] = "",
) -> None:
    from jitdnn.cli.studio import Asked, run_studio

    if context.invoked_subcommand is None:
        run_studio(home, host, port, browse, slots)
    context.obj = Asked(home, address, token)


@app.command()
def datasets(context: typer.Context, json: Json = False) -> None:
    """List the data sets."""
    context.obj.datasets(json)


@app.command()
def runs(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(help="Words in name, net, data set, note or state.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """List runs, the newest first."""
    context.obj.runs(" ".join(words or []), count, json)


@app.command()
def status(context: typer.Context, run: Run, json: Json = False) -> None:
    """What a run is at: state, iteration, loss, best test."""
    context.obj.status(run, json)


@app.command()
def submit(
    context: typer.Context,
    net: Annotated[str, typer.Argument(help="A prototxt, or the name of a net of the gallery: lenet.")],
    data: Annotated[str, typer.Option("--data", help="A data set, by number or name.")],
    name: Annotated[str, typer.Option(help="Of the run.  [default: after net and data set]")] = "",
    wants: Annotated[
        str, typer.Option("--on", help="Where: cpu, cuda, cuda:1, #3.  [default: the first free place]")
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option, as epochs=4; repeatable."),
    ] = None,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Queue a training, and print the number of its run."""
    context.obj.submit(net, data, name, wants, options or [], wait, json)


@app.command()
def wait(context: typer.Context, run: Run, json: Json = False) -> None:
    """Come back when a run has ended, is paused or has failed; with 1 unless it is done or was stopped early."""
    context.obj.wait(run, json)


@app.command()
def pause(context: typer.Context, run: Run) -> None:
    """Have a run write a snapshot and free its place."""
    context.obj.ask(run, "pause")


@app.command()
def resume(context: typer.Context, run: Run) -> None:
    """Queue a run again, from its newest snapshot."""
    context.obj.ask(run, "resume")


@app.command()
def stop(context: typer.Context, run: Run) -> None:
    """End a run early, keeping what it has learned."""
    context.obj.ask(run, "stop")


@app.command()
def export(
    context: typer.Context,
    run: Run,
    kind: Annotated[str, typer.Argument(help="bundle, onnx, torch, caffe or safetensors.")],
    to: Annotated[Path, typer.Argument(help="The file to write.")],
    weights: Annotated[str, typer.Option(help="best.npz, or the name of a snapshot.")] = "",
) -> None:
    """Export what a run has learned to a file of this machine."""
    context.obj.export(run, kind, to, weights)


@app.command()
def mcp(context: typer.Context) -> None:
    """Serve the studio's operations as tools of the Model Context Protocol, on standard input and output."""
    context.obj.mcp()
