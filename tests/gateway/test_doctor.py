"""`headway doctor`: each problem of a file, of an engine and of a running gateway, with its place."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, chat, component

from free_ports import free_port
from headway.gateway.doctor import examine as doctor
from headway.gateway.doctor import file_checks
from headway.gateway.doctor.engine_checks import _skew
from headway.gateway.doctor.problems import Report
from headway.gateway.doctor.provider_checks import check_provider
from headway.gateway.doctor.running_checks import check_metrics, check_status
from headway.gateway.json_web_tokens import TokenClients

LOAD = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n"
CACHE = 'vllm:cache_config_info{block_size="%s",enable_prefix_caching="%s",num_gpu_blocks="100"} 1\n'
PAGE = LOAD + CACHE % (16, "True")


def models(*names):
    return json.dumps({"data": [{"id": name} for name in names]})


class Pages(BaseHTTPRequestHandler):
    """An engine that serves pages. `pages` maps a path to a status and a text, in which URL is the engine's URL. Other
    paths have status 404."""

    def __init__(self, pages, ahead_s, key, *arguments):
        self.pages, self.ahead_s, self.key = pages, ahead_s, key
        super().__init__(*arguments)

    def do_GET(self):
        status, text = self.pages.get(self.path, (404, "no such page"))
        if self.key is not None and self.headers["authorization"] != f"Bearer {self.key}":
            status, text = 401, "no"
        text = text.replace("URL", f"http://{self.headers['host']}")
        self.send_response_only(status)
        self.send_header("Date", format_datetime(datetime.now(UTC) + timedelta(seconds=self.ahead_s), usegmt=True))
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def engine():
    """Starts engines that serve pages; returns their URLs."""
    servers = []

    def start(ahead_s=0.0, key=None, **pages):
        texts = {"/health": "", "/v1/models": models("m"), "/metrics": PAGE}
        replies = {path: (200, text) for path, text in texts.items()}
        for path, reply in pages.items():
            replies[f"/{path.replace('__', '/')}"] = reply if isinstance(reply, tuple) else (200, reply)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, replies, ahead_s, key)))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def examine(tmp_path, monkeypatch):
    """Examines a gateway's file. It may open many files, so that no machine has too few."""
    monkeypatch.setattr(file_checks, "most_files", lambda: None)

    def run(document):
        file = tmp_path / "gateway.yaml"
        file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return doctor.examine(str(file))

    return run


def found(report, level=None):
    """Return the problems as place and text, without the notes."""
    return [
        (problem.where, problem.what)
        for problem in report.sorted()
        if problem.level == level or (level is None and problem.level != "note")
    ]


def only(report, where, part, level):
    """Assert that there is one problem besides notes."""
    ((place, what),) = found(report)
    assert place == where and part in what
    assert found(report, level) == [(place, what)]
    assert all(problem.remedy.endswith(".") for problem in report.problems)


def test_a_good_file_before_good_engines_has_no_problem(examine, engine):
    report = examine({"backends": {"a": {"url": engine(), "models": ["m"]}, "b": {"url": engine(), "models": ["m"]}}})
    assert found(report) == [] and not report.fails("warning") and report.reached
    assert report.checked == ["file", "engines: a, b"]
    assert [problem.where for problem in report.problems] == ["admin", "policies.routing"]  # notes


