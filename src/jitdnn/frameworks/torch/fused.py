"""`fuse(model)`: a model in evaluation mode whose whole graph runs by fused kernels.

    fast = jitdnn.torch.fuse(model.eval())
    y = fast(x)

Weights are taken as constants: normalizations are folded into them, and what kernels prepare of them is kept. When
they change they are prepared again, which each call finds out by their version counters and addresses.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from jitdnn import log
from jitdnn.arguments import shown
from jitdnn.errors import InvalidType, NotSupported
from jitdnn.frameworks.torch.choice import decide
from jitdnn.frameworks.torch.folded import settle
from jitdnn.frameworks.torch.fused_gpu import GpuEngines, Unfused, kind_on_gpu
from jitdnn.frameworks.torch.fused_memory import Budget, Footprint, Listing, checked, within
from jitdnn.frameworks.torch.fused_watch import Stamp, Watched, picked, stamp
from jitdnn.frameworks.torch.gpu_program import GpuProgram
from jitdnn.frameworks.torch.graph import calling_module, capture, fits, has_images, words
from jitdnn.frameworks.torch.options import Options, handle_of, is_disabled, parse
from jitdnn.frameworks.torch.program import Program
from jitdnn.frameworks.torch.registry import is_dense
from jitdnn.handle import Handle
from jitdnn.locks import lock
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.retention import Recent

_are_transforms_active = torch._C._are_functorch_transforms_active  # which Dynamo can ask, too
MOST_PROGRAMS = 16
"""Kinds of inputs for which one function keeps a program; what was not used for longest is prepared again."""


@dataclass
class _Prepared:
    """A program (or why the model itself runs), the graph that it was made of, and the weights that it was made with.

    `lifted`: tensors that the function reads and that are none of its arguments; `reads` takes those that the graph
    reads of the constants. `program` is None where the weights
    have changed.
    """

    program: Program | GpuProgram | Unfused | None
    traced: GraphModule
    lifted: list[Tensor]
    weights: Stamp
    reads: Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class _Ahead:
    """Results by weights of which it is not known yet whether they are the same still."""

    prepared: _Prepared
    results: list[Any]


class FusedFunction:
    """A function of constants and inputs, all tensors, that gives a list; a program for each kind of inputs.

    `what` names it in errors. `memory_limit`: bytes that the program of each kind may take, or "least"; `captured` gets
    the programs that are part of CUDA graphs. Raises at the first call of a kind NotSupported where it has no graph,
    InvalidArgument where it cannot keep to the limit.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: str,
        what: str,
        memory_limit: int | str | None = None,
        captured: list[Any] | None = None,
    ) -> None:
        self._function, self._options, self._what = function, options, what
        self._limit = memory_limit
        #: of so many threads, with workspace of their own, where there is a limit
        self._handles: dict[int, Handle] = {}
        self._programs: Recent[tuple[Any, ...], _Prepared] = Recent(2 * MOST_PROGRAMS)
        self._kinds: set[tuple[Any, ...]] = set()
        self._weights: Stamp | None = None
        self._shared: dict[Any, Any] = {}  # what programs prepare of the weights
        self._alive: weakref.WeakSet[Program] = weakref.WeakSet()
        self._gpu = GpuEngines(options, what, captured)
        self._lock = lock()

    def __call__(
        self,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        stock: Callable[[], list[Any]] | None = None,
        otherwise: Callable[[], list[Any]] | None = None,
        ahead: _Ahead | None = None,
    ) -> list[Any]:
        """The results for these inputs. `stock` gives them by the model itself, which a GPU's graph is measured beside;
        None: the function does. `otherwise` runs where it is not fused; None: `stock`. `ahead`: of `launched`, for
        the same inputs."""
        if ahead is not None and ahead.prepared.weights == _stamp_of(ahead.prepared, constants):
            return ahead.results
        key = self._key(inputs)
        if self._limit is None and key not in self._kinds:
            if len(self._kinds) >= MOST_PROGRAMS:
                log.fallback_once(
                    ("fused kinds", id(self)),
                    f"{self._what} has been called with {MOST_PROGRAMS} kinds of inputs: others run unfused, since "
                    "preparing for each takes longer than it saves",
                )
                return (otherwise or self._itself(constants, inputs, stock))()
            self._kinds.add(key)
        run = self._itself(constants, inputs, stock)
        program = self._prepared(key, constants, inputs, run)
        return (otherwise or run)() if isinstance(program, Unfused) else program(*inputs)

    def launched(self, inputs: Sequence[Tensor]) -> _Ahead | None:
        """The results on a GPU by the weights of the last call of this kind: it works at them while the host looks
        whether they are the same still. None for a kind that was not prepared, and while a graph is being captured."""
        if not inputs or not inputs[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return None
        found = self._programs.get(self._key(inputs))
        if found is None or not isinstance(found.program, GpuProgram):
            return None
        return _Ahead(found, found.program(*inputs))

    def _itself(
        self,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        stock: Callable[[], list[Any]] | None = None,
    ) -> Callable[[], list[Any]]:
        return stock or (lambda: list(self._function(*constants, *inputs)))

    @staticmethod
    def _key(inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """What tells kinds of calls apart."""
        if inputs and inputs[0].is_cuda:
            return (
                *kind_on_gpu(inputs[0].device),
                *[(x.shape, x.stride(), x.dtype) for x in inputs],
            )
        return (
            torch.get_num_threads(),
            torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
            *[(x.shape, x.stride(), x.dtype) for x in inputs],
        )

    def program(
        self,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        stock: Callable[[], list[Any]] | None = None,
    ) -> Program | GpuProgram | Unfused:
        """The program for inputs of this kind, prepared now where there is none."""
        run = self._itself(constants, inputs, stock)
        return self._prepared(self._key(inputs), constants, inputs, run)

    def _prepared(
        self,
        key: tuple[Any, ...],
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        stock: Callable[[], list[Any]],
    ) -> Program | GpuProgram | Unfused:
        found = self._programs.get(key) or self._programs.older(key)
        if found is not None and found.program is not None and found.weights == _stamp_of(found, constants):
            return found.program
        with self._lock, torch._guards.tracing(None):
            found = self._programs.recall(key)
            now = stamp(constants)
            if self._weights != now or (found is not None and found.weights != _stamp_of(found, constants)):
                self._forget()
                self._weights = now
            if found is None or found.program is None or found.weights != _stamp_of(found, constants):
                if inputs and inputs[0].is_cuda:
                    self._gpu.check()
                inputs = [x.detach() for x in inputs]
                constants = [c.detach() for c in constants]
                traced = None if found is None else found.traced
                if traced is None or not fits(traced, constants):
                    traced = capture(self._function, [*constants, *inputs], self._what, self._options)
                lifted = [
                    getattr(traced, node.target) for node in traced.graph.nodes if node.op == "get_attr"
                ]
                made: Program | GpuProgram | Unfused
                if inputs and inputs[0].is_cuda:
                    made = self._made_on_gpu(traced, constants, inputs, stock)
                else:
                    made = self._made(traced, constants, inputs)
                    self._alive.add(made)  # another thread may run one that is no more kept
                    settle(self._shared, frozenset().union(*(program.needed for program in self._alive)))
                    for program in self._alive:
                        program.join()
                found = _Prepared(made, traced, lifted, now, _reads_of(traced, len(constants)))
                found.weights = _stamp_of(found, constants)
                self._programs.put(key, found)
            assert found.program is not None
            return found.program

    def _forget(self) -> None:
        """Let go of what was made of weights that are no more."""
        self._shared = {}
        self._gpu.forget()
        for prepared in (*self._programs.young.values(), *self._programs.old.values()):
            prepared.program = None

    def _made_on_gpu(
        self,
        traced: GraphModule,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        stock: Callable[[], list[Any]],
    ) -> GpuProgram | Unfused:
        if self._limit is not None:
            raise NotSupported(
                f"memory_limit is {self._limit}: it bounds fused graphs on processors; on {inputs[0].device} "
                f"{self._what} is fused without one"
            )
        return self._gpu.program(traced, words(traced), constants, inputs, stock)

    def _made(self, traced: GraphModule, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Program:
        """The program of a graph, with channels first or last, whichever is faster as a whole."""
        made: dict[bool, Program] = {}
        make = partial(self._program, traced, constants, inputs)

        def run(is_last: bool) -> Callable[[], Any]:
            def once() -> Any:
                if is_last not in made:
                    made[is_last] = make(is_last)
                return made[is_last](*inputs)

            return once

        is_last = True
        if parse(self._options).measure != "never" and has_images(traced):
            kind = hashlib.sha256(words(traced).encode()).hexdigest()[:24]
            limit = "" if self._limit is None else f" within {self._limit}"
            name = f"torch graph {kind} {self._options}{limit} channels last"
            decision = decide(
                name, handle_of(self._options), torch.device("cpu"), "first", run(True), run(False)
            )
            is_last = decision.is_ours
        if is_last not in made:
            made[is_last] = make(is_last)
        return made[is_last]

    def _program(
        self, traced: GraphModule, constants: Sequence[Tensor], inputs: Sequence[Tensor], is_last: bool
    ) -> Program:
        """The program of one layout, within the limit."""
        make = partial(Program, traced, constants, inputs, self._options, is_last)
        if self._limit is None:
            return make(self._shared)
        threads = torch.get_num_threads()
        handle = self._handles.get(threads)
        if handle is None:
            settings = {"threads": threads, **dict(parse(self._options).settings)}
            handle = self._handles[threads] = Handle(**settings)

        def listed() -> tuple[Listing, int]:
            listing = Listing()
            footprint = make({}, handle, listing).footprint
            return listing, footprint.arena + footprint.results

        def made(budget: Budget) -> Program:
            for one in self._shared.values():
                if isinstance(one, KeptFilter):
                    one.forget()  # what an earlier try has prepared
            program = make(self._shared, handle, budget)
            handle.trim()  # of kernels that were only measured
            program(*inputs)
            return program

        return within(self._limit, self._what, listed, made)


def _stamp_of(prepared: _Prepared, constants: Sequence[Tensor]) -> Stamp:
    read = prepared.reads(constants)
    return stamp([*read, *prepared.lifted] if prepared.lifted else read)


def _reads_of(traced: GraphModule, constants: int) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """What takes the constants that a graph reads: counts of batches, for one, are none of them."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"][:constants]
    return picked([place for place, node in enumerate(placeholders) if node.users], constants)


class FusedModule(nn.Module):
    """What `fuse` makes: called like the model, it gives what the model gives without gradients.

    `model` is the model itself: its parameters and buffers are shared.
    """

    def __init__(self, model: nn.Module, options: str, memory_limit: int | str | None = None) -> None:
        super().__init__()
        self.model = model
        self.training = False
        self._options, self._limit = options, memory_limit
        self._watched = Watched(model)
        self._functions: dict[Any, tuple[FusedFunction, list[Any]]] = {}
        #: programs that are part of somebody's CUDA graphs, which read their memory
        self._captured: list[Any] = self.__dict__.get("_captured", [])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. Raises NotSupported in training mode, and where the model has no graph."""
        leaves, spec = _flat(args, kwargs)
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reason = _reason(inputs)
        if reason is not None:
            self._constants()  # a model in training mode is refused all the same
            log.fallback_once(
                ("fused", id(self), reason), f"{type(self.model).__name__} runs unfused: {reason}"
            )
            return self.model(*args, **kwargs)
        before, (function, result_spec) = self._functions, self._known(leaves, spec)
        with torch.no_grad():
            ahead = function.launched(inputs)
            constants = self._constants()
            if self._functions is not before:  # modules were replaced
                ahead, (function, result_spec) = None, self._known(leaves, spec)
            results = function(
                constants,
                inputs,
                lambda: pytree.tree_flatten(self.model(*args, **kwargs))[0],
                ahead=ahead,
            )
        form = result_spec[-1]
        return results[0] if form is None else pytree.tree_unflatten(results, form)

    def footprint(self, *args: Any, **kwargs: Any) -> Footprint:
        """What calls with inputs of this kind take above the model and its inputs; prepared now if they are not yet.

        Raises what a call raises, and NotSupported for inputs that run unfused.
        """
        constants = self._constants()
        leaves, spec = _flat(args, kwargs)
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reason = _reason(inputs)
        if reason is not None:
            raise NotSupported(f"{type(self.model).__name__} runs unfused: {reason}")
        with torch.no_grad():
            program = self._known(leaves, spec)[0].program(
                constants, inputs, lambda: pytree.tree_flatten(self.model(*args, **kwargs))[0]
            )
        if isinstance(program, Unfused):
            raise NotSupported(f"{type(self.model).__name__} runs unfused: {program.reason}")
        return program.footprint

    def _known(self, leaves: Sequence[Any], spec: Any) -> tuple[FusedFunction, list[Any]]:
        others = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, Tensor))
        key = (spec, repr(others))
        if key not in self._functions:
            if len(self._functions) >= MOST_PROGRAMS:
                self._functions.clear()
            self._functions[key] = self._function(spec, others)
        return self._functions[key]

    def _constants(self) -> list[Tensor]:
        """The model's parameters and buffers. Raises NotSupported in training mode."""
        found = self._watched.tensors()
        if found is None:  # another module is in the place of one
            self.__init__(self.model, self._options, self._limit)  # type: ignore[misc]
            found = self._watched.tensors()
            assert found is not None
        mode = self._watched.training()
        if mode is not None:
            raise NotSupported(_training(*mode))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies prepare their own."""
        return FusedModule, (self.model, self._options, self._limit)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Prepare for inputs of this kind, so that the first call does not."""
        self(*args, **kwargs)

    def _function(self, spec: Any, others: Sequence[tuple[int, Any]]) -> tuple[FusedFunction, list[Any]]:
        """The model as a function of flat tensors, and the list that holds the form of its result once it ran."""
        specs: list[Any] = []
        present = self._watched.names

        def run(*tensors: Tensor) -> list[Any]:
            held = dict(zip(present, tensors, strict=False))
            leaves: list[Any] = list(tensors[len(present) :])
            for place, leaf in others:
                leaves.insert(place, leaf)
            args, kwargs = (
                (tuple(leaves), {}) if isinstance(spec, int) else pytree.tree_unflatten(leaves, spec)
            )
            running: list[str] = []
            with self._watched.swapped(), calling_module(self.model, running):
                try:
                    result = functional_call(self.model, held, args, kwargs, tie_weights=False)
                except Exception as error:
                    module = (
                        f"module {running[-1]!r}" if running and running[-1] else "the model's own forward"
                    )
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise NotSupported(
                        f"{type(self.model).__name__} has no graph that is the same for all values of its inputs: "
                        f"{module} raised {type(error).__name__}: {reason}. torch.compile(model, "
                        'backend="jitdnn") compiles what lies between'
                    ) from error
            flat: list[Any]
            flat, result_spec = pytree.tree_flatten(result)
            specs.append(None if isinstance(result, Tensor) else result_spec)
            return flat

        what = type(self.model).__name__
        return FusedFunction(run, self._options, what, self._limit, self._captured), specs


def _training(name: str, module: nn.Module) -> str:
    return (
        f"{type(module).__name__} {name or '(the model)'} is in training mode: its result depends on the batch, on "
        "chance, or changes its state, and none of that is fused: call model.eval() first"
    )


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """The leaves of arguments and their form, which of tensors by position is their number."""
    if not kwargs and set(map(type, args)) <= {Tensor}:
        return args, len(args)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    return leaves, spec


def _reason(inputs: Sequence[Tensor]) -> str | None:
    """Why a call cannot be fused, in words; None if it can."""
    if is_disabled():
        return "JITDNN_DISABLE is set"
    if _are_transforms_active() or forward_ad._current_level >= 0:
        return "a transform of torch.func, or a derivative that is taken forward, goes through the call"
    for x in inputs:
        if x.requires_grad and torch.is_grad_enabled():
            return "an input requires its gradient"
        kind = x.device.type
        if kind not in ("cpu", "cuda") or not is_dense(x) or type(x) not in (Tensor, nn.Parameter):
            return f"an input is a {type(x).__name__} on {kind}: plain tensors of processors and NVIDIA GPUs are fused"
        if x.device != inputs[0].device:
            return f"inputs are on {inputs[0].device} and {x.device}: those on one device are fused"
    return None


def fuse(
    model: nn.Module,
    *,
    memory_limit: int | str | None = None,
    example: Sequence[Any] | None = None,
    **options: Any,
) -> FusedModule:
    """Return a module that computes what `model` does in evaluation mode, without gradients, by fused kernels.

    Convolutions and products take normalizations, biases, activations and residuals into their end; results lie in
    memory that is planned once. For each kind of inputs (shapes, strides, types) the graph is captured and prepared at
    the first call, or now for the inputs `example`. `options` are those of `jitdnn.torch.convert`: with
    measure="first" each kernel is measured beside torch's own, and the faster one runs.

    `memory_limit` bounds the bytes that calls with inputs of one kind take, one call at a time, above the model and its
    inputs: bytes, text such as "32 MiB", or "least" for as few as possible. Filters are then prepared once and kept
    where that saves most time for their bytes, the others anew by each call, and normalizations scale results instead
    of filters. Each kind of inputs is within the limit by itself. What `footprint(*inputs)` of the module tells counts;
    machine code, what operators of PyTorch's take inside of their kernels, and the first call, which measures, do not.

    The model is shared, not copied. When its parameters or buffers change they are folded and prepared again; of those
    that were made in inference mode, which count no changes, only where another tensor takes their place.
    An input that requires its gradient, inputs on several devices, transforms of `torch.func` and derivatives that are
    taken forward, or JITDNN_DISABLE=1 make a call run the model.

    On an NVIDIA GPU the graph runs by the engine of graphs there, as CUDA graphs where it is captured once, with what
    cannot be translated by PyTorch's operators in between. With measure="first" it is measured as a whole beside the
    model itself, and the faster one runs. Calls may be captured by `torch.cuda.graph` after one of the same kind.

    Raises InvalidType for what is no module, NotSupported (here or at the first call) for a module in training mode,
    and for a model in which values of tensors decide what is computed, with the name of the module; InvalidArgument
    for unknown options, and (here or at the first call) for a limit that is none or too small. NotSupported for a
    `memory_limit` with inputs on a GPU, and for a first call of a kind while a CUDA graph is being captured.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the model is {shown(model)}: it must be a torch.nn.Module")
    for name, module in model.named_modules():
        if module.training:
            raise NotSupported(_training(name, module))
    fused = FusedModule(model, str(Options.of(**options)), checked(memory_limit))
    if example is not None:
        fused.prepare(*example)
    return fused
