"""The two types of errors: mistakes in the user's input, and bugs in Headway."""


class HeadwayError(Exception):
    """An error in the user's input. Its message says what is wrong, where, and what to write instead."""


class UndeclaredSignal(HeadwayError, AttributeError):
    """A policy read a signal that it did not declare. This is also an AttributeError, so that `hasattr`, `copy` and
    `pickle` work on views."""


class InvariantError(Exception):
    """An internal check of the simulator failed: the results of the run are invalid."""
