"""The Hessian and its kin as operators: Gauss-Newton, Fisher, output gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.func import jvp

from spiritlevel.base.doors import one_of
from spiritlevel.base.errors import SpiritlevelError, clause
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import kept_rng, set_apart, without_tf32
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import flatten, gaussian, generator, unflatten
from spiritlevel.curvature.engine import CompileChoice, Engine
from spiritlevel.curvature.ladder import (
    TOLERANCE,
    Rung,
    climb_merged,
    difference_of_gradients,
    jvp_of_gradient,
)
from spiritlevel.curvature.merging import SAME, Merging, merging
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss.bends import bend
from spiritlevel.objective.objective import Objective, Params, only_objectives
from spiritlevel.objective.telling import telling

FisherKind = Literal["true", "sampled", "empirical"]
# (outputs, J v, batch, number of the batch) -> A J v, for an A in output space
OutputAction = Callable[[Tensor, Tensor, Batch, int], Tensor]


@set_apart()
def hessian(
    objective: Objective, *, compile: CompileChoice = "auto", rung: str | None = None
) -> Operator:
    """H = (1/n) sum_i grad^2 l_i(theta).

    `rung` forces one way of making products; else the ladder picks the first that agrees with a
    finite difference. `compile="auto"` compiles once the products have cost as much as compiling;
    on a CPU only those that cannot be played.
    """
    only_objectives(objective)
    one_of("compile", compile, ("auto", True, False))
    return hessian_by(climb_merged(objective, rung), objective, compile=compile)


def hessian_by(way: Rung, objective: Objective, *, compile: CompileChoice = False) -> Operator:
    """H by a way that was checked before, perhaps at another point of the same function."""
    engine = _engine(objective, way, compile)
    return _operator(
        objective,
        engine,
        "hessian",
        how=way.describe(),
        check=way.check,
        rounding=way.rounding,
    )


def _engine(objective: Objective, way: Rung, compile: CompileChoice) -> Engine:
    if way.product is difference_of_gradients:
        wide = way.checked_in == torch.float64  # differences need the digits
        objective = objective.to(torch.float64) if wide else objective

    def product(of: Objective, batch: Batch, _: int, v: Tensor) -> Tensor:
        return way.product(of, batch, [v])[0]

    whole = way.product is jvp_of_gradient and objective.seed is None
    return Engine(
        objective,
        product,
        merging=way.merging,
        compile=compile if way.product is not difference_of_gradients else False,
        rounding=way.rounding,
        record=way.product is not difference_of_gradients,
        whole=whole,
    )


def ggn(objective: Objective) -> Operator:
    """G = (1/n) sum_i J_i' (grad_f^2 l_i) J_i, the Gauss-Newton matrix.

    Through the loss's own Hessian in output space, in closed form for cross-entropies and squared
    errors; positive semi-definite for a loss that is convex in the outputs (Schraudolph, 2002).
    """
    only_objectives(objective)
    if objective.loss.on_outputs is None:
        raise _needs_outputs("ggn")

    def action(out: Tensor, tangent: Tensor, batch: Batch, _: int) -> Tensor:
        return bend(objective.loss, out, tangent, batch)

    # of an altered loss, convexity would have to be seen on the data
    plain = objective.loss.likelihood is not None and not objective.loss.altered
    return _outer(objective, action, "ggn", psd=plain)


def fisher(objective: Objective, kind: FisherKind = "true", *, seed: int = 0) -> Operator:
    """F = (1/n) sum_i E_y [grad l_i grad l_i'], with y from the model or from the data.

    "true": the expectation over y ~ p(y|x_i) in closed form. "sampled": one y drawn for each
    example. "empirical": the y of the data (not an estimate of the Fisher: Kunstner et al., 2019).
    Units are the examples, or the tokens where labels are tokens.
    """
    only_objectives(objective)
    actions = {"true": _true_fisher, "sampled": _sampled_fisher, "empirical": _empirical_fisher}
    one_of("kind", kind, actions)
    seeded(seed)
    if objective.loss.on_outputs is None:
        raise _needs_outputs("fisher")
    if kind != "empirical" and objective.loss.likelihood is None:
        raise SpiritlevelError(
            f"fisher(kind={kind!r}) needs a loss whose likelihood is known: cross_entropy, "
            'binary_cross_entropy_with_logits or mse_loss; use ggn() or kind="empirical"'
        )
    if kind != "empirical" and objective.loss.altered:
        raise SpiritlevelError(
            f"fisher(kind={kind!r}) has no meaning with {objective.loss.altered} in the loss; "
            'use ggn() or kind="empirical"'
        )
    action = actions[kind](objective)
    if kind == "sampled":
        action = functools.partial(action, seed=int(seed))
    return _outer(objective, action, f"{kind} fisher", psd=not objective.loss.altered)


def output_gradients(objective: Objective) -> Operator:
    """(1/n) sum_i sum_k grad f_k(x_i) grad f_k(x_i)': the AEFM of Wu, Wang and Su (2022).

    Unlike the empirical Fisher it does not vanish where the data are fitted. Units with weights
    count by them, class weights too.
    """
    only_objectives(objective)
    weights = unit_weights(objective)

    def action(out: Tensor, tangent: Tensor, batch: Batch, _: int) -> Tensor:
        return tangent * weights(out, batch)

    return _outer(objective, action, "output gradients", psd=not objective.loss.altered)


def unit_weights(objective: Objective) -> Callable[[Tensor, Batch], Tensor | float]:
    """The weights of the units of a batch, in a scale in which their sum is the count."""
    loss = objective.loss
    if loss.class_weighted and loss.likelihood != "bernoulli":
        return _class_weights(objective)
    return loss.weights or (lambda out, batch: 1.0)


def _class_weights(objective: Objective) -> Callable[[Tensor, Batch], Tensor]:
    strength = objective.loss.strength
    if objective.loss.likelihood != "softmax" or strength is None:
        raise SpiritlevelError(
            "what class weights do to this loss is not known; use cross_entropy of the logits, or "
            "drop the class weights"
        )

    def summed(batch: Batch) -> float:
        here = objective.here(batch)
        with torch.no_grad(), kept_rng():
            out = objective.outputs(objective.params, here)
            return float(strength(out, here).double().sum())

    # 1 for labels; PyTorch divides by the number of examples where targets are probabilities
    scale = objective.mean(summed)
    return lambda out, batch: strength(out, batch) / scale


def _true_fisher(objective: Objective) -> OutputAction:
    loss = objective.loss
    assert loss.weights is not None

    def action(out: Tensor, tangent: Tensor, batch: Batch, _: int) -> Tensor:
        weight = loss.weights(out, batch)  # type: ignore[misc]
        known = replace(loss, strength=lambda out, batch: weight)
        d = loss.averaged(out)
        if loss.likelihood == "softmax":
            return bend(known, out, tangent, batch)
        if loss.likelihood == "bernoulli":
            return bend(known, out, tangent, batch) / d**2
        return weight * tangent * 2 / d

    return action


def _scores(objective: Objective, out: Tensor, batch: Batch) -> Tensor:
    """d(sum of losses)/d(outputs): one row per unit."""
    z = out.detach().requires_grad_()
    return torch.autograd.grad(objective.loss.on_outputs(z, batch)[0], z)[0]  # type: ignore[misc]


def _project(objective: Objective, out: Tensor, tangent: Tensor, batch: Batch, s: Tensor) -> Tensor:
    """s_u <s_u, tangent_u> for every unit u, weighted once."""
    loss = objective.loss
    axes = [loss.class_axis] if loss.likelihood == "softmax" else list(range(1, out.ndim))
    weight = loss.weights(out, batch)  # type: ignore[misc]
    inner = (s * tangent).sum(axes, keepdim=True) if axes else s * tangent
    return torch.where(weight > 0, s * inner / weight, 0)


def _empirical_fisher(objective: Objective) -> OutputAction:
    def action(out: Tensor, tangent: Tensor, batch: Batch, _: int) -> Tensor:
        return _project(objective, out, tangent, batch, _scores(objective, out, batch))

    return action


def _sampled_fisher(objective: Objective) -> Callable[..., Tensor]:
    def action(out: Tensor, tangent: Tensor, batch: Batch, number: int, *, seed: int) -> Tensor:
        draws = generator((seed * 1_000_003 + number) % 2**63)  # the same draws in every product
        drawn = objective.loss.draw(out.detach(), batch, draws)  # type: ignore[misc]
        return _project(objective, out, tangent, batch, _scores(objective, out, drawn))

    return action


# Products of the form J' A J ---------------------------------------------------------------------


def _forward_mode(outputs: Callable[[Params], Tensor], point: Params, v: Params) -> Tensor:
    return jvp(outputs, (point,), (v,))[1]


def _double_vjp(outputs: Callable[[Params], Tensor], point: Params, v: Params) -> Tensor:
    """J v as the derivative of u -> v'(J'u): no forward mode needed."""
    leaves = {k: p.clone().requires_grad_() for k, p in point.items()}
    out = outputs(leaves)
    u = torch.zeros_like(out, requires_grad=True)
    back = torch.autograd.grad(
        out, list(leaves.values()), grad_outputs=u, create_graph=True, materialize_grads=True
    )
    along = [(b, t) for b, t in zip(back, v.values(), strict=True) if b.requires_grad]
    if not along:
        return torch.zeros_like(out)
    pieces, tangents = zip(*along, strict=True)
    return torch.autograd.grad(pieces, u, grad_outputs=tangents)[0]


PUSHES = {"forward mode": _forward_mode, "double vjp": _double_vjp}


@set_apart()
def _outer(objective: Objective, action: OutputAction, name: str, *, psd: bool) -> Operator:
    """(1/n) sum over batches of J' A J."""
    found = merging(objective)
    try:
        push, how, check = _pick_push(objective, found)
    except SpiritlevelError:
        if not found:
            raise
        found = Merging()
        push, how, check = _pick_push(objective, found)

    def column(of: Objective, batch: Batch, number: int, v: Tensor) -> Tensor:
        def outputs(params: Params) -> Tensor:
            return of.outputs(params, batch)

        tangent = push(outputs, of.params, of.named(v)).detach()
        point = {k: p.clone().requires_grad_() for k, p in of.params.items()}
        out = outputs(point)
        bent = action(out.detach(), tangent, of.here(batch), number)
        pieces = torch.autograd.grad(
            out, list(point.values()), grad_outputs=bent, materialize_grads=True
        )
        return torch.cat([piece.reshape(-1) for piece in pieces])

    engine = Engine(objective, column, merging=found)
    made = _operator(objective, engine, name, how=how, check=check)
    return replace(made, psd=psd)


