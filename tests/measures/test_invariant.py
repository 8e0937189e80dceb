"""Curvature relative to layers and units, and least values over the orbit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import First, labels, randn, small_net
from spiritlevel.base.estimate import Status
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.invariant import relative_flatness_largest


def measured(name: str, objective: sl.Objective, **options: Any) -> float:
    return sl.MEASURES[name](objective, **options).value


def rectified(*, bias: bool = True) -> sl.Objective:
    sizes = (4, 5, 6, 3)
    layers = [nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(sizes)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    return sl.Objective(randomized(net), (randn(20, 4), labels(20)), F.cross_entropy)


def top(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def test_curvature_relative_to_layers_against_the_dense_matrix() -> None:
    """lambda_max(D H D), D = ||W_k||_F of every tensor, biases too."""
    objective = rectified()
    d = torch.cat([p.norm().expand(p.numel()) for p in objective.params.values()])
    expected = top(d[:, None] * sl.hessian(objective).dense() * d)
    found = sl.MEASURES["frobenius_spectral"](objective)
    assert abs(found.value - expected) <= found.error + 1e-9 * expected
    assert found.status is Status.CONVERGED
    group = sl.symmetries(objective)
    layers = group.layerwise()
    twin = layers.apply(objective, layers.random(1, 2.0))
    assert measured("frobenius_spectral", twin) == pytest.approx(expected, rel=2e-3)
    other = group.apply(objective, group.random(1, 1.0))
    assert measured("frobenius_spectral", other) != pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("layer", ["0.weight", "2.weight", "4.weight"])
def test_relative_flatness_by_eigenvalues_against_its_definition(layer: str) -> None:
    """sum_s ||w_s||^2 lambda_max(H_ss)."""
    objective = rectified()
    w, span = objective.params[layer], objective.spans[layer]
    units, inputs = w.shape
    block = sl.hessian(objective).dense()[span, span].reshape(units, inputs, units, inputs)
    expected = sum(float(w[s] @ w[s]) * top(block[s, :, s]) for s in range(units))
    found = relative_flatness_largest(Instruments(objective), layer)
    assert abs(found.value - expected) <= found.error + 1e-9 * expected
    assert found.error <= 0.02 * expected
    if layer == "2.weight":
        assert relative_flatness_largest(Instruments(objective)).value == found.value


def test_relative_flatness_sees_inputs_of_its_layer_only() -> None:
    """Rescaling the units of the layer itself is not seen, that of the units before it is."""
    objective = rectified()
    group = sl.symmetries(objective)
    here = measured("relative_flatness_largest", objective)
    changes = {}
    for layer in ("0", "2"):
        t = torch.tensor([float(g.name.startswith(layer)) for g in group.generators])
        assert 0 < float(t.sum()) < group.dim
        moved = group.apply(objective, t.double() * group.random(3, 1.0))
        changes[layer] = abs(measured("relative_flatness_largest", moved) / here - 1)
    assert changes["2"] <= 0.02
    assert changes["0"] >= 0.1


def test_a_dead_unit_has_no_curvature() -> None:
    objective = rectified()
    dead = objective.params["2.bias"].clone()
    dead[0] = -1e3
    without = objective.at({"2.bias": dead})
    found = relative_flatness_largest(Instruments(without))
    assert found.status is Status.CONVERGED
    span = without.spans["2.weight"]
    block = sl.hessian(without).dense()[span, span].reshape(6, 5, 6, 5)
    w = without.params["2.weight"]
    assert float(block[0].abs().max()) == 0.0
    expected = sum(float(w[s] @ w[s]) * top(block[s, :, s]) for s in range(6))
    assert abs(found.value - expected) <= found.error + 1e-9


def test_a_layer_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"'0\.bias' is none of the parameters 0\.weight"):
        relative_flatness_largest(Instruments(rectified()), "0.bias")


def test_minimum_sharpness_in_closed_form() -> None:
    """Without biases it is Ibayashi et al.'s K (prod_k tr_k)^(1/K)."""
    objective = rectified(bias=False)
    diagonal = Instruments(objective).diagonal.values
    traces = [float(diagonal[span].sum()) for span in objective.spans.values()]
    expected = 3 * float(np.prod(traces)) ** (1 / 3)
    found = sl.MEASURES["layer_minimum"](objective)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.value < sum(traces)


