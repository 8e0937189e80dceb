"""What the options name: modules, data, losses and weights."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spiritlevel.cli.options import LOSSES, Course, names

if TYPE_CHECKING:
    from spiritlevel.objective import Objective


def objective_from(model: str | None, given: dict[str, Any], seed: int) -> Objective:
    """The objective that the options describe; an option that cannot apply is refused."""
    import torch

    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.objective import Objective

    check_device(given.get("device", "cpu"))
    precision = getattr(torch, given["dtype"]) if "dtype" in given else None
    if model is None:
        refuse(given, ("data", "weights", "loss", "params", "heads", "mode"), "needs --model")
        from spiritlevel.objective.default import default_objective

        size = {"batch": given["batch"]} if "batch" in given else {}
        return default_objective(seed=seed, dtype=precision, device=given.get("device"), **size)
    made, notes = module_from(model, given)
    if isinstance(made, Objective):
        return made
    if "data" not in given:
        raise SpiritlevelError(
            "--data is missing: give package.module:factory that returns a DataLoader, a Dataset "
            "or tensors or arrays (x, y); or let --model return an Objective"
        )
    batches = load(given["data"], "--data")
    own_loss = "loss" not in given and speaks_for_itself(batches)
    mode = given.get("mode", "eval")
    objective = Objective(
        made,
        batches,
        None if own_loss else loss_named(given.get("loss", LOSSES[0])),
        params=names(given.get("params")),
        mode=mode,
        dtype=precision,
        device=given.get("device"),
        seed=seed if mode == "train" else None,
        heads=_heads(given.get("heads")),
    )
    return objective.replaced(notes=(*notes, *objective.notes))


def _heads(text: str | None) -> str | list[str] | None:
    """One head, or several that are separated by commas."""
    chosen = names(text)
    return chosen[0] if chosen and len(chosen) == 1 else chosen


def check_device(name: str) -> None:
    """Refuse a device that is not here."""
    import torch

    from spiritlevel.base.errors import SpiritlevelError

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise SpiritlevelError(f"--device is {name!r}; give cpu, cuda, cuda:1 or mps") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise SpiritlevelError("--device cuda: no CUDA device is here; use --device cpu")


def module_from(model: str, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """What a factory makes, with the weights of a file if given, and what to know about them."""
    from spiritlevel.objective import Objective
    from spiritlevel.objective.checkpoints import load_weights

    made = load(model, "--model")
    if isinstance(made, Objective):
        refuse(given, tuple(given), "does not apply to an Objective: set it where it is made")
        return made, []
    return made, load_weights(made, given["weights"]) if "weights" in given else []


def course_from(model: str | None, course: Course, seed: int) -> dict[str, Any]:
    """The weights before training and the losses of its steps, as far as they are known."""
    if model is None:
        from spiritlevel.objective.default import training

        refuse({k: v for k, v in vars(course).items() if v}, ("init", "losses"), "needs --model")
        known = training(seed)
        return {"init": known.init, "losses": known.losses}
    found: dict[str, Any] = {}
    if course.init is not None:
        found["init"] = _before_training(model, course.init)
    if course.losses is not None:
        found["losses"] = _numbers(course.losses)
    return found


def _before_training(model: str, path: Path) -> Any:
    from spiritlevel.objective import Objective
    from spiritlevel.objective.checkpoints import load_weights
    from spiritlevel.objective.module import private_copy

    made = load(model, "--model")
    module = private_copy(made.module) if isinstance(made, Objective) else made
    load_weights(module, path)
    return module


def _numbers(path: Path) -> list[float]:
    """Numbers separated by spaces, commas or lines; a list of JSON is such a text too."""
    from spiritlevel.base.errors import SpiritlevelError

    try:
        words = path.read_text(encoding="utf-8").translate(str.maketrans("[],;", "    ")).split()
        return [float(word) for word in words]
    except OSError:
        raise SpiritlevelError(f"--losses: no file {path}") from None
    except ValueError as error:
        raise SpiritlevelError(
            f"--losses: {path} holds something else than numbers ({error}); write one loss for "
            "every step"
        ) from None


def refuse(given: dict[str, Any], options: tuple[str, ...], why: str) -> None:
    from spiritlevel.base.errors import SpiritlevelError

    for name in options:
        if name in given:
            raise SpiritlevelError(f"--{name} {why}")


def speaks_for_itself(data: Any) -> bool:
    """Mappings go to models that compute their own loss."""
    from spiritlevel.base.scope import kept_rng
    from spiritlevel.objective.batches import is_one_batch

    if is_one_batch(data) or not isinstance(data, Iterable) or iter(data) is data:
        return isinstance(data, Mapping)
    with kept_rng():
        return isinstance(next(iter(data), None), Mapping)


def loss_named(name: str) -> Any:
    """One of torch's losses by its name, or a user's own function."""
    if ":" in name:
        return _find(name, "--loss")
    if name not in LOSSES:
        from spiritlevel.base.errors import SpiritlevelError

        raise SpiritlevelError(
            f"--loss is {name!r}; give package.module:function or one of {', '.join(LOSSES)}"
        )
    import torch.nn.functional as F

    return getattr(F, name)


def _find(where: str, option: str) -> Any:
    """The object at package.module:name, looked for beside the current folder too."""
    from spiritlevel.base.errors import SpiritlevelError

    module_name, _, attribute = where.partition(":")
    if not attribute:
        raise SpiritlevelError(f"{option} is {where!r}; write it as package.module:name")
    if module_name.endswith(".py"):
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise SpiritlevelError(f"{option} is {where!r}, a file; write it as {dotted}:{attribute}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SpiritlevelError(
            f"{option}: no module {error.name!r}; run where it can be imported"
        ) from None
    finally:
        sys.path.pop(0)
    if not hasattr(module, attribute):
        raise SpiritlevelError(f"{option}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def load(where: str, option: str) -> Any:
    """What the factory makes; an object that is no function is taken as it is."""
    import torch

    from spiritlevel.base.errors import SpiritlevelError, in_one_line

    found = _find(where, option)
    if isinstance(found, torch.nn.Module) or not callable(found):
        return found
    if needed := _needed(found):
        raise SpiritlevelError(
            f"{option}: {where} needs arguments ({', '.join(needed)}); name a function without any"
        )
    try:
        return found()
    except (SpiritlevelError, OSError):
        raise
    except Exception as error:
        if os.environ.get("SPIRITLEVEL_DEBUG"):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}, line {last.lineno}"
        said = f"{where} raised {in_one_line(error)} ({place}; SPIRITLEVEL_DEBUG=1 shows how)"
        raise SpiritlevelError(f"{option}: {said}") from error


def _needed(factory: Any) -> list[str]:
    """The parameters without which a factory cannot be called."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
