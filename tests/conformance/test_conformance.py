"""The suite for routers: Headway's gateway passes it, and what is wrong with a router is found."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")

from canned import DONE, Canned, event, stream

from headway.conformance import router_checks, router_client
from headway.conformance.checked_engines import Engines
from headway.conformance.conformance_run import fill_in
from headway.conformance.router_checks import CHECKS, FAILED, PASSED, UNKNOWN, Bench, series, turned_away
from headway.conformance.router_client import Router
from headway.errors import HeadwayError
from headway.gateway.engines.member import read_members

AFFINE, SPREAD, COUNTED, RELOADED = (
    "chats that begin alike go to one engine",
    "cold prompts are spread at low concurrency",
    "rejected requests are counted",
    "a reload breaks no request",
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are long for the sake of slow routers are short here."""
    monkeypatch.setattr(router_checks, "GONE_S", 0.5)


@pytest.mark.full
def test_headway_as_it_comes_passes_all_of_it(headway: Any) -> None:
    done = headway("conformance", "--json")
    found = json.loads(done.stdout)
    assert {one["check"]: one["outcome"] for one in found["checks"]} == dict.fromkeys(CHECKS, PASSED), done.stdout
    assert done.returncode == 0


@pytest.fixture
def engines():
    made = Engines(3)
    yield made
    made.stop()


def bench(live: Any, engines: Engines, **more: Any) -> Bench:
    gateway = live(0, backends={f"e{at}": url for at, url in enumerate(engines.urls)}, **more)
    return Bench(Router(f"http://127.0.0.1:{gateway.port}", engines.model), engines)


def test_a_router_without_affinity_fails_there(live: Any, engines: Engines) -> None:
    outcome, detail = CHECKS[AFFINE](bench(live, engines, policies={"routing": "random"}))
    assert outcome == FAILED and "of 18 went" in detail


def test_a_router_that_sends_cold_prompts_to_one_engine_fails_there(live: Any, engines: Engines) -> None:
    outcome, detail = CHECKS[SPREAD](bench(live, engines, policies={"routing": "load-only"}))
    assert (outcome, detail) == (FAILED, "24 cold prompts, one at a time: engines got 24, 0, 0")


def test_what_cannot_be_looked_at_is_neither_passed_nor_failed(live: Any, engines: Engines) -> None:
    assert CHECKS[COUNTED](bench(live, engines))[0] == UNKNOWN


