"""Eigenvalues, densities and traces of matrices whose spectrum is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import spiritlevel as sl
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import Operator
from spiritlevel.spectral import probe
from spiritlevel.spectral.probes import within

SPECTRUM = torch.cat(
    [torch.tensor([50.0, 30.0, 20.0, -8.0]).double(), torch.linspace(0, 2, 116).double()]
)


def matrix(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with the given spectrum and random eigenvectors."""
    draws = torch.Generator().manual_seed(seed)
    n = len(eigenvalues)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=draws, dtype=torch.float64))
    dense = (q * eigenvalues) @ q.T
    return (dense + dense.T) / 2


def operator(eigenvalues: Tensor = SPECTRUM, seed: int = 0) -> Operator:
    return sl.from_matrix(matrix(eigenvalues, seed))


# Eigenpairs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("which", "exact"),
    [
        ("largest", [50, 30, 20]),
        ("smallest", [2 * 1 / 115, 0, -8]),
        ("magnitude", [50, 30, 20]),
    ],
)
def test_extreme_eigenvalues(which: str, exact: list[float], seed: int) -> None:
    found = sl.eigenvalues(
        operator(),
        3,
        which=which,  # type: ignore[arg-type]
        tol=1e-9,
        relative_to="norm",
        seed=seed,
    )
    assert [e.value for e in found] == pytest.approx(exact, abs=1e-8)
    assert all(e.status is Status.CONVERGED for e in found)


def test_both_ends_at_once() -> None:
    found = sl.eigenvalues(operator(), 1, which="both", tol=1e-8)
    assert [e.value for e in found] == pytest.approx([50, -8], abs=1e-8)


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("memory", [None, 8])
def test_residuals_are_the_true_ones_and_below_tol(tol: float, memory: int | None) -> None:
    dense = matrix(SPECTRUM)
    pairs = sl.eigenpairs(sl.from_matrix(dense), 3, tol=tol, memory=memory, budget=2000)
    for estimate, v in zip(pairs.values, pairs.vectors.T, strict=True):
        true = float((dense @ v - estimate.value * v).norm())
        assert estimate.residual == pytest.approx(true, rel=1e-3, abs=1e-12)
        assert true <= tol * abs(estimate.value)
        assert abs(float(v.norm()) - 1) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_errors_cover_the_rounding_of_single_precision(seed: int) -> None:
    dense = matrix(SPECTRUM, seed).float()
    truth = float(torch.linalg.eigvalsh(dense.double())[-1])
    (found,) = sl.eigenvalues(sl.from_matrix(dense), tol=1e-7, seed=seed)
    assert abs(found.value - truth) <= found.error
    assert found.error >= 10 * torch.finfo(torch.float32).eps * found.value


def test_memory_bounds_the_basis() -> None:
    held = []
    plain = operator()
    counted = replace(plain, matvec=lambda v: (held.append(1), plain.matvec(v))[1])
    (found,) = sl.eigenvalues(counted, memory=5, tol=1e-6, budget=500)
    assert found.value == pytest.approx(50, rel=1e-9)
    assert len(held) == found.matvecs


def test_repeated_eigenvalues_are_all_found() -> None:
    repeated = torch.tensor([5.0] * 3 + [1.0] * 40).double()
    found = sl.eigenvalues(operator(repeated), 4, tol=1e-9)
    assert [e.value for e in found] == pytest.approx([5, 5, 5, 1], abs=1e-8)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_small_and_singular_matrices(size: int) -> None:
    low_rank = torch.zeros(size).double()
    low_rank[0] = 3
    found = sl.eigenvalues(operator(low_rank), size, tol=1e-9)
    assert [e.value for e in found] == pytest.approx(low_rank.tolist(), abs=1e-12)
    assert float(sl.eigenvalues(operator(torch.zeros(4).double()))[0]) == pytest.approx(
        0, abs=1e-12
    )
    for which in ("largest", "smallest", "magnitude"):  # of 0, which has no sign
        nothing = sl.eigenvalues(operator(torch.zeros(20).double()), which=which)[0]
        assert (nothing.value, nothing.error, nothing.converged) == (0.0, 0.0, True)


def test_an_unfinished_search_says_so() -> None:
    hard = torch.linspace(0, 1, 300).double()
    (found,) = sl.eigenvalues(operator(hard), budget=6, tol=1e-8)
    assert found.status is Status.BUDGET
    assert not found.converged
    assert "raise budget" in str(found)
    assert found.residual is not None
    assert found.residual > 1e-8


