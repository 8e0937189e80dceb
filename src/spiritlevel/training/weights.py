"""The live weights of a module as another point of an objective; the module is only read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.objective.module import unwrap

Named = Mapping[str, Tensor]


def live(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers by name, without what torch.compile puts into names."""
    inner, _ = unwrap(model)
    params = {_plain(n): p.detach() for n, p in inner.named_parameters(remove_duplicate=False)}
    return params, {_plain(n): b.detach() for n, b in inner.named_buffers()}


def prefix_of(objective: Objective, params: Named) -> str:
    """What stands before the objective's names in those of a module: "", "model.", "module."."""
    shapes = {_plain(name): shape for name, shape in objective.shapes.items()}
    first = next(iter(shapes))
    prefixes = [name.removesuffix(first) for name in params if name.endswith(first)]
    found = [p for p in prefixes if (not p or p.endswith(".")) and _fits(shapes, params, p)]
    if "" in found:
        return ""
    if len(found) == 1:
        return found[0]
    if found:
        under = " and ".join(repr(p) for p in found)
        raise SpiritlevelError(
            f"model holds several networks that fit the objective, under {under}: give the module "
            "that is meant, such as model.student"
        )
    raise SpiritlevelError(
        f"model does not hold the parameters of the objective ({_misfit(shapes, params)}): give "
        "the module from which the objective was made, or one that holds it"
    )


def _fits(shapes: Mapping[str, torch.Size], params: Named, prefix: str) -> bool:
    held = {n.removeprefix(prefix): t.shape for n, t in params.items() if n.startswith(prefix)}
    return all(held.get(name) == shape for name, shape in shapes.items())


def _misfit(shapes: Mapping[str, torch.Size], params: Named) -> str:
    for name, shape in shapes.items():
        held = next((t for n, t in params.items() if f".{n}".endswith(f".{name}")), None)
        if held is None:
            return f"it has no {name!r}"
        if held.shape != shape:
            return f"{name!r} is {tuple(held.shape)} there, and {tuple(shape)} in the objective"
    return "they lie in several parts of it"


def at_weights(objective: Objective, model: nn.Module, prefix: str) -> Objective:
    """The objective at the weights that the module has now, with its running statistics."""
    params, buffers = live(model)
    own = {_plain(n): n for n in objective.shapes}
    point = {own[n]: params[prefix + n] for n in own}
    stale = {
        name: params[prefix + _plain(name)]
        for name, held in objective.module.named_parameters()
        if name not in objective.shapes
        and prefix + _plain(name) in params
        and not torch.equal(held.detach(), params[prefix + _plain(name)].to(held))
    }
    if stale:  # params= chose some, and the others were trained too
        objective = objective.edited(lambda module: _put(module, stale))
    held = {
        name: buffers[prefix + _plain(name)].to(own_buffer)
        for name, own_buffer in objective.buffers.items()
        if own_buffer.is_floating_point() and prefix + _plain(name) in buffers
    }
    return objective.at(point, buffers=held)


@torch.no_grad()
def _put(module: nn.Module, values: Named) -> None:
    for name, value in values.items():
        module.get_parameter(name).copy_(value)


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")
