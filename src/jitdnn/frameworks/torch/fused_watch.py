"""What each call of a fused model looks at, in as little time as it can: whether modules, parameters and buffers are
those that it was prepared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, getitem, is_, itemgetter
from typing import Any

from torch import Tensor, nn

from jitdnn.locks import lock

Stamp = tuple[int, list[int]]


def stamp(tensors: Sequence[Tensor]) -> Stamp:
    """What changes when tensors are written to, or others take their place: the sum of versions, and addresses."""
    try:
        versions = sum(map(_version, tensors))
    except RuntimeError:  # tensors made in inference mode count no versions
        versions = sum([0 if tensor.is_inference() else tensor._version for tensor in tensors])
    return versions, list(map(Tensor.data_ptr, tensors))


def picked(places: Sequence[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the elements at these places of sequences of so many."""
    if len(places) == count:
        return lambda given: given
    if len(places) < 2:
        return lambda given: [given[place] for place in places]
    return itemgetter(*places)


class _Places:
    """Entries of dictionaries, all of them looked up at once, by functions that run no Python for each."""

    def __init__(self, places: Sequence[tuple[dict[str, Any], str]]) -> None:
        self._held = [held for held, _ in places]
        self._names = [name for _, name in places]

    def held(self) -> list[dict[str, Any]]:
        """The dictionaries."""
        return self._held

    def entries(self) -> list[Any] | None:
        """What is there; None where an entry is gone."""
        try:
            return list(map(getitem, self._held, self._names))
        except KeyError:
            return None


class _Swaps:
    """Captures of all models, one at a time: two of the same modules would leave the one's tensors there for ever."""

    def __init__(self) -> None:
        self.lock = lock()
        self.count = 0  # odd while others are in the places of parameters and buffers
        self.held: set[int] = set()  # ids of the dictionaries that have these places


_swaps = _Swaps()


class Watched:
    """The modules of a model, and their parameters and buffers. `names`: of those that are there, in order."""

    def __init__(self, model: nn.Module) -> None:
        self.names: list[str] = []
        present: list[tuple[dict[str, Any], str]] = []
        absent: list[tuple[dict[str, Any], str]] = []
        for prefix, module in model.named_modules():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    (absent if tensor is None else present).append((held, name))
                    if tensor is not None:
                        self.names.append(f"{prefix}{'.' if prefix else ''}{name}")
        self._present, self._absent = _Places(present), _Places(absent)
        self._last: list[Any] = []  # what was there when nothing was amiss
        self._children = _Places([(one._modules, name) for one in model.modules() for name in one._modules])
        self._expected = self._children.entries()
        self._modules = list(model.named_modules())
        # where a class keeps the mode elsewhere its attribute is asked
        self._modes = [vars(module) for _, module in self._modules if "training" in vars(module)]
        self._others = [module for _, module in self._modules if "training" not in vars(module)]
        self._held = {id(held) for held in self._present.held()}

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """While the thread puts others in the places of parameters and buffers, as captures do; others wait for it,
        also those of other functions of the same modules."""
        with _swaps.lock:
            before = _swaps.held
            _swaps.held = before | self._held
            _swaps.count += not before
            try:
                yield
            finally:
                _swaps.count += not before
                _swaps.held = before

    def training(self) -> tuple[str, nn.Module] | None:
        """The first module in training mode with its name, None where none is."""
        if any(map(_mode, self._modes)) or any(module.training for module in self._others):
            return next((name, module) for name, module in self._modules if module.training)
        return None

    def tensors(self) -> list[Tensor] | None:
        """The parameters and buffers; None where modules are others, or places are filled that were empty, or emptied:
        then a model is watched anew."""
        before, held = _swaps.count, _swaps.held
        found = self._found()
        is_quiet = before % 2 == 0 or self._held.isdisjoint(held)
        if not is_quiet or _swaps.count != before:
            with _swaps.lock:  # those of another thread's capture may be among them
                found = self._found()
        return found

    def _found(self) -> list[Tensor] | None:
        if self._children.entries() != self._expected:
            return None
        found, empty = self._present.entries(), self._absent.entries()
        if found is None or empty is None or set(map(type, empty)) - {_NOTHING}:
            return None
        if len(found) != len(self._last) or not all(map(is_, found, self._last)):
            if _NOTHING in map(type, found):
                return None
            self._last = found
        return found


_NOTHING = type(None)
_mode, _version = itemgetter("training"), attrgetter("_version")
