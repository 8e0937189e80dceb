"""Flat minimum search: the loss, plus the digits that weights need."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spiritlevel.base.doors import a, number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import map_tensors
from spiritlevel.objective.module import unwrap
from spiritlevel.training.box import Call, box, mappable
from spiritlevel.training.live import lent, named_in
from spiritlevel.training.wrapping import Closure, Wrapping, evaluated

WEIGHT, CHANGE = 1e-3, 1e-4
CUT = 0.9  # what lambda is multiplied with while the loss is above its average and grows
MEMORY = 0.9  # of the average: A(n) = 0.9 A(n - 1) + 0.1 E(n)


class FlatMinimumSearch(Wrapping):
    """The base's step along grad (E + lambda B), B minus the log volume of a box of weights.

    B is the measure `flat_minimum_search` (Hochreiter and Schmidhuber, 1997) on the inputs that the
    closure gives to `model`, of the weights in `params`, in float64 and in eval mode; its gradient
    is that of the Jacobian of the outputs, by automatic differentiation. Weights that no output
    sees are in no box: `silent` counts them, `penalty` is B.

    `weight` is lambda. It stays as it is, unless there is a `tolerance`: then it changes after
    every `every` steps, whose mean loss is E(n), with A(n) = 0.9 A(n - 1) + 0.1 E(n):

        lambda + change          if E(n) < tolerance or E(n) < E(n - 1)
        max(lambda - change, 0)  else, if E(n) < A(n)
        0.9 lambda               else

    This is the rule of Weigend, Rumelhart and Huberman (1991), after which the paper's is made; it
    and its constants are from memory, not read off the paper. Groups may have their own `weight`
    and `change`.
    """

    kept = ("penalty", "silent", "losses", "looked", "error", "average")

    def __init__(
        self,
        params: Any,
        base: type[torch.optim.Optimizer] = torch.optim.SGD,
        *,
        model: nn.Module,
        weight: float = WEIGHT,
        tolerance: float | None = None,
        change: float = CHANGE,
        every: int = 1,
        **options: Any,
    ) -> None:
        a("model", model, nn.Module, "the torch.nn.Module that is trained")
        if isinstance(model, DistributedDataParallel):
            raise SpiritlevelError(
                "model is a DistributedDataParallel, whose processes would each have a B of their "
                "own; train in one process"
            )
        number("every", every, 1, whole=True)
        if tolerance is not None:
            number("tolerance", tolerance)
        super().__init__(params, base, {"weight": weight, "change": change}, options)
        self.model, self.tolerance, self.every = model, tolerance, every
        self.penalty: float | None = None
        self.silent: int | None = None
        self.losses, self.looked = 0.0, 0  # the sum and the number since the last change
        self.error, self.average = math.inf, math.nan
        self._live = named_in(unwrap(model)[0], self.weights())
        self._mapped: bool | None = None
        self._attach()

    def check(self, group: Mapping[str, Any]) -> None:
        number("weight", group["weight"], 0)
        number("change", group["change"], 0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        super().add_param_group(param_group)
        if self._built:
            self._live = named_in(unwrap(self.model)[0], self.weights())

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; the closure calls the model, and its loss is returned."""
        if closure is None:
            raise SpiritlevelError(
                "closure is None; FlatMinimumSearch sees the inputs while it runs: give a function "
                "that clears the gradients, calls backward() and returns the loss"
            )
        self._heard.calls = []
        try:
            loss = evaluated(closure)
            calls = self._heard.calls
        finally:
            self._heard.calls = None
        with lent(self._slopes(calls), self._live):
            self.base.step()
        if self.tolerance is not None:
            self._adapt(loss)
        return loss

    def _slopes(self, calls: list[Call]) -> dict[str, Tensor | None]:
        """grad E + lambda grad B by name."""
        own = {name: p.grad for name, p in self._live.items()}
        each = [group["weight"] for group in self.param_groups for _ in group["params"]]
        weights = dict(zip(self._live, each, strict=True))
        if not any(weights.values()):
            return own
        if not calls:
            raise SpiritlevelError(
                "the closure did not call model; give the model that it calls, and do not close() "
                "the optimizer before"
            )
        model = unwrap(self.model)[0]
        if self._mapped is None:
            self._mapped = mappable(model, self._live, calls[0])
        found = box(model, self._live, calls, mapped=self._mapped)
        self.penalty, self.silent = found.value, found.silent
        for name, slope in found.gradient.items():
            grown, mine = weights[name] * slope, own[name]
            if mine is not None:
                own[name] = (mine.double() + grown).to(mine.dtype)
            elif bool(slope.any()):
                own[name] = grown.to(self._live[name].dtype)
        return own

    def _adapt(self, loss: Any) -> None:
        """Another lambda, where it is time."""
        assert self.tolerance is not None
        if loss is None:
            raise SpiritlevelError(
                "the closure returned no loss, which tolerance is for; return it, or leave "
                "tolerance out"
            )
        self.losses += float(loss.detach() if isinstance(loss, Tensor) else loss)
        self.looked += 1
        if self.looked < self.every:
            return
        error, before = self.losses / self.looked, self.error
        first = math.isnan(self.average)
        self.average = error if first else MEMORY * self.average + (1 - MEMORY) * error
        self.losses, self.looked, self.error = 0.0, 0, error
        for group in self.param_groups:
            if error < self.tolerance or error < before:
                group["weight"] += group["change"]
            elif error < self.average:
                group["weight"] = max(group["weight"] - group["change"], 0.0)
            else:
                group["weight"] *= CUT

    # Listening to the model -------------------------------------------------------------------

    def _attach(self) -> None:
        self._heard = Listener()
        self._hook = self.model.register_forward_pre_hook(self._heard, with_kwargs=True)
        weakref.finalize(self, self._hook.remove).atexit = False

    def close(self) -> None:
        """Take the hook off the model; so does the end of this optimizer."""
        self._hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        held = super().__getstate__()
        return {name: value for name, value in held.items() if name not in ("_heard", "_hook")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model" in state:  # torch restores its own part by the same method
            self._attach()


class Listener:
    """A hook that remembers what a model was called with, when it is told to.

    A copy of the model has one that nobody listens to.
    """

    def __init__(self) -> None:
        self.calls: list[Call] | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.calls is not None:
            self.calls.append(map_tensors(lambda t: t.detach().clone(), (args, kwargs)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Listener:
        return Listener()

    def __reduce__(self) -> tuple[type[Listener], tuple[()]]:
        return Listener, ()
