"""Replicated SGD: several copies of the weights that pull each other together."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensor_doors import device as known_device
from spiritlevel.base.tensors import gaussian, generator, map_leaves
from spiritlevel.training.copies import copied, put
from spiritlevel.training.wrapping import OWN, Closure, Wrapping, closures_of, evaluated, mean_loss

Coupling = float | tuple[float, float] | Callable[[int], float]


class ReplicatedSGD(Wrapping):
    """Replicas w_a step along grad f_a(w_a) + coupling (w_a - centre), the centre their mean.

    `coupling` is a number, (start, factor) for start factor^t, or a function of the number t of
    steps done. With one closure, step() calls it once for each replica (it should draw a fresh
    batch), with a list each of its own. Between steps the model holds the centre; within one, each
    replica is loaded into it. They begin at the model's weights at the first step, each moved by
    noise of the size `spread` whose mean is taken away. The base is given the sum, and has a state
    for each replica. `devices`: where replicas and their states rest, in turn; they compute where
    the model is. Buffers see all replicas.

    Baldassi et al. (2016).
    """

    kept = ("steps",)

    def __init__(
        self,
        params: Any,
        base: type[Optimizer] = torch.optim.SGD,
        *,
        replicas: int = 3,
        coupling: Coupling = 0.1,
        spread: float = 0.01,
        seed: int = 0,
        devices: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        doors.number("replicas", replicas, 1, whole=True)
        doors.number("spread", spread, 0)
        _only_couplings(coupling)
        if devices is not None and (not isinstance(devices, (list, tuple)) or not devices):
            raise SpiritlevelError(f'devices={doors.shown(devices)}: give a list, such as ["cpu"]')
        self.places = None if devices is None else [known_device(each) for each in devices]
        self.count, self.coupling, self.spread, self.steps = replicas, coupling, spread, 0
        self.replicas: list[list[Tensor]] = []
        self.states: list[Any] = []
        super().__init__(params, base, {}, options, generator(seed))

    @property
    def batches(self) -> int:
        """How many batches a step takes: one for each replica."""
        return self.count

    def gamma(self) -> float:
        """The coupling of the step that comes."""
        if callable(self.coupling):
            found = self.coupling(self.steps)
            doors.number("coupling", found, 0)
            return float(found)
        start, factor = self.coupling if isinstance(self.coupling, tuple) else (self.coupling, 1.0)
        return start * factor**self.steps

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "replicas", None):
            raise SpiritlevelError("add_param_group() after the first step: the replicas are made")
        super().add_param_group(param_group)

    def step(self, closure: Closure | Sequence[Closure] | None = None) -> Any:
        """One step of every replica; returns the mean of their losses."""
        closures = closures_of(closure, self.count, "replicas")
        fresh, centre = not self.replicas, copied([w.detach() for w in self.weights()])
        if fresh:
            self._begin()
        gamma, losses, slopes = self.gamma(), [], []
        try:
            for number, each in enumerate(closures):
                self._load(number)
                self.zero_grad()
                losses.append(evaluated(each))
                self._couple(centre, gamma)
                slopes.append([w.grad for w in self.weights()])
                self.zero_grad()  # the next gradients are tensors of their own
        except BaseException:  # of a closure: as if there had been no step
            put(self.weights(), centre)
            if fresh:
                self.replicas, self.states = [], []
            raise
        for number, own in enumerate(slopes):
            self._load(number)
            for weight, slope in zip(self.weights(), own, strict=True):
                weight.grad = slope
            self.base.step()
            self._store(number)
        self._centre()
        self.steps += 1
        return mean_loss(losses, [1 / self.count] * self.count)

    def _place(self, number: int, like: Tensor) -> torch.device:
        return like.device if self.places is None else self.places[number % len(self.places)]

    @torch.no_grad()
    def _begin(self) -> None:
        """Replicas around the weights, with the weights for their mean, and a state for each."""
        noise = [
            [self.spread * gaussian(w.shape, self.draws, w) for w in self.weights()]  # type: ignore[arg-type]
            for _ in range(self.count)
        ]
        means = [torch.stack(drawn).mean(0) for drawn in zip(*noise, strict=True)]
        for number, drawn in enumerate(noise):
            moved = zip(self.weights(), drawn, means, strict=True)
            self.replicas.append(
                [
                    (w + (d - m) * w.requires_grad).to(self._place(number, w), copy=True)
                    for w, d, m in moved
                ]
            )
            self.states.append(self._rested(number, copy_of(self.state)))

    @torch.no_grad()
    def _load(self, number: int) -> None:
        for weight, own in zip(self.weights(), self.replicas[number], strict=True):
            weight.copy_(own)
        state = defaultdict(dict)
        for weight, entries in self.states[number].items():
            state[weight] = _moved(entries, weight.device)
        self._share(self.param_groups, state)
        torch.clear_autocast_cache()  # it holds the weights of another

    @torch.no_grad()
    def _store(self, number: int) -> None:
        for weight, own in zip(self.weights(), self.replicas[number], strict=True):
            own.copy_(weight)
        self.states[number] = self._rested(number, self.state)

    def _rested(self, number: int, state: Any) -> Any:
        return {w: _moved(entries, self._place(number, w)) for w, entries in state.items()}

    @torch.no_grad()
    def _couple(self, centre: list[Tensor], gamma: float) -> None:
        middles = iter(centre)
        for group in self.param_groups:
            pull = -gamma if group.get("maximize") else gamma
            for weight in group["params"]:
                away = weight - next(middles)
                if weight.grad is not None:
                    weight.grad.add_(away, alpha=pull)

    @torch.no_grad()
    def _centre(self) -> None:
        """The mean of the replicas, in the model."""
        for place, weight in enumerate(self.weights()):
            if not weight.requires_grad:  # a mean of what is equal may be rounded
                continue
            own = [replica[place].to(weight.device) for replica in self.replicas]
            weight.copy_(torch.stack(own).mean(0))
        torch.clear_autocast_cache()

    # What is kept -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As that of torch, with the weights and the base's state of every replica."""
        found, packed = super().state_dict(), []
        numbers = {weight: number for number, weight in enumerate(self.weights())}
        for state in self.states:
            packed.append({numbers[weight]: dict(entries) for weight, entries in state.items()})
        return {**found, OWN: {**found[OWN], "replicas": self.replicas, "states": packed}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict.get(OWN, {})) if isinstance(state_dict, Mapping) else {}
        replicas, states = own.pop("replicas", None), own.pop("states", None)
        if replicas is None or states is None or len(replicas) not in (0, self.count):
            raise SpiritlevelError(
                f"state_dict is not that of ReplicatedSGD with replicas={self.count}; give what "
                "its state_dict() returned"
            )
        super().load_state_dict({**state_dict, OWN: own})
        weights = self.weights()
        self.replicas = [
            [t.to(self._place(n, w), copy=True) for t, w in zip(each, weights, strict=True)]
            for n, each in enumerate(replicas)
        ]
        self.states = [
            self._rested(n, copy_of({weights[i]: entries for i, entries in each.items()}))
            for n, each in enumerate(states)
        ]


def copy_of(state: Mapping[Tensor, Any]) -> dict[Tensor, Any]:
    """A copy of what the base keeps for each parameter, which stays the key."""
    return {weight: copy.deepcopy(dict(entries)) for weight, entries in state.items()}


def _moved(entries: Any, place: torch.device) -> Any:
    """Tensors on another device; counters of steps stay where torch wants them."""

    def put(leaf: Any) -> Any:
        return leaf.to(place) if isinstance(leaf, Tensor) and leaf.ndim else leaf

    return map_leaves(put, entries)


def _only_couplings(coupling: Any) -> None:
    """Refuse what is neither a number, nor two, nor a function of steps."""
    if callable(coupling):
        return
    if not isinstance(coupling, tuple):
        doors.number("coupling", coupling, 0)
        return
    if len(coupling) != 2:
        raise SpiritlevelError(
            f"coupling={doors.shown(coupling)}: give a number, (start, factor), or a function of "
            "the number of steps"
        )
    for each in coupling:
        doors.number("coupling", each, 0)
