"""spiritlevel watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Accuracy, Files, Network, OnlyOption, expanded, names
from spiritlevel.cli.writing import check_writable, write

if TYPE_CHECKING:
    from spiritlevel.results.history import History

STEPS, EVERY, RATE = 400, 100, 0.3  # of the training that is shown where no checkpoint is named


@app.command()
@expanded
def watch(
    network: Network,
    accuracy: Accuracy,
    files: Files,
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="The weights along a training, one file each.")
    ] = None,
    only: OnlyOption = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="The learning rate, for the edge 2 / rate.", min=0),
    ] = None,
    least: Annotated[
        bool, typer.Option("--least/--no-least", help="Also on the bottom of the orbit.")
    ] = True,
) -> None:
    """What flatness does along a training, and which part of it is coordinates.

    Steps are read from the names of the files. Without any it trains a small net on the 8x8 digits
    by gradient descent, and looks at it on the way.
    """
    with one_line_errors() as console:
        check_writable(files)
        settings = {"least": least, "seed": network.seed, **vars(accuracy)}
        found = (
            _looked(checkpoints, network, names(only), rate=rate, **settings)
            if checkpoints
            else _trained(network, names(only), RATE if rate is None else rate, settings)
        )
        console.print(found)
        write(found, files, console)


def _looked(
    checkpoints: list[Path], network: Network, only: list[str] | None, **settings: Any
) -> History:
    from spiritlevel.training import watch_checkpoints

    return watch_checkpoints(network.objective(), checkpoints, only, **settings)


def _trained(
    network: Network, only: list[str] | None, rate: float, settings: dict[str, Any]
) -> History:
    """Gradient descent on the default net, with all the data in every step: it has an edge."""
    import torch
    import torch.nn.functional as F

    from spiritlevel.base.doors import number
    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.base.progress import bar
    from spiritlevel.base.tensors import generator
    from spiritlevel.cli.loading import check_device, refuse
    from spiritlevel.objective import Objective
    from spiritlevel.objective.default import digits, fresh_net
    from spiritlevel.training import Watch

    if network.model is not None:
        raise SpiritlevelError("watch needs checkpoints of --model: watch step_*.pt --model ...")
    given = network.given
    refuse(given, ("data", "loss", "params", "heads", "mode"), "needs --model")
    number("--rate", rate, above=0)
    check_device(given.get("device", "cpu"))
    dtype = getattr(torch, given.get("dtype", "float32"))
    net = fresh_net(generator(network.seed)).to(given.get("device", "cpu"), dtype)
    (x, y), _ = digits(network.seed)
    x, y = x.to(given.get("device", "cpu"), dtype), y.to(given.get("device", "cpu"))
    watch = Watch(Objective(net, (x, y), F.cross_entropy), only, every=EVERY, **settings)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    with bar(STEPS, "train") as progress:
        watch.look(net, step=0, rate=rate)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            watch.look(net, step=step, rate=rate)
            progress.update()
    told = {"optimizer": "gradient descent", "seed": network.seed}
    return watch.history(**told, stopped=f"after {STEPS} steps")
