"""QUIC between nodes: blocks come across, and only whoever has a right certificate is let in."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("aioquic", reason="the extra `kvd` is not installed")

from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from kvd_nodes import HANGS_S, block, daemon, key, run, until

from headway.errors import HeadwayError
from headway.gateway.kvd import certs, frames, mutual_tls, quic_windows
from headway.gateway.kvd.channel import KvdError, TlsFiles
from headway.gateway.kvd.daemon import Daemon
from headway.gateway.kvd.kvd_client import KvdClient
from headway.gateway.kvd.quic import QuicDialler
from headway.gateway.kvd.quic_link import Link
from headway.gateway.kvd.settings import Settings

HOSTS = ["localhost", "127.0.0.1"]
MIB = 2**20
logging.getLogger("quic").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certs.make(tmp_path_factory.mktemp("certs"), "node", HOSTS, 1)


def settings(files: TlsFiles, **more: Any) -> dict[str, Any]:
    tls = {name: str(getattr(files, name)) for name in ("ca", "certificate", "key")}
    return {"listen": "quic://127.0.0.1:0", "tls": tls, **more}


def test_blocks_come_across_whole(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            blocks = {key(number): block(number, 200_001) for number in range(3)}
            assert await client.put(blocks) == 3
            assert await client.get([*blocks]) == [*blocks.values()]
            assert await client.lookup([*blocks, key(9)]) == 3
            await asyncio.gather(*(client.get([block_key]) for block_key in blocks))
            assert server.faults == 0 and server.budget.used == 0

    run(main())


def test_longer_datagrams_do_the_same(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        more = settings(files) | {"listen": "quic://127.0.0.1:0?datagram=8900"}
        async with (
            daemon(tmp_path, **more) as (_, (address,)),
            KvdClient(f"{address}?datagram=8900", tls=files, timeout_s=HANGS_S) as client,
        ):
            await client.put({key(1): block(1, 3 * MIB)})
            assert await client.get([key(1)]) == [block(1, 3 * MIB)]

    run(main())


def test_a_node_fetches_from_another(files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    async def main() -> None:
        local = settings(files) | {"listen": f"unix:{tmp_path}/b/kvd.sock"}
        async with (
            daemon(tmp_path / "a", **settings(files)) as (_, (source,)),
            daemon(tmp_path / "b", **local) as (_, (here,)),
            KvdClient(source, tls=files, timeout_s=HANGS_S) as prefill,
            KvdClient(here, timeout_s=HANGS_S) as decode,
        ):
            chain = [key(number) for number in range(5)]
            await prefill.put({block_key: block(at, 200_000) for at, block_key in enumerate(chain)}, ttl_s=60)
            assert await decode.fetch(chain, source, ttl_s=60) == 5
            assert await decode.get(chain) == [block(at, 200_000) for at in range(5)]

    run(main())


def test_a_connection_that_was_lost_is_made_again(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (first, (address,)):
            client = KvdClient(address, tls=files, timeout_s=HANGS_S)
            await client.ping()
            await first.stop(0.0)
            with pytest.raises(KvdError) as caught:
                await client.ping()
            assert caught.value.code in ("unreachable", "timeout")
        async with daemon(tmp_path, **(settings(files) | {"listen": address})) as (again, _):

            async def answers() -> bool:
                try:
                    await client.ping()
                except KvdError:
                    return False
                return True

            await until(answers)
            assert again.figures()["connections"]["open"] == 1
        await client.close()

    run(main())


def _written(folder: Path, certificate: x509.Certificate, private: Any, ca: Path) -> TlsFiles:
    files = TlsFiles(ca, folder / "other.pem", folder / "other.key")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(certs._private(private))
    return files


def _expired(folder: Path, good: TlsFiles) -> TlsFiles:
    private = ec.generate_private_key(ec.SECP256R1())
    long_ago = datetime.now(UTC) - timedelta(days=30)
    authority = certs._authority_of(good.ca.parent)
    return _written(
        folder,
        certs.node("old", HOSTS, private.public_key(), *authority, timedelta(days=1), long_ago),
        private,
        good.ca,
    )


def _not_yet(folder: Path, good: TlsFiles) -> TlsFiles:
    private = ec.generate_private_key(ec.SECP256R1())
    later = datetime.now(UTC) + timedelta(days=30)
    authority = certs._authority_of(good.ca.parent)
    return _written(
        folder, certs.node("new", HOSTS, private.public_key(), *authority, timedelta(days=1), later), private, good.ca
    )


def _wrong_authority(folder: Path, good: TlsFiles) -> TlsFiles:
    """Of an authority of the same name; it trusts the right one."""
    files = certs.make(folder / "other", "node", HOSTS, 1)
    return TlsFiles(good.ca, files.certificate, files.key)


def _self_signed(folder: Path, good: TlsFiles) -> TlsFiles:
    private = ec.generate_private_key(ec.SECP256R1())
    return _written(folder, certs.authority(private, timedelta(days=1), "node"), private, good.ca)


def _signed_by_a_node(folder: Path, good: TlsFiles) -> TlsFiles:
    """A node's certificate is right, but makes nobody an authority."""
    private = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(good.certificate.read_bytes())
    signer: Any = serialization.load_pem_private_key(good.key.read_bytes(), None)
    certificate = certs.node("node", HOSTS, private.public_key(), issuer, signer, timedelta(days=1))
    files = _written(folder, certificate, private, good.ca)
    files.certificate.write_bytes(files.certificate.read_bytes() + good.certificate.read_bytes())
    return files


