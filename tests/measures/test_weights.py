"""Weight matrices as data, norms of convolutions against dense matrices, BatchNorm folded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import spiritlevel as sl
from architectures import DenseNet, ResNet, objective_of, randomized
from cases import labels, randn
from networks.base import Piece
from spiritlevel.measures.convolutions import grids, periodic_kernel_norm, periodic_norm
from spiritlevel.measures.folding import folded, folded_start
from spiritlevel.measures.weights import weights_of


class Everything(nn.Module):
    """One of each that holds weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(1, 3, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True)
        self.norm = nn.LayerNorm(4)
        self.recurrent = nn.LSTM(4, 1, batch_first=True)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.head = nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places + self.token
        x = self.norm(self.attention(x, x, x)[0])
        return self.head(self.conv(self.recurrent(x)[0].mT)[:, 0])


def test_every_parameter_of_two_dimensions_is_a_matrix() -> None:
    torch.manual_seed(0)
    ids = labels(6, 3, classes=5)
    objective = sl.Objective(Everything().double(), (ids, labels(6)), F.cross_entropy)
    found = {w.name: tuple(w.matrix.shape) for w in weights_of(objective)}
    assert found == {
        "places": (3, 4),
        "words.weight": (5, 4),
        "attention.in_proj_weight[query]": (4, 4),
        "attention.in_proj_weight[key]": (4, 4),
        "attention.in_proj_weight[value]": (4, 4),
        "attention.out_proj.weight": (4, 4),
        "recurrent.weight_ih_l0": (4, 4),
        "recurrent.weight_hh_l0": (4, 1),
        "conv.weight": (1, 3),
        "head.weight": (3, 3),
    }
    key = weights_of(objective)[3].matrix
    torch.testing.assert_close(key, objective.params["attention.in_proj_weight"][4:8])


def test_the_chosen_ones_in_order_at_any_point() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    data = randn(6, 4), labels(6)
    objective = sl.Objective(net, data, F.cross_entropy, params=["2.*"])
    twice = {name: 2 * p for name, p in objective.params.items()}
    [weight] = weights_of(objective, twice)
    assert weight.layer == "2"
    torch.testing.assert_close(weight.matrix, 2 * objective.params["2.weight"])
    only_biases = sl.Objective(net, data, F.cross_entropy, params=["*.bias"])
    with pytest.raises(sl.SpiritlevelError, match=r"no weight matrix .* \(0.bias, 2.bias\)"):
        weights_of(only_biases)


def test_tied_weights_are_one() -> None:
    net: Any = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    net[2].weight = net[0].weight
    objective = sl.Objective(net, (randn(6, 3), labels(6)), F.cross_entropy)
    assert [w.name for w in weights_of(objective)] == ["0.weight"]


