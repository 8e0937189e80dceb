"""Stochastic gradient Langevin dynamics: steps that sample instead of settling."""

from __future__ import annotations

import math
from typing import Any

import torch

from spiritlevel.base import doors
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.training.wrapping import Closure, Wrapping, evaluated


class SGLD(Wrapping):
    """w <- w - lr grad f + sqrt(2 lr temperature) N: samples exp(-f / temperature) for small lr.

    f is what the closure differentiates: for a mean loss over n examples, the posterior has the
    temperature 1/n. No preconditioner; weight_decay is the prior's, momentum would sample another
    law. On h w^2 / 2 the variance is 2 temperature / (h (2 - lr h)).

    Welling and Teh (2011).
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        temperature: float = 1.0,
        seed: int = 0,
        weight_decay: float = 0.0,
    ) -> None:
        doors.number("lr", lr, above=0)
        doors.number("weight_decay", weight_decay, 0)
        own, options = {"temperature": temperature}, {"lr": lr, "weight_decay": weight_decay}
        super().__init__(params, torch.optim.SGD, own, options, generator(seed))

    def check(self, group: Any) -> None:
        doors.number("temperature", group["temperature"], 0)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step along the gradients there are, or of the closure; returns its loss."""
        loss = None if closure is None else evaluated(closure)
        self.base.step()
        for group in self.param_groups:
            size = math.sqrt(2 * group["lr"] * group["temperature"])
            for weight in (p for p in group["params"] if p.grad is not None and size):
                weight.add_(gaussian(weight.shape, self.draws, weight), alpha=size)  # type: ignore[arg-type]
        return loss
