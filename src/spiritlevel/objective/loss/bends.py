"""The Hessian of a loss in the outputs: closed forms without cancellation, else autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jacrev

from spiritlevel.base.errors import SpiritlevelError, first_line
from spiritlevel.base.tensors import map_tensors
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss.base import Loss


def bend(loss: Loss, out: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
    """(grad_f^2 sum of losses) tangent, at the outputs of a batch."""
    if loss.strength is None:
        return _differentiated(loss, out, tangent, batch)
    a = loss.strength(out, batch)
    if loss.likelihood == "gaussian":
        return a * tangent
    if loss.likelihood == "bernoulli":
        return a * out.sigmoid() * (-out).sigmoid() * tangent
    axis = loss.class_axis
    p = out.softmax(axis)
    # relative to the likeliest class: p_k t_k of that one would hide all the others
    away = tangent - tangent.gather(axis, out.argmax(axis, keepdim=True))
    return a * p * (away - (p * away).sum(axis, keepdim=True))


def _differentiated(loss: Loss, out: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
    """By autograd, in float64 where the loss takes it."""
    on_outputs = loss.on_outputs
    assert on_outputs is not None
    with torch.enable_grad():
        z = out.detach().double().requires_grad_()
        try:
            total = on_outputs(z, raised(batch))[0]
        except RuntimeError:  # tensors of one precision inside the loss
            z = out.detach().requires_grad_()
            total = on_outputs(z, batch)[0]
        (slope,) = torch.autograd.grad(total, z, create_graph=True)
        if not slope.requires_grad:  # linear in the outputs
            return torch.zeros_like(out)
        try:
            (found,) = torch.autograd.grad(slope, z, tangent.to(z), materialize_grads=True)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            raise SpiritlevelError(
                f"torch has no second derivative of this loss ({first_line(error)}): write it in "
                "operations that have one, or ask for what needs no curvature"
            ) from error
    return found.to(out)


def root(loss: Loss, out: Tensor, batch: Batch) -> Tensor:
    """S with S S' = grad_f^2 l of one example, (outputs, columns); for a known likelihood.

    For "softmax" the columns are sqrt(a p_c) (e_c - p), unit by unit.
    """
    assert loss.strength is not None
    a = loss.strength(out, batch).expand_as(out) if out.ndim else loss.strength(out, batch)
    if loss.likelihood == "gaussian":
        return a.reshape(-1).sqrt().diag()
    if loss.likelihood == "bernoulli":
        return (a * out.sigmoid() * (-out).sigmoid()).reshape(-1).sqrt().diag()
    axis = loss.class_axis % out.ndim
    z, units = out.movedim(axis, -1), a.movedim(axis, -1)
    p = z.softmax(-1)
    classes = z.shape[-1]
    columns = torch.eye(classes, dtype=z.dtype, device=z.device) - p.unsqueeze(-1)
    # 1 - p of the likeliest class is the sum of the others
    top = torch.arange(classes, device=z.device) == z.argmax(-1, keepdim=True)
    rest = torch.where(top, 0.0, p).sum(-1, keepdim=True).unsqueeze(-1)
    columns = torch.where(top.unsqueeze(-1) & top.unsqueeze(-2), rest, columns)
    columns = columns * (units[..., :1] * p).sqrt().unsqueeze(-2)
    return _laid_out(columns.reshape(-1, classes, classes), out.shape, axis)


def combined(loss: Loss, out: Tensor, batch: Batch, signs: Tensor) -> Tensor:
    """S e for signs e in the shape of the outputs, without laying S out."""
    assert loss.strength is not None
    a = loss.strength(out, batch)
    if loss.likelihood == "gaussian":
        return a.sqrt() * signs
    if loss.likelihood == "bernoulli":
        return (a * out.sigmoid() * (-out).sigmoid()).sqrt() * signs
    axis = loss.class_axis
    p = out.softmax(axis)
    top = torch.zeros_like(p, dtype=torch.bool).scatter(axis, out.argmax(axis, keepdim=True), True)
    each = p.sqrt() * signs
    rest, others = (torch.where(top, 0.0, t).sum(axis, keepdim=True) for t in (p, each))
    mine = each * rest - p * others  # of the likeliest class, where 1 - p would cancel
    return a.sqrt() * torch.where(top, mine, each - p * each.sum(axis, keepdim=True))


def _laid_out(blocks: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """(units, classes, columns) as one matrix over all outputs, in the order of the outputs."""
    units, classes, columns = blocks.shape
    table = torch.zeros(units, classes, units, columns, dtype=blocks.dtype, device=blocks.device)
    same = torch.eye(units, dtype=torch.bool, device=blocks.device)[:, None, :, None]
    table = torch.where(same, blocks.unsqueeze(2), table)
    moved = [*shape[:axis], *shape[axis + 1 :], shape[axis]]
    laid = table.reshape(*moved, units * columns).movedim(len(moved) - 1, axis)
    return laid.reshape(-1, units * columns)


def matrix(loss: Loss, out: Tensor, batch: Batch) -> Tensor:
    """grad_f^2 l of one example as a square matrix, by autograd."""
    on_outputs = loss.on_outputs
    assert on_outputs is not None
    flat = out.detach().reshape(-1)

    def of(z: Tensor, given: Batch) -> Tensor:
        # backward over backward: few losses know forward mode
        return jacrev(grad(lambda z: on_outputs(z.reshape(out.shape), given)[0]))(z)

    try:
        found = of(flat.double(), raised(batch)).to(out)
    except RuntimeError:  # tensors of one precision inside the loss
        found = of(flat, batch)
    return (found + found.mT) / 2


def raised(batch: Batch) -> Batch:
    """The batch in float64."""
    return map_tensors(lambda t: t.double() if t.is_floating_point() else t, batch)
