"""The basis that products make."""

from __future__ import annotations

import pytest
import torch

import spiritlevel as sl
from spiritlevel.spectral import krylov


def operator() -> sl.Operator:
    draws = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(120, 120, generator=draws, dtype=torch.float64))
    values = torch.cat([torch.tensor([50.0, 30.0, 20.0]), torch.linspace(0, 2, 117)]).double()
    dense = (q * values) @ q.T
    return sl.from_matrix((dense + dense.T) / 2)


def test_a_basis_too_large_for_blas_is_the_same_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sl.eigenpairs(operator(), 3, tol=1e-9)
    monkeypatch.setattr(krylov, "BLAS", 28)
    pieces = sl.eigenpairs(operator(), 3, tol=1e-9)
    for one, other in zip(whole.values, pieces.values, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-12)
    overlap = (pieces.vectors * whole.vectors).sum(0).abs()
    torch.testing.assert_close(overlap, torch.ones(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(pieces.images, operator() @ pieces.vectors, rtol=0, atol=1e-6)
