"""Norms of the weight matrices, their products and sums, also over the margin.

Jiang et al. (2020) list them; equation numbers are theirs. What is reported is their mu itself,
not sqrt(mu / m), and its logarithm where they take one. Products and sums run over all weight
matrices of the network (`weights_of`), whatever lies between them. In a chain of layers no
rescaling of whole layers changes a product; beside gains of norms, shortcuts and attention some do.
Whether a BatchNorm is first multiplied into the layer before it is chosen by `fold`, and which
spectral norm a convolution has by `convolution`: that of its "kernel" as a matrix (out, the rest),
or that of the "periodic" convolution on images of the size of its inputs, exactly, by Fourier
transform. That is not the norm of a convolution that pads with zeros, though near to it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.doors import one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import map_tensors
from spiritlevel.measures.base import JIANG, PERMUTATION, UNIT, Measure, Work
from spiritlevel.measures.convolutions import grids, periodic_norm, spectral_norm
from spiritlevel.measures.folding import folded, folded_start
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.margins import PASSES, SHARE, positive_margin, timed
from spiritlevel.measures.paths import path_norm_of
from spiritlevel.measures.stacks import chain_of
from spiritlevel.measures.weights import Weight, refuse_derived, weights_of
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen

KERNEL, PERIODIC = "kernel", "periodic"


# Products and sums ---------------------------------------------------------------------------


def log_spectral_product(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False
) -> Estimate:
    """log of the product over the weight matrices of ||W||_2^2; equation 32."""
    return timed(lambda: _log_product(_spectral(instruments, convolution, fold)))


def log_spectral_sum(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False
) -> Estimate:
    """log(d (prod ||W||_2^2)^(1/d)) of d weight matrices; equation 35.

    The least sum of their squares that rescaling the layers of a chain can reach.
    """
    return timed(lambda: _log_sum(_spectral(instruments, convolution, fold)))


def log_frobenius_product(instruments: Instruments, fold: bool = False) -> Estimate:
    """log of the product over the weight matrices of ||W||_F^2; equation 37."""
    return timed(lambda: _log_product(_frobenius(instruments, fold)))


def log_frobenius_sum(instruments: Instruments, fold: bool = False) -> Estimate:
    """log(d (prod ||W||_F^2)^(1/d)) of d weight matrices; equation 39.

    The least sum of their squares that rescaling the layers of a chain can reach.
    """
    return timed(lambda: _log_sum(_frobenius(instruments, fold)))


def stable_rank_sum(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False
) -> Estimate:
    """The sum over the weight matrices of ||W||_F^2 / ||W||_2^2; equation 33.

    A matrix that a model fuses of several (queries, keys and values in one linear layer) is one:
    where there is none such, no rescaling of whole layers changes the sum.
    """
    return timed(lambda: _ratio(instruments, convolution, fold))


def parameter_norm(instruments: Instruments, fold: bool = False) -> Estimate:
    """The sum over the weight matrices of ||W||_F^2; equation 42. Biases and gains do not count."""
    return timed(lambda: sum(_frobenius(instruments, fold)))


def l1_path_norm(instruments: Instruments) -> Estimate:
    """sum over paths of prod |w|: the network of absolute weights on an input of ones.

    Neyshabur et al. (2015), for chains of layers without norms; biases are weights of a constant
    input.
    """
    return timed(lambda: float(l1_path_norms(instruments.objective).sum()))


@set_apart()
@torch.no_grad()
def l1_path_norms(objective: Objective) -> Tensor:
    """The same for every output by itself."""
    exact = objective.to(torch.float64)
    refuse_derived(exact)
    if any(layer.normed for layer in chain_of(exact, "the l1 path norm")):
        raise SpiritlevelError("the l1 path norm needs layers without norms behind them")
    batch = map_tensors(lambda t: torch.ones_like(t) if t.is_floating_point() else t, exact.few(1))
    fixed = {n: b.abs() for n, b in exact.buffers.items() if b.is_floating_point()}
    positive = {name: p.abs() for name, p in exact.params.items()}
    there = exact.edited(_absolute).at(positive, buffers=fixed)
    found = there.outputs(there.params, batch)
    return found.reshape(frozen.examples(batch), -1)[0]


# Over the margin -----------------------------------------------------------------------------


def log_spectral_product_over_margin(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(prod ||W||_2^2 / gamma^2), gamma the margin; equation 31."""
    return timed(
        lambda: _log_product(_spectral(instruments, convolution, fold), _gamma(instruments, share)),
        passes=PASSES,
    )


