"""What `fit` is given: refused in one line, or understood before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import kept_rng
from spiritlevel.base.tensors import leaves
from spiritlevel.objective import batches as frozen
from spiritlevel.objective.batches import Batch
from spiritlevel.objective.loss import Loss, adapt, moved
from spiritlevel.objective.module import private_copy, unwrap
from spiritlevel.training.checkpoints import named
from spiritlevel.training.standing import Parts


def refuse(given: dict[str, Any]) -> Path | None:
    """Arguments that cannot be used; returns the path of the checkpoint."""
    module, _ = unwrap(given["model"])
    if given["loss"] is not None:
        doors.function("loss", given["loss"], "(outputs, y) or of (model, batch)")
    doors.a("optimizer", given["optimizer"], Optimizer, "a torch.optim.Optimizer")
    held = {id(p) for group in given["optimizer"].param_groups for p in group["params"]}
    if not any(id(p) in held and p.requires_grad for p in module.parameters()):
        raise SpiritlevelError(
            "optimizer holds no trainable parameter of the model: give one that is made from "
            "model.parameters(), after the model was moved"
        )
    doors.number("epochs", given["epochs"], 1, whole=True)
    tensor_doors.seeded(given["seed"])
    doors.number("batch_size", given["batch_size"], 1, whole=True)
    _refuse_stop(given["stop"])
    path = named(given["checkpoint"])
    if given["every"] is not None:
        doors.number("every", given["every"], 1, whole=True)
        if path is None:
            raise SpiritlevelError("every is of checkpoints: give checkpoint, or leave it out")
    doors.one_of("schedule_every", given["schedule_every"], ("epoch", "step"))
    _refuse_schedule(given["schedule"], given["optimizer"], given["schedule_every"])
    _refuse_watch(given["watch"])
    return path


def _refuse_stop(stop: Any) -> None:
    if stop is not None and not callable(stop):
        doors.number("stop", stop)


def _refuse_schedule(schedule: Any, optimizer: Optimizer, every: str) -> None:
    if schedule is None:
        return
    if isinstance(schedule, ReduceLROnPlateau) and every == "step":
        raise SpiritlevelError(
            'schedule_every="step" with ReduceLROnPlateau, which judges epochs: give "epoch"'
        )
    ways = [getattr(schedule, way, None) for way in ("step", "state_dict", "load_state_dict")]
    if isinstance(schedule, type) or not all(callable(way) for way in ways):
        raise SpiritlevelError(
            f"schedule is a {type(schedule).__name__}; give a scheduler of torch, such as "
            "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)"
        )
    other = getattr(schedule, "optimizer", optimizer)
    mine = {id(group) for group in optimizer.param_groups}
    if other is not optimizer and not any(id(group) in mine for group in other.param_groups):
        raise SpiritlevelError(
            "schedule moves the rates of another optimizer: make it with the one that is given"
        )


def _refuse_watch(watch: Any) -> None:
    if watch is None:
        return
    fits = callable(getattr(watch, "look", None)) and callable(getattr(watch, "history", None))
    if isinstance(watch, type) or not fits:
        raise SpiritlevelError(
            f"watch is a {type(watch).__name__}; give a spiritlevel.training.Watch(objective)"
        )


def refuse_seen(watch: Any, step: int) -> None:
    """A watch that has moments of another training."""
    if watch is not None and step == 0 and getattr(watch, "moments", None):
        raise SpiritlevelError("watch has seen another training; give a new one to each")


def spoken(loss: Any) -> str:
    """The name of a loss, as far as it has one."""
    return str(getattr(loss, "__qualname__", type(loss).__name__))


def refuse_past(done: int, epochs: int, stopped: str) -> None:
    """A checkpoint that is further than what is asked for."""
    if done > epochs and not stopped:
        raise SpiritlevelError(
            f"epochs={epochs}, but the checkpoint has done {done}: give at least as many, or "
            "another checkpoint"
        )


def placing(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """A tensor of the data on the device and in the precision of the model."""
    first = next(p for p in module.parameters() if p.requires_grad)

    def place(tensor: Tensor) -> Tensor:
        kind = first.dtype if tensor.is_floating_point() else None
        return tensor.detach().to(first.device, kind, non_blocking=True)

    return place


def understood(module: nn.Module, loss: Any, first: Batch, *, training: bool) -> Loss:
    """The loss as (sum, count), seen from a copy of the model in this mode on the first batch."""
    parameter = next(p for p in module.parameters() if p.requires_grad)
    with kept_rng(), torch.inference_mode(False), frozen.explained([first]):
        own = private_copy(module).train(training)
        # the step of a sum is that of the sum
        found = adapt(loss, own, [first], first, reads=False)
        return moved(found, parameter.dtype, parameter.device)


def finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def broken(value: float, where: str, parts: Parts, batch: Batch | None) -> SpiritlevelError:
    """A loss that is no number: where, what the weights are now, and what to do."""
    if batch is not None and not finite(leaves(batch)):
        why = "the batch holds nan or inf; clean the data"
    elif not finite(parts.trained):
        why = "the weights stopped being finite in the step before; lower the learning rate"
    else:
        why = "the weights are those before this step; lower the learning rate, or mend the loss"
    return SpiritlevelError(f"the loss is {value} {where} (learning rate {parts.rate:g}): {why}")
