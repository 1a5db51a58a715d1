"""The client of etcd against a real server: keys, leases, watches, lost servers, several endpoints, users and TLS."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from etcd_server import EtcdServer, started

from free_ports import free_port
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.membership.etcd_client import (
    Changes,
    Etcd,
    EtcdError,
    HistoryLost,
    LeaseLost,
    Snapshot,
)
from headway.gateway.membership.etcd_settings import EtcdSettings

Seen = Snapshot | Changes | EtcdError


shared = pytest.fixture(started, scope="module")
server = pytest.fixture(started)


def client(*endpoints: str, **more: Any) -> Etcd:
    return Etcd(read(EtcdSettings, {"endpoints": list(endpoints), **more}, "etcd"))


def run(server: EtcdServer, act: Callable[[Etcd], Awaitable[None]], **more: Any) -> None:
    async def go() -> None:
        async with client(server.url, **more) as etcd:
            await asyncio.wait_for(act(etcd), 120)

    asyncio.run(go())


async def wait_for(stream: AsyncGenerator[Seen, None], holds: Callable[[Seen], bool]) -> Seen:
    async for news in stream:
        if holds(news):
            return news
    raise AssertionError("the stream ended")


def has(key: str, value: bytes | None) -> Callable[[Seen], bool]:
    def holds(news: Seen) -> bool:
        if isinstance(news, Snapshot):
            return (news.items[key].value if key in news.items else None) == value
        return isinstance(news, Changes) and any(
            change.item.key == key and change.value == value for change in news.changes
        )

    return holds


def test_a_key_is_put_read_listed_and_deleted(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        first, before = await etcd.put("/k/ä", b"\x00one")
        second, between = await etcd.put("/k/ä", b"two")
        await etcd.put("/k0", b"not of the prefix")
        assert (before, between) == (None, b"\x00one") and second > first
        snapshot = await etcd.range("/k/")
        assert list(snapshot.items) == ["/k/ä"] and snapshot.items["/k/ä"].revision == second
        assert await etcd.delete("/k/ä") and not await etcd.delete("/k/ä")
        assert await etcd.get("/k/ä") is None

    run(shared, act)


def test_only_the_first_creates_a_key(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        assert await etcd.create("/mark", b"a") == b"a"
        assert await etcd.create("/mark", b"b") == b"a"

    run(shared, act)


def test_a_key_goes_with_its_lease_and_a_lost_lease_is_told(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        lease = await etcd.grant(2)
        await etcd.keep_alive(lease)
        async with aclosing(etcd.follow("/leased/")) as stream:
            await wait_for(stream, lambda news: isinstance(news, Snapshot))
            await etcd.put("/leased/a", b"1", lease)
            await wait_for(stream, has("/leased/a", b"1"))
            await wait_for(stream, has("/leased/a", None))  # it expires
        with pytest.raises(LeaseLost):
            await etcd.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await etcd.put("/leased/a", b"1", lease)
        other = await etcd.grant(60)
        await etcd.put("/leased/b", b"1", other)
        await etcd.revoke(other)
        assert await etcd.get("/leased/b") is None

    run(shared, act)


def test_a_watch_of_a_compacted_revision_is_refused_and_a_follower_reads_all_anew(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        old, _ = await etcd.put("/c/a", b"1")
        for number in range(5):
            newest, _ = await etcd.put("/c/a", b"%d" % number)
        await etcd._call("kv/compaction", {"revision": str(newest), "physical": True})
        with pytest.raises(HistoryLost):
            async for _ in etcd.watch("/c/", old):
                pass
        whole, looks = etcd.range, 0

        async def stale(prefix: str) -> Snapshot:  # compaction falls between the look and the watch
            nonlocal looks
            looks += 1
            snapshot = await whole(prefix)
            return Snapshot(old, {}) if looks == 1 else snapshot

        etcd.range = stale  # type: ignore[method-assign]
        async with aclosing(etcd.follow("/c/")) as stream:
            await wait_for(stream, has("/c/a", b"4"))
            await etcd.put("/c/a", b"new")
            await wait_for(stream, has("/c/a", b"new"))
        assert looks == 2

    run(shared, act)


def test_a_watch_from_a_revision_that_never_was_does_not_wait_for_it(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        with pytest.raises(HistoryLost):
            async for _ in etcd.watch("/ahead/", 10**6):
                pass

    run(shared, act)


def test_a_silent_watch_is_made_anew(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        async with aclosing(etcd.follow("/silent/", silence_s=0.2)) as stream:
            for _ in range(3):
                assert isinstance(await anext(stream), Snapshot)

    run(shared, act)


def test_a_large_value_comes_through_a_watch_whole(shared: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        value = bytes(range(256)) * 2000
        async with aclosing(etcd.follow("/large/")) as stream:
            await anext(stream)
            await etcd.put("/large/a", value)
            await wait_for(stream, has("/large/a", value))
            await etcd.delete("/large/a")

    run(shared, act)


@pytest.mark.parametrize("lost", [False, True], ids=["with its data", "with its data lost"])
def test_a_follower_goes_on_when_the_server_was_killed_and_is_back(server: EtcdServer, lost: bool) -> None:
    async def act(etcd: Etcd) -> None:
        for number in range(20):
            await etcd.put("/f/a", b"%d" % number)
        async with aclosing(etcd.follow("/f/")) as stream:
            await wait_for(stream, has("/f/a", b"19"))
            server.kill()
            await wait_for(stream, lambda news: isinstance(news, EtcdError))
            with pytest.raises(EtcdError, match="no endpoint answers"):
                await etcd.get("/f/a")
            if lost:
                server.lose_data()
            await asyncio.to_thread(server.start)
            await wait_for(stream, has("/f/a", None if lost else b"19"))
            await etcd.put("/f/a", b"after")
            await wait_for(stream, has("/f/a", b"after"))

    run(server, act)


def test_a_server_that_hangs_is_told_and_followed_again(server: EtcdServer) -> None:
    async def act(etcd: Etcd) -> None:
        async with aclosing(etcd.follow("/h/", silence_s=1.0)) as stream:
            await anext(stream)
            server.freeze()
            await wait_for(stream, lambda news: isinstance(news, EtcdError))
            server.thaw()
            await wait_for(stream, lambda news: isinstance(news, Snapshot))

    run(server, act, timeout="1s")


def test_of_two_endpoints_the_one_that_lives_answers(shared: EtcdServer) -> None:
    async def act() -> None:
        dead = f"http://127.0.0.1:{free_port()}"
        async with client(dead, shared.url) as etcd:
            await etcd.put("/two/a", b"1")
            async with aclosing(etcd.follow("/two/")) as stream:
                await wait_for(stream, has("/two/a", b"1"))
                await etcd.put("/two/a", b"2")
                await wait_for(stream, has("/two/a", b"2"))

    asyncio.run(act())


def test_a_follower_moves_to_the_other_endpoint_when_its_own_dies(shared: EtcdServer, server: EtcdServer) -> None:
    async def act() -> None:
        async with client(server.url, shared.url) as etcd, client(shared.url) as other:
            await other.put("/moved", b"elsewhere")
            async with aclosing(etcd.follow("/moved")) as stream:
                await wait_for(stream, has("/moved", None))
                server.kill()
                await wait_for(stream, has("/moved", b"elsewhere"))

    asyncio.run(act())


def test_a_user_logs_in_and_again_when_the_token_is_lost(server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOD", "s3cret-word")
    monkeypatch.setenv("BAD", "wr0ng-word")

    async def act(etcd: Etcd) -> None:
        for path, body in (
            ("auth/user/add", {"name": "root", "password": "s3cret-word"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/enable", {}),
        ):
            await etcd._call(path, body)
        with pytest.raises(EtcdError, match="user name is empty"):
            await etcd.put("/u", b"1")
        async with client(server.url, user="root", password_env="BAD") as wrong:
            with pytest.raises(EtcdError, match="authentication failed") as raised:
                await wrong.put("/u", b"1")
            assert "wr0ng-word" not in str(raised.value) + repr(wrong.settings)
        async with client(server.url, user="root", password_env="GOOD") as right:
            await right.put("/u", b"1")
            right._token = "expired.1"
            await right.put("/u", b"2")
            right._token = "expired.1"
            async with aclosing(right.follow("/u")) as stream:
                await wait_for(stream, has("/u", b"2"))
                await right.put("/u", b"3")
                await wait_for(stream, has("/u", b"3"))

    run(server, act)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and a client's certificate of it, and a client's of another."""
    folder, program = tmp_path_factory.mktemp("certificates"), shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")

    def openssl(*words: str) -> None:
        process = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr

    def new_key(name: str) -> tuple[str, ...]:
        return "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"

    for name in ("ca", "other-ca"):
        openssl("req", "-x509", "-subj", f"/CN={name}", *new_key(name), "-out", f"{name}.crt")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other-ca")):
        openssl("req", "-subj", f"/CN={name}", *new_key(name), "-out", f"{name}.csr")
        words = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
        openssl(*words, "-CAcreateserial", "-days", "30", "-extfile", "names", "-out", f"{name}.crt")
    return folder


