"""Networks and losses that had an exact trace that was wrong, or none where one can be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.base.operator import Operator

WANTED = ["hessian_trace", "hessian_frobenius"]


def pair(hidden: int = 6, outputs: int = 3) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(5, hidden), nn.Linear(hidden, outputs)


class Net(nn.Module):
    """Two layers, and a way through them."""

    def __init__(self, way: Callable[[nn.Module, nn.Module, Tensor], Tensor], **sizes: int) -> None:
        super().__init__()
        self.a, self.h = pair(**sizes)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.a, self.h, x)


def of(way: Any, data: Any = None, loss: Any = F.cross_entropy, **sizes: int) -> sl.Objective:
    net = Net(way, **sizes).double()
    return sl.Objective(net, (randn(60, 5), labels(60)) if data is None else data, loss)


def plain(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    return h(torch.relu(a(x)))


def bags(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    """One example, whose instances are rows of the first layer."""
    return h(torch.relu(a(x.squeeze(0))).mean(0, keepdim=True))


def folded(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    n, length, _ = x.shape
    return h(torch.relu(a(x.reshape(n * length, -1)))).reshape(n, length, 3).mean(1)


def by_length(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    u = a(x)
    return h(torch.relu(u) if x.shape[1] > 3 else torch.tanh(u)).mean(1)


def complex_phase(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    return h((a(x) + 1j * a(x.flip(1))).sgn().real)


def seldom_beside(a: Any, h: nn.Module, x: Tensor) -> Tensor:
    """The weights of a layer beside it, for one example and the second output."""
    extra = 30 * torch.relu(x[:, 0] - 4) * a.weight.sum()
    return plain(a, h, x) + torch.stack([0 * extra, extra, 0 * extra], 1)


def at_least_two(a: nn.Module, h: nn.Module, x: Tensor) -> Tensor:
    if len(x) < 2:
        raise ValueError("give at least two")
    return plain(a, h, x)


class Squares(torch.autograd.Function):
    """A mean squared error that torch.func does not take."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(out, y)
        return (out - y).square().mean()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        out, y = ctx.saved_tensors
        return slopes[0] * 2 * (out - y) / out.numel(), None


def through_numpy(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean() * float(np.sign(1 + np.abs(out.detach().numpy()).max()))


def double_well(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y).square() - 1).square().mean()


def in_pieces(way: Any, *shapes: tuple[int, ...]) -> sl.Objective:
    data = [(randn(*shape, 5, seed=k), labels(shape[0], seed=k)) for k, shape in enumerate(shapes)]
    return of(way, data)


def with_one_bad_label() -> sl.Objective:
    """All but one example bend down, that one is a million times as curved and has no slope."""
    x = randn(60, 5)
    x[0] = 0
    net = Net(plain, outputs=1).double()
    with torch.no_grad():
        for layer in (net.a, net.h):
            layer.bias.zero_()
        y = net(x) + 0.1 * randn(60, 1)
    y[0] = 2000.0
    return sl.Objective(net, (x, y), double_well, params=["a.weight", "h.weight"])


def rare() -> sl.Objective:
    x, net = randn(400, 5), Net(seldom_beside).double()
    x[57, 0] = 6.0
    y = randn(400, 3)
    y[57] = net(x[57:58]).detach()[0]
    return sl.Objective(net, (x, y), F.mse_loss)


def halved(objective: sl.Objective) -> sl.Objective:
    return objective.reparametrize(sl.coordinates.Diagonal(torch.full_like(objective.vector, 2.0)))


FOUND: dict[str, Callable[[], sl.Objective]] = {
    "bags": lambda: in_pieces(bags, (1, 1), (1, 2), (1, 3), (1, 1), (1, 2)),
    "folded": lambda: in_pieces(folded, (4, 1), (4, 2), (4, 1), (4, 3)),
    "another path for short ones": lambda: in_pieces(by_length, (20, 4), (40, 2)),
    "complex": lambda: of(complex_phase),
    "seldom beside its layer": rare,
    "one bad label": with_one_bad_label,
    "other coordinates": lambda: halved(of(plain)),
    "no batches of one": lambda: of(at_least_two),
    "torch.func refuses": lambda: of(plain, (randn(60, 5), randn(60, 1)), Squares.apply, outputs=1),
    "numpy": lambda: of(plain, (randn(60, 5), randn(60, 1)), through_numpy, outputs=1),
}


