"""The options that commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

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


OnlyOption = Annotated[str | None, typer.Option("--only", help="Measures, separated by commas.")]
ParamsOption = Annotated[
    str | None, typer.Option("--params", help='Parameters by pattern, such as "layer1.*,head.*".')
]
HeadsOption = Annotated[
    str | None,
    typer.Option("--heads", help="Which of several outputs count, by name; all if left out."),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option("--mode", help="The mode of BatchNorm and dropout; eval if left out."),
]
TolOption = Annotated[float, typer.Option("--tol", help="Relative residual of eigenvalues.", min=0)]
RtolOption = Annotated[
    float, typer.Option("--rtol", help="Relative standard error of traces.", min=0)
]
BudgetOption = Annotated[
    int, typer.Option("--budget", help="The most products for one measure.", min=1)
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the report, an HTML page, here.")
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Also write the result as JSON here.")
]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Also write the table as CSV here.")]
DtypeOption = Annotated[
    Precision | None, typer.Option("--dtype", help="The precision; the model's if left out.")
]


def names(only: str | None) -> list[str] | None:
    """The names in a list separated by commas."""
    return None if only is None else [name.strip() for name in only.split(",") if name.strip()]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, as plain values."""
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in options.items()
        if value is not None
    }
