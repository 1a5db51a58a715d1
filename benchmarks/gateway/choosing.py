"""Measure the CPU time that the gateway spends on a request before sending it: parsing, hashing and choosing a target.

python choosing.py [--engines 64] [--json]

The measurement uses no sockets. The gateway does this work in one piece on its event loop, so other requests wait for
it. Times are CPU times, so that other work on the machine has less effect."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from typing import Any

from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.gateway_process import collect_seldom
from headway.gateway.request_body import read_body
from headway.http.request_reader import Incoming
from load import share

POLICIES = ("kv-aware", "lmetric")
SIZES = {800: 3000, 16_000: 3000, 128_000: 600, 400_000: 300}  # size of a prompt in bytes: number of prompts
SHARED, UNDER_WAY = 64, 256  # number of prefixes that prompts share, and of requests in flight


def prompts(size: int, count: int) -> list[bytes]:
    """Return request bodies. The first half of each prompt is one of a few shared prefixes, as in a conversation."""
    draw = random.Random(size)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    begins = ["".join(draw.choices(letters, k=size // 2)) for _ in range(SHARED)]
    found = []
    for number in range(count):
        text = draw.choice(begins) + "".join(draw.choices(letters, k=64)) * (size // 128)
        message = {"role": "user", "content": f"{text} {number}"}
        found.append(json.dumps({"model": "dummy", "messages": [message]}).encode())
    return found


def measure(policy: str, engines: int, size: int, count: int) -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    backends = {f"e{number}": f"http://127.0.0.1:{number + 1}" for number in range(engines)}
    app = App(loop, Config.load({"backends": backends, "max_backends": engines, "policies": {"routing": policy}}))
    bodies = prompts(size, count)
    all_of_it, chosen, under_way = [], [], []
    for data in bodies:
        incoming = Incoming(b"POST", b"/v1/chat/completions", [], data, True, "1.1", {})
        began = time.thread_time()
        request = app.intake.request("chat", incoming, read_body(data), None)
        read = time.thread_time()
        app.plane.arrive(app.clock.now_ps(), request)
        sent = time.thread_time()
        all_of_it.append(sent - began)
        chosen.append(sent - read)
        under_way.append(request.id)
        if len(under_way) > UNDER_WAY:
            app.plane.finished(app.clock.now_ps(), under_way.pop(0), "completed", 10)
    loop.close()
    warm = count // 10
    found = {"policy": policy, "engines": engines, "bytes": size, "requests": count}
    for name, values in (("all", all_of_it[warm:]), ("choosing", chosen[warm:])):
        found |= {f"{name}_{word}_ms": share(values, part) for word, part in (("p50", 0.5), ("p99", 0.99))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    collect_seldom()  # a gateway also collects garbage seldom
    rows = [measure(policy, given.engines, size, count) for policy in POLICIES for size, count in SIZES.items()]
    if given.json:
        print(json.dumps({"load": os.getloadavg(), "rows": rows}))
        return
    names = ("all_p50_ms", "all_p99_ms", "choosing_p50_ms", "choosing_p99_ms")
    print("| policy | engines | prompt bytes | " + " | ".join(names) + " |\n|---|---:|---:|" + "---:|" * len(names))
    for row in rows:
        cells = " | ".join(f"{row[name]:.3f}" for name in names)
        print(f"| {row['policy']} | {row['engines']} | {row['bytes']:,} | {cells} |")


if __name__ == "__main__":
    main()
