"""Geodesic sharpness: its geodesics, what is horizontal, its limits, and what it does not see."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import BY_NAME, First, labels, randn
from spiritlevel.measures.attention import worst_along_geodesics
from spiritlevel.measures.heads import Chart, Side, chart_of
from spiritlevel.symmetry.units import head_maps

LAYER = functools.partial(nn.TransformerEncoderLayer, 4, 2, 5, batch_first=True, dropout=0.0)


def encoder() -> sl.Objective:
    """Two heads of two dimensions, biases at queries, keys and values."""
    data = randn(10, 3, 4), labels(10)
    return sl.Objective(randomized(First(LAYER(), 4)), data, F.cross_entropy)


@functools.cache
def chart() -> Chart:
    return chart_of(encoder(), "it", "nothing")


def value(objective: sl.Objective, radius: float = 0.5) -> float:
    return sl.MEASURES["geodesic_sharpness"](objective, radius=radius).value


# The coordinates ------------------------------------------------------------------------------


def length(u: Tensor, b: Tensor, du: Tensor, db: Tensor) -> Tensor:
    """g(d, d) = tr((U U')^-1 dU dU') + sum over biases of db' M^-1 db / (b' M^-1 b)."""
    inverse = torch.linalg.inv(u @ u.T)
    weights = (inverse @ du @ du.T).trace()
    return weights + sum(
        x @ inverse @ x / (y @ inverse @ y) for x, y in zip(db.T, b.T, strict=True)
    )


@pytest.mark.parametrize("biases", [0, 1, 2])
def test_a_geodesic_is_one_to_second_order(biases: int) -> None:
    """theta'' = -Gamma(theta', theta'), Christoffel's symbols from the metric by autograd."""
    d, cut = 2, 3
    point, way = randn(d, cut + biases, seed=3), randn(d, cut + biases, seed=4)

    def metric(x: Tensor) -> Tensor:
        x = x.reshape(d, -1)

        def form(v: Tensor) -> Tensor:
            v = v.reshape(d, -1)
            return length(x[:, :cut], x[:, cut:], v[:, :cut], v[:, cut:]) / 2

        return torch.func.hessian(form)(torch.zeros(x.numel(), dtype=x.dtype))

    g, slopes = metric(point.reshape(-1)), torch.func.jacrev(metric)(point.reshape(-1))
    side = by_hand(point, biases)
    z = torch.linalg.solve(side.frame, way) / side.sizes
    v = way.reshape(-1)
    assert float(v @ g @ v) == pytest.approx(float(z.square().sum()), rel=1e-10)
    forces = torch.einsum("jki,j,i->k", slopes, v, v) - torch.einsum("jik,j,i->k", slopes, v, v) / 2
    expected = torch.linalg.solve(g, -forces).reshape(d, -1)
    found = 2 * (side.geodesic(z) - point - way)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert float(expected.norm()) > 0.1 * float(way.norm())


def by_hand(point: Tensor, biases: int) -> Side:
    """The side of a head whose parameters are these, with Cholesky's factor for a frame."""
    cut = point.shape[1] - biases
    u, b = point[:, :cut], point[:, cut:]
    frame = torch.linalg.cholesky(u @ u.T)
    lengths = torch.linalg.solve(frame, b).norm(dim=0)
    sizes = torch.cat([torch.ones(cut, dtype=u.dtype), lengths])
    inside = torch.linalg.solve(frame, point) / sizes
    places = torch.arange(point.numel()).reshape(point.shape)
    return Side(places, frame, inside, sizes, biases, True)


def test_coordinates_lead_to_the_point_and_back() -> None:
    one = chart()
    theta, u, v = one.theta, randn(one.theta.numel()), randn(one.theta.numel(), seed=5)
    torch.testing.assert_close(one.point(torch.zeros_like(u)), theta)
    slopes = torch.func.jvp(one.point, (torch.zeros_like(u),), (u,))[1]
    torch.testing.assert_close(slopes.abs(), one.push(u).abs())  # but for the signs of theta
    for side in one.sides:
        torch.testing.assert_close(slopes[side.places], one.push(u)[side.places])
    assert float(one.push(u) @ v) == pytest.approx(float(u @ one.pull(v)), rel=1e-12)
    torch.testing.assert_close(one.push(torch.stack([u, v], 1))[:, 1], one.push(v))
    torch.testing.assert_close(one.pull(torch.stack([u, v], 1))[:, 0], one.pull(u))


def test_single_parameters_go_along_their_logarithm() -> None:
    """theta exp(t) to second order, for what is in no head."""
    one = chart()
    u = randn(one.theta.numel())
    t, rest = u * one.theta.sign(), torch.ones_like(u, dtype=torch.bool)
    for side in one.sides:
        rest[side.places] = False
    expected = one.theta * (1 + t + t**2 / 2)
    torch.testing.assert_close(one.point(u)[rest], expected[rest])
    assert 40 < int(rest.sum()) < len(u) - 40


def test_what_is_horizontal_is_orthogonal_to_every_map() -> None:
    objective, one = encoder(), chart()
    u = randn(objective.size)
    flat = one.horizontal(u)
    torch.testing.assert_close(one.horizontal(flat), flat)
    eye = torch.eye(objective.size, dtype=u.dtype)
    across = torch.stack([one.horizontal(column) for column in eye])
    torch.testing.assert_close(across, across.T)
    maps = head_maps(objective)
    assert float(across.trace()) == pytest.approx(objective.size - sum(m.size**2 for m in maps))
    frame = one.push(eye)
    for seed, head in enumerate(maps):
        generator = randn(2, 2, seed=seed)
        steps = [
            head.apply(objective, torch.matrix_exp(sign * 1e-5 * generator)).vector
            for sign in (1, -1)
        ]
        vertical = torch.linalg.solve(frame, (steps[0] - steps[1]) / 2e-5)
        assert abs(float(vertical @ flat)) < 1e-8 * float(vertical.norm())
        assert float(one.horizontal(vertical).norm()) < 1e-8 * float(vertical.norm())


