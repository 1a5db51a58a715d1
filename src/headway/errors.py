"""What can go wrong: a mistake of the user's, or one of ours."""


class HeadwayError(Exception):
    """A mistake of the user's, told in one sentence: what is wrong, where, what would be right."""


class UndeclaredSignal(HeadwayError, AttributeError):
    """A signal was read that nobody declared. To Python it is an attribute that is not there, so that `hasattr`, copies
    and pickles of a view work as ever."""


class InvariantError(Exception):
    """One of our own promises broke; the run must not be believed."""
