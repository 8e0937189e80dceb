"""What is exported of a model or an objective: its predictions on an example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import leaves, map_tensors
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.loss import moved
from spiritlevel.objective.loss.base import Loss, call
from spiritlevel.objective.loss.heads import predictions
from spiritlevel.objective.module import cast, private_copy, unwrap
from spiritlevel.symmetry.tracing.example import guessed
from spiritlevel.symmetry.tracing.graph import Predictor

EXAMPLES = 2  # of the data go into the graph


def predictor_of(model: nn.Module | Objective, example: Any) -> tuple[Predictor, set[str]]:
    """What to export, on the CPU, and the parameters that may move."""
    if isinstance(model, Objective):
        if example is not None:
            raise SpiritlevelError("example is for a module; an Objective brings its own data")
        batch = max(model.batches, key=_size_of_one)
        batch = model.part(batch, EXAMPLES)
        copied, loss = on_cpu(model)
        batch = map_tensors(lambda t: t.detach().cpu(), batch)
        with_loss = loss.on_outputs is None

        def answers(module: nn.Module, batch: Any) -> list[Tensor]:
            if not with_loss:
                return list(loss.returned(module, batch).values())
            found, (total, _) = loss.together(module, batch)
            return [*found.values(), total]

        return Predictor(copied, answers, batch, with_loss), set(model.params)
    module, _ = unwrap(model)
    copied = cast(private_copy(module), torch.float32, torch.device("cpu")).eval()
    if example is None:
        example = guessed(copied)
    if any(not t.numel() for t in leaves(example)):  # of nothing everything is true
        raise SpiritlevelError("example holds a tensor without numbers; give one with some")
    example = map_tensors(lambda t: t.detach().cpu(), example)
    example = map_tensors(lambda t: t.float() if t.is_floating_point() else t, example)
    movable = {name for name, _ in module.named_parameters()}
    return Predictor(copied, lambda m, x: predictions(call(m, x)).values(), example), movable


def on_cpu(objective: Objective) -> tuple[nn.Module, Loss]:
    """Copies of the model and the loss of an objective, where graphs are made."""
    model = cast(private_copy(objective.module), objective.dtype, torch.device("cpu"))
    model.train(objective.mode == "train")
    return model, moved(objective.loss, objective.dtype, torch.device("cpu"))


def _size_of_one(batch: Any) -> float:
    """How long the examples of a batch are; the longest reach most parameters."""
    return sum(t.numel() for t in leaves(batch)) / max(frozen.examples(batch), 1)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> its first name; tied ones share it."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]:
        found[name] = first.setdefault(id(tensor), name)
    return found
