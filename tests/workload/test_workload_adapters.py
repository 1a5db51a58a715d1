"""Adapters of a workload: who asks for which, and what it makes of the contents."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import headway
from headway.errors import HeadwayError
from headway.workload import transforms
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import open_trace
from headway.workload.traces.record import Options
from headway.workload.traffic import Planned

PLAIN: dict[str, Any] = {"requests": 400, "rate": "100/s", "prefix": {"groups": 2, "tokens": 64}}
CHAT = PLAIN | {"kind": {"kind": "chat", "turns": 3}}


def plan(**keys: Any) -> list[Planned]:
    return list(WorkloadSpec(**keys).plan(7, "m"))


def test_adapters_are_drawn_by_weight_and_base_is_none() -> None:
    drawn = Counter(planned.request.adapter for planned in plan(**PLAIN, adapters={"a": 1, "b": 2, "base": 1}))
    assert set(drawn) == {"a", "b", None}
    assert 160 <= drawn["b"] <= 240 and 70 <= drawn["a"] <= 130
    evenly = Counter(planned.request.adapter for planned in plan(**PLAIN, adapters=["a", "b"]))
    assert set(evenly) == {"a", "b"} and min(evenly.values()) >= 160


@pytest.mark.parametrize("workload", [PLAIN, CHAT])
def test_nothing_but_adapter_and_contents_differs_from_the_workload_without(workload: dict[str, Any]) -> None:
    without, with_them = plan(**workload), plan(**workload, adapters=["a", "base"])
    assert len(without) == len(with_them)
    for planned, other in zip(without, with_them, strict=True):
        request = other.request
        assert replace(request, adapter=None, path=planned.request.path) == planned.request
        assert other.output_tokens == planned.output_tokens and request.path.ends == planned.request.path.ends
        if request.adapter is None:
            assert (request.path, other.output_key) == (planned.request.path, planned.output_key)


def test_prefixes_are_shared_within_one_adapter_only() -> None:
    owners: dict[int, set[str | None]] = {}
    for planned in plan(**PLAIN, adapters=["a", "b", "base"]):
        for key in (*planned.request.path.keys, planned.output_key):
            owners.setdefault(key, set()).add(planned.request.adapter)
    assert all(len(adapters) == 1 for adapters in owners.values())
    groups = Counter(key for planned in plan(**PLAIN, adapters=["a", "b"]) for key in planned.request.path.keys)
    assert len([key for key, count in groups.items() if count > 1]) == 4


def test_a_session_keeps_its_adapter_and_goes_on_with_its_answers() -> None:
    sessions: dict[str | None, list[Planned]] = {}
    for planned in plan(**CHAT, adapters=["a", "b"]):
        sessions.setdefault(planned.request.session, []).append(planned)
    for turns in sessions.values():
        assert len({planned.request.adapter for planned in turns}) == 1
        for planned, following in pairwise(turns):
            assert planned.output_key in following.request.path.keys
            assert following.request.path.keys[: len(planned.request.path.keys)] == planned.request.path.keys


def test_a_tenant_may_have_its_own_and_else_has_the_workloads() -> None:
    tenants = {"x": {}, "y": {"adapters": ["own"]}}
    drawn = {
        (planned.request.tenant, planned.request.adapter) for planned in plan(**PLAIN, adapters=["a"], tenants=tenants)
    }
    assert drawn == {("x", "a"), ("y", "own")}


def test_the_resolved_workload_draws_the_same() -> None:
    source = WorkloadSpec(**PLAIN, adapters=["a", "base"])
    resolved = source.resolved()
    assert resolved["adapters"] == {"a": 1.0, "base": 1.0}
    assert list(WorkloadSpec(**resolved).plan(7, "m")) == list(source.plan(7, "m"))
    assert "adapters" not in WorkloadSpec(**PLAIN).resolved()


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ("a", r"^workload\.adapters: expected a list of adapters, or weights by adapter, got 'a'\."),
        ([], r"^workload\.adapters: expected a list"),
        (["a", "a"], r"^workload\.adapters: 'a' is listed twice"),
        ([1], r"^workload\.adapters: 1 is not a valid name"),
        ({"a": "x"}, r"^workload\.adapters\.a: a weight is a positive number, got 'x'\."),
        ({"a": 0}, r"^workload\.adapters\.a: a weight is a positive number, got 0\."),
        ({"a": 10**400}, r"^workload\.adapters\.a: a weight is a positive number, got 1000"),
        ({"a\nb": -1}, r"^workload\.adapters\.a b: a weight is a positive number, got -1\."),
    ],
)
def test_a_mistake_is_told_at_its_place(adapters: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        WorkloadSpec(**PLAIN, adapters=adapters)


LINE = '{{"ts": {ts}, "prompt_tokens": 100, "gen_tokens": 5, "prefix_hash": "p", "prefix_len": 64{adapter}}}\n'


def routesim(folder: Path, *adapters: str | None) -> Path:
    file = folder / "trace.jsonl"
    values = [f', "lora_adapter": "{name}"' if name is not None else "" for name in adapters]
    file.write_text("".join(LINE.format(ts=number, adapter=text) for number, text in enumerate(values)))
    return file


def test_a_trace_brings_its_adapters_and_shares_prefixes_within_them(tmp_path: Path) -> None:
    file = routesim(tmp_path, "a", "b", "a", None, None)
    requests = [planned.request for planned in plan(trace={"path": str(file)})]
    assert [request.adapter for request in requests] == ["a", "b", "a", None, None]
    a, b, again, none, neither = (request.path.keys[0] for request in requests)
    assert a == again and none == neither and len({a, b, none}) == 3
    result = headway.simulate({"workload": {"trace": {"path": str(file)}}, "cluster": {"instances": 1}})
    assert result.requests["adapter"] == ["a", "b", "a", "", ""]


def test_anonymised_adapters_still_tell_requests_apart(tmp_path: Path) -> None:
    reader = open_trace(routesim(tmp_path, "secret", None, "other", "secret"), "routesim", Options(), "format")
    changed = transforms.apply(reader, transforms.parse([{"anonymise": {}}], "transforms"))
    assert [record.adapter for record in changed.records] == ["adapter-1", None, "adapter-2", "adapter-1"]
