"""A run as a timeline for Perfetto and Chrome: JSON in the Trace Event Format, one event per line.

An instance is a process with a thread for each slot of its batch. A request is a slice `prefill` until its first token
and a slice `decode` after it. Waits are async slices, which may overlap. Times are microseconds with six decimals, so
that the file keeps every picosecond; Perfetto itself keeps nanoseconds.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from headway.config.units import duration_ps
from headway.results.records import group_by
from headway.results.result import Result
from headway.results.scaling import levels as replica_levels
from headway.results.slots import Places, Stay, levels
from headway.results.store import writing
from headway.types import PS_PER_SECOND, Json

ROUTER: Final = 1  # process number of the router; an instance has the number ROUTER + 1 + its index
CHUNK: Final = 4096  # number of events that are written at a time
ARROW_PS: Final = 2000  # an arrow begins this long before the end of its slice, so that it begins inside the slice


def timeline(result: Result) -> Iterator[bytes]:
    """Yield the content of the timeline's file in pieces."""
    about: Json = {"scenario": str(result.scenario.get("name", "")), "requests": len(result.requests)}
    yield f'{{"displayTimeUnit":"ms","otherData":{_json(about)},"traceEvents":[\n'.encode()
    events, before = _Tracks(result).events(), ""
    while chunk := list(islice(events, CHUNK)):
        yield (before + ",\n".join(chunk)).encode("utf-8", "replace")
        before = ",\n"
    yield b"\n]}\n"


def write(result: Result, file: str | Path) -> None:
    """Write a run's timeline to a file."""
    with writing(file), Path(file).open("wb") as out:
        out.writelines(timeline(result))


