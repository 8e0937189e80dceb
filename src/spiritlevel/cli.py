"""The command: spiritlevel audit, measure, symmetries, sharpen."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from spiritlevel.objective import Objective

app = typer.Typer(
    help="Is that minimum flat, and does the answer mean anything?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LOSSES = ("cross_entropy", "mse_loss", "binary_cross_entropy_with_logits", "l1_loss", "huber_loss")


ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="package.module:factory that returns a Module or an Objective."),
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="package.module:factory that returns the data.")
]
WeightsOption = Annotated[
    Path | None,
    typer.Option("--weights", help="A .safetensors, .pt or .ckpt file with the parameters."),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss",
        help=f"package.module:function, or one of {', '.join(LOSSES)}; the first if left out.",
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, ...; the model's if left out.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of everything random.")]


class Precision(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Mode(str, Enum):
    eval = "eval"
    train = "train"


@app.callback()
def main() -> None:
    """Measure the flatness of a trained PyTorch model, every number with an error bar."""


@app.command()
def measure(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: Annotated[
        str | None, typer.Option(help="Measures to make, separated by commas; all if left out.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(help='Parameters by pattern, such as "layer1.*,head.*".')
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="The mode of BatchNorm and dropout; eval if left out.")
    ] = None,
    dtype: Annotated[
        Precision | None, typer.Option(help="The precision; the model's if left out.")
    ] = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    tol: Annotated[float, typer.Option(help="Relative residual of eigenvalues.")] = 1e-3,
    rtol: Annotated[float, typer.Option(help="Relative standard error of traces.")] = 0.05,
    budget: Annotated[int, typer.Option(help="The most products for one measure.")] = 200,
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON here.")] = None,
) -> None:
    """Curvature of a model at its parameters: value, error, cost.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with _one_line_errors() as console:
        from spiritlevel.measures import measure as fill

        names = [name.strip() for name in only.split(",")] if only else None
        given = {"data": data, "weights": weights, "loss": loss, "params": params}
        given |= {"mode": mode and mode.value, "dtype": dtype and dtype.value, "device": device}
        objective = _objective(model, {k: v for k, v in given.items() if v is not None}, seed)
        table = fill(objective, names, seed=seed, tol=tol, rtol=rtol, budget=budget)
        console.print(table)
        if json is not None:
            table.to_json(json)


