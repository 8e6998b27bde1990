"""Net: layers built from a NetParameter, run forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import limits, log
from jitdnn.caffe.compiled import CompiledNet
from jitdnn.caffe.debug_info import DebugInfo
from jitdnn.caffe.device import NetDevice, settled
from jitdnn.caffe.fusion import Fusion
from jitdnn.caffe.graph import plan_gradients
from jitdnn.caffe.layers import LAYERS, Context
from jitdnn.caffe.layout_choice import lay_channels_last
from jitdnn.caffe.memory import Memory, refuse_limit
from jitdnn.caffe.net_builder import NetBuilder
from jitdnn.caffe.net_passes import NetPasses
from jitdnn.caffe.new_gradients import NewGradients
from jitdnn.caffe.obstacles import together, unknown_types
from jitdnn.caffe.part_rules import refuse_undivided
from jitdnn.caffe.parts import Part, Turns
from jitdnn.caffe.paths import find
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import NetParameter, NetState
from jitdnn.caffe.splits import insert_splits
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.caffe.weights import collect_parameters, load_weights, save_weights
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.planner.recompute import RecomputePlan
from jitdnn.settings import parse_bytes

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


class Net(NetPasses):
    """A net built for one phase.

    `blobs` maps names to blobs (those of Split layers too, named as Caffe names them), `nodes` are the layers
    in order with their blobs, `inputs` and `outputs` the names of the blobs that the caller fills and that no
    layer reads. `parameters` are the weights that a solver trains, shared ones once. Arrays of blobs are
    overwritten by the next pass: copy what must last. One net must not be used by two threads at a time.
    """

    def __init__(
        self,
        parameter: NetParameter,
        state: NetState | None = None,
        *,
        base: Path | None = None,
        seed: int | np.random.SeedSequence | None = None,
        dtype: str = "f32",
        algorithm: str | None = None,
        python_layers: Path | None = None,
        device: str | NetDevice | None = None,
        fuse: bool = True,
        channels_last: bool | None = None,
        shapes_only: bool = False,
        part: Part | None = None,
        turns: Turns | None = None,
        weights_of: Net | None = None,
    ) -> None:
        """Build the net for `state` (phase TEST if None), merged over the net's own.

        `base` is the folder that relative paths in the net may start from, `seed` that of the fillers and of
        all that is random in the layers (None: another one each time), `dtype` "f32" or "f64", `algorithm`
        the name of the algorithm that convolutions must use. `device` is where its blobs are and its layers compute:
        the processor (None, "cpu"), or a GPU, "cuda", "cuda:1", "opencl", or that of another net, `other.device`.
        `fuse`: layers in place are computed with those whose result they change (fusion.py). `channels_last`: on a GPU
        blobs lie as (N, H, W, C) where all layers that touch them take that (layout_choice.py); None: those of float32
        on NVIDIA GPUs. `python_layers` is the
        folder that layers written in Python may come from (None: there can be none). With `shapes_only` blobs and
        weights have shapes and no memory: the net can be looked at, whatever its size, and not run. `part`: this
        process has some rows of each batch, other processes the others; `turns`: it runs some of the batches
        (parts.py). `weights_of`: a net with layers of the same names, whose weights they share; of one on
        another device they have copies.

        Raises InvalidArgument (with the line) for a net that is wrong, NotSupported for what the library
        lacks, DeviceError for a GPU that is not there.
        """
        if dtype not in DTYPES:
            raise InvalidArgument(f"dtype is {dtype!r}: there are {', '.join(DTYPES)}")
        self.state = parameter.state.copy() if parameter.has("state") else NetState()
        if state is not None:
            self.state.merge(state)
        chosen = filter_net(upgrade_net(parameter), self.state)
        problems = unknown_types(chosen, LAYERS)
        try:
            self.parameter = insert_splits(chosen)
        except InvalidArgument as error:
            raise together([*problems, error]) from None
        if len(self.parameter.layer) > limits.NET_LAYERS:
            raise InvalidArgument(
                f"this net has {len(self.parameter.layer):,} layers with those that split: at most "
                f"{limits.NET_LAYERS:,} are built"
            )
        self.name = self.parameter.name
        self.dtype = DTYPES[dtype]
        self.device = settled(device)
        self.observer = None
        self._memory = None
        self._memory_options = None  # of limit_memory, while there is a limit
        self.shared = None  # set by a solver, for its iterations
        self.reshapes = 0  # what was captured before one is of other shapes, even where all lies where it lay
        self._base, self._algorithm, self._python_layers = base, algorithm, python_layers
        self._shapes_only = shapes_only
        self._part, self._turns = part, turns
        # called before and behind each layer of a backward pass with its number
        self.before_backward = self.after_backward = None
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        fillers, *seeds = sequence.spawn(1 + len(self.parameter.layer))
        self._fillers = None if weights_of else np.random.Generator(np.random.PCG64(fillers))

        context = partial(
            Context,
            dtype=self.dtype,
            base=base,
            fillers=self._fillers,
            algorithm=algorithm,
            device=self.device,
            python_layers=python_layers,
            shapes_only=shapes_only,
            part=part,
            turns=turns,
        )
        builder = NetBuilder(self.parameter, self.state, context, seeds)
        builder.build(problems)
        self.blobs, self.nodes = builder.blobs, builder.nodes
        if part is not None:
            refuse_undivided(self.nodes)
        if weights_of is not None:
            known = weights_of.weights
            for name, blobs in self.weights.items():
                for blob, other in zip(blobs, known[name], strict=True):
                    if other.device is self.device:
                        blob.share(other)
                    else:
                        np.copyto(blob.data, other.read())
        self.outputs = list(builder.unread)
        self.inputs = [blob.name for node in self.nodes if node.layer.type == "Input" for blob in node.top]
        self.parameters = collect_parameters(self.layers)
        self._input_shapes = self._shapes_of_inputs()
        plan_gradients(self.nodes, self.parameter.force_backward, self.outputs)
        self.channels_last: list[str] = []  # the blobs that lie so
        if self.device is not None:
            if channels_last is None:
                channels_last = dtype == "f32" and self.device.gpu.target == "cuda"
            if channels_last:
                ends = [self.blobs[name] for name in (*self.inputs, *self.outputs)]
                self.channels_last = lay_channels_last(self.nodes, ends)
        self.fusion = Fusion(self.nodes, algorithm is not None)
        self.gradients = NewGradients(self.nodes)
        self._has_code = False
        self._is_fused = fuse and not self.parameter.debug_info
        if self.parameter.debug_info:
            self.observer = DebugInfo(self, log.tell)

    @property
    def weight_count(self) -> int:
        """The number of trained values, shared ones counted once."""
        return sum(parameter.blob.size for parameter in self.parameters)

    def limit_memory(
        self,
        limit: int | str | None,
        *,
        extra: int | str = 0,
        is_trained: bool = True,
        is_timed: bool | None = None,
        beside: Net | None = None,
    ) -> RecomputePlan | None:
        """Keep the memory of training within `limit` from now on, and return the plan; None lifts the limit.

            plan = net.limit_memory("64 MiB")
            print(plan.explain())

        The limit counts weights, their gradients, data and gradients of blobs, what layers keep beside them, and
        workspace; `extra` bytes of it belong to others (a solver's history). "least" is the smallest there is. Memory
        is released as soon as nobody needs it; convolutions are divided or run by slower algorithms, in less workspace,
        and results of layers are computed again in the backward pass, whatever costs the least time. For that every
        layer is run twice now, on zeros. Times are those that the planner expects, so a net is planned alike each time;
        with `is_timed` (None: if the setting `choice` is "find") they are measured. Without `is_trained` only forward
        passes are run. `beside` is another net under a limit that never runs at the same time (one that tests, and one
        that is trained): they share their workspace.

        After a pass only inputs, outputs and what has a loss weight have data; reading other blobs is an error, and
        each backward pass needs a forward pass before it. After `reshape` the next pass plans anew.

        Raises InvalidArgument, naming the least, if the limit is too small; the net has none then. NotSupported
        without SciPy.
        """
        if self._memory is not None:
            self._memory.lift()
        if self.shared is not None:  # the limit is kept in another way
            self.shared.forget()
            self.shared = None
        self.fusion.switch(False)
        self._memory = self._memory_options = None
        if limit is None or (isinstance(limit, str) and limit.strip().lower() in ("none", "unlimited")):
            return None
        refuse_limit(self.layers, self.device)
        is_least = isinstance(limit, str) and limit.strip().lower() == "least"
        options: dict[str, Any] = {
            "limit": None if is_least else parse_bytes(limit),
            "extra": parse_bytes(extra) or 0,
            "is_trained": is_trained,
            "is_timed": is_timed,
            "beside": None if beside is None else beside._memory,
        }
        self._memory = Memory(self, **options)
        self._memory_options = options
        return self._memory.plan

    def save_weights(self, path: str | Path) -> None:
        """Write all weights to a file, whole or not at all: .npz (arrays LAYER/INDEX), .caffemodel, .caffemodel.h5."""
        save_weights(self, self.parameter, Path(path))

    def load_weights(self, path: str | Path) -> list[str]:
        """Copy weights from .npz, .caffemodel, .caffemodel.h5 or a snapshot into the layers of the same names; return
        those names.

        Raises InvalidShape if a shape differs, InvalidArgument if no name fits or the file cannot be read.
        """
        return load_weights(self, find(path, self._base))

    def compiled(self, outputs: Sequence[str] | None = None, *, threads: int | None = None) -> CompiledNet:
        """Return this net, of phase TEST, prepared to give `outputs` (names of blobs; those of the net if None) in one
        list of launches, on a GPU as one CUDA graph, with layers fused, for each kind of inputs:

            answer = net.compiled().forward(data=images)["prob"]

        Blobs of this net stay as they are, and those in between are not computed one by one. `threads`: how many its
        kernels use, instead of the setting. Results differ from those of `forward` by rounding. Its weights are this
        net's: compile anew when they have changed. HDF5Output and other layers without tops do not run.

        Raises InvalidArgument for a net of phase TRAIN or of shapes alone and for a name that no blob has, NotSupported
        for a net that was built with an `algorithm` and for one of several processes.
        """
        if self._shapes_only:
            raise InvalidArgument("this net was built with shapes_only: it has no weights to answer with")
        if self._algorithm is not None or self._part is not None:
            what = f"algorithm={self._algorithm!r}" if self._part is None else "several processes"
            raise NotSupported(
                f"this net was built for {what}, which a compiled net does not know: run it whole"
            )
        return CompiledNet(self, outputs, threads=threads)

    def like(self, definition: NetParameter) -> Net:
        """A net of this kind on the processor for another definition, by the weights of this one, which has all that
        it has."""
        return Net(
            definition,
            self.state.copy(),
            base=self._base,
            seed=0,
            dtype="f64" if self.dtype.itemsize == 8 else "f32",
            python_layers=self._python_layers,
            fuse=False,
            weights_of=self,
        )