@pytest.mark.parametrize("works", [True, False])
def test_a_router_that_ignores_a_reload_fails_there(
    live: Any, engines: Engines, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    monkeypatch.setattr(router_checks, "RELOAD_S", 0.1)
    monkeypatch.setattr(router_checks, "RELOAD_TOKENS", 8)
    gateway = live(0, backends={f"e{at}": url for at, url in enumerate(engines.urls)})

    async def offer(urls: list[str]) -> None:
        members = {f"e{engines.urls.index(url)}": url for url in urls}
        gateway.app.fleet.offer("file", read_members(members, "backends"))

    def reload(urls: list[str]) -> None:
        if works:
            gateway.call(offer(urls))

    router = Router(f"http://127.0.0.1:{gateway.port}", engines.model)
    outcome, detail = CHECKS[RELOADED](Bench(router, engines, reload=reload))
    assert outcome == (PASSED if works else FAILED), detail
    assert ("still got requests" in detail) is not works and "8 of 8 tokens, 0 other requests failed" in detail
    assert CHECKS[RELOADED](Bench(router, engines))[0] == UNKNOWN


def test_an_engine_asked_directly_holds_nothing_back_but_is_no_router(engines: Engines) -> None:
    alone = Bench(Router(engines.urls[0], engines.model), engines)
    for name in ("the first token is not held back", "tokens are passed on one by one"):
        assert CHECKS[name](alone)[0] == PASSED
    assert CHECKS["requests go elsewhere while an engine is gone"](alone)[0] == FAILED


def test_an_engine_asked_directly_neither_avoids_broken_streams_nor_hides_a_hang(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_checks, "BREAKS", 4)
    monkeypatch.setattr(router_checks, "STALL_S", 0.2)
    monkeypatch.setattr(router_client, "WAIT_S", 0.5)
    alone = Bench(Router(engines.urls[0], engines.model), engines)
    outcome, detail = CHECKS["an engine that breaks its streams is avoided"](alone)
    assert (outcome, detail) == (
        FAILED,
        "0 of 4 streams were complete, of the last 4 0; 0 broken ones looked complete",
    )
    outcome, detail = CHECKS["a hung engine holds nothing up"](alone)
    assert outcome == FAILED and "did not end in time; 0 of 3" in detail


def test_the_gateway_avoids_an_engine_that_breaks_its_streams(live: Any, engines: Engines) -> None:
    outcome, detail = CHECKS["an engine that breaks its streams is avoided"](bench(live, engines))
    assert outcome == PASSED and detail.startswith("9 of 12"), detail


def test_a_command_has_its_places_filled_in_and_others_left() -> None:
    words = fill_in("router --workers {engines} --port {port} --x '{y}'", {"engines": "http://a http://b", "port": 80})
    assert words == ["router", "--workers", "http://a", "http://b", "--port", "80", "--x", "{y}"]
    for wrong in ("", "'open"):
        with pytest.raises(HeadwayError, match="--start"):
            fill_in(wrong, {})


def test_a_page_of_metrics_is_read() -> None:
    assert dict(series('# HELP x y\na_total{b="c d"} 3\nbad line\n')) == {'a_total{b="c d"}': 3.0}


def test_a_counter_is_one_of_requests_turned_away_by_its_name_or_by_what_its_labels_say() -> None:
    for name in ("sheds_total", 'http_total{status="503"}', 'requests_total{outcome="rejected"}', 'x{code="5xx"}'):
        assert turned_away(name), name
    for name in (
        'requests_total{worker="http://127.0.0.1:50312"}',  # a port is no status
        'requests_total{error="",status="200"}',  # a label that those have too that went well
        'failed_seconds_bucket{le="1"}',
        "router_retries_total",
    ):
        assert not turned_away(name), name


class Pages:
    """Metrics of a router, one page after the other."""

    def __init__(self, *pages: str) -> None:
        self.pages = iter(pages)

    def __call__(self, url: str) -> tuple[int, str]:
        return 200, next(self.pages)


def test_a_count_that_is_split_over_engines_is_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        router_checks, "get", Pages('errors_total{w="a"} 1\n', 'errors_total{w="a"} 7\nerrors_total{w="b"} 6\n')
    )
    monkeypatch.setattr(router_checks, "overload", lambda bench: None)
    monkeypatch.setattr(router_checks, "COUNT_S", 0.0)
    outcome, detail = router_checks.count_refusals(Bench(None, None, "http://127.0.0.1:1/metrics"))  # type: ignore[arg-type]
    assert (outcome, detail) == (PASSED, "errors_total grew by 12")


def test_events_that_a_router_cuts_anywhere_are_counted_all_the_same() -> None:
    text = event(content="a") + event(content="b") + DONE.strip()
    for at in range(1, len(text), 7):
        router = Canned(stream(text[:at], text[at:]))
        answer = Router(router.url, "m").ask("anything")
        router.stop()
        assert (answer.tokens, answer.complete, answer.whole, answer.error) == (2, True, True, False)


def test_a_router_that_answers_nobody_does_not_pass_for_honest(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_checks, "ARRIVE_S", 0.0)
    router = Canned(b'HTTP/1.1 500 -\r\ncontent-length: 14\r\n\r\n{"error": "x"}')
    outcome, detail = CHECKS["a stream whose engine dies does not look complete"](
        Bench(Router(router.url, engines.model), engines)
    )
    router.stop()
    assert (outcome, detail) == (FAILED, "no answer began (status 500)")


@pytest.mark.parametrize("word", ["somewhere", "ftp://127.0.0.1"])
def test_an_address_that_is_none_is_told_at_once(headway: Any, word: str) -> None:
    for words in ((word,), ("--metrics", word)):
        done = headway("conformance", *words)
        assert done.returncode == 2 and "expected a URL" in done.stderr and "engine at" not in done.stderr


def test_whatever_a_router_has_started_ends_with_it(headway: Any, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = tmp_path / "start.sh"
    script.write_text(f"sleep 1000 & echo $! > {file}; exit 1")
    assert headway("conformance", "--start", f"sh {script}").returncode == 2
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", file.read_text().strip()], capture_output=True, text=True, check=False
    )
    assert state.stdout.strip()[:1] in ("", "Z")  # gone, or ended and not yet reaped by whoever has it now


def test_a_router_that_does_not_start_is_told(headway: Any) -> None:
    done = headway("conformance", "--start", "no-such-router {engines} {port}")
    assert done.returncode == 2 and "--start: no-such-router cannot be run" in done.stderr
    done = headway("conformance", "--start", "sh -c 'echo it broke; exit 3' {engines}")
    assert done.returncode == 2 and "it broke" in done.stderr
