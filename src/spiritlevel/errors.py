"""The one error that users meet."""


class SpiritlevelError(ValueError):
    """Bad input; the message names the argument, what it got and what to do."""
