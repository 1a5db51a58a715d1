"""Programs of the policy language run two ways: by it, and as the plain Python that they also are."""

from __future__ import annotations

import ast
import math
import sys
import warnings
from collections.abc import Callable
from functools import reduce
from types import FrameType, MappingProxyType
from typing import Any

from msgspec.structs import replace

from headway.policies.code import Program, language, library, program, rewrite, rewrite_expressions
from headway.policies.code.rejection import Exhausted, Misuse
from headway.policies.code.state import Memory, Sent
from headway.types import Path, Priority, Reject, Request
from headway.views.cluster import ClusterView, TenantView
from headway.views.instance import InstanceView

CACHED = [0, 64, 32, 128]
LONGEST = 3_000_000  # lines of plain Python
LARGEST = 1000  # parts of a value that are compared
SHORT = 20_000  # steps: enough for what is drawn


class Steps:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.001 + 1e-6 * prefill_tokens


class Endless(Exception):
    """Plain Python went on and on."""


def situation() -> tuple[Request, tuple[InstanceView, ...], ClusterView]:
    """A request and four instances, made anew so that two runs share nothing."""
    views = [InstanceView(index, f"i{index}", kv_blocks=100, model="m", capacity=1.0) for index in range(4)]
    for index, view in enumerate(views):
        view.inflight, view.queued, view.kv_used = (3, 0, 5, 0)[index], (1, 4, 0, 0)[index], (50, 99, 0, 20)[index]
        view.pending_prefill_tokens, view.running = 700 * index, index
        view.capacity = (1.0, 0.5, 1, 0.25)[index]
        view.finished_since_report, view.output_tokens, view.watts = 3 - index, 10 * index, 400.0 - 100.0 * index
        view.tier_blocks, view.tier_used = {"cpu": 40, "storage": 900}, {"cpu": 10 * index, "storage": 7}
        view.adapters, view.adapter_slots = (f"a{index}", "b"), (4, None)[index % 2]
        view.usd_per_hour, view._estimator = 2.5 * index, Steps()
    cluster = ClusterView(views)
    cluster.now_ps = 12_500_000_000_000
    cluster.priority = Priority(2.5, {"weight": 2, "slack_s": -0.25})
    cluster.keep({name: TenantView(cluster) for name in ("busy", "x")}, None)
    request = Request(17, 12_400_000_000_000, 900, Path((5,), (900,)), tenant="busy", model="m", session="s1", turn=2)
    request = replace(request, deadline_ps=20_000_000_000_000)
    return request, cluster.instances, cluster


def run(made: Program, steps: int = SHORT, times: int = 2) -> tuple[list[Any], int]:
    """What a started program says time after time, its memory kept: (kind, what) of each, and the steps left."""
    running = made.start()
    said: list[Any] = []
    for _ in range(times):
        request, instances, cluster = situation()
        running.begin(steps, CACHED, None)
        said.append(outcome(lambda: running.entrance(request, instances, cluster)))  # noqa: B023
        if said[-1][0] != "gave":
            break
    return said, running.spent()


def run_plainly(source: str, times: int = 2) -> list[Any]:
    memory = Memory()
    space: dict[str, Any] = {
        "sum": lambda items: reduce(lambda one, other: one + other, items, 0),
        "sqrt": math.sqrt,
        "exp": library.exp,
        "log": library.log,
        "ratio": library.ratio,
        "recall": memory.recall,
        "remember": memory.remember,
        "cached_tokens": lambda view: CACHED[view.index],
        "tier_utilization": lambda view, tier: view.tier_utilization(tier),
        "parameter": lambda default, low, high: default,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "plain", "exec"), space)
    said: list[Any] = []
    for _ in range(times):
        request, instances, cluster = situation()
        said.append(outcome(lambda: bounded(lambda: space["route"](request, instances, cluster))))  # noqa: B023
        if said[-1][0] != "gave":
            break
    return said


def bounded(call: Callable[[], Any]) -> Any:
    left = LONGEST

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Endless
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        return call()
    finally:
        sys.settrace(before)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "gave", plain(call())
    except (Exhausted, Misuse) as error:
        return "stopped", type(error).__name__
    except AssertionError:
        raise
    except Exception as error:
        kind = NameError if isinstance(error, NameError) else type(error)
        return "failed", kind.__name__


def plain(value: Any) -> Any:
    """A value's beginning with its types, so that 1, 1.0 and True differ and NaN is equal to itself."""
    parts: list[str] = []
    todo = [value]
    while todo and len(parts) < LARGEST:
        one = todo.pop()
        if isinstance(one, list | tuple):
            parts.append(f"{type(one).__name__} {len(one)}")
            todo += one
        elif isinstance(one, dict | MappingProxyType):  # mappings of views are read-only in the language
            parts.append(f"dict {len(one)}")
            todo += [part for entry in one.items() for part in entry]
        elif isinstance(one, InstanceView):
            parts.append(one.id)
        else:
            parts.append(repr(one) if isinstance(one, int | float | str) else type(one).__name__)
    return parts


# --- kinds -----------------------------------------------------------------------------------------------------------

BITS = {
    float: language.FLOAT,
    str: language.STR,
    type(None): language.NONE,
    list: language.LIST,
    tuple: language.TUPLE | language.ROW_TUPLES,
    dict: language.DICT,
    range: language.SPAN,
    MappingProxyType: sum(language.MAPPINGS),
    Sent: language.ANSWER,
    Reject: language.ANSWER,
    **{view: kind for kind, view in language.VIEWS.items()},
}


class Unsound(AssertionError):
    """A value is not of the kind that was worked out for its expression."""


def checked(value: Any, kind: int, line: int, text: str) -> Any:
    if type(value) in (int, bool):
        small = -(2**63) < value < 2**63
        allowed = language.WHOLE if small else language.MID | language.BIG
        if value.bit_length() > 2 * language.MOST_BITS:
            allowed = 0
    else:
        allowed = BITS.get(type(value), 0)
    if not kind & allowed:
        raise Unsound(f"line {line}: {text} is {type(value).__name__}, and its kind {kind}")
    return value


class Checked(rewrite_expressions.Expressions):
    """As the language rewrites, and every expression's value is held against its kind."""

    def visit(self, node: ast.AST) -> Any:
        text = ast.unparse(node) if isinstance(node, ast.expr) else ""
        kind = self.kinds.get(node) if isinstance(node, ast.expr) else None
        found = super().visit(node)
        if kind is None or isinstance(getattr(node, "ctx", None), ast.Store):
            return found
        return rewrite_expressions.library_call(
            "_checked", [found, ast.Constant(kind), ast.Constant(node.lineno), ast.Constant(text)], node
        )


def checking(monkeypatch: Any) -> None:
    """From now on programs check their kinds."""
    given = library.library
    monkeypatch.setattr(
        program, "library", lambda take, memory, **more: {**given(take, memory, **more), "_checked": checked}
    )
    monkeypatch.setattr(program, "LIBRARY_NAMES", [*program.LIBRARY_NAMES, "_checked"])
    monkeypatch.setattr(rewrite, "Expressions", Checked)
