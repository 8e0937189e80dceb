"""Recorded products: the same numbers as products from the beginning, or no recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, CASES, Case, engine_of, randn
from spiritlevel.base import memory
from spiritlevel.curvature import engine
from spiritlevel.curvature import tape as tape_module
from spiritlevel.curvature.ladder import jvp_of_gradient
from spiritlevel.curvature.tape import Unrecordable, record

Make = Callable[[sl.Objective], sl.Operator]
KINDS: dict[str, Make] = {
    "hessian": sl.hessian,
    "ggn": sl.ggn,
    "sampled fisher": lambda objective: sl.fisher(objective, "sampled"),
}


def never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise Unrecordable("for the sake of the test")

    monkeypatch.setattr(engine, "record", refuse)


# cells written into memory that others see: recorded by nobody, right all the same
FROM_THE_BEGINNING = {"LSTM", "GRU"}


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_played_products_are_those_from_the_beginning(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = case.objective()
    if kind == "ggn" and objective.loss.on_outputs is None:
        pytest.skip("no Gauss-Newton matrix of a loss that does not see outputs")
    operator = KINDS[kind](objective)
    block = torch.stack([randn(objective.size, seed=seed) for seed in range(4)], dim=1)
    found = torch.cat([operator @ block[:, :1], operator @ block[:, 1:]], dim=1)
    assert len(engine_of(operator).tapes) == (
        0 if case.name in FROM_THE_BEGINNING else len(objective.batches)
    )
    never_recorded(monkeypatch)
    truth = KINDS[kind](objective) @ block
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12 * float(truth.abs().max()))


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return net, randn(12, 4), torch.arange(12) % 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_batch_has_its_own_tape_and_one_program(kind: str) -> None:
    net, x, y = small()
    cut = KINDS[kind](sl.Objective(net, (x, y), F.cross_entropy, microbatch=4))
    v = randn(cut.size)
    made = [cut @ v for _ in range(3)][-1]
    tapes = engine_of(cut).tapes
    assert sorted(tapes) == [0, 1, 2]
    assert len({id(tape.program) for tape in tapes.values()}) == 1
    if kind != "sampled fisher":  # whose draws belong to the batches
        whole = KINDS[kind](sl.Objective(net, (x, y), F.cross_entropy))
        torch.testing.assert_close(made, whole @ v)


class WritesInPlace(nn.Module):
    """Operations in place: on whole tensors, on views, through an alias that is read later."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = nn.Linear(4, 6), nn.Linear(6, 3), way

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.way == "whole":
            hidden = F.silu(hidden.mul_(2.0).add_(1.0))
        elif self.way == "view":
            hidden = torch.tanh(hidden)
            hidden = hidden.clone()
            hidden[:, 0] = hidden[:, 1] * 3
        else:
            room = torch.zeros_like(hidden)
            seen = room[:, 1:3]
            room.copy_(torch.tanh(hidden))
            hidden = room * seen.sum(1, keepdim=True)
        return self.last(hidden)


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("way", ["whole", "view", "alias"])
def test_what_is_written_in_place_is_right(
    way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    _, x, y = small()
    objective = sl.Objective(WritesInPlace(way).double(), (x, y), F.cross_entropy)
    operator = KINDS[kind](objective)
    vectors = [randn(objective.size, seed=seed) for seed in range(3)]
    found = [operator @ v for v in vectors]
    never_recorded(monkeypatch)
    plain = KINDS[kind](objective)
    for v, product in zip(vectors, found, strict=True):
        torch.testing.assert_close(product, plain @ v)


def test_dropout_is_drawn_once_and_held(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    _, x, y = small()
    objective = sl.Objective(net, (x, y), F.cross_entropy, mode="train", seed=3)
    operator = sl.hessian(objective)
    v = randn(objective.size)
    found = [operator @ v for _ in range(3)]
    assert len(engine_of(operator).tapes) == 1
    never_recorded(monkeypatch)
    for product in found:
        torch.testing.assert_close(product, sl.hessian(objective) @ v, rtol=1e-12, atol=0)


def test_what_a_vector_decides_cannot_be_recorded() -> None:
    scale = randn(5)
    for product, reason in {
        lambda v: scale * v if float(v[0]) > 0 else v: "depends on the vector",
        lambda v: scale[: len(v[v > 0])].sum() * v: "depends on the vector",
        lambda v: v * torch.rand_like(v): "depends on the vector",
        lambda v: torch.frexp(v, out=(torch.empty(5).double(), torch.empty(5).int()))[0]: "writes",
        lambda v: scale * 2: "does not depend",
        lambda v: (seen := scale.clone(), seen.mul_(v), seen.view(5) * v)[2] * 1: None,
    }.items():
        if reason is None:
            _, tape = record(product, randn(5, seed=1))
            torch.testing.assert_close(tape(randn(5, seed=2)), product(randn(5, seed=2)))
        else:
            with pytest.raises(Unrecordable, match=reason):
                record(product, randn(5, seed=1))


def test_what_is_changed_after_its_use_is_held_as_it_was() -> None:
    def product(v: Tensor) -> Tensor:
        factor = torch.ones(5).double()
        once = v * factor
        factor.add_(1.0)
        twice = once * factor
        factor.zero_()
        return twice + factor

    _, tape = record(product, randn(5))
    torch.testing.assert_close(tape(randn(5, seed=2)), 2 * randn(5, seed=2), rtol=0, atol=0)


def test_autocast_of_the_caller_does_not_reach_a_tape() -> None:
    net, x, y = small()
    objective = sl.Objective(net.float(), (x.float(), y), F.cross_entropy)
    operator = sl.hessian(objective)
    v = randn(objective.size).float()
    plain = [operator @ v for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(operator @ v, plain[-1], rtol=0, atol=0)


def truth_twice(objective: sl.Objective) -> Tensor:
    dense = sl.hessian(objective).dense()
    return dense @ (dense @ randn(objective.size))


class OutOfSight(torch.autograd.Function):
    """a b in numpy, with the derivatives of derivatives: no operation of torch sees the vectors."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.from_numpy(a.detach().numpy() * b.detach().numpy())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        return OutOfSight.apply(g, b), OutOfSight.apply(g, a)  # type: ignore[return-value]


class ComputesInNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(OutOfSight.apply(hidden, hidden.sin()) + hidden)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("alike", [True, False])
def test_what_numpy_makes_of_a_vector_is_not_taken_for_a_constant(
    alike: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    _, x, y = small()
    objective = sl.Objective(ComputesInNumpy().double(), (x, y), F.cross_entropy)
    vectors = [randn(objective.size, seed=seed) for seed in range(4)]
    if alike:  # a first product that says nothing about other directions
        vectors[1] = vectors[0]
    operator = KINDS[kind](objective)
    found = [operator @ v for v in vectors]
    assert not engine_of(operator).tapes
    assert operator.remark is not None
    assert "it is wrong for another vector" in operator.remark()
    never_recorded(monkeypatch)
    plain = KINDS[kind](objective)
    for v, product in zip(vectors, found, strict=True):
        torch.testing.assert_close(product, plain @ v)


def test_tapes_take_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = small()
    objective = sl.Objective(net, (x, y), F.cross_entropy, microbatch=3)
    truth = sl.hessian(objective) @ randn(objective.size)
    operator = sl.hessian(objective)
    sizes = iter([2**40, 0])
    monkeypatch.setattr(engine, "free_bytes", lambda device: next(sizes))
    for _ in range(3):
        torch.testing.assert_close(operator @ randn(objective.size), truth, rtol=1e-12, atol=0)
    assert list(engine_of(operator).tapes) == [0]
    assert operator.remark is not None
    assert operator.remark() == "products of 1 of 4 batches recorded: memory for no more"
    crowded = sl.hessian(objective)
    monkeypatch.setattr(engine, "free_bytes", lambda device: 0)
    torch.testing.assert_close(crowded @ (crowded @ randn(objective.size)), truth_twice(objective))
    assert not engine_of(crowded).tapes


def test_out_of_memory_while_recording_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = small()
    objective = sl.Objective(net, (x, y), F.cross_entropy)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(engine, "record", full)
    operator = sl.hessian(objective)
    first, second = operator @ randn(objective.size), operator @ randn(objective.size)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert operator.remark is not None
    assert operator.remark() == "products of 0 of 1 batches recorded: memory for no more"


def test_whatever_a_recording_meets_the_product_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = small()
    objective = sl.Objective(net, (x, y), F.cross_entropy)

    def broken(*_: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(engine, "record", broken)
    operator = sl.hessian(objective)
    first, second = operator @ randn(objective.size), operator @ randn(objective.size)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert operator.remark is not None
    assert operator.remark() == "products of 0 of 1 batches recorded: NotImplementedError"


def test_a_tape_holds_tensors_without_their_history() -> None:
    net, x, y = small()
    objective = sl.Objective(net, (x, y), F.cross_entropy)
    with objective.smooth():
        v = randn(objective.size)
        _, tape = record(lambda u: jvp_of_gradient(objective, objective.batches[0], [u])[0], v)
    assert all(t.grad_fn is None and not t.requires_grad for t in tape.held)
    own = [*objective.params.values(), x]
    # activations and gradients of 12 examples at 6 + 3 units, some five times over, not more
    assert 12 * 9 * 8 <= tape.nbytes(own) <= 12 * 9 * 8 * 12
    torch.testing.assert_close(tape.program.graph()(v, *tape.held), tape(v), rtol=0, atol=0)


def test_zeros_that_are_symbols_are_no_danger() -> None:
    """Forward mode makes such of constants; times a number, torch reads memory they do not have."""
    zero = torch._efficientzerotensor((5,), dtype=torch.float64)

    def product(v: Tensor) -> Tensor:
        scaled = torch.ops.aten.mul.Scalar(zero, 2)
        return v * torch.ops.aten.add.Scalar(scaled, 3) + torch.ops.aten.add.Scalar(zero, 1)

    found, tape = record(product, randn(5))
    torch.testing.assert_close(found, 3 * randn(5) + 1)
    torch.testing.assert_close(tape(randn(5, seed=2)), 3 * randn(5, seed=2) + 1)


# Memory that runs out --------------------------------------------------------------------------


def warm(objective: sl.Objective) -> sl.Operator:
    operator = sl.hessian(objective)
    for seed in range(2):
        operator @ randn(objective.size, seed=seed)
    assert engine_of(operator).holds
    return operator


def test_tapes_are_let_go_when_memory_runs_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = BY_NAME["cnn with BatchNorm"].objective(microbatch=4)
    holder, other = warm(objective), sl.hessian(objective)
    v = randn(objective.size, seed=7)
    truth = holder @ v
    plain = engine_of(other).product

    def scarce(*args: Any) -> Tensor:
        if engine_of(holder).holds:
            raise torch.OutOfMemoryError("on a full device")
        return plain(*args)

    engine_of(other).product = scarce
    torch.testing.assert_close(other @ v, truth, rtol=1e-12, atol=1e-14)
    assert not engine_of(holder).holds
    torch.testing.assert_close(holder @ v, truth, rtol=1e-12, atol=1e-14)
    assert engine_of(holder).holds  # made again


def test_the_tapes_of_others_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where TorchScript, in which torch keeps some derivatives, says that memory ran out."""
    objective = BY_NAME["mlp"].objective()
    holder, other = warm(objective), sl.hessian(objective)
    v = randn(objective.size, seed=7)
    truth = holder @ v
    whole = engine.record

    def scarce(*args: Any) -> Any:
        if engine_of(holder).holds:
            raise RuntimeError("TorchScript: OutOfMemoryError: CUDA out of memory. Tried to")
        return whole(*args)

    monkeypatch.setattr(engine, "record", scarce)
    for _ in range(3):
        torch.testing.assert_close(other @ v, truth, rtol=1e-12, atol=1e-14)
    assert engine_of(other).holds
    assert not engine_of(holder).holds


def test_gradients_come_before_tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = BY_NAME["mlp"].objective()
    holder, truth = warm(objective), objective.gradient()
    plain = sl.Objective.gradient_sum

    def scarce(self: sl.Objective, batch: Any) -> Tensor:
        if engine_of(holder).holds:
            raise torch.OutOfMemoryError("on a full device")
        return plain(self, batch)

    monkeypatch.setattr(sl.Objective, "gradient_sum", scarce)
    torch.testing.assert_close(objective.gradient(), truth, rtol=0, atol=0)
    assert not engine_of(holder).holds


def test_a_tape_that_cannot_be_played_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = BY_NAME["mlp"].objective()
    holder = warm(objective)
    v = randn(objective.size, seed=7)
    truth = holder @ v

    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("on a full device")

    monkeypatch.setattr(tape_module.Tape, "__call__", full)
    torch.testing.assert_close(holder @ v, truth, rtol=1e-12, atol=1e-14)


def test_when_nobody_holds_anything_memory_has_run_out() -> None:
    attempts = []

    def action() -> None:
        attempts.append(1)
        raise torch.OutOfMemoryError("on a full device")

    for one in memory.holders():
        one.let_go()
    with pytest.raises(torch.OutOfMemoryError, match="on a full device"):
        memory.relieved(action)
    assert len(attempts) == 1
