"""Bits of weights, against dense Jacobians and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from cases import BY_NAME, labels, randn
from spiritlevel.measures.description import gaussian_bits, output_squares
from spiritlevel.measures.examples import units


def dense_squares(model: nn.Module, x: Tensor) -> Tensor:
    """(1/n) sum over examples of squared derivatives, by jacrev, (outputs, parameters)."""
    params = {k: v.detach() for k, v in model.named_parameters()}
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    rows = torch.cat([j.reshape(len(x), j.shape[1], -1) for j in jacobians.values()], 2)
    return rows.square().mean(0)


def by_hand(squares: Tensor, eps: float) -> float:
    """B(w) term by term."""
    kept = [i for i in range(squares.shape[1]) if float(squares[:, i].sum()) > 0]
    total = -len(kept) * math.log(eps)
    total += sum(math.log(float(squares[:, i].sum())) for i in kept)
    balanced = 0.0
    for row in squares:
        terms = (math.sqrt(float(row[i]) / float(squares[:, i].sum())) for i in kept)
        balanced += sum(terms) ** 2
    return (total + len(kept) * math.log(balanced)) / 2


def plain(width: int = 6, *, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, width, bias=bias), nn.ReLU(), nn.Linear(width, 3, bias=bias))
    return net.double()


def test_squares_are_those_of_the_dense_jacobian() -> None:
    point = conformance.objective(microbatch=16)
    wanted = dense_squares(conformance.trained(), conformance.data()[0])
    torch.testing.assert_close(output_squares(point), wanted)
    cnn = BY_NAME["cnn with BatchNorm"]
    model = cnn.model().eval()
    torch.testing.assert_close(output_squares(cnn.objective()), dense_squares(model, cnn.data()[0]))
    single = sl.Objective(
        conformance.trained(), conformance.data(), F.cross_entropy, dtype=torch.float32
    )
    torch.testing.assert_close(output_squares(single), wanted, rtol=1e-4, atol=1e-9)


def test_the_box_term_by_term() -> None:
    point = conformance.objective()
    squares = dense_squares(conformance.trained(), conformance.data()[0])
    for eps in (0.01, 0.5):
        found = sl.MEASURES["flat_minimum_search"](point, eps=eps)
        assert found.value == pytest.approx(by_hand(squares, eps), rel=1e-10)


def test_scaling_a_layer_moves_it_by_the_surplus_of_weights() -> None:
    """B(a W1, W2 / a) - B(W1, W2) = (n2 - n1) log a without biases."""
    net, data = plain(), (randn(30, 4), labels(30))
    point = sl.Objective(net, data, F.cross_entropy)
    first, second = point.params["0.weight"], point.params["2.weight"]
    assert sl.MEASURES["silent_weights"](point).value == 0
    for a in (0.1, 3.0, 50.0):
        twin = point.at({"0.weight": a * first, "2.weight": second / a})
        moved = (
            sl.MEASURES["flat_minimum_search"](twin).value
            - sl.MEASURES["flat_minimum_search"](point).value
        )
        assert moved == pytest.approx((18 - 24) * math.log(a), abs=2e-10)


def test_weights_that_no_output_sees_are_left_out() -> None:
    net = plain(bias=True)
    with torch.no_grad():
        net[0].bias[2] = -100.0  # type: ignore[index]
    x = randn(20, 4)
    x[:, 1] = 0  # nor does anything come of the second input
    point = sl.Objective(net, (x, labels(20)), F.cross_entropy)
    # of the dead unit 4 weights in, one bias, 3 weights out; of the input one weight in each other
    assert sl.MEASURES["silent_weights"](point).value == 4 + 1 + 3 + 5
    found = sl.MEASURES["flat_minimum_search"](point)
    assert found.value == pytest.approx(by_hand(dense_squares(net, x), 0.01), rel=1e-10)
    nothing = point.at(torch.zeros(point.size).double())
    assert sl.MEASURES["silent_weights"](nothing).value == point.size - 3  # all but the last biases


def test_what_has_no_jacobian_says_so() -> None:
    cnn = BY_NAME["cnn with BatchNorm in train mode"]
    with pytest.raises(sl.SpiritlevelError, match='use mode="eval"'):
        sl.MEASURES["flat_minimum_search"](cnn.objective())
    wide = nn.Linear(2, 200)
    point = sl.Objective(wide, (torch.ones(3, 2), torch.zeros(3, 200)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="examples have 200 outputs"):
        sl.MEASURES["flat_minimum_search"](point)


def test_bits_of_gaussians() -> None:
    one = torch.ones(1)
    assert gaussian_bits(0 * one, 0.3 * one, 0.3) == pytest.approx(0, abs=1e-6)
    nats = gaussian_bits(0 * one, one, 2.0) * math.log(2)
    assert nats == pytest.approx(math.log(2) - 3 / 8)
    assert nats == pytest.approx(0.318, abs=5e-4)
    mean, spread = randn(6), randn(6).abs() + 0.1
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, spread), torch.distributions.Normal(0 * mean, 1.7)
    )
    assert gaussian_bits(mean, spread, 1.7) * math.log(2) == pytest.approx(float(wanted.sum()))


def test_description_length_of_a_linear_regression() -> None:
    """G = 2 x'x / n for mean squares: s^2 = 1 / (2 sum x^2 + 1 / p^2)."""
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]).double()
    layer = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 7.0]]))
    point = sl.Objective(layer, (x, torch.zeros(3, 1).double()), F.mse_loss)
    prior = 5.0  # root of (1 + 49) / 2
    wanted = 0.0
    for w, total in ((1.0, 5.0), (7.0, 9.0)):
        variance = 1 / (2 * total + 1 / prior**2)
        wanted += math.log(prior / math.sqrt(variance))
        wanted += (variance + w**2 - prior**2) / (2 * prior**2)
    found = sl.MEASURES["description_length"](point)
    assert found.value == pytest.approx(wanted / math.log(2), rel=1e-12)
    with pytest.raises(sl.SpiritlevelError, match="all parameters are zero"):
        sl.MEASURES["description_length"](point.at(torch.zeros(2).double()))


