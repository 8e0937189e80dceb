"""Other networks of the same architecture: checkpoints, ends of a line, steps of a path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective import Objective
from spiritlevel.objective.checkpoints import load_weights

Other = Objective | Mapping[str, Tensor] | Tensor | str | os.PathLike[str]


def end_of(objective: Objective, other: Other, name: str) -> Objective:
    """Another network as an objective on the same data.

    It is an Objective, a state_dict (its running statistics come along), a flat vector, or the
    name of a file with weights.
    """
    if isinstance(other, Objective):
        if other.shapes != objective.shapes:
            raise SpiritlevelError(
                f"{name} has other parameters ({_first_difference(objective, other)}): give a "
                "network of the same architecture"
            )
        if other.coordinates != objective.coordinates:
            raise SpiritlevelError(f"{name} is in other coordinates: give both in the same ones")
        _refuse_other_rest(objective, _rest(other), name)
        return objective.at(other.params, buffers=_floating(objective, other.buffers))
    if isinstance(other, Mapping):
        held = {k: v for k, v in other.items() if isinstance(v, Tensor)}
        missing = [n for n in objective.shapes if n not in held]
        if missing:
            raise SpiritlevelError(f"{name} has no {missing[0]!r}; give a whole state_dict")
        _refuse_other_rest(objective, held, name)
        point = {n: held[n] for n in objective.shapes}
        return objective.at(point, buffers=_floating(objective, held))
    if isinstance(other, (str, os.PathLike)):
        if not Path(other).is_file():
            raise SpiritlevelError(f"{name}={str(other)!r}: there is no such file of weights")
        return _loaded(objective, Path(other))
    kinds = "an Objective, a state_dict, the name of a file with weights, or a vector"
    doors.a(name, other, Tensor, kinds)
    tensor_doors.tensor(name, other, objective.size)
    return objective.at(other)


def _loaded(objective: Objective, path: Path) -> Objective:
    private = objective.edited(lambda module: _load(module, path)).module
    held = {**dict(private.named_parameters()), **dict(private.named_buffers())}
    return end_of(objective, {n: t.detach() for n, t in held.items()}, str(path))


def _load(module: Any, path: Path) -> None:
    load_weights(module, path)


def _floating(objective: Objective, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of floats that are given, in the precision of the objective."""
    own = {n: b for n, b in objective.buffers.items() if b.is_floating_point()}
    return {n: given[n].to(b) for n, b in own.items() if n in given}


def _rest(objective: Objective) -> dict[str, Tensor]:
    """The parameters that are not among those of the objective, and stay."""
    if objective.coordinates:
        return {}
    every = objective.module.named_parameters()
    return {n: p.detach() for n, p in every if n not in objective.shapes}


def _refuse_other_rest(objective: Objective, held: Mapping[str, Tensor], name: str) -> None:
    """Networks that differ in what stays: none between them would be either."""
    for part, own in _rest(objective).items():
        if part in held and not _alike(own, held[part]):
            raise SpiritlevelError(
                f"{name} has another {part!r}, which is not among the parameters of the objective: "
                "choose them all (params=None)"
            )


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether rounding to float32 may be all that tells them apart."""
    same = a.shape == b.shape
    return same and torch.allclose(a.double(), b.to(a.device).double(), rtol=1e-6, atol=0)


def _first_difference(a: Objective, b: Objective) -> str:
    for name, shape in a.shapes.items():
        if b.shapes.get(name) != shape:
            other = tuple(b.shapes[name]) if name in b.shapes else "missing"
            return f"{name} is {tuple(shape)} there, and {other} here"
    extra = next(n for n in b.shapes if n not in a.shapes)
    return f"{extra} is missing there"
