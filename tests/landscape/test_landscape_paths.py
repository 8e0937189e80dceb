"""Interpolations and trajectories: what lies between networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.landscape.trajectories import principal
from zoo import trained


def net(seed: int) -> sl.Objective:
    """Trained from a seed on the same data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    x = randn(60, 6)
    y = (x[:, :3] + 0.3 * randn(60, 3, seed=9)).argmax(1)
    steps = torch.optim.Adam(layers.parameters(), lr=0.02)
    for _ in range(150):
        steps.zero_grad()
        F.cross_entropy(layers(x), y).backward()
        steps.step()
    return sl.Objective(layers, (x, y), F.cross_entropy)


def test_a_line_joins_two_networks() -> None:
    a, b = net(0), net(1)
    line = sl.landscape.interpolate(a, b, steps=11)
    curve = line["as given"]
    for s, loss in zip(curve.axis, curve.losses, strict=True):
        truth = a.at((1 - s) * a.vector + s * b.vector).value()
        assert loss == pytest.approx(truth, rel=1e-12)
    assert curve.losses[0] == a.value()
    assert curve.losses[-1] == pytest.approx(b.value(), rel=1e-12)
    assert curve.direction.norm == pytest.approx(float((a.vector - b.vector).norm()))
    heights = [
        (loss or 0) - (1 - s) * a.value() - s * b.value()
        for s, loss in zip(curve.axis, curve.losses, strict=True)
    ]
    assert curve.barrier is not None
    assert curve.barrier.value >= max(heights) > 0
    assert curve.barrier.value - max(heights) <= curve.barrier.error


def test_the_barrier_falls_when_symmetries_are_divided_out() -> None:
    a, b = net(0), net(1)
    line = sl.landscape.interpolate(a, b, align=True)
    given, aligned = line["as given"], line["aligned"]
    assert given.barrier is not None
    assert aligned.barrier is not None
    assert aligned.barrier.value < 0.8 * given.barrier.value
    assert aligned.certificate is not None
    assert aligned.certificate.verdict == "exact"
    assert aligned.losses[0] == pytest.approx(a.value(), rel=1e-9)
    assert aligned.losses[-1] == pytest.approx(b.value(), rel=1e-9)
    assert "units changed places" in line.provenance["notes"][-1]


def test_a_network_and_its_twin_have_no_barrier_once_aligned() -> None:
    a = net(0)
    group = sl.symmetries(a)
    twin = group.apply(a, group.random(1, 1.0))
    units = sl.symmetry.permutations(a)[0]
    twin = units.apply(twin, units.random(2))
    line = sl.landscape.interpolate(a, twin, align=True, steps=9)
    given, aligned = line["as given"], line["aligned"]
    assert given.barrier is not None
    assert given.barrier.value > 0.05
    assert all(loss == pytest.approx(a.value(), rel=1e-9) for loss in aligned.losses)


@pytest.mark.parametrize("statistics", ["frozen", "recomputed"])
def test_running_statistics_are_interpolated_or_recomputed(statistics: Any) -> None:
    a = trained("convolutional").objective()
    buffers = {n: 1.5 * b for n, b in a.buffers.items() if b.is_floating_point()}
    b = a.at(a.vector * 1.2, buffers=buffers)
    line = sl.landscape.interpolate(a, b, steps=3, statistics=statistics)
    half = {n: 1.25 * b for n, b in a.buffers.items() if b.is_floating_point()}
    middle = a.at(a.vector * 1.1, buffers=half).value()
    found = line["as given"].losses[1]
    if statistics == "frozen":
        assert found == pytest.approx(middle, rel=1e-12)
        assert line["as given"].losses[2] == pytest.approx(b.value(), rel=1e-12)
    else:
        assert found != pytest.approx(middle, rel=1e-3)


def test_other_networks_come_in_many_forms(tmp_path: Path) -> None:
    a, b = net(0), net(1)
    truth = sl.landscape.interpolate(a, b, steps=3).curves
    state = {n: t.clone() for n, t in b.params.items()}
    save_file(state, tmp_path / "b.safetensors")
    for other in (b.vector, state, tmp_path / "b.safetensors", str(tmp_path / "b.safetensors")):
        assert sl.landscape.interpolate(a, other, steps=3).curves == truth
    with pytest.raises(sl.SpiritlevelError, match=r"b has no '2\.bias'; give a whole state_dict"):
        sl.landscape.interpolate(a, {n: t for n, t in state.items() if n != "2.bias"})
    wide = sl.Objective(nn.Linear(6, 3).double(), (randn(4, 6), labels(4)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="give a network of the same architecture"):
        sl.landscape.interpolate(a, wide)
    with pytest.raises(sl.SpiritlevelError, match="b is a Linear; give an Objective, a state_dict"):
        sl.landscape.interpolate(a, nn.Linear(6, 3))  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match=r"b has the shape \(3,\); give a tensor"):
        sl.landscape.interpolate(a, torch.ones(3))


# Trajectories ------------------------------------------------------------------------------------


def test_principal_directions_are_those_of_a_dense_svd() -> None:
    points = [randn(40, seed=s) * s for s in range(1, 6)]
    origin = randn(40, seed=77)
    (first, second), places, off, shares = principal(origin, points)
    moves = torch.stack([p - origin for p in points])
    _, s, v = torch.linalg.svd(moves, full_matrices=False)
    for found, truth in ((first, v[0]), (second, v[1])):
        assert abs(float(found @ truth)) == pytest.approx(1, abs=1e-10)
    assert shares == pytest.approx(((s[:2] ** 2) / (s**2).sum()).tolist(), rel=1e-10)
    rest = moves - places @ torch.stack([first, second])
    torch.testing.assert_close(off, rest.norm(dim=1))
    assert bool((places[0] >= 0).all())


def test_a_path_lies_on_its_plane() -> None:
    """Checkpoints in a plane: nothing is off it, and the surface has their losses."""
    a = net(0)
    d, e = randn(a.size, seed=5), randn(a.size, seed=6)
    checkpoints: list[Tensor] = [a.vector + s * (0.2 * d + 0.05 * s * e) for s in (4, 3, 2, 1)]
    surface = sl.landscape.trajectory(a, checkpoints, steps=9)
    assert surface.explained is not None
    assert sum(surface.explained) == pytest.approx(1)
    assert [step.name for step in surface.path] == [
        *(f"checkpoint {i}" for i in range(1, 5)),
        "the end",
    ]
    for step, point in zip(surface.path, [*checkpoints, a.vector], strict=True):
        assert step.off == pytest.approx(0, abs=1e-9)
        assert step.loss == pytest.approx(a.at(point).value(), rel=1e-12)
        assert min(surface.x) <= step.x <= max(surface.x)
        assert min(surface.y) <= step.y <= max(surface.y)
    assert surface.centre() == a.value()
    first, second = surface.path[0], checkpoints[0] - a.vector
    assert first.x**2 + first.y**2 == pytest.approx(float(second @ second))


def test_checkpoints_that_make_no_plane_are_refused() -> None:
    a = net(0)
    with pytest.raises(sl.SpiritlevelError, match="holds 1: a plane needs at least two"):
        sl.landscape.trajectory(a, [a.vector + 1])
    with pytest.raises(sl.SpiritlevelError, match="lie on one line"):
        sl.landscape.trajectory(a, [a.vector + 1, a.vector + 2])
    with pytest.raises(sl.SpiritlevelError, match="checkpoints is a Tensor; give a list"):
        sl.landscape.trajectory(a, a.vector)  # type: ignore[arg-type]
