"""spiritlevel compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.options import Accuracy, Files, Network, OnlyOption, expanded, names
from spiritlevel.cli.writing import check_writable, write


@app.command()
@expanded
def compare(
    network: Network,
    accuracy: Accuracy,
    files: Files,
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="The weights of two or more networks.")
    ] = None,
    only: OnlyOption = None,
) -> None:
    """Which of two checkpoints is flatter, and whether that survives their symmetries.

    Without --model it compares small nets trained on the 8x8 digits with batches of 16 and of 256.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.comparison import COMPARED
        from spiritlevel.audits.comparison import compare as make
        from spiritlevel.measures.registry import checked

        check_writable(files)
        wanted = checked(COMPARED if only is None else names(only) or [], single=True)
        found = make(
            _objectives(checkpoints or [], network),
            wanted,
            seed=network.seed,
            **vars(accuracy),
        )
        console.print(found)
        write(found, files, console)


def _objectives(checkpoints: list[Path], network: Network) -> dict[str, Any]:
    """One objective per checkpoint, named as shortly as they can be told apart."""
    from spiritlevel.base.errors import SpiritlevelError

    if network.model is None:
        if checkpoints:
            raise SpiritlevelError(f"{checkpoints[0]} needs --model, the factory of its module")
        return {f"batch {size}": network.objective(batch=size) for size in (16, 256)}
    if len(checkpoints) < 2:
        raise SpiritlevelError("compare needs at least two checkpoints: compare a.pt b.pt --model")
    short = [path.stem for path in checkpoints]
    labels = short if len(set(short)) == len(short) else [str(path) for path in checkpoints]
    if len(set(labels)) < len(labels):
        raise SpiritlevelError("compare got the same checkpoint twice")
    return {label: _one(network, path) for label, path in zip(labels, checkpoints, strict=True)}


def _one(network: Network, path: Path) -> Any:
    from spiritlevel.base.errors import SpiritlevelError

    try:
        return network.objective(weights=path)
    except SpiritlevelError as error:
        if "size mismatch" not in str(error):
            raise
        raise SpiritlevelError(
            f"{path} holds a network of another architecture than --model makes; two architectures "
            "are compared in Python: sl.compare({'a': one, 'b': other})"
        ) from error
