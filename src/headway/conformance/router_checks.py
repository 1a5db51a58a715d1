"""The conformance checks. Each check sends requests to the router, and examines what engines and client receive."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Final

from msgspec import Struct

from headway.conformance.checked_engines import STEP_MS, Engines
from headway.conformance.router_client import WAIT_S, Answer, Router, get, text

PASSED, FAILED, UNKNOWN = "passed", "failed", "not checked"
SHEDS: Final = 12  # number of requests that the overload check sends
GONE_S: Final = 4.0  # time for which a crashed engine is down, in seconds
ARRIVE_S: Final = 10.0  # maximum time for a request to reach an engine
BREAKS: Final = 12  # number of streams that the check of broken streams sends
AFTERWARDS: Final = 4  # number of the last ones among them that must be complete
STALL_S: Final = 0.8 * WAIT_S  # time within which a router must notice a hung engine, in seconds
COUNT_S: Final = 1.5  # time after which the router's metrics page must count a request, in seconds
COLD: Final = 8  # number of uncached prompts that are sent for each engine
MOST_COLD: Final = 12  # the check fails if one engine receives more uncached prompts than this
RELOAD_TOKENS: Final = 60  # tokens of the stream that is in flight during the reload
RELOAD_S: Final = 10.0  # maximum time until a reload takes effect
TURNED_AWAY: Final = re.compile(r"reject|shed|refus|fail|error|exhaust|overload")
STATUS: Final = re.compile(r"429|50[0-9]|5xx")
BESIDE: Final = re.compile(r"_bucket|retries_total")  # names of metrics that do not count requests
VALUES: Final = re.compile(r'="([^"]*)"')


class Finding(Struct):
    check: str
    outcome: str
    detail: str


class Bench(Struct):
    """The router and the engines under test."""

    router: Router
    engines: Engines
    metrics: str | None = None  # URL of the router's Prometheus page; None: no such page
    reload: Callable[[list[str]], None] | None = None  # makes the router use these engines; None: unknown how

    def served_by(self, prompt: str, api: str = "chat") -> int | None:
        """Send a request, and return the index of the engine that received it; None if no engine received it."""
        before = self.engines.counts()
        self.router.ask(prompt, 2, api)
        gains = self.engines.gains(before)
        return gains.index(max(gains)) if any(gains) else None


def affinity(bench: Bench, api: str) -> tuple[str, str]:
    """Check that prompts with the same beginning go to the same engine."""
    homes: dict[int, int | None] = {}
    hits = repeats = 0
    for turn in range(4):
        for group in range(6):
            target = bench.served_by(text(f"{api} group {group}") + f" and question {turn}", api)
            if turn:
                repeats += 1
                hits += target is not None and target == homes[group]
            homes[group] = target
    used = len({home for home in homes.values() if home is not None})
    detail = f"{hits} of {repeats} went to the engine of the last prompt with the same prefix; engines in use: {used}"
    return (PASSED if hits >= 0.9 * repeats else FAILED), detail


def cold_spread(bench: Bench) -> tuple[str, str]:
    """Check that uncached prompts, sent one at a time, do not all go to one engine."""
    before = bench.engines.counts()
    prompts = COLD * len(before)
    for number in range(prompts):
        bench.router.ask(text(f"cold {number}"), 1)
    requests = bench.engines.gains(before)
    detail = f"{prompts} cold prompts, one at a time: engines got {', '.join(map(str, requests))}"
    return (PASSED if max(requests) <= MOST_COLD and min(requests) > 0 else FAILED), detail


def first_token(bench: Bench) -> tuple[str, str]:
    answer = bench.router.ask(text("first token"), 20)
    if not answer.pieces:
        return FAILED, f"no content arrived (status {answer.status})"
    spread = 1000 * (answer.pieces[-1][0] - answer.pieces[0][0])
    expected = (answer.tokens - 1) * STEP_MS
    detail = f"the first of 20 tokens came {spread:.0f} ms before the last; the engine generated them in {expected} ms"
    return (PASSED if answer.tokens >= 20 and spread >= 0.7 * expected else FAILED), detail


def one_by_one(bench: Bench) -> tuple[str, str]:
    answer = bench.router.ask(text("one by one"), 20)
    gaps = [1000 * (later - at) for (at, _), (later, _) in pairwise(answer.pieces)]
    apart = f", {median(gaps):.0f} ms apart" if gaps else ""
    pieces = len(answer.pieces)
    detail = f"{answer.tokens} tokens came in {pieces} pieces{apart}; the engine generates one every {STEP_MS} ms"
    return (PASSED if pieces >= 16 else FAILED), detail


def cancel(bench: Bench) -> tuple[str, str]:
    ended = len(bench.engines.ended)
    begun = time.monotonic()
    answer = bench.router.ask(text("cancel"), 400, leave_after=3)
    if answer.tokens < 3:
        return FAILED, f"no answer began (status {answer.status})"

    def abandoned() -> bool:
        return any(how == "abandoned" for _, how in bench.engines.ended[ended:])

    if bench.engines.until(abandoned, 5.0):
        return PASSED, f"the engine noticed the cancel {time.monotonic() - begun:.1f} s after the start of the request"
    bench.engines.until(lambda: len(bench.engines.ended) > ended, 20.0)
    return FAILED, "the engine continued to generate after the client had left"


def engine_dies(bench: Bench) -> tuple[str, str]:
    """Check that a stream does not look complete to the client if its engine crashes."""
    engines = bench.engines
    with ThreadPoolExecutor(1) as pool:
        before = engines.counts()
        reply = pool.submit(bench.router.ask, text("engine dies"), 60)
        engines.until(lambda: any(engines.gains(before)), ARRIVE_S)
        gains = engines.gains(before)
        time.sleep(8 * STEP_MS / 1000)
        engines.strike("crash", gains.index(max(gains)), seconds=GONE_S)
        answer = reply.result()
    engines.wait_until_back()
    if not answer.tokens:
        return FAILED, f"no answer began (status {answer.status})"
    end = "an error event" if answer.error else "a broken connection" if not answer.whole else "a normal end"
    if answer.tokens >= 60:
        end = "all its tokens"
    honest = answer.tokens >= 60 or ((answer.error or not answer.whole) and not answer.complete)
    return (PASSED if honest else FAILED), f"after {answer.tokens} of 60 tokens the client saw {end}"


def broken_streams(bench: Bench) -> tuple[str, str]:
    """Check that no broken stream looks complete, and that the router avoids an engine that breaks its streams."""
    engines, prompt = bench.engines, text("breaks its streams")
    engines.strike("cut", bench.served_by(prompt) or 0, tokens=2)
    try:
        answers = [bench.router.ask(f"{prompt} question {number}", 8) for number in range(BREAKS)]
    finally:
        engines.strike("none")
    served = [answer.complete and answer.tokens == 8 for answer in answers]
    posing = sum(answer.complete and answer.tokens < 8 for answer in answers)
    detail = (
        f"{sum(served)} of {BREAKS} streams were complete, of the last {AFTERWARDS} {sum(served[-AFTERWARDS:])}; "
        f"{posing} broken ones looked complete"
    )
    return (PASSED if all(served[-AFTERWARDS:]) and not posing else FAILED), detail


def hung_engine(bench: Bench) -> tuple[str, str]:
    """Check that a stream of a frozen engine ends in time, and that other engines serve the engine's requests."""
    engines, prompt = bench.engines, text("hangs")
    with ThreadPoolExecutor(4) as pool:
        before = engines.counts()
        stream = pool.submit(_timed, bench.router, prompt, 200)
        engines.until(lambda: any(engines.gains(before)), ARRIVE_S)
        gains = engines.gains(before)
        time.sleep(8 * STEP_MS / 1000)
        engines.strike("freeze", gains.index(max(gains)))
        try:
            others = [pool.submit(_timed, bench.router, f"{prompt} question {number}", 2) for number in range(3)]
            answers = [each.result() for each in others]
            begun, seconds = stream.result()
        finally:
            engines.strike("none")
    served = [took for answer, took in answers if answer.status == 200 and answer.tokens == 2 and took < STALL_S]
    if not begun.tokens:
        return FAILED, f"no answer began (status {begun.status})"
    ended = not begun.complete and seconds < STALL_S
    how = "an error event" if begun.error else "a broken connection"
    end = f"ended with {how} after {seconds:.0f} s" if ended else "did not end in time"
    waits = f" after {max(served):.0f} s or less" if served else ""
    detail = f"the stream of the hung engine {end}; {len(served)} of 3 requests were served elsewhere{waits}"
    return (PASSED if ended and len(served) == 3 else FAILED), detail


