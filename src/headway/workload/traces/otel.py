"""OpenTelemetry spans of generative AI calls: OTLP JSON (`resourceSpans`), `{"spans": [...]}`, or a file whose lines
are such objects or single spans. Attributes are an object or OTLP's list of keys and values. The reader knows both the
current and the former names of the attributes.

A span of a model call is a request. Spans of tools and agents are skipped, because an agent's span repeats the tokens
of its calls. Failed calls without token counts are skipped too. `Info.extra` counts all skipped spans. The requests of
a session (`gen_ai.conversation.id`) follow each other. Spans are written when they end. Therefore the file is read
twice; the first pass finds the order of starts. The format does not describe content.
"""

from __future__ import annotations

import pathlib
import re
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.types import PS_PER_NS, Json
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, check_order, whole_number
from headway.workload.traces.objects import LAST_NS, decode_object, in_order, objects, stamp_ps
from headway.workload.traces.record import Format, Info, Options, Reader, Record

KINDS: Final = {
    "chat": "chat",
    "chat_completion": "chat",
    "generate_content": "chat",
    "text_completion": "completion",
    "completion": "completion",
}
OPERATION: Final = ("gen_ai.operation.name", "llm.request.type")
INPUT: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
OUTPUT: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
MODEL: Final = ("gen_ai.request.model", "gen_ai.response.model")
SESSION: Final = ("gen_ai.conversation.id", "session.id")
MAX_TOKENS: Final = ("gen_ai.request.max_tokens",)
STARTS: Final = ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")
ENDS: Final = ("endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time")
IDS: Final = ("spanId", "span_id", "spanID")
FURTHER: Final = {
    "gen_ai.response.time_to_first_chunk": "ttft",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_creation_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
    "gen_ai.response.finish_reasons": "finish_reasons",
    "gen_ai.provider.name": "provider",
    "gen_ai.system": "provider",
    "server.address": "server",
    "error.type": "error",
}
ERRORS: Final = (2, "2", "ERROR", "STATUS_CODE_ERROR")
FORM: Final = 'the file holds spans: {"resourceSpans": ...}, {"spans": [...]} or one span a line'


class Counts(Struct):
    """The number of spans of each type."""

    spans: int = 0
    requests: int = 0
    errors: int = 0  # number of failed calls, including failed calls that count as requests
    passed_over: int = 0  # number of spans that are not model calls


Call = tuple[Record, int, str]  # (request, its end in ns since 1970, its location for errors)


def read(path: pathlib.Path, options: Options) -> Reader:
    counts, starts, sessions = Counts(), array("q"), False
    for start_ns, (record, _, _) in _calls(path, counts):
        starts.append(start_ns)
        sessions = sessions or record.session is not None
    if not starts:
        raise HeadwayError(f"{path.name}: none of the {counts.spans} spans is a model call with {INPUT[0]}.")
    info = Info("otel", sessions=sessions, extra=msgspec.to_builtins(counts))
    return Reader(info, _records(path, starts))


def tell(path: pathlib.Path, head: list[bytes]) -> bool:
    start = b"\n".join(head[:20])
    if not start.startswith((b"{", b"[")):
        return False
    if re.match(rb'\{\s*"(resourceSpans|spans)"\s*:', start):
        return True
    return b'"gen_ai.' in start and b'"attributes"' in start


def _records(path: pathlib.Path, starts: array[int]) -> Iterator[Record]:
    """Yield the requests in order of arrival, with their turns and delays."""
    first_ns: int | None = None
    sessions: dict[str, tuple[int, int]] = {}  # session -> (number of turns so far, latest end of a turn)
    for start_ns, (record, end_ns, place) in in_order(starts, _calls(path, Counts())):
        first_ns = start_ns if first_ns is None else first_ns
        record.at_ps = (start_ns - first_ns) * PS_PER_NS
        check_order(record.at_ps, 0, "the start", start_ns, place)
        if record.session is not None:
            turns, last_ns = sessions.get(record.session, (0, start_ns))
            record.turn = turns
            record.delay_ps = min(LAST_PS, max(0, start_ns - last_ns) * PS_PER_NS)
            sessions[record.session] = (turns + 1, max(last_ns, end_ns))
        yield record


