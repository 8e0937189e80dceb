"""Norms, noise and rounding of a network: against numbers written out, and refused in time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fits import by_adam
from spiritlevel import Objective, SpiritlevelError
from spiritlevel.bounds import margins, norms
from spiritlevel.bounds.architecture import chain
from spiritlevel.bounds.noisy import noisy
from spiritlevel.bounds.rounding import rounded, written
from spiritlevel.bounds.sharpness import expected_sharpness
from spiritlevel.measures.norms import l1_path_norms
from spiritlevel.results.bound import Bound
from spiritlevel.symmetry import symmetries


@functools.cache
def net(activation: type[nn.Module] = nn.ReLU, bias: bool = True) -> Objective:
    """4-6-3 on three clouds."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = 0.3 * torch.randn(60, 4, generator=draws, dtype=torch.float64) + 2 * F.one_hot(y, 4)
    torch.manual_seed(0)
    layers = nn.Linear(4, 6, bias=bias), activation(), nn.Linear(6, 3, bias=bias)
    model = nn.Sequential(*layers).double()
    by_adam(model, x, y)
    return Objective(model, (x, y), F.cross_entropy)


def test_the_best_margin_is_chosen_and_the_numbers_are_those_of_the_matrices() -> None:
    o = net(bias=False)
    found, own = norms.spectral_margin(chain(o)), chain(o)
    a = list(o.params.values())
    top = [float(torch.linalg.matrix_norm(one, 2)) for one in a]
    rows = [float(one.norm(dim=1).sum()) for one in a]

    def at(margin: float) -> float:
        below = float((own.margins <= margin).double().mean())
        return margins.spectral_margin(
            error=below,
            margin=margin,
            spectral=top,
            distances=rows,
            inputs=float(o.batches[0][0].norm()),
            width=6,
            m=60,
        ).value

    values = [at(float(m)) for m in own.margins.sort().values[:30] if m > 0]
    assert found.value == pytest.approx(at(found["margin"]), rel=1e-9)
    assert min(values) <= found.value <= 1.05 * min(values)
    assert found.vacuous  # 60 examples are few


def test_no_bound_says_what_is_not_so_of_the_network() -> None:
    biased = norms.spectral_margin(chain(net()))
    assert not any("without biases" in said for said in biased.assumptions)
    assert any("constant input 1" in said for said in biased.assumptions)
    assert any("from weights of zero" in said for said in biased.assumptions)
    started = norms.spectral_margin(chain(net(), torch.zeros(51, dtype=torch.float64)))
    assert any("before training" in said for said in started.assumptions)
    free = norms.spectral_margin(chain(net(bias=False)))
    assert not any("constant input" in said for said in free.assumptions)
    premised = norms.spectral_frobenius(chain(net()))
    assert any("premised: that of the longest of the data" in s for s in premised.assumptions)


def test_the_path_norm_counts_every_path_to_one_output() -> None:
    o = net()
    w1, b1, w2, b2 = (p.abs() for p in o.params.values())
    by_output = w2 @ (w1.sum(1) + b1) + b2
    torch.testing.assert_close(l1_path_norms(o), by_output)
    found, x = norms.path(o, chain(o)), o.batches[0][0]
    norm = found["complexity"] / (2 * float(x.abs().max()) * math.sqrt(2 * math.log(2 * 5) / 60))
    assert float(by_output.max()) <= norm <= math.exp(1 / 20) * float(by_output.max())


def test_the_path_bound_is_that_of_the_whole_orbit() -> None:
    o = net()
    twin = symmetries(o).apply(o, symmetries(o).random(seed=1))
    assert norms.path(twin, chain(twin)).value == pytest.approx(norms.path(o, chain(o)).value)
    assert norms.spectral_margin(chain(twin)).value != pytest.approx(
        norms.spectral_margin(chain(o)).value, rel=1e-3
    )


def test_bounds_of_rectifiers_are_refused_to_others() -> None:
    bent = net(nn.Tanh)
    assert norms.spectral_margin(chain(bent)).value > 0
    for refused in (
        lambda: norms.spectral_frobenius(chain(bent)),
        lambda: norms.path(bent, chain(bent)),
    ):
        with pytest.raises(SpiritlevelError, match="has to be homogeneous"):
            refused()


def test_a_radius_is_taken_at_its_word_but_not_below_the_data() -> None:
    own = chain(net())
    far = norms.spectral_frobenius(own, radius=2 * own.radius)
    assert far.value > norms.spectral_frobenius(own).value
    assert any("(given)" in said for said in far.assumptions)
    with pytest.raises(SpiritlevelError, match=r"radius=0.5: an input of the data is longer"):
        norms.spectral_frobenius(own, radius=0.5)


def test_without_a_right_decision_there_is_no_margin() -> None:
    x = torch.ones(8, 2, dtype=torch.float64)
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
        model.bias.zero_()
    o = Objective(model, (x, torch.ones(8, dtype=torch.long)), F.cross_entropy)
    with pytest.raises(SpiritlevelError, match="no example is decided rightly"):
        norms.spectral_margin(chain(o))