def log_spectral_sum_over_margin(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(d (prod ||W||_2^2 / gamma^2)^(1/d)), gamma the margin; equation 34."""
    return timed(
        lambda: _log_sum(_spectral(instruments, convolution, fold), _gamma(instruments, share)),
        passes=PASSES,
    )


def log_frobenius_product_over_margin(
    instruments: Instruments, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(prod ||W||_F^2 / gamma^2), gamma the margin; equation 36."""
    return timed(
        lambda: _log_product(_frobenius(instruments, fold), _gamma(instruments, share)),
        passes=PASSES,
    )


def log_frobenius_sum_over_margin(
    instruments: Instruments, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(d (prod ||W||_F^2 / gamma^2)^(1/d)), gamma the margin; equation 38."""
    return timed(
        lambda: _log_sum(_frobenius(instruments, fold), _gamma(instruments, share)), passes=PASSES
    )


def log_spectral_bound_from_zero(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(prod ||W||_2^2 / gamma^2 * sum ||W||_F^2 / ||W||_2^2); equation 30.

    The same as log_spectral_bound_from_init with zeros as the weights before training.
    """

    def value() -> float:
        spectral = _spectral(instruments, convolution, fold)
        main = _log_product(spectral, _gamma(instruments, share))
        return main + math.log(_ratio(instruments, convolution, fold))

    return timed(value, passes=PASSES)


def path_norm_over_margin(instruments: Instruments, share: float = SHARE) -> Estimate:
    """sum over paths of prod w^2 / gamma^2, gamma the margin; equation 43, see path_norm."""
    return timed(
        lambda: (path_norm_of(instruments.objective) / _gamma(instruments, share)) ** 2,
        passes=PASSES,
    )


# From the weights before training ------------------------------------------------------------


def frobenius_distance(instruments: Instruments, fold: bool = False) -> Estimate:
    """The sum over the weight matrices of ||W - W_0||_F^2, W_0 before training; equation 40."""
    return timed(lambda: sum(_squared_frobenius(w) for w in _moved(instruments, fold)))


def spectral_distance(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False
) -> Estimate:
    """The sum over the weight matrices of ||W - W_0||_2^2, W_0 before training; equation 41."""
    return timed(
        lambda: sum(_squared_spectral(instruments, _moved(instruments, fold), convolution))
    )


def log_spectral_bound_from_init(
    instruments: Instruments, convolution: str = KERNEL, fold: bool = False, share: float = SHARE
) -> Estimate:
    """log(prod ||W||_2^2 / gamma^2 * sum ||W - W_0||_F^2 / ||W||_2^2); equation 29.

    The square of prod ||W||_2 || ||W - W_0||_F / ||W||_2 || / gamma of Neyshabur et al. (2018),
    without the depth.
    """

    def value() -> float:
        spectral = _spectral(instruments, convolution, fold)
        main = _log_product(spectral, _gamma(instruments, share))
        moved = [_squared_frobenius(w) for w in _moved(instruments, fold)]
        total = sum(d / s for d, s in zip(moved, spectral, strict=True))
        if not total > 0:
            raise SpiritlevelError("no weight has moved from init=: give those before training")
        return main + math.log(total)

    return timed(value, passes=PASSES)


# What they share -----------------------------------------------------------------------------


@torch.no_grad()
def _absolute(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.abs_()


def _matrices(instruments: Instruments, fold: bool) -> list[Weight]:
    def made() -> list[Weight]:
        objective = instruments.objective
        return weights_of(folded(objective) if fold else objective)

    return instruments.once("weights", made, fold)


def _moved(instruments: Instruments, fold: bool) -> list[Weight]:
    """W - W_0."""
    objective = instruments.objective
    start = objective.named(instruments.init)
    before = weights_of(objective, folded_start(objective, start) if fold else start)
    pairs = zip(_matrices(instruments, fold), before, strict=True)
    return [now.minus(old) for now, old in pairs]


def _frobenius(instruments: Instruments, fold: bool) -> list[float]:
    return [_squared_frobenius(w) for w in _matrices(instruments, fold)]


def _spectral(instruments: Instruments, convolution: str, fold: bool) -> list[float]:
    one_of("convolution", convolution, (KERNEL, PERIODIC))
    return instruments.once(
        "spectral norms",
        lambda: _squared_spectral(instruments, _matrices(instruments, fold), convolution),
        convolution,
        fold,
    )


def _squared_frobenius(weight: Weight) -> float:
    return float(weight.matrix.square().sum())


def _squared_spectral(
    instruments: Instruments, weights: list[Weight], convolution: str
) -> list[float]:
    one_of("convolution", convolution, (KERNEL, PERIODIC))
    if convolution == KERNEL:
        return [spectral_norm(w) ** 2 for w in weights]
    objective = instruments.objective
    seen = instruments.once("sizes of images", lambda: grids(objective))
    return [periodic_norm(objective, w, seen) ** 2 for w in weights]


def _gamma(instruments: Instruments, share: float) -> float:
    return positive_margin(instruments, share)


def _log_product(squares: list[float], gamma: float = 1.0) -> float:
    if not min(squares) > 0:
        raise SpiritlevelError(
            "a weight matrix is zero, and the logarithm of its norm is minus infinity: choose the "
            "others with params="
        )
    return sum(math.log(s) for s in squares) - 2 * math.log(gamma)


def _log_sum(squares: list[float], gamma: float = 1.0) -> float:
    return math.log(len(squares)) + _log_product(squares, gamma) / len(squares)


def _ratio(instruments: Instruments, convolution: str, fold: bool) -> float:
    spectral = _spectral(instruments, convolution, fold)
    if not min(spectral) > 0:
        raise SpiritlevelError(
            "a weight matrix is zero and has no stable rank: choose the others with params="
        )
    pairs = zip(_frobenius(instruments, fold), spectral, strict=True)
    return sum(whole / top for whole, top in pairs)


NORM: dict[str, Any] = {
    "family": "norm",
    "reference": JIANG,
    "cost": "the norms of all weights",
    "work": Work(),
    "reading": "larger means more capacity",
}
OVER_MARGIN: dict[str, Any] = {
    **NORM,
    "invariances": (*PERMUTATION, "output"),
    "cost": "the norms of all weights, two forward passes",
    "shares": "margins",
    "work": Work(passes=PASSES),
}

ENTRIES: dict[str, Measure] = {
    "log_spectral_product": Measure(
        log_spectral_product, title="spectral product", invariances=PERMUTATION, **NORM
    ),
    "log_spectral_product_over_margin": Measure(
        log_spectral_product_over_margin, title="spectral product / margin", **OVER_MARGIN
    ),
    "log_spectral_sum": Measure(
        log_spectral_sum, title="spectral sum", invariances=PERMUTATION, **NORM
    ),
    "log_spectral_sum_over_margin": Measure(
        log_spectral_sum_over_margin, title="spectral sum / margin", **OVER_MARGIN
    ),
    "log_spectral_bound_from_zero": Measure(
        log_spectral_bound_from_zero, title="spectral bound, from zero", **OVER_MARGIN
    ),
    "log_spectral_bound_from_init": Measure(
        log_spectral_bound_from_init,
        title="spectral bound, from init",
        needs=("init",),
        **{**OVER_MARGIN, "invariances": ()},
    ),
    "stable_rank_sum": Measure(
        stable_rank_sum, title="sum of stable ranks", invariances=(*PERMUTATION, "output"), **NORM
    ),
    "log_frobenius_product": Measure(
        log_frobenius_product, title="Frobenius product", invariances=PERMUTATION, **NORM
    ),
    "log_frobenius_product_over_margin": Measure(
        log_frobenius_product_over_margin, title="Frobenius product / margin", **OVER_MARGIN
    ),
    "log_frobenius_sum": Measure(
        log_frobenius_sum, title="Frobenius sum", invariances=PERMUTATION, **NORM
    ),
    "log_frobenius_sum_over_margin": Measure(
        log_frobenius_sum_over_margin, title="Frobenius sum / margin", **OVER_MARGIN
    ),
    "frobenius_distance": Measure(
        frobenius_distance, title="Frobenius distance", needs=("init",), **NORM
    ),
    "spectral_distance": Measure(
        spectral_distance, title="spectral distance", needs=("init",), **NORM
    ),
    "parameter_norm": Measure(
        parameter_norm, title="norm of the weights", invariances=PERMUTATION, **NORM
    ),
    "l1_path_norm": Measure(
        l1_path_norm,
        title="l1 path norm",
        invariances=UNIT,
        **{
            **NORM,
            "reference": "Neyshabur et al. (2015)",
            "cost": "one forward pass of one example",
        },
    ),
    "path_norm_over_margin": Measure(
        path_norm_over_margin,
        title="path norm / margin",
        **{**OVER_MARGIN, "invariances": (*UNIT, "output"), "cost": "three forward passes"},
    ),
}