class _Tracks:
    """The events of a run, process by process."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.ids = result.instance_ids()
        rows = result.requests
        self.begun_ps, self.until_ps = result.span_ps()
        self.places = Places(rows, self.until_ps)
        tenants: dict[str, str] = {}
        self.tenant = [tenants.setdefault(tenant, _json(tenant)) for tenant in rows.column("tenant")]
        # Thread numbers are unique across processes and differ from all process numbers: some viewers need this.
        self.threads = max((_pid(index) for index in self.ids), default=ROUTER)
        self.states = group_by(result.states, attrgetter("instance"))
        self.series = group_by(result.series, attrgetter("instance"))
        self.preemptions = group_by(result.preemptions, attrgetter("instance"))
        self.thrashes = group_by(result.thrashes, attrgetter("instance"))

    def events(self) -> Iterator[str]:
        yield from self._router()
        for index, name in self.ids.items():
            yield from self._instance(index, name)
        yield from self._transfers()

    # --- the router --------------------------------------------------------------------------------------------

    def _router(self) -> Iterator[str]:
        yield from _label("process", ROUTER, ROUTER, "router", 0)
        scaling, findings, refused = (self._new_thread() for _ in range(3))
        for order, (thread, name) in enumerate(((scaling, "scaling"), (findings, "findings"), (refused, "refused"))):
            yield from _label("thread", ROUTER, thread, name, order)
        for row, begun, until in self.places.waits_between("arrival_ps", "admitted_ps"):
            yield from self._span(ROUTER, "delayed by admission", "admission", row, begun, until)
        changes: list[int] = []
        for row, begun, until in self.places.waits_between("admitted_ps", "routed_ps"):
            changes += (begun << 2 | 1, until << 2)
            yield from self._span(ROUTER, "router queue", "router", row, begun, until)
        for at, _, waiting in levels(changes):
            yield _counter(ROUTER, "router queue", at, {"waiting": waiting})
        for row in self.places.moved:
            begun = self.places.column["enqueued_ps"][row]
            yield from self._span(ROUTER, "moved between instances", "moved", row, begun, self.places.end_ps(row))
        yield from self._refusals(refused)
        for event in self.result.scaling_events:
            args = {"pool": event.pool, "before": event.before, "after": event.after, "reason": event.reason}
            way = "scale up" if event.after > event.before else "scale down"
            yield _instant(ROUTER, scaling, way, "scaling", event.at_ps, args)
        yield from self._replicas()
        for finding in self.result.findings():
            args = {
                "title": finding.title,
                "severity": finding.severity,
                "count": finding.count,
                "until_s": finding.until_ps / PS_PER_SECOND,
                "requests": ", ".join(map(str, finding.requests)),
            }
            yield _instant(ROUTER, findings, finding.kind, "finding", finding.at_ps, args)

    def _refusals(self, thread: int) -> Iterator[str]:
        """Yield the requests that never reached an instance."""
        rows = self.places.select("enqueued_ps", "finished_ps", "outcome", "reason", "tenant")
        for row, (enqueued, finished, outcome, reason, tenant) in rows:
            if enqueued < 0 <= finished:
                args = {"request": row, "tenant": tenant, "reason": reason}
                yield _instant(ROUTER, thread, outcome, "refused", finished, args)

    def _replicas(self) -> Iterator[str]:
        instances = self.result.instances()
        pools = group_by(self.result.states, lambda change: instances.get(change.instance, {}).get("pool", ""))
        for pool, changes in pools.items():
            name = f"replicas of {pool}" if pool else "replicas"
            for level in replica_levels(changes):
                yield _counter(ROUTER, name, level.at_ps, {"held": level.held, "serving": level.serving})

    # --- an instance -------------------------------------------------------------------------------------------

    def _instance(self, index: int, name: str) -> Iterator[str]:
        pid = _pid(index)
        yield from _label("process", pid, pid, name, pid)
        state = self._new_thread()
        yield from _label("thread", pid, state, "state", 0)
        for change in self.states.get(index, ()):
            yield _instant(pid, state, change.state, "state", change.at_ps, {})
        for at, kind in self._faults(index, name):
            yield _instant(pid, state, f"fault: {kind}", "fault", at, {})
        for row, begun, until in self.places.waits(index):
            yield from self._span(pid, "waiting", "queue", row, begun, until)
        slots: list[int] = []
        # Request -> thread that shows its preemptions: the thread of its slot. If the request has no slot, it is the
        # thread of the instance's state.
        preempted = {each.request: state for each in self.preemptions.get(index, ())}
        for stay in self.places.stays(index):
            if stay.slot == len(slots):
                slots.append(self._new_thread())
                yield from _label("thread", pid, slots[-1], f"slot {stay.slot}", stay.slot + 1)
            if stay.row in preempted:
                preempted[stay.row] = slots[stay.slot]
            yield from self._stay(pid, slots[stay.slot], stay)
        for at, running, waiting in self.places.levels(index):
            yield _counter(pid, "requests", at, {"running": running, "waiting": waiting})
        for each in self.preemptions.get(index, ()):
            args = {"request": each.request}
            yield _instant(pid, preempted[each.request], "preempted", "preemption", each.at_ps, args)
        yield from self._memory(index, pid, state)

    def _stay(self, pid: int, tid: int, stay: Stay) -> Iterator[str]:
        column, row = self.places.column, stay.row
        prompt, cached = column["prompt_tokens"][row], column["cached_tokens"][row]
        args = f'"request":{row},"tenant":{self.tenant[row]},"prompt_tokens":{prompt},"cached_tokens":{cached}'
        begun = stay.begun_ps
        if not stay.generate:
            until = stay.first_ps if stay.first_ps >= 0 else stay.ended_ps
            yield _slice(pid, tid, "prefill", begun, until, args)
            if column["transferred_ps"][row] >= 0:
                yield _flow("s", pid, tid, row, max(begun, until - ARROW_PS))
            begun = until
        if stay.ended_ps > begun:
            output, outcome = column["output_tokens"][row], column["outcome"][row]
            args = f'{args},"output_tokens":{output},"outcome":"{outcome}"'
            yield _slice(pid, tid, "decode", begun, stay.ended_ps, args)
            if stay.generate:
                yield _flow("f", pid, tid, row, begun)

    def _memory(self, index: int, pid: int, state: int) -> Iterator[str]:
        for series in self.series.get(index, ()):
            for turn, value in enumerate(series.values):
                yield _counter(pid, series.name, series.start_ps + turn * series.interval_ps, {"blocks": value})
        for thrash in self.thrashes.get(index, ()):
            args = {"request": thrash.request, "tier": thrash.tier, "blocks": thrash.blocks}
            yield _instant(pid, state, "thrash", "thrash", thrash.at_ps, args)

    def _faults(self, index: int, name: str) -> Iterator[tuple[int, str]]:
        """Yield the scenario's faults that struck this instance while it ran."""
        for fault in self.result.scenario.get("faults") or ():
            at = max(duration_ps(fault["at"], "faults"), self.begun_ps)
            if fault["instance"] == name and at <= self.until_ps:
                changes = self.states.get(index, ())
                known = [change.state for change in changes if change.at_ps < max(at, self.begun_ps + 1)]
                if known and known[-1] != "stopped":
                    yield at, fault["kind"]

    # --- between instances -------------------------------------------------------------------------------------

    def _transfers(self) -> Iterator[str]:
        for row, (prefill, begun, until) in self.places.select("prefill_instance", "transfer_ps", "transferred_ps"):
            if until >= 0 and prefill >= 0:
                yield from self._span(_pid(prefill), "KV transfer", "transfer", row, begun, until)

    # --- parts -------------------------------------------------------------------------------------------------

    def _new_thread(self) -> int:
        self.threads += 1
        return self.threads

    def _span(self, pid: int, name: str, category: str, row: int, begun: int, until: int) -> Iterator[str]:
        """Yield an async slice, which may overlap others."""
        args = f'"request":{row},"tenant":{self.tenant[row]}'
        head = f'"name":"{name}","cat":"{category}","id":{row},"pid":{pid},"tid":{pid}'
        yield f'{{"ph":"b",{head},"ts":{_us(begun)},"args":{{{args}}}}}'
        yield f'{{"ph":"e",{head},"ts":{_us(until)}}}'


