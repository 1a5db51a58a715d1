"""Whose mistake an exception is: a mistake in a policy of the user's own is told in a sentence, ours is left alone."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from headway.types import HeadwayError, Request

HOME = Path(__file__).resolve().parents[1]
LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


def told(error: BaseException) -> HeadwayError | None:
    """The sentence for an error that comes from a policy outside this package; None where it is our own."""
    request = _request(error)
    at = "" if request is None else f", at request {request}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _foreign(frame.filename)]
    if not frames:
        return None
    place, text = frames[-1], " ".join(str(error).split()).rstrip(".")
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return HeadwayError(f"{_shown(place.filename)} line {place.lineno}, in {place.name}: {what}{at}.")


def _request(error: BaseException) -> int | None:
    """The request in hand when it happened, from the innermost frame that knows."""
    found, trace = None, error.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_locals
        request, number = names.get("request"), names.get("request_id")
        if isinstance(request, Request):
            found = request.id
        elif isinstance(number, int):
            found = number
        trace = trace.tb_next
    return found


def _foreign(file: str) -> bool:
    """Neither this package's code nor the standard library's."""
    if file.startswith("<frozen"):
        return False
    path = Path(file).resolve()
    return HOME not in path.parents and (LIBRARY not in path.parents or "site-packages" in path.parts)


def _shown(file: str) -> str:
    near = os.path.relpath(file) if Path(file).exists() else file
    return file if near.startswith(os.pardir) else near
