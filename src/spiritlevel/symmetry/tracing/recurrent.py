"""Rules of recurrent layers: one scale, or one unit, for all times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spiritlevel.symmetry.tracing.equations import squash
from spiritlevel.symmetry.tracing.products import mapped
from spiritlevel.symmetry.tracing.state import Scales, Walk

Map = Callable[[Walk, Any, Any, Any], Tensor]  # ids of W x + b


def layers(linear: Map) -> Callable[..., tuple[Scales, Scales]]:
    """h_t = f(W x_t + b + U h_(t-1) + c) with f(s x) = s f(x): U is D U D^-1 where W is D W."""

    def rule(
        walk: Walk,
        input: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Scales, Scales]:
        if walk.option("batch_sizes") is not None:
            raise NotImplementedError  # packed sequences come in another order
        time = 1 if batch_first and input.ndim == 3 else 0
        x = walk.tied(input, [time]).squeeze(time)
        starts = walk.single(hx)
        given, last = iter(params), []
        for _ in range(num_layers):
            found = []
            for _ in range(2 if bidirectional else 1):
                w, u = next(given), next(given)
                b, c = (next(given), next(given)) if has_biases else (None, None)
                found.append(_hidden(walk, linear, x, w, u, b, c, starts[len(last) + len(found)]))
            last += found
            x = torch.cat(found, -1)
        assert walk.node is not None
        outputs, ends = walk.node.meta["val"]
        return (
            walk.made(squash(x.unsqueeze(time)), outputs.shape),
            Scales((squash(torch.stack(last)).expand(ends.shape),)),
        )

    return rule


def _hidden(
    walk: Walk, linear: Map, x: Tensor, w: Any, u: Any, b: Any, c: Any, start: Tensor
) -> Tensor:
    hidden = linear(walk, Scales((x,)), w, b)
    walk.note("hidden", hidden)
    again = linear(walk, Scales((hidden,)), u, c)
    shape = torch.broadcast_shapes(hidden.shape, start.shape)
    return walk.system.choose(walk.system.choose(hidden, again), start).expand(shape)


def cell(linear: Map) -> Callable[..., Scales]:
    """One step of it."""

    def rule(walk: Walk, input: Any, hx: Any, w: Any, u: Any, b: Any, c: Any) -> Scales:
        hidden = linear(walk, input, w, b)
        walk.note("hidden", hidden)
        return walk.made(walk.system.choose(hidden, linear(walk, hx, u, c)))

    return rule


rnn, rnn_cell = layers(mapped), cell(mapped)
