"""What is known of an operation by its name: from the table, or from outside."""

from __future__ import annotations

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.symmetry.tracing.operations import OPERATIONS
from spiritlevel.symmetry.tracing.record import UNKNOWN, Operation

_REGISTERED: dict[str, Operation] = {}  # from outside; they come before the table


def known(name: str) -> Operation:
    """What is known of an operation."""
    return _REGISTERED.get(name) or OPERATIONS.get(name, UNKNOWN)


def register_operation(name: str, operation: Operation, *, replace: bool = False) -> None:
    """Make a record known to all walks: "library::name", or the name of an aten operation.

    The rules are yours to prove: `verify` holds what they allow to the predictions.
    """
    name = _plain(name)
    a("operation", operation, Operation, "a record, Operation(scales=...)")
    if known(name) is not UNKNOWN and not replace:
        raise SpiritlevelError(
            f"there is a record of {name} already; replace=True puts yours in its place"
        )
    _REGISTERED[name] = operation


def unregister_operation(name: str) -> None:
    """Forget a record that was registered; where it replaced one, that one is back."""
    if _REGISTERED.pop(_plain(name), None) is None:
        known = ", ".join(_REGISTERED) or "none"
        raise SpiritlevelError(f"no operation {name!r} was registered; there are: {known}")


def _plain(name: str) -> str:
    a("name", name, str, 'the name of an operation, such as "hypot" or "library::name"')
    if not name:
        raise SpiritlevelError('name is empty; give that of an operation, such as "hypot"')
    return name.removeprefix("aten::")