@app.command()
def audit(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: Annotated[
        str | None, typer.Option(help="Measures to audit, separated by commas.")
    ] = None,
    strength: Annotated[float, typer.Option(help="Of the random rescaling, in log-scales.")] = 1.0,
    dtype: Annotated[
        Precision | None, typer.Option(help="The precision; the model's if left out.")
    ] = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the audit as JSON here.")] = None,
) -> None:
    """Which flatness numbers mean something for this network: what moves, what does not.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with _one_line_errors() as console:
        from spiritlevel.auditing import DEFAULT
        from spiritlevel.auditing import audit as make

        given = {"data": data, "weights": weights, "loss": loss, "device": device}
        given |= {"dtype": dtype and dtype.value}
        objective = _objective(model, {k: v for k, v in given.items() if v is not None}, seed)
        names = [name.strip() for name in only.split(",")] if only else DEFAULT
        found = make(objective, names, strength=strength, seed=seed)
        console.print(found)
        if json is not None:
            found.to_json(json)


class Statistics(str, Enum):
    fixed = "fixed"
    free = "free"


class Eps(str, Enum):
    exact = "exact"
    approximate = "approximate"


@app.command()
def symmetries(
    model: ModelOption = None,
    data: DataOption = None,
    shape: Annotated[
        str | None, typer.Option(help='The shape of one input, such as "3,32,32"; or --data.')
    ] = None,
    statistics: Annotated[
        Statistics, typer.Option(help="Whether BatchNorm's running statistics move along.")
    ] = Statistics.fixed,
    eps: Annotated[
        Eps, typer.Option(help="Whether the eps of norms may break a scale a little.")
    ] = Eps.exact,
    seed: SeedOption = 0,
) -> None:
    """Every rescaling of a model's parameters that changes no prediction, layer by layer.

    Needs no data and no weights: the graph says it all. Without --model it runs on a small net.
    """
    with _one_line_errors() as console:
        import torch

        from spiritlevel.errors import SpiritlevelError
        from spiritlevel.objective import Objective
        from spiritlevel.symmetry import symmetries as find

        example = None
        if model is None:
            _refuse(
                {k: v for k, v in (("data", data), ("shape", shape)) if v},
                ("data", "shape"),
                "needs --model",
            )
            from spiritlevel.default import default_objective

            made: Any = default_objective(seed=seed)
        elif data is not None:
            made = _objective(model, {"data": data}, seed)
        else:
            made = _load(model, "--model")
        if shape is not None:
            if data is not None or isinstance(made, Objective):
                raise SpiritlevelError("--shape does not apply: the data say what the model takes")
            try:
                sizes = [int(n) for n in shape.split(",")]
            except ValueError:
                raise SpiritlevelError(f'--shape is {shape!r}; write it as "3,32,32"') from None
            example = torch.randn(2, *sizes, generator=torch.Generator().manual_seed(seed))
        console.print(find(made, example, statistics=statistics.value, eps=eps.value))


@app.command()
def sharpen(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="The parameters to start from; the factory's if left out.")
    ] = None,
    target: Annotated[float, typer.Option(help="The least largest Hessian eigenvalue.")] = 1e6,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the twin's checkpoint here.")
    ] = None,
    model: ModelOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
) -> None:
    """A checkpoint with the same predictions whose minimum is as sharp as you like.

    Prints the certificate. Without --model it sharpens a small net trained on the 8x8 digits.
    """
    with _one_line_errors() as console:
        from spiritlevel.errors import SpiritlevelError
        from spiritlevel.module import save_weights
        from spiritlevel.sharpening import sharpen as make

        if out is not None and out.suffix != ".safetensors":
            raise SpiritlevelError(f"-o is {out}; the twin is written as a .safetensors file")
        if out is not None and not out.resolve().parent.is_dir():
            raise SpiritlevelError(f"-o is {out}; there is no folder {out.resolve().parent}")
        if checkpoint is not None and model is None:
            raise SpiritlevelError(f"{checkpoint} needs --model, the factory of its module")
        given = {"data": data, "weights": checkpoint, "loss": loss, "device": device}
        objective = _objective(model, {k: v for k, v in given.items() if v is not None}, seed)
        found = make(objective, target=target)
        console.print(
            f"largest Hessian eigenvalue  [bold]{found.before}[/] -> at least "
            f"[bold]{found.reached:.4g}[/]\nby scaling  {_escaped(found.generator)}\n"
            f"predictions  {_escaped(str(found.certificate))}",
            highlight=False,
        )
        if out is not None:
            save_weights(found.objective.module, found.objective.params, out)
            console.print(f"written to  {out}", highlight=False)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[Console]:
    """What is wrong in one line, and no traceback."""
    from spiritlevel.console import Console
    from spiritlevel.errors import SpiritlevelError

    try:
        yield Console()
    except (SpiritlevelError, OSError) as error:
        Console(stderr=True).print(f"[bold red]spiritlevel:[/] {_escaped(str(error))}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted before the first row was done")
        raise typer.Exit(130) from None
    except Exception as error:  # of the user's model or data: no traceback unless asked for
        if os.environ.get("SPIRITLEVEL_DEBUG"):
            raise
        first = (str(error).strip() or "no message").splitlines()[0]
        Console(stderr=True).print(
            f"[bold red]spiritlevel:[/] {_escaped(f'{type(error).__name__}: {first}')}\n"
            "(SPIRITLEVEL_DEBUG=1 shows where)"
        )
        raise typer.Exit(2) from None


def _objective(model: str | None, given: dict[str, Any], seed: int) -> Objective:
    """The objective that the options describe; an option that cannot apply is refused."""
    import torch

    from spiritlevel.errors import SpiritlevelError
    from spiritlevel.objective import Objective

    if str(given.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
        raise SpiritlevelError("--device cuda: no CUDA device is here; use --device cpu")
    precision = getattr(torch, given["dtype"]) if "dtype" in given else None
    if model is None:
        _refuse(given, ("data", "weights", "loss", "params", "mode"), "needs --model")
        from spiritlevel.default import default_objective

        return default_objective(seed=seed, dtype=precision, device=given.get("device"))
    made = _load(model, "--model")
    if isinstance(made, Objective):
        _refuse(given, tuple(given), "does not apply to an Objective: set it where it is made")
        return made
    if "weights" in given:
        from spiritlevel.module import load_weights

        load_weights(made, given["weights"])
    if "data" not in given:
        raise SpiritlevelError(
            "--data is missing: give package.module:factory that returns a DataLoader, a Dataset "
            "or tensors (x, y); or let --model return an Objective"
        )
    batches = _load(given["data"], "--data")
    own_loss = "loss" not in given and _speaks_for_itself(batches)
    mode = given.get("mode", "eval")
    return Objective(
        made,
        batches,
        None if own_loss else _loss(given.get("loss", LOSSES[0])),
        params=[p.strip() for p in given["params"].split(",")] if "params" in given else None,
        mode=mode,
        dtype=precision,
        device=given.get("device"),
        seed=seed if mode == "train" else None,
    )


def _refuse(given: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    from spiritlevel.errors import SpiritlevelError

    for name in names:
        if name in given:
            raise SpiritlevelError(f"--{name} {why}")


def _speaks_for_itself(batches: Any) -> bool:
    """Mappings go to models that compute their own loss."""
    from collections.abc import Mapping

    if isinstance(batches, (Mapping, list)):
        first = batches[0] if isinstance(batches, list) and batches else batches
        return isinstance(first, Mapping)
    if isinstance(batches, tuple) or iter(batches) is batches:
        return False
    from spiritlevel.scope import kept_rng

    with kept_rng():
        return isinstance(next(iter(batches), None), Mapping)


def _loss(name: str) -> Any:
    if ":" in name:
        return _find(name, "--loss")
    if name not in LOSSES:
        from spiritlevel.errors import SpiritlevelError

        raise SpiritlevelError(
            f"--loss is {name!r}; give package.module:function or one of {', '.join(LOSSES)}"
        )
    import torch.nn.functional as F

    return getattr(F, name)


def _find(where: str, option: str) -> Any:
    """The object at package.module:name, looked for beside the current folder too."""
    from spiritlevel.errors import SpiritlevelError

    module_name, _, attribute = where.partition(":")
    if not attribute:
        raise SpiritlevelError(f"{option} is {where!r}; write it as package.module:name")
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


def _load(where: str, option: str) -> Any:
    """What the factory makes; an object that is no function is taken as it is."""
    import torch

    found = _find(where, option)
    ready = isinstance(found, torch.nn.Module) or not callable(found)
    return found if ready else found()


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    app()