@pytest.mark.parametrize("bias", [False, True])
def test_no_rescaling_of_layers_silences_a_weight(bias: bool) -> None:
    """Nor where biases are zero; without them B stays, as both layers have 6 weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3, bias=bias), nn.ReLU(), nn.Linear(3, 2, bias=bias)).double()
    if bias:
        nn.init.zeros_(net[0].bias)  # type: ignore[arg-type]
    point = sl.Objective(net, (randn(20, 2), randn(20, 2, seed=3)), F.mse_loss)
    first, second = point.params["0.weight"], point.params["2.weight"]
    wanted = sl.MEASURES["flat_minimum_search"](point).value
    for a in (1e4, 1e7, 1e-12):
        twin = point.at({"0.weight": a * first, "2.weight": second / a})
        assert sl.MEASURES["silent_weights"](twin).value == 0
        if not bias:
            assert sl.MEASURES["flat_minimum_search"](twin).value == pytest.approx(wanted)


class Shifted(nn.Module):
    """Softmax does not see the shift, but rounding does."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3, bias=False).double()
        self.shift = nn.Parameter(torch.full((1,), shift).double())

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) + self.shift).softmax(1) @ torch.tensor(
            [[0.3], [0.7], [1.1]]
        ).double()


@pytest.mark.parametrize("shift", [0.4, 1e-9])
def test_what_only_rounding_sees_is_silent(shift: float) -> None:
    point = sl.Objective(Shifted(shift), (randn(20, 4), randn(20, 1)), F.mse_loss)
    assert sl.MEASURES["silent_weights"](point).value == 1


def test_the_unit_of_weights_does_not_matter() -> None:
    """n is the number of those that count: not weights, ignored labels or weights of zero."""
    x, y, model = randn(20, 4), labels(20), nn.Linear(4, 3).double()
    wanted = sl.MEASURES["description_length"](sl.Objective(model, (x, y), F.cross_entropy)).value
    each = torch.full((20,), 10.0).double()
    classes = nn.CrossEntropyLoss(weight=each[:3])
    for data, loss in (((x, y, each), F.cross_entropy), ((x, y), classes)):
        point = sl.Objective(model, data, loss)
        assert units(point) == 20
        found = sl.MEASURES["description_length"](point).value
        assert found == pytest.approx(wanted)
    each[:3], y[3] = 0, -100
    assert units(sl.Objective(model, (x, y, each), F.cross_entropy)) == 16
    squares = sl.Objective(model, (x, randn(20, 3), each), F.mse_loss)
    assert units(squares) == 17


def test_bits_that_float64_cannot_hold_are_refused() -> None:
    layer = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(layer.weight, 1e170)
    point = sl.Objective(layer, (1e-170 * randn(5, 2), randn(5, 1)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="float64 cannot hold the bits"):
        sl.MEASURES["description_length"](point)
