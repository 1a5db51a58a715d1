"""The two types of errors: mistakes in the user's input, and bugs in Headway."""


class HeadwayError(Exception):
    """An error in the user's input. Its message says what is wrong, where, and what to write instead."""


class UndeclaredSignal(HeadwayError, AttributeError):
    """A policy read a signal that it did not declare. This is also an AttributeError, so that `hasattr`, `copy` and
    `pickle` work on views."""


class InvariantError(Exception):
    """An internal check of the simulator failed: the results of the run are invalid."""


def missing_extra(where: str, package: str, extra: str, instead: str = "") -> HeadwayError:
    """Return the error for an optional package that is not installed: it names the extra that installs the package.
    With `instead`, the message also names a way to do without the package."""
    remedy = f"Run: pip install 'headway[{extra}]'" + (f"; or {instead}" if instead else "")
    return HeadwayError(f"{where}: {package} is not installed. {remedy}.")
