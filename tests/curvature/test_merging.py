"""BatchNorm merged into the layer before it: the same products, or no merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import engine_of, randn
from spiritlevel.curvature.ladder import climb
from spiritlevel.curvature.merging import merging
from spiritlevel.curvature.products import hessian_by

Y = torch.arange(14) % 3


def worn(net: nn.Module) -> nn.Module:
    """With statistics, gains and shifts that are none of a new network."""
    torch.manual_seed(0)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
                if part.running_mean is not None and part.running_var is not None:
                    part.running_mean.normal_()
                    part.running_var.uniform_(0.3, 3.0)
                for own in (part.weight, part.bias):
                    if own is not None:
                        own.normal_()
    return net.double().eval()


def images(n: int = 14) -> Tensor:
    return randn(n * 72).reshape(n, 2, 6, 6)


def convolutions(bias: bool = True, affine: bool = True, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=bias, groups=groups),
        nn.BatchNorm2d(4, affine=affine),
        nn.Softplus(),
        nn.Conv2d(4, 4, 3, bias=bias, padding_mode="circular", padding=1),
        nn.BatchNorm2d(4, eps=0.1, affine=affine),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(36, 6, bias=bias),
        nn.BatchNorm1d(6, affine=affine),
        nn.Tanh(),
        nn.Linear(6, 3),
    )


def plain(objective: sl.Objective) -> sl.Operator:
    """The Hessian of the model as it is."""
    return hessian_by(climb(objective), objective)


def assert_same_products(objective: sl.Objective) -> None:
    vectors = [randn(objective.size, seed=seed) for seed in range(3)]
    found, truth = sl.hessian(objective), plain(objective)
    for v in vectors:  # from the beginning, recorded, played
        torch.testing.assert_close(found @ v, truth @ v, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [sl.hessian, sl.ggn, sl.fisher])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"affine": False}, {"groups": 2}])
def test_products_are_those_of_a_plain_second_derivative(
    kind: Callable[[sl.Objective], sl.Operator], options: dict[str, bool]
) -> None:
    net = worn(convolutions(**options))
    objective = sl.Objective(net, (images(), Y), F.cross_entropy, microbatch=5)
    operator = kind(objective)
    v = randn(objective.size)
    found = [operator @ v for _ in range(3)][-1]
    engine = engine_of(operator)
    assert len(engine.merging.pairs) == 3
    assert all(taken_for is engine.merged for taken_for in engine.taken_for.values())

    def loss(flat: Tensor) -> Tensor:
        return objective.total(objective.named(flat), objective.batches[0])[0]

    few = objective.on(objective.batches[:1])
    if kind is sl.hessian:
        truth = torch.func.hessian(loss)(objective.vector) / few.examples
        torch.testing.assert_close(sl.hessian(few).dense(), truth, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found, plain(objective) @ v, rtol=1e-9, atol=1e-11)
        return
    outputs = lambda flat: few.outputs(few.named(flat), few.batches[0])  # noqa: E731
    jacobian = torch.func.jacrev(outputs)(few.vector)
    p = outputs(few.vector).softmax(1)
    bend = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    truth = torch.einsum("nip,nij,njq->pq", jacobian, bend, jacobian) / few.examples
    torch.testing.assert_close(kind(few).dense(), truth, rtol=1e-9, atol=1e-11)


def test_frozen_parameters_stay_out() -> None:
    net = worn(convolutions())
    for name in ("1.weight", "3.bias", "7.weight"):
        net.get_parameter(name).requires_grad_(False)
    objective = sl.Objective(net, (images(), Y), F.cross_entropy)
    assert merging(objective)
    assert_same_products(objective)
    assert_same_products(sl.Objective(net, (images(), Y), F.cross_entropy, params="4.*"))


def test_at_other_statistics_than_the_models_own() -> None:
    objective = sl.Objective(worn(convolutions()), (images(), Y), F.cross_entropy)
    other = objective.at(
        objective.vector + 0.1 * randn(objective.size),
        buffers={"1.running_mean": randn(4), "4.running_var": torch.rand(4).double() + 0.5},
    )
    assert merging(other)
    assert_same_products(other)


class TwiceUsed(nn.Module):
    """What is before the norm is used behind it too: always, or where the images are bright."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.last, self.way = nn.Linear(4, 3), way
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out = self.norm(h)
        if self.way == "always":
            out = out + h
        elif self.way == "gain":
            out = out * self.norm.weight[:, None, None]
        elif self.way in ("bright", "bright gate"):
            bright = x.mean((1, 2, 3), keepdim=True) > 5
            gate = self.zero if self.way == "bright gate" else 1.0
            out = out + gate * h * bright if bool(bright.any()) else out
        elif self.way == "gate":
            out = out + self.zero * h
        elif self.way == "detached":
            out = out + self.zero * h.detach().square()
        elif self.way == "weight":
            out = out + self.zero * self.body.weight.square().sum()
        elif self.way == "again":
            out = out + self.norm(out)
        elif self.way == "layer again":
            out = out + self.body(torch.cos(x))
        return self.last(torch.tanh(out).mean((2, 3)))


