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
State = Mapping[str, Any]
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


class _Followed:
    """The layers of pairs while they run: how often, what is theirs, and whether as they are."""

    def __init__(
        self, objective: Objective, pairs: Mapping[str, str], states: Mapping[str, State]
    ) -> None:
        self.before = {norm: layer for layer, norm in pairs.items()}
        self.reads = _Reads()
        self.runs = Counter[str]()
        self.strange = set[str]()  # with other numbers, or on something else
        self.made: dict[str, tuple[Tensor, int]] = {}
        self.parts = {name: objective.module.get_submodule(name) for name in (*pairs, *self.before)}
        named = {**dict(objective.module.named_parameters()), **objective.params}
        buffers = objective.buffers
        self.numbers: dict[str, set[int]] = {}  # where parameters lie
        self.own: dict[str, set[int]] = {}  # where all that is theirs does
        self.usual: dict[str, State] = {}
        for name, part in self.parts.items():
            held = [own for own, p in part._parameters.items() if p is not None]
            self.numbers[name] = {self.reads.meet(named[f"{name}.{own}"]) for own in held}
            self.own[name] = set(self.numbers[name])
            fixed = {k: buffers.get(f"{name}.{k}") for k in part._buffers}
            self.usual[name] = fixed | dict(states.get(name, {}))

    def enters(self, name: str, part: nn.Module, given: Any, named: Any) -> None:
        self.runs[name] += 1
        self.reads.running.append(name)
        self.own[name] |= {self.reads.meet(b) for b in part._buffers.values() if b is not None}
        same = {self.reads.meet(p) for p in part._parameters.values() if p is not None}
        as_ever = same == self.numbers[name] and self._usual(name, part)
        if name in self.before:
            tensor, version = self.made.get(self.before[name], (None, 0))
            first: Any = next(iter((*given, *named.values())), None)
            as_ever &= tensor is not None and first is tensor and first._version == version
        if not as_ever:
            self.strange.add(name)

    def _usual(self, name: str, part: nn.Module) -> bool:
        now = state_of(part) | part._buffers
        return all(_equal(now.get(key), value) for key, value in self.usual[name].items())

    def leaves(self, name: str, part: nn.Module, given: Any, made: Tensor) -> None:
        self.reads.running.pop()
        if name not in self.before:
            self.made[name] = made, made._version
            self.own[name].add(self.reads.meet(made))
            if made.ndim != _axes(part):  # the channels of the norm are along another one
                self.strange.add(name)

    def alone(self, layer: str, norm: str) -> bool:
        """Whether both ran once, as they are, and nothing else read what is theirs."""
        if not self.runs[layer] == self.runs[norm] == 1 or self.strange & {layer, norm}:
            return False
        places = self.own[layer] | self.own[norm]
        readers = set().union(*(self.reads.readers.get(place, set()) for place in places))
        return readers <= {layer, norm}


def _axes(layer: Any) -> int:
    """Of what a layer makes of a batch, where its units are along the second."""
    return 2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other.to(one))
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other


def state_of(part: nn.Module) -> dict[str, Any]:
    """What of a norm decides what it does, beside its tensors."""
    names = ("training", "eps", "track_running_stats")
    return {name: vars(part).get(name) for name in names}


@set_apart()
@torch.no_grad()
def apart(
    objective: Objective, pairs: Mapping[str, str], batch: Batch, states: Mapping[str, State]
) -> tuple[Any, dict[str, str]]:
    """What the model predicts and loses, and the pairs that on the way nothing else reads.

    What a layer makes is read by its norm alone, and their parameters by themselves; both run with
    the numbers of the objective, norms in the `states` that are given by name: also where it makes
    no difference at this point, because something is zero.
    """
    followed = _Followed(objective, pairs, states)
    parts = followed.parts.items()
    hooks = [
        part.register_forward_pre_hook(partial(followed.enters, n), with_kwargs=True)
        for n, part in parts
    ]
    hooks += [part.register_forward_hook(partial(followed.leaves, n)) for n, part in parts]
    try:
        with followed.reads:
            found = objective.together(objective.params, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found, {layer: norm for layer, norm in pairs.items() if followed.alone(layer, norm)}