def _pick_push(objective: Objective, merged: Merging) -> tuple[Callable[..., Tensor], str, float]:
    """Forward mode if the model has it, checked against a difference of outputs."""
    small = telling(objective, 2)
    made_with = merged.seen(small)
    batch = small.batches[0]
    v = gaussian(small.size, generator(0), small.vector)
    v /= v.norm()
    h = 1e-5 if small.dtype == torch.float64 else 1e-2
    refused = ""
    with objective.smooth():
        ahead, behind = (
            small.outputs(unflatten(small.vector + s * h * v, small.shapes), batch) for s in (1, -1)
        )
        truth = (ahead - behind) / (2 * h)
        for name, push in PUSHES.items():
            try:
                found = push(lambda p: made_with.outputs(p, batch), small.params, small.named(v))
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                refused += f"; not {name}: {clause(error)}"
                continue
            _refuse_one_sided(made_with, batch, v, found)
            scale = max(float(truth.norm()), float(found.norm()))
            if merged and not _same_push(push, small, made_with, v):
                break
            gap = float((found - truth).norm()) / scale if scale else 0.0
            return push, name + refused, gap
    raise SpiritlevelError(f"the model's outputs cannot be differentiated{refused}")


def _same_push(push: Callable[..., Tensor], small: Objective, merged: Objective, v: Tensor) -> bool:
    """Whether J v is that of the model as it is."""
    with without_tf32():
        found, truth = (
            push(lambda p, o=o: o.outputs(p, o.batches[0]), small.params, small.named(v))
            for o in (merged, small)
        )
    return bool((found - truth).norm() <= SAME[small.dtype] * truth.norm())