@pytest.mark.full
def test_tls_wants_the_right_certificates_on_both_sides(certificates: Path) -> None:
    files = {name: str(certificates / name) for name in ("ca.crt", "other-ca.crt", "server.crt", "server.key")}
    options = ("--cert-file", files["server.crt"], "--key-file", files["server.key"])
    server = EtcdServer((*options, "--client-cert-auth", "--trusted-ca-file", files["ca.crt"]), "https").start()

    def with_(ca: str, name: str | None) -> Etcd:
        pair = {} if name is None else {"cert": f"{certificates}/{name}.crt", "key": f"{certificates}/{name}.key"}
        return client(server.url, ca=files[ca], **pair)

    async def act() -> None:
        async with with_("ca.crt", "client") as good:
            await good.put("/t", b"1")
            async with aclosing(good.follow("/t")) as stream:
                await wait_for(stream, has("/t", b"1"))
        for ca, name in (("other-ca.crt", "client"), ("ca.crt", "stranger"), ("ca.crt", None)):
            async with with_(ca, name) as wrong:
                with pytest.raises(EtcdError, match="no endpoint answers"):
                    await wrong.get("/t")

    try:
        asyncio.run(act())
    finally:
        server.stop()


def test_a_server_that_is_no_etcd_is_told() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nnope\n")
        writer.close()

    async def act() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as etcd:
            with pytest.raises(EtcdError, match=r"expected etcd 3\.4 or later with its JSON gateway"):
                await etcd.get("/a")
        server.close()

    asyncio.run(act())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"endpoints": []}, "etcd.endpoints: give at least one"),
        ({"endpoints": "10.0.0.5:x"}, "etcd.endpoints: expected an address"),
        ({"endpoints": "http://u:p@10.0.0.5:2379"}, "etcd.endpoints: expected an address"),
        ({"endpoint": "10.0.0.5"}, "etcd.endpoint: there is no such key. Did you mean 'endpoints'?"),
        ({"endpoints": "a", "prefix": "headway"}, "etcd.prefix: expected a prefix such as /headway"),
        ({"endpoints": "a", "user": "root"}, "etcd.password_env: is missing"),
        ({"endpoints": "a", "user": "root", "password_env": "NOT_SET_X"}, "NOT_SET_X is not set"),
        ({"endpoints": "a", "key": "k.pem"}, "etcd.cert: is missing"),
        ({"endpoints": "a", "timeout": "0s"}, "etcd.timeout: must be greater than zero"),
    ],
)
def test_wrong_settings_are_told_by_place(value: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as raised:
        read(EtcdSettings, value, "etcd")
    assert message in str(raised.value)


def test_endpoints_are_written_as_people_do(tmp_path: Path) -> None:
    assert read(EtcdSettings, "a, http://b:1/ ,https://c", "etcd").endpoints == (
        "http://a:2379",
        "http://b:1",
        "https://c:2379",
    )
    settings = read(EtcdSettings, {"endpoints": ["a"], "ca": str(tmp_path / "none.crt")}, "etcd")
    assert settings.endpoints == ("https://a:2379",)
    with pytest.raises(HeadwayError, match=r"none\.crt cannot be used"):
        settings.tls()


@pytest.mark.parametrize("message", [b"{}", b"[]", b'"busy"', b"<html>"])
def test_what_answers_in_place_of_etcd_is_not_taken_for_it(message: bytes) -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=message, content_type="application/json")

    async def go() -> None:
        proxy = web.Application()
        proxy.add_routes([web.post("/{path:.*}", answer)])
        runner = web.AppRunner(proxy)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with client(f"http://127.0.0.1:{port}") as etcd, aclosing(etcd.follow("/x/")) as stream:
            for _ in range(2):  # it is tried again
                assert isinstance(await asyncio.wait_for(anext(stream), 60), EtcdError)
            for call in (etcd.put("/x/a", b""), etcd.grant(5), etcd.keep_alive(1)):
                with pytest.raises(EtcdError, match="returned an invalid answer"):
                    await call
        await runner.cleanup()

    asyncio.run(go())
