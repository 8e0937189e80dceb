"""spiritlevel bound."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Files, Trained, expanded, names
from spiritlevel.cli.writing import check_writable, write

if TYPE_CHECKING:
    from spiritlevel.objective import Objective


class Prior(str, Enum):
    init = "init"
    zero = "zero"


@dataclass(frozen=True)
class Asked:
    """Which bounds, how sure, and of which posterior."""

    only: Annotated[
        str | None,
        typer.Option("--only", help="Bounds, separated by commas; all that apply if left out."),
    ] = None
    init: Annotated[
        Path | None, typer.Option("--init", help="A file with the weights before training.")
    ] = None
    test: Annotated[
        str | None,
        typer.Option("--test", help="package.module:factory of data that nothing was trained on."),
    ] = None
    delta: Annotated[
        float, typer.Option("--delta", help="The share of draws for which a bound may fail.")
    ] = 0.05
    prior: Annotated[
        Prior | None,
        typer.Option("--prior", help="What it is centred at; init where --init is known."),
    ] = None
    share: Annotated[
        float, typer.Option("--share", help="Of the examples, that train the prior's centre.")
    ] = 0.0
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Of the training of the posterior.", min=1)
    ] = None
    draws: Annotated[
        int | None, typer.Option("--draws", help="Networks that are drawn and tested.", min=1)
    ] = None
    orbit: Annotated[
        bool, typer.Option("--orbit/--no-orbit", help="Also rescaled to the least divergence.")
    ] = True
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Keep the posterior here, and go on from there."),
    ] = None


@app.command()
@expanded
def bound(network: Trained, asked: Asked, files: Files) -> None:
    """What is guaranteed on new examples, with every bound's assumptions.

    Without --model it bounds a small net that tells the digits 0 to 4 from 5 to 9. After a kill
    the same command with the same --checkpoint goes on where it was; Ctrl-C keeps what is done.
    """
    with one_line_errors() as console:
        from spiritlevel.bounds import survey

        check_writable(files)
        objective, known = _subject(network, asked)
        settings = {
            name: getattr(asked, name)
            for name in ("delta", "share", "epochs", "draws", "orbit", "checkpoint")
        }
        prior = None if asked.prior is None else asked.prior.value
        only = names(asked.only)
        found = survey(objective, only=only, prior=prior, seed=network.seed, **known, **settings)
        console.print(found)
        write(found, files, console)


def _subject(network: Trained, asked: Asked) -> tuple[Objective, dict[str, Any]]:
    """The network, its weights before training and its test data, as far as they are known."""
    if network.model is None:
        return _default(network, asked)
    from spiritlevel.cli.loading import course_from, load
    from spiritlevel.cli.options import Course

    objective = network.objective()
    known = course_from(network.model, Course(init=asked.init), network.seed)
    if asked.test is not None:
        known["test"] = load(asked.test, "--test")
    return objective, known


def _default(network: Trained, asked: Asked) -> tuple[Objective, dict[str, Any]]:
    import torch
    import torch.nn.functional as F

    from spiritlevel.cli.loading import check_device, refuse
    from spiritlevel.objective import Objective
    from spiritlevel.objective.default import halves, halves_training

    given = network.given
    named = {name: getattr(asked, name) for name in ("init", "test") if getattr(asked, name)}
    without = ("data", "weights", "loss", "params", "heads", "mode", "init", "test")
    refuse({**given, **named}, without, "needs --model")
    check_device(given.get("device", "cpu"))
    dtype = getattr(torch, given["dtype"]) if "dtype" in given else None
    known, (train, test) = halves_training(network.seed), halves(network.seed)
    objective = Objective(
        known.net, train, F.cross_entropy, dtype=dtype, device=given.get("device")
    )
    return objective, {"init": known.init, "test": test}
