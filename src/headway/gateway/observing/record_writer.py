"""Writes a stretch of live traffic as a run folder. A process of its own, so that no request waits for it.

What happens within an engine is not seen from outside: a request counts as begun when it was sent, and an engine as
busy while it has any. Tokens found cached are those that the engine tells of, or else those that were believed.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from headway.errors import HeadwayError, InvariantError
from headway.gateway.deciding.policy_versions import StepTimes
from headway.gateway.observing.chapter import UNTOLD, ChapterDocument, Ended, Engine, LogDocument, Taken
from headway.http.answer_tally import CACHED, PROMPT
from headway.results.decision_log import DecisionLog
from headway.results.recorder import COLUMNS, COMPLETED, NAMED, USUAL_CLASS, Recorder, RunFacts, seen_stats
from headway.results.records import Prompt
from headway.results.result import Result
from headway.types import OUTCOMES, Json
from headway.views.instance import InstanceView

NICE: Final = 10


def write(document: ChapterDocument) -> None:
    result_of(document).save(document.folder)


def result_of(document: ChapterDocument) -> Result:
    rows = _rows(document.ended)
    places = {place: index for index, place in enumerate(sorted(document.engines))}
    told = any(_told(row, CACHED) != UNTOLD for row in rows)
    recorder = _recorder(rows, places, told)
    engines = [document.engines[place] for place in places]
    begun = recorder.arrival_ps[0] if len(recorder) else 0
    facts = RunFacts(
        started_ps=begun,
        ended_ps=max(begun, *recorder.finished_ps, *recorder.arrival_ps) if len(recorder) else 0,
        block_tokens=document.block_tokens,
        warmup=0,
        policy_metrics=document.metrics,
        predicts=told,
    )
    stats = [
        seen_stats(
            recorder,
            index,
            name,
            ended_ps=facts.ended_ps,
            pool=engine.pool if engine.model else None,
            model=engine.model,
            peak_kv=engine.peak_kv,
            kv_blocks=engine.kv_blocks,
        )
        for index, (name, engine) in enumerate(named(engines))
    ]
    result = Result.of(_scenario(document, engines), recorder, stats, facts)
    result.prompts = _prompts(rows) if document.prompts else []
    if document.log is not None:
        numbers = {row.id: place for place, row in enumerate(rows)}
        log = _log(document.log, document.engines, places, numbers)
        result.trace, result.decisions = "decisions", log.decisions(result.requests)
    return result


def _prompts(rows: list[Ended]) -> list[Prompt]:
    return [Prompt(place, row.counted_tokens, row.keys, row.ends, row.max_tokens) for place, row in enumerate(rows)]


def _rows(pieces: list[bytes]) -> list[Ended]:
    """In order of arrival, which is that of their numbers."""
    found = [row for piece in pieces for row in msgspec.msgpack.decode(piece, type=list[Ended])]
    return sorted(found, key=lambda row: row.id)


def _told(row: Ended, pattern: re.Pattern[bytes]) -> int:
    """A figure of the engine's own."""
    found = pattern.search(row.usage)
    return UNTOLD if found is None else int(found[1])


def _recorder(rows: list[Ended], places: dict[int, int], told: bool) -> Recorder:
    recorder = Recorder()
    columns: dict[str, list[Any]] = {name: [empty] * len(rows) for name, (_, empty) in COLUMNS.items()}
    words: dict[str, dict[str, int]] = {name: {} for name in NAMED}
    words["slo_class"][USUAL_CLASS] = 0
    latest = 0
    for place, row in enumerate(rows):
        for name in ("tenant", "slo_class", "kind", "model"):
            columns[name][place] = _number(words[name], getattr(row, name))
        if row.session is not None:
            columns["session"][place] = _number(words["session"], row.session)
        prompt = _told(row, PROMPT)
        prompt = row.counted_tokens if prompt == UNTOLD else prompt
        columns["prompt_tokens"][place], columns["retries"][place] = prompt, row.retries
        latest = columns["arrival_ps"][place] = max(latest, row.arrival_ps)
        columns["outcome"][place] = outcome = OUTCOMES.index(row.outcome)
        columns["priority"][place] = row.priority
        columns["finished_ps"][place] = row.finished_ps
        if row.sent_ps == UNTOLD or row.place not in places:
            continue
        sent = max(latest, row.sent_ps)
        for name in ("routed_ps", "enqueued_ps", "started_ps"):
            columns[name][place] = sent
        columns["admitted_ps"][place] = latest
        columns["instance"][place] = places[row.place]
        first = row.first_ps if row.first_ps != UNTOLD or outcome != COMPLETED else row.finished_ps
        columns["first_token_ps"][place] = first if first == UNTOLD else max(sent, first)
        columns["output_tokens"][place] = max(1, row.output_tokens) if outcome == COMPLETED else row.output_tokens
        believed, cached = min(row.believed_tokens, prompt), _told(row, CACHED)
        columns["cached_tokens"][place] = believed if cached == UNTOLD else min(cached, prompt)
        columns["predicted_tokens"][place] = believed if told else 0
    for name, (kind, _) in COLUMNS.items():
        setattr(recorder, name, array(kind, columns[name]))
    recorder.rows, recorder.names = len(rows), words
    recorder.reasons = {place: row.why for place, row in enumerate(rows) if row.why}
    return recorder


def _number(words: dict[str, int], word: str) -> int:
    return words.setdefault(word, len(words))


def named(engines: Iterable[Engine]) -> list[tuple[str, Engine]]:
    """One that came back at another place is told apart."""
    found: dict[str, Engine] = {}
    for engine in engines:
        name, again = engine.name, 1
        while name in found:
            again += 1
            name = f"{engine.name} ({again})"
        found[name] = engine
    return list(found.items())


def _scenario(document: ChapterDocument, engines: list[Engine]) -> Json:
    """What it was, in a scenario's words; `live` says that it cannot be simulated again."""
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


def _log(told: LogDocument, engines: dict[int, Engine], places: dict[int, int], numbers: dict[int, int]) -> DecisionLog:
    log = DecisionLog()
    log.views = [_view(index, engines[place]) for place, index in places.items()]
    log.watch(told.signals)
    log.block_tokens = told.block_tokens
    names = [[engines[place].name for place in one] for one in told.sets]
    for one in told.sets:
        log.sets.number(tuple(places[place] for place in one))
    for piece in told.taken:
        for row in msgspec.msgpack.decode(piece, type=list[Taken]):
            log.take(
                numbers[row.request],
                row.at_ps,
                0,
                places.get(row.target, -1),
                places.get(row.prefill, -1),
                row.priority,
                row.reason,
                row.candidates,
                row.seen,
                row.believed,
                row.prompt_tokens,
            )
            log.score(row.card, names[row.candidates])
    log.verdicts = [msgspec.structs.replace(one, request=numbers[one.request]) for one in told.verdicts]
    return log


def _view(index: int, engine: Engine) -> InstanceView:
    view = InstanceView(
        index,
        engine.name,
        kv_blocks=engine.kv_blocks,
        max_batch_size=engine.max_batch_size,
        max_batch_tokens=engine.max_batch_tokens,
    )
    view.role, view._estimator = engine.role, StepTimes()
    return view


def main() -> int:
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        write(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ChapterDocument))
    except (HeadwayError, InvariantError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
