"""HDF5Data and HDF5Output: blobs from HDF5 files, and into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.caffe import hdf5, paths
from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import BottomlessLayer, Layer, Reads
from jitdnn.caffe.layers.data import named
from jitdnn.caffe.sources import read_list
from jitdnn.errors import InvalidArgument, InvalidShape, JitdnnError


class HDF5DataLayer(BottomlessLayer):
    """Tops are the datasets of their names, batch_size rows at a time, from the files that the list
    hdf5_data_param.source names, one a line. Each file is read whole; batches go on from one file into the next, and
    behind the last into the first. `shuffle` draws another order of the files for each round, and of the rows for each
    file.
    """

    type = "HDF5Data"
    tops = (1, None)
    is_random = True

    arrays: list[Array]
    order: Array

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.hdf5_data_param
        if self.parameter.has("transform_param"):
            raise self.invalid(
                "this layer does not transform data: take transform_param out", "transform_param"
            )
        if not parameter.source:
            raise self.invalid("hdf5_data_param.source is missing", "hdf5_data_param")
        if parameter.batch_size == 0:
            raise self.invalid(
                "hdf5_data_param.batch_size is missing or 0: it must be positive", "hdf5_data_param"
            )
        self.batch = parameter.batch_size
        path = paths.find(parameter.source, self.context.base)
        if hdf5.is_hdf5(path):
            raise self.invalid(
                f"source {path} is an HDF5 file: a text file is needed that names such files, one a line",
                "hdf5_data_param",
            )
        names = [line.strip() for line in read_list(path, "a list of HDF5 files")]
        if not names:
            raise self.invalid(f"{path} names no files", "hdf5_data_param")
        self.files = [paths.find(name, path.parent) for name in names]
        self.seed = int(self.context.random.integers(1 << 62)) if parameter.shuffle else None
        # files that were opened before this one, and rows of it that were taken
        self.opened, self.row = 0, 0
        self.names = [blob.name for blob in top]
        self._load(0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.rows = self.context.rows(self.batch, f"a batch of layer {self.name!r}")
        for blob, array in zip(top, self.arrays, strict=True):
            blob.reshape((self.rows.stop - self.rows.start, *array.shape[1:]))

    def skip(self) -> None:
        self._read(())

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._read(top)

    def _read(self, top: Sequence[Blob]) -> None:
        """Go on by a batch, and fill the tops with this process's rows of it."""
        filled = 0
        while filled < self.batch:
            if self.row == len(self.order):
                try:
                    self._load(self.opened + 1)
                except JitdnnError as error:
                    raise named(self, error) from None
            count = min(self.batch - filled, len(self.order) - self.row)
            # of these rows, which are filled .. filled + count of the batch, this process's
            first, last = max(filled, self.rows.start), max(filled, min(filled + count, self.rows.stop))
            rows = self.order[self.row + first - filled : self.row + last - filled]
            for blob, array in zip(top, self.arrays, strict=False):
                if array.shape[1:] != blob.shape[1:]:
                    raise self.invalid(
                        f"{blob.name} has rows of shape {array.shape[1:]} in {self._file(self.opened)}, and of "
                        f"{blob.shape[1:]} in the first file: they must agree"
                    )
                blob.data[first - self.rows.start : last - self.rows.start] = array[rows]
            filled += count
            self.row += count

    def state(self) -> dict[str, Any]:
        places = {"opened": self.opened, "row": self.row, "files": len(self.files), "seed": self.seed}
        return {**super().state(), **places}

    def restore(self, state: Mapping[str, Any]) -> None:
        opened, row, seed = state["opened"], state["row"], state["seed"]
        if state["files"] != len(self.files) or (seed is None) != (self.seed is None):
            raise self.invalid("the list of files is another one than when the state was saved")
        if any(
            type(number) is not int or number < 0 for number in (opened, row, 0 if seed is None else seed)
        ):
            raise self.invalid(f"the saved place is file {opened!r}, row {row!r}")
        if opened == self.opened and seed == self.seed and row <= len(self.order):
            super().restore(state)
            self.row = row
            return
        before = self.opened, self.seed, self.row, self.arrays, self.order
        try:
            self.seed = seed
            self._load(opened)
            if row > len(self.order):
                raise self.invalid(f"{self._file(opened)} has {len(self.order)} rows, and had {row} taken")
            super().restore(state)
        except BaseException:
            self.opened, self.seed, self.row, self.arrays, self.order = before
            raise
        self.row = row

    def _random(self, *numbers: int) -> np.random.Generator:
        assert self.seed is not None
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *numbers])))

    def _file(self, opened: int) -> Path:
        round_, place = divmod(opened, len(self.files))
        if self.seed is not None:
            place = int(self._random(round_).permutation(len(self.files))[place])
        return self.files[place]

    def _load(self, opened: int) -> None:
        """Read the datasets of the file that is the `opened`-th in order, from its first row on."""
        path = self._file(opened)
        with hdf5.opened(path) as file:
            found = hdf5.datasets(file, path)
            for name in self.names:
                if name not in found:
                    raise InvalidArgument(
                        f"{path} has no dataset {name!r}; it has {', '.join(sorted(found)[:20])}"
                    )
                if not found[name].shape:
                    raise InvalidShape(f"{path}: {name} is a single number; rows are needed")
            arrays: list[Array] = [hdf5.array(found[name], path, name) for name in self.names]
        counts = {len(array) for array in arrays}
        if len(counts) > 1 or 0 in counts:
            rows = ", ".join(f"{name} {len(array)}" for name, array in zip(self.names, arrays, strict=True))
            raise InvalidShape(f"{path} must have as many rows, one at least, in each dataset; it has {rows}")
        self.arrays, self.opened, self.row = arrays, opened, 0
        rows_in_file = len(arrays[0])
        self.order = (
            np.arange(rows_in_file)
            if self.seed is None
            else self._random(opened, 1).permutation(rows_in_file)
        )


class HDF5OutputLayer(Layer):
    """Writes its two bottoms into the file hdf5_output_param.file_name, datasets data and label. The first pass makes
    the file anew; later ones append their rows.
    """

    undivided = "it writes whole batches into one file"
    type = "HDF5Output"
    bottoms = (2, 2)
    tops = (0, 0)
    may_rerun = False
    reads = Reads(bottom=False, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        hdf5.h5py()
        name = self.parameter.hdf5_output_param.file_name
        if not name:
            raise self.invalid("hdf5_output_param.file_name is missing", "hdf5_output_param")
        self.path = Path(name)
        if not self.path.absolute().parent.is_dir():
            raise self.invalid(f"file_name {name!r}: its folder is not there", "hdf5_output_param")
        self.is_begun = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if any(len(blob.shape) == 0 or blob.shape[0] != bottom[0].shape[0] for blob in bottom):
            raise self.invalid(f"bottoms {[blob.shape for blob in bottom]} must have as many rows")

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        named = dict(zip(("data", "label"), bottom, strict=True))
        try:
            with hdf5.h5py().File(self.path, "r+" if self.is_begun else "w") as file:
                for name, blob in named.items():
                    rows = blob.data
                    if not self.is_begun:
                        file.create_dataset(name, data=rows, maxshape=(None, *rows.shape[1:]), chunks=True)
                        continue
                    dataset = file[name]
                    dataset.resize(len(dataset) + len(rows), axis=0)
                    dataset[-len(rows) :] = rows
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self.invalid(f"{self.path} cannot be written: {error}") from error
        self.is_begun = True

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        pass
