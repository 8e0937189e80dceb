"""Which BatchNorm follows which layer, as a few examples run through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import leaves, storage_address
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.objective import Objective

EXAMPLES = 2  # run through the model where it is watched; one alone has no batch statistics
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Followers:
    """The layer before each BatchNorm with fixed statistics -> that norm.

    `others` are norms that follow no such layer directly, or one that another follows too.
    """

    pairs: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


@set_apart()
@torch.no_grad()
def watch(
    objective: Objective,
    kinds: type | tuple[type, ...],
    saw: Callable[[str, nn.Module, Tensor, Any], None],
) -> None:
    """Run a few examples through the private copy; `saw(name, layer, input, output)` is told."""
    layers = [(n, m) for n, m in objective.module.named_modules() if isinstance(m, kinds)]

    def told(name: str) -> Callable[..., None]:
        return lambda layer, given, named, made: saw(
            name, layer, next(iter((*given, *named.values()))), made
        )

    hooks = [layer.register_forward_hook(told(name), with_kwargs=True) for name, layer in layers]
    try:
        objective.outputs(objective.params, objective.few(EXAMPLES))
    finally:
        for hook in hooks:
            hook.remove()


def followers(objective: Objective) -> Followers:
    """Of tensors that nobody wrote into in between."""
    made: dict[tuple[int, int], str] = {}
    kept: list[Tensor] = []  # so that no other tensor gets the number of one that is gone
    found = Followers()

    def saw(name: str, layer: Any, given: Tensor, output: Tensor) -> None:
        kept.extend((given, output))
        if isinstance(layer, LAYERS):
            if not isinstance(layer, nn.Linear) or output.ndim == 2:
                made[_unwritten(output)] = name
            return  # units of other linear layers are not along the axis of the norm's channels
        before = made.get(_unwritten(given), "")
        if (
            before
            and before not in found.pairs
            and not layer.training
            and layer.running_var is not None
        ):
            found.pairs[before] = name
        else:
            found.others.append(name)

    watch(objective, (*LAYERS, _BatchNorm), saw)
    return found


def _unwritten(tensor: Tensor) -> tuple[int, int]:
    """A tensor until somebody writes into it, as rectifiers in place do."""
    return id(tensor), tensor._version


class _Reads(TorchDispatchMode):
    """Which memory is read while which layer runs; "" is everything around them."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = [""]
        self.readers: dict[int, set[str]] = {}
        self.known: dict[int, StorageWeakRef] = {}  # the reference keeps the address taken

    def meet(self, tensor: Tensor) -> int:
        place = storage_address(tensor)
        if place not in self.known:
            self.known[place] = StorageWeakRef(tensor.untyped_storage())
        return place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in leaves((args, kwargs)):
            self.readers.setdefault(self.meet(tensor), set()).add(self.running[-1])
        return func(*args, **(kwargs or {}))


@dataclass
class _Followed:
    """The layers of pairs while they run: how often, and what is theirs."""

    pairs: Mapping[str, str]
    reads: _Reads = field(default_factory=_Reads)
    runs: Counter[str] = field(default_factory=Counter)
    own: dict[str, set[int]] = field(default_factory=dict)

    def enters(self, name: str, layer: nn.Module, given: Any) -> None:
        self.runs[name] += 1
        self.reads.running.append(name)
        self.own.setdefault(name, set()).update(map(self.reads.meet, layer.parameters()))

    def leaves(self, name: str, layer: nn.Module, given: Any, made: Tensor) -> None:
        self.reads.running.pop()
        if name in self.pairs:
            self.own[name].add(self.reads.meet(made))

    def alone(self, layer: str, norm: str) -> bool:
        """Whether both ran once, and nothing else read what is theirs."""
        if not self.runs[layer] == self.runs[norm] == 1:
            return False
        places = self.own[layer] | self.own[norm]
        readers = set().union(*(self.reads.readers.get(place, set()) for place in places))
        return readers <= {layer, norm}


@set_apart()
@torch.no_grad()
def apart(
    objective: Objective, pairs: Mapping[str, str], batch: Batch
) -> tuple[Any, dict[str, str]]:
    """What the model predicts and loses, and the pairs that on the way nothing else reads.

    What a layer makes is read by its norm alone, and their parameters by themselves: also where it
    makes no difference at this point, because something is zero.
    """
    followed = _Followed(pairs)
    layers = [(n, objective.module.get_submodule(n)) for n in {*pairs, *pairs.values()}]
    hooks = [m.register_forward_pre_hook(partial(followed.enters, n)) for n, m in layers]
    hooks += [m.register_forward_hook(partial(followed.leaves, n)) for n, m in layers]
    try:
        with followed.reads:
            found = objective.together(objective.params, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found, {layer: norm for layer, norm in pairs.items() if followed.alone(layer, norm)}
