"""Sharpness-aware minimization: the gradient is that of a point uphill."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.training import buffers
from spiritlevel.training.climbing import climb, part, size
from spiritlevel.training.copies import copied, put
from spiritlevel.training.wrapping import Closure, Wrapping, closures_of, evaluated, mean_loss

if TYPE_CHECKING:
    from spiritlevel.training.balancing import Balanced

Adaptive = Literal["element", "filter", "orbit"]
Stage = Literal["level", "climbed", "returned"]


class SAM(Wrapping):
    """Sharpness-aware minimization: the base steps along grad L(w + e), e = rho T^2 g / ||T g||.

    T = 1, or by `adaptive`: "element" (or True) |w| + eta, "filter" ||filter|| + eta (|w| + eta
    where there are no filters), "orbit" 1/D, D taking the weights to the least norm on their orbit
    (`orbit` is a Group, made anew every `balance` steps): twins climb to twins. norm=inf: e = rho T
    sign(g). ||T g|| is over all groups, rho, adaptive and eta may differ between them. Biases are
    as all parameters; the published code leaves them alone: put them into a group of their own with
    adaptive=False. eta=0 breaks no symmetry, and freezes zeros.

    step(closure) calls it twice. step([closures]): every part of the batch climbs on its own, and
    gradients are averaged with `weights` (shares of the batch; None: equal). Without closures:
    backward(), ascend(), which clears the gradients, backward(), descend(). Only every k-th step
    climbs if `every` is k: `due` says whether this one does. A gradient that is not finite, or
    zero, does not climb. With `model`, its buffers are those of the first pass. sync=False: every
    process of a DistributedDataParallel `model` climbs on its own; with ascend(), the first pass
    has to run in model.no_sync().

    Foret et al. (2021), Kwon et al. (2021), Andriushchenko and Flammarion (2022).
    """

    kept = ("steps", "log_scales", "balanced_at")

    def __init__(
        self,
        params: Any,
        base: type[Optimizer] = torch.optim.SGD,
        *,
        rho: float = 0.05,
        adaptive: bool | Adaptive = False,
        norm: float = 2,
        every: int = 1,
        eta: float = 0.01,
        model: nn.Module | None = None,
        sync: bool = True,
        orbit: Any = None,
        balance: int = 10,
        **options: Any,
    ) -> None:
        buffers.only_modules(model)
        doors.one_of("norm", float(norm) if isinstance(norm, int) else norm, [2.0, math.inf])
        doors.number("every", every, 1, whole=True)
        doors.number("balance", balance, 1, whole=True)
        doors.one_of("sync", sync, [True, False])
        if not sync and not hasattr(model, "no_sync"):
            raise SpiritlevelError("sync=False needs processes: give model=, the module in a DDP")
        self.norm, self.every, self.model, self.sync = float(norm), every, model, sync
        self.balance, self.orbit = balance, None if orbit is None else _balanced(orbit, model)
        self.steps, self.log_scales, self.balanced_at = 0, None, 0
        self._stage: Stage = "level"
        self._home: list[tuple[Tensor, Tensor]] = []
        self._buffers: buffers.Kept = []
        self._units: dict[Tensor, Tensor] | None = None
        super().__init__(params, base, {"rho": rho, "adaptive": adaptive, "eta": eta}, options)

    def check(self, group: Any) -> None:
        doors.number("rho", group["rho"], 0)
        doors.number("eta", group["eta"], 0)
        if group["adaptive"] is True:
            group["adaptive"] = "element"
        doors.one_of("adaptive", group["adaptive"], [False, True, "element", "filter", "orbit"])
        if group["adaptive"] == "orbit" and self.orbit is None:
            raise SpiritlevelError(
                'adaptive="orbit" needs orbit=, a Group such as spiritlevel.symmetries(objective)'
            )

    # One step ---------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether this step climbs."""
        return self.steps % self.every == 0

    def step(
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        weights: Sequence[float] | None = None,
        scaler: Any = None,
    ) -> Any:
        """One step of the base along the gradient uphill; returns the loss before it.

        With a GradScaler in `scaler`, closures scale the loss that they differentiate.
        """
        if closure is None:
            return self._without_closure()
        if self._stage != "level":
            raise SpiritlevelError("step(closure) after ascend(): call descend() first")
        closures = closures_of(closure, None, "")
        shares = _shares(weights, len(closures))
        several = len(closures) > 1
        loss = self._averaged(closures, shares) if several else self._uphill(closures[0])
        self.steps += 1
        _ = self.base.step() if scaler is None else scaler.step(self.base)
        return loss

    def _without_closure(self) -> None:
        if self._stage == "level" and self.due:
            raise SpiritlevelError(
                "step() needs two gradients: give step(closure), or call ascend(), backward() and "
                "descend()"
            )
        if self._stage != "returned":  # descend() has done this already
            self._return()
            self.steps += 1
        self.base.step()

    def _uphill(self, closure: Closure) -> Any:
        """The gradient of one part, uphill if it is due; the weights are where they were."""
        first = not self.sync and self.due
        with self.model.no_sync() if first else contextlib.nullcontext():  # type: ignore[union-attr]
            loss = evaluated(closure)
        if self.due:
            try:
                self.ascend()
                evaluated(closure)
            finally:
                self._return()
        return loss

    def _averaged(self, closures: list[Closure], shares: list[float]) -> Any:
        """The mean of the gradients and losses of several parts."""
        total: dict[Tensor, Tensor] = {}
        losses = []
        for closure, share in zip(closures, shares, strict=True):
            self.zero_grad()
            losses.append(self._uphill(closure))
            for weight in self.weights():
                if weight.grad is not None:
                    slope = weight.grad * share  # a copy: the next pass may write where it lies
                    total[weight] = total[weight].add_(slope) if weight in total else slope
            self.zero_grad()
        for weight, slope in total.items():
            weight.grad = slope
        return mean_loss(losses, shares)

    # Two steps --------------------------------------------------------------------------------

    @torch.no_grad()
    def ascend(self) -> bool:
        """Go to w + e and clear the gradients; False where the weights stay as they are."""
        if self._stage != "level":
            raise SpiritlevelError(
                "ascend() twice: call descend() between them; a GradScaler is given to "
                "descend(scaler), which goes back also where the scaler skips the step"
            )
        parts = [part(group, self._orbit_units(group)) for group in self.param_groups]
        self._stage, self._buffers = "climbed", buffers.kept(self.model)
        length = size(parts, self.norm) if self.due else 0.0
        climbs = 0 < length < math.inf
        if climbs:
            weights = [w for each in parts for w in each.weights]
            self._home = list(zip(weights, copied(weights), strict=True))
            climb(parts, self.norm, length)
        torch.clear_autocast_cache()  # it holds the weights as they were
        self.zero_grad()
        return climbs

    def descend(self, scaler: Any = None) -> None:
        """Go back to w and step along the gradients there are, by the GradScaler if there is one.

        Unscale with scaler.unscale_(this optimizer); the way up does not depend on the scale.
        """
        if self._stage != "climbed" and self.due:
            raise SpiritlevelError("descend() without ascend(): call backward() and ascend() first")
        self._return()
        self.steps += 1
        self._stage = "returned"
        try:
            _ = self.step() if scaler is None else scaler.step(self)
        finally:
            self._stage = "level"

    @torch.no_grad()
    def _return(self) -> None:
        """Weights and buffers as they were when they climbed."""
        if self._home:
            weights, home = zip(*self._home, strict=True)
            put(weights, home)
        buffers.restored(self._buffers)
        torch.clear_autocast_cache()
        self._home, self._buffers, self._stage = [], [], "level"

    def _orbit_units(self, group: Any) -> dict[Tensor, Tensor]:
        if self.orbit is None or group["adaptive"] != "orbit":
            return {}
        if self.log_scales is None or self.steps - self.balanced_at >= self.balance:
            self.log_scales, self._units = self.orbit.log_scales(), None
            self.balanced_at = self.steps
        if self._units is None:
            self._units = self.orbit.units(self.log_scales)
        return self._units

    # What is kept -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self._stage == "climbed":
            raise SpiritlevelError("state_dict() between ascend() and descend(): call descend()")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._units = None


def _balanced(orbit: Any, model: nn.Module | None) -> Balanced:
    """The orbit of a module's weights; the symmetries are imported by those who use them."""
    from spiritlevel.training.balancing import Balanced

    return Balanced(orbit, model)


def _shares(weights: Any, count: int) -> list[float]:
    """What each part counts, with the sum 1."""
    if weights is None:
        return [1 / count] * count
    if not isinstance(weights, Sequence) or len(weights) != count:
        raise SpiritlevelError(
            f"weights={doors.shown(weights)}: give one number for each of the {count} closures"
        )
    for weight in weights:
        doors.number("weights", weight, 0)
    if not sum(weights) > 0:
        raise SpiritlevelError(f"weights={doors.shown(weights)}: give some that are positive")
    return [float(weight) / sum(weights) for weight in weights]
