"""What cannot be used is refused at the door, in one line, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import eigsh
from torch import nn

import spiritlevel as sl
from cases import BY_NAME, randn

OF_OPERATORS: list[Callable[..., Any]] = [
    *(sl.eigenvalues, sl.eigenpairs, sl.trace, sl.frobenius, sl.density, sl.diagonal),
    *(sl.negative_eigenvalues, lambda a: sl.scaled(a, torch.ones(3))),
    lambda a: sl.restricted(a, ["x"]),
]
OF_OBJECTIVES: list[Callable[..., Any]] = [
    *(sl.hessian, sl.ggn, sl.fisher, sl.ggn_diagonal, sl.output_gradients, sl.measure, sl.audit),
    lambda o: sl.sharpen(o, target=10.0),
    lambda o: sl.sharpen_many(o, target=10.0),
    lambda o: sl.zero_in_ball(o, 0.1),
    lambda o: sl.claims(3 if o is None else o),  # type: ignore[arg-type]
    lambda o: sl.verify(o, o),
    lambda o: sl.worst_in_ball(o, 0.1),
    lambda o: sl.orbit.minimum(o, None),
    sl.MEASURES["loss"],
]
NEITHER = [None, 3, "x", nn.Linear(2, 2), torch.eye(3), np.eye(3), {"a": 1}, []]


@pytest.mark.parametrize("given", NEITHER, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("function", OF_OPERATORS)
def test_what_is_no_operator(function: Callable[..., Any], given: Any) -> None:
    with pytest.raises(sl.SpiritlevelError, match="give an Operator, not a"):
        function(given)


@pytest.mark.parametrize("given", NEITHER, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("function", OF_OBJECTIVES)
def test_what_is_no_objective(function: Callable[..., Any], given: Any) -> None:
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a"):
        function(given)


@pytest.mark.parametrize("given", [g for g in NEITHER if not isinstance(g, nn.Module)], ids=str)
@pytest.mark.parametrize("name", ["symmetries", "permutations", "sign_flips", "head_maps"])
def test_what_is_neither_an_objective_nor_a_module(name: str, given: Any) -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"model is a .*; give a torch\.nn\.Module"):
        getattr(sl.symmetry, name)(given)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (sl.eigenvalues, {"which": "SA"}),
        (sl.eigenvalues, {"which": None}),
        (sl.eigenvalues, {"relative_to": "x"}),
        (sl.eigenvalues, {"tol": -1.0}),
        (sl.eigenvalues, {"tol": float("nan")}),
        (sl.eigenvalues, {"k": 0}),
        (sl.eigenvalues, {"k": 1.5}),
        (sl.eigenvalues, {"k": "1"}),
        (sl.eigenvalues, {"budget": 0}),
        (sl.eigenvalues, {"memory": "x"}),
        (sl.trace, {"method": "exact"}),
        (sl.trace, {"rtol": -0.1}),
        (sl.trace, {"budget": "many"}),
        (sl.frobenius, {"rtol": float("inf")}),
        (sl.frobenius, {"sketch": -1}),
        (sl.diagonal, {"probes": 1}),
        (sl.diagonal, {"sketch": 0.5}),
        (sl.density, {"probes": None}),
        (sl.density, {"steps": 0}),
        (sl.density, {"points": -3}),
        (sl.density, {"sigma": float("nan")}),
    ],
)
def test_arguments_that_make_no_sense(function: Callable[..., Any], wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(sl.SpiritlevelError, match=f"^{name}="):
        function(sl.from_matrix(torch.eye(5)), **wrong)


def test_a_matrix_for_scipy() -> None:
    objective = BY_NAME["mlp"].objective()
    matrix = sl.hessian(objective)
    assert matrix.shape == (objective.size, objective.size)
    values = eigsh(matrix.to_scipy(), k=2, which="LA", return_eigenvectors=False)
    dense = torch.linalg.eigvalsh(matrix.dense()).numpy()
    assert values == pytest.approx(dense[-2:], rel=1e-8)
    block = randn(objective.size, 3).numpy()
    assert matrix.to_scipy() @ block == pytest.approx(matrix.dense().numpy() @ block, rel=1e-8)


def test_measures_take_their_parameters() -> None:
    """One that is built in, and one from outside; f(theta + d) of a bowl is known."""
    x, y = torch.eye(4).double(), torch.zeros(4, 1).double()
    model = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    bowl = sl.Objective(model, (x, y), F.mse_loss)  # |theta|^2 / 4
    wide = sl.MEASURES["eps_sharpness"](bowl, radius=0.4)
    assert wide.value == pytest.approx(0.4**2 / 4, rel=1e-6)
    assert sl.MEASURES["eps_sharpness"].parameters["radius"] > 0
    with pytest.raises(sl.SpiritlevelError, match=r"'size' is not known; choose one of 'radius'"):
        sl.MEASURES["eps_sharpness"](bowl, size=1)

    @sl.register("power_of_the_point")
    def power(objective: sl.Objective, exponent: float = 2.0) -> float:
        return float((objective.vector + 2).pow(exponent).sum())

    try:
        assert sl.MEASURES["power_of_the_point"].parameters == {"exponent": 2.0}
        assert sl.MEASURES["power_of_the_point"](bowl, exponent=3.0).value == 32
        assert sl.measure(bowl, ["power_of_the_point"])["power_of_the_point"].value == 16
    finally:
        del sl.MEASURES["power_of_the_point"]
