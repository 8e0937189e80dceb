"""What `fit_many` is given: refused in one line, or understood before the first step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.training.rules import RULES, Rule

Loss = Callable[[Tensor, Tensor], Tensor]
FEW = 8  # examples on which a stack is compared with its networks
UNLIKE = (
    "models are not of one architecture, precision and device: stack those that are, and train the "
    "others by themselves"
)


@dataclass(frozen=True)
class Asked:
    """Networks, their data and how they are trained; one number each where they differ."""

    models: tuple[nn.Module, ...]
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
    rates = [lr] * len(models) if isinstance(lr, (int, float)) else list(lr)
    found = list(range(len(models))) if seeds is None else list(seeds)
    for name, given in {"lr": rates, "seeds": found}.items():
        if len(given) != len(models):
            raise SpiritlevelError(
                f"{name} has {len(given)} numbers for {len(models)} models; give one for each"
            )
    for rate in rates:
        doors.number("lr", rate, 0)
    for seed in found:
        tensor_doors.seeded(seed)
    x, targets = _examples(data, models)
    _refuse_other_functions(models, x[:FEW])
    return Asked(
        *(tuple(models), x, targets, loss, RULES[optimizer](**options)),
        *(tuple(map(float, rates)), tuple(map(int, found)), epochs, stop, batch_size),
    )


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


@torch.no_grad()
def _refuse_other_functions(models: Sequence[nn.Module], x: Tensor) -> None:
    """A stack computes what its first network does; attributes that no parameter shows differ."""
    for model in models[1:]:
        stacked = functional_call(models[0], dict(model.named_parameters()), (x,))
        if not torch.allclose(model(x), stacked, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise SpiritlevelError(UNLIKE)


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
    if not len(x) or any(len(one) != len(x) for one in labels):
        raise SpiritlevelError("x and y are to have as many rows, at least one")
    floats = like.dtype if x.is_floating_point() else None
    return x.detach().to(like.device, floats), torch.stack(labels).detach().to(like.device)
