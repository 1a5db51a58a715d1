"""Writes one chapter of live traffic as a run folder. It runs in a separate process, so that no request waits for it.

The gateway does not see inside engines. Therefore a request counts as started when the gateway sends it, and an engine
counts as busy while it has requests. The number of cached tokens is the number that the engine reports. If the engine
reports no number, the gateway's own estimate is used.
"""

import os
import re
import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from headway.errors import HeadwayError, InvariantError
from headway.gateway.deciding.policy_versions import StepTimes
from headway.gateway.observing.chapter import UNKNOWN, ChapterDocument, DecisionRow, EndedRequest, Engine, LogDocument
from headway.gateway.observing.recent_decisions import policy_name
from headway.http.answer_tally import CACHED, PROMPT
from headway.results.decision_log import DecisionLog
from headway.results.recorder import COLUMNS, COMPLETED, NAMED, USUAL_CLASS, Recorder, RunFacts, seen_stats
from headway.results.records import Prompt
from headway.results.result import Result
from headway.types import OUTCOMES, Json
from headway.views.instance import InstanceView

NICE: Final = 10


def result_of(document: ChapterDocument) -> Result:
    rows = [row for piece in document.ended for row in msgspec.msgpack.decode(piece, type=list[EndedRequest])]
    rows.sort(key=lambda row: row.id)  # sort by arrival: ids are assigned in the order of arrival
    places = {place: index for index, place in enumerate(sorted(document.engines))}
    reported = any(_usage(row, CACHED) != UNKNOWN for row in rows)
    recorder = _recorder(rows, places, reported)
    engines = [document.engines[place] for place in places]
    begun = recorder.arrival_ps[0] if len(recorder) else 0
    facts = RunFacts(
        started_ps=begun,
        ended_ps=max(begun, *recorder.finished_ps, *recorder.arrival_ps) if len(recorder) else 0,
        block_tokens=document.block_tokens,
        warmup=0,
        policy_metrics=document.metrics,
        predicts=reported,
        belief_block_tokens=document.belief_block_tokens,
    )
    stats = [
        seen_stats(
            recorder,
            index,
            name,
            ended_ps=facts.ended_ps,
            pool=engine.spec.pool if engine.model else None,
            model=engine.model,
            peak_kv=engine.peak_kv,
            kv_blocks=engine.kv_blocks,
        )
        for index, (name, engine) in enumerate(unique_names(engines).items())
    ]
    result = Result.of(_scenario(document, engines), recorder, stats, facts)
    result.scaling_events = document.scaled
    if document.prompts:
        result.prompts = [
            Prompt(place, row.counted_tokens, row.keys, row.ends, row.max_tokens) for place, row in enumerate(rows)
        ]
    if document.log is not None:
        numbers = {row.id: place for place, row in enumerate(rows)}
        log = _log(document.log, document.engines, places, numbers)
        log.queues = policy_name(document.policies.get("flow", "none")) != "none"
        result.trace, result.decisions = "decisions", log.decisions(result.requests)
        result.priorities = log.priorities
    return result


def _usage(row: EndedRequest, pattern: re.Pattern[bytes]) -> int:
    """Return the token count that `pattern` finds in the engine's usage report; UNKNOWN if the report lacks this
    count."""
    match = pattern.search(row.usage)
    return UNKNOWN if match is None else int(match[1])


