"""Every entry of the registry through the same checks on a perceptron; liars that they catch."""

from __future__ import annotations

import time

import pytest
import torch

import conformance
import spiritlevel as sl
import zoo
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures.base import Measure


@pytest.mark.parametrize("net", conformance.PLAIN)
@pytest.mark.parametrize("name", sorted(sl.MEASURES))
def test_conforms(name: str, net: str) -> None:
    conformance.conforms(name, net)


def test_every_network_has_a_file() -> None:
    assert sorted(net for file in conformance.FILES for net in file) == sorted(zoo.SHAPES)


def norm(instruments: object) -> Estimate:
    return Estimate(float(instruments.objective.vector.norm()))  # type: ignore[attr-defined]


def test_a_measure_that_promises_too_much_fails() -> None:
    with pytest.raises(AssertionError, match="layer"):
        conformance.check(Measure(norm, "norm", invariances=("unit",), cost="none"))


def test_a_measure_that_promises_too_little_fails() -> None:
    def loss(instruments: object) -> Estimate:
        return Estimate(instruments.objective.value())  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="layer"):
        conformance.check(Measure(loss, "loss", cost="none"))
    with pytest.raises(AssertionError, match="unit"):
        conformance.check(Measure(loss, "loss", invariances=("layer",), cost="none"))


def test_a_measure_that_draws_from_the_global_generator_fails() -> None:
    chance = Measure(lambda _: Estimate(float(torch.rand(()))), "random", cost="none")
    with pytest.raises(AssertionError, match="chance"):
        conformance.check(chance)

    def wasteful(instruments: object) -> Estimate:
        torch.rand(())
        return norm(instruments)

    with pytest.raises(AssertionError, match="global generator"):
        conformance.check(Measure(wasteful, "wasteful", cost="none"))


def test_a_measure_that_is_not_honest_fails() -> None:
    silent = Measure(lambda i: Estimate(norm(i).value, status=Status.BUDGET), "silent", cost="none")
    with pytest.raises(AssertionError, match="no remedy"):
        conformance.check(silent)


def test_a_measure_of_batches_fails() -> None:
    def count(instruments: object) -> Estimate:
        objective = instruments.objective  # type: ignore[attr-defined]
        return Estimate(float(objective.vector.norm()) + len(objective.batches))

    with pytest.raises(AssertionError, match="batches"):
        conformance.check(Measure(count, "batches", cost="none"))


def test_a_user_registers_a_measure() -> None:
    name = f"largest_weight_{time.time_ns()}"

    @sl.register(name, title="largest weight", cost="none", invariances=["permutation"])
    def largest(objective: sl.Objective) -> torch.Tensor:
        return objective.vector.abs().max()

    try:
        point = conformance.objective()
        expected = float(point.vector.abs().max())
        assert largest(point) == expected
        assert sl.measure(point, [name])[name].value == expected
        row = sl.audit(point, [name], way=False)[name]
        assert row.text.startswith("moved x ")
        conformance.check(sl.MEASURES[name])
        with pytest.raises(sl.SpiritlevelError, match="there is a measure 'largest_weight"):
            sl.register(name)
    finally:
        del sl.MEASURES[name]
    with pytest.raises(sl.SpiritlevelError, match="invariances='all' is not known; choose"):
        sl.register("x", invariances=("all",))  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match=r"give a list of names: \['loss'\]"):
        sl.measure(point, "loss")
