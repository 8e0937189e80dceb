"""What `fit_many` is given: refused in one line, or understood before the first step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError, first_line
from spiritlevel.objective.module import private_copy
from spiritlevel.training.alike import recorded
from spiritlevel.training.rules import RULES, Rule

Loss = Callable[[Tensor, Tensor], Tensor]
FEW = 8  # examples at which networks are compared
UNLIKE = (
    "models are not of one architecture, precision and device: stack those that are, and train the "
    "others by themselves"
)


@dataclass(frozen=True)
class Asked:
    """Networks, their data and how they are trained; one number each where they differ."""

    models: tuple[nn.Module, ...]
    module: nn.Module  # a copy of the first, which computes what each of them does
    learned: tuple[str, ...]  # parameters that the loss depends on; optimizers leave others alone
    x: Tensor
    targets: Tensor  # (networks, examples, ...)
    loss: Loss
    rule: Rule
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    epochs: int
    stop: float | None
    batch_size: int

    @property
    def weight(self) -> Tensor:
        """One that all of them have, for the device and the precision."""
        return next(self.models[0].parameters())


def asked(
    models: Sequence[nn.Module],
    data: Any,
    loss: Loss,
    optimizer: str,
    *,
    lr: float | Sequence[float],
    seeds: Sequence[int] | None,
    epochs: int,
    stop: float | None,
    batch_size: int,
    options: dict[str, float],
) -> Asked:
    """All of it as one piece."""
    _refuse_unlike(models)
    doors.function("loss", loss, "(outputs, y), a mean")
    doors.one_of("optimizer", optimizer, RULES)
    _refuse_options(optimizer, options)
    doors.number("epochs", epochs, 1, whole=True)
    doors.number("batch_size", batch_size, 1, whole=True)
    if stop is not None:
        doors.number("stop", stop)
    rates = _each("lr", lr, models)
    found = list(range(len(models))) if seeds is None else _each("seeds", seeds, models)
    for rate in rates:
        doors.number("lr", rate, 0)
    for seed in found:
        tensor_doors.seeded(seed)
    x, targets = _examples(data, models)
    module = private_copy(models[0]).train()
    learned = _learned(module, loss, x[:FEW], targets[0, :FEW])
    _refuse_other_functions(models, x[:FEW])
    return Asked(
        *(tuple(models), module, learned, x, targets, loss, RULES[optimizer](**options)),
        *(tuple(map(float, rates)), tuple(map(int, found)), epochs, stop, batch_size),
    )


def _each(name: str, given: Any, models: Sequence[nn.Module]) -> list[Any]:
    """A list with one for each model, from a list or from one for all."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, Mapping))
    if not several or getattr(given, "ndim", 1) == 0:
        doors.number(name, given)
        if name == "seeds":
            raise SpiritlevelError(f"seeds={given}: give a list with one for each model")
        return [given] * len(models)
    found = list(given)
    if len(found) != len(models):
        raise SpiritlevelError(
            f"{name} has {len(found)} numbers for {len(models)} models; give one for each"
        )
    return found


def _refuse_unlike(models: Any) -> None:
    if not isinstance(models, (list, tuple)) or not models:
        raise SpiritlevelError("models is to be a list of modules, at least one")
    for model in models:
        doors.a("models", model, nn.Module, "a list of torch.nn.Modules")
    forms = [{n: (p.shape, p.dtype, p.device) for n, p in m.named_parameters()} for m in models]
    if not forms[0]:
        raise SpiritlevelError("models have no parameters: there is nothing to train")
    if any(form != forms[0] for form in forms) or len({str(model) for model in models}) > 1:
        raise SpiritlevelError(UNLIKE)
    if len({id(p) for m in models for p in m.parameters()}) < sum(map(len, forms)):
        raise SpiritlevelError("models share parameters: give each its own, or train them by fit")
    if any(True for _ in models[0].buffers()):
        raise SpiritlevelError(
            "models have buffers (running statistics): a stack has none; train them by fit"
        )
    if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in models[0].modules()):
        raise SpiritlevelError("models drop out: a stack would drop the same; train them by fit")
    if not all(p.requires_grad for m in models for p in m.parameters()):
        raise SpiritlevelError("models have frozen parameters: train them by fit")


def _refuse_other_functions(models: Sequence[nn.Module], x: Tensor) -> None:
    """A stack computes what its first network does; attributes that no parameter shows differ."""
    params = dict(models[0].named_parameters())
    first = recorded(models[0], params, x).steps
    for place, model in enumerate(models[1:], 1):
        if recorded(model, params, x).steps != first:
            raise SpiritlevelError(
                f"models 0 and {place} are not of one architecture: at the same parameters they "
                "compute something else; stack those that are, and train the others by themselves"
            )


@torch.enable_grad()
def _learned(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[str, ...]:
    """The names of what the loss depends on; refuse what cannot be computed in a stack."""
    params = dict(module.named_parameters())

    def of(params: Any, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(module, params, (x,)), y)

    try:
        found = of(params, x, y)
        if not isinstance(found, Tensor) or found.ndim:
            form = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise SpiritlevelError(f"loss returned {form}; give one that returns a mean, a scalar")
        slopes = torch.autograd.grad(found, list(params.values()), allow_unused=True)
        stacked = {name: p.detach()[None] for name, p in params.items()}
        vmap(grad_and_value(of))(stacked, x[None], y[None])
    except (SpiritlevelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise SpiritlevelError(
            f"models cannot be stacked with this loss and data ({first_line(error, 200)}): give "
            "others, or train them by fit"
        ) from error
    return tuple(n for n, slope in zip(params, slopes, strict=True) if slope is not None)


def _refuse_options(optimizer: str, options: dict[str, float]) -> None:
    known = inspect.signature(RULES[optimizer]).parameters
    for name, value in options.items():
        doors.one_of(f"the option of {optimizer}", name, known)
        doors.number(name, value, 0)


def _examples(data: Any, models: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """x for all, and targets for each."""
    if not isinstance(data, (list, tuple)) or len(data) != 2:
        raise SpiritlevelError("data is to be (x, y): tensors, y one for all or a list of them")
    like = next(models[0].parameters())
    x, y = data
    labels = list(y) if isinstance(y, (list, tuple)) else [y] * len(models)
    for name, tensor in (("x", x), *(("y", one) for one in labels)):
        doors.a(name, tensor, Tensor, "a tensor")
    if len(labels) != len(models):
        raise SpiritlevelError(f"y has labels for {len(labels)} of {len(models)} models")
    if not all(t.ndim and len(t) == (len(x) if x.ndim else 0) > 0 for t in (x, *labels)):
        raise SpiritlevelError("x and y are to have as many rows, at least one")
    if any(one.shape != labels[0].shape or one.dtype != labels[0].dtype for one in labels):
        raise SpiritlevelError("y has labels of several shapes or kinds: give the same to all")

    def placed(tensor: Tensor) -> Tensor:
        kind = like.dtype if tensor.is_floating_point() else None
        return tensor.detach().to(like.device, kind)

    return placed(x), torch.stack([placed(one) for one in labels])
