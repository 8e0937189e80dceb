"""Entropy-SGD: down the local entropy, whose gradient an inner Langevin walk estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spiritlevel.base import doors
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.training import buffers
from spiritlevel.training.wrapping import Closure, Wrapping, closures_of, evaluated

Version = Literal["paper", "released"]
SAID = {"paper": "the paper's version", "released": "the released version"}
# What each says; a rate of None is a tenth of the learning rate.
VERSIONS: dict[str, dict[str, Any]] = {
    "paper": {
        "gamma": 1.0,
        "scoping": 0.0,
        "inner_rate": None,
        "inner_momentum": 0.0,
        "noise": 2.0,
        "averaging": 0.9,
        "gradient": 0.0,
    },
    "released": {
        "gamma": 1e-4,
        "scoping": 1e-3,
        "inner_rate": 0.1,
        "inner_momentum": 0.9,
        "noise": 1e-4 * math.sqrt(2),
        "averaging": 0.25,
        "gradient": 0.0,
    },
}
INNER = 20


@dataclass(frozen=True)
class Walk:
    """Parameters of one group: where they were, the mean of where they are, and their speed."""

    group: Mapping[str, Any]
    weights: list[Tensor]
    home: list[Tensor]
    mean: list[Tensor]
    speed: list[Tensor]


class EntropySGD(Wrapping):
    """Down -F, F(x) = log int exp(-f(x') - gamma |x - x'|^2 / 2) dx', grad -F = gamma (x - <x'>).

    x', mu = x, then `inner` times: x' <- x' - r (grad f(x') - gamma (x - x')) + noise sqrt(r) N,
    mu <- mu + averaging (x' - mu); r is `inner_rate` (None: a tenth of lr). Then the base steps
    along gamma (x - mu) + gradient grad f(x). gamma grows by the factor 1 + scoping at each step.

    version="paper": gamma 1, r = lr / 10, averaging 0.9, noise 2 as it is printed; sqrt(2) samples
    what F says. version="released": along (x - mu) without gamma, gamma 1e-4, scoping 1e-3 (its
    counter stands still: scoping=0 is what it computed), r = 0.1, averaging 0.25, noise 1e-4
    sqrt(2), and inner steps have Nesterov's momentum 0.9 and the base's weight decay; its base was
    SGD with momentum=0.9, nesterov=True. Any of these may be given, for each group; inner is 20.

    step(closure) calls it `inner` times, once more where `gradient` is not 0 (a fresh batch each
    time is best); step([closures]) calls each. With `model`, buffers are those of the first pass.

    Chaudhari et al. (2017).
    """

    kept = ("steps", "version")

    def __init__(
        self,
        params: Any,
        base: type[Optimizer] = torch.optim.SGD,
        *,
        version: Version = "paper",
        inner: int = INNER,
        model: nn.Module | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        doors.one_of("version", version, VERSIONS)
        doors.number("inner", inner, 1, whole=True)
        buffers.only_modules(model)
        self.version, self.inner, self.model, self.steps = version, inner, model, 0
        own = {name: options.pop(name, value) for name, value in VERSIONS[version].items()}
        super().__init__(params, base, own, options, generator(seed))

    def check(self, group: Any) -> None:
        for name in ("gamma", "scoping", "noise", "gradient", "inner_momentum"):
            doors.number(name, group[name], 0)
        doors.number("averaging", group["averaging"], above=0)
        if group["inner_rate"] is not None:
            doors.number("inner_rate", group["inner_rate"], above=0)

    def __repr__(self) -> str:
        said = f"{SAID[self.version]}, inner={self.inner}"
        return super().__repr__().replace(" (", f", {said} (", 1)

    @property
    def batches(self) -> int:
        """How many batches a step takes, where each call has one of its own."""
        return self.inner + any(group["gradient"] for group in self.param_groups)

    def step(self, closure: Closure | Sequence[Closure] | None = None) -> Any:
        """An inner walk and one step of the base; returns the loss where it began."""
        closures = closures_of(closure, self.batches, "inner")
        self.zero_grad()
        loss = evaluated(closures[0])
        walks, kept = [self._begun(group) for group in self.param_groups], buffers.kept(self.model)
        try:
            self._walk(walks)
            for each in closures[1 : self.inner]:
                self.zero_grad()
                evaluated(each)
                self._walk(walks)
        finally:
            self._return(walks, kept)
        self.zero_grad()
        if len(closures) > self.inner:
            evaluated(closures[-1])
            buffers.restored(kept)
        self._outer(walks)
        self.base.step()
        self.steps += 1
        return loss

    def _gamma(self, group: Mapping[str, Any]) -> float:
        return group["gamma"] * (1 + group["scoping"]) ** self.steps

    def _begun(self, group: Mapping[str, Any]) -> Walk:
        weights = [p for p in group["params"] if p.grad is not None]
        home, mean = ([p.detach().clone() for p in weights] for _ in range(2))
        speed = [torch.zeros_like(p) for p in weights] if group["inner_momentum"] else []
        return Walk(group, weights, home, mean, speed)

    @torch.no_grad()
    def _walk(self, walks: list[Walk]) -> None:
        """One step of every x' along the gradients there are, and of the mean."""
        for walk in walks:
            if not walk.weights:
                continue
            group, gamma = walk.group, self._gamma(walk.group)
            rate = 0.1 * group["lr"] if group["inner_rate"] is None else group["inner_rate"]
            slopes = self._slopes(walk)
            torch._foreach_add_(slopes, walk.weights, alpha=gamma)
            torch._foreach_add_(slopes, walk.home, alpha=-gamma)
            torch._foreach_add_(walk.weights, slopes, alpha=-float(rate))
            if group["noise"]:
                drawn = [gaussian(p.shape, self.draws, p) for p in walk.weights]  # type: ignore[arg-type]
                size = group["noise"] * math.sqrt(rate)
                torch._foreach_add_(walk.weights, drawn, alpha=size)
            torch._foreach_lerp_(walk.mean, walk.weights, group["averaging"])
        torch.clear_autocast_cache()  # it holds the weights as they were

    def _slopes(self, walk: Walk) -> list[Tensor]:
        """A copy of the gradients of f; the released version adds decay and momentum."""
        up = -1.0 if walk.group.get("maximize") else 1.0
        slopes = [torch.zeros_like(p) if p.grad is None else up * p.grad for p in walk.weights]
        if self.version == "released" and walk.group.get("weight_decay"):
            torch._foreach_add_(slopes, walk.weights, alpha=walk.group["weight_decay"])
        if walk.speed:
            momentum = walk.group["inner_momentum"]
            torch._foreach_mul_(walk.speed, momentum)
            torch._foreach_add_(walk.speed, slopes)
            torch._foreach_add_(slopes, walk.speed, alpha=momentum)
        return slopes

    @torch.no_grad()
    def _return(self, walks: list[Walk], kept: buffers.Kept) -> None:
        for walk in walks:
            for weight, home in zip(walk.weights, walk.home, strict=True):
                weight.copy_(home)
        buffers.restored(kept)
        torch.clear_autocast_cache()

    @torch.no_grad()
    def _outer(self, walks: list[Walk]) -> None:
        """The gradient that the base is given."""
        for walk in walks:
            pull = 1.0 if self.version == "released" else self._gamma(walk.group)
            pull = -pull if walk.group.get("maximize") else pull
            share = walk.group["gradient"]
            for weight, home, mean in zip(walk.weights, walk.home, walk.mean, strict=True):
                found = pull * (home - mean)
                if share and weight.grad is not None:
                    found.add_(weight.grad, alpha=share)
                weight.grad = found
