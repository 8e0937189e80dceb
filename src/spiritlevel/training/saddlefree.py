"""Newton's method with the curvatures taken absolute: saddles push away instead of attracting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import generator
from spiritlevel.curvature.ladder import Rung, climb
from spiritlevel.curvature.products import hessian_by
from spiritlevel.objective.objective import Objective, only_objectives
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.training.wrapping import groups_of

SUBSPACE = 20
OWN = "saddle_free"  # where the state that is not torch's lies in a state_dict


class SaddleFreeNewton(torch.optim.Optimizer):
    """theta - lr (|H| + damping)^-1 g, |H| with the eigenvalues of H taken absolute.

    In the space that g, Hg, ..., H^(k-1) g span (Lanczos): g lies in it, so that the step has no
    other part, and with k large enough it is that of the whole H. Where the curvature is zero to
    rounding the step is that of the largest one, a gradient step of 1 / |lambda|_max. H and g are
    those of `objective`, of all its data: there are no minibatches, and gradients of the closure
    are not used. (Dauphin et al., 2014)

    `params` are the trained parameters in the order of the objective's, or with their names
    (`model.named_parameters()`). Groups have their own lr.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        objective: Objective,
        k: int = SUBSPACE,
        damping: float = 0.0,
        lr: float = 1.0,
        seed: int = 0,
    ) -> None:
        only_objectives(objective)
        number("k", k, 1, whole=True)
        number("damping", damping, 0)
        number("lr", lr, 0)
        seeded(seed)
        try:
            super().__init__(groups_of(params), {"lr": lr})
        except (TypeError, ValueError) as error:
            if isinstance(error, SpiritlevelError):
                raise
            raise SpiritlevelError(f"params: {error}; give model.parameters()") from None
        self.objective, self.k, self.damping = objective, k, damping
        self.products = 0  # with the Hessian, so far
        self._draws = generator(seed)
        self._way: Rung | None = None
        self._live = _by_name(self.param_groups, objective)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "_live" in vars(self):
            raise SpiritlevelError(
                "the parameters are those of the objective, all of them from the start; make "
                "another SaddleFreeNewton"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss, or the objective's before the step if None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        here = self.objective.at({name: p.detach() for name, p in self._live.items()})
        value, gradient = here.value_and_gradient()
        move = here.named(self._inverted(here, gradient))
        rates = {id(p): group["lr"] for group in self.param_groups for p in group["params"]}
        for name, p in self._live.items():
            p.sub_((rates[id(p)] * move[name]).to(p))
        return value if loss is None else loss

    @set_apart()
    def _inverted(self, here: Objective, gradient: Tensor) -> Tensor:
        """(|H| + damping)^-1 g in the Krylov space of g."""
        if not bool(gradient.isfinite().all()):
            raise SpiritlevelError(
                "the gradient of the objective is not finite here; lower lr, or raise damping"
            )
        if not bool(gradient.any()):
            return gradient
        if self._way is None:  # checked once: it is the same function at other points
            self._way = climb(here)
        krylov = Krylov(hessian_by(self._way, here), gradient, self.k, self._draws)
        while not (krylov.full or _closed(krylov)):
            krylov.expand()
        self.products += krylov.products
        ritz = krylov.ritz()
        sizes = ritz.values.abs()
        sizes = torch.where(sizes > krylov.rounding * sizes.max(), sizes, sizes.max())
        if not bool(sizes.any()) and not self.damping:
            raise SpiritlevelError(
                "the Hessian is zero along the gradient, so that no step is better than another; "
                "give damping, or use gradient descent"
            )
        inside = ritz.coordinates.T @ (krylov.basis[: krylov.length] @ gradient).cpu().double()
        return krylov.lift(ritz.coordinates @ (inside / (sizes + self.damping)))

    # Storing ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        own = {"draws": self._draws.get_state(), "products": self.products}
        return {**super().state_dict(), OWN: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        given = dict(state_dict)
        own = given.pop(OWN, None)
        if own is None:
            raise SpiritlevelError("state_dict is not one of SaddleFreeNewton; give its own")
        super().load_state_dict(given)
        self._draws.set_state(own["draws"])
        self.products = own["products"]

    def __getstate__(self) -> dict[str, Any]:
        held = {k: v for k, v in vars(self).items() if k not in ("_draws", "_way", "step")}
        return {**held, "_drawn": self._draws.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        drawn = state.pop("_drawn", None)
        super().__setstate__(state)
        if drawn is not None:  # torch restores its own part by the same method
            self._way, self._draws = None, torch.Generator("cpu")
            self._draws.set_state(drawn)


def _closed(krylov: Krylov) -> bool:
    """Whether products leave the space no more, to rounding."""
    m = krylov.length
    if m == 0 or krylov.complete:
        return krylov.complete
    return float(krylov.coefficients[m, m - 1]) <= krylov.rounding * krylov.norm


def _by_name(groups: Iterable[dict[str, Any]], objective: Objective) -> dict[str, Tensor]:
    """The live parameters by the names that the objective has for them."""
    live = [p for group in groups for p in group["params"]]
    names = [name for group in groups for name in group.get("param_names", ())]
    if not names:
        shapes = list(objective.shapes.values())
        alike = [p.shape for p in live] == shapes and all(
            torch.equal(p.detach().to(own), own)
            for p, own in zip(live, objective.params.values(), strict=True)
        )
        names = list(objective.shapes) if alike else []
    found = dict(zip(names, live, strict=False))
    if {name: p.shape for name, p in found.items()} != objective.shapes:
        raise SpiritlevelError(
            "params are not known to be those of the objective; give model.named_parameters() of "
            "the same model, or all its parameters in order where objective is at their values"
        )
    return found
