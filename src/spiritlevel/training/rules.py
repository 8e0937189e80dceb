"""Steps of many networks at once: parameters are stacked, each network has its own rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError

Params = dict[str, Tensor]
State = dict[str, Params]
Slopes = Callable[[Params], tuple[Params, Tensor]]  # gradients and losses, one for each network


class Rule(Protocol):
    """An optimizer of stacked parameters, which changes them and its state in place."""

    def begin(self, params: Params) -> State: ...

    def step(self, params: Params, slopes: Slopes, state: State, rates: Tensor) -> Tensor:
        """One step of each; returns the losses before it."""
        ...


@dataclass(frozen=True)
class SGD:
    """v <- momentum v + g + weight_decay w; w <- w - lr v."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def begin(self, params: Params) -> State:
        return {"velocity": _zeros(params)} if self.momentum else {}

    def step(self, params: Params, slopes: Slopes, state: State, rates: Tensor) -> Tensor:
        gradients, losses = slopes(params)
        self.descend(params, gradients, state, rates)
        return losses

    @torch.no_grad()
    def descend(self, params: Params, gradients: Params, state: State, rates: Tensor) -> None:
        for name, weight in params.items():
            way = gradients[name]
            if self.weight_decay:
                way = way + self.weight_decay * weight
            if self.momentum:
                way = state["velocity"][name].mul_(self.momentum).add_(way)
            weight.sub_(_wide(rates, weight) * way)


@dataclass(frozen=True)
class SAM(SGD):
    """The step of SGD with the gradient at w + rho g / ||g||. Foret et al. (2021)."""

    rho: float = 0.05

    def step(self, params: Params, slopes: Slopes, state: State, rates: Tensor) -> Tensor:
        gradients, losses = slopes(params)
        above = {
            name: weight + self.rho * way
            for (name, weight), way in zip(params.items(), _unit(gradients), strict=True)
        }
        self.descend(params, slopes(above)[0], state, rates)
        return losses


@dataclass(frozen=True)
class Adam:
    """w <- w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps). Kingma and Ba (2015)."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not getattr(self, name) < 1:
                raise SpiritlevelError(f"{name}={getattr(self, name)}: give a number below 1")

    def begin(self, params: Params) -> State:
        first = next(iter(params.values()))
        count = torch.zeros((), dtype=torch.float64, device=first.device)  # as torch counts them
        return {"mean": _zeros(params), "square": _zeros(params), "made": {"steps": count}}

    def step(self, params: Params, slopes: Slopes, state: State, rates: Tensor) -> Tensor:
        gradients, losses = slopes(params)
        with torch.no_grad():
            steps = state["made"]["steps"].add_(1)
            first, second = 1 - self.beta1**steps, 1 - self.beta2**steps
            for name, weight in params.items():
                g = gradients[name]
                if self.weight_decay:
                    g = g + self.weight_decay * weight
                mean = state["mean"][name].lerp_(g, 1 - self.beta1)
                square = state["square"][name].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
                size = (square / second).sqrt_().add_(self.eps)
                weight.sub_(_wide(rates, weight) / first * mean / size)
        return losses


RULES: dict[str, Callable[..., Rule]] = {"sgd": SGD, "sam": SAM, "adam": Adam}


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(weight) for name, weight in params.items()}


def _unit(gradients: Params) -> list[Tensor]:
    """g / ||g|| of each network, zero where g is: squares of small numbers are zero, not these."""
    flat = [rows(g).abs() for g in gradients.values() if g.numel()]
    most = torch.stack([g.amax(1) for g in flat]).amax(0)
    most = most.clamp_min(torch.finfo(most.dtype).tiny)
    squares = torch.stack([(g / most[:, None]).square().sum(1) for g in flat])
    length = squares.sum(0).sqrt().clamp_min(1)  # the largest entry is 1, or all are 0
    return [g / _wide(most, g) / _wide(length, g) for g in gradients.values()]


def rows(stacked: Tensor) -> Tensor:
    """A row for each network, also where it has one number."""
    return stacked.reshape(len(stacked), stacked[0].numel())


def _wide(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for each network, to be broadcast over its tensor."""
    return numbers.view(-1, *[1] * (like.ndim - 1))