# The measure ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_map_of_a_head_is_seen(seed: int) -> None:
    objective = encoder()
    moved = objective
    for number, one in enumerate(head_maps(objective)):
        moved = one.apply(moved, one.random(10 * seed + number, 0.7))
    here = value(objective)
    assert value(moved) == pytest.approx(here, rel=1e-10)
    seen = [sl.MEASURES["adaptive_worst"](o).value for o in (objective, moved)]
    assert seen[1] != pytest.approx(seen[0], rel=1e-5)  # the head of the net is what matters most


def test_it_is_reached_along_a_horizontal_geodesic_of_that_length() -> None:
    """The coordinates of where it is, by Newton's method."""
    objective, one, radius = encoder(), chart(), 0.3
    start = torch.ones_like(one.theta)
    found = worst_along_geodesics(objective, one, radius, start=start)
    there, u = one.theta + found.perturbation, torch.zeros_like(one.theta)
    assert objective.at(there).value() == pytest.approx(found.loss, rel=1e-12)
    for _ in range(8):
        slopes = torch.func.jacrev(one.point)(u)
        u = u + torch.linalg.solve(slopes, there - one.point(u))
    assert float(u.norm()) == pytest.approx(radius, rel=1e-9)
    torch.testing.assert_close(one.horizontal(u), u, rtol=0, atol=1e-10)


def test_it_tends_to_the_slope_where_there_is_one() -> None:
    objective, one = encoder(), chart()
    steepest = float(one.horizontal(one.pull(objective.gradient())).norm())
    for radius in (1e-3, 1e-4):
        assert value(objective, radius) / radius == pytest.approx(steepest, rel=20 * radius)


def test_it_tends_to_the_curvature_where_there_is_no_slope() -> None:
    """rho^2 / 2 times geodesic_curvature, at a network that is its own teacher."""
    model, x = randomized(First(LAYER(), 4)), randn(30, 3, 4, seed=6)
    objective = sl.Objective(model, (x, model(x).detach()), F.mse_loss)
    assert float(objective.gradient().norm()) < 1e-12
    curvature = sl.MEASURES["geodesic_curvature"](objective)
    for radius in (1e-1, 1e-2, 1e-3):
        found = 2 * value(objective, radius) / radius**2
        assert found == pytest.approx(curvature.value, rel=radius + 2e-3)


class Copy(nn.Module):
    """y = O V x, by a head of two dimensions over tokens that are all alike."""

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(2, 2, bias=False) for _ in range(4))
        self.double()
        self.v.weight.data.copy_(basis)
        self.o.weight.data.copy_(torch.linalg.inv(basis))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x)[:, None] for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v)[:, 0])[:, 0]


@pytest.mark.parametrize("radius", [0.1, 0.3])
@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_a_bilinear_model_has_a_closed_form(radius: float, scale: float) -> None:
    """L = ||O V||_F^2 at O V = 1: both factors grow alike, to (1 + t + t^2 / 2), t = rho / 2.

    |xi|^2 is t^2 for each of two directions of two factors.
    """
    x = torch.linalg.qr(randn(2, 2, seed=8))[0]
    model = Copy(torch.matrix_exp(scale * randn(2, 2)))
    data = x[:, None].expand(2, 3, 2).contiguous(), torch.zeros(2, 2, dtype=torch.float64)
    objective = sl.Objective(model, data, F.mse_loss, params=["v.weight", "o.weight"])
    t = radius / 2
    expected = ((1 + t + t * t / 2) ** 4 - 1) / 2  # the mean over four numbers, two of them zero
    assert value(objective, radius) == pytest.approx(expected, rel=1e-6)


def test_zero_biases_and_zero_weights_stay_zero() -> None:
    """torch begins with biases of zero inside its attention; they have no size to move by."""
    fresh = encoder()
    still = [n for n in fresh.params if n.endswith("bias")] + ["head.weight"]
    objective = fresh.at({n: torch.zeros_like(fresh.params[n]) for n in still})
    one = chart_of(objective, "it", "nothing")
    zero = objective.vector == 0
    u = one.horizontal(randn(objective.size))
    assert not bool(u[zero].any())
    assert not bool(one.point(u)[zero].any())
    assert math.isfinite(value(objective))


def test_where_it_is_not_defined() -> None:
    for objective in (BY_NAME["mlp"].objective(), BY_NAME["LSTM"].objective()):
        with pytest.raises(sl.SpiritlevelError, match=r"none was found here.* use adaptive_worst"):
            value(objective)
    objective = encoder()
    weight = objective.params["body.self_attn.in_proj_weight"].clone()
    weight[0] = weight[1]
    thin = objective.at({"body.self_attn.in_proj_weight": weight})
    with pytest.raises(sl.SpiritlevelError, match=r"more dimensions than .*use adaptive_worst"):
        value(thin)
    assert sl.MEASURES["geodesic_curvature"](thin).value > 0


def test_it_is_a_lower_bound_and_says_what_it_took() -> None:
    found = sl.MEASURES["geodesic_sharpness"](encoder())
    assert found.status.value == "lower bound"
    assert found.matvecs > 10
    options: dict[str, Any] = {"radius": 0.25}
    assert sl.MEASURES["geodesic_sharpness"](encoder(), **options).value < found.value
