"""Models as they come: wrapped, compiled, half precision, tied."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from spiritlevel.base.doors import names, one_of
from spiritlevel.base.errors import SpiritlevelError


@runtime_checkable
class Wiring(Protocol):
    """Makes the parameters of a changed model from those of the model that it was."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What it needs beside them; nobody writes into it."""
        ...

    def __call__(self, params: Mapping[str, Tensor], /) -> dict[str, Tensor]: ...


class Scope(nn.Module):
    """Runs any function of the model inside `functional_call`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        names = Counter(part for _, part in model.named_modules(remove_duplicate=False))
        shared = [part for part, count in names.items() if count > 1]
        places: list[dict[str, Any]] = [d for p in shared for d in (p._parameters, p._buffers)]
        self._held = [(held, dict(held)) for held in places]

    def at(self, state: Mapping[str, Tensor], action: Callable[..., Any], batch: Any) -> Any:
        """The action with other tensors in the model, which gets its own ones back."""
        try:
            return functional_call(self, dict(state), (action, batch))
        finally:  # torch leaves the given tensors in a module that has several names
            for held, own in self._held:
                held.update(own)

    def forward(self, action: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        return action(self.model, batch)


def unwrap(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The user's own module inside torch.compile and (distributed) data parallel wrappers."""
    if not isinstance(model, nn.Module):
        raise SpiritlevelError(
            f"model is a {type(model).__name__}; give a torch.nn.Module (call the factory first)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise SpiritlevelError("model is a ScriptModule; give the module that was scripted")
    notes = []
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            notes.append("unwrapped torch.compile")
        elif isinstance(
            model, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ) and isinstance(inner := model.module, nn.Module):
            notes.append(f"unwrapped {type(model).__name__}")
        else:
            return model, notes
        model = inner


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """All that its parts hold: buffers, parameters, and tensors that are plain attributes."""
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, Tensor))


def private_copy(module: nn.Module) -> nn.Module:
    """A deep copy, also where the module keeps activations of an earlier pass."""
    memo: dict[int, object] = {}
    for value in _kept(module):
        if is_functorch_wrapped_tensor(value):  # dead after its transform
            memo[id(value)] = torch.empty(0)
        elif not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    duplicate = copy.deepcopy(module, memo)
    for part in duplicate.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            part.sparse = False  # the same derivatives, in a layout that all can add
    config = getattr(duplicate, "config", None)
    if getattr(config, "use_cache", False) is True:  # generation's cache is no use here
        config.use_cache = False  # type: ignore[union-attr]
    return duplicate


def _kept(module: nn.Module) -> Iterator[Tensor]:
    """Tensors among the attributes of its parts, also in lists, which may hold themselves."""
    ahead: list[Any] = [vars(part) for part in module.modules()]
    seen = set[int]()
    while ahead:
        held = ahead.pop()
        if isinstance(held, Tensor):
            yield held
        elif type(held) in (dict, list, tuple) and id(held) not in seen:
            seen.add(id(held))
            ahead += held.values() if isinstance(held, dict) else held


def cast(module: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Move in place; complex tensors (rotary tables) keep their imaginary parts."""
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(device=device, dtype=wide)
        return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

    return module._apply(move)


def choose(module: nn.Module, patterns: str | Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The trainable parameters whose names match; tied ones once, under their first name."""
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise SpiritlevelError(
            "the model has no trainable parameter; set requires_grad=True on those to measure"
        )
    if lazy := [name for name, p in module.named_parameters() if is_lazy(p)]:
        raise SpiritlevelError(f"{lazy[0]} has no shape yet: run the model once, model(x)")
    if any(p.is_complex() for p in trainable.values()):
        raise SpiritlevelError(
            "the model has complex trainable parameters; keep their real and imaginary parts apart "
            "(torch.view_as_real), or freeze them"
        )
    if patterns is None:
        return trainable
    wanted = names("params", patterns)
    chosen = {name: p for name, p in trainable.items() if any(fnmatchcase(name, w) for w in wanted)}
    if not chosen:
        raise SpiritlevelError(
            f"params={patterns!r} matches no trainable parameter; there are: {', '.join(trainable)}"
        )
    return chosen


def working_dtype(module: nn.Module, dtype: torch.dtype | None) -> tuple[torch.dtype, str]:
    """float32 or float64; half precision is raised to float32, with a note that says so."""
    one_of("dtype", dtype, (None, torch.float32, torch.float64))
    held = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if dtype is None:
        dtype = torch.float64 if held == {torch.float64} else torch.float32
    half = sorted(str(d) for d in held & {torch.float16, torch.bfloat16})
    note = f"the model holds {' and '.join(half)}; a copy was raised to {dtype}" if half else ""
    return dtype, note


def channels_last(tensor: Tensor) -> Tensor:
    """Images with their channels innermost; other tensors as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
