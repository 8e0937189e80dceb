"""spiritlevel train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, Trained, expanded, names
from spiritlevel.cli.writing import check_writable, say_written, write

if TYPE_CHECKING:
    from torch import nn

    from spiritlevel.objective import Objective

LOOKS = 5  # about so many, where --every does not say
NOBODY = "none"


@dataclass(frozen=True)
class Recipe:
    """How it is trained."""

    optimizer: Annotated[
        str, typer.Option("--optimizer", help="sgd, adam, sam, asam, entropy-sgd, ...")
    ] = "sgd"
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.", min=1)] = 40
    lr: Annotated[
        float | None,
        typer.Option("--lr", help="The learning rate; the optimizer's own if left out.", min=0),
    ] = None
    rho: Annotated[
        float | None, typer.Option("--rho", help="The radius of sam and asam.", min=0)
    ] = None
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Examples in one step.", min=1)
    ] = 64
    stop: Annotated[
        float | None,
        typer.Option("--stop", help="End where the loss over all the data is at most this."),
    ] = None
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="Of the rate: constant, cosine, steps, warm-restarts, raise-then-decay.",
        ),
    ] = "constant"
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Keep the training here, and go on from there."),
    ] = None
    watch: Annotated[
        str | None,
        typer.Option(
            "--watch", help=f"Measures, separated by commas; {NOBODY} for none; some if left out."
        ),
    ] = None
    every: Annotated[
        int | None,
        typer.Option("--every", help=f"Steps between two looks; about {LOOKS} in all.", min=1),
    ] = None


@dataclass(frozen=True)
class Outcome(Files):
    weights_out: Annotated[
        Path | None,
        typer.Option("--weights-out", help="Write the trained weights here, as safetensors."),
    ] = None


@app.command()
@expanded
def train(network: Trained, recipe: Recipe, files: Outcome) -> None:
    """Train a network, and watch what its flatness does on the way.

    Without --model it trains a small net on the 8x8 digits. After a kill the same command with the
    same --checkpoint goes on where it was; Ctrl-C keeps what is done.
    """
    with one_line_errors() as console:
        from spiritlevel.objective.checkpoints import save_weights
        from spiritlevel.training import fit

        check_writable(files)
        model, data, loss = _subject(network)
        options = _options(network, recipe, model, data, loss)
        found = fit(
            *(model, data, loss, options.pop("optimizer"), recipe.epochs),
            stop=recipe.stop,
            seed=network.seed,
            batch_size=recipe.batch_size,
            checkpoint=recipe.checkpoint,
            **options,
        )
        console.print(found)
        write(found, Files(files.out, files.json, files.csv), console)
        if files.weights_out is not None:
            save_weights(model, {}, files.weights_out)
        say_written(files.weights_out, console)


def _options(
    network: Trained, recipe: Recipe, model: nn.Module, data: Any, loss: Any
) -> dict[str, Any]:
    """The optimizer, the schedule and the watch that the options name."""
    from spiritlevel.training import naming
    from spiritlevel.training.feeding import feed

    def objective() -> Objective:
        return _objective(model, data, loss, network)

    fed = feed(data, recipe.batch_size, network.seed, lambda tensor: tensor)
    subject = naming.Subject(model, objective, network.seed)
    optimizer = naming.optimizer_named(recipe.optimizer, subject, recipe.lr, recipe.rho)
    watch = None
    if recipe.watch != NOBODY:
        from spiritlevel.training import Watch

        every = recipe.every or max((fed.steps or 100) * recipe.epochs // LOOKS, 1)
        watch = Watch(objective(), names(recipe.watch), every=every, seed=network.seed)
    schedule = naming.schedule_named(recipe.schedule, optimizer, recipe.epochs)
    return {"optimizer": optimizer, "schedule": schedule, "watch": watch}


def _subject(network: Trained) -> tuple[nn.Module, Any, Any]:
    """The network to be trained, its data and its loss."""
    import torch

    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.cli import loading

    given = network.given
    loading.check_device(given.get("device", "cpu"))
    loading.refuse(given, ("heads",), "does not apply: give a --loss of all outputs")
    if network.model is None:
        loading.refuse(given, ("data", "weights", "loss", "params", "mode"), "needs --model")
        model, data, loss = _default(network.seed)
    else:
        made, _ = loading.module_from(network.model, given)
        if not isinstance(made, torch.nn.Module):
            raise SpiritlevelError(
                "--model made no torch.nn.Module; train needs one, with --data and --loss"
            )
        if "data" not in given:
            raise SpiritlevelError("--data is missing: give package.module:factory of the data")
        model, data = made, loading.load(given["data"], "--data")
        own = "loss" not in given and loading.speaks_for_itself(data)
        loss = None if own else loading.loss_named(given.get("loss", loading.LOSSES[0]))
        _freeze(model, names(given.get("params")))
    dtype = getattr(torch, given["dtype"]) if "dtype" in given else None
    return model.to(given.get("device"), dtype), data, loss


def _default(seed: int) -> tuple[nn.Module, Any, Any]:
    import torch.nn.functional as F

    from spiritlevel.base.tensors import generator
    from spiritlevel.objective.default import digits, fresh_net

    return fresh_net(generator(seed)), digits(seed)[0], F.cross_entropy


def _freeze(model: nn.Module, patterns: list[str] | None) -> None:
    """Leave all parameters as they are but those that --params names."""
    from spiritlevel.objective.module import choose

    chosen = choose(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def _objective(model: nn.Module, data: Any, loss: Any, network: Trained) -> Objective:
    """The loss over all the data, which a loader that shuffles gives once."""
    from torch.utils.data import DataLoader

    from spiritlevel.base.scope import fixed_rng
    from spiritlevel.objective import Objective

    mode = network.given.get("mode", "eval")
    with fixed_rng(network.seed):
        batches = list(data) if isinstance(data, DataLoader) else data
    seed = network.seed if mode == "train" else None
    return Objective(model, batches, loss, mode=mode, seed=seed)