def _pid(index: int) -> int:
    return index + ROUTER + 1


def _us(ps: int) -> str:
    """Write picoseconds as microseconds, exactly."""
    return f"{ps // 1_000_000}.{ps % 1_000_000:06d}"


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Replace control characters, which some viewers reject even if escaped."""
    if isinstance(value, str):
        return re.sub(r"[\x00-\x1f\x7f]", " ", value)
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _label(kind: str, pid: int, tid: int, name: str, order: int) -> Iterable[str]:
    head = f'"pid":{pid},"tid":{tid}'
    yield f'{{"ph":"M","name":"{kind}_name",{head},"args":{_json({"name": name})}}}'
    yield f'{{"ph":"M","name":"{kind}_sort_index",{head},"args":{{"sort_index":{order}}}}}'


def _slice(pid: int, tid: int, name: str, begun: int, until: int, args: str) -> str:
    head = f'"name":"{name}","cat":"request","pid":{pid},"tid":{tid}'
    return f'{{"ph":"X",{head},"ts":{_us(begun)},"dur":{_us(until - begun)},"args":{{{args}}}}}'


def _flow(phase: str, pid: int, tid: int, row: int, at: int) -> str:
    end = ',"bp":"e"' if phase == "f" else ""
    head = f'"name":"handover","cat":"transfer","id":{row},"pid":{pid},"tid":{tid}'
    return f'{{"ph":"{phase}",{head},"ts":{_us(at)}{end}}}'


def _instant(pid: int, tid: int, name: str, category: str, at: int, args: Json) -> str:
    head = f'"name":{_json(name)},"cat":"{category}","pid":{pid},"tid":{tid}'
    return f'{{"ph":"i",{head},"ts":{_us(at)},"s":"t","args":{_json(args)}}}'


def _counter(pid: int, name: str, at: int, values: dict[str, int]) -> str:
    args = ",".join(f'"{key}":{value}' for key, value in values.items())
    return f'{{"ph":"C","name":{_json(name)},"pid":{pid},"tid":{pid},"ts":{_us(at)},"args":{{{args}}}}}'
