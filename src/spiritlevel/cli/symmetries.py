"""spiritlevel symmetries and sharpen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.loading import module_from, refuse
from spiritlevel.cli.options import Files, Network, Trained, expanded
from spiritlevel.cli.writing import check_writable, say_written, write

if TYPE_CHECKING:
    from torch import Tensor

    from spiritlevel.results.provenance import Provenance


class Statistics(str, Enum):
    fixed = "fixed"
    free = "free"


class Eps(str, Enum):
    exact = "exact"
    approximate = "approximate"


@dataclass(frozen=True)
class Twin(Files):
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the twin's checkpoint here.")
    ] = None


@app.command()
@expanded
def symmetries(
    network: Trained,
    files: Files,
    shape: Annotated[
        str | None, typer.Option(help='The shape of one input, such as "3,32,32"; or --data.')
    ] = None,
    statistics: Annotated[
        Statistics, typer.Option(help="Whether BatchNorm's running statistics move along.")
    ] = Statistics.fixed,
    eps: Annotated[
        Eps, typer.Option(help="Whether the eps of norms may break a scale a little.")
    ] = Eps.exact,
) -> None:
    """Every rescaling of a model's parameters that changes no prediction, layer by layer.

    Needs no data and no weights: the graph says it all. Without --model it runs on a small net.
    """
    with one_line_errors() as console:
        from spiritlevel.symmetry import symmetries as find

        begin = time.perf_counter()
        check_writable(files)
        made, notes = _subject(network)
        example = None if shape is None else _example(shape, made, network)
        found = find(made, example, statistics=statistics.value, eps=eps.value)
        result = found.result(_name(made), _told(begin, notes))
        console.print(result)
        write(result, files, console)


@app.command()
@expanded
def sharpen(
    network: Network,
    files: Twin,
    checkpoint: Annotated[
        Path | None, typer.Argument(help="The parameters to start from; the factory's if left out.")
    ] = None,
    target: Annotated[float, typer.Option(help="The least largest Hessian eigenvalue.")] = 1e6,
    weights: Annotated[
        Path | None, typer.Option(help="The same as CHECKPOINT, as on other commands.")
    ] = None,
) -> None:
    """A checkpoint with the same predictions whose minimum is as sharp as you like.

    Prints the certificate. Without --model it sharpens a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.base.errors import SpiritlevelError
        from spiritlevel.objective.checkpoints import save_weights
        from spiritlevel.witnesses.sharpened import sharpen as make

        begin = time.perf_counter()
        if weights is not None and checkpoint is not None:
            raise SpiritlevelError(f"{checkpoint} and --weights {weights}: give one of them")
        checkpoint = checkpoint or weights
        if files.out is not None and files.out.suffix != ".safetensors":
            raise SpiritlevelError(f"-o is {files.out}; the twin is written as a .safetensors file")
        check_writable(files)
        if checkpoint is not None and network.model is None:
            raise SpiritlevelError(f"{checkpoint} needs --model, the factory of its module")
        given = {} if checkpoint is None else {"weights": checkpoint}
        objective = network.objective(**given)
        found = make(objective, target=target)
        result = found.result(_name(objective), target, _told(begin, objective.notes))
        console.print(result)
        write(result, Files(json=files.json, csv=files.csv), console)
        if files.out is not None:
            save_weights(found.objective.module, found.objective.params, files.out)
            say_written(files.out, console)


def _subject(network: Trained) -> tuple[Any, Sequence[str]]:
    """An Objective where there are data, else the module; and what to know about its weights."""
    if network.model is None or network.data is not None:
        objective = network.objective()
        return objective, objective.notes
    refuse(network.given, ("loss", "params", "mode", "dtype", "device"), "needs --data")
    return module_from(network.model, network.given)


def _example(shape: str, made: Any, network: Trained) -> Tensor:
    import torch

    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.objective import Objective

    if network.model is None:
        raise SpiritlevelError("--shape needs --model")
    if isinstance(made, Objective):
        raise SpiritlevelError("--shape does not apply: the data say what the model takes")
    try:
        sizes = [int(n) for n in shape.split(",")]
    except ValueError:
        raise SpiritlevelError(f'--shape is {shape!r}; write it as "3,32,32"') from None
    if min(sizes) < 1:
        raise SpiritlevelError(f"--shape is {shape!r}; sizes are positive")
    return torch.randn(2, *sizes, generator=torch.Generator().manual_seed(network.seed))


def _name(made: Any) -> str:
    return type(getattr(made, "module", made)).__name__


def _told(begin: float, notes: Sequence[str]) -> Provenance:
    from spiritlevel.results.provenance import provenance

    return provenance(begin, notes)