# Rounding ---------------------------------------------------------------------------------------


def code(number: int) -> str:
    """Elias's gamma code of 1, 2, 3, ..."""
    digits = f"{number:b}"
    return "0" * (len(digits) - 1) + digits


def read(text: str) -> list[int]:
    found = []
    while text:
        zeros = len(text) - len(text.lstrip("0"))
        found.append(int(text[: 2 * zeros + 1], 2))
        text = text[2 * zeros + 1 :]
    return found


def test_a_rounded_network_can_be_read_from_its_bits() -> None:
    o, k = net(), 3
    start = torch.full_like(o.vector, 0.1)
    found = rounded(o, k, start)
    whole = ((o.vector - start) * 2**k).round().long().tolist()
    text = code(k + 1) + "".join(code(2 * z if z > 0 else 1 - 2 * z) for z in whole)
    assert found.bits == len(text)
    digits, *numbers = read(text)
    steps = [n // 2 if n % 2 == 0 else -(n // 2) for n in numbers]
    again = start + torch.tensor(steps).double() / 2 ** (digits - 1)
    torch.testing.assert_close(again, found.objective.vector, rtol=0, atol=1e-15)
    assert float((again - o.vector).abs().max()) <= 2**-k / 2 + 1e-15


def test_occam_is_that_of_the_network_as_it_is_written() -> None:
    o = net()
    found = written(o)
    there = rounded(o, int(found["digits"]))
    wrong = there.objective.predictions().argmax(1) != o.batches[0][1]
    assert found["error"] == float(wrong.double().mean())
    assert found["nats"] == pytest.approx(there.bits * math.log(2))
    assert found.value <= written(o.at(4 * o.vector)).value
    zero = written(o, init=o.vector)  # nothing to write but the digits: 51 weights of one bit
    assert zero["bits"] == 52


# Noise ------------------------------------------------------------------------------------------


def one_weight(weight: float) -> Objective:
    """sign(w x) on ten points that w > 0 decides rightly."""
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(weight)
    return Objective(model, (x, (x > 0).double()), F.binary_cross_entropy_with_logits)


def test_the_noise_is_the_one_that_is_said_and_so_is_the_bound() -> None:
    """All decisions turn round where w + n < 0: with probability Phi(-w / sigma)."""
    found = noisy(one_weight(0.1), draws=400)
    chance = 0.5 * math.erfc(0.1 / found["sigma"] / math.sqrt(2))
    assert abs(found["noisy error"] - chance) <= 4 * math.sqrt(chance * (1 - chance) / 400) + 1e-12
    again = expected_sharpness(
        error=found["error"],
        sharpness=found["sharpness"],
        norm=0.1,
        sigma=found["sigma"],
        m=10,
        delta=0.04,
        index=int(found["index"]),
    )
    assert found.value == again.value
    assert found["error"] + found["sharpness"] >= found["noisy error"]
    assert found.delta == 0.05
    assert any("from 400 draws" in said for said in found.assumptions)


def test_the_bound_from_the_start_pays_for_the_way_only() -> None:
    o = one_weight(0.1)
    near = noisy(o, init=o.vector)
    assert near["kl"] == 0.0
    assert noisy(o, draws=20, seed=1).value == noisy(o, draws=20, seed=1).value


# Refusals ---------------------------------------------------------------------------------------

BOTH: list[Callable[[Objective], Bound]] = [written, noisy]


@pytest.mark.parametrize("bound", BOTH)
def test_what_was_fitted_beside_the_weights_is_refused(bound: Callable[[Objective], Bound]) -> None:
    layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    o = Objective(nn.Sequential(*layers).double(), net().batches[0], F.cross_entropy)
    with pytest.raises(SpiritlevelError, match=r"running statistics '1\.running_mean' were made"):
        bound(o)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x).movedim(-1, 1)


@pytest.mark.parametrize("bound", [*BOTH, chain])
def test_decisions_that_depend_on_each_other_are_refused(
    bound: Callable[[Objective], Bound],
) -> None:
    x, y = torch.randn(6, 5, 2, dtype=torch.float64), torch.arange(30).reshape(6, 5) % 3
    o = Objective(Steps().double(), (x, y), F.cross_entropy)
    with pytest.raises(SpiritlevelError, match="there are 30 for 6"):
        bound(o)


def test_parameters_that_are_not_chosen_are_premised() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    o = Objective(model, net().batches[0], F.cross_entropy, params="2.*")
    assert any("25 numbers beside the chosen parameters" in said for said in written(o).assumptions)
    assert any("25 numbers beside the chosen" in s for s in noisy(o, draws=5).assumptions)


@pytest.mark.parametrize("bound", BOTH)
def test_a_delta_that_is_none_is_refused(bound: Callable[..., Bound]) -> None:
    with pytest.raises(SpiritlevelError, match=r"delta=1.0: give a probability"):
        bound(net(), delta=1.0)