WAYS = ["always", "gain", "again", "layer again", "gate", "detached", "weight"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_used_elsewhere_is_not_merged(way: str) -> None:
    objective = sl.Objective(worn(TwiceUsed(way)), (images(), Y), F.cross_entropy)
    assert not merging(objective)
    assert not engine_of(sl.hessian(objective)).merging
    assert not engine_of(sl.ggn(objective)).merging
    assert_same_products(objective)


@pytest.mark.parametrize("way", ["bright", "bright gate"])
def test_what_is_used_elsewhere_in_some_batches_is_not_merged_there(way: str) -> None:
    x, y = images(400), torch.arange(400) % 3
    x[80:120] += 10  # nobody looks into this batch for what tells of a curvature
    net = worn(TwiceUsed(way))
    objective = sl.Objective(net, (x, y), F.cross_entropy, microbatch=40)
    operator = sl.hessian(objective)
    assert engine_of(operator).merging
    assert_same_products(objective)
    operator @ randn(objective.size)
    taken_for = engine_of(operator).taken_for
    assert [i for i in taken_for if taken_for[i] is objective] == [2]


def test_what_only_another_way_vouches_for_is_not_merged() -> None:
    """At a kink no difference agrees, so that none speaks for the merged model."""

    class Kinked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kink = convolutions(), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            out = self.body(x)
            return out + torch.relu(self.kink * out)

    objective = sl.Objective(worn(Kinked()), (images(), Y), F.cross_entropy)
    assert merging(objective)
    assert not engine_of(sl.hessian(objective)).merging
    assert_same_products(objective)


class Halved(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


def doubled(_: nn.Module, given: object, made: Tensor) -> Tensor:
    return 2 * made


def unusual() -> dict[str, nn.Module]:
    """Networks of which the first norm, and no other, is not one to merge."""
    own = convolutions()
    own[0] = Halved(2, 4, 3, stride=2, padding=1)
    normed = convolutions()
    torch.nn.utils.parametrizations.weight_norm(normed[0])
    tied = convolutions()
    tied[3].bias = tied[0].bias
    hooked = convolutions()
    hooked[0].register_forward_hook(doubled)
    batch = convolutions()
    batch[1] = nn.BatchNorm2d(4, track_running_stats=False)
    return {"own": own, "parametrized": normed, "hooked": hooked, "batch statistics": batch}


@pytest.mark.parametrize("name", list(unusual()))
def test_unusual_layers_stay_as_they_are(name: str) -> None:
    objective = sl.Objective(worn(unusual()[name]), (images(), Y), F.cross_entropy)
    assert set(merging(objective).pairs) <= {"3", "7"}
    assert_same_products(objective)


def test_tied_tensors_are_not_merged() -> None:
    net = convolutions()
    net[3].bias = net[0].bias
    objective = sl.Objective(worn(net), (images(), Y), F.cross_entropy)
    assert set(merging(objective).pairs) == {"7"}
    assert_same_products(objective)


def test_statistics_of_the_batch_are_not_merged() -> None:
    net = worn(convolutions()).train()
    objective = sl.Objective(net, (images(), Y), F.cross_entropy, mode="train")
    assert not merging(objective)
    assert_same_products(objective)


def test_the_users_model_keeps_its_norms() -> None:
    net = worn(convolutions(bias=False))
    norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    objective = sl.Objective(net, (images(), Y), F.cross_entropy)
    sl.hessian(objective) @ randn(objective.size)
    assert [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))] == norms
    assert isinstance(objective.module.get_submodule("1"), nn.BatchNorm2d)
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Domains(nn.Module):
    """In bright batches the norm is another one, or not of what the layer makes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.last, self.way = nn.Linear(2, 3), way
        self.a, self.b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.zeros(2, 9))
        self.twin = nn.Parameter(self.body.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        bright = bool(x.mean() > 5)
        if bright and self.way in ("adapter", "twin"):
            weight = self.body.weight + (self.a @ self.b).reshape(2, 1, 3, 3)
            weight = self.twin if self.way == "twin" else weight
            h = torch.func.functional_call(self.body, {"weight": weight}, (x,))
        else:
            h = self.body(x)
        if self.way == "eps":
            self.norm.eps = 1.0 if bright else 1e-5
        out = self.norm(x if bright and self.way == "another input" else h)
        if bright and self.way == "statistics":
            found = sum(b.sum() for name, b in self.named_buffers() if "var" in name)
            out = out + self.b.sum() * found
        return self.last(F.softplus(x + out).mean((2, 3)))


@pytest.mark.parametrize("kind", [sl.hessian, sl.ggn])
@pytest.mark.parametrize("way", ["adapter", "twin", "another input", "eps", "statistics"])
def test_batches_in_which_a_norm_is_another_one_are_not_merged(
    kind: Callable[[sl.Objective], sl.Operator], way: str
) -> None:
    """Also where that makes no difference to predictions: an adapter at zero, a gain of zero."""
    net = worn(Domains(way))
    with torch.no_grad():
        if way == "eps":
            net.get_parameter("norm.weight").zero_()
        if way == "another input":  # as layer and norm are one
            net.get_parameter("body.weight").zero_()
            net.get_parameter("body.weight")[[0, 1], [0, 1], 1, 1] = 1.0
            net.get_parameter("body.bias").zero_()
        if way in ("another input", "twin"):  # as is the norm
            net.get_buffer("norm.running_mean").zero_()
            net.get_buffer("norm.running_var").fill_(1 - 1e-5)
            net.get_parameter("norm.weight").fill_(1.0)
            net.get_parameter("norm.bias").zero_()
    x, y = images(400), torch.arange(400) % 3
    x[80:120] += 10  # nobody looks into this batch for what tells of a curvature
    objective = sl.Objective(net, (x, y), F.cross_entropy, microbatch=40)
    operator = kind(objective)
    found = operator.dense()
    engine = engine_of(operator)
    assert [i for i, one in engine.taken_for.items() if one is objective] == [2]
    plain = [_unmerged(objective.on([batch], keep_count=True), kind) for batch in objective.batches]
    torch.testing.assert_close(found, sum(plain), rtol=1e-9, atol=1e-11)


def _unmerged(objective: sl.Objective, kind: Callable[[sl.Objective], sl.Operator]) -> Tensor:
    """By torch.func, of the model as it is."""
    (batch,) = objective.batches
    if kind is sl.hessian:
        loss = lambda flat: objective.total(objective.named(flat), batch)[0]  # noqa: E731
        return torch.func.hessian(loss)(objective.vector) / objective.count
    outputs = lambda flat: objective.outputs(objective.named(flat), batch)  # noqa: E731
    jacobian, p = torch.func.jacrev(outputs)(objective.vector), outputs(objective.vector).softmax(1)
    bend = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("nip,nij,njq->pq", jacobian, bend, jacobian) / objective.count


class Keeping(nn.Module):
    """Keeps what it made, as people do to look at features."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.body, self.norm, self.last = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 3)
        self.kept, self.features = kept, None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.body(x)))
        kept = {"list": [h], "dict": {"h": h}, "tuple": (h, h.mean()), "set": frozenset([h])}
        self.features = kept[self.kept]
        return self.last(h.mean((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kept", ["list", "dict", "tuple", "set"])
def test_what_a_model_keeps_of_its_last_run_is_no_hindrance(kept: str, dtype: torch.dtype) -> None:
    objective = sl.Objective(
        worn(Keeping(kept)).to(dtype), (images().to(dtype), Y), F.cross_entropy
    )
    v = randn(objective.size).to(dtype)
    loss = lambda flat: objective.total(objective.named(flat), objective.batches[0])[0]  # noqa: E731
    truth = torch.func.jvp(torch.func.grad(loss), (objective.vector,), (v,))[1] / len(Y)
    close = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(sl.hessian(objective) @ v, truth, rtol=close, atol=close)
    push = sl.ggn(objective)
    assert float(v @ (push @ v)) > 0


class Sequences(nn.Module):
    """The channels of the norm are the units, or the steps of a sequence; both make nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.norm(input=self.body(x)) + x)
        return self.last(z if z.ndim == 2 else (z * torch.arange(1, 5).to(z)).mean(2))


def test_units_along_another_axis_are_not_merged() -> None:
    net = worn(Sequences())
    with torch.no_grad():
        net.get_parameter("norm.weight").zero_()
        net.get_parameter("norm.bias").zero_()
    shapes = [(5, 4), (5, 4, 4), (5, 4)]
    data = [(randn(*shape, seed=i), torch.arange(5) % 3) for i, shape in enumerate(shapes)]
    objective = sl.Objective(net, data, F.cross_entropy)
    found, offered = sl.hessian(objective).dense(), merging(objective)
    merged = offered.of(objective)
    assert [offered.fits(objective, merged, b) for b in objective.batches] == [True, False, True]
    plain = [_unmerged(objective.on([b], keep_count=True), sl.hessian) for b in objective.batches]
    torch.testing.assert_close(found, sum(plain), rtol=1e-9, atol=1e-11)


def test_what_holds_itself_or_is_not_there_yet_is_no_hindrance() -> None:
    class Lazy(Mapping[str, Tensor]):
        def __getitem__(self, key: str) -> Tensor:
            raise KeyError("not loaded yet")

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    net = worn(convolutions())
    circle: list[object] = []
    circle.append(circle)
    net.circle, net.lazy = circle, Lazy()  # type: ignore[assignment]
    assert_same_products(sl.Objective(net, (images(), Y), F.cross_entropy))
