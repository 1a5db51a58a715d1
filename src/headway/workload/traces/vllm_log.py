"""Request log of a vLLM server that runs with `--enable-log-requests --enable-log-outputs` and logs token ids.

A request needs two lines: `Received request ID: …` (or, at debug level, `Request ID details: …`) with its time and
`prompt_token_ids`, and `Generated response ID: …` with `output_token_ids`. Times are in whole seconds and have no year.
If one of the two lengths is missing, the request is skipped. A note says how many requests were skipped. Prompts with
equal leading token ids share content. If no request has both lengths, the reader rejects the file; the error names the
options of vLLM that log the lengths.
"""

import pathlib
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from headway.config.wording import join_words
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.types import PS_PER_SECOND
from headway.workload.traces.blocks import id_runs
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.sorting import sort_rows
from headway.workload.traces.source import lines

BLOCK_TOKENS: Final = 16
BANNER: Final = b"vLLM API server version"
OPTIONS: Final = "--enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG, without --max-log-len"
STAMP: Final = rb"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b"
RECEIVED: Final = re.compile(STAMP + rb".*?\bReceived request ([^\s:]+): ")
DETAILS: Final = re.compile(rb"\bRequest ([^\s:]+) details: ")
GENERATED: Final = re.compile(rb"\bGenerated response ([^\s:(]+)( \(streaming delta\))?[^:]*: output: ")
PROMPT_IDS: Final = re.compile(rb"prompt_token_ids: \[([\d, ]*)\]")
OUTPUT_IDS: Final = re.compile(rb"output_token_ids: \[([\d, ]*)\]")
MAX_TOKENS: Final = re.compile(rb"\bmax_tokens=(\d+)")
YEAR: Final = 2000  # year of dates without a year; it is a leap year, so that every date is valid


class Open(Struct):
    """A request whose answer has not been read yet."""

    at_s: int
    max_tokens: int | None
    prompt: list[int] | None = None
    output_tokens: int = 0


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return any(BANNER in line or RECEIVED.search(line) for line in first)


def read(path: pathlib.Path, options: Options) -> Reader:
    info = Info("vllm-log", options.block_tokens or BLOCK_TOKENS, whole_blocks=True)
    return Reader(info, _records(path, info))


def _records(path: pathlib.Path, info: Info) -> Iterator[Record]:
    size = info.block_tokens or BLOCK_TOKENS
    skipped = no_prompt = no_output = 0

    def rows() -> Iterator[tuple[int, int, Record]]:
        nonlocal skipped, no_prompt, no_output
        for number, name, request in _requests(path):
            if not request.prompt or not request.output_tokens:
                skipped += 1
                no_prompt += not request.prompt
                no_output += not request.output_tokens
                continue
            record = Record(
                len(request.prompt),
                request.output_tokens,
                at_ps=request.at_s * PS_PER_SECOND,
                blocks=id_runs(_block_ids(request.prompt, size)),
                id=name,
                max_tokens=request.max_tokens,
            )
            yield request.at_s, number, record

    first_ps: int | None = None
    for _, _, record in sort_rows(rows()):
        assert record.at_ps is not None
        first_ps = record.at_ps if first_ps is None else first_ps
        record.at_ps -= first_ps
        yield record
    if first_ps is None:
        missing = {"prompt_token_ids": no_prompt, "output_token_ids": no_output}
        raise HeadwayError(f"{path.name}: {_what_is_missing(skipped, missing)} Run vLLM with {OPTIONS}.")
    notes = ["times have whole seconds; spread them with the transform dequantise"]
    if skipped:
        notes.append(f"requests without token ids of prompt and answer are skipped: {skipped:,}")
    info.extra["notes"] = notes


def _what_is_missing(requests: int, missing: dict[str, int]) -> str:
    if not requests:
        return "this log of vLLM has no lines of requests, such as `Received request ID: …`."
    counts = join_words([f"{number:,} without {name}" for name, number in missing.items() if number])
    return f"no request in this log has token ids of both its prompt and its answer: of {requests:,}, {counts}."


def _requests(path: pathlib.Path) -> Iterator[tuple[int, str, Open]]:
    """Yield each request with its position in the log, as soon as its answer is complete or the log ends."""
    waiting: dict[str, tuple[int, Open]] = {}
    # Request id -> prompt, for requests whose line `Received request` has not been read yet.
    details: dict[str, list[int] | None] = {}
    years = 0
    last_s = 0
    for number, line in lines(path):
        if match := RECEIVED.search(line):
            at_s = _seconds(match[1].decode(), years)
            if at_s < last_s - 86400:  # a new year has begun
                years += 1
                at_s = _seconds(match[1].decode(), years)
            last_s = max(last_s, at_s)
            limit = MAX_TOKENS.search(line)
            name = match[2].decode()
            prompt = details.pop(name, None) or _ids(PROMPT_IDS, line)
            waiting[name] = number, Open(at_s, int(limit[1]) if limit else None, prompt)
        elif match := DETAILS.search(line):
            name = match[1].decode()
            if (known := waiting.get(name)) is not None:
                known[1].prompt = _ids(PROMPT_IDS, line)
            else:
                details[name] = _ids(PROMPT_IDS, line)
        elif (match := GENERATED.search(line)) and (known := waiting.get(name := match[1].decode())) is not None:
            ids = _ids(OUTPUT_IDS, line) or []
            if match[2]:  # one piece of a streamed answer
                known[1].output_tokens += len(ids)
            else:
                known[1].output_tokens = len(ids) or known[1].output_tokens
                yield known[0], name, known[1]
                del waiting[name]
    for name, (number, request) in waiting.items():
        yield number, name, request


def _seconds(stamp: str, years: int) -> int:
    at = datetime.strptime(f"{YEAR + years}-{stamp}", "%Y-%m-%d %H:%M:%S")
    return int((at - datetime(YEAR, 1, 1)).total_seconds())


def _ids(pattern: re.Pattern[bytes], line: bytes) -> list[int] | None:
    match = pattern.search(line)
    return None if match is None else [int(text) for text in match[1].split(b",") if text.strip()]


def _block_ids(tokens: list[int], size: int) -> list[int]:
    """Return an id for each full block of a prompt. The id identifies the block and all tokens before it."""
    ids, before = [], 0
    for start in range(0, len(tokens) - size + 1, size):
        before = stable(before, *tokens[start : start + size])
        ids.append(before)
    return ids


FORMAT: Final = Format("vllm-log", "request log of a vLLM server, with token ids", tell, read)
