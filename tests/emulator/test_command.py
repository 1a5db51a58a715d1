"""`headway emulate` as its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from conftest import COMMAND, SOURCE
from headway.experiment.engines import engine_room

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE}


def test_it_says_where_its_engines_are_and_ends_when_told() -> None:
    command = [*COMMAND, "emulate", "--replicas", "2", "--listen", "127.0.0.1:0"]
    command += ["--events", "tcp://127.0.0.1:0", "--speed", "10", "--model", "mine"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=pipe, stdout=pipe, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        lines = [process.stderr.readline() for _ in range(3)]
        urls = [result[1] for line in lines if (result := re.search(r"at (http://\S+)/v1, KV events at tcp://", line))]
        assert len(urls) == 2 and "emulating 2 engines" in lines[2]
        for url in urls:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=300) as answer:
                assert b'"mine"' in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout.read() == "" and process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--speed", "0"], "--speed: must be above 0"),
        (["--listen", "here"], "--listen: expected an address"),
        (["--events", "5557"], "--events: expected an address"),
        (["--set", "cluster.gpu=abacus"], "cluster.gpu"),
        (["--output-tokens", "0"], "--output-tokens"),
        (
            ["--listen", "127.0.0.1:65534", "--replicas", "3"],
            "--listen: ports 65534 to 65535 are enough for 2 replicas",
        ),
        (
            ["--listen", "127.0.0.1:0", "--events", "tcp://127.0.0.1:65533", "--replicas", "2"],
            "--events: ports 65533 to 65535 are enough for 1 replicas",
        ),
    ],
)
def test_what_cannot_be_emulated_is_told_in_a_sentence(headway, options: list[str], why: str) -> None:
    completed = headway("emulate", *options)
    assert completed.returncode == 2 and why in completed.stderr and "Traceback" not in completed.stderr


@pytest.mark.full
def test_an_address_of_many_colons_is_told_as_a_url() -> None:
    command = [*COMMAND, "emulate", "--replicas", "1", "--listen", "[::1]:0"]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        result = re.search(r"at (http://\[::1\]:\d+)/v1", process.stderr.readline())
        assert result is not None
        with urllib.request.urlopen(f"{result[1]}/health", timeout=300) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.full
def test_too_few_open_files_are_told_in_a_sentence() -> None:
    few = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"]
    command = [*few, *COMMAND, "emulate", "--replicas", "100", "--listen", "127.0.0.1:0"]
    completed = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert (
        completed.returncode == 2 and "Too many open files" in completed.stderr and "Traceback" not in completed.stderr
    )


def test_a_file_with_a_cluster_alone_is_enough() -> None:
    setup, _ = engine_room({"cluster": {"instances": 3, "latency": {"model": "fixed"}}})
    assert len(setup.engines) == 3