@settings(max_examples=30)
@given(st.lists(st.floats(-10, 10), min_size=3, max_size=12), st.integers(0, 100))
@example([0.0, 0.0, 1e-140], 0)
def test_eigenvalues_of_any_matrix(values: list[float], seed: int) -> None:
    spectrum = torch.tensor(values, dtype=torch.float64)
    found = sl.eigenvalues(operator(spectrum, seed), which="both", tol=1e-10, relative_to="norm")
    assert found[0].value == pytest.approx(max(values), abs=1e-8)
    assert found[-1].value == pytest.approx(min(values), abs=1e-8)


@pytest.mark.parametrize("size", [1e-120, 1e-139, 1e-141, 1e-160, 1e-200, 1e-270])
def test_eigenvalues_of_tiny_matrices(size: float) -> None:
    """Numbers that underflow when they are squared are numbers all the same."""
    for seed in range(5):
        small = size * torch.tensor([3.0, 1.0, 0.5, 0.0, 0.0, -2.0, 1.0, 0.2]).double()
        high, low = sl.eigenvalues(operator(small, seed), which="both", tol=1e-6)
        assert (high.value, low.value) == pytest.approx((3 * size, -2 * size), rel=1e-6, abs=0)
        assert high.converged
        assert low.converged


@pytest.mark.parametrize("size", [1e-285, 1e-290, 1e-295, 1e-310])
def test_what_is_next_to_nothing_is_nothing(size: float) -> None:
    for seed in range(5):
        nearly = size * torch.tensor([3.0, 1.0, 0.5, 0.0, 0.0, -2.0, 1.0, 0.2]).double()
        (found,) = sl.eigenvalues(operator(nearly, seed))
        assert abs(found.value) < 1e-280


def test_eigenvalue_arguments_are_checked() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"k=200 \(largest\) asks for 200"):
        sl.eigenvalues(operator(), 200)
    with pytest.raises(sl.SpiritlevelError, match="memory=3 vectors is too little for 3"):
        sl.eigenvalues(operator(), 3, memory=3)
    with pytest.raises(
        sl.SpiritlevelError, match="symmetric square matrix of finite floats; got shape"
    ):
        sl.from_matrix(torch.arange(4.0).reshape(2, 2))


# Traces and norms -----------------------------------------------------------------------------

