"""What a solver does that trains together with other processes: it agrees with them on seeds, weights, stops and
snapshots, and sums losses and gradients over all of them (docs/distributed.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from jitdnn import log
from jitdnn.caffe.blob import Array
from jitdnn.caffe.gradient_buckets import BUCKET_BYTES, Buckets
from jitdnn.caffe.graph import Node
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.net import Net
from jitdnn.caffe.parts import BATCH_NORMS, Part, Turns
from jitdnn.caffe.shards import Shards
from jitdnn.caffe.snapshot import DamagedSnapshotError, Snapshot
from jitdnn.caffe.split_calls import SplitGroup
from jitdnn.errors import InvalidArgument, ProcessGroupError, SnapshotError
from jitdnn.groups import WIRES, Group, Work, gather_rows

T = TypeVar("T")
#: bytes of a bucket on a GPU, where each ends a graph and is a call of NCCL
BUCKET_BYTES_OF_GPUS = 4 * BUCKET_BYTES


@dataclass(frozen=True)
class Agreed:
    """What all processes know behind an iteration: the loss of the whole batch, and whether any of them was told to
    stop, or to take a snapshot.
    """

    loss: float
    is_stopped: bool
    is_snapshot_wanted: bool


class DataParallel:
    """One process's side of a training that several do together."""

    def __init__(
        self,
        group: Group,
        *,
        batch_norm: str = "synchronized",
        wire: str = "f32",
        bucket_bytes: int | None = None,
        shards_state: bool = False,
    ) -> None:
        """`batch_norm`: "synchronized", with the statistics of the whole batch, as in one process; or "local", with
        those of each process's rows. `wire`: gradients travel as "f32" or rounded to "bf16". `shards_state`: each
        process keeps a part of the history (shards.py). Raises InvalidArgument.
        """
        for name, value, known in (("batch_norm", batch_norm, BATCH_NORMS), ("wire", wire, WIRES)):
            if value not in known:
                raise InvalidArgument(f"{name} is {value!r}: there are {', '.join(known)}")
        if bucket_bytes is not None and bucket_bytes <= 0:
            raise InvalidArgument(f"bucket_bytes is {bucket_bytes}: it must be positive")
        self.group = SplitGroup(group)
        self.part = Part(self.group, batch_norm)
        self.shards_state = shards_state
        self._wire, self._bytes = wire, bucket_bytes
        self._numbers = np.zeros(3)
        self._work: Work | None = None

    # ---- building

    def seed(self) -> int:
        """The seed of all, where none is given."""
        own = np.random.SeedSequence().entropy
        assert isinstance(own, int)
        return int.from_bytes(self.group.share(own.to_bytes(16, "little")), "little")

    def turns(self) -> Turns:
        """Those of a net that is tested."""
        return Turns(self.group.rank, self.group.size)

    def take(self, net: Net) -> None:
        """Train this net from now on."""
        self._net = net
        described = json.dumps([[each.name, each.blob.shape] for each in net.parameters]).encode()
        for rank, other in enumerate(self.group.gather(described)):
            if other != described:
                raise ProcessGroupError(
                    f"process {rank} trains another net than process {self.group.rank}", rank
                )
        self.buckets = Buckets(
            net,
            self.group,
            bytes=self._bytes or (BUCKET_BYTES if net.device is None else BUCKET_BYTES_OF_GPUS),
            wire=self._wire,
            is_scattered=self.shards_state,
        )
        self.shards = Shards(net, self.group, self.buckets) if self.shards_state else None
        net.after_backward = self.buckets.layer_done
        norms = [layer for layer in net.layers if isinstance(layer, BatchNormLayer) and not layer.is_global]
        self._local_norms = norms if self.part.batch_norm == "local" else []
        if norms and not self.group.rank:
            whose = "each process's rows (local)" if self._local_norms else "the whole batch (synchronized)"
            log.tell(f"{len(norms)} BatchNorm layers take the statistics of {whose}")

    def agree_on_weights(self) -> None:
        """Take the weights of process 0, statistics of BatchNorm layers too."""
        weights = [blob for blobs in self._net.weights.values() for blob in blobs if blob.size]
        self.group.broadcast_all([blob.values for blob in weights])

    # ---- training

    def open(self, loss: float, is_stopped: bool, is_snapshot_wanted: bool) -> None:
        """Begin to agree: the last backward pass of an iteration is about to run. `loss` is 0 where a GPU has it."""
        self._numbers[:] = loss, is_stopped, is_snapshot_wanted
        self._work = self.group.start_sum(self._numbers)

    def close(self) -> Agreed:
        """Wait for what the others say."""
        assert self._work is not None
        self._work.wait()
        loss, stops, wanted = self._numbers.tolist()
        return Agreed(loss, stops > 0, wanted > 0)

    def settle(self) -> None:
        """Before a test or a snapshot: local statistics become their mean over the processes."""
        for layer in self._local_norms:
            for blob in layer.weights:
                self.group.sum(blob.values)
                blob.data[...] /= self.group.size

    def total(self, number: float) -> float:
        """The sum of a number over all processes."""
        numbers = np.array([number])
        self.group.sum(numbers)
        return float(numbers[0])

    def outputs(self, net: Net, values: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of the net that is trained, of the whole batch."""
        made = {blob.name: node for node in net.nodes for blob in node.top}
        return {name: self._joined(made[name], values[name]) for name in values}

    def _joined(self, node: Node, value: Array) -> Array:
        if node.layer.parts_of_top == "same":
            return value
        if node.layer.parts_of_top == "sum" and (
            not value.ndim or node.layer.parameter.top[0] == node.top[0].name
        ):
            whole = value.astype(np.float64)
            self.group.sum(whole)
            return whole.astype(value.dtype)
        return gather_rows(self.group, value)

    # ---- testing

    def sums(
        self, totals: Mapping[str, Array], batches: int, loss: float
    ) -> tuple[dict[str, Array], int, float]:
        """Sums of outputs over the batches of all processes; those whose shapes differ are left out."""
        described = json.dumps([batches, [[name, total.shape] for name, total in totals.items()]]).encode()
        found = [json.loads(text) for text in self.group.gather(described)]
        outputs = [shapes for number, shapes in found if number]
        kept = [(name, tuple(shape)) for name, shape in (outputs[0] if outputs else ())
                if all([name, shape] in other for other in outputs)]  # fmt: skip
        parts = [
            np.asarray(totals[name] if batches else np.zeros(shape), np.float64).reshape(-1)
            for name, shape in kept
        ]
        flat = np.concatenate([*parts, np.array([loss])])
        self.group.sum(flat)
        results, start = {}, 0
        for name, shape in kept:
            size = int(np.prod(shape, dtype=int))
            results[name] = flat[start : start + size].reshape(shape)
            start += size
        return results, sum(number for number, _ in found), float(flat[-1])

    # ---- snapshots

    def read_once(self, read: Callable[[], Snapshot]) -> Snapshot:
        """Have process 0 read a snapshot and give it to all. Raises what it raises, everywhere."""
        header: dict[str, Any] = {}
        found: Snapshot | None = None
        if not self.group.rank:
            try:
                found = read()
                header = {"meta": found.meta, "arrays": [
                    [name, array.dtype.str, array.shape] for name, array in found.arrays.items()
                ]}  # fmt: skip
            except SnapshotError as error:
                header = {"error": str(error), "damaged": isinstance(error, DamagedSnapshotError)}
                self.group.share(json.dumps(header).encode())
                raise
        header = json.loads(self.group.share(json.dumps(header).encode()))
        if "error" in header:
            raise (DamagedSnapshotError if header["damaged"] else SnapshotError)(header["error"])
        arrays: dict[str, Array] = {}
        for name, dtype, shape in header["arrays"]:
            array = np.empty(shape, dtype) if found is None else np.array(found.arrays[name])
            if array.size:
                self.group.broadcast(array)
            arrays[name] = array
        return Snapshot(header["meta"], arrays)

    def wait_for_first(self, work: Callable[[], T]) -> T | None:
        """Have process 0 do something, and the others wait; None there. Raises ProcessGroupError where it fails."""
        if not self.group.rank:
            try:
                result = work()
            except BaseException as error:
                self.group.share(f"{type(error).__name__}: {error}".encode())
                raise
            self.group.share(b"")
            return result
        if failed := self.group.share(b""):
            raise ProcessGroupError(f"process 0 failed: {failed.decode(errors='replace')}", 0)
        return None
