"""Parameters that are being trained: their names in their model, and gradients lent to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError


def named_in(model: nn.Module, weights: Iterable[Tensor]) -> dict[str, Tensor]:
    """The parameters of an optimizer by their names in the model; refuse those of another."""
    names: dict[int, str] = {}
    for name, p in model.named_parameters():
        names[id(p)] = name
    given = list(weights)
    strange = [p for p in given if id(p) not in names]
    if strange:
        raise SpiritlevelError(
            f"params holds a tensor of shape {tuple(strange[0].shape)} that is no parameter of "
            f"model, a {type(model).__name__}; give the model that is trained"
        )
    return {names[id(p)]: p for p in given}


@contextmanager
def lent(gradients: Mapping[str, Tensor | None], live: Mapping[str, Any]) -> Iterator[None]:
    """Other gradients for a while: whoever reads .grad after a step finds that of the loss."""
    own = {name: p.grad for name, p in live.items()}
    for name, p in live.items():
        p.grad = gradients[name]
    try:
        yield
    finally:
        for name, p in live.items():
            p.grad = own[name]