def _timed(router: Router, prompt: str, tokens: int) -> tuple[Answer, float]:
    begun = time.monotonic()
    return router.ask(prompt, tokens), time.monotonic() - begun


def others_serve(bench: Bench) -> tuple[str, str]:
    """Check that the other engines serve all requests while one engine is down, even before the router notices."""
    engines, prompt = bench.engines, text("goes on")
    engines.strike("crash", bench.served_by(prompt) or 0, seconds=GONE_S)
    after = [bench.router.ask(f"{prompt} question {number}", 2) for number in range(6)]
    served = sum(answer.status == 200 and answer.tokens == 2 for answer in after)
    engines.wait_until_back()
    statuses = ", ".join(map(str, sorted({answer.status for answer in after})))
    detail = f"{served} of 6 requests with a prefix cached on the lost engine were served (status {statuses})"
    return (PASSED if served == 6 else FAILED), detail


def overload(bench: Bench) -> tuple[str, str]:
    """Check that clients get status 429 or 503 when all engines refuse requests."""
    bench.engines.strike("503")
    begun = time.monotonic()
    try:
        with ThreadPoolExecutor(SHEDS) as pool:
            answers = list(pool.map(lambda number: bench.router.ask(text(f"overload {number}"), 2), range(SHEDS)))
    finally:
        bench.engines.strike("none")
    took = time.monotonic() - begun
    statuses = sorted({answer.status for answer in answers})
    again = sum("retry-after" in answer.fields for answer in answers)
    detail = (
        f"{SHEDS} requests got status {', '.join(map(str, statuses))} within {took:.1f} s, {again} with Retry-After"
    )
    return (PASSED if set(statuses) <= {429, 503} else FAILED), detail


