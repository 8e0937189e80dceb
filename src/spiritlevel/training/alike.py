"""Whether networks of one form compute the same function of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from spiritlevel.base.tensors import leaves, same_tree
from spiritlevel.objective.module import private_copy


def recorded(model: nn.Module, params: Mapping[str, Tensor], x: Tensor) -> Record:
    """All operations of the network at these parameters, and of its gradient.

    The second time that it is called: the first one may fill what it keeps.
    """
    own = private_copy(model).train()
    held = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        functional_call(own, held, (x,))
        with Record([*held.values(), x]) as record:
            found = [t for t in leaves(functional_call(own, held, (x,))) if t.requires_grad]
            if found:
                ones = [torch.ones_like(t) for t in found]
                torch.autograd.grad(found, list(held.values()), ones, allow_unused=True)
    return record


class Record(TorchDispatchMode):
    """Operations in their order; tensors by the place where they came up, others by their values.

    Networks that can be stacked do not branch on what they compute: equal records at equal
    parameters are one function of parameters and inputs, of as many examples.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.kept = list(known)  # an id is its own while its tensor lives
        self.places = {id(tensor): place for place, tensor in enumerate(known)}
        self.steps: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        step = (func, self._read(args), self._read(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        self.steps.append(step)
        for tensor in leaves(found):
            self._place(tensor)
        return found

    def _place(self, tensor: Tensor) -> int:
        if id(tensor) not in self.places:
            self.places[id(tensor)] = len(self.kept)
            self.kept.append(tensor)
        return self.places[id(tensor)]

    def _read(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            outside = id(value) not in self.places
            return (_Constant(value.detach().clone()) if outside else None, self._place(value))
        if isinstance(value, (list, tuple)):
            return [self._read(one) for one in value]
        if isinstance(value, Mapping):
            return {name: self._read(one) for name, one in value.items()}
        return repr(value) if isinstance(value, float) else value  # NaN is NaN, 0.0 is not -0.0


class _Constant:
    """A tensor that is no parameter and was not computed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        return self.tensor.device == other.tensor.device and same_tree(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]