def test_the_least_frobenius_norm_against_brute_force() -> None:
    objective = rectified()
    group = sl.symmetries(objective)
    dense = sl.ggn(objective).dense()
    exponents = torch.from_numpy(group.matrix(objective.shapes).toarray())

    def value(t: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(t).requires_grad_()
        d = torch.exp(-exponents @ logs)
        norm = (d[:, None] * dense * d).square().sum().log() / 2
        return float(norm.detach()), torch.autograd.grad(norm, logs)[0].numpy()

    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    best = minimize(value, np.zeros(group.dim), jac=True, method="L-BFGS-B", options=options)
    found = sl.MEASURES["orbit_frobenius"](objective)
    assert found.value == pytest.approx(float(np.exp(best.fun)), rel=1e-4)
    twin = group.apply(objective, group.random(4, 1.0))
    assert measured("orbit_frobenius", twin) == pytest.approx(found.value, rel=1e-4)
    compared = sl.compare(
        {"net": objective, "twin": twin}, ["hessian_frobenius", "orbit_frobenius"]
    )
    assert compared["orbit_frobenius"].text == "equal"


def test_sharpness_at_the_balanced_point() -> None:
    """What is found there is reached there, at one point for all twins."""
    objective = small_net()
    group = sl.symmetries(objective)
    there = sl.orbit.minimum(objective, group, norm="trace").objective
    found = sl.MEASURES["balanced_sharpness"](objective)
    assert found.status is Status.LOWER_BOUND
    curved = (Instruments(objective).diagonal.values > 0).double()
    top = sl.eigenpairs(sl.scaled(sl.hessian(there), curved), tol=0.05)
    again = sl.worst_in_ball(there, 0.05, scale=curved, starts=top.vectors)
    assert found.value == pytest.approx(again.sharpness, rel=0.05)
    for seed in range(2):
        twin = group.apply(objective, group.random(seed, 1.0))
        assert measured("balanced_sharpness", twin) == pytest.approx(found.value, rel=1e-4)
        assert measured("eps_sharpness", twin) != pytest.approx(
            measured("eps_sharpness", objective), rel=0.1
        )


def test_the_size_of_dead_units_does_not_matter() -> None:
    """One that a small step would wake, with weights out that no orbit balances."""
    objective = small_net()
    x, p = objective.batches[0][0], objective.params
    bias = p["0.bias"].clone()
    bias[0] = -float((x @ p["0.weight"][0]).max()) - 1e-3
    dead = objective.at({"0.bias": bias})
    group = sl.symmetries(dead)
    twin = group.apply(dead, -6.0 * torch.eye(group.dim).double()[0])
    assert not torch.equal(twin.params["0.weight"][0], dead.params["0.weight"][0])
    values = [measured("balanced_sharpness", o) for o in (dead, twin)]
    assert values[1] == pytest.approx(values[0], rel=1e-4)


def test_one_sided_rescalings_single_out_no_point() -> None:
    """A bias of keys moves no attention: it can be of any size."""
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dropout=0.0, norm_first=True)
    data = randn(10, 3, 4), labels(10)
    objective = sl.Objective(randomized(First(layer, 4)), data, F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="its orbit singles out no point"):
        measured("balanced_sharpness", objective)


def test_a_fisher_rao_norm_of_a_concave_loss_is_refused() -> None:
    """Of a linear net and -|f|^2 / 3, theta' G theta is twice the loss: a root of it is no norm."""
    net = nn.Linear(4, 3, bias=False).double()
    data = (randn(20, 4), randn(20, 3))
    concave = sl.Objective(net, data, lambda out, y: -out.square().mean())
    with pytest.raises(sl.SpiritlevelError, match="not convex in the outputs") as refused:
        sl.MEASURES["fisher_rao"](concave)
    assert float(str(refused.value).split()[-1]) == pytest.approx(2 * concave.value(), rel=1e-2)
    convex = sl.Objective(net, data, lambda out, y: out.square().mean())
    assert measured("fisher_rao", convex) == pytest.approx((2 * convex.value()) ** 0.5, rel=1e-10)
