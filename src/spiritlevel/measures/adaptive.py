"""Adaptive sharpness: relative to whole filters, and with logits of length one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures import fused
from spiritlevel.measures.ball import (
    ADAPTIVE_BOX_RADIUS,
    ADAPTIVE_RADIUS,
    RADIUS,
    adaptive_box,
    adaptive_worst,
    worst_relative,
)
from spiritlevel.measures.base import DIAGONAL, LAYER, Invariance, Measure, Work
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.noise import ADAPTIVE_SIGMA, adaptive_average, mean_rise
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import Loss, Total, moved

FILTER_SIGMA = 0.02
SHORTEST = 1e-10  # as in the code of Andriushchenko et al.
OF_OUTPUTS: tuple[Invariance, ...] = (*DIAGONAL, "output")


def filter_sizes(instruments: Instruments) -> Tensor:
    """The norm of the filter (the row of its map) that each weight is in; |b| of a bias, flat."""
    found = []
    for name, value in instruments.objective.params.items():
        if value.ndim > 1:
            numbers = fused.maps(instruments)[name].flatten(1)
            rows = torch.arange(len(value), device=value.device)[:, None]
            found.append(fused.sizes(value, numbers * len(value) + rows))
        else:
            found.append(value.abs().reshape(-1))
    return torch.cat(found)


def filterwise_worst(instruments: Instruments, radius: float = RADIUS) -> Estimate:
    """max over ||d / T||_2 <= rho of L(theta + d) - L, T the norm of each weight's filter.

    Kwon et al. (2021), filter-wise: a filter is a row of a weight matrix or kernel; biases and
    gains are relative to themselves. Where one tensor holds several maps (queries, keys, values),
    a filter is of one of them. A lower bound, as every maximum that is searched for.
    """
    return worst_relative(instruments, filter_sizes(instruments), radius)


def filterwise_average(instruments: Instruments, sigma: float = FILTER_SIGMA) -> Estimate:
    """E over d ~ N(0, sigma^2 T^2) of L(theta + d) - L, T the norm of each weight's filter."""
    spread = sigma * filter_sizes(instruments)
    return mean_rise(instruments.objective, spread, rtol=instruments.rtol, seed=instruments.seed)


def normalized_logits(objective: Objective) -> Objective:
    """The same objective with logits f - mean(f), divided by their l2 norm, for every decision.

    A cross-entropy does not see the mean, and no longer how long the logits are.
    """
    if objective.loss.likelihood != "softmax" or objective.loss.on_outputs is None:
        raise SpiritlevelError(
            "logits are normalized for a cross-entropy of several classes; this loss is none "
            "(use cross_entropy or nll_loss)"
        )
    return objective.replaced(_loss=_of_length_one(objective.loss))


def _of_length_one(loss: Loss) -> Loss:
    on_outputs, axis = loss.on_outputs, loss.class_axis
    assert on_outputs is not None

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        f = loss.outputs(model, batch)
        if f.shape[axis] < 3:
            raise SpiritlevelError(
                "two logits of length one are a decision and no more: a measure with normalized "
                "logits needs three classes; use the one without"
            )
        f = f - f.mean(axis, keepdim=True)
        return f / f.norm(dim=axis, keepdim=True).clamp(min=SHORTEST)

    def total(model: nn.Module, batch: Batch) -> Total:
        return on_outputs(outputs(model, batch), batch)

    return replace(
        loss,
        total=total,
        outputs=outputs,
        together=lambda model, batch: (loss.returned(model, batch), total(model, batch)),
        rebuild=lambda dtype, device: _of_length_one(moved(loss, dtype, device)),
    )


def _normalized(instruments: Instruments) -> Instruments:
    """The instruments of the objective with normalized logits."""
    return instruments.once(
        "normalized_logits",
        lambda: Instruments(
            normalized_logits(instruments.objective),
            seed=instruments.seed,
            rtol=instruments.rtol,
            compile=instruments.compile,
        ),
    )


def adaptive_worst_normalized(
    instruments: Instruments, radius: float = ADAPTIVE_RADIUS
) -> Estimate:
    """max over ||d / |theta| ||_2 <= rho of L(theta + d) - L, with logits of length one."""
    return adaptive_worst(_normalized(instruments), radius)


def adaptive_box_normalized(
    instruments: Instruments, radius: float = ADAPTIVE_BOX_RADIUS
) -> Estimate:
    """max over |d_i| <= rho |theta_i| of L(theta + d) - L, with logits of length one."""
    return adaptive_box(_normalized(instruments), radius)


def adaptive_average_normalized(
    instruments: Instruments, sigma: float = ADAPTIVE_SIGMA
) -> Estimate:
    """E over d ~ N(0, sigma^2 diag(theta^2)) of L(theta + d) - L, with logits of length one."""
    return adaptive_average(_normalized(instruments), sigma)


ENTRIES: dict[str, Measure] = {
    "filterwise_worst": Measure(
        filterwise_worst,
        title="filter-wise worst case",
        family="worst case",
        invariances=LAYER,
        reference="Kwon et al. (2021)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
    "adaptive_worst_normalized": Measure(
        adaptive_worst_normalized,
        title="adaptive worst, unit logits",
        family="worst case",
        invariances=OF_OUTPUTS,
        reference="Andriushchenko et al. (2023)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
    "adaptive_box_normalized": Measure(
        adaptive_box_normalized,
        title="adaptive box, unit logits",
        family="worst case",
        invariances=OF_OUTPUTS,
        reference="Andriushchenko et al. (2023)",
        cost="about 50 gradients",
        is_sharpness=True,
        work=Work(gradients=50, products=12),
    ),
    "filterwise_average": Measure(
        filterwise_average,
        title="filter-wise average",
        family="noise",
        invariances=LAYER,
        reference="Kwon et al. (2021)",
        cost="20 to 500 forward passes",
        is_sharpness=True,
        work=Work(passes=64),
        keeps=True,
    ),
    "adaptive_average_normalized": Measure(
        adaptive_average_normalized,
        title="adaptive mean, unit logits",
        family="noise",
        invariances=OF_OUTPUTS,
        reference="Andriushchenko et al. (2023)",
        cost="20 to 500 forward passes",
        is_sharpness=True,
        work=Work(passes=64),
    ),
}