def _recorder(rows: list[EndedRequest], places: dict[int, int], reported: bool) -> Recorder:
    recorder = Recorder()
    columns: dict[str, list[Any]] = {name: [empty] * len(rows) for name, (_, empty) in COLUMNS.items()}
    words: dict[str, dict[str, int]] = {name: {} for name in NAMED}
    words["slo_class"][USUAL_CLASS] = 0
    latest = 0
    for place, row in enumerate(rows):
        for name in ("tenant", "slo_class", "kind", "model"):
            columns[name][place] = words[name].setdefault(getattr(row, name), len(words[name]))
        if row.session is not None:
            columns["session"][place] = words["session"].setdefault(row.session, len(words["session"]))
        prompt = _usage(row, PROMPT)
        prompt = row.counted_tokens if prompt == UNKNOWN else prompt
        columns["prompt_tokens"][place], columns["retries"][place] = prompt, row.retries
        latest = columns["arrival_ps"][place] = max(latest, row.arrival_ps)
        columns["outcome"][place] = outcome = OUTCOMES.index(row.outcome)
        columns["priority"][place] = row.priority
        columns["finished_ps"][place] = row.finished_ps
        if row.sent_ps == UNKNOWN or row.place not in places:
            continue
        sent = max(latest, row.sent_ps)
        for name in ("routed_ps", "enqueued_ps", "started_ps"):
            columns[name][place] = sent
        columns["admitted_ps"][place] = latest
        columns["instance"][place] = places[row.place]
        first = row.first_ps if row.first_ps != UNKNOWN or outcome != COMPLETED else row.finished_ps
        columns["first_token_ps"][place] = first if first == UNKNOWN else max(sent, first)
        columns["output_tokens"][place] = max(1, row.output_tokens) if outcome == COMPLETED else row.output_tokens
        believed, cached = min(row.believed_tokens, prompt), _usage(row, CACHED)
        columns["cached_tokens"][place] = believed if cached == UNKNOWN else min(cached, prompt)
        columns["predicted_tokens"][place] = believed if reported else 0
        if row.expected_tokens:
            recorder.expected[place] = row.expected_tokens
    for name, (kind, _) in COLUMNS.items():
        setattr(recorder, name, array(kind, columns[name]))
    recorder.rows, recorder.names = len(rows), words
    recorder.reasons = {place: row.why for place, row in enumerate(rows) if row.why}
    return recorder


def unique_names(engines: Iterable[Engine]) -> dict[str, Engine]:
    """Return the engines by name. If several engines have the same name, because one left and returned, add numbers."""
    names: dict[str, Engine] = {}
    for engine in engines:
        name, again = engine.spec.name, 1
        while name in names:
            again += 1
            name = f"{engine.spec.name} ({again})"
        names[name] = engine
    return names


def _scenario(document: ChapterDocument, engines: list[Engine]) -> Json:
    """Describe the traffic as a scenario. Its key `live` shows that the scenario cannot be simulated again."""
    models = list(dict.fromkeys(engine.model for engine in engines if engine.model))
    return {
        "name": "live traffic",
        "live": True,
        "seed": {"workload": 0, "simulation": 0},
        "workload": {"first_request": document.first},
        "cluster": {
            "instances": len(engines),
            "model": ", ".join(models) or "live engines",
            "gpu": "engine",
            "tp": 1,
            "latency": {"model": "live"},
        },
        "policies": document.policies,
        "slo": {"ttft": None, "tpot": None, "e2e": None},
        "warmup": 0,
    }


def _log(
    document: LogDocument, engines: dict[int, Engine], places: dict[int, int], numbers: dict[int, int]
) -> DecisionLog:
    log = DecisionLog()
    log.views = [_view(index, engines[place]) for place, index in places.items()]
    log.watch(document.signals)
    log.block_tokens = document.block_tokens
    names = [[engines[place].spec.name for place in members] for members in document.sets]
    for members in document.sets:
        log.sets.number(tuple(places[place] for place in members))
    for piece in document.rows:
        for row in msgspec.msgpack.decode(piece, type=list[DecisionRow]):
            request, at_ps, router, target, prefill, *rest, card, estimate = msgspec.structs.astuple(row)
            log.take(numbers[request], at_ps, router, places.get(target, -1), places.get(prefill, -1), *rest)
            log.score(card, names[row.candidates], estimate)
    log.verdicts = [msgspec.structs.replace(verdict, request=numbers[verdict.request]) for verdict in document.verdicts]
    log.priorities = [msgspec.structs.replace(each, request=numbers[each.request]) for each in document.priorities]
    return log


def _view(index: int, engine: Engine) -> InstanceView:
    view = InstanceView(
        index,
        engine.spec.name,
        kv_blocks=engine.kv_blocks,
        max_batch_size=engine.spec.max_batch_size,
        max_batch_tokens=engine.spec.max_batch_tokens,
    )
    view.role, view._estimator = engine.spec.role, StepTimes()
    return view


def main() -> int:
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        document = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ChapterDocument)
        result_of(document).save(document.folder)
    except (HeadwayError, InvariantError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
