"""No eigenvalue is called converged that is not the one that was asked for."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from adversaries import cases, like_a_network, reflected
from spiritlevel.base.estimate import Status
from spiritlevel.base.operator import Operator, entry
from spiritlevel.spectral.krylov import Krylov
from spiritlevel.spectral.missed import CHANCE, least_share
from spiritlevel.spectral.request import Which

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"
OPERATORS = 5000 if LONG else 260  # twenty of every spectrum
BUDGET = 300 if LONG else 100


def test_nothing_is_converged_and_wrong() -> None:
    """Wrong is off by more than the stated error and tol; errors cover, converged or not."""
    wrong, uncovered, total = [], [], 0
    for case in cases(OPERATORS):
        found = sl.eigenvalues(
            case.operator,
            case.k,
            which=case.which,
            relative_to="norm" if case.seed % 2 else "eigenvalue",
            budget=BUDGET,
            start=case.start,
            seed=case.seed,
        )
        for estimate, truth in zip(found, case.extremes().tolist(), strict=True):
            off = abs(estimate.value - truth)
            if case.which == "magnitude":  # of two ends alike either may be found
                off = abs(abs(estimate.value) - abs(truth))
            told = f"{case}: {estimate}, truth {truth:g}"
            total += 1
            if off > estimate.error:
                uncovered.append(told)
            if estimate.converged and off > max(estimate.error, 1e-3 * abs(truth)):
                wrong.append(told)
    assert not wrong
    assert len(uncovered) <= 2 * CHANCE * total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("budget", [11, 300])
def test_the_error_of_the_smallest_eigenvalue_covers_it(budget: int, dtype: torch.dtype) -> None:
    """Near zero, in few products and in enough: the residual covers it in half of the runs."""
    covered = by_residual = 0
    for seed in range(100):
        draws = torch.Generator().manual_seed(seed)
        values = like_a_network(600, draws)
        low = sl.eigenvalues(
            reflected(values, draws, dtype),
            which="both",
            relative_to="norm",
            budget=budget,
            seed=seed,
        )[-1]
        off = abs(low.value - float(values.min()))
        assert low.residual is not None
        covered += off <= low.error
        by_residual += off <= low.residual
        assert not low.converged or off <= 1e-3 * 24
        assert abs(low.value) < low.error or low.value < 0  # no sign where it is unknown
    assert covered >= 95
    assert by_residual < (60 if budget == 11 else 95)


def two_topics() -> tuple[sl.Objective, float]:
    """A logistic regression on two disjoint vocabularies, and its largest eigenvalue."""
    draws = torch.Generator().manual_seed(0)
    d, n = 2000, 1000
    long = torch.arange(n) % 10 == 0
    x = torch.zeros(n, d, dtype=torch.float64)
    topics = torch.randn(2, d // 2, generator=draws, dtype=torch.float64)
    topics /= topics.norm(dim=1, keepdim=True)
    lengths = 1 + 0.1 * torch.randn(n, 1, generator=draws, dtype=torch.float64)
    x[long, : d // 2] = 45 * lengths[long] * topics[0]
    x[~long, d // 2 :] = 3 * lengths[~long] * topics[1]
    y = (torch.rand(n, 1, generator=draws) > 0.5).double()
    model = nn.Linear(d, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0, : d // 2] = 4 / 45 * topics[0]
        p = model(x).sigmoid()
        roots = x * (p * (1 - p) / n).sqrt()
    truth = float(torch.linalg.eigvalsh(roots @ roots.T)[-1])
    return sl.Objective(model, (x, y), F.binary_cross_entropy_with_logits), truth


def test_a_block_that_part_of_the_data_does_not_show_is_found() -> None:
    objective, truth = two_topics()
    operator = sl.hessian(objective)
    for seed in range(6):
        for which in ("largest", "magnitude"):
            (found,) = sl.eigenvalues(operator, which=which, seed=seed)
            assert found.value == pytest.approx(truth, rel=1e-6)
            assert found.converged
    assert float(sl.measure(objective, ["hessian_spectral"])["hessian_spectral"]) == pytest.approx(
        truth, rel=1e-6
    )


def diagonal(values: Tensor) -> Operator:
    def matvec(v: Tensor) -> Tensor:
        return values * v if v.ndim == 1 else values[:, None] * v

    return Operator(len(values), values.dtype, torch.device("cpu"), matvec)


@pytest.mark.parametrize("seed", range(10))
def test_a_start_inside_one_block_finds_the_other(seed: int) -> None:
    """Every start vector is an eigenvector of the wrong block, and a product stays in it."""
    values = torch.cat([torch.linspace(0, 2, 500), torch.linspace(0, 3, 500)]).double()
    start = torch.eye(1000).double()[:, [499, 498]]
    found = sl.eigenvalues(diagonal(values), 2, start=start, seed=seed)
    for estimate, truth in zip(found, (3.0, float(values[998])), strict=True):
        assert abs(estimate.value - truth) <= estimate.error
        assert estimate.error <= 1e-3 * truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_eigenvalue_beyond_a_million_equal_ones(dtype: torch.dtype) -> None:
    """The start's share of it is a thousandth, and drowns in the rounding of single precision."""
    values = torch.ones(1_000_000, dtype=dtype)
    values[17] = 1.01
    for seed in range(3):
        (found,) = sl.eigenvalues(diagonal(values), seed=seed)
        assert found.value == pytest.approx(1.01, rel=1e-3)