def test_weights_that_are_made_of_others_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), parametrizations.weight_norm(nn.Linear(5, 3)))
    objective = sl.Objective(net.double(), (randn(6, 4), labels(6)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="weights of 2 are made of other parameters"):
        weights_of(objective)


# Convolutions ------------------------------------------------------------------------------------


def dense(kernel: Tensor, n: list[int], s: list[int], d: list[int], groups: int) -> Tensor:
    """The matrix of a convolution that wraps around, tap by tap."""
    out, inside = kernel.shape[:2]
    ends = [a // b for a, b in zip(n, s, strict=True)]
    shape = (out, *ends, inside * groups, *n)
    found = torch.zeros(shape, dtype=torch.float64)
    spots = list(itertools.product(*map(range, ends)))
    taps = list(itertools.product(*map(range, kernel.shape[2:])))
    for o, c, spot, tap in itertools.product(range(out), range(inside), spots, taps):
        of = tuple((i * b + e * t) % a for i, b, e, t, a in zip(spot, s, d, tap, n, strict=True))
        channel = o // (out // groups) * inside + c
        found[(o, *spot, channel, *of)] += kernel[(o, c, *tap)]
    return found.reshape(out * math.prod(ends), -1)


@pytest.mark.parametrize(
    ("kernel", "grid", "stride", "dilation", "groups"),
    [
        ((3, 2, 3), [7], [1], [1], 1),
        ((3, 2, 4), [6], [2], [1], 1),
        ((2, 3, 5), [3], [1], [1], 1),  # a window that is wider than the image
        ((4, 1, 3), [8], [2], [3], 2),
        ((3, 2, 4), [6], [1], [2], 1),  # taps that see every second place only
        ((3, 2, 3, 3), [5, 4], [1, 1], [1, 1], 1),
        ((2, 3, 3, 2), [6, 4], [3, 2], [1, 1], 1),
        ((4, 1, 2, 3), [4, 6], [1, 2], [2, 1], 4),
        ((6, 2, 3, 1), [4, 4], [2, 2], [1, 2], 3),
        ((2, 2, 2, 2, 3), [2, 4, 3], [1, 2, 1], [1, 1, 2], 1),
    ],
)
def test_periodic_norms_are_those_of_the_dense_matrix(
    kernel: tuple[int, ...], grid: list[int], stride: list[int], dilation: list[int], groups: int
) -> None:
    k = randn(*kernel)
    matrix = dense(k, grid, stride, dilation, groups)
    sizes = {"stride": tuple(stride), "dilation": tuple(dilation)}
    found = periodic_kernel_norm(k, tuple(grid), groups=groups, **sizes)
    assert found == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-12)


def test_an_image_that_the_stride_does_not_divide_is_made_larger() -> None:
    k = randn(3, 2, 3)
    seven, eight = (periodic_kernel_norm(k, (n,), stride=(2,), dilation=(1,)) for n in (7, 8))
    assert seven == eight


def image_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(2 * 4 * 4, 3),
    )


def test_norms_of_layers_at_the_size_that_they_see() -> None:
    model = randomized(image_net())
    objective = sl.Objective(model, (randn(5, 2, 6, 6), labels(5)), F.cross_entropy, microbatch=2)
    seen = grids(objective)
    assert seen == {"0": (6, 6), "2": (6, 6), "4": (4, 4)}
    assert not any(m._forward_hooks for m in [*objective.module.modules(), *model.modules()])
    weights = weights_of(objective)
    found = [periodic_norm(objective, w, seen) for w in weights]
    layers: Any = objective.module
    jacobian: Any = torch.func.jacrev(layers[0])(randn(1, 2, 6, 6))
    exact = torch.linalg.matrix_norm(jacobian.reshape(3 * 36, -1), 2)
    assert found[0] == pytest.approx(float(exact), rel=1e-12)  # it wraps around itself
    wrapped = dense(weights[2].values, [4, 4], [2, 2], [1, 1], 1)  # of its transpose
    assert found[2] == pytest.approx(float(torch.linalg.matrix_norm(wrapped, 2)), rel=1e-12)
    jacobian = torch.func.jacrev(layers[4])(randn(1, 4, 2, 2))  # its windows do not overlap
    exact = torch.linalg.matrix_norm(jacobian.reshape(2 * 16, -1), 2)
    assert found[2] == pytest.approx(float(exact), rel=1e-12)
    assert found[3] == pytest.approx(float(torch.linalg.matrix_norm(weights[3].matrix, 2)))


def test_a_convolution_that_never_runs_has_no_size() -> None:
    net = Piece(lambda s, x: s.head(x), head=nn.Linear(4, 3), idle=nn.Conv1d(1, 1, 3)).double()
    objective = sl.Objective(net, (randn(6, 4), labels(6)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="no data run through idle"):
        sl.MEASURES["log_spectral_product"](objective, convolution="periodic")


# BatchNorm ---------------------------------------------------------------------------------------


def normed_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.BatchNorm2d(2, affine=False, eps=0.1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * 9, 4),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("params", [None, ["*.weight"], ["3.*", "10.*"]])
def test_folded_networks_predict_the_same(params: Any, dtype: torch.dtype) -> None:
    data = randn(20, 1, 6, 6), labels(20)
    model = randomized(normed_net())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    objective = sl.Objective(model, data, F.cross_entropy, params=params, dtype=dtype, microbatch=7)
    twin = folded(objective)
    rounding = 1e-4 if dtype is torch.float32 else 1e-12
    found, given = twin.predictions(), objective.predictions()
    torch.testing.assert_close(found, given, rtol=rounding, atol=rounding)
    state = model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in before.items())
    scale = (state["4.running_var"] + 0.1).rsqrt().to(dtype)
    expected = objective.params["3.weight"] * scale.reshape(2, 1, 1, 1)
    torch.testing.assert_close(twin.params["3.weight"], expected)
    if params is None:
        gain = state["1.weight"] / (state["1.running_var"] + 1e-5).sqrt()
        expected = state["0.weight"] * gain.reshape(3, 1, 1, 1)
        torch.testing.assert_close(twin.params["0.weight"], expected.to(dtype))
        assert torch.equal(twin.params["8.weight"], torch.ones(4, dtype=dtype))
    assert {w.name for w in weights_of(twin)} == {w.name for w in weights_of(objective)}


