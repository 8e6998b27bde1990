"""Processes that work together, by torch.distributed: gloo between processors, NCCL between NVIDIA's GPUs.

Arrays are handed over where they are: NumPy's through `torch.from_numpy`, those on a GPU through DLPack.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, NotSupported, ProcessGroupError
from jitdnn.groups import WIRES
from jitdnn.tensor import DeviceArray

try:
    import torch
    import torch.distributed as dist
except ImportError as error:  # pragma: no cover - tests have it
    raise NotSupported(
        f'several processes need PyTorch: pip install "jitdnn[distributed]" ({error})'
    ) from error

# named anew in PyTorch 2.13
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

#: seconds after which a process that does not answer counts as gone
TIMEOUT = 600.0
#: bytes of arrays that are copied together, to travel as one
TOGETHER = 64 << 20


class _Work:
    """A collective that was started; behind it what of a narrower copy goes back into the array."""

    def __init__(
        self, group: TorchGroup, work: Any, wide: Any = None, narrow: Any = None, stream: Any = None
    ) -> None:
        self._group, self._work, self._wide, self._narrow, self._stream = group, work, wide, narrow, stream

    def wait(self) -> None:
        """Wait for it; on a GPU have the stream that started it wait."""
        with _named(self._group), _on(self._stream):
            self._work.wait()
            if self._narrow is not None:
                self._wide.copy_(self._narrow)
        self._wide = self._narrow = None


class TorchGroup:
    """The processes of a torch.distributed process group (groups.Group says what it does)."""

    def __init__(self, group: Any = None) -> None:
        """`group` is one of torch's, None for the default one, which must have been initialized. Raises
        InvalidArgument.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument(
                "torch.distributed is not initialized: call jitdnn.distributed.start(), in a process that torchrun "
                "started"
            )
        self._group = dist.group.WORLD if group is None else group
        self.rank: int = dist.get_rank(self._group)
        self.size: int = dist.get_world_size(self._group)

    def sum(self, array: Any) -> None:
        self.start_sum(array).wait()

    def start_sum(self, array: Any, wire: str = "f32") -> _Work:
        return self._start(
            array, wire, lambda tensor: dist.all_reduce(tensor, group=self._group, async_op=True)
        )

    def start_scatter(self, array: Any, wire: str = "f32") -> _Work:
        def begin(tensor: Any) -> Any:
            own = tensor.chunk(self.size)[self.rank]
            return _REDUCE_SCATTER(own, tensor, group=self._group, async_op=True)

        return self._start(array, wire, begin)

    def gather_parts(self, array: Any) -> None:
        tensor, stream = self._tensor(array)
        flat = tensor.view(-1)
        own = flat.chunk(self.size)[self.rank]
        with _named(self), _on(stream):
            _ALL_GATHER(flat, own.clone(), group=self._group)

    def broadcast(self, array: Any) -> None:
        tensor, stream = self._tensor(array)
        with _named(self), _on(stream):
            dist.broadcast(tensor, group=self._group, group_src=0)

    def broadcast_all(self, arrays: Iterable[Any]) -> None:
        kinds: dict[Any, list[Any]] = {}
        for array in arrays:
            tensor, stream = self._tensor(array)
            if tensor.numel():
                # as it lies in memory, whatever the order of its axes
                flat = tensor.as_strided((tensor.numel(),), (1,))
                kinds.setdefault((flat.dtype, stream), []).append(flat)
        for (_, stream), flats in kinds.items():
            with _named(self), _on(stream):
                for several in _runs(flats):
                    whole = torch.cat(several) if len(several) > 1 else several[0]
                    dist.broadcast(whole, group=self._group, group_src=0)
                    if self.rank and len(several) > 1:
                        parts = whole.split([flat.numel() for flat in several])
                        for flat, part in zip(several, parts, strict=True):
                            flat.copy_(part)

    def gather(self, data: bytes) -> list[bytes]:
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = len(data)
        self.sum(sizes)
        most = int(sizes.max())
        if not most:
            return [b""] * self.size
        rows = np.zeros((self.size, most), np.uint8)
        rows[self.rank, : len(data)] = np.frombuffer(data, np.uint8)
        self.gather_parts(rows)
        return [rows[rank, : sizes[rank]].tobytes() for rank in range(self.size)]

    def share(self, data: bytes) -> bytes:
        size = np.array([len(data)], np.int64)
        self.broadcast(size)
        content = np.zeros(int(size[0]), np.uint8)
        if not self.rank:
            content[:] = np.frombuffer(data, np.uint8)
        if content.size:
            self.broadcast(content)
        return content.tobytes()

    def close(self) -> None:
        """Leave the group, when all have come here."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with suppress(RuntimeError):  # another one has gone already
                dist.barrier(group)
            del group
            dist.destroy_process_group()

    def _start(self, array: Any, wire: str, begin: Any) -> _Work:
        if wire not in WIRES:
            raise InvalidArgument(f"wire is {wire!r}: there are {', '.join(WIRES)}")
        tensor, stream = self._tensor(array)
        with _named(self), _on(stream):
            if wire == "bf16" and tensor.dtype == torch.float32:
                narrow = tensor.to(torch.bfloat16)
                return _Work(self, begin(narrow), tensor, narrow, stream)
            return _Work(self, begin(tensor), stream=stream)

    def _tensor(self, array: Any) -> tuple[Any, Any]:
        """The same memory as one of torch's, and the stream of its GPU's calls."""
        if isinstance(array, DeviceArray):
            streams = array.memory.streams
            stream = next(iter(streams)) if len(streams) == 1 else 0
            with torch.cuda.device(array.gpu.device_id[1]):
                external = torch.cuda.ExternalStream(int(stream)) if stream else torch.cuda.default_stream()
                with torch.cuda.stream(external):
                    return torch.from_dlpack(array), external
        return torch.from_numpy(array), None


def _runs(flats: list[Any]) -> Iterator[list[Any]]:
    """The tensors in turn, as many at once as have TOGETHER bytes, or one that has more."""
    run: list[Any] = []
    size = 0
    for flat in flats:
        if run and size + flat.nbytes > TOGETHER:
            yield run
            run, size = [], 0
        run.append(flat)
        size += flat.nbytes
    if run:
        yield run


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield


@contextmanager
def _named(group: TorchGroup) -> Iterator[None]:
    """Errors of torch as the library's."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).strip().splitlines()
        raise ProcessGroupError(
            f"process {group.rank} of {group.size} cannot go on, since another one has gone or does not answer: "
            f"{said[0] if said else type(error).__name__}"
        ) from error


