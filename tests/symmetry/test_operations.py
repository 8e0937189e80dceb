"""The table of operations, and records that come from outside of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import labels, randn
from spiritlevel.symmetry import (
    OPERATIONS,
    Operation,
    register_operation,
    sign_flips,
    unregister_operation,
)
from spiritlevel.symmetry.tracing import operations
from spiritlevel.symmetry.tracing.degree import multilinear
from spiritlevel.witnesses.enclosure import largest_loss


@torch.library.custom_op("spiritlevel_tests::twice", mutates_args=())
def _twice(x: Tensor) -> Tensor:
    return 2 * x


@torch.library.custom_op("spiritlevel_tests::relu", mutates_args=())
def _relu(x: Tensor) -> Tensor:
    """Not what torch calls so."""
    return (x + 1).clamp_min(0)


for own in (_twice, _relu):
    own.register_fake(torch.empty_like)
TWICE = "spiritlevel_tests::twice"


def twice(x: Tensor) -> Tensor:
    return _twice(x)


def relu(x: Tensor) -> Tensor:
    return _relu(x)


class Between(nn.Module):
    """An operation between two linear maps."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 5), nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def between(function: Callable[[Tensor], Tensor]) -> sl.Objective:
    net = randomized(Between(function)).double()
    return sl.Objective(net, (randn(12, 4), labels(12)), F.cross_entropy)


@contextmanager
def registered(name: str, operation: Operation, **options: Any) -> Iterator[None]:
    register_operation(name, operation, **options)
    try:
        yield
    finally:
        unregister_operation(name)


def test_a_record_from_outside_opens_what_was_blocked() -> None:
    objective = between(twice)
    blocked = sl.symmetries(objective)
    assert [(b.operation, b.reason.name) for b in blocked.blocks] == [(TWICE, "NO_RULE")]
    assert blocked.dim == sign_flips(objective).dim == 0
    assert not multilinear(objective)
    with registered(TWICE, replace(OPERATIONS["clone"], interval=None, paths=None)):
        group = sl.symmetries(objective)
        assert group.dim == sign_flips(objective).dim == 5
        twin = group.apply(objective, group.random(0))
        assert sl.verify(objective, twin).verdict == "exact"
        assert float((twin.vector - objective.vector).abs().max()) > 0.1
        assert multilinear(objective)
    assert sl.symmetries(objective).dim == 0


def test_bounds_and_paths_ask_the_same_record() -> None:
    objective, plain = between(twice), between(lambda x: 2 * x)
    assert largest_loss(objective, 0.01) is None
    with pytest.raises(sl.SpiritlevelError, match=f"rectifiers; {TWICE} is no such"):
        sl.MEASURES["path_norm"](objective)
    doubled = Operation(
        interval=OPERATIONS["sum"].interval,  # no argument makes it smaller when it grows
        paths=lambda node, x: replace(x, value=4 * x.value, weights=None),
    )
    with registered(TWICE, doubled):
        assert largest_loss(objective, 0.01) == pytest.approx(largest_loss(plain, 0.01), rel=1e-12)
        found, expected = (sl.MEASURES["path_norm"](o).value for o in (objective, plain))
        assert found == pytest.approx(expected, rel=1e-12)


def test_an_operation_of_torch_without_a_rule_can_get_one() -> None:
    objective = between(lambda x: torch.hypot(x, x))
    assert sl.symmetries(objective).dim == 0
    with registered("hypot", Operation(scales=OPERATIONS["maximum"].scales)):
        group = sl.symmetries(objective)
        assert group.dim == 5
        certificate = sl.verify(objective, group.apply(objective, group.random(0)))
        assert certificate.verdict == "exact"


def test_a_wrong_record_is_found_out() -> None:
    objective = between(torch.tanh)
    with (
        registered("aten::tanh", OPERATIONS["relu"], replace=True),
        pytest.raises(sl.SpiritlevelError, match="this element changes the predictions"),
    ):
        sl.symmetries(objective)
    assert sl.symmetries(objective).dim == 0  # the record of the table is back


def test_another_library_may_use_the_names_of_torch() -> None:
    assert sl.symmetries(between(torch.relu)).dim == 5
    assert sl.symmetries(between(relu)).dim == 0


def test_records_are_refused_where_they_are_not_understood() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"record of relu already; replace=True"):
        register_operation("relu", Operation())
    with pytest.raises(sl.SpiritlevelError, match=r"give a record, Operation\(scales="):
        register_operation(TWICE, OPERATIONS["relu"].scales)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match=r"no operation 'relu' was registered"):
        unregister_operation("relu")
    with registered(TWICE, Operation()), pytest.raises(sl.SpiritlevelError, match="already"):
        register_operation(TWICE, Operation())


def test_every_record_is_of_one_operation_that_exists() -> None:
    missing = [name for name in OPERATIONS if not hasattr(torch.ops.aten, name)]
    assert missing == ["getitem"]  # python's own
    subjects = [v for name, v in vars(operations).items() if name.isupper() and name[0] != "_"]
    assert sum(map(len, subjects)) == 2 * len(OPERATIONS) > 480
