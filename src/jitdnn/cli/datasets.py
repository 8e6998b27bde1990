"""`jitdnn convert-imageset` and `jitdnn compute-mean`: databases for Data layers, and their mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jitdnn.errors import InvalidArgument


def convert_imageset(
    root: Annotated[
        str, typer.Argument(help="What is put in front of the names in the list: a folder with /.")
    ],
    images: Annotated[Path, typer.Argument(help="List of images: a name, a blank and a label a line.")],
    database: Annotated[Path, typer.Argument(help="The database, a folder that is not there yet.")],
    gray: Annotated[bool, typer.Option("--gray", help="One channel.")] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In an order that is drawn.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="What the order is drawn from.")] = 0,
    resize_height: Annotated[int, typer.Option(min=0, help="Rows; 0: as they are.")] = 0,
    resize_width: Annotated[int, typer.Option(min=0, help="Columns; 0: as they are.")] = 0,
    encoded: Annotated[bool, typer.Option("--encoded", help="Store image files instead of pixels.")] = False,
    encode_type: Annotated[str, typer.Option(help="Encode as png or jpg.")] = "",
    backend: Annotated[str, typer.Option(help="Write an lmdb or a leveldb database.")] = "lmdb",
    check_size: Annotated[bool, typer.Option("--check-size", help="Refuse images of several sizes.")] = False,
) -> None:
    """Write images that a list names into a database."""
    from jitdnn.caffe import datasets
    from jitdnn.caffe.sources import read_image_list
    from jitdnn.cli.console import progress, say

    if (resize_height == 0) != (resize_width == 0):
        raise InvalidArgument("--resize-height and --resize-width: give both, or none")
    with progress(len(read_image_list(images)), "images") as advance:
        count = datasets.convert_imageset(
            images,
            root,
            database,
            is_grey=gray,
            resize=(resize_height, resize_width) if resize_height else None,
            shuffle_seed=seed if shuffle else None,
            is_encoded=encoded,
            encode_type=encode_type,
            check_size=check_size,
            backend=backend,
            advance=lambda done: advance(done, ""),
        )
    say(f"{count} images in {database}")


def compute_mean(
    database: Annotated[Path, typer.Argument(help="An LMDB or LevelDB database.")],
    out: Annotated[Path | None, typer.Argument(help="The .binaryproto file that is written.")] = None,
) -> None:
    """Compute the mean image of a database, for mean_file."""
    from jitdnn.caffe import datasets
    from jitdnn.caffe.databases import open_database
    from jitdnn.cli.console import progress, say

    with progress(open_database(database).size or 0, "images") as advance:
        mean = datasets.compute_mean(database, out, lambda done: advance(done, ""))
    for channel, value in enumerate(mean.mean(axis=(0, 2, 3)).tolist()):
        say(f"mean_value channel [{channel}]: {value:g}")
    if out is not None:
        say(f"mean image of {' x '.join(map(str, mean.shape[1:]))} in {out}")