def _for_servers_only(folder: Path, good: TlsFiles) -> TlsFiles:
    private = ec.generate_private_key(ec.SECP256R1())
    ca, ca_key = certs._authority_of(good.ca.parent)
    certificate = (
        certs._builder("web", ca, private.public_key(), timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _written(folder, certificate, private, good.ca)


WRONG = [_expired, _not_yet, _wrong_authority, _self_signed, _signed_by_a_node, _for_servers_only]


@pytest.mark.parametrize("make", WRONG)
def test_a_client_with_a_wrong_certificate_is_refused(
    make: Callable[[Path, TlsFiles], TlsFiles], files: TlsFiles, tmp_path: Path
) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (server, (address,)):
            async with KvdClient(address, tls=make(tmp_path, files), timeout_s=HANGS_S) as client:
                with pytest.raises(KvdError) as caught:
                    await client.put({key(1): block(1)})
            assert caught.value.code == "unreachable", str(caught.value)
            assert server.store.puts == 0 and server.figures()["connections"]["open"] == 0
            async with KvdClient(address, tls=files, timeout_s=HANGS_S) as client:
                assert await client.lookup([key(1)]) == 0

    run(main())


async def _refused(address: str, configuration: QuicConfiguration) -> str:
    """Why a daemon ended the connection of a client that just asks."""
    host, port = address.removeprefix("quic://").split(":")
    ended: list[str] = []
    async with connect(host, int(port), configuration=configuration, wait_connected=False) as link:
        receive = link.quic_event_received

        def noted(event: Any) -> None:
            if isinstance(event, ConnectionTerminated):
                ended.append(event.reason_phrase)
            receive(event)

        link.quic_event_received = noted  # type: ignore[method-assign]
        link.transmit()
        reader, writer = await link.create_stream()
        writer.write(frames.frame(frames.Put([key(1)], [3]), 3) + b"abc")
        assert await reader.read() == b""
        await link.wait_closed()
    return ended[0]


def test_a_client_without_a_certificate_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (server, (address,)):
            bare = QuicConfiguration(alpn_protocols=[mutual_tls.ALPN], is_client=True, verify_mode=ssl.CERT_NONE)
            assert await _refused(address, bare) == "a client's certificate is required"
            assert server.store.puts == 0

    run(main())


def test_a_client_of_another_protocol_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (server, (address,)):
            configuration = mutual_tls.configuration(files, address, "127.0.0.1")
            configuration.alpn_protocols = ["h3"]
            assert await _refused(address, configuration) == "No common ALPN protocols"
            assert server.store.puts == 0 and server.figures()["connections"]["open"] == 0

    run(main())


def test_a_server_that_does_not_verify_lets_nobody_in(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where aioquic's private names had changed: the handshake ends well, and the connection is refused."""
    monkeypatch.setattr(quic_windows.mutual_tls, "demand", lambda context: None)

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            with pytest.raises(KvdError, match="a client's certificate is required"):
                await client.put({key(1): block(1)})
            assert server.store.puts == 0

    run(main())


@pytest.mark.parametrize("make", [_expired, _not_yet, _wrong_authority, _self_signed, _signed_by_a_node])
def test_a_server_with_a_wrong_certificate_is_refused(
    make: Callable[[Path, TlsFiles], TlsFiles], files: TlsFiles, tmp_path: Path
) -> None:
    wrong = make(tmp_path, files)

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(wrong)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            with pytest.raises(KvdError, match="cannot be reached") as caught:
                await client.put({key(1): block(1)})
            assert caught.value.code == "unreachable" and server.store.puts == 0

    run(main())


def test_a_server_of_another_name_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    other = certs.make(files.ca.parent, "elsewhere", ["node7.example"], 1)

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(other)) as (_, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            with pytest.raises(KvdError, match=r"127\.0\.0\.1"):
                await client.ping()

    run(main())


@pytest.mark.full
def test_a_peer_is_never_more_than_a_window_ahead(files: TlsFiles, tmp_path: Path) -> None:
    limits = {"frame": "8MiB", "in_flight": "64MiB"}

    async def main() -> None:
        async with daemon(tmp_path, **settings(files, ram="64MiB", limits=limits)) as (server, (address,)):
            await server.budget.take(server.budget.limit)  # so that no body is read
            dialler = QuicDialler(address, files)
            writing = []
            for number in range(3):
                channel = await dialler.open()
                head = frames.frame(frames.Put([key(number)], [8 * MIB]), 8 * MIB)
                writing.append(asyncio.create_task(channel.write(head, block(number, 8 * MIB))))
            await until(lambda: server.figures()["connections"]["open"] == 3)
            await asyncio.sleep(0.5)
            (link,) = server._listeners[0]._server.links  # type: ignore[attr-defined]
            waiting = link.quic._local_max_data.unread
            assert 0 < waiting <= 3 * quic_windows.STREAM_WINDOW <= quic_windows.WINDOW
            server.budget.give(server.budget.limit)
            await until(lambda: server.store.puts == 3)
            assert server.store.at_hand(key(2)) == block(2, 8 * MIB)
            assert link.quic._local_max_data.unread == 0 and not link.quic._unread
            await asyncio.wait(writing)
            await dialler.close()

    run(main())


@pytest.mark.full
def test_channels_that_wait_do_not_hold_up_the_one_that_has_its_turn(files: TlsFiles, tmp_path: Path) -> None:
    limits = {"frame": "2MiB", "in_flight": "64MiB"}

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files, ram="64MiB", limits=limits)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S, channels=quic_windows.MOST_STREAMS) as client,
        ):
            await server.budget.take(server.budget.limit - MIB - 1000)  # one at a time
            blocks = {key(number): block(number, MIB) for number in range(quic_windows.MOST_STREAMS)}
            await asyncio.gather(*(client.put({block_key: data}) for block_key, data in blocks.items()))
            assert await client.lookup([*blocks]) == len(blocks)

    run(main())