def test_shares_bound_what_an_eigenvector_has_of_the_start() -> None:
    """At the true eigenvalues, through restarts, against the shares themselves."""
    draws = torch.Generator().manual_seed(3)
    values = torch.randn(80, generator=draws, dtype=torch.float64).sort().values
    start = torch.randn(80, 2, generator=draws, dtype=torch.float64)
    krylov = Krylov(diagonal(values), start, 16, draws, noise=1.0)
    true = torch.linalg.qr(start)[0].norm(dim=1)
    rounding = 1e-12
    for products in range(1, 37):  # while no pair has converged to the last digit
        krylov.expand()
        if products % 7 == 0:
            for i in (0, 1, 40, 78, 79):
                assert float(krylov.shares(float(values[i]))[0]) >= float(true[i]) - rounding
        if krylov.full:
            found = krylov.ritz()
            relative = float(found.residuals.min() / values.abs().max())
            rounding += 10 * torch.finfo(torch.float64).eps / relative**2
            krylov.restart(found.coordinates[:, [0, 1, 2, -3, -2, -1]])
    # far outside, where no eigenvalue is, polynomials leave almost nothing possible
    assert float(krylov.shares(2 * float(values[-1]))[0]) < 1e-12


@pytest.mark.parametrize(("width", "copies"), [(1, 1), (3, 1), (3, 2), (3, 3)])
def test_random_starts_are_rarely_blind(width: int, copies: int) -> None:
    """The least singular value of a Gaussian matrix, against 20 000 of them."""
    draws = torch.Generator().manual_seed(0)
    start = torch.randn(50, width, generator=draws, dtype=torch.float64)
    krylov = Krylov(diagonal(torch.ones(50).double()), start, 5, draws, noise=1.0)
    limit = least_share(krylov, copies) / krylov.noise
    shares = torch.randn(20_000, width, copies, generator=draws, dtype=torch.float64)
    blind = (torch.linalg.svdvals(shares)[:, -1] < limit).double().mean()
    assert float(blind) <= CHANCE + 3 * (CHANCE / 20_000) ** 0.5


def test_a_start_must_fit() -> None:
    operator = diagonal(torch.ones(5).double())
    for start in (torch.ones(4), torch.ones(5, 3), torch.zeros(5), torch.full((5,), float("nan"))):
        with pytest.raises(sl.SpiritlevelError, match=r"start needs finite vectors.*at most k=2"):
            sl.eigenvalues(operator, 2, start=start)
    with pytest.raises(sl.SpiritlevelError, match="tol=nan: give a number of at least 0"):
        sl.eigenvalues(operator, tol=float("nan"))