def _refuse_one_sided(small: Objective, batch: Batch, v: Tensor, found: Tensor) -> None:
    """Refuse a model for which |Jv|^2 is not v'J'(Jv): J' A J would not be symmetric."""
    point = {k: p.clone().requires_grad_() for k, p in small.params.items()}
    slopes = torch.autograd.grad(
        small.outputs(point, batch),
        list(point.values()),
        grad_outputs=found.detach(),
        materialize_grads=True,
    )
    size = float(found.square().sum())
    gap = abs(float(flatten(dict(zip(point, slopes, strict=True))) @ v) - size)
    if gap > TOLERANCE[small.dtype] * size:
        raise SpiritlevelError(
            f"forward and backward derivatives of this model differ by {gap / size:.0e}: an "
            "nn.Embedding(padding_idx=...) whose padding reaches the outputs (mask it, or leave "
            "padding_idx out), or a backward pass of the model's own that is not the derivative"
        )


def _operator(
    objective: Objective,
    engine: Engine,
    name: str,
    *,
    how: str = "",
    check: float | None = None,
    rounding: float | None = None,
) -> Operator:
    return Operator(
        size=objective.size,
        dtype=objective.dtype,
        device=objective.device,
        matvec=engine.matvec,
        spans=objective.spans,
        name=name,
        how=how,
        check=check,
        rounding=rounding,
        remark=lambda: engine.note,
        ahead=engine.expect,
    )


def _needs_outputs(name: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"{name} must see outputs and loss apart; give batches (x, y) with loss(outputs, y), or a "
        "Hugging Face model whose loss is the cross-entropy of its logits"
    )