def _calls(path: pathlib.Path, counts: Counts) -> Iterator[tuple[int, Call]]:
    """Yield the start of each model call in ns since 1970, and the call, in file order."""
    for place, span, service in _spans(path):
        counts.spans += 1
        attributes = _attributes(span.get("attributes"), place)
        record = _request(attributes, _failed(span, attributes), counts, place)
        if record is None:
            continue
        start_ns = _stamp(span, STARTS, place)
        if start_ns is None:
            raise HeadwayError(f"{place}: {STARTS[0]} is missing. Every span needs a start.")
        end_ns = _stamp(span, ENDS, place)
        record.id = _text(span, IDS, place) or _text(_object(span.get("context") or {}, f"{place}.context"), IDS, place)
        if service is not None:
            record.extra["service"] = service
        if end_ns is not None and end_ns >= start_ns:
            record.extra["duration"] = (end_ns - start_ns) / 1e9
        counts.requests += 1
        yield start_ns, (record, max(start_ns, end_ns or 0), place)


def _request(attributes: Json, failed: bool, counts: Counts, place: str) -> Record | None:
    """Return the request of a span. If the span is not a model call, or if it is a failed call without token counts,
    return None."""
    operation = _text(attributes, OPERATION, place)
    prompt = _count(attributes, INPUT, 0, place)
    output = _count(attributes, OUTPUT, 0, place)
    if (prompt is None) if operation is None else (operation not in KINDS):
        counts.passed_over += 1
        return None
    counts.errors += failed
    if not prompt and failed:
        return None
    if not prompt:
        raise HeadwayError(f"{place}: {INPUT[0]} must be above 0; only a failed call may have 0.")
    extra = {name: attributes[key] for key, name in FURTHER.items() if attributes.get(key) is not None}
    if failed:
        extra.setdefault("error", "_OTHER")
    return Record(
        prompt,
        output or 0,
        session=_text(attributes, SESSION, place),
        model=_text(attributes, MODEL, place),
        kind=KINDS.get(operation or ""),
        max_tokens=_count(attributes, MAX_TOKENS, 1, place),
        extra=extra,
    )


def _failed(span: Json, attributes: Json) -> bool:
    status = span.get("status")
    if isinstance(status, dict):
        status = status.get("code", status.get("status_code"))
    return attributes.get("error.type") is not None or (isinstance(status, int | str) and status in ERRORS)


# --- the forms of a file ----------------------------------------------------------------------------------------


def _spans(path: pathlib.Path) -> Iterator[tuple[str, Json, str | None]]:
    """Yield the location of each span for errors, the span, and the name of its service. The name may be None."""
    for place, text in objects(path):
        document = decode_object(msgspec.json.decode, text, place, FORM)
        if isinstance(document, list):
            for at, item in enumerate(document):
                yield from _spans_of(_object(item, f"{place} [{at}]"), f"{place} [{at}]")
        else:
            yield from _spans_of(_object(document, place), place)


def _spans_of(document: Json, place: str) -> Iterator[tuple[str, Json, str | None]]:
    if "resourceSpans" in document:
        for at, resource in _items(document, "resourceSpans", f"{place} "):
            attributes = _object(resource.get("resource") or {}, f"{at}.resource").get("attributes")
            service = _attributes(attributes, f"{at}.resource").get("service.name")
            for scope_at, scope in _items(resource, "scopeSpans", f"{at}."):
                for span_at, span in _items(scope, "spans", f"{scope_at}."):
                    yield span_at, span, service if isinstance(service, str) else None
    elif "spans" in document:
        for at, span in _items(document, "spans", f"{place} "):
            yield at, span, None
    elif "attributes" in document:
        yield place, document, None
    else:
        raise HeadwayError(f"{place}: attributes is missing; {FORM}.")


