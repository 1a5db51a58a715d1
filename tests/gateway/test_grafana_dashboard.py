"""The Grafana dashboard before a real Prometheus, which scrapes a gateway with emulated engines."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")
pytest.importorskip("zmq", reason="the extra `gateway` is not installed")
pytest.importorskip("tokenizers", reason="the extra `gateway` is not installed")
pytest.importorskip("trustme", reason="trustme is not installed")

import trustme
from asking import ADMIN, KEY, component, fetch
from emulated import Emulated
from etcd_server import EtcdServer
from tokenizers import Tokenizer, models, pre_tokenizers

from free_ports import free_port
from waiting import until

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llama-3.1-8b"
SCRAPE = "200ms"
RATE_INTERVAL = "20s"


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[int], str]]:
    """Starts a Prometheus that scrapes a port of this machine; returns its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed; `make prometheus` installs the system's package")
    processes: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> str:
        scrape = {
            "job_name": "headway",
            "scrape_interval": SCRAPE,
            "scrape_timeout": SCRAPE,
            "authorization": {"credentials": KEY},
            "scheme": "https",
            "tls_config": {"ca_file": str(tmp_path / "ca.pem")},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        rules = str(ROOT / "prometheus" / "headway-gateway.rules.yaml")
        config = {"global": {"evaluation_interval": "1s"}, "rule_files": [rules], "scrape_configs": [scrape]}
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        own = free_port()
        command = [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/series"]
        command += [f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"]
        with (tmp_path / "log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return f"http://127.0.0.1:{own}"

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def query(url: str, expr: str) -> list[Any] | None:
    """Return the samples of an expression; None while Prometheus starts."""
    try:
        answer = fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    except OSError:
        return None
    if answer.status == 503:  # it starts
        return None
    assert answer.status == 200, f"{expr}: {answer.body.decode()}"
    return list(answer.json()["data"]["result"])


def is_drawn(samples: list[Any] | None) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in samples or ())


def expressions() -> dict[str, str]:
    """Return the recorded series, and the expressions of all panels as Grafana sends them, with their panels."""
    board = json.loads((ROOT / "grafana" / "headway-gateway.json").read_text(encoding="utf-8"))
    values = {"$__rate_interval": RATE_INTERVAL, "$model": ".*", "$backend": ".*"}
    groups = yaml.safe_load((ROOT / "prometheus" / "headway-gateway.rules.yaml").read_text(encoding="utf-8"))["groups"]
    found = {rule["record"]: "a recorded series" for group in groups for rule in group["rules"] if "record" in rule}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in values.items():
                expr = expr.replace(name, value)
            assert "$" not in expr
            found[expr] = f"{panel['title']} {target['refId']}"
    return found


@pytest.mark.full
def test_each_expression_of_the_dashboard_returns_a_series(
    live: Any, prometheus: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    roles = ("prefill", "decode")
    engines = Emulated({"instances": 2}, speed=20.0, events="tcp://127.0.0.1", events_port=0)
    authority, pair = trustme.CA(), {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key")}
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(pair["certificate"])
    issued.private_key_pem.write_to_path(pair["key"])
    etcd = EtcdServer().start()
    try:
        backends = {
            role: {
                "url": engines.url(number),
                "models": [MODEL],
                "role": role,
                "events": engines.host.replicas[number].publisher.endpoint,
            }
            for number, role in enumerate(roles)
        }
        gateway = live(
            0,
            admin={**ADMIN, "tls": pair},
            backends=backends,
            etcd=etcd.url,
            tokens={"path": str(tmp_path)},
            policies={"routing": "pair"},
            disaggregation={"protocol": "vllm"},
            scaling={"policy": "concurrency", "max_replicas": 4, "interval": "200ms"},
            shadow={"other": {"policies": {"routing": "least-loaded-pair"}}},
            canary={"policies": {"routing": "prefix-pair"}, "share": 0.5, "by": "request"},
        )
        url = prometheus(component(gateway, "Admin").port)
        engines.fault("503", 1, requests=2)  # retries
        wanted = expressions()
        numbers = iter(range(10**6))

        def traffic() -> bool:
            number = next(numbers)
            body = {"model": MODEL, "prompt": [number % 50, *range(64)], "max_tokens": 4, "stream": True}
            fetch(f"{gateway.url}/completions", json.dumps(body).encode())
            body = {"model": MODEL, "input": "hello"}  # an embedding needs one engine alone
            fetch(f"{gateway.url}/embeddings", json.dumps(body).encode())
            fetch(f"{gateway.url}/completions", b"not JSON")  # a refusal
            for expr in list(wanted):
                if is_drawn(query(url, expr)):
                    del wanted[expr]
            return not wanted

        try:
            until(traffic, every=0.1)
        except AssertionError:
            raise AssertionError(f"expressions without a series: {json.dumps(wanted, indent=1)}") from None
        groups = fetch(f"{url}/api/v1/rules").json()["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    finally:
        engines.stop()
        etcd.stop()
