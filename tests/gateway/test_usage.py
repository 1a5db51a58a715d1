"""Limits of keys: exact in a process and in several worker processes, and bounded in error among peers."""

from __future__ import annotations

import json
import multiprocessing
import random
import time

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

import yaml
from asking import chat, fetch

from free_ports import free_port
from headway.gateway.api_keys import Keyring, new_key
from headway.gateway.usage import Account, KeyLimits, Ledger, SharedAccount, UsageFile

DIGEST = bytes(range(32))


def limits(**more) -> KeyLimits:
    return KeyLimits(**more)


def test_tokens_are_reserved_and_replaced_by_those_that_were_used() -> None:
    account = Account(limits(token_rate=10.0))  # 600 tokens per minute
    assert account.reserve(500, 100.0) is None
    refused = account.reserve(200, 100.0)
    assert (refused.status, refused.retry_after) == (429, 10) and "600 tokens per minute" in refused.why
    account.settle(500, 120)
    assert account.tokens == 480
    assert account.reserve(200, 100.0) is None
    account.settle(200, 900)  # the engine has counted more: the debt is paid before the next request
    assert account.tokens == -420
    assert account.reserve(1, 100.0).retry_after == 43
    assert account.reserve(1, 143.0) is None


def test_a_request_above_the_burst_passes_if_the_whole_burst_is_left() -> None:
    account = Account(limits(token_rate=1.0, token_burst=100))
    assert account.reserve(250, 10.0) is None
    assert account.tokens == -150
    assert account.reserve(250, 259.0) is not None
    assert account.reserve(250, 261.0) is None


def test_a_limit_of_requests_in_flight_begins_with_the_requests_after_it() -> None:
    account = Account(limits())
    for _ in range(3):
        account.take(1.0)
    account.change(limits(concurrency=1))
    assert account.take(1.0) is None and account.take(1.0) is not None
    for _ in range(4):
        account.release()
    assert account.inflight == 0
    assert account.take(1.0) is None


def admitted(path, worker: int, workers: int, seed: int, results) -> None:
    """Ask for requests at random as a worker process does, for a fixed number of turns."""
    account = Ledger(UsageFile(path, worker, workers)).account(DIGEST, limits(rate=50.0, burst=40, concurrency=30))
    draw, passed, most = random.Random(seed), 0, 0
    began = time.monotonic()
    held = 0
    for _ in range(4000):
        if held and draw.random() < 0.5:
            account.release()
            held -= 1
        elif account.take(time.monotonic()) is None:
            passed += 1
            held += 1
            most = max(most, account.inflight)
    results.put((passed, most, began, time.monotonic()))


@pytest.mark.full
def test_worker_processes_share_one_limit_exactly(tmp_path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    path = tmp_path / "usage"
    work = [context.Process(target=admitted, args=(path, worker, 3, worker, results)) for worker in range(3)]
    for each in work:
        each.start()
    seen = [results.get(timeout=120) for _ in work]
    for each in work:
        each.join(60)
    span = max(end for *_, end in seen) - min(begin for _, _, begin, _ in seen)
    passed = sum(count for count, *_ in seen)
    assert 40 <= passed <= 40 + 50 * span + 1
    assert max(most for _, most, *_ in seen) <= 30


def test_the_requests_in_flight_of_a_dead_worker_are_forgotten(tmp_path) -> None:
    files = [UsageFile(tmp_path / "usage", worker, 2) for worker in range(2)]
    one, two = (file.account(DIGEST, limits(concurrency=2, rate=1.0, burst=5)) for file in files)
    assert [one.take(5.0), one.take(5.0)] == [None, None]
    assert two.take(5.0).status == 429
    UsageFile(tmp_path / "usage", 0, 2)  # another process takes the place of the first
    assert two.take(5.0) is None and two.inflight == 1
    assert two.requests == 2.0  # the rate goes on


def test_accounts_keep_apart_and_a_full_table_is_no_error(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("headway.gateway.usage.SLOTS", 4)
    file = UsageFile(tmp_path / "usage", 0, 1)
    accounts = [file.account(bytes([number]) * 32, limits(concurrency=1)) for number in range(1, 7)]
    assert [isinstance(account, SharedAccount) for account in accounts] == [True] * 4 + [False] * 2
    assert "more than 4 keys" in caplog.text
    assert [account.take(1.0) for account in accounts] == [None] * 6
    assert all(account.take(1.0) is not None for account in accounts)
    again = UsageFile(tmp_path / "usage", 0, 1).account(bytes([2]) * 32, limits(concurrency=1))
    assert again.slot == accounts[1].slot


def write_keys(tmp_path, **more) -> tuple[str, str]:
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"ann": {"sha256": digest, **more}}))
    return str(file), key


