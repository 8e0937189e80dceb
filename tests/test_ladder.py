"""Which product with the Hessian is believed, where finite differences mislead or are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl


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
