"""Networks as users build them, small enough for brute force."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from premises.case import CLASSES, INPUTS, Case, input_shape, precision


class Net(nn.Module):
    """A body that makes hidden units, and what makes outputs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 4), nn.Linear(4, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return self.a(x).relu()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.hidden(x)
        return self.c(h), h


class Deep(Net):
    def __init__(self, first: Callable[[Tensor], Tensor], second: Any, bias: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(INPUTS, 4, bias=bias), nn.Linear(4, 3, bias=bias)
        self.c, self.first, self.second = nn.Linear(3, CLASSES, bias=bias), first, second

    def hidden(self, x: Tensor) -> Tensor:
        return self.second(self.b(self.first(self.a(x))))


class Conv(Net):
    def __init__(self, pool: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.a, self.pool = nn.Conv2d(1, 2, 3, padding=1), pool
        self.c = nn.Linear(8, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return self.pool(self.a(x).relu(), 2).flatten(1)


class Residual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 4, bias=False)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return h + self.b(h).relu()


class Normed(Net):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.a(x)).relu()


class Tied(Net):
    """An auto-encoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 4, bias=False), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.hidden(x)
        return h @ self.a.weight, h


class Bilinear(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(INPUTS, 3), nn.Linear(9, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return (h.unsqueeze(1) * h.unsqueeze(2)).flatten(1)


class Shared(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 4)

    def hidden(self, x: Tensor) -> Tensor:
        return self.b(self.b(self.a(x).relu()).relu()).relu()


class Gated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(INPUTS, 4)

    def hidden(self, x: Tensor) -> Tensor:
        return self.a(x).relu() * self.b(x).tanh()


class Silent(Net):
    """One unit that never fires, and one that nobody hears."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.a.bias[0] = -1e3
            self.c.weight[:, 1] = 0.0


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.bias):
            assert tensor is not None
            tensor.normal_()
        for tensor in (norm.running_var, norm.weight):
            assert tensor is not None
            tensor.uniform_(0.5, 2.0)
    return norm


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a = weight_norm(nn.Linear(INPUTS, 4))


def _leaky(h: Tensor) -> Tensor:
    return F.leaky_relu(h, 0.1)


ARCHITECTURES: dict[str, Callable[[], Net]] = {
    "relu": lambda: Deep(F.relu, F.relu),
    "no biases": lambda: Deep(F.relu, F.relu, bias=False),
    "leaky": lambda: Deep(_leaky, _leaky),
    "tanh": lambda: Deep(torch.tanh, torch.tanh),
    "mixed": lambda: Deep(F.relu, torch.tanh),
    "hardtanh": lambda: Deep(F.relu, lambda h: F.hardtanh_(h.clone())),
    "max pooling": lambda: Conv(F.max_pool2d),
    "mean pooling": lambda: Conv(F.avg_pool2d),
    "residual": Residual,
    "batch norm": lambda: Normed(batch_norm()),
    "layer norm": lambda: Normed(nn.LayerNorm(4)),
    "tied": Tied,
    "bilinear": Bilinear,
    "shared": Shared,
    "gated": Gated,
    "silent": Silent,
    "weight norm": Scaled,
}


def _masked(how: str, z: Tensor, x: Tensor) -> Tensor:
    """The last class is shut for some of the examples."""
    last = torch.arange(z.shape[1], device=z.device) == z.shape[1] - 1
    shut = (x.flatten(1)[:, :1] > 0) & last
    word, amount = how.split()
    value = torch.finfo(torch.float32).min if amount == "finfo.min" else float(amount)
    if word == "fill":
        return z.masked_fill(shut, value)
    return z + torch.zeros_like(z).masked_fill(shut, value)


MASKS = ("fill -1e9", "fill finfo.min", "fill -inf", "add -1e9", "add -inf")
ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda z, x: z,
    "log_softmax": lambda z, x: F.log_softmax(z, dim=1),
    **{how: functools.partial(_masked, how) for how in MASKS},
}


@dataclass
class Answer:
    main: Tensor
    aux: Tensor


# structure: what the model returns, the main head of it, whether a loss sees the other head too
STRUCTURES: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor], bool]] = {
    "tensor": (lambda z, aux: z, lambda out: out, False),
    "one": (lambda z, aux: {"main": z}, lambda out: out["main"], False),
    "heads": (lambda z, aux: {"main": z, "aux": aux}, lambda out: out["main"], False),
    "tuple": (lambda z, aux: (z, aux), lambda out: out[0], True),
    "dict": (lambda z, aux: {"aux": aux, "main": z}, lambda out: out["main"], False),
    "nested": (lambda z, aux: {"a": (z,), "b": {"aux": aux}}, lambda out: out["a"][0], True),
    "dataclass": (Answer, lambda out: out.main, False),
}
SECOND = {"tuple": lambda out: out[1], "nested": lambda out: out["b"]["aux"]}
SINGLE = ("tensor", "one", "heads")  # structures whose loss gets one tensor


class Model(nn.Module):
    """A network with its end, that returns a tensor or a structure of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.net = ARCHITECTURES[case.architecture]()
        self.case = case
        with_aux = case.structure not in ("tensor", "one")
        width = self.net.hidden(torch.zeros(2, *input_shape(case))).shape[1]
        self.aux = nn.Linear(width, 2) if with_aux else None

    def forward(self, x: Tensor) -> Any:
        z, h = self.net(x)
        z = ENDS[self.case.end](z, x)
        aux = h if self.aux is None else self.aux(h)
        return STRUCTURES[self.case.structure][0](z, aux)


def network_of(case: Case) -> Model:
    """In float64, of numbers that the precision of the case can hold; not trained yet."""
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        model = Model(case)
    return model.eval().double()


def confident(model: Model, factor: int) -> None:
    """The last layer times a factor: the same choices, surer."""
    with torch.no_grad():
        last = model.net.a if isinstance(model.net, Tied) else model.net.c
        for p in last.parameters():
            p.mul_(factor**0.5 if isinstance(model.net, Tied) else factor)


def held(model: Model, case: Case) -> Model:
    """A copy in the precision of the user."""
    return copy.deepcopy(model).to(precision(case))