def count_refusals(bench: Bench) -> tuple[str, str]:
    """Check that the router's metrics count rejected requests."""
    if bench.metrics is None:
        return UNKNOWN, "no metrics page was given"
    before = dict(series(get(bench.metrics)[1]))
    overload(bench)
    time.sleep(COUNT_S)
    status, page = get(bench.metrics)
    if status != 200:
        return FAILED, f"{bench.metrics} is not a metrics page (status {status})"
    grown: dict[str, float] = {}
    for name, value in series(page):
        if turned_away(name):
            metric = name.partition("{")[0]
            grown[metric] = grown.get(metric, 0.0) + value - before.get(name, 0.0)
    counters = [name for name, by in grown.items() if by >= SHEDS]
    if not counters:
        return FAILED, f"{SHEDS} requests were rejected, but no counter of rejections grew by {SHEDS} or more"
    shortest = min(counters, key=len)
    return PASSED, f"{shortest} grew by {grown[shortest]:g}"


def reload_engines(bench: Bench) -> tuple[str, str]:
    """Check that a reload without the engine of a stream neither breaks the stream nor fails other requests, and that
    the engine serves again after a second reload."""
    if bench.reload is None:
        return UNKNOWN, "no command for a reload was given"
    engines, router, prompt = bench.engines, bench.router, text("reload")
    with ThreadPoolExecutor(1) as pool:
        before = engines.counts()
        stream = pool.submit(router.ask, prompt, RELOAD_TOKENS)
        engines.until(lambda: any(engines.gains(before)), ARRIVE_S)
        gains = engines.gains(before)
        removed = gains.index(max(gains))
        bench.reload([url for index, url in enumerate(engines.urls) if index != removed])
        failed, left = _ask_until(bench, lambda gains: not gains[removed], prompt)
        answer = stream.result()
    bench.reload(engines.urls)
    failed_again, back = _ask_until(bench, lambda gains: bool(gains[removed]), "")
    failed += failed_again
    whole = answer.complete and answer.tokens >= RELOAD_TOKENS
    detail = (
        f"the stream got {answer.tokens} of {RELOAD_TOKENS} tokens, {failed} other requests failed; the removed engine "
        f"{'got no more requests' if left else 'still got requests'} and {'served' if back else 'did not serve'} again"
    )
    return (PASSED if whole and left and back and not failed else FAILED), detail


def _ask_until(bench: Bench, holds: Callable[[list[int]], bool], prompt: str) -> tuple[int, bool]:
    """Send rounds of requests until the engines' numbers of requests in a round fulfil a condition. Return the number
    of failed requests, and whether the condition was fulfilled in time."""
    failed, end, number = 0, time.monotonic() + RELOAD_S, 0
    while True:
        before = bench.engines.counts()
        for _ in range(COLD):
            number += 1
            answer = bench.router.ask(f"{prompt or text(f'cold after reload {number}')} question {number}", 1)
            failed += answer.status != 200 or not answer.tokens
        if holds(bench.engines.gains(before)):
            return failed, True
        if time.monotonic() > end:
            return failed, False


def turned_away(name: str) -> bool:
    """Return whether a series counts rejected requests, judging by its name and by the values of its labels. Ignore
    labels that are URLs."""
    metric, _, labels = name.partition("{")
    if BESIDE.search(metric):
        return False
    values = [value for value in VALUES.findall(labels) if "://" not in value]
    return any(TURNED_AWAY.search(word) for word in (metric, *values)) or any(map(STATUS.fullmatch, values))


def series(page: str) -> Iterator[tuple[str, float]]:
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            try:
                yield name, float(value)
            except ValueError:
                continue


# The reload comes before the failures, because routers distrust engines for a while after these.
CHECKS: Final[dict[str, Callable[[Bench], tuple[str, str]]]] = {
    "chats that begin alike go to one engine": lambda bench: affinity(bench, "chat"),
    "completions that begin alike go to one engine": lambda bench: affinity(bench, "completions"),
    "cold prompts are spread at low concurrency": cold_spread,
    "the first token is not held back": first_token,
    "tokens are passed on one by one": one_by_one,
    "a client's cancel reaches the engine": cancel,
    "a reload breaks no request": reload_engines,
    "a stream whose engine dies does not look complete": engine_dies,
    "requests go elsewhere while an engine is gone": others_serve,
    "an engine that breaks its streams is avoided": broken_streams,
    "a hung engine holds nothing up": hung_engine,
    "overload is answered": overload,
    "rejected requests are counted": count_refusals,
}


def run_checks(bench: Bench, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    findings = []
    for number, (name, check) in enumerate(CHECKS.items()):
        if progress is not None:
            progress(number, len(CHECKS))
        outcome, detail = check(bench)
        findings.append(Finding(name, outcome, detail))
    return findings
