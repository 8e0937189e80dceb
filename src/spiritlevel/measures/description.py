"""How many bits the weights take when no more digits are written than the outputs notice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import vjp, vmap

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import flatten, map_tensors
from spiritlevel.measures.base import DIAGONAL, PERMUTATION, Measure, Work
from spiritlevel.measures.examples import units
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.objective import Params
from spiritlevel.objective.singles import alone_in_a_batch, of_examples

TOLERATED = 0.01  # the eps of Hochreiter and Schmidhuber: the square that outputs may change by
MOST_OUTPUTS = 128  # of one example
ROUNDING = 1e-12  # relative to the largest derivative in units of its weight: less is none
SMALL = 1e-6  # relative to those beside it: a smaller weight has no unit of its own
LEAST, MOST = 1e-300, 1e300  # squares of the scale of weights that float64 can work with


@set_apart()
def output_squares(objective: Objective) -> Tensor:
    """The mean over the examples of (d o_k / d w_i)^2, (outputs, parameters), made in float64.

    What is zero in theory is rounding in practice: less than that counts as zero.
    """
    objective = objective.to(torch.float64)
    counts = {_outputs(objective, batch) for batch in objective.batches}
    if len(counts) > 1 or max(counts) > MOST_OUTPUTS:
        raise SpiritlevelError(
            f"examples have {max(counts)} outputs; this needs the same for all, and at most "
            f"{MOST_OUTPUTS}"
        )
    outputs = counts.pop()
    total = torch.zeros(outputs, objective.size, dtype=torch.float64, device=objective.device)

    def one(params: Params, example: Batch) -> Tensor:
        single = alone_in_a_batch(example)
        return squared_jacobian(lambda point: objective.outputs(point, single), params)

    def alone(single: Batch) -> Tensor:
        return one(objective.params, map_tensors(lambda t: t[0], single))

    for rows in of_examples(objective, alone, one, numbers=outputs * objective.size):
        total += rows.sum(0)
    total /= objective.examples
    if not bool(total.isfinite().all()):
        raise SpiritlevelError(
            "the squared derivatives of the outputs are too large for float64; rescale the data"
        )
    return total.masked_fill(silent(objective.vector, objective.spans, total.sum(0)), 0.0)


def silent(vector: Tensor, spans: Mapping[str, slice], squares: Tensor) -> Tensor:
    """Where a derivative is zero, or rounding in units of its weight, which no rescaling changes.

    A weight near zero is measured by its module's; where all of those are zero nothing tells.
    """
    modules: dict[str, list[slice]] = {}
    for name, span in spans.items():
        modules.setdefault(name.rpartition(".")[0], []).append(span)
    weights = vector.square()
    scale = weights.clone()
    for members in modules.values():
        mean = torch.cat([weights[span] for span in members]).mean()
        for span in members:
            scale[span] = torch.where(weights[span] > SMALL**2 * mean, weights[span], mean)
    rounding = ROUNDING**2 * (squares * weights).max()
    return (squares == 0) | ((scale > 0) & (squares * scale <= rounding))


def _outputs(objective: Objective, batch: Batch) -> int:
    """Numbers that one example of the batch has."""
    one = objective.part(batch, 1)
    with torch.no_grad():
        return objective.outputs(objective.params, one).numel() // frozen.examples(one)


def squared_jacobian(
    outputs: Callable[[Params], Tensor], params: Params, *, mapped: bool = True
) -> Tensor:
    """(d o_k / d w_i)^2, (outputs, parameters), by vmap or row after row.

    Derivatives of what vmap makes are not always right: through layer norms they are wrong.
    """
    found = vjp(outputs, params)
    out, pull = found[0], found[1]
    unit = torch.eye(out.numel(), dtype=out.dtype, device=out.device)

    def row(v: Tensor) -> Tensor:
        return flatten(pull(v.reshape(out.shape))[0])

    rows = vmap(row)(unit) if mapped else torch.stack([row(v) for v in unit])
    return rows.square()


def minus_log_box(squares: Tensor, eps: float = TOLERATED) -> Tensor:
    """The B of `flat_minimum_search` from the means of (d o_k / d w_i)^2; differentiable.

    Every weight (column) is seen by some output; where one output does not, |.| has the slope 0.
    """
    seen = squares.sum(0)
    share = squares / seen
    rows = (torch.where(share > 0, share, 1.0).sqrt() * (share > 0)).sum(1)
    n = len(seen)
    return (seen.log().sum() + n * rows.square().sum().log() - n * math.log(eps)) / 2


def _shared_squares(instruments: Instruments) -> Tensor:
    return instruments.once("output squares", lambda: output_squares(instruments.objective))


def flat_minimum_search(instruments: Instruments, eps: float = TOLERATED) -> Estimate:
    """(sum_i log J_i^2 + n log sum_k (sum_i J_ki / J_i)^2 - n log eps) / 2, J_i^2 = sum_k J_ki^2.

    The B(w) of Hochreiter and Schmidhuber (1997): minus the log volume of the largest box of
    weights in which outputs change by eps at most. J_ki is the root of the mean over the examples
    of (d o_k / d w_i)^2. Weights that no output sees would have no digits: they are left out, n
    counts the others, and silent_weights those.
    """
    begin = time.perf_counter()
    squares = _shared_squares(instruments)
    seen = squares.sum(0)
    squares, seen = squares[:, seen > 0], seen[seen > 0]
    if not len(seen):
        raise SpiritlevelError("no output depends on any of the chosen parameters")
    value = float(minus_log_box(squares, eps))
    seconds = time.perf_counter() - begin
    return Estimate(value, matvecs=len(squares), seconds=seconds)


def silent_weights(instruments: Instruments) -> Estimate:
    """The number of weights with d o_k / d w_i = 0 for all outputs k and all examples."""
    begin = time.perf_counter()
    squares = _shared_squares(instruments)
    value = float((squares.sum(0) == 0).sum())
    return Estimate(value, matvecs=len(squares), seconds=time.perf_counter() - begin)


def gaussian_bits(mean: Tensor, spread: Tensor, prior: float) -> float:
    """KL(N(mean, diag spread^2), N(0, prior^2 I)) in bits."""
    mean, spread = mean.double(), spread.double()
    nats = (prior / spread).log() + (spread**2 + mean**2 - prior**2) / (2 * prior**2)
    return float(nats.sum()) / math.log(2)


def description_length(instruments: Instruments) -> Estimate:
    """KL(N(theta, diag s^2), N(0, p^2 I)) in bits, 1 / s_i^2 = n G_ii + 1 / p^2.

    What the weights cost a Gaussian coder with bits back (Hinton and van Camp, 1993), with as much
    noise as n examples leave them: the posterior of Laplace, G the Gauss-Newton matrix of the mean
    loss, n the number of examples or tokens that it is over. p^2 is the mean of theta^2.
    """
    begin, objective = time.perf_counter(), instruments.objective
    theta, diagonal = objective.vector.double(), instruments.diagonal
    if not bool(theta.any()):
        raise SpiritlevelError("all parameters are zero: their code has no scale")
    square = float(theta.square().mean())
    prior = math.sqrt(square)
    bits = math.nan
    if LEAST < square < MOST:
        spread = (units(objective) * diagonal.values + prior**-2).rsqrt()
        bits = gaussian_bits(theta, spread, prior)
    if not math.isfinite(bits):
        raise SpiritlevelError(
            f"float64 cannot hold the bits of weights of the size {prior:.3g}; rescale the weights "
            "or the data"
        )
    return Estimate(
        bits,
        matvecs=1,
        seconds=time.perf_counter() - begin,
        status=Status.EXACT if diagonal.exact else Status.BUDGET,
        remedy=""
        if diagonal.exact
        else "the Gauss-Newton diagonal of so many outputs is drawn at random: choose fewer "
        "outputs with heads=",
    )


ENTRIES: dict[str, Measure] = {
    "flat_minimum_search": Measure(
        flat_minimum_search,
        title="flat minimum search",
        family="description",
        invariances=PERMUTATION,
        reference="Hochreiter and Schmidhuber (1997)",
        cost="one gradient for each output and example",
        is_sharpness=True,
        work=Work(diagonals=1),
    ),
    "silent_weights": Measure(
        silent_weights,
        title="silent weights",
        family="description",
        invariances=(*DIAGONAL, "output"),
        cost="one gradient for each output and example",
        work=Work(diagonals=1),
        reading="larger means more weights that no output sees",
    ),
    "description_length": Measure(
        description_length,
        title="description length",
        family="description",
        invariances=PERMUTATION,
        reference="Hinton and van Camp (1993)",
        cost="an exact diagonal",
        work=Work(diagonals=1),
        reading="larger means more bits for the weights",
    ),
}
