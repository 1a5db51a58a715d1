"""What the gateway counts, and the page that Prometheus reads."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat, count_ended
from prometheus_client.parser import text_string_to_metric_families

from headway.gateway.observing.exposition import METRICS, render, together
from headway.gateway.observing.gateway_metrics import (
    MOST_GROUPS,
    MOST_NAMES,
    WINDOW_S,
    GatewayMetrics,
    merge,
    percentiles,
)
from headway.types import PS_PER_SECOND

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


def samples(text):
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return values


def total(values, name, **labels):
    return sum(value for (one, its), value in values.items() if one == name and labels.items() <= dict(its).items())


def test_each_request_is_counted_once_by_what_became_of_it(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "kv-aware"})
    for number in range(6):
        chat(gateway, "the same beginning " * 40, stream=number % 2 == 0)
    gateway.engines[0].mode = gateway.engines[1].mode = "error"
    for _ in range(2):
        assert chat(gateway, "the same beginning " * 40).status == 500
    gateway.until(gateway.idle)
    values = samples(admin(gateway, "/metrics").body.decode())
    assert total(values, "headway_requests_total", outcome="completed", status="200") == 6
    assert total(values, "headway_requests_total", outcome="failed", status="500") == 2
    assert total(values, "headway_time_to_first_token_seconds_count") == 3  # streams alone
    assert total(values, "headway_time_per_output_token_seconds_count") == 3
    assert total(values, "headway_request_duration_seconds_count") == 6
    assert total(values, "headway_queue_wait_seconds_count") == 8
    assert total(values, "headway_output_tokens_total") == 3 * 5 + 3 * 7
    assert 0 < total(values, "headway_believed_cached_tokens_total") < total(values, "headway_prompt_tokens_total")
    assert total(values, "headway_backend_up") == 2 and total(values, "headway_inflight_requests") == 0


def test_what_no_engine_got_has_no_model_of_a_clients_making(live):
    backends = {"x": {"url": "http://127.0.0.1:9", "models": ["big"]}}
    gateway = live(1, admin=ADMIN, backends=backends, retries=0)
    for number in range(5):
        assert chat(gateway, model=f"made-up-{number}").status == 404
    values = samples(admin(gateway, "/metrics").body.decode())
    assert total(values, "headway_requests_total", model="", backend="", outcome="rejected", status="404") == 5
    assert total(values, "headway_requests_total") == 5


def test_names_that_clients_make_up_are_bounded(live):
    gateway = live(1)
    for number in range(MOST_NAMES + 20):
        gateway.app.metrics._group(f"model {number}", "e0")
        gateway.app.metrics.count_retry(f"reason {number}")
    assert len(gateway.app.metrics.groups) == MOST_NAMES + 1 and ("other", "e0") in gateway.app.metrics.groups
    assert len(gateway.app.metrics.retries) == MOST_NAMES + 1 and gateway.app.metrics.retries["other"] == 20


def test_pairs_of_models_and_engines_are_bounded_too():
    figures = GatewayMetrics()
    for model in range(MOST_NAMES):
        for engine in range(20):
            figures._group(f"model {model}", f"engine {engine}")
    assert len(figures.groups) == MOST_GROUPS + 20
    assert [engine for model, engine in figures.groups if model == "other"] == [f"engine {one}" for one in range(20)]


def test_retries_refusals_and_ejections_are_told(live):
    gateway = live(2, admin=ADMIN, policies={"routing": "round-robin"})
    gateway.engines[0].mode = "reset"
    for _ in range(8):
        assert chat(gateway).status == 200
    chat(gateway, model="m", x_headway_deadline="never")
    values = samples(admin(gateway, "/metrics").body.decode())
    assert total(values, "headway_retries_total") == total(
        values, "headway_retries_total", reason="the connection was lost"
    )
    assert total(values, "headway_retries_total") >= 3
    assert total(values, "headway_backend_ejected", backend="e0") == 1
    assert total(values, "headway_backend_up", backend="e0") == 0
    assert total(values, "headway_refusals_total", status="400") == 1


def test_what_went_otherwise_than_it_should_is_counted(live):
    gateway = live(1, admin=ADMIN)
    gateway.app.signals.misses, gateway.app.tokens.default.unread = 2, 3
    gateway.app.reception.held_bytes += 7
    values = samples(admin(gateway, "/metrics").body.decode())
    assert total(values, "headway_scrape_failures_total") >= 2
    assert total(values, "headway_unread_prompts_total") == 3
    assert total(values, "headway_held_bytes") == 7
    assert total(values, "headway_kv_events_of_nobody_total") == total(values, "headway_records_lost_total") == 0


def test_signals_have_their_ages_and_events_their_gaps(live):
    gateway = live(1, admin=ADMIN)

    gateway.app.board.signals = SimpleNamespace(misses=0, ages=lambda backend: {"queued": 1.5})
    gateway.app.board.listener = SimpleNamespace(unknown=0, event_counts=lambda backend: {"events": 12, "gaps": 2})
    values = samples(admin(gateway, "/metrics").body.decode())
    assert total(values, "headway_signal_age_seconds", backend="e0", signal="queued") == 1.5
    assert total(values, "headway_kv_events_total", backend="e0", kind="gaps") == 2


def test_the_figures_of_several_processes_add_up(live):
    first, second = live(1), live(1)
    for _ in range(3):
        chat(first, stream=True)
    chat(second)
    for each, expected in ((first, 3), (second, 1)):
        each.until(lambda each=each, expected=expected: count_ended(each) == expected)
    sent = json.loads(json.dumps([*first.app.board.figures(), *second.app.board.figures()]))  # as they would travel
    values = samples(render(together(sent))[0].decode())
    assert total(values, "headway_requests_total") == 4
    assert total(values, "headway_time_to_first_token_seconds_count") == 3
    assert total(values, "headway_backend_up", backend="e0") == 1  # not 2: it is the same engine
    alone = samples(render(sent[0])[0].decode())
    assert total(alone, "headway_requests_total") == 3


def test_the_other_processes_of_a_gateway_are_counted_and_other_gateways_are_not(live):
    gateway, other = live(1, admin=ADMIN), live(1)
    for each in (gateway, other):
        chat(each)
        each.until(lambda each=each: count_ended(each) == 1)
    snapshot = json.loads(json.dumps(other.app.board.figures()[0]))
    for orders, expected in ((True, 2), (False, 1)):  # which only processes of one gateway take
        gateway.app.board.peers = SimpleNamespace(
            settings=SimpleNamespace(orders=orders), figures={"worker-1": snapshot}
        )
        values = samples(admin(gateway, "/metrics").body.decode())
        assert total(values, "headway_requests_total") == expected
        assert gateway.app.board.status()["requests"] == {"completed": expected}
    gateway.app.board.peers = None


def test_percentiles_of_the_last_minute_are_near_the_true_ones():
    figures, draw = GatewayMetrics(), random.Random(3)
    values = []
    for second in range(100):
        for _ in range(20):
            value = round(draw.lognormvariate(0, 1) * PS_PER_SECOND)
            slot = figures.seconds[second % (WINDOW_S + 1)]
            if slot.number != second:
                slot = figures.seconds[second % (WINDOW_S + 1)] = type(slot)(second)
            slot.ended += 1
            slot.samples.append((-1, -1, value, 0))
            if second >= 40:
                values.append(value)
    snapshot = figures.plain(100 * PS_PER_SECOND)
    shares = percentiles(merge([snapshot, snapshot]), up_s=100.0)
    assert shares["e2e"]["count"] == 2 * len(values) and shares["requests_per_s"] == 40
    for word, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        true = sorted(values)[int(len(values) * share)] / 1e9
        assert abs(shares["e2e"][word] - true) <= true / 16
    assert shares["ttft"] == {"count": 0, "p50": None, "p90": None, "p99": None}


def test_the_page_is_openmetrics_where_that_is_asked_for(live):
    gateway = live(1, admin=ADMIN)
    chat(gateway)
    answer = admin(gateway, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.body.rstrip().endswith(b"# EOF")


def test_docs_and_dashboard_name_what_there_is(live):
    gateway = live(1, admin=ADMIN)
    text = admin(gateway, "/metrics").body.decode()
    kinds = {match[1]: match[2] for match in re.finditer(r"^# TYPE (headway_\w+) (\w+)$", text, re.MULTILINE)}
    assert kinds == {name: metric.kind for name, metric in METRICS.items()}
    page = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (headway_\w+) \| (\w+) \| ([^|]+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (name, metric.kind, ", ".join(metric.labels) or "–", metric.help) for name, metric in METRICS.items()
    ]
    board = json.loads((ROOT / "grafana" / "headway-gateway.json").read_text(encoding="utf-8"))
    named = set(re.findall(r"\b(?:headway|process)_\w+", json.dumps(board["panels"])))
    series = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert {name for name in series if name.startswith("headway_")} == set(METRICS)  # each is drawn somewhere
    assert {name for name in series if name.startswith("process_")} <= set(
        re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    )
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name, labels in re.findall(r"(headway_\w+?)(?:_bucket)?\{([^}]*)\}", target["expr"]):
                assert set(re.findall(r"(\w+)=", labels.replace("!=", "=").replace("=~", "="))) <= {
                    *METRICS[name].labels
                }