# --- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "pages", "where", "part", "level"),
    [
        ({}, {"health": (503, "")}, "backends.a", "health check has status 503", "error"),
        ({"models": ["x"]}, {}, "backends.a.models", "does not serve x. It serves m.", "error"),
        ({}, {"v1__models": (404, "")}, "backends.a.url", "no list of models (status 404)", "warning"),
        ({}, {"v1__models": "<html>"}, "backends.a.url", "no list of models", "warning"),
        ({}, {"metrics": (404, "")}, "backends.a.metrics", "/metrics has status 404", "warning"),
        ({}, {"metrics": "up 1\n"}, "backends.a.metrics", "no numbers of queued or running", "warning"),
        ({}, {"metrics": LOAD + CACHE % (16, "False")}, "backends.a", "prefix cache is off", "warning"),
        ({}, {"metrics": LOAD + CACHE % (128, "True")}, "tokens.block_tokens", "have 128 tokens", "warning"),
        ({}, {"ahead_s": 90.0}, "backends.a", "s ahead of this machine's", "warning"),
        ({}, {"ahead_s": -90.0}, "backends.a", "s behind this machine's", "warning"),
        ({}, {"key": "secret"}, "backends.a.key_env", "the engine wants a key", "warning"),
        ({"metrics": None}, {"metrics": (404, "")}, None, "", ""),
    ],
)
def test_what_is_wrong_with_an_engine_is_told(examine, engine, backend, pages, where, part, level):
    if "key" in pages:  # the key is the only problem: the other pages are open
        backend = {**backend, "metrics": None}
    report = examine({"backends": {"a": {"url": engine(**pages), **backend}}})
    if where is None:
        assert found(report) == []
    else:
        only(report, where, part, level)


def test_an_engine_that_is_off_is_one_problem(examine):
    report = examine({"backends": {"a": f"http://127.0.0.1:{free_port()}"}})
    only(report, "backends.a", "does not answer (connection refused)", "error")


def test_the_right_key_opens_the_engine_and_a_wrong_one_is_told(examine, engine, monkeypatch):
    monkeypatch.setenv("ENGINE_KEY", "secret")
    url = engine(key="secret")
    assert found(examine({"backends": {"a": {"url": url, "key_env": "ENGINE_KEY"}}})) == []
    monkeypatch.setenv("ENGINE_KEY", "old")
    report = examine({"backends": {"a": {"url": url, "key_env": "ENGINE_KEY", "metrics": None}}})
    only(report, "backends.a.key_env", "the engine wants a key", "error")


def test_sglang_says_in_its_settings_that_its_cache_is_off(examine, engine):
    page = "sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:token_usage 0.1\n"
    url = engine(metrics=page, get_server_info=json.dumps({"disable_radix_cache": True}))
    only(examine({"backends": {"a": url}}), "backends.a", "prefix cache is off", "warning")
    on = engine(metrics=page, server_info=json.dumps({"disable_radix_cache": False}))
    assert found(examine({"backends": {"a": on}})) == []


def test_a_cache_that_no_policy_uses_may_be_off(examine, engine):
    url = engine(metrics=LOAD + CACHE % (128, "False"))
    report = examine({"backends": {"a": url}, "policies": {"routing": "least-loaded"}})
    assert found(report) == [] and ("backends.a", "The engine's prefix cache is off.") in found(report, "note")


