"""Eigenvalues and traces against PyHessian, and where it stops too early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, mlp, randn
from peering import peer
from spiritlevel.spectral.probes import standard_error

pyhessian = peer("pyhessian")

pytestmark = pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
N = 10


def both(sign: float = 1.0) -> tuple[sl.Objective, Any]:
    """Ours and theirs, on batches of unequal lengths."""
    net, x, y = randomized(mlp()).float(), randn(N, 4).float(), labels(N)
    batches = list(zip(x.split([4, 4, 2]), y.split([4, 4, 2]), strict=True))

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return sign * F.cross_entropy(f, y)

    theirs = pyhessian.hessian(net, loss, dataloader=batches, cuda=False)
    return sl.Objective(net, (x, y), loss, microbatch=4, dtype=torch.float64), theirs


def test_products_are_the_same() -> None:
    objective, theirs = both()
    v = randn(objective.size)
    pieces = [p.float() for p in objective.named(v).values()]
    found = torch.cat([p.reshape(-1) for p in theirs.dataloader_hv_product(pieces)[1]])
    ours = sl.hessian(objective, compile=False) @ v
    torch.testing.assert_close(found.double(), ours, rtol=0, atol=1e-6 * float(ours.norm()))


def test_the_largest_eigenvalue() -> None:
    """Theirs stops when the value changes by less than 1e-3, which bounds no error."""
    objective, theirs = both()
    (ours,) = sl.eigenvalues(sl.hessian(objective, compile=False), k=1, tol=1e-8, budget=500)
    torch.manual_seed(0)
    fine = theirs.eigenvalues(maxIter=3000, tol=1e-9)[0][0]
    assert fine == pytest.approx(ours.value, rel=1e-5)
    coarse = theirs.eigenvalues(tol=1e-3)[0][0]
    assert coarse <= ours.value * (1 + 1e-5)


def test_the_trace() -> None:
    """Theirs are the samples; with tol=0 it draws all of them."""
    objective, theirs = both()
    ours = sl.trace(sl.hessian(objective, compile=False), rtol=0.02, budget=2000)
    torch.manual_seed(0)
    samples = torch.tensor(theirs.trace(maxIter=300, tol=0.0), dtype=torch.float64)
    assert len(samples) == 300
    spread = (standard_error(samples) ** 2 + (ours.stderr or 0.0) ** 2) ** 0.5
    assert abs(float(samples.mean()) - ours.value) <= 3.5 * spread


def test_a_trace_below_zero_ends_theirs_after_two_probes() -> None:
    """It divides the change by the trace, not by its size: below zero any change is small."""
    objective, theirs = both(sign=-1.0)
    torch.manual_seed(0)
    assert len(theirs.trace(maxIter=300, tol=0.0)) == 2
    ours = sl.trace(sl.hessian(objective, compile=False), rtol=0.02, budget=2000)
    exact = float(sl.hessian(objective, compile=False).dense().trace())
    assert exact < 0
    assert abs(ours.value - exact) <= 3.5 * (ours.stderr or 0.0) + 1e-9


def test_its_density_is_of_an_older_torch() -> None:
    """It calls torch.eig, which there is no more; ours is compared with the dense spectrum."""
    objective, theirs = both()
    with pytest.raises((RuntimeError, AttributeError), match="eig"):
        theirs.density(iter=5, n_v=1)
    operator = sl.hessian(objective, compile=False)
    values = torch.linalg.eigvalsh(operator.dense())
    edge = 0.05 * float(values.abs().max())
    found = sl.density(operator, probes=20, steps=30).count_below(edge)
    assert abs(found.value - int((values < edge).sum())) <= 2 * found.error


def test_it_leaves_the_model_in_eval_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    data = randn(N, 4).float(), labels(N)
    sl.hessian(sl.Objective(net, data, F.cross_entropy))
    assert net.training
    pyhessian.hessian(net, F.cross_entropy, data=data, cuda=False)
    assert not net.training
