"""Measure what TLS, API keys and JSON web tokens add to the gateway's CPU time, in turn on the same machine.

python securing.py [--rounds 5] [--seconds 4] [--base FOLDER] [--json]

`--base` names the folder `src` of another version, whose plain gateway is compared too. The gateways share one core;
engines and clients share another. CPU is the user and system time of a gateway's process from /proc, divided by the
number of requests; clients keep their connections. Handshakes are measured one connection a request."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from recording import TICK_US
from routers import LOAD_CPU, ROUTER_CPU, Command, Router, Started, headway, times, two_engines

from headway.gateway.api_keys import new_key

HERE = Path(__file__).resolve().parent
POLICIES = "{routing: kv-aware-spill}"


def older(base: str) -> Command:
    def command(port: int, engines: list[int], folder: Path) -> list[str]:
        return ["env", f"PYTHONPATH={base}", *headway(POLICIES)(port, engines, folder)]

    return command


def contenders(folder: Path, base: str | None) -> list[tuple[Router, list[str]]]:
    """Return each gateway with the options of its clients."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "server.pem")
    issued.private_key_pem.write_to_path(folder / "server.key")
    tls = f"tls: {{certificate: {folder}/server.pem, key: {folder}/server.key}}\n"
    key, digest = new_key()
    (folder / "keys.yaml").write_text(f"ann: {{sha256: {digest}}}\nbob: {{sha256: {new_key()[1]}}}\n")
    limited, limited_digest = new_key()
    limits = "rate: 1000000/s, burst: 1000000, token_rate: 1000000000/s, concurrency: 1000"
    (folder / "limited.yaml").write_text(f"ann: {{sha256: {limited_digest}, {limits}}}\n")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "one"}]}))
    claims = {"iss": "https://login.test/", "aud": "headway", "sub": "ann", "exp": int(time.time()) + 36_000}
    token = jwt.encode(claims, private, "RS256", {"kid": "one"})
    tokens = f"jwt: {{issuer: 'https://login.test/', audience: headway, jwks: {folder}/jwks.json}}\n"
    made = [
        (Router("plain", "ours", headway(POLICIES)), []),
        (Router("keys", "ours", headway(POLICIES, f"keys: {folder}/keys.yaml\n")), ["--key", key]),
        (Router("keys with limits", "ours", headway(POLICIES, f"keys: {folder}/limited.yaml\n")), ["--key", limited]),
        (Router("jwt", "ours", headway(POLICIES, tokens)), ["--key", token]),
        (Router("tls", "ours", headway(POLICIES, tls)), ["--tls"]),
        (Router("handshakes", "ours", headway(POLICIES)), ["--reconnect"]),
        (Router("tls handshakes", "ours", headway(POLICIES, tls)), ["--tls", "--reconnect"]),
    ]
    return made if base is None else [(Router("plain, base", "ours", older(base)), []), *made]


def wait(one: Started) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", one.port), timeout=5).close()
            return
        except OSError:
            if one.process.poll() is not None:
                raise SystemExit(f"{one.router.name}: {Path(one.log.name).read_text()[-1000:]}") from None
            time.sleep(0.1)


def measure(one: Started, options: list[str], seconds: float) -> float:
    """Return the CPU time of a request in microseconds."""
    command = [sys.executable, str(HERE / "load.py"), str(one.port), "--clients", "16", "--seconds", str(seconds)]
    before = times(one.process.pid)
    pinned: Any = lambda: os.sched_setaffinity(0, {LOAD_CPU})  # noqa: E731
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, preexec_fn=pinned)
    found = json.loads(done.stdout)
    if found["errors"]:
        raise SystemExit(f"{one.router.name}: {found['errors']} requests failed")
    return float((times(one.process.pid) - before) * TICK_US / found["requests"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--base")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    started: list[tuple[Started, list[str]]] = []
    found: dict[str, list[float]] = {}
    with two_engines() as engines, tempfile.TemporaryDirectory() as place:
        try:
            for router, options in contenders(Path(place), given.base):
                started.append((Started(router, engines, Path(place), ROUTER_CPU), options))
            for one, _ in started:
                wait(one)
            for number in range(given.rounds + 1):
                for one, options in started if number % 2 else reversed(started):
                    each = measure(one, options, given.seconds if number else 1.0)
                    if number:  # the first round is a warm-up
                        found.setdefault(one.router.name, []).append(each)
                print(f"round {number} of {given.rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        finally:
            for one, _ in started:
                one.stop()
    if given.json:
        print(json.dumps({"load": os.getloadavg()[0], "cpu_us": found}))
        return
    for name, values in found.items():
        ratios = [value / plain for value, plain in zip(values, found["plain"], strict=True)]
        print(f"{name}: {statistics.median(values):.0f} µs a request, ", end="")
        print(f"{statistics.median(ratios):.3f} of plain ({min(ratios):.3f} to {max(ratios):.3f} by round)")


if __name__ == "__main__":
    main()
