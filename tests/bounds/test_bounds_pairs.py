"""Trainings on neighbouring data sets, against trainings written out and against the theorem."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel import Objective, SpiritlevelError
from spiritlevel.bounds.affine import constants
from spiritlevel.bounds.pairs import stability


def logistic(n: int = 60, inputs: int = 1, bias: bool = False) -> Objective:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=draws, dtype=torch.float64)
    noise = torch.randn(n, generator=draws, dtype=torch.float64)
    y = (x[:, :1] + 0.5 * noise[:, None] > 0).double()
    torch.manual_seed(1)
    return Objective(
        nn.Linear(inputs, 1, bias=bias).double(), (x, y), F.binary_cross_entropy_with_logits
    )


def hidden(activation: type[nn.Module] = nn.ReLU) -> Objective:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=draws, dtype=torch.float64)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 3)).double()
    return Objective(net, (x, torch.arange(30) % 3), F.cross_entropy)


def written_out(o: Objective, *, pairs: int, steps: int, rate: float, seed: int) -> list[float]:
    """|w - w'| of one-dimensional logistic regression by its own formula, the same draws."""
    draws = torch.Generator().manual_seed(seed)
    order = torch.randperm(o.examples, generator=draws)
    own, held = order[:-pairs], order[-pairs:]
    out = own[torch.randperm(len(own), generator=draws)[:pairs]]
    x, y = (t[:, 0] for t in o.batches[0])
    w = torch.full((pairs, 2), float(o.vector), dtype=torch.float64)
    for _ in range(steps):
        drawn = own[torch.randint(len(own), (pairs, 1), generator=draws)]
        both = torch.cat([drawn, torch.where(drawn == out[:, None], held[:, None], drawn)], 1)
        w = w - rate * (torch.sigmoid(w * x[both]) - y[both]) * x[both]
    return (w[:, 0] - w[:, 1]).abs().tolist()


def test_it_is_sgd_on_two_data_sets_that_differ_in_one_example() -> None:
    o, asked = logistic(), {"pairs": 5, "steps": 80, "rate": 0.1, "seed": 3}
    found, apart = stability(o, **asked), written_out(o, **asked)  # type: ignore[arg-type]
    assert found.distance.value == pytest.approx(sum(apart) / 5, rel=1e-12)
    assert found.course[-1].largest == pytest.approx(max(apart), rel=1e-12)
    assert (found.examples, found.steps, found.course[0].step) == (55, 80, 1)
    assert [a.step for a in found.course] == sorted({a.step for a in found.course})


@pytest.mark.parametrize("seed", range(3))
def test_hardt_bounds_the_distance_where_the_loss_is_convex(seed: int) -> None:
    """|w - w'| <= (2 L / n) sum rate in the mean, and loss changes by no more than L times it."""
    o = logistic(inputs=2, bias=True)
    found = stability(o, pairs=10, steps=100, rate=0.05, seed=seed)
    x = torch.cat([o.batches[0][0], torch.ones(60, 1, dtype=torch.float64)], 1)
    top = float(x.norm(dim=1).max())
    assert found.apart_bound == pytest.approx(2 * top * 100 * 0.05 / 50, rel=1e-9)
    assert found.apart_bound is not None
    assert found.bound is not None
    assert found.distance.value + 3 * found.distance.error <= found.apart_bound
    assert found.bound.value == pytest.approx(top * found.apart_bound, rel=1e-9)
    assert found.bound.delta is None
    assert found.steepest <= top
    assert found.smoothness is not None
    assert found.smoothness <= top**2 / 4
    assert found.widest <= top * found.course[-1].largest
    assert "convex theorem applies" in str(found)


def test_the_constants_are_never_exceeded_and_nearly_reached() -> None:
    """Of the softmax of three outputs: slopes to sqrt(2) |x|, curvature to |x|^2 / 2."""
    x = torch.tensor([[2.0]], dtype=torch.float64).repeat(4, 1)
    y = torch.tensor([0, 1, 2, 1])
    o = Objective(nn.Linear(1, 3, bias=False).double(), (x, y), F.cross_entropy)
    found = constants(o)
    assert (found.lipschitz, found.smoothness) == pytest.approx((2 * math.sqrt(2), 2.0))

    def loss(w: Tensor, label: int) -> Tensor:
        return F.cross_entropy(2 * w[None], torch.tensor([label]))

    sure = torch.tensor([30.0, 0.0, 0.0], dtype=torch.float64)
    steepest = torch.func.grad(loss)(sure, 1).norm()
    torch.testing.assert_close(float(steepest), found.lipschitz)
    torn = torch.tensor([30.0, 30.0, 0.0], dtype=torch.float64)
    bent = torch.linalg.eigvalsh(torch.func.hessian(loss)(torn, 1)).max()
    torch.testing.assert_close(float(bent), found.smoothness)


def test_the_gap_is_that_of_the_exchanged_examples() -> None:
    """Labels that mean nothing are learnt by heart: the loss on new ones is larger, and by how
    much the examples that were trained on and those that were not say by themselves."""
    o = hidden(nn.Tanh)
    found = stability(o, pairs=10, steps=300, rate=0.3, seed=1)
    assert found.gap.value > 3 * found.gap.error
    assert found.widest >= found.difference.value >= found.gap.value