def test_folding_a_residual_net() -> None:
    objective = objective_of(ResNet((4, 8), 1, "B"), 3, 8, 8)
    twin = folded(objective)
    torch.testing.assert_close(twin.predictions(), objective.predictions())
    gains = [n for n in twin.params if n.endswith("weight") and twin.params[n].ndim == 1]
    assert len(gains) == 6
    assert all(bool((twin.params[n] == 1).all()) for n in gains)


def test_before_training_a_norm_has_fresh_statistics() -> None:
    data = randn(20, 1, 6, 6), labels(20)
    objective = sl.Objective(randomized(normed_net()), data, F.cross_entropy)
    start = {name: torch.full_like(p, 2.0) for name, p in objective.params.items()}
    found = folded_start(objective, start)
    ones = torch.ones(3, 1, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(found["0.weight"], 4 / math.sqrt(1 + 1e-5) * ones)
    assert torch.equal(found["10.weight"], start["10.weight"])


def test_in_inference_mode_too() -> None:
    objective = sl.Objective(
        randomized(normed_net()), (randn(20, 1, 6, 6), labels(20)), F.cross_entropy
    )
    measure, options = sl.MEASURES["stable_rank_sum"], {"fold": True, "convolution": "periodic"}
    with torch.inference_mode():
        found = measure(objective, **options).value
    assert found == measure(objective, **options).value


def test_a_network_without_norms_is_left_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    objective = sl.Objective(net, (randn(6, 4), labels(6)), F.cross_entropy)
    assert folded(objective) is objective


def piece(forward: Any, **parts: nn.Module) -> sl.Objective:
    net = randomized(Piece(forward, a=nn.Linear(4, 4), head=nn.Linear(4, 3), **parts))
    return sl.Objective(net, (randn(12, 4), labels(12)), F.cross_entropy)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"first\.\d\.0 cannot be folded.*fold=False"):
        folded(objective_of(DenseNet(), 3, 8, 8))
    norms = {"b": nn.BatchNorm1d(4), "c": nn.BatchNorm1d(4)}
    moved = piece(lambda s, x: s.head(s.b(s.a(x).relu())), **norms)
    with pytest.raises(sl.SpiritlevelError, match="b cannot be folded"):
        folded(moved)
    split = piece(lambda s, x: s.head(s.b(y := s.a(x)) + s.c(y)), **norms)
    with pytest.raises(sl.SpiritlevelError, match="c cannot be folded"):
        folded(split)
    beside = piece(lambda s, x: s.head(s.b(y := s.a(x)) + y), **norms)
    with pytest.raises(sl.SpiritlevelError, match="predicts something else"):
        folded(beside)
    twice = piece(lambda s, x: s.head(s.b(s.a(x)) + s.a(x + 1)), **norms)
    with pytest.raises(sl.SpiritlevelError, match="predicts something else"):
        folded(twice)
    written = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.BatchNorm1d(5)).double()
    with pytest.raises(sl.SpiritlevelError, match="2 cannot be folded"):
        folded(sl.Objective(written, (randn(12, 4), labels(12)), F.cross_entropy))
    across = randomized(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(2), nn.Flatten()))
    with pytest.raises(sl.SpiritlevelError, match="1 cannot be folded"):
        folded(sl.Objective(across, (randn(12, 2, 4), labels(12)), F.cross_entropy))
    trained = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    data = randn(12, 4), labels(12)
    with pytest.raises(sl.SpiritlevelError, match=r'fixed statistics \(mode="eval"\)'):
        folded(sl.Objective(trained, data, F.cross_entropy, mode="train"))
