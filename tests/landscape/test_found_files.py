"""What once was wrong with journals, numbers of other kinds, and directions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.landscape import interpolate, plane
from spiritlevel.landscape.axes import halved
from spiritlevel.landscape.directions import aimed

DATA = (randn(30, 4), labels(30))


def net(seed: int = 0, loss: Any = F.cross_entropy, **options: Any) -> sl.Objective:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return sl.Objective(layers.double(), DATA, loss, **options)


# Journals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [b"my notes", b'{"a": 1}', b"\x00\xff", b'{"spiritlevel" is nice'])
def test_files_of_one_line_are_not_overwritten(held: bytes, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(held)
    with pytest.raises(sl.SpiritlevelError, match="is no journal; name a file that does not exist"):
        plane(net(), steps=3, journal=file)
    assert file.read_bytes() == held


@pytest.mark.parametrize("torn", [0, 3, 40])
def test_a_first_line_that_was_torn_off_is_written_again(torn: int, tmp_path: Path) -> None:
    whole, file = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    truth = plane(net(), steps=3, journal=whole)
    file.write_bytes(whole.read_bytes()[:torn])
    assert plane(net(), steps=3, journal=file).sheets == truth.sheets
    assert file.read_bytes() == whole.read_bytes()


def bounded(outputs: Tensor, y: Tensor) -> Tensor:
    """The same loss where it is small."""
    return F.cross_entropy(outputs, y).clamp(max=1.21)


def test_a_journal_of_another_group_or_loss_is_refused(tmp_path: Path) -> None:
    objective, other = net(), net(loss=bounded)
    group = sl.symmetries(objective)
    some = group.select(range(4))
    assert 0 < some.dim < group.dim
    assert objective.value() == other.value()
    drawn, joined = tmp_path / "plane.jsonl", tmp_path / "line.jsonl"
    plane(objective, steps=3, span=2.0, orbit=1, group=group, journal=drawn)
    interpolate(objective, net(1), steps=3, align=True, group=group, journal=joined)
    with pytest.raises(sl.SpiritlevelError, match="another question"):
        plane(objective, steps=3, span=2.0, orbit=1, group=some, journal=drawn)
    with pytest.raises(sl.SpiritlevelError, match="another question"):
        plane(other, steps=3, span=2.0, orbit=1, group=group, journal=drawn)
    with pytest.raises(sl.SpiritlevelError, match="another question"):
        interpolate(objective, net(1), steps=3, align=True, group=some, journal=joined)


def test_a_journal_of_two_runs_at_once_is_refused(tmp_path: Path) -> None:
    """Both wrote the same group: what follows would be read one place too early."""
    file = tmp_path / "plane.jsonl"
    plane(net(), steps=11, journal=file)
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    file.write_bytes(b"".join([*lines[:3], *lines[2:3]]))
    with pytest.raises(sl.SpiritlevelError, match="was written by two runs at once: remove it"):
        plane(net(), steps=11, journal=file)


# Numbers of other kinds --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.float32, np.int64, torch.tensor])
def test_numbers_of_numpy_and_torch(number: Any, tmp_path: Path) -> None:
    plain = {"span": 2.0, "strength": 1.0}
    whole = {"steps": 3, "seed": 1, "orbit": 1}
    truth = plane(net(), **plain, **whole)  # type: ignore[arg-type]
    given = {k: number(int(v) if number is np.int64 else v) for k, v in plain.items()}
    given |= {k: np.int64(v) for k, v in whole.items()}
    for journal in (None, tmp_path / "plane.jsonl", tmp_path / "plane.jsonl"):
        found = plane(net(), **given, journal=journal)
        assert found.sheets == truth.sheets
        assert sl.Surface.from_dict(json.loads(found.to_json())).x == truth.x
    line = interpolate(net(), net(1), steps=np.int64(3), seed=np.int64(1))  # type: ignore[arg-type]
    assert sl.Line.from_dict(json.loads(line.to_json())) == line


def test_neighbours_among_floats_have_no_middle() -> None:
    axis = [0.3, math.nextafter(0.3, 1), 1.0]
    assert halved(axis, [1.0, 0.0]) == axis


# Directions --------------------------------------------------------------------------------------


def test_filters_of_grouped_transposed_convolutions() -> None:
    """The filter of an output holds the inputs of its own group only."""
    torch.manual_seed(0)
    layers = [nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False), nn.Flatten(), nn.Linear(36, 3)]
    network = nn.Sequential(*layers).double()
    objective = sl.Objective(network, (randn(5, 6, 2, 2), labels(5)), F.cross_entropy)
    w = objective.params["0.weight"]
    d = objective.named(aimed(objective, ["filter"]).directions[0])["0.weight"]
    for group in range(2):
        rows = slice(3 * group, 3 * group + 3)
        for out in range(2):
            torch.testing.assert_close(d[rows, out].norm(), w[rows, out].norm())
    whole = objective.named(aimed(objective, ["layer"]).directions[0])["0.weight"]
    torch.testing.assert_close(whole.norm(), w.norm())
    assert float((whole[:3].norm() / w[:3].norm() - 1).abs()) > 1e-3


def test_gains_of_several_axes_stay() -> None:
    network = nn.Sequential(nn.LayerNorm([2, 3]), nn.Flatten(), nn.Linear(6, 3)).double()
    objective = sl.Objective(network, (randn(5, 2, 3), labels(5)), F.cross_entropy)
    d = objective.named(aimed(objective, ["filter"]).directions[0])
    assert not d["0.weight"].any()
    assert not d["0.bias"].any()
    moved = objective.named(aimed(objective, ["filter"], biases="scale").directions[0])
    torch.testing.assert_close(moved["0.weight"].norm(), objective.params["0.weight"].norm())


def test_planes_that_are_none_are_refused() -> None:
    d = randn(83)
    for given in ({"kind": "gradient"}, {"directions": [d, -2 * d]}, {"directions": [d, 0 * d]}):
        with pytest.raises(sl.SpiritlevelError, match="two directions of a plane are parallel, or"):
            plane(net(), steps=3, **given)  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match='kind="filter" moves nothing here: use biases='):
        plane(net(params="*.bias"), steps=3)
    assert plane(net(params="*.bias"), steps=3, biases="scale").centre() == net().value()