def _items(parent: Json, name: str, place: str) -> Iterator[tuple[str, Json]]:
    items = parent.get(name)
    if items is None:
        return
    if not isinstance(items, list):
        raise HeadwayError(f"{place}{name}: must be a list; {FORM}.")
    for at, item in enumerate(items):
        yield f"{place}{name}[{at}]", _object(item, f"{place}{name}[{at}]")


def _object(value: Any, place: str) -> Json:
    if not isinstance(value, dict):
        raise HeadwayError(f"{place}: must be a JSON object; {FORM}.")
    return value


# --- values -----------------------------------------------------------------------------------------------------


def _attributes(source: Any, place: str) -> Json:
    """Return the attributes by name. `source` is an object or OTLP's list of keys and values."""
    if source is None:
        return {}
    if isinstance(source, dict):
        return source
    if not isinstance(source, list):
        raise HeadwayError(f"{place}: attributes must be an object or a list of keys and values.")
    values: Json = {}
    for at, item in enumerate(source):
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            raise HeadwayError(f"{place}: attributes[{at}] must have a key and a value.")
        values[item["key"]] = _value(item.get("value"))
    return values


def _value(typed: Any) -> Any:
    """Return the value of an OTLP object with a type, such as {"intValue": "12"}."""
    if not isinstance(typed, dict):
        return typed
    whole = typed.get("intValue")
    if isinstance(whole, str) and re.fullmatch(r"-?[0-9]{1,19}", whole):
        return int(whole)
    for name in ("stringValue", "intValue", "doubleValue", "boolValue"):
        if name in typed:
            return typed[name]
    values = typed.get("arrayValue")
    if isinstance(values, dict) and isinstance(values.get("values"), list):
        return [_value(value) for value in values["values"]]
    return None


def _first(values: Json, names: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of `names` with a value in `values`, and this value; ("", None) if no name has a value."""
    return next(((name, values[name]) for name in names if values.get(name) is not None), ("", None))


def _text(values: Json, names: tuple[str, ...], place: str) -> str | None:
    name, value = _first(values, tuple(name for name in names if values.get(name) != ""))
    if value is not None and not isinstance(value, str):
        raise HeadwayError(f"{place}: {name} must be text, got {str(value)[:40]}.")
    return value


def _count(values: Json, names: tuple[str, ...], least: int, place: str) -> int | None:
    """Return a number of tokens, or None if the attribute is missing. Accept a string of digits too, because OTLP
    writes whole numbers as strings."""
    name, value = _first(values, names)
    if value is None:
        return None
    if isinstance(value, str) and (number := whole_number(value)) is not None:
        value = number
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_LENGTH:
        must = f"must be a whole number between {least} and {MAX_LENGTH}"
        raise HeadwayError(f"{place}: {name} {must}, got {str(value)[:40]!r}.")
    return value


def _stamp(span: Json, names: tuple[str, ...], place: str) -> int | None:
    """Return a time of a span in ns since 1970, or None if it is missing. The span may write it as a number of ns, as a
    date and time, or as JavaScript's [seconds, ns]."""
    name, value = _first(span, names)
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        value = value[0] * 10**9 + value[1]
    elif isinstance(value, str):
        digits = value.isascii() and value.isdigit() and len(value) <= 19
        at_ps = None if digits else stamp_ps(value)
        value = int(value) if digits else at_ps and at_ps // PS_PER_NS
    # The lower limit rejects current times in s, ms or us, because these numbers are smaller than times in ns.
    if type(value) is not int or not 10**17 <= value <= LAST_NS:
        like = "1779163050197000000 (ns) or 2026-05-19T03:57:30.197Z"
        raise HeadwayError(f"{place}: {name} {str(span[name])[:40]!r} is not a time like {like}.")
    return value


FORMAT: Final = Format(
    "otel", "OpenTelemetry GenAI spans (OTLP JSON, spans as JSON or JSONL)", tell, read, blocks=False
)
