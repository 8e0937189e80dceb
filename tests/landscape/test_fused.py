"""Convolutions that make the normalizations, sums and ReLUs behind them: the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.landscape import points
from spiritlevel.landscape.fused import convolved
from spiritlevel.landscape.passes import Passes, passes

ATEN = torch.ops.aten
NORM, ADD, RELU = ATEN.native_batch_norm.default, ATEN.add.Tensor, ATEN.relu.default

no_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[attr-defined]
    reason="this torch has no oneDNN, which fuses",
)


class Residual(nn.Module):
    """Two branches of convolutions and BatchNorm, added; behind them one that is only added to."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8))
        self.two = nn.Sequential(nn.Conv2d(3, 8, 1, 2), nn.BatchNorm2d(8))
        self.three = nn.Conv2d(8, 8, (3, 1), padding=(2, 0), dilation=(2, 1), groups=4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x) + self.two(x))
        return (x + self.three(x)).mean((2, 3))


class Spread(nn.Module):
    """What is added is spread over the image of a convolution, and that over something larger."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 5, 6, bias=False)
        self.shift = nn.Parameter(torch.randn(5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x) + self.shift)
        return F.relu(self.two(x) + x).mean((2, 3))


class Twice(nn.Module):
    """An image that is read twice stays, and so does a convolution that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = F.relu(self.norm(x)) * x
        x = self.conv(x)
        x = F.relu(x + x)
        return F.relu(self.conv(x)).relu_().mean((2, 3))


def plain() -> nn.Module:
    """In place, with a bias and no normalization; the last convolution has nothing behind it."""
    layers = (nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))


def normed_late() -> nn.Module:
    """BatchNorm behind ReLU and before convolutions: it is no part of either."""
    layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


# of the rest of the pass: how many of each are not fused
NETS: dict[str, tuple[Callable[[], nn.Module], int, dict[Any, int]]] = {
    "residual": (Residual, 3, {NORM: 0, ADD: 0, RELU: 0}),
    "spread": (Spread, 2, {ADD: 0, RELU: 0}),
    "twice": (Twice, 1, {NORM: 1, ADD: 1, RELU: 3}),
    "plain": (plain, 1, {RELU: 0}),
    "normed late": (normed_late, 1, {NORM: 1, RELU: 0}),
}


def objective(make: Callable[[], nn.Module], **options: Any) -> sl.Objective:
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics and scales as after a training
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    data = torch.randn(12, 3, 8, 8), torch.randint(0, 3, (12,))
    return sl.Objective(model, data, F.cross_entropy, **options)


def dense() -> sl.Objective:
    layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    return sl.Objective(layers, (torch.randn(8, 6), torch.randint(0, 3, (8,))), F.cross_entropy)


def table(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def moved(found: sl.Objective) -> Passes:
    draws = torch.Generator().manual_seed(1)
    return passes(found, [torch.randn(found.size, generator=draws, dtype=found.dtype)])


@no_onednn
@pytest.mark.parametrize("name", NETS)
def test_fused_passes_say_the_same_at_other_points(name: str) -> None:
    make, convolutions, left = NETS[name]
    these = moved(objective(make, microbatch=5))
    for a in (0.0, 0.2, -1.0):
        plainly, fused = these.one((a,)), these.played((a,))
        assert fused.loss == pytest.approx(plainly.loss, rel=3e-6)
        assert fused.accuracy == plainly.accuracy
    found = Counter(step.operation for step in these.tapes[0].program.steps)
    assert found[convolved] == convolutions
    assert {operation: found[operation] for operation in left} == left


@no_onednn
def test_a_plane_of_a_convolutional_net_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = objective(Residual)
    monkeypatch.setitem(points.SMALL, "cpu", 0)
    before = {name: value.clone() for name, value in found.module.state_dict().items()}
    surface = sl.landscape.plane(found, steps=5)
    assert surface.provenance["engine"] == "one by one, fused"
    assert 0 <= surface.provenance["check"] <= 2e-6
    monkeypatch.setattr(points, "_chosen", lambda *_: points.Way())
    loop = sl.landscape.plane(found, steps=5)
    assert loop.provenance["engine"] == "one by one"
    torch.testing.assert_close(table(surface.losses), table(loop.losses), rtol=2e-6, atol=0)
    for name, value in found.module.state_dict().items():
        assert torch.equal(value, before[name])


@no_onednn
def test_a_wrong_fusion_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Passes.played
    wrong = lambda self, place: right(self, tuple(1.01 * a for a in place))  # noqa: E731
    monkeypatch.setitem(points.ALONE, "fused", wrong)
    monkeypatch.setitem(points.SMALL, "cpu", 0)
    surface = sl.landscape.plane(objective(Residual), steps=3)
    assert surface.provenance["engine"] == "one by one"
    assert any("not one by one, fused: it differed" in note for note in surface.provenance["notes"])


class Strided(nn.Module):
    """One that reads memory in the order that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return torch.as_strided(x, (len(x), 3), (x.stride(0), 2))


class Noted(nn.Module):
    """One that computes in numpy: a tape would hold numbers of the point it was made at."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return x.mean((2, 3)) * torch.from_numpy(x.detach().mean((2, 3)).numpy() ** 2)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(dense, id="no convolutions"),
        pytest.param(lambda: objective(Residual, dtype=torch.float64), id="float64"),
        pytest.param(lambda: objective(Noted), id="out of sight"),
        pytest.param(lambda: objective(Strided), id="strides"),
    ],
)
def test_what_cannot_be_fused_is_left_as_it_is(made: Callable[[], sl.Objective]) -> None:
    assert moved(made()).tapes == ()


@no_onednn
def test_small_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    found = objective(Residual, microbatch=4)
    assert len(found.batches) == 3
    assert len(moved(found).tapes) == 1
    monkeypatch.setattr("spiritlevel.landscape.passes.TOGETHER", 8)
    these = moved(found)
    assert len(these.tapes) == 2
    assert these.played((0.2,)).loss == pytest.approx(these.one((0.2,)).loss, rel=3e-6)


@no_onednn
def test_batches_are_joined_only_where_that_changes_no_loss() -> None:
    """BatchNorm that sees its batch makes each batch a loss of its own, and is left as it is."""
    found = objective(Residual, mode="train").on(
        [(torch.randn(4, 3, 8, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
    )
    these = moved(found)
    assert len(these.tapes) == 3
    assert these.played((0.2,)).loss == pytest.approx(these.one((0.2,)).loss, rel=3e-6)
    made = Counter(step.operation for step in these.tapes[0].program.steps)
    assert (made[convolved], made[NORM]) == (1, 2)


@no_onednn
def test_memory_bounds_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    found = objective(Residual, params="three.*")
    assert len(moved(found).tapes) == 1
    monkeypatch.setattr("spiritlevel.landscape.passes.free_bytes", lambda device: 1000)
    assert moved(found).tapes == ()
