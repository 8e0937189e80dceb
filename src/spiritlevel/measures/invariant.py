"""Numbers that no rescaling of a network changes, or none of whole layers."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.operator import Operator, scaled
from spiritlevel.curvature import ggn
from spiritlevel.measures.base import (
    DIAGONAL,
    LAYER,
    ONE_END,
    PROBES,
    TOP,
    TRACE,
    TWO,
    Measure,
    Work,
)
from spiritlevel.measures.instruments import Instruments
from spiritlevel.spectral import eigenpairs, probe
from spiritlevel.spectral.probes import within


def adaptive_spectral(instruments: Instruments) -> Estimate:
    """||diag|theta| H diag|theta| ||_2: worst-case curvature relative to each parameter.

    The second-order form of adaptive sharpness (Kwon et al., 2021, elementwise).
    """
    operator = scaled(instruments.hessian, instruments.objective.vector.abs())
    top = eigenpairs(
        operator,
        which="magnitude",
        tol=instruments.tol,
        budget=instruments.budget,
        seed=instruments.seed,
    )[0]
    return replace(top, value=abs(top.value))


def fisher_rao(instruments: Instruments) -> Estimate:
    """sqrt(theta' G theta), the Fisher-Rao norm (Liang et al., 2019).

    G is the Gauss-Newton matrix, which is the Fisher where the loss is a log-likelihood.
    """
    begin = time.perf_counter()
    theta = instruments.objective.vector
    square = float(theta.double() @ (ggn(instruments.objective) @ theta).double())
    return Estimate(math.sqrt(max(square, 0.0)), matvecs=1, seconds=time.perf_counter() - begin)


def relative_flatness(instruments: Instruments, layer: str | None = None) -> Estimate:
    """sum over s, s' of <w_s, w_s'> tr H_ss', w_s the weights into unit s of one layer.

    Petzka et al. (2021), for the last but one weight matrix unless `layer` names another. With
    W W' = R R' it is the trace of (R kron I)' H (R kron I): rank times inputs unit vectors.
    """
    objective = instruments.objective
    name = _feature_layer(instruments) if layer is None else layer
    a("layer", name, str, "the name of a weight matrix")
    if name not in objective.shapes or len(objective.shapes[name]) < 2:
        raise SpiritlevelError(
            f"relative_flatness needs a weight matrix; {name!r} is none of the parameters "
            f"{', '.join(n for n, s in objective.shapes.items() if len(s) > 1)}"
        )
    span, shape = objective.spans[name], objective.shapes[name]
    weights = objective.params[name].reshape(shape[0], -1)
    u, sizes, _ = torch.linalg.svd(weights, full_matrices=False)
    compressed = _compressed(instruments.hessian, span, u * sizes)
    top = eigenpairs(compressed, which="magnitude", tol=0.1, budget=30, seed=instruments.seed)
    found = probe(
        compressed,
        stop=within(instruments.rtol, "trace"),
        budget=instruments.budget,
        least=instruments.least_probes,
        deflate=top.leading,
        images=top.leading_images,
        seed=instruments.seed,
    ).trace()
    return replace(found, matvecs=found.matvecs + top[0].matvecs)


def _feature_layer(instruments: Instruments) -> str:
    matrices = [name for name, shape in instruments.objective.shapes.items() if len(shape) > 1]
    if not matrices:
        raise SpiritlevelError("relative_flatness needs a weight matrix; this model has none")
    return matrices[-2] if len(matrices) > 1 else matrices[-1]


def _compressed(operator: Operator, span: slice, root: Tensor) -> Operator:
    """(R kron I)' A (R kron I) on the block of one layer, (units, inputs) row by row."""
    units, rank = root.shape
    inputs = (span.stop - span.start) // units

    def matvec(v: Tensor) -> Tensor:
        columns = v.shape[1:]
        full = v.new_zeros((operator.size, *columns))
        full[span] = torch.tensordot(root, v.reshape(rank, inputs, *columns), 1).reshape(
            -1, *columns
        )
        image = operator.matvec(full)[span].reshape(units, inputs, *columns)
        return torch.tensordot(root.T, image, 1).reshape(-1, *columns)

    return Operator(rank * inputs, operator.dtype, operator.device, matvec, name="one layer")


ENTRIES: dict[str, Measure] = {
    "adaptive_spectral": Measure(
        adaptive_spectral,
        title="adaptive curvature",
        family="curvature",
        invariances=DIAGONAL,
        reference="Kwon et al. (2021), second order",
        cost=TOP,
        is_sharpness=True,
        points=TWO,
        work=ONE_END,
    ),
    "fisher_rao": Measure(
        fisher_rao,
        title="Fisher-Rao norm",
        family="norm",
        invariances=DIAGONAL,
        reference="Liang et al. (2019)",
        cost="one product",
        work=Work(gauss_newton=2),
        reading="larger means more capacity",
    ),
    "relative_flatness": Measure(
        relative_flatness,
        title="relative flatness",
        family="curvature",
        invariances=LAYER,
        reference="Petzka et al. (2021)",
        cost=TRACE,
        is_sharpness=True,
        work=PROBES,
    ),
}