def test_a_spectral_norm_is_not_known_before_both_ends_are() -> None:
    """The lower end may reach farther than the upper one that is known already."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 2)).double()
    x, y = torch.randn(40, 6).double(), torch.randint(0, 2, (40,))
    objective = sl.Objective(net, (x, y), F.cross_entropy)
    table = sl.measure(objective, ["hessian_spectral", "lambda_max", "lambda_min"], budget=5)
    norm, top, low = (table[name] for name in ("hessian_spectral", "lambda_max", "lambda_min"))
    dense = torch.linalg.eigvalsh(sl.hessian(objective).dense())
    assert abs(norm.value - float(dense.abs().max())) <= norm.error
    assert norm.value + norm.error >= max(abs(e.value) + e.error for e in (top, low)) * (1 - 1e-12)
    assert low.status is Status.BUDGET


# Products that are no numbers, or of no symmetric matrix -----------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("size", [20, 200])
def test_products_that_are_not_finite_are_an_error(bad: float, size: int) -> None:
    operator = Operator(size, torch.float64, torch.device("cpu"), lambda v: v * bad)
    for ask in (sl.eigenvalues, sl.trace, sl.frobenius, sl.density, sl.diagonal, Operator.dense):
        with pytest.raises(sl.SpiritlevelError, match="a product with this matrix is not finite"):
            ask(operator)


@pytest.mark.parametrize("size", [20, 200])
def test_a_matrix_that_is_not_symmetric_is_an_error(size: int) -> None:
    skew = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double()
    operator = Operator(size, torch.float64, torch.device("cpu"), lambda v: skew @ v)
    for ask in (sl.eigenvalues, sl.trace, sl.frobenius, sl.density):
        with pytest.raises(
            sl.SpiritlevelError, match="this matrix is not symmetric: u'Av and v'Au"
        ):
            ask(operator)


def test_products_of_a_network_that_are_no_more_than_rounding_say_so() -> None:
    noise = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    how = "jvp of gradient"
    operator = Operator(20, torch.float32, torch.device("cpu"), lambda v: noise @ v, how=how)
    with pytest.raises(sl.SpiritlevelError, match=r"rounding: u'Av.*use dtype=torch\.float64"):
        sl.frobenius(operator)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetry_of_a_matrix_does_not_depend_on_its_unit(unit: float, dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, generator=draws, dtype=dtype)
    assert sl.from_matrix(unit * (root @ root.T)).size == 20
    for broken in (unit * root, unit * torch.full((3, 3), float("nan"), dtype=dtype)):
        with pytest.raises(sl.SpiritlevelError, match="from_matrix needs a symmetric square"):
            sl.from_matrix(broken)


def test_what_is_left_after_deflation_may_be_rounding_alone() -> None:
    """A matrix of rank one in single precision is symmetric, and so is the noise beside it."""
    x = torch.randn(300, generator=torch.Generator().manual_seed(0))
    found = sl.frobenius(sl.from_matrix(torch.outer(x, x)))
    assert found.value == pytest.approx(float(x.square().sum()), rel=1e-4)


@pytest.mark.parametrize("probes", [2, 3, 5, 20])
def test_errors_of_few_probes_are_honest(probes: int) -> None:
    """Entries of a dense matrix within two standard errors; widened where samples are few."""
    root = torch.randn(400, 400, generator=torch.Generator().manual_seed(0)).double()
    dense = root + root.T
    inside = []
    for seed in range(10):
        found = sl.diagonal(sl.from_matrix(dense), probes=probes, seed=seed)
        off = (found.value - dense.diagonal()).abs()
        inside.append((off <= 2 * found.stderr).double().mean())
    assert float(torch.stack(inside).mean()) >= 0.9


def test_of_the_larger_of_both_ends_nothing_is_at_least() -> None:
    """What was missed may lie at the other end: at most -1 would be false of 2."""
    with pytest.raises(sl.SpiritlevelError, match="does not say at which: choose"):
        sl.eigenvalues(diagonal(torch.arange(4.0).double()), which="magnitude", sure=False)


@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_what_is_not_sure_is_an_eigenvalue_and_a_bound(which: Which) -> None:
    """Fewer products, a residual that is the true one, and no word of what was missed."""
    spectrum = torch.linspace(-1.0, 1.0, 400).double() ** 9 * torch.tensor(30.0)
    spectrum[0], spectrum[-1] = -50.0, 80.0
    operator = diagonal(spectrum)
    sure = sl.eigenpairs(operator, which=which, seed=1)
    quick = sl.eigenpairs(operator, which=which, sure=False, seed=1)
    assert quick[0].matvecs < sure[0].matvecs
    for i, found in enumerate(quick.values):
        v = quick.vectors[:, i]
        assert found.bound is None
        assert found.residual == pytest.approx(float((spectrum * v - found.value * v).norm()))
        assert found.error <= 1e-3 * abs(found.value)
        assert found.status is (Status.LOWER_BOUND if found.value > 0 else Status.UPPER_BOUND)
        assert found.value == pytest.approx(sure[i].value, rel=1e-4)


@pytest.mark.parametrize(("below", "sure"), [(79.0, False), (81.0, True)])
def test_what_is_large_enough_need_not_be_sure(below: float, sure: bool) -> None:
    spectrum = torch.linspace(0.0, 1.0, 400).double() ** 9 * 30
    spectrum[-1] = 80.0
    found = sl.eigenpairs(diagonal(spectrum), below=below)[0]
    assert found.status is (Status.CONVERGED if sure else Status.LOWER_BOUND)
    assert (found.bound is None) is not sure


def test_an_entry_and_its_rounding() -> None:
    matrix = torch.tensor([[4.0, 3.0], [3.0, 1.0]])
    operator = replace(sl.from_matrix(matrix), rounding=1e-3)
    found, unsure = entry(operator, 0)
    assert found == 4.0
    assert unsure == pytest.approx(30 * 1e-3 * 5)