def test_kv_events_that_nothing_publishes_are_told(examine, engine, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        good, bad = f"tcp://127.0.0.1:{listening.getsockname()[1]}", f"tcp://127.0.0.1:{free_port()}"
        backend = {"url": engine(), "models": ["m"], "events": good, "events_replay": bad}
        report = examine({"backends": {"a": backend}, "tokens": {"path": str(tmp_path)}})
    only(report, "backends.a.events_replay", f"Nothing listens at {bad} (connection refused)", "error")


def test_kv_events_without_a_tokenizer_are_told(examine, engine):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        events = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        report = examine({"backends": {"a": {"url": engine(), "models": ["m"], "events": events}}})
    only(report, "tokens.path", "the gateway has no tokenizer", "error")


@pytest.mark.parametrize(
    ("named", "where"),
    [
        ({"aliases": {"fast": "m", "slow": "large"}}, "aliases.slow"),
        ({"fallbacks": {"m": ["large"]}}, "fallbacks.m[0]"),
    ],
)
def test_a_model_that_no_engine_serves_is_told(examine, engine, named, where):
    report = examine({"backends": {"a": engine()}, **named})
    only(report, where, "No engine serves large. The engines serve m.", "error")
    unknown = examine({"backends": {"a": engine(), "b": f"http://127.0.0.1:{free_port()}"}, **named})
    assert (where, "No engine that answers serves large; the models of b are unknown.") in found(unknown, "warning")


@pytest.mark.parametrize("more", [{"signals": False}, {"backends": {"a": {"metrics": None}}}])
def test_a_policy_that_reads_what_no_engine_reports_is_told(examine, engine, more):
    backend = {"url": engine(), **more.get("backends", {}).get("a", {})}
    report = examine({**more, "backends": {"a": backend}, "policies": {"routing": "weighted"}})
    only(report, "policies.routing", "weighted reads queued, running, kv_used, but no engine reports", "warning")


# --- the file --------------------------------------------------------------------------------------------------------


def test_an_error_of_the_file_is_told_and_ends_the_examination(examine):
    report = examine("listen: 127.0.0.1:8000\nbackend: {a: http://127.0.0.1:9}\n")
    ((_, what),) = found(report)
    assert "backend" in what and report.fails("error") and report.checked == ["file"]


def test_all_independent_errors_of_the_file_are_told_at_once(examine):
    report = examine(
        {
            "listen": "127.0.0.1:99999",
            "probes": 8081,
            "limits": {"connections": 0, "heads": 1},
            "backends": {"a": "htp://x", "b": {"url": "http://127.0.0.1:9", "model": ["m"]}, "c": "http://127.0.0.1:9"},
            "alias": {"best": "m"},
        }
    )
    places = [what.partition(": ")[0] for _, what in found(report)]
    assert (
        places
        == sorted(places)
        == [
            *("alias", "backends.a.url", "backends.b.model", "limits.connections", "limits.heads", "listen"),
            "probes.listen",
        ]
    )


def test_files_that_every_user_can_change_or_private_keys_that_they_can_read_are_told(examine, engine, tmp_path):
    (tmp_path / "keys.yaml").write_text(f"one: {{sha256: {'a' * 64}}}\n")
    (tmp_path / "jwks.json").write_text("-----BEGIN PRIVATE KEY-----")
    document = {
        "backends": {"a": engine()},
        "keys": "keys.yaml",
        "jwt": {"issuer": "https://127.0.0.1:9", "audience": "a", "jwks": "jwks.json"},
    }
    told = []
    for keys, private in ((0o644, 0o640), (0o646, 0o644)):
        (tmp_path / "keys.yaml").chmod(keys)
        (tmp_path / "jwks.json").chmod(private)
        told.append([what for where, what in found(examine(document), "warning") if where.startswith(str(tmp_path))])
    read, write = "Every user of this machine can read this private key.", "Every user of this machine can change this"
    assert told == [[], [f"{write} file.", read]]


def test_an_engine_without_tls_is_told(examine, engine):
    report = examine({"backends": {"a": engine().replace("http:", "https:")}})
    only(report, "backends.a", "it does not speak TLS, so its URL begins with http", "error")


def test_a_fallback_may_be_an_alias(examine, engine):
    aliases, fallbacks = {"best": "m"}, {"n": ["best"]}
    report = examine({"backends": {"a": engine()}, "aliases": aliases, "fallbacks": fallbacks})
    assert found(report) == []


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "\x00"])
def test_a_file_that_is_no_mapping_is_an_error_of_the_file(examine, text):
    assert len(found(examine(text), "error")) == 1


def test_a_gateway_for_everyone_without_keys_is_told(examine, engine, tmp_path):
    report = examine({"listen": "0.0.0.0:8000", "backends": {"a": engine()}})
    assert [where for where, _ in found(report, "warning")] == ["keys", "tls"]
    assert "probes" in [where for where, _ in found(report, "note")]
    (tmp_path / "keys.yaml").write_text(f"one: {{sha256: {'a' * 64}}}\n")
    report = examine({"listen": "[::]:8000", "backends": {"a": engine()}, "keys": "keys.yaml"})
    assert [where for where, _ in found(report)] == ["tls"]


