"""The one error that users meet."""


class SpiritlevelError(ValueError):
    """Bad input; the message names the argument, what it got and what to do."""


class ChangedError(SpiritlevelError):
    """A point that should compute the same function does not: nothing may be built on it."""
