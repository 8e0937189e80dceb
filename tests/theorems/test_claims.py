"""The table of claims, on networks that meet the premises and on those that do not."""

from __future__ import annotations

import json
import os

import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

from cases import BY_NAME, small_net
from spiritlevel import SpiritlevelError, hessian
from spiritlevel.base.operator import from_matrix
from spiritlevel.theorems import CLAIMS, Setting, claims
from spiritlevel.theorems import fitting as fitting_claims
from spiritlevel.theorems import scaling as scaling_claims

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"


def test_a_table_with_figures_on_a_given_network() -> None:
    before = torch.get_rng_state()
    found = claims(small_net(), ["gradient_law", "infinite_volume", "flat_memorizer"])
    assert torch.equal(before, torch.get_rng_state())
    assert found.holds
    assert found["gradient_law"].holds is True
    assert found["flat_memorizer"].holds is None
    assert found["flat_memorizer"].verdict == "own example"
    text = str(found)
    assert "gradient_law" in text
    assert "2 of 2 hold on Sequential" in text
    assert "1 of 1 hold on examples of their own" in text
    assert list(found.figures) == ["infinite_volume", "flat_memorizer"]
    data = json.loads(found.to_json())
    assert data["holds"] is True
    assert data["rows"][1]["finding"]["numbers"]["boxes"] == 60
    assert data["rows"][2]["about"] == "example"
    assert data["rows"][2]["holds"] is None
    assert data["rows"][2]["finding"]["holds"] is True


def test_a_network_without_rescalings_is_told_so() -> None:
    found = claims(small_net(nn.Tanh), ["gradient_law", "reparametrization_law", "stability_edge"])
    assert "tanh" in found["gradient_law"].skipped
    assert found["reparametrization_law"].holds is True
    assert found["stability_edge"].holds is True


@pytest.mark.parametrize("case", ["relu mlp", "cnn with BatchNorm in train mode"])
def test_far_from_a_minimum_claims_about_minima_do_not_apply(case: str) -> None:
    """Nothing is refuted there: it holds, or it says why it says nothing."""
    names = [name for name, claim in CLAIMS.items() if claim.about == "network"]
    if case != "relu mlp" and not LONG:
        names.remove("reranking")  # ten seconds, and the other net shows it
    found = claims(BY_NAME[case].objective(), names, figures=False)
    assert found.holds
    assert "no minimum" in found["stability_edge"].skipped
    assert "no minimum" in found["epsilon_sharpness"].skipped
    assert "reranking" not in names or found["reranking"].holds is True


def test_unknown_names_and_other_things_are_refused() -> None:
    with pytest.raises(SpiritlevelError, match="no claim 'nothing'; there are: homogeneity"):
        claims(None, "nothing")
    with pytest.raises(SpiritlevelError, match="give an Objective"):
        claims(nn.Linear(1, 1))  # type: ignore[arg-type]


# By hand ------------------------------------------------------------------------------------------


def test_the_floor_of_an_orbit_by_hand() -> None:
    """w1 and w2 scale against each other: sqrt(G11 G22), unless the third, which stays, is more."""
    exponents = csr_matrix([[1.0], [-1.0], [0.0]])

    def floor(*entries: float) -> float:
        matrix = torch.tensor(entries, dtype=torch.float64).diag()
        return scaling_claims.geometric_floor(from_matrix(matrix), exponents)

    assert floor(4.0, 9.0, 1.0) == pytest.approx(6.0)
    assert floor(4.0, 9.0, 7.0) == pytest.approx(7.0)
    assert floor(4.0, 0.0, 0.0) == 0.0


def test_sgd_by_hand() -> None:
    """Curvatures 0.2, 0.6, 1, 3 at rate 1: E(1 - a)^2 = (0.64 + 0.16 + 0 + 4) / 4 = 1.2."""
    witness = fitting_claims.stability_edge(Setting(small_net()))
    example = witness["example"]
    assert fitting_claims._mean_square(example, 1.0, 1) == pytest.approx(1.2**2)
    assert float(hessian(example).dense()) == pytest.approx(1.2)  # the mean curvature
