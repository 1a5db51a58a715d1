"""The alert and recording rules that ship with the gateway, as the real promtool evaluates them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")

from headway.gateway.observing.exposition import METRICS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "prometheus" / "headway-gateway.rules.yaml"
GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"] if "record" in rule}

# For each alert: the series that make it fire, and those that do not. A series is a name with labels, and promtool's
# notation of its values, one for each minute: 1+2x60 begins at 1 and grows by 2.
REQUESTS = 'headway_requests_total{model="m",outcome="completed",status="200"}'
WAITS = 'headway_queue_wait_seconds_bucket{model="m",le="%s"}'
FIRST = 'headway_time_to_first_token_seconds_bucket{model="m",le="%s"}'
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "HeadwayGatewayDown": ({"up": "0x60"}, {"up": "1x60"}),
    "HeadwayNoEngine": (
        {'headway_backend_up{backend="a"}': "0x60", "headway_policy_version": "0x60"},
        {'headway_backend_up{backend="a"}': "0x60", 'headway_backend_up{backend="b"}': "1x60"},
    ),
    "HeadwayEngineDown": (
        {'headway_backend_up{backend="a"}': "0x60", 'headway_backend_cordoned{backend="a"}': "0x60"},
        {'headway_backend_up{backend="a"}': "0x60", 'headway_backend_cordoned{backend="a"}': "1x60"},
    ),
    "HeadwayEngineFlaps": (
        {'headway_backend_ejected{backend="a"}': "0x49 1 0 1 0 1 0 1 0 1 0"},
        {'headway_backend_ejected{backend="a"}': "0x49 1 0 1 0x7"},
    ),
    "HeadwayErrors": (
        {REQUESTS: "0+90x60", 'headway_requests_total{model="m",outcome="failed",status="502"}': "0+10x60"},
        {REQUESTS: "0+90x60", 'headway_requests_total{model="m",outcome="failed",status="200"}': "0+10x60"},
    ),
    "HeadwayRejections": (
        {REQUESTS: "0+90x60", 'headway_requests_total{outcome="rejected",status="429"}': "0+10x60"},
        {REQUESTS: "0+97x60", 'headway_requests_total{outcome="rejected",status="429"}': "0+3x60"},
    ),
    "HeadwayRetries": (
        {REQUESTS: "0+60x60", 'headway_retries_total{reason="status 503"}': "0+9x60"},
        {REQUESTS: "0+60x60", 'headway_retries_total{reason="status 503"}': "0+3x60"},
    ),
    "HeadwayQueueWait": (
        {WAITS % "5.0": "0+90x60", WAITS % "10.0": "0+100x60", WAITS % "+Inf": "0+100x60"},
        {WAITS % "5.0": "0+100x60", WAITS % "10.0": "0+100x60", WAITS % "+Inf": "0+100x60"},
    ),
    "HeadwaySlowFirstToken": (
        {FIRST % "10.0": "0+90x60", FIRST % "20.0": "0+100x60", FIRST % "+Inf": "0+100x60"},
        {FIRST % "10.0": "0+100x60", FIRST % "20.0": "0+100x60", FIRST % "+Inf": "0+100x60"},
    ),
    "HeadwayKvFull": (
        {'headway_backend_kv_utilization{backend="a"}': "0.99x60"},
        {'headway_backend_kv_utilization{backend="a"}': "0.99x50 0.5x10"},
    ),
    "HeadwaySignalsStale": (
        {'headway_signal_age_seconds{backend="a",signal="queued"}': "0+60x60"},
        {'headway_signal_age_seconds{backend="a",signal="queued"}': "0.4x60"},
    ),
    "HeadwayPollsFail": ({"headway_scrape_failures_total": "0+60x60"}, {"headway_scrape_failures_total": "0+1x60"}),
    "HeadwayKvEventsLost": (
        {'headway_kv_events_total{backend="a",kind="gaps"}': "0+1x60"},
        {'headway_kv_events_total{backend="a",kind="events"}': "0+1x60"},
    ),
    "HeadwayPromptsUnread": (
        {REQUESTS: "0+60x60", "headway_unread_prompts_total": "0+6x60"},
        {REQUESTS: "0+600x60", "headway_unread_prompts_total": "0+1x60"},
    ),
    "HeadwayPolicyFails": (
        {'headway_policy_failures_total{arm="live"}': "0x55 1x5"},
        {'headway_policy_failures_total{arm="live"}': "7x60"},
    ),
    "HeadwayCanaryStopped": ({"headway_canary_stops_total": "0x55 1x5"}, {"headway_canary_stops_total": "1x60"}),
    "HeadwayShadowDown": ({'headway_shadow_up{candidate="c"}': "0x60"}, {'headway_shadow_up{candidate="c"}': "1x60"}),
    "HeadwayEtcdLost": ({"headway_etcd_up": "1x30 0x30"}, {"headway_etcd_up": "0x30 1x30"}),
    "HeadwayCertificateExpires": (  # promtool's clock begins at 0, and a day has 86,400 seconds
        {'headway_certificate_expiry_timestamp_seconds{listener="clients"}': "1000000x60"},
        {'headway_certificate_expiry_timestamp_seconds{listener="clients"}': "2000000x60"},
    ),
    "HeadwayHandoversFail": (
        {'headway_handover_fallbacks_total{reason="no prefill engine"}': "0+60x60"},
        {'headway_handover_fallbacks_total{reason="no prefill engine"}': "5x60"},
    ),
    "HeadwayRecordsLost": ({"headway_records_lost_total": "0x55 9x5"}, {"headway_records_lost_total": "9x60"}),
    "HeadwayRefusals": (
        {'headway_refusals_total{status="401"}': "0+120x60"},
        {'headway_refusals_total{status="400"}': "0+120x60"},
    ),
    "HeadwayOpenFiles": (
        {"process_open_fds": "900x60", "process_max_fds": "1024x60"},
        {"process_open_fds": "300x60", "process_max_fds": "1024x60"},
    ),
}


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed; `make prometheus` installs the system's package")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def labelled(series: str) -> str:
    """Add the labels that Prometheus gives to each series that it scrapes."""
    name, _, labels = series.partition("{")
    return f'{name}{{job="headway",instance="gateway:8001"{"," + labels if labels else "}"}'


def promtool_case(alert: str, series: dict[str, str], fires: bool) -> dict:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "name": f"{alert} {'fires' if fires else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": labelled(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "59m", "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
        ],
    }


def test_promtool_finds_no_fault_in_the_rules():
    assert f"{len(ALERTS) + len(RECORDED)} rules found" in promtool("check", "rules", str(RULES))


@pytest.mark.full
def test_each_alert_fires_when_it_should_and_stays_silent_when_it_should(tmp_path):
    assert list(CASES) == list(ALERTS)
    tests = [promtool_case(alert, series, True) for alert, (series, _) in CASES.items()]
    tests += [promtool_case(alert, series, False) for alert, (_, series) in CASES.items()]
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_an_alert_that_fires_says_where_and_what_to_do(tmp_path):
    fires = promtool_case("HeadwayErrors", CASES["HeadwayErrors"][0], True)
    rule = ALERTS["HeadwayErrors"]
    told = {
        **rule["annotations"],
        "description": rule["annotations"]["description"].replace("{{ $value | humanizePercentage }}", "10%"),
    }
    alert = {"exp_labels": {"severity": "critical", "job": "headway"}, "exp_annotations": told}
    fires["alert_rule_test"] = [{"eval_time": "59m", "alertname": "HeadwayErrors", "exp_alerts": [alert]}]
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [fires]}))
    promtool("test", "rules", str(file))


def test_the_rules_read_only_metrics_and_labels_that_the_gateway_declares():
    target = {"job", "instance"}
    for rule, expr in {**RECORDED, **{name: rule["expr"] for name, rule in ALERTS.items()}}.items():
        for name, matchers in re.findall(r"(?<![:\w])(headway_\w+)(?:\{([^}]*)\})?", expr):
            metric = METRICS.get(name) or METRICS[name.removesuffix("_bucket")]
            assert set(re.findall(r"(\w+)(?:=|!=)", matchers)) <= {*metric.labels, *target}, rule
        for name in re.findall(r"[\w]+:headway_\w+:\w+", expr):
            assert name in RECORDED, rule
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expr) for label in labels.split(", ")}
        known = {label for name in re.findall(r"headway_\w+", expr) for label in labels_of(name)}
        assert grouped <= known | target | {"le"}, rule


def labels_of(name: str) -> tuple[str, ...]:
    metric = METRICS.get(name) or METRICS.get(name.removesuffix("_bucket"))
    return () if metric is None else metric.labels


def test_the_docs_list_each_alert_with_its_severity_and_its_summary():
    page = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Headway\w+) \| (\w+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (name, rule["labels"]["severity"], rule.get("for", "at once"), rule["annotations"]["summary"])
        for name, rule in ALERTS.items()
    ]
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} == {"critical", "warning"}
    for rule in ALERTS.values():
        assert set(rule["annotations"]) == {"summary", "description"}