def test_no_theorem_is_said_to_apply_where_its_premises_fail() -> None:
    cases: list[tuple[Objective, dict[str, Any], str]] = [
        (hidden(), {}, "there are hidden layers"),
        (logistic(), {"batch": 2}, "steps on one example"),
        (logistic(), {"rate": 10.0}, "wants steps of at most 2 / smoothness"),
        (logistic(), {"optimizer": lambda p: torch.optim.Adam(p, 1e-2)}, "about plain SGD"),
        (
            Objective(nn.Linear(3, 3).double(), hidden().batches[0], own_loss),
            {},
            "known for plain cross-entropies",
        ),
    ]
    for o, options, why in cases:
        found = stability(o, pairs=2, steps=5, **options)
        assert found.bound is None
        assert found.apart_bound is None
        assert why in found.applies
        assert found.distance.value >= 0


def own_loss(out: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(out, y, reduction="none") ** 2).mean()


def test_a_rectifier_behind_a_linear_layer_is_not_linear() -> None:
    bent = Objective(
        nn.Sequential(nn.Linear(3, 3), nn.ReLU()).double(), hidden().batches[0], F.cross_entropy
    )
    with pytest.raises(SpiritlevelError, match="outputs are not linear in them"):
        constants(bent)


def test_an_optimizer_of_ones_own_is_what_sgd_is() -> None:
    """Plain SGD by torch is the same training, and momentum another one."""
    o, asked = hidden(), {"pairs": 3, "steps": 20, "seed": 2, "batch": 2}
    plain = stability(o, rate=0.1, **asked)  # type: ignore[arg-type]
    torchs = stability(o, optimizer=lambda p: torch.optim.SGD(p, 0.1), **asked)  # type: ignore[arg-type]
    heavy = stability(o, optimizer=lambda p: torch.optim.SGD(p, 0.1, 0.9), **asked)  # type: ignore[arg-type]
    assert torchs.distance.value == pytest.approx(plain.distance.value, rel=1e-12)
    assert heavy.distance.value != pytest.approx(plain.distance.value, rel=1e-3)


def test_the_start_is_the_one_given_and_nothing_is_touched() -> None:
    o = logistic()
    before, state = o.vector.clone(), torch.get_rng_state()
    start = torch.zeros(1, dtype=torch.float64)
    one = stability(o, pairs=3, rate=0.1, init=start)
    other = stability(o.at(start), pairs=3, rate=0.1)
    assert one.distance.value == other.distance.value != 0
    assert one.distance.value != stability(o, pairs=3, rate=0.1).distance.value
    assert torch.equal(o.vector, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_rates_may_fall() -> None:
    o = logistic()
    falling = stability(o, pairs=3, steps=10, rate=lambda t: 0.1 / t)
    assert falling.apart_bound == pytest.approx(
        2 * constants(o).lipschitz / 57 * sum(0.1 / t for t in range(1, 11)), rel=1e-9
    )


def test_an_interruption_keeps_what_is_done() -> None:
    o, calls = logistic(), []

    def interrupting(params: list[Tensor]) -> torch.optim.Optimizer:
        class Pressing(torch.optim.SGD):
            def step(self, *args: Any) -> None:  # type: ignore[override]
                calls.append(1)
                if len(calls) == 2 * 4 * 7:  # the seventh step of eight trainings
                    signal.raise_signal(signal.SIGINT)
                super().step(*args)

        return Pressing(params, 0.1)

    found = stability(o, pairs=4, steps=50, optimizer=interrupting)
    assert found.interrupted == "7 of 50 steps were done"
    assert found.steps == found.course[-1].step == 7
    whole = stability(o, pairs=4, steps=7, optimizer=lambda p: torch.optim.SGD(p, 0.1))
    assert found.distance.value == whole.distance.value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pairs": 1}, "pairs=1: give a whole number of at least 2"),
        ({"pairs": 59}, "two have to be left"),
        ({"steps": 0}, "steps=0"),
        ({"rate": 0.0}, "rate=0.0: give a positive number"),
        ({"rate": lambda t: 1 - t}, r"rate\(1\)=0.0"),
        ({"batch": 0}, "batch=0"),
        ({"optimizer": 3}, "optimizer is a int"),
        ({"seed": "one"}, "seed='one'"),
        ({"init": torch.zeros(2)}, "init has the shape"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpiritlevelError, match=why):
        stability(logistic(), **options)


def test_dropout_and_statistics_of_batches_are_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    o = Objective(net.double(), hidden().batches[0], F.cross_entropy, mode="train", seed=0)
    with pytest.raises(SpiritlevelError, match="without dropout"):
        stability(o)


def test_a_training_that_diverges_says_so() -> None:
    x = torch.ones(10, 1, dtype=torch.float64)
    o = Objective(nn.Linear(1, 1).double(), (x, x), F.mse_loss)
    with pytest.raises(SpiritlevelError, match="give a smaller rate"):
        stability(o, pairs=2, steps=400, rate=1e3)