@pytest.mark.full
def test_a_peer_that_does_not_read_is_given_up(files: TlsFiles, tmp_path: Path) -> None:
    limits = {"stall": "200ms"}

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files, limits=limits)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            await client.put({key(1): block(1, 2 * MIB)})
            dialler = QuicDialler(address, files)
            deaf = await dialler.open()
            await deaf.write(frames.frame(frames.Get([key(1)])))
            await until(lambda: server.stalled == 1)
            server.limits = replace(server.limits, stall_s=HANGS_S)  # on a busy machine the other peer is slow as well
            assert await client.get([key(1)]) == [block(1, 2 * MIB)] and server.budget.used == 0
            await dialler.close()

    run(main())


def test_lost_datagrams_are_sent_again(files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    received = Link.datagram_received

    def sometimes(self: Link, data: Any, addr: Any) -> None:
        if not self.connected.done() or draw.random() > 0.02:
            received(self, data, addr)

    monkeypatch.setattr(Link, "datagram_received", sometimes)

    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            blocks = {key(number): block(number, 300_000) for number in range(4)}
            await asyncio.gather(*(client.put({block_key: data}) for block_key, data in blocks.items()))
            assert await client.get([*blocks]) == [*blocks.values()]
            assert server.faults == 0

    run(main())


def test_a_channel_that_is_cut_leaves_the_others(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            daemon(tmp_path, **settings(files)) as (server, (address,)),
            KvdClient(address, tls=files, timeout_s=HANGS_S) as client,
        ):
            await client.put({key(1): block(1, MIB)})
            for turns in range(0, 30, 3):
                call = asyncio.create_task(client.get([key(1)] * 3))
                for _ in range(turns):
                    await asyncio.sleep(0.001)
                call.cancel()
                await asyncio.wait([call])
            assert await client.get([key(1)]) == [block(1, MIB)]
            await until(lambda: server.figures()["connections"]["open"] == 1)
            assert server.budget.used == 0 and server.faults == 0

    run(main())


def test_datagrams_that_are_none_do_no_harm(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (server, (address,)):
            host, port = address.removeprefix("quic://").split(":")
            loop = asyncio.get_running_loop()
            sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(host, int(port)))
            for size in (0, 1, 20, 1200, 1400):
                for first in (0x00, 0x40, 0xC0, 0xC3, 0xFF):
                    sender.sendto(bytes([first]) + b"\x00\x00\x00\x01\x08" + bytes(range(256)) * (size // 256 + 1))
            async with KvdClient(address, tls=files, timeout_s=HANGS_S) as client:
                await client.ping()
            sender.close()
            assert server.figures()["connections"]["open"] <= 1

    run(main())


def test_no_more_connections_than_the_limit(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files, limits={"connections": 2})) as (server, (address,)):
            first, second = (KvdClient(address, tls=files, timeout_s=HANGS_S) for _ in range(2))
            await first.ping()
            await second.ping()
            async with KvdClient(address, tls=files, timeout_s=0.5) as third:
                with pytest.raises(KvdError):
                    await third.ping()
            await first.ping()
            await first.close()
            await second.close()
            await until(lambda: server.figures()["connections"]["open"] == 0)

    run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "other"}, "is not the key of"),
        ({"ca": "missing"}, "tls.ca: .* cannot be read"),
        ({"certificate": "text"}, "tls.certificate: .* is not in PEM"),
        ({"key": "text"}, "tls.key: .* is not in PEM"),
    ],
)
def test_wrong_files_are_told(change: dict[str, str], message: str, files: TlsFiles, tmp_path: Path) -> None:
    other = certs.make(tmp_path / "c", "node", HOSTS, 1)
    (tmp_path / "text").write_text("hello")
    places = {"other": other.key, "missing": tmp_path / "missing", "text": tmp_path / "text"}
    settings = {name: getattr(files, name) for name in ("ca", "certificate", "key")}
    settings |= {name: places[value] for name, value in change.items()}
    with pytest.raises(HeadwayError, match=message):
        KvdClient("quic://127.0.0.1:1", tls=TlsFiles(**settings))


@pytest.mark.parametrize("address", ["quic://x", "quic://:1", "quic://a:99999", "quic://a:1/b", "quic://a:1?mtu=9"])
def test_a_wrong_address_is_told(address: str, files: TlsFiles) -> None:
    with pytest.raises(HeadwayError, match="expected"):
        KvdClient(address, tls=files)


def test_an_address_that_is_taken_is_told(files: TlsFiles, tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, **settings(files)) as (_, (address,)):
            with pytest.raises(HeadwayError, match="cannot listen on this address"):
                await Daemon(Settings.load(settings(files) | {"listen": address})).start()

    run(main())
