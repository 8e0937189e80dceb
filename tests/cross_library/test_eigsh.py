"""Eigenvalues against ARPACK, which sees products only, as we do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

import spiritlevel as sl
from architectures import randomized
from cases import CASES, Case, labels, randn

SMALL = [case for case in CASES if case.name not in ("GPT-2", "Llama")]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_both_ends_of_the_spectrum(case: Case) -> None:
    operator = sl.hessian(case.objective(), compile=False)
    found = sl.eigenpairs(operator, which="both", tol=1e-8, relative_to="norm", budget=2000)
    start = randn(operator.size).numpy()
    ends = [
        eigsh(operator.to_scipy(), k=1, which=which, v0=start, return_eigenvectors=False)[0]
        for which in ("LA", "SA")
    ]
    norm = max(map(abs, ends))
    for ours, theirs in zip(found.values, ends, strict=True):
        assert abs(ours.value - theirs) <= ours.error + 1e-6 * norm


def test_several_of_the_largest() -> None:
    model = randomized(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))).double()
    objective = sl.Objective(model, (randn(30, 6), labels(30, classes=4)), F.cross_entropy)
    operator = sl.hessian(objective, compile=False)
    ours = sl.eigenvalues(operator, k=5, tol=1e-6, budget=1000)
    theirs = eigsh(operator.to_scipy(), k=5, which="LA", return_eigenvectors=False)[::-1]
    np.testing.assert_allclose([e.value for e in ours], theirs, rtol=1e-5)


def test_a_foreign_operator_is_one_of_ours() -> None:
    """What SciPy multiplies with, we can measure."""
    diagonal = np.linspace(0.1, 3, 300)
    theirs = LinearOperator((300, 300), matvec=lambda v: diagonal * v.reshape(-1), dtype=float)  # type: ignore[call-arg]

    def matvec(v: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(theirs @ v.numpy())

    ours = sl.Operator(300, torch.float64, torch.device("cpu"), matvec)
    (top,) = sl.eigenvalues(ours, k=1, tol=1e-8, budget=1000)
    assert top.value == pytest.approx(eigsh(theirs, k=1, return_eigenvectors=False)[0])
    assert sl.trace(ours, rtol=0.01, budget=2000).value == pytest.approx(diagonal.sum(), rel=0.05)