def start(*, backend: str | None = None, timeout: float = TIMEOUT, device: str | None = None) -> TorchGroup:
    """Join the processes that torchrun started, and return their group.

    `backend`: torch's, None for gloo, and NCCL beside it where `device`, the GPU of this process, is one of NVIDIA's
    ("cuda", "cuda:1"). `timeout` in seconds: a process that does not answer for so long counts as gone.

    Raises InvalidArgument outside of torchrun, NotSupported for a GPU that PyTorch cannot use, ProcessGroupError if the
    others do not come.
    """
    missing = [
        name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
    ]
    if missing:
        raise InvalidArgument(
            f"{', '.join(missing)} not set: start the program by torchrun, as in `torchrun --nproc-per-node 2 "
            "-m jitdnn train solver.prototxt`"
        )
    if not timeout > 0:
        raise InvalidArgument(f"timeout is {timeout}: seconds above 0 are needed")
    is_gpu = device is not None and device.startswith("cuda")
    if is_gpu:
        if not torch.cuda.is_available():
            raise NotSupported(
                f"processes on {device} reduce their gradients by NCCL, and this PyTorch ({torch.__version__}) finds "
                "no GPU: install a build of PyTorch for CUDA"
            )
        torch.cuda.set_device(int(str(device).partition(":")[2] or 0))
    try:
        if not dist.is_initialized():
            wait = timedelta(seconds=timeout)
            store, rank, size = next(dist.rendezvous("env://", timeout=wait))
            # torchrun's store outlives a restart, and the addresses of processes that have gone stand in it. One that
            # is made for each start needs no number; agents that came later have counted fewer
            is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_shared else "0"
            attempt = f"jitdnn/{count}/{size}"
            dist.init_process_group(
                backend or ("cpu:gloo,cuda:nccl" if is_gpu else "gloo"),
                store=dist.PrefixStore(attempt, store),
                rank=rank,
                world_size=size,
                timeout=wait,
            )
    except (RuntimeError, ValueError, StopIteration) as error:
        raise ProcessGroupError(f"the processes could not be joined: {error}") from error
    return TorchGroup()
