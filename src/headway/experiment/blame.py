"""Whose mistake an exception is: a mistake in a policy of the user's own is told in a sentence, ours is left alone."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.queues import Ticket
from headway.types import Request
from headway.views.events import Finished, FirstToken, Routed

LIBRARIES = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def told(error: BaseException, policies: Iterable[Any]) -> HeadwayError | None:
    """The sentence for an error that comes from one of these policies, if it is the user's own; None where it is our
    own mistake, or that of whoever called us."""
    parts = [part for policy in policies for part in (policy, *getattr(policy, "_parts", ()))]
    modules = {type(part).__module__ for part in parts if registry.outside(type(part))}
    steps = list(traceback.walk_tb(error.__traceback__))
    theirs = [place for place, (frame, _) in enumerate(steps) if _theirs(frame, modules)]
    if not theirs:
        return None
    frame, line = steps[theirs[-1]]
    asked, _ = steps[theirs[0]]
    in_hand = [_request(ours) for ours, _ in reversed(steps[: theirs[0]])]
    request = next(filter(None, (*in_hand, _request(asked))), None)
    at = "" if request is None else f", at request {request.id}"
    place = f"{_shown(frame.f_code.co_filename)} line {line}, in {_function(frame)}"
    if _owner(frame) != _owner(asked):
        place += f", called from {_function(asked)}"
    return HeadwayError(f"{place}: {one_line(error)}{at}.")


def _owner(frame: FrameType) -> str:
    """The class of the object whose method this is, empty where it is none's."""
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""


def _function(frame: FrameType) -> str:
    return ".".join(filter(None, (_owner(frame), frame.f_code.co_name)))


def _theirs(frame: FrameType, modules: set[str]) -> bool:
    """In a module that has a policy of the user's, or in one that it may have called: neither ours nor a library's. A
    method that an object of theirs has from a class of ours is theirs as well."""
    module = str(frame.f_globals.get("__name__"))
    if module in modules or type(frame.f_locals.get("self")).__module__ in modules:
        return True
    file = frame.f_code.co_filename
    if not modules or module.startswith("headway.") or file.startswith("<frozen"):
        return False
    return not set(LIBRARIES) & set(Path(file).resolve().parents)


def _request(frame: FrameType) -> Request | None:
    """The request that a function has in its hands, itself, in an event or as a ticket."""
    for value in frame.f_locals.values():
        if isinstance(value, Request):
            return value
        if isinstance(value, Routed | FirstToken | Finished | Ticket):
            return value.request
    return None


def _shown(file: str) -> str:
    near = os.path.relpath(file) if Path(file).exists() else file
    return file if near.startswith(os.pardir) else near
