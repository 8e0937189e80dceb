"""Which product with the Hessian is believed, where finite differences mislead or are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cases
import spiritlevel as sl
from spiritlevel.curvature import ladder
from spiritlevel.curvature.ladder import climb


class Net(nn.Module):
    """Two layers; what is between passes through `bend`."""

    def __init__(self, bend: object) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.a, self.b, self.bend = nn.Linear(4, 4), nn.Linear(4, 2), bend
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=draws) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.bend(self.a(x)).tanh())  # type: ignore[operator]


def objective(bend: object) -> sl.Objective:
    draws = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 4, generator=draws), torch.randn(64, 2, generator=draws)
    return sl.Objective(Net(bend), (x, y), F.mse_loss, dtype=torch.float64)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_stairs_of_half_precision_are_told_from_the_slope(half: torch.dtype) -> None:
    """Small differences see a stair; the Hessian is that of the network without the cast."""
    exact = sl.hessian(objective(lambda h: h)).dense()
    found = sl.hessian(objective(lambda h: h.to(half).to(h.dtype)))
    assert found.how.startswith("double backward")
    dense = found.dense()
    assert float((dense - exact).norm() / exact.norm()) < 0.01
    assert float((dense - dense.T).norm() / dense.norm()) < 0.01


class Twisted(torch.autograd.Function):
    """The identity with a wrong backward pass: the gradient is the gradient of nothing."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        (h,) = ctx.saved_tensors
        return slope * (1 + h.roll(1, -1) ** 2)


def test_a_gradient_that_is_none_is_refused() -> None:
    """Its derivative is no symmetric matrix, however consistent its differences are."""
    with pytest.raises(sl.SpiritlevelError, match="of gradients: u'Hv and v'Hu differ by"):
        sl.hessian(objective(Twisted.apply))


class Detached(torch.autograd.Function):
    """sin with a right slope that is treated as a constant."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        ctx.slope = h.detach().cos()
        return h.sin()

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        return slope * ctx.slope


def test_differences_are_right_where_they_are_consistent() -> None:
    exact = sl.hessian(objective(torch.sin)).dense()
    found = sl.hessian(objective(Detached.apply))
    assert found.how.startswith("difference of gradients")
    assert "not double backward: differs from a finite difference by" in found.how
    torch.testing.assert_close(found.dense(), exact, rtol=0, atol=1e-5 * float(exact.norm()))


def test_a_small_part_that_is_missing_is_seen() -> None:
    """Far within what kinks may cost; but these differences agree among themselves to 1e-8."""
    exact = sl.hessian(objective(lambda h: h + 2e-3 * h.sin())).dense()
    found = sl.hessian(objective(lambda h: h + 2e-3 * Detached.apply(h)))  # type: ignore[operator]
    assert found.how.startswith("difference of gradients")
    assert "not double backward: differs from a finite difference by" in found.how
    torch.testing.assert_close(found.dense(), exact, rtol=0, atol=1e-7 * float(exact.norm()))


def test_examples_that_are_fitted_to_the_last_digit() -> None:
    """The user's own loss takes 1 - p from p: small steps see stairs, and products are right."""
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(16, 4, generator=draws, dtype=torch.float64)
    net = Net(lambda h: h).double()
    y = net(x).argmax(1)
    with torch.no_grad():
        margin = net(x).diff(dim=1).abs().min()
        for p in net.b.parameters():
            p.mul_(29 / margin)
    exact = sl.hessian(sl.Objective(net, (x, y), F.cross_entropy)).dense()
    own = sl.Objective(net, (x, y), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    assert 1e-15 < own.value() < 1e-13
    found = sl.hessian(own).dense()
    assert float((found - exact).norm() / exact.norm()) < 0.02


class Slipped(torch.autograd.Function):
    """A rectifier's kin whose second derivative is forgotten, where it is not zero."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        ctx.slope = torch.where(h > 0, 2 * h, 0.0).detach()
        return h.relu().square()

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        return slope * ctx.slope


@pytest.mark.parametrize("batch", [16, 64])
def test_a_fault_late_in_the_data_is_seen(batch: int) -> None:
    """The first examples, and those of largest loss, know nothing of it: units are off there."""
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(64, 4, generator=draws).abs().double()
    x[:48] *= -1
    y = torch.randn(64, 2, generator=draws).double()
    y[:48] *= 5

    def objective(bend: object) -> sl.Objective:
        net = Net(bend).double()
        with torch.no_grad():
            net.a.weight.abs_()
            net.a.bias.zero_()
        return sl.Objective(net, list(zip(x.split(batch), y.split(batch), strict=True)), F.mse_loss)

    exact = sl.hessian(objective(lambda h: h.relu().square())).dense()
    found = sl.hessian(objective(Slipped.apply))
    assert found.how.startswith("difference of gradients")
    torch.testing.assert_close(found.dense(), exact, rtol=0, atol=1e-6 * float(exact.norm()))


def test_a_model_too_large_for_float64_is_checked_in_its_own_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = objective(lambda h: h)
    rough = exact.to(torch.float32)
    assert climb(rough).checked_in == torch.float64
    monkeypatch.setattr(ladder, "free_bytes", lambda device: 16 * 8 * rough.size - 1)
    way = climb(rough)
    assert way.checked_in == torch.float32
    assert way.check < 5e-2
    truth = sl.hessian(exact).dense()
    torch.testing.assert_close(sl.hessian(rough).dense().double(), truth, rtol=1e-3, atol=1e-4)


class Bent(nn.Module):
    """Two layers whose gradient is none: what is between is cut off, or passes straight through."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.way = nn.Linear(5, 8), nn.Linear(8, 3), way

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if self.way == "stopped":
            h = h.detach()
        if self.way == "straight through":
            h = h + (h.round() - h).detach()
        out = self.b(h)
        return out / out.detach().norm(dim=1, keepdim=True) if self.way == "length" else out


def bent(way: str) -> sl.Objective:
    x, y = cases.randn(60, 5), cases.labels(60, classes=3)
    return sl.Objective(Bent(way).double(), (x, y), F.cross_entropy)


@pytest.mark.parametrize("way", ["stopped", "straight through", "length"])
def test_a_gradient_that_is_none_is_said(way: str) -> None:
    """Its products agree with its differences; the loss does not, in every table."""
    assert (sl.hessian(bent("plain")).check or 1.0) < 1e-6
    objective = bent(way)
    assert (sl.hessian(objective).check or 0.0) > 0.2
    told = [
        sl.measure(objective, ["hessian_trace"]),
        sl.audit(objective, ["hessian_trace"], way=False),
        sl.compare({"a": objective, "b": bent("plain")}, ["hessian_trace"]),
    ]
    for result in told:
        assert "the product differs from finite differences by" in " ".join(str(result).split())


def test_derivatives_of_two_minds_are_refused() -> None:
    """The backward pass of an embedding leaves out its padding, forward mode does not."""
    net = nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 3)).double()
    with torch.no_grad():
        net[0].weight[0] = 1.0  # type: ignore[index]
    ids = torch.arange(60).reshape(20, 3) % 7
    objective = sl.Objective(net, (ids, cases.labels(20, classes=3)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="whose padding reaches the outputs"):
        sl.ggn(objective)