ESTIMATORS: dict[str, tuple[Callable[..., Estimate], float]] = {
    "hutchinson": (
        lambda op, seed: sl.trace(op, seed=seed, rtol=0.1),
        float(SPECTRUM.sum()),
    ),
    "hutch++": (
        lambda op, seed: sl.trace(op, method="hutch++", seed=seed, rtol=0.01),
        float(SPECTRUM.sum()),
    ),
    "frobenius": (lambda op, seed: sl.frobenius(op, seed=seed), float(SPECTRUM.norm())),
    "effective rank": (
        lambda op, seed: probe(op, stop=within(0.1, "trace"), seed=seed).effective_rank(),
        float(SPECTRUM.sum() ** 2 / SPECTRUM.square().sum()),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_standard_errors_are_honest(name: str) -> None:
    """The truth lies within two standard errors in 90 to 99 % of 200 runs."""
    estimate, truth = ESTIMATORS[name]
    op = operator()
    inside = 0
    for seed in range(200):
        found = estimate(op, seed)
        assert found.stderr is not None
        inside += abs(found.value - truth) <= 2 * found.stderr
    assert 180 <= inside <= 198


def test_density_count_is_honest() -> None:
    op, inside = operator(), 0
    truth = int((SPECTRUM < 1.0).sum())
    for seed in range(100):
        found = sl.density(op, probes=8, steps=30, seed=seed).count_below(1.0)
        assert found.stderr is not None
        inside += abs(found.value - truth) <= 2 * found.stderr
    assert 88 <= inside <= 100  # quadrature adds a systematic part to the error


def test_trace_stops_at_the_asked_error() -> None:
    op = operator()
    rough, fine = sl.trace(op, rtol=0.2), sl.trace(op, rtol=0.02, budget=4000)
    for found, rtol in ((rough, 0.2), (fine, 0.02)):
        assert found.status is Status.CONVERGED
        assert found.stderr is not None
        assert found.stderr <= rtol * found.value
    assert fine.matvecs > rough.matvecs
    short = sl.trace(op, rtol=1e-4, budget=40)
    assert short.status is Status.BUDGET
    assert short.matvecs == 40
    assert short.remedy == "raise budget or rtol"


def test_hutch_needs_fewer_products_where_few_eigenvalues_dominate() -> None:
    op = operator()
    plain, sketched = (
        sl.trace(op, rtol=0.03, budget=2000),
        sl.trace(op, method="hutch++", rtol=0.03),
    )
    assert sketched.matvecs < plain.matvecs / 2


def test_small_matrices_are_exact() -> None:
    op = operator(torch.tensor([3.0, 1.0, -1.0]).double())
    assert sl.trace(op).status is Status.EXACT
    assert sl.trace(op).stderr is None
    assert float(sl.trace(op)) == pytest.approx(3)
    assert float(sl.frobenius(op)) == pytest.approx(11**0.5)


def test_block_traces_are_honest_and_add_up() -> None:
    dense = matrix(SPECTRUM)
    blocks = {"a": slice(0, 50), "b": slice(50, 120)}
    found = probe(sl.from_matrix(dense), stop=within(0.02, "trace"), blocks=blocks, budget=2000)
    parts = found.block_traces()
    assert sum(p.value for p in parts.values()) == pytest.approx(found.trace().value)
    for name, span in blocks.items():
        truth = float(dense.diagonal()[span].sum())
        assert abs(parts[name].value - truth) < 4 * parts[name].error
    assert found.block_traces(lambda _: "all")["all"].value == pytest.approx(found.trace().value)


def test_deflation_is_unbiased_for_any_basis() -> None:
    op = operator()
    random_basis = torch.randn(120, 5, generator=torch.Generator().manual_seed(1)).double()
    leading = sl.eigenpairs(op, 3).vectors
    for basis in (random_basis, leading):
        found = probe(op, stop=within(1e-3, "trace"), budget=400, deflate=basis).trace()
        assert abs(found.value - float(SPECTRUM.sum())) < 4 * found.error
    assert found.error < 0.9  # Hutchinson would be near 6 after as many products


def test_diagonal_is_honest_and_exact_from_size_on() -> None:
    dense = matrix(SPECTRUM)
    op = sl.from_matrix(dense)
    found = sl.diagonal(op, probes=100)
    off = ((found.value - dense.diagonal()).abs() / found.stderr).sort().values
    assert 0.9 <= float((off <= 2).double().mean()) <= 1.0
    assert off[-1] < 6
    torch.testing.assert_close(sl.diagonal(op, probes=120).value, dense.diagonal())
    sketched = sl.diagonal(op, probes=100, sketch=10)
    assert float(sketched.stderr.mean()) < float(found.stderr.mean()) / 2


# Density --------------------------------------------------------------------------------------


def test_density_has_the_moments_of_the_spectrum() -> None:
    op = operator()
    found = sl.density(op, probes=200, steps=20)
    assert float(torch.trapezoid(found.value, found.grid)) == pytest.approx(1, abs=1e-3)
    for power in (1, 2, 3):
        moments = (found.weights * found.nodes**power).sum(1)
        truth = float((SPECTRUM**power).mean())
        assert abs(float(moments.mean()) - truth) < 4 * float(moments.std()) / 200**0.5
    assert found.matvecs == 200 * 20


def test_negative_eigenvalues_are_counted() -> None:
    spectrum = torch.cat([torch.full((40,), -1.0), torch.linspace(0.5, 2, 80)]).double()
    found = sl.negative_eigenvalues(operator(spectrum), threshold=0.1, probes=40)
    assert abs(found.value - 40) < 3 * found.error
    assert found.error < 4
    assert sl.negative_eigenvalues(operator(spectrum), threshold=1.5).value == pytest.approx(0)
    with pytest.raises(sl.SpiritlevelError, match="threshold=-1"):
        sl.negative_eigenvalues(operator(spectrum), threshold=-1)
    with pytest.raises(sl.SpiritlevelError, match="probes=1: give a whole number of at least 2"):
        sl.density(operator(spectrum), probes=1)
    with pytest.raises(sl.SpiritlevelError, match="probes=1: give a whole number of at least 2"):
        sl.diagonal(operator(spectrum), probes=1)
    with pytest.raises(sl.SpiritlevelError, match="method='exact' is not known; choose"):
        sl.trace(operator(spectrum), method="exact")  # type: ignore[arg-type]


# Seeds and interruptions ----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_number() -> None:
    op = operator()
    assert sl.trace(op, seed=5).value == sl.trace(op, seed=5).value
    assert sl.trace(op, seed=5).value != sl.trace(op, seed=6).value
    by_generator = sl.trace(op, seed=torch.Generator().manual_seed(5))
    assert by_generator.value == sl.trace(op, seed=5).value
    assert sl.density(op, seed=3).value.equal(sl.density(op, seed=3).value)


def interrupted_after(products: int) -> Operator:
    plain, count = operator(), iter(range(10**6))

    def matvec(v: Tensor) -> Tensor:
        if next(count) >= products:
            raise KeyboardInterrupt
        return plain.matvec(v)

    return replace(plain, matvec=matvec)


def test_an_interruption_keeps_what_is_done() -> None:
    found = sl.trace(interrupted_after(10), rtol=1e-6)
    assert found.status is Status.INTERRUPTED
    assert found.matvecs == 10
    assert abs(found.value - float(SPECTRUM.sum())) < 5 * found.error
    (pair,) = sl.eigenvalues(interrupted_after(4), tol=1e-12)
    assert pair.status is Status.INTERRUPTED
    assert abs(pair.value - 50) <= pair.error
    partial = sl.density(interrupted_after(70), probes=8, steps=30)
    assert partial.status is Status.INTERRUPTED
    assert len(partial.nodes) == 2
    with pytest.raises(KeyboardInterrupt):  # nothing is done yet, so there is nothing to keep
        sl.trace(interrupted_after(1))


# Where a careless criterion would be content too early ---------------------------------------


def test_zeros_are_not_counted_as_negative() -> None:
    flat = torch.zeros(3000).double()
    flat[:30] = torch.linspace(1, 2, 30)
    diagonal = sl.Operator(
        3000,
        torch.float64,
        torch.device("cpu"),
        lambda v: flat * v if v.ndim == 1 else flat[:, None] * v,
    )
    found = sl.negative_eigenvalues(diagonal)
    assert abs(found.value) <= 1e-6
    # with the threshold at the zeros themselves the error admits that it cannot tell
    at_zero = sl.density(diagonal).count_below(0.0)
    assert at_zero.error > 1000


def test_a_small_negative_outlier_is_not_overlooked() -> None:
    n = 50_000
    values = torch.rand(n, generator=torch.Generator().manual_seed(0)).double() ** 4 * 0.1
    values[0], values[1] = 100, -2
    diagonal = sl.Operator(n, torch.float64, torch.device("cpu"), lambda v: values * v)
    ends = sl.eigenvalues(diagonal, which="both", tol=1e-3, relative_to="norm")
    assert ends[0].value == pytest.approx(100)
    assert ends[-1].value == pytest.approx(-2, abs=0.1)


def test_a_start_near_the_wrong_eigenvector_does_not_mislead() -> None:
    values = torch.cat([torch.tensor([10.0, 9.0]), torch.rand(98)]).double()
    op = sl.from_matrix(torch.diag(values))
    start = torch.eye(100).double()[1]
    (found,) = sl.eigenvalues(op, start=start, tol=1e-6)
    assert found.value == pytest.approx(10)


@pytest.mark.parametrize("seed", range(40))
def test_magnitude_keeps_both_signs_through_restarts(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    values = torch.randn(40, generator=draws).double()
    (found,) = sl.eigenvalues(
        operator(values, seed), which="magnitude", memory=8, budget=3000, tol=1e-6
    )
    if found.converged:
        assert abs(found.value) == pytest.approx(float(values.abs().max()), rel=1e-4)
    assert abs(found.value) >= 0.9 * float(values.abs().max())


def test_budgets_are_kept() -> None:
    with pytest.raises(sl.SpiritlevelError, match="budget=0: give a whole number of at least 1"):
        sl.eigenvalues(operator(), budget=0)
    with pytest.raises(sl.SpiritlevelError, match="budget=1: at least 2 products are needed"):
        sl.trace(operator(), budget=1)
    assert sl.trace(operator(), budget=5).matvecs == 5
    zero = sl.from_matrix(torch.zeros(40, 40).double())
    assert probe(zero, stop=within(0.1, "trace"), budget=30).effective_rank().value == 0