def test_an_admin_api_for_everyone_is_told(examine, engine, monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    admin = {"listen": f"0.0.0.0:{free_port()}", "key_env": "TEST_ADMIN_KEY"}
    report = examine({"backends": {"a": engine()}, "admin": admin})
    only(report, "admin.listen", "without encryption", "warning")
    assert any("No gateway answers" in what for _, what in found(report, "note"))


def test_every_variable_that_is_not_set_is_told_and_the_rest_is_checked(examine):
    admin = {"key_env": "NO_SUCH_ADMIN_KEY"}
    backend = {"url": f"http://127.0.0.1:{free_port()}", "key_env": "NO_SUCH_ENGINE_KEY"}
    report = examine({"backends": {"a": backend}, "admin": admin})
    assert [where for where, _ in found(report)] == ["admin.key_env", "backends.a.key_env", "backends.a"]


def test_too_few_open_files_are_told(examine, engine, monkeypatch):
    monkeypatch.setattr(file_checks, "most_files", lambda: 1024)
    report = examine({"backends": {"a": engine()}, "limits": {"connections": 1000}})
    only(report, "limits.connections", "1,000 connections need more files", "warning")
    assert found(examine({"backends": {"a": engine()}, "limits": {"connections": 300}})) == []


@pytest.mark.parametrize(
    ("days", "level", "part"),
    [(-1, "error", "expired on"), (5, "warning", "in 4 days"), (60, None, "")],
)
def test_certificates_that_expire_are_told(tmp_path, days, level, part):
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")
    ends = datetime.now(UTC) + timedelta(days=days)
    starts = ends - timedelta(days=90)
    certificate = trustme.CA().issue_cert("gateway", not_before=starts, not_after=ends)
    file = tmp_path / "gateway.pem"
    certificate.cert_chain_pems[0].write_to_path(file)
    report = Report("gateway.yaml")
    file_checks.check_certificate("tls.certificate", file, report)
    if level is None:
        assert report.problems == []
    else:
        only(report, "tls.certificate", part, level)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_read_is_told(tmp_path, content):
    file = tmp_path / "gateway.pem"
    if content is not None:
        file.write_text(content)
    report = Report("gateway.yaml")
    file_checks.check_certificate("tls.certificate", file, report)
    only(report, "tls.certificate", "cannot be read", "error")


def test_etcd_that_does_not_answer_is_told(examine):
    report = examine({"etcd": f"127.0.0.1:{free_port()}"})
    only(report, "etcd", "no endpoint answers", "error")
    assert report.checked == ["file", "etcd"]


@pytest.mark.parametrize(
    ("pages", "jwks", "where", "part"),
    [
        ({".well-known__openid-configuration": '{"jwks_uri": "URL/keys"}', "keys": '{"keys": [{}]}'}, None, None, ""),
        ({".well-known__openid-configuration": "{}"}, None, "jwt.issuer", "names no keys (status 200)"),
        ({}, None, "jwt.issuer", "names no keys (status 404)"),
        ({"keys": '{"keys": [{}]}'}, "URL/keys", None, ""),
        ({"keys": '{"keys": []}'}, "URL/keys", "jwt.jwks", "has no keys (status 200)"),
        ({}, "/no/such/file", "jwt.jwks", "cannot be read"),
    ],
)
def test_a_provider_without_keys_is_told(engine, pages, jwks, where, part):
    provider = engine(**pages)
    jwt = TokenClients(issuer=provider, audience=("us",), jwks=jwks and jwks.replace("URL", provider))
    report = Report("gateway.yaml")
    asyncio.run(check_provider(jwt, report))
    if where is None:
        assert report.problems == []
    else:
        only(report, where, part, "error")


# --- a running gateway -----------------------------------------------------------------------------------------------


@pytest.fixture
def running(live, monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)

    def start(engines=2, **more):
        gateway = live(engines, **{"admin": ADMIN, **more})
        return gateway, f"http://127.0.0.1:{component(gateway, 'Admin').port}"

    return start


def test_a_running_gateway_without_problems_has_none(running):
    gateway, url = running(2, members={name: {"metrics": "/metrics"} for name in ("e0", "e1")})
    for engine in gateway.engines:
        engine.page = PAGE
    gateway.until(lambda: all(each["reports"] for each in gateway.app.board.status()["backends"]))
    report = doctor.examine(url, KEY)
    assert found(report) == [] and report.checked[0] == "gateway"


def test_ejected_and_silent_engines_of_a_running_gateway_are_told(running):
    gateway, url = running(2, health={"failures": 1, "path": None, "eject": "1h", "eject_most": "1h"})
    gateway.engines[0].mode = "reset"
    gateway.until(lambda: chat(gateway).status == 200 and gateway.app.fleet.names["e0"].ejected)
    told = dict(found(doctor.examine(url, KEY)))
    assert "ejected after" in told["engine e0"] and "no load" in told["engine e1"]


@pytest.mark.parametrize(
    ("change", "level", "where", "part"),
    [
        ({"draining": True}, "warning", "gateway", "shutting down"),
        ({"etcd": False}, "error", "etcd", "no connection to etcd"),
        ({"backends": []}, "error", "gateway", "has no engines"),
        (
            {"policy": {"failures": {"count": {"live": 2, "canary": 0}, "last": "boom", "fell_back": None}}},
            "error",
            "policies",
            "Policies failed 2 times. The last error: boom",
        ),
        ({"shadows": [{"name": "s", "running": False, "why": "it failed"}]}, "warning", "shadow.s", "it failed"),
        ({"canary": {"stopped": "worse TTFT"}}, "warning", "canary", "worse TTFT"),
        ({"certificates_expire": {"clients": time.time() + 5.5 * 86400}}, "warning", "tls", "of clients expires in"),
        ({"certificates_expire": {"admin": time.time() - 60}}, "error", "tls", "of admin has expired"),
        ({"engine": {"unready": {"checks": "status 503"}}}, "error", "engine a", "checks: status 503"),
        ({"engine": {"reports": False, "ages_s": {"report": 42.0}}}, "warning", "engine a", "42 s old"),
        ({"engine": {"serving": False, "state": "leaving"}}, "error", "gateway", "No engine takes requests"),
        ({"engine": {"kv_events": {"batches": 9, "events": 9, "gaps": 2}}}, "warning", "engine a", "gaps: 2"),
        ({"engine": {"kv_events": {"events": 0, "gaps": 0}}}, "warning", "engine a", "published no KV events"),
        ({"engine": {"cordoned": True, "serving": True}}, "note", "engine a", "cordoned"),
    ],
)
def test_what_a_gateways_status_says_is_told(change, level, where, part):
    engine = {
        "name": "a",
        "url": "http://x",
        "ejected": False,
        "failures": 0,
        "unready": {},
        "cordoned": False,
        "serving": True,
        "state": "active",
        "reports": True,
        "ages_s": {"queued": 0.1},
        "kv_events": {},
        **change.pop("engine", {}),
    }
    status = {
        "uptime_s": 100.0,
        "certificates_expire": {},
        "draining": False,
        "backends": [engine],
        "etcd": None,
        "shadows": [],
        "canary": None,
        "policy": {"failures": {"count": {"live": 0, "canary": 0}, "last": None, "fell_back": None}},
        **change,
    }
    report = Report("http://gateway")
    check_status(status, report)
    assert any(place == where and part in what for place, what in found(report, level))


def test_what_a_gateways_metrics_say_is_told():
    report = Report("http://gateway")
    check_metrics("headway_unread_prompts_total 0.0\nprocess_open_fds 10.0\nprocess_max_fds 1024.0\n", report)
    assert report.problems == []
    check_metrics("headway_unread_prompts_total 3.0\nprocess_open_fds 1e+03\nprocess_max_fds 1024.0\n", report)
    assert [problem.level for problem in report.sorted()] == ["error", "warning"]


def test_a_gateway_that_cannot_be_asked_is_neither_good_nor_bad(running, headway):
    gateway, url = running(1)
    for target, key, part in (
        (url, None, "wants its key"),
        (url, "wrong", "The admin key is wrong"),
        (gateway.url.removesuffix("/v1"), KEY, "no admin API"),
        (f"http://127.0.0.1:{free_port()}", KEY, "connection refused"),
    ):
        report = doctor.examine(target, key)
        assert not report.reached and part in report.problems[0].what
    assert headway("doctor", url, "--key-env", "NO_SUCH_KEY").returncode == 4


def test_a_file_whose_gateway_runs_is_examined_with_it(examine, running, tmp_path):
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")
    issued = trustme.CA().issue_cert("gateway.example.com")
    pair = {"certificate": str(tmp_path / "own.pem"), "key": str(tmp_path / "own.key")}
    issued.cert_chain_pems[0].write_to_path(pair["certificate"])
    issued.private_key_pem.write_to_path(pair["key"])
    admin = {**ADMIN, "listen": f"127.0.0.1:{free_port()}", "tls": pair}
    more = {"probes": f"127.0.0.1:{free_port()}", "health": {"interval": "20ms"}}
    gateway, _ = running(1, **more, admin=admin)
    gateway.engines[0].page = PAGE
    url = f"http://127.0.0.1:{gateway.engines[0].port}"
    document = {"backends": {"e0": {"url": url}}, "admin": admin, **more}
    gateway.until(lambda: gateway.app.board.status()["backends"][0]["reports"])
    report = examine(document)
    assert f"gateway at https://{admin['listen']}" in report.checked and not report.fails("error")
    gateway.app.reception.draining = True
    assert "shutting down" in dict(found(examine(document), "error"))["probes"]
    gateway.app.reception.draining = False


@pytest.mark.parametrize("status", ["<html>", "[]", "{}", '{"backends": 3}', '{"draining": false, "backends": [{}]}'])
def test_another_server_is_no_gateway(engine, examine, monkeypatch, status):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    url = engine(status=status)
    report = doctor.examine(url, KEY)
    assert not report.reached and "is not that of a gateway" in report.problems[0].what
    admin = {"listen": url.removeprefix("http://"), "key_env": "TEST_ADMIN_KEY"}
    report = examine({"backends": {"a": engine()}, "admin": admin})
    assert [where for where, _ in found(report)] == ["admin"]


@pytest.mark.parametrize("url", ["http://", "https://[", "http://a b", "http://127.0.0.1:99999", "http://u:p@x"])
def test_a_wrong_url_is_a_wrong_input(headway, url):
    done = headway("doctor", url)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("events", ["tcp://127.0.0.1:99999", "tcp://[::1]:1", "ipc:///no/such/file", "udp://x:1"])
def test_an_endpoint_that_cannot_be_is_told(examine, engine, tmp_path, events):
    (tmp_path / "tokenizer.json").write_text("{}")
    backend = {"url": engine(), "models": ["m"], "events": events}
    report = examine({"backends": {"a": backend}, "tokens": {"path": str(tmp_path)}})
    assert found(report)[0][0] == "backends.a.events"


@pytest.mark.parametrize("date", ["yesterday", "Thu, 99 Nov 2026 10:00:00 GMT", "Thu, 19 Nov 9999 10:00:00 -0000", ""])
def test_a_date_that_is_none_is_ignored(date):
    assert _skew(date) is None or abs(_skew(date)) > 1e9


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_problems_and_its_status_says_how_bad_they_are(headway, engine, tmp_path):
    file = tmp_path / "gateway.yaml"
    limits = {"connections": 100}
    file.write_text(yaml.safe_dump({"backends": {"a": engine(metrics=(404, ""))}, "limits": limits}))
    done = headway("doctor", str(file))
    assert done.returncode == 0 and "warning  backends.a.metrics: " in done.stdout
    assert "0 errors, 1 warning, 2 notes; checked: file, engines: a" in done.stdout
    assert headway("doctor", str(file), "--fail-if", "warning").returncode == 1
    document = json.loads(headway("doctor", str(file), "--json").stdout)
    assert [problem["level"] for problem in document["problems"]] == ["warning", "note", "note"]
    assert set(document["problems"][0]) == {"level", "where", "what", "remedy"}
    file.write_text("backends: {}")
    assert headway("doctor", str(file)).returncode == 1
    assert headway("doctor", str(Path(tmp_path) / "none.yaml")).returncode == 2


def test_the_example_of_the_docs_prints_what_the_docs_show(headway, engine, tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    _, file, shown, *_ = [block.split("```")[0] for block in page.split("```text\n")[1:]]
    ports = {"http://127.0.0.1:9100": engine(v1__models=models("llama-3.1-8b")), "9101": str(free_port())}
    for told, true in ports.items():
        file, shown = file.replace(told, true), shown.replace(told, true)
    (tmp_path / "gateway.yaml").write_text(file)
    command, _, expected = shown.partition("\n")
    done = headway(*command.split()[2:], cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.split() == expected.split()
