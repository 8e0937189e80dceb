"""What a recording cannot see: room that is used again, numbers that were made elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import spiritlevel as sl
from cases import engine_of, randn
from spiritlevel.curvature.sight import Sight

CLASSES = torch.arange(12) % 3


class Outside(torch.autograd.Function):
    """x d, computed in numpy as its derivatives are: torch sees where they begin and end."""

    @staticmethod
    def forward(x: Tensor, d: Tensor) -> Tensor:
        return torch.from_numpy((x.detach().numpy() * d.detach().numpy()).copy())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, d = ctx.saved_tensors
        return Outside.apply(grad, d), Outside.apply(grad, x)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dd: Tensor) -> Any:  # type: ignore[override]
        x, d = ctx.saved_tensors
        return Outside.apply(dx, d) + Outside.apply(x, dd)


class Workspace(nn.Module):
    """Keeps a room, and writes what it needs of the inputs into it."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.f, self.l = nn.Linear(4, 6), nn.Linear(6, 3)
        room = torch.zeros(64, 1, dtype=torch.float64)
        if buffer:
            self.register_buffer("room", room)
        else:
            self.room = room

    def forward(self, x: Tensor) -> Tensor:
        room = self.room[: len(x)]
        with torch.no_grad():
            room.copy_(x.abs().sum(1, keepdim=True))
        return self.l(torch.tanh(self.f(x)) * room)


def dense_hessian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in shapes.values()])
        named = {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return F.cross_entropy(functional_call(model, named, (x,)), y)

    found = torch.autograd.functional.hessian(loss, flat)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("buffer", [False, True])
def test_room_that_is_written_into_again_is_copied(buffer: bool) -> None:
    torch.manual_seed(0)
    model, x = Workspace(buffer).double(), randn(12, 4)
    model(x)  # then the first pass changes nothing, and nobody sees that it writes
    dense = dense_hessian(model, x, CLASSES)
    objective = sl.Objective(model, (x, CLASSES), F.cross_entropy, microbatch=4)
    operator = sl.hessian(objective)
    vectors = [randn(objective.size, seed=seed) for seed in range(5)]
    for v in vectors:
        torch.testing.assert_close(operator @ v, dense @ v, rtol=1e-12, atol=1e-14)
    assert len(engine_of(operator).tapes) == 3
    objective.on([(randn(12, 4, seed=9), CLASSES)]).value()  # somebody else uses the room
    v = vectors[0]
    torch.testing.assert_close(operator @ v, dense @ v, rtol=1e-12, atol=1e-14)


def test_buffers_are_held_once_for_all_batches() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    objective = sl.Objective(net, (randn(12, 4), CLASSES), F.cross_entropy, microbatch=4)
    operator = sl.ggn(objective)
    for seed in range(2):
        operator @ randn(objective.size, seed=seed)
    first, *others = engine_of(operator).tapes.values()
    assert len(others) == 2
    assert first.copies
    for tape in others:
        assert not tape.strange
        assert all(tape.held[i] is first.held[i] for i in first.copies)


class Gated(nn.Module):
    """One way of two for every example: the second computes in numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.l = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        here, h = (x[:, :1] > 0).to(x.dtype), self.b(x)
        numpy: Any = Outside.apply(h, h.sin())
        return self.l(here * torch.tanh(self.a(x)) + (1 - here) * numpy)


@pytest.mark.parametrize("make", [sl.hessian, sl.ggn], ids=["hessian", "ggn"])
def test_what_only_later_batches_compute_elsewhere_is_seen(make: Any) -> None:
    torch.manual_seed(0)
    x = randn(12, 4)
    x = x[x[:, 0].argsort(descending=True)]
    data = (x, CLASSES)
    objective = sl.Objective(Gated().double(), data, F.cross_entropy, microbatch=2)
    operator, fresh = make(objective), make(objective)
    engine_of(fresh).recording = False
    for seed in range(5):
        v = randn(objective.size, seed=seed)
        torch.testing.assert_close(operator @ v, fresh @ v, rtol=1e-12, atol=1e-14)
    assert "it is wrong for another vector" in engine_of(operator).note
    assert float((operator @ torch.zeros_like(objective.vector)).norm()) == 0


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


def test_vectors_that_are_zero_where_it_matters_tell_nothing() -> None:
    """Columns of the identity: the first two do not see the last three parameters."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        x, y = batch
        scale: Any = model.scale
        square: Any = Outside.apply(scale, scale)
        whole = F.cross_entropy(model(x), y, reduction="sum") + len(x) * square.square().sum()
        return whole, len(x)

    torch.manual_seed(0)
    data = randn(8, 3), torch.arange(8) % 2
    objective = sl.Objective(Scales().double(), data, loss)
    span = objective.spans["scale"]
    order = torch.eye(objective.size, dtype=torch.float64)
    others = [i for i in range(objective.size) if not span.start <= i < span.stop]
    operator = sl.hessian(objective)
    for i in others[:2]:
        operator @ order[i]
    found = [float((operator @ order[i])[i]) for i in range(span.start, span.stop)]
    assert found == pytest.approx([3.0, 12.0, 48.0])


def test_no_product_is_a_function_of_its_vector_for_autograd() -> None:
    """The first or the fifth: a played product has no graph, so no product has one."""
    objective = sl.Objective(nn.Linear(4, 3), (randn(12, 4).float(), CLASSES), F.cross_entropy)
    operator = sl.hessian(objective)
    v = torch.randn(objective.size, requires_grad=True)
    assert [(operator @ v).requires_grad for _ in range(4)] == [False] * 4


def test_a_block_without_columns_has_a_product_without_columns() -> None:
    objective = sl.Objective(nn.Linear(4, 3), (randn(12, 4).float(), CLASSES), F.cross_entropy)
    assert (sl.hessian(objective) @ torch.zeros(objective.size, 0)).shape == (objective.size, 0)


def test_where_numbers_come_from() -> None:
    constant, there, elsewhere = (torch.ones(3) for _ in range(3))
    sight = Sight([constant], [there])
    assert [sight.lasts(t) for t in (constant, there, elsewhere)] == [True, False, False]
    assert [sight.strange(t) for t in (constant, there, elsewhere)] == [False, False, True]
    aten = torch.ops.aten

    def run(func: Any, *args: Any) -> Any:
        made = func(*args)
        sight.note(func, args, {}, made)
        return made

    known = run(aten.mul.Tensor, constant, there)
    assert sight.lasts(known)
    assert not sight.strange(known)
    derived = run(aten.mul.Tensor, constant, elsewhere)
    assert sight.lasts(derived)
    assert sight.strange(derived)
    room = run(aten.empty.memory_format, [3])
    assert sight.strange(room)  # a kernel that torch does not know may fill it
    run(aten.copy_.default, room, constant)
    assert not sight.strange(room)
    run(aten.add_.Tensor, room, derived)
    assert sight.strange(room)