def test_answers_count_and_refused_requests_do_not(live, tmp_path) -> None:
    file, key = write_keys(tmp_path, token_rate="60/min", token_burst=1000)
    gateway = live(1, keys=file)
    (owner,) = gateway.app.reception.keyring.keys.values()
    assert chat(gateway, "a" * 400, Authorization=f"Bearer {key}").status == 200
    gateway.until(gateway.idle)
    used = 1000 - owner.account.tokens
    assert 5 <= used < 200  # what the engine reports, or what the gateway counted
    gateway.engines[0].mode = "error"
    before = owner.account.tokens
    assert chat(gateway, Authorization=f"Bearer {key}").status == 500
    gateway.until(gateway.idle)
    assert before <= owner.account.tokens < before + 20
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 999}
    refused = fetch(f"{gateway.url}/chat/completions", json.dumps(body).encode(), Authorization=f"Bearer {key}")
    assert refused.status == 429 and "60 tokens per minute" in refused.said and int(refused.headers["retry-after"]) > 5


def test_peers_together_stay_within_the_stated_bound(live, tmp_path, monkeypatch) -> None:
    """At most `burst` requests at each of n gateways at once, and then `rate` for all of them."""
    monkeypatch.setenv("PEERS", "a key that all of them know")
    file, key = write_keys(tmp_path, rate="1/min", burst=5, concurrency=3)
    ports = [free_port(), free_port()]
    gateways = []
    for own, other in (ports, ports[::-1]):
        peers = {"listen": f"127.0.0.1:{own}", "to": [f"127.0.0.1:{other}"], "key_env": "PEERS", "interval": "10ms"}
        gateways.append(live(1, keys=file, peers=peers))
    one, two = gateways
    one.until(lambda: one.app.peers.connected and two.app.peers.connected)
    (account,) = one.app.ledger.accounts.values()
    other = two.app.ledger.accounts[account.digest]
    statuses = [chat(one, Authorization=f"Bearer {key}").status for _ in range(4)]
    two.until(lambda: other.requests < 1.5)
    statuses += [chat(two, Authorization=f"Bearer {key}").status for _ in range(3)]
    assert statuses == [200] * 5 + [429] * 2
    one.until(lambda: account.requests < 1.0)
    assert chat(one, Authorization=f"Bearer {key}").status == 429


def test_the_error_of_peers_is_at_most_a_burst_for_each(seed: int = 7) -> None:
    """Three gateways whose clients ask all the time: n x burst + rate x (T + n x interval), and never less than one
    gateway alone."""
    draw, count, burst, rate, interval = random.Random(seed), 3, 10, 4.0, 0.05
    ledgers = [Ledger(peers=True) for _ in range(count)]
    accounts = [ledger.account(DIGEST, limits(rate=rate, burst=burst, token_rate=rate * 60)) for ledger in ledgers]
    passed, tokens, most = 0, 0, 0
    for turn in range(4000):
        now = 100.0 + turn * interval / 4
        for account in accounts:
            if draw.random() < 0.5 and account.take(now) is None:
                passed += 1
            if draw.random() < 0.5 and account.reserve(30, now) is None:
                tokens += 30
        if turn % 4 == 3:
            for number, ledger in enumerate(ledgers):
                news = ledger.news()
                for other in ledgers:
                    if other is not ledger:
                        other.hear(str(number), news, now)
        spent = now - 100.0 + count * interval
        assert passed <= count * burst + rate * spent
        assert tokens <= count * rate * 3600 + rate * 60 * spent
        most = max(most, passed)
    assert passed >= burst + rate * (now - 100.0) - count
    assert most > 2 * burst


def test_peers_know_the_requests_in_flight_of_each_other() -> None:
    one, two = Ledger(peers=True), Ledger(peers=True)
    first, second = (ledger.account(DIGEST, limits(concurrency=2)) for ledger in (one, two))
    assert first.take(1.0) is None
    two.hear("one", one.news(), 1.0)
    assert second.take(1.0) is None
    assert second.take(1.0).status == 429
    first.release()
    two.hear("one", one.news(), 1.0)
    assert one.news() == {}
    assert second.take(1.0) is None
    assert two.inflight() == {DIGEST: (0, 0, 2)}
    one.hear("two", two.inflight(), 1.0)
    assert first.take(1.0).status == 429
    one.lose("two")
    assert first.take(1.0) is None


def test_usage_outlives_a_reload() -> None:
    digest = new_key()[1]
    ring, ledger = Keyring.of({"ann": {"sha256": digest, "rate": "1/s", "burst": 3}}, "keys"), Ledger()
    ring.use(ledger)
    (key,) = ring.keys.values()
    assert key.take(10.0) is None
    ring.renew(Keyring.of({"ann": {"sha256": digest, "rate": "1/s", "burst": 2, "token_rate": "5/s"}}, "keys"))
    assert ring.keys[bytes.fromhex(digest)] is key
    assert [key.take(10.0) is None for _ in range(3)] == [True, True, False]
    assert key.account.reserve(300, 10.0) is None