@pytest.mark.parametrize("name", FOUND)
def test_traces_and_norms_are_those_of_the_dense_hessian(name: str) -> None:
    objective = FOUND[name]()
    table, matrix = sl.measure(objective, WANTED), sl.hessian(objective).dense()
    for row, truth in zip(WANTED, (matrix.trace(), matrix.norm()), strict=True):
        found = table[row]
        assert abs(found.value - float(truth)) <= 4 * found.error + 1e-8 * float(matrix.norm())
    assert sl.estimate(objective, WANTED).products > 0


@pytest.mark.parametrize("seed", range(4))
def test_the_diagonal_and_its_least_sum_are_right_where_examples_are_bags(seed: int) -> None:
    """Some have one instance only, and look as if rows were examples."""
    sizes = [1 + (i + seed) % 3 for i in range(20)]
    data = [
        (randn(1, size, 5, seed=20 * seed + i), labels(1, seed=20 * seed + i))
        for i, size in enumerate(sizes)
    ]
    objective = of(bags, data)
    diagonal, matrix = sl.ggn_diagonal(objective).values, sl.ggn(objective).dense()
    assert torch.allclose(diagonal, matrix.diagonal().double(), rtol=1e-9, atol=1e-14)
    least = sl.orbit.minimum(objective, norm="trace")
    there = sl.ggn(least.objective).dense().trace()
    assert least.value == pytest.approx(float(there), rel=1e-9)


def test_a_weight_beside_its_layer_is_seen_in_every_output() -> None:
    objective = rare()
    diagonal, matrix = sl.ggn_diagonal(objective).values, sl.ggn(objective).dense()
    assert torch.allclose(diagonal, matrix.diagonal().double(), rtol=1e-9, atol=1e-12)


def test_curvature_below_zero_that_is_cut_off_is_known() -> None:
    assert sl.ggn_diagonal(with_one_bad_label()).cut
    assert not sl.ggn_diagonal(of(plain)).cut


@pytest.mark.parametrize("name", ["complex", "another path for short ones"])
def test_what_is_not_linear_in_pieces_has_no_least_trace(name: str) -> None:
    """Nor has the modulus of a complex number, below."""
    with pytest.raises(sl.SpiritlevelError, match="not known to be a sum of exponentials"):
        sl.orbit.minimum(FOUND[name](), norm="trace", operator="hessian")


def test_what_is_complex_is_not_linear_in_pieces() -> None:
    objective = of(lambda a, h, x: h((a(x) + 1j * a(x.flip(1))).abs()))
    with pytest.raises(sl.SpiritlevelError, match="not known to be a sum of exponentials"):
        sl.orbit.minimum(objective, norm="trace", operator="hessian")


class Spike(torch.autograd.Function):
    """A step whose backward pass is that of another function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4 * x)
        return slopes[0] * 4 * s * (1 - s)


def test_what_has_no_hessian_has_no_trace() -> None:
    objective = of(lambda a, h, x: h(Spike.apply(a(x))))
    with pytest.raises(sl.SpiritlevelError, match="no Hessian-vector product of this model agrees"):
        sl.measure(objective, ["hessian_trace"])


def test_rounding_of_products_is_no_error_of_ours() -> None:
    """A norm of 1.4 whose trace is 0.003: in float32 products err by 1e-5 of the norm."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(60)
    data = torch.randn(20, 3), torch.randint(0, 2, (20,))
    objective = sl.Objective(net, data, F.cross_entropy)
    table = sl.measure(objective, [*WANTED, "effective_rank"])
    assert table.provenance["refused"] == {}
    exact = dense_in_float64(objective)
    assert float(table["hessian_trace"]) == pytest.approx(float(exact.trace()), rel=1e-4)
    assert float(table["hessian_frobenius"]) == pytest.approx(float(exact.norm()), rel=1e-4)


def dense_in_float64(objective: sl.Objective) -> Tensor:
    return sl.hessian(objective.to(torch.float64)).dense()


@pytest.mark.parametrize(
    "names",
    [["layer_traces"], ["hessian_trace"], ["hessian_frobenius"], ["hessian_frobenius", *WANTED]],
    ids=" ".join,
)
def test_all_products_are_counted(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    plain_product = Operator.__matmul__

    def counted(operator: Operator, other: Tensor) -> Tensor:
        nonlocal made
        made += 1 if other.ndim == 1 else other.shape[1]
        return plain_product(operator, other)

    objective = of(plain, hidden=12)
    monkeypatch.setattr(Operator, "__matmul__", counted)
    table = sl.measure(objective, names)
    assert table.provenance["products"] == made > 0
