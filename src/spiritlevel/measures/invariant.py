"""Numbers that no rescaling of a network changes, or none of whole layers."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, format_value
from spiritlevel.base.operator import Operator, scaled
from spiritlevel.base.progress import bar
from spiritlevel.curvature import ggn
from spiritlevel.measures import fused
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
from spiritlevel.measures.weights import matrices_of
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # of theta' G theta, relative
LOOSE = 0.01  # relative error of an eigenvalue of one unit: there are many


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
    theta, matrix = instruments.objective.vector, ggn(instruments.objective)
    image = matrix @ theta
    square = float(theta.double() @ image.double())
    size = float(theta.double().norm() * image.double().norm())
    if not matrix.psd and square < -ROUNDING[theta.dtype] * size:
        raise SpiritlevelError(
            "this loss is not convex in the outputs: its Gauss-Newton matrix is not positive "
            "semi-definite, and theta' G theta, of which this is the root, is "
            f"{format_value(square, 0.01 * abs(square))}"
        )
    return Estimate(math.sqrt(max(square, 0.0)), matvecs=1, seconds=time.perf_counter() - begin)


def frobenius_spectral(instruments: Instruments) -> Estimate:
    """lambda_max(D H D), D the Frobenius norm of the tensor that each parameter is in.

    Rangamani et al. (2019): curvature on the quotient by rescalings of whole layers, in the metric
    sum_k <u_k, v_k> / ||W_k||_F^2, with each bias as a tensor of its own, and each map where one
    tensor holds several (queries, keys, values).
    """
    params, numbers = instruments.objective.params, fused.maps(instruments)
    norms = [fused.sizes(value, numbers[name]) for name, value in params.items()]
    return eigenpairs(
        scaled(instruments.hessian, torch.cat(norms)),
        tol=instruments.tol,
        budget=instruments.budget,
        seed=instruments.seed,
    )[0]


def relative_flatness(instruments: Instruments, layer: str | None = None) -> Estimate:
    """sum over s, s' of <w_s, w_s'> tr H_ss', w_s the weights into unit s of one layer.

    Petzka et al. (2021), for the last but one weight matrix unless `layer` names another. With
    W W' = R R' it is the trace of (R kron I)' H (R kron I): rank times inputs unit vectors.
    """
    name = _matrix(instruments, layer)
    weights = instruments.objective.params[name].flatten(1)
    u, sizes, _ = torch.linalg.svd(weights, full_matrices=False)
    compressed = _compressed(instruments.hessian, instruments.objective.spans[name], u * sizes)
    return instruments.probed(compressed, "trace").trace()


def relative_flatness_largest(instruments: Instruments, layer: str | None = None) -> Estimate:
    """sum over s of ||w_s||^2 lambda_max(H_ss), w_s the weights into unit s of one layer.

    The form with eigenvalues of Petzka et al. (2021), as their code has it: the blocks of single
    units only. For the last but one weight matrix unless `layer` names another.
    """
    begin, objective = time.perf_counter(), instruments.objective
    name = _matrix(instruments, layer)
    start, inputs = objective.spans[name].start, objective.params[name][0].numel()
    squares = objective.params[name].flatten(1).double().square().sum(1).tolist()
    one, tops = objective.vector.new_ones(1, 1), []
    with bar(len(squares), "relative flatness") as progress:
        for unit in range(len(squares)):
            span = slice(start + unit * inputs, start + (unit + 1) * inputs)
            block = _compressed(instruments.hessian, span, one)
            tops.append(_loosely(instruments, block))
            progress.update()
    worst = next((top for top in tops if not top.converged), tops[0])
    return Estimate(
        sum(square * top.value for square, top in zip(squares, tops, strict=True)),
        bound=sum(square * top.error for square, top in zip(squares, tops, strict=True)),
        matvecs=sum(top.matvecs for top in tops),
        seconds=time.perf_counter() - begin,
        status=worst.status,
        remedy=worst.remedy,
    )


def _loosely(instruments: Instruments, block: Operator) -> Estimate:
    """The largest eigenvalue of one of many blocks."""
    budget, seed = instruments.budget, instruments.seed
    return eigenpairs(block, tol=LOOSE, budget=budget, seed=seed, leading=0)[0]


def _matrix(instruments: Instruments, layer: str | None) -> str:
    """The weight matrix that was asked for, or the last but one: of the features.

    Its rows are units, and it is one map: else rescalings of whole layers would change the sums.
    """
    objective = instruments.objective
    matrices = [name for name in matrices_of(objective) if _rows_are_units(objective, name)]
    if not matrices:
        raise SpiritlevelError("relative flatness needs a weight matrix; this model has none")
    if layer is None:
        layer = matrices[-2] if len(matrices) > 1 else matrices[-1]
    a("layer", layer, str, "the name of a weight matrix")
    if layer in matrices and int(fused.maps(instruments)[layer].max()) > 0:
        raise SpiritlevelError(
            f"relative flatness is of one map, and {layer} holds or joins several (queries and "
            f"keys, features side by side); choose another layer= of {', '.join(matrices)}"
        )
    if layer not in matrices:
        raise SpiritlevelError(
            f"relative flatness needs a weight matrix; {layer!r} is none of the parameters "
            f"{', '.join(matrices)}"
        )
    return layer


def _rows_are_units(objective: Objective, name: str) -> bool:
    """Not of embeddings and transposed convolutions, whose rows are inputs."""
    module = objective.module.get_submodule(name.rpartition(".")[0])
    return not isinstance(module, (nn.Embedding, nn.EmbeddingBag, _ConvTransposeNd))


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
    "frobenius_spectral": Measure(
        frobenius_spectral,
        title="layer-relative curvature",
        family="curvature",
        invariances=LAYER,
        reference="Rangamani et al. (2019)",
        cost=TOP,
        is_sharpness=True,
        points=TWO,
        work=ONE_END,
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
    "relative_flatness_largest": Measure(
        relative_flatness_largest,
        title="relative flatness, top",
        family="curvature",
        invariances=LAYER,
        reference="Petzka et al. (2021)",
        cost="10 products for every unit of the layer",
        is_sharpness=True,
        points=TWO,
    ),
}
