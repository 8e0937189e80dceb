"""Descent in the geometry of the path norm: rescaled networks stay rescaled networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import map_tensors
from spiritlevel.measures.paths import SquaredNetwork, check_linear, squares_of
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.module import cast, unwrap
from spiritlevel.symmetry.predictors import EXAMPLES, predictor_of
from spiritlevel.symmetry.tracing.graph import Predictor
from spiritlevel.symmetry.tracing.squares import Squares
from spiritlevel.training.live import lent, named_in
from spiritlevel.training.wrapping import Closure, Wrapping, evaluated


class PathSGD(Wrapping):
    """The base's step along g_e / kappa_e, kappa_e = d (path norm)^2 / d (w_e^2).

    kappa_e is the sum over the paths through e of the product of the squares of all their other
    weights; biases are weights of a constant input. Rescaling units by D makes g into D^-1 g and
    kappa into D^-2 kappa, so that the step is rescaled by D: the same function before and after it,
    with momentum and weight decay of SGD too. No other base has that. An edge on no path with
    weights has no gradient of the loss. (Neyshabur, Salakhutdinov and Srebro, 2015, p = 2)

    `model` is a network of weights, sums and rectifiers that `params` are part of; `example` is
    what it takes, guessed if None.
    """

    def __init__(
        self,
        params: Any,
        base: type[torch.optim.Optimizer] = torch.optim.SGD,
        *,
        model: nn.Module,
        example: Any = None,
        **options: Any,
    ) -> None:
        a("model", model, nn.Module, "the torch.nn.Module that is trained")
        super().__init__(params, base, {}, options)
        self.model, self.example = unwrap(model)[0], example
        self._network: SquaredNetwork | None = _network(self.model, example)
        self._live = named_in(self.model, self.weights())
        check_linear(lambda make: self._squared().run(self._held(), make))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        super().add_param_group(param_group)
        if self._built:
            self._live = named_in(self.model, self.weights())

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = None if closure is None else evaluated(closure)
        scales = self.path_scales()
        gradients = {
            name: None if p.grad is None else _over(p.grad, scales[name], name)
            for name, p in self._live.items()
        }
        with lent(gradients, self._live):
            self.base.step()
        return loss

    @set_apart()
    def path_scales(self) -> dict[str, Tensor]:
        """kappa for every parameter of the optimizer by name, in float64 on the CPU."""
        held = self._held()
        squares = [held[name].value.requires_grad_() for name in self._live]
        with torch.enable_grad():
            total = self._squared().total(held)
        found = torch.autograd.grad(total, squares, materialize_grads=True)
        return dict(zip(self._live, found, strict=True))

    def _held(self) -> dict[str, Any]:
        """What goes into the graph, as the weights are now."""
        exact: dict[str, Any] = {
            name: value.detach().cpu().double() if value.is_floating_point() else value.cpu()
            for name, value in self.model.named_buffers()
        }
        for name, p in self.model.named_parameters():
            exact[name] = Squares(p.detach().cpu().double().square())
        return exact

    def _squared(self) -> SquaredNetwork:
        if self._network is None:
            self._network = _network(self.model, self.example)
        return self._network

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_network": None}  # graphs do not travel


@set_apart()
def _network(model: nn.Module, example: Any) -> SquaredNetwork:
    """The network of squares behind the model, in float64."""
    normed = [name for name, part in model.named_modules() if isinstance(part, _BatchNorm)]
    if normed:
        raise SpiritlevelError(
            f"model has a batch norm ({normed[0]}), whose statistics are on no path; use PathSGD "
            "for networks of weights, sums and rectifiers"
        )
    traced, _ = predictor_of(model, example)
    batch: Any = traced.example
    if frozen.divisible(batch):
        batch = frozen.rows(batch, slice(0, EXAMPLES))
    batch = map_tensors(lambda t: t.double() if t.is_floating_point() else t, batch)
    exact = cast(traced.model, torch.float64, torch.device("cpu"))
    return squares_of(Predictor(exact, traced.answers, batch), batch)


def _over(gradient: Tensor, scale: Tensor, name: str) -> Tensor:
    """g / kappa; zero where no path leads, for there g is zero too."""
    exact = scale.to(gradient.device)
    found = torch.where(exact > 0, gradient.double() / exact, 0.0).to(gradient.dtype)
    if bool(gradient.isfinite().all()) and not bool(found.isfinite().all()):
        raise SpiritlevelError(
            f"the gradient of {name} over its path scale is too large for {gradient.dtype}: the "
            "weights are too small or too different in size; train in float64, or rescale them"
        )
    return found
