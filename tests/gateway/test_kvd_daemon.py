"""The daemon over its Unix socket: what it does, and what it does not let be done to it."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xxhash", reason="the extra `kvd` is not installed")

from kvd_nodes import HANGS_S, block, daemon, key, run, served, until

from headway.errors import HeadwayError
from headway.gateway.kvd import frames
from headway.gateway.kvd.channel import KvdError
from headway.gateway.kvd.daemon import Daemon
from headway.gateway.kvd.kvd_client import KvdClient
from headway.gateway.kvd.settings import Settings
from headway.gateway.kvd.transports import register, transport
from headway.gateway.kvd.unix import UnixTransport

MIB = 2**20


def test_blocks_are_put_found_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (_, client):
            chain = [key(number) for number in range(10)]
            assert await client.put({block_key: block(at) for at, block_key in enumerate(chain)}) == 10
            assert await client.lookup(chain) == 10
            assert await client.lookup([*chain[:4], key(99), *chain[4:]]) == 4
            assert await client.lookup([]) == 0 and await client.get([]) == [] and await client.put({}) == 0
            assert await client.get([chain[3], key(99), chain[0]]) == [block(3), None, block(0)]
            assert await client.delete([chain[2], key(99)]) == 1
            assert await client.lookup(chain) == 2
            figures = await client.stats()
            assert figures["blocks"]["puts"] == 10 and figures["blocks"]["misses"] == 1
            assert figures["connections"]["open"] == 1

    run(main())


def test_it_works_the_same_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with served(tmp_path, disk={"folder": str(tmp_path / "d"), "limit": "64MiB"}) as (_, client):
            blocks = {key(number): block(number, 3 * MIB) for number in range(6)}
            assert await client.put(blocks) == 6
            assert await client.get([*blocks]) == [*blocks.values()]
            assert (await client.overlap([*blocks])).disk > 0

    uvloop.run(asyncio.wait_for(main(), HANGS_S))


def test_memory_spills_to_disk_and_a_get_brings_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, disk={"folder": str(tmp_path / "d"), "limit": "64MiB"}) as (daemon, client):
            chain = [key(number) for number in range(20)]
            for at, block_key in enumerate(chain):
                await client.put({block_key: block(at, MIB)})
            overlap = await client.overlap(chain)
            assert overlap.leading == 20 and overlap.disk == 13 and overlap.ram == 7
            assert daemon.store.ram_used <= 8 * MIB
            assert await client.get(chain[:1]) == [block(0, MIB)]
            assert (await client.overlap(chain[:1])).ram == 1
            assert [bytes(data or b"") for data in await client.get(chain)] == [block(at, MIB) for at in range(20)]

    run(main())


def test_an_answer_longer_than_a_frame_comes_in_several(tmp_path: Path) -> None:
    limits = {"frame": "1MiB", "in_flight": "32MiB"}

    async def main() -> None:
        async with served(tmp_path, limits=limits) as (_, client):
            blocks = {key(number): block(number, 400_000) for number in range(9)}
            for block_key, data in blocks.items():
                await client.put({block_key: data})
            assert await client.get([*blocks]) == [*blocks.values()]
            for size in (MIB + 1, 4 * MIB - 1000):
                with pytest.raises(KvdError, match="the limit is 1,048,576") as caught:
                    await client.put({key(1): block(1, size)})
                assert caught.value.code == "wrong"
            with pytest.raises(KvdError):
                await client.put({key(1): block(1, 8 * MIB)})
            assert await client.get([key(1)]) == [blocks[key(1)]]

    run(main())


def test_a_hand_over_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, held="2MiB") as (_, client):
            assert await client.put({key(1): block(1, MIB)}, ttl_s=60) == 1
            assert await client.put({key(2): block(2, MIB)}, ttl_s=60) == 0
            for number in range(10, 30):
                await client.put({key(number): block(number, MIB)})
            assert await client.get([key(1)]) == [block(1, MIB)]

    run(main())


def test_the_socket_is_for_its_user_alone_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kvd.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def main() -> None:
        async with served(tmp_path) as (_, client):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            await client.ping()
            with pytest.raises(HeadwayError, match="another daemon listens there"):
                await Daemon(Settings.load({"listen": f"unix:{path}"})).start()
            await client.ping()
        assert not path.exists()
        path.write_text("precious")
        with pytest.raises(HeadwayError, match="exists and is not a socket"):
            await Daemon(Settings.load({"listen": f"unix:{path}"})).start()
        assert path.read_text() == "precious"

    run(main())


async def _spoken(path: Path, data: bytes) -> bytes:
    """What comes back until the daemon ends the connection."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    received = b""
    try:
        while more := await reader.read(1000):
            received += more
    except ConnectionResetError:  # it left bytes unread
        pass
    writer.close()
    return received


def test_a_malformed_frame_ends_its_own_connection_only(tmp_path: Path) -> None:
    head = frames.frame(frames.Ping())[frames.PREFIX.size :]
    wrong = [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFIX.pack(b"HK", 1, len(head), 5) + head,  # blocks that no ping has
        frames.PREFIX.pack(b"HK", 1, 2**31, 0),
        frames.PREFIX.pack(b"HK", 1, 4, 2**32 - 1),
        frames.PREFIX.pack(b"HK", 1, 4, 0) + b"\xff\xff\xff\xff",
    ]

    async def main() -> None:
        async with served(tmp_path) as (daemon, client):
            await client.put({key(1): block(1)})
            for data in wrong:
                answer = await _spoken(tmp_path / "kvd.sock", data)
                reply = frames.reply(answer[frames.PREFIX.size :], 0)
                assert isinstance(reply, frames.Failure) and reply.code == "wrong"
                assert await client.lookup([key(1)]) == 1
            assert daemon.malformed == len(wrong) and daemon.faults == 0
            await until(lambda: daemon.figures()["connections"]["open"] == 1)
            assert daemon.budget.used == 0

    run(main())


def test_more_connections_than_the_limit_are_turned_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, limits={"connections": 3}) as (daemon, client):
            await client.ping()
            others = [await asyncio.open_unix_connection(str(tmp_path / "kvd.sock")) for _ in range(2)]
            await until(lambda: daemon.figures()["connections"]["open"] == 3)
            async with KvdClient(client.address) as late:
                with pytest.raises(KvdError) as caught:
                    await late.ping()
                assert caught.value.code in ("busy", "unreachable")
            assert daemon.turned_away == 1
            await client.ping()
            for _, writer in others:
                writer.close()
            await until(lambda: daemon.figures()["connections"]["open"] == 1)
            async with KvdClient(client.address) as late:
                await late.ping()

    run(main())


def test_slow_clients_are_given_up_and_hold_up_nobody(tmp_path: Path) -> None:
    limits = {"stall": "200ms", "frame": "4MiB", "in_flight": "32MiB"}

    async def main() -> None:
        async with served(tmp_path, limits=limits) as (daemon, client):
            await client.put({key(1): block(1, 4 * MIB)})
            half = frames.frame(frames.Put([key(2)], [4 * MIB]), 4 * MIB) + b"x" * 1000
            deaf = frames.frame(frames.Get([key(1)]))  # and nobody reads the answer
            slow = []
            for data in [half, deaf] * 6:
                reader, writer = await asyncio.open_unix_connection(str(tmp_path / "kvd.sock"), limit=1)
                writer.write(data)
                slow.append((reader, writer))
            for _ in range(20):
                assert await client.lookup([key(1)]) == 1
                assert daemon.budget.used <= 32 * MIB
            assert await client.get([key(1)]) == [block(1, 4 * MIB)]
            await until(lambda: daemon.figures()["connections"]["open"] == 1)
            assert daemon.stalled == 12 and daemon.budget.used == 0
            for _, writer in slow:
                writer.transport.abort()

    run(main())


def test_a_request_may_take_long_as_long_as_it_moves(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, limits={"stall": "150ms"}) as (daemon, client):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "kvd.sock"))
            data = block(5, 70_000 * 10)
            writer.write(frames.frame(frames.Put([key(5)], [len(data)]), len(data)))
            for at in range(0, len(data), 70_000):
                writer.write(data[at : at + 70_000])
                await asyncio.sleep(0.05)
            head, _ = frames.lengths(await reader.readexactly(frames.PREFIX.size), 0)
            assert frames.reply(await reader.readexactly(head), 0) == frames.Count(1)
            assert daemon.stalled == 0 and await client.get([key(5)]) == [data]
            writer.close()

    run(main())


def test_an_idle_connection_is_closed_and_its_client_does_not_notice(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, limits={"idle": "100ms", "stall": "50ms"}) as (daemon, client):
            await client.put({key(1): block(1)})
            await until(lambda: daemon.figures()["connections"]["open"] == 0)
            assert await client.lookup([key(1)]) == 1

    run(main())


def test_many_calls_at_once_share_the_channels(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            daemon(tmp_path) as (server, (address,)),
            KvdClient(address, channels=4, timeout_s=HANGS_S) as client,
        ):

            async def one(number: int) -> None:
                await client.put({key(number): block(number)})
                assert await client.get([key(number)]) == [block(number)]

            await asyncio.gather(*(one(number) for number in range(200)))
            assert server.figures()["connections"]["open"] <= 4
            assert await client.lookup([key(number) for number in range(200)]) == 200

    run(main())


def test_a_call_that_is_given_up_spoils_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (daemon, client):
            await client.put({key(1): block(1, MIB)})
            for turns in range(12):
                call = asyncio.create_task(client.get([key(1)] * 5))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                assert await client.get([key(1)]) == [block(1, MIB)]
            await until(lambda: daemon.figures()["connections"]["open"] == 1)
            assert daemon.budget.used == 0

    run(main())


def test_a_daemon_that_went_and_came_back_is_found_again(tmp_path: Path) -> None:
    disk = {"folder": str(tmp_path / "d"), "limit": "64MiB"}

    async def main() -> None:
        async with KvdClient(f"unix:{tmp_path}/kvd.sock") as client:
            async with daemon(tmp_path, disk=disk):
                await client.put({key(1): block(1)})
            with pytest.raises(KvdError) as caught:
                await client.lookup([key(1)])
            assert caught.value.code == "unreachable"
            with pytest.raises(KvdError, match="the client waits before it tries again"):
                await client.lookup([key(1)])
            async with daemon(tmp_path, disk=disk):
                while True:
                    try:
                        assert await client.overlap([key(1)]) == frames.Overlap(1, 0, 1), (
                            "what was in memory is on disk"
                        )
                        break
                    except KvdError:
                        await asyncio.sleep(0.05)
                assert await client.get([key(1)]) == [block(1)]

    run(main())


def test_a_daemon_that_does_not_answer_is_given_up_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async def deaf(reader: Any, writer: Any) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(deaf, str(tmp_path / "deaf.sock"))
        async with KvdClient(f"unix:{tmp_path}/deaf.sock", timeout_s=0.1) as client:
            with pytest.raises(KvdError) as caught:
                await client.lookup([key(1)])
        assert caught.value.code == "timeout" and "no answer within 0.1 s" in str(caught.value)
        server.close()

    run(main())


def test_what_does_not_answer_as_a_daemon_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async def other(reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_unix_server(other, str(tmp_path / "other.sock"))
        async with KvdClient(f"unix:{tmp_path}/other.sock") as client:
            with pytest.raises(KvdError, match="sent an invalid reply"):
                await client.ping()
        server.close()

    run(main())


def test_stopping_lets_what_is_under_way_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as (server, _):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "kvd.sock"))
            data = block(1, MIB)
            writer.write(frames.frame(frames.Put([key(1)], [MIB]), MIB) + data[: MIB // 2])
            await until(lambda: server.budget.used > 0)
            stopping = asyncio.create_task(server.stop(HANGS_S))
            await asyncio.sleep(0.05)
            with pytest.raises(OSError):
                await asyncio.open_unix_connection(str(tmp_path / "kvd.sock"))
            writer.write(data[MIB // 2 :])
            answer = await reader.read()
            assert frames.reply(answer[frames.PREFIX.size :], 0) == frames.Count(1)
            await stopping
            writer.close()

    run(main())


def test_blocks_are_fetched_from_another_daemon(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source = f"unix:{tmp_path}/a/kvd.sock"

    async def main() -> None:
        async with (
            served(tmp_path / "a") as (first, prefill),
            served(tmp_path / "b", peers=[source]) as (daemon, decode),
        ):
            chain = [key(number) for number in range(12)]
            await prefill.put({block_key: block(at, 100_000) for at, block_key in enumerate(chain[:10])}, ttl_s=60)
            await decode.put({chain[0]: block(0, 100_000)})
            assert await decode.fetch(chain, source, ttl_s=60) == 10
            assert await decode.lookup(chain) == 10 and daemon.sources.fetched == 9
            assert await decode.get(chain[:10]) == [block(at, 100_000) for at in range(10)]
            assert first.figures()["ram"]["held_blocks"] == 1, "those that were fetched have been read"
            assert await decode.fetch(chain[:10], source) == 10 and daemon.sources.fetched == 9
            with pytest.raises(KvdError, match="may not fetch from 'unix:/etc/other'") as caught:
                await decode.fetch(chain, "unix:/etc/other")
            assert caught.value.code == "refused"

    run(main())


def test_a_source_that_is_lost_is_told_and_what_came_stays(tmp_path: Path) -> None:
    source = f"unix:{tmp_path}/nobody.sock"

    async def main() -> None:
        async with served(tmp_path, peers=[source]) as (_, client):
            await client.put({key(1): block(1)})
            with pytest.raises(KvdError, match="no daemon answers") as caught:
                await client.fetch([key(1), key(2)], source)
            assert caught.value.code == "failed"
            assert await client.fetch([key(1)], source) == 1, "nothing is missing, so nobody is asked"

    run(main())


class CutSource:
    """A daemon that has all blocks, and whose network is cut after `sent` bytes of them, until `go_on` is set."""

    def __init__(self, folder: Path, blocks: list[bytes], sent: int) -> None:
        self.address, self.blocks, self.sent = f"unix:{folder}/cut.sock", blocks, sent
        self.pieces, self.go_on = 1, asyncio.Event()

    async def __aenter__(self) -> CutSource:
        self.server = await asyncio.start_unix_server(self.serve, self.address.removeprefix("unix:"))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()

    async def serve(self, reader: Any, writer: Any) -> None:
        try:
            while True:
                head, body = frames.lengths(await reader.readexactly(frames.PREFIX.size), MIB)
                request = frames.request(await reader.readexactly(head), body)
                if isinstance(request, frames.Lookup):
                    count = len(request.keys)
                    writer.write(frames.frame(frames.Overlap(count, count, 0)))
                    continue
                data = b"".join(self.blocks)
                writer.write(frames.frame(frames.Blocks([len(part) for part in self.blocks]), len(data)))
                writer.write(data[: self.sent])
                await self.go_on.wait()
                writer.write(data[self.sent :])
        except asyncio.IncompleteReadError:
            writer.close()


@pytest.mark.parametrize("sent", [0, 150_000])
def test_a_fetch_that_is_cut_ends_at_its_stall_limit(tmp_path: Path, sent: int) -> None:
    async def main() -> None:
        blocks = [block(number, 100_000) for number in range(3)]
        async with (
            CutSource(tmp_path, blocks, sent) as source,
            served(tmp_path, peers=[source.address], limits={"stall": "200ms", "fetches": 1}) as (_, client),
        ):
            chain = [key(number) for number in range(3)]
            with pytest.raises(KvdError, match=r"no progress within 0\.2 s") as caught:
                await asyncio.wait_for(client.fetch(chain, source.address), 25)
            assert caught.value.code == "failed"
            source.go_on.set()
            await until_fetched(client, chain, source.address)  # the next fetch is free to run, and connects again
            assert await client.get(chain) == blocks

    run(main())


async def until_fetched(client: KvdClient, chain: list[bytes], source: str) -> None:
    while True:
        try:
            assert await client.fetch(chain, source) == len(chain)
            return
        except KvdError:  # the daemon waits before it connects again
            await asyncio.sleep(0.02)


def test_a_call_may_take_longer_than_its_stall_limit_as_long_as_it_moves(tmp_path: Path) -> None:
    async def main() -> None:
        data = block(1, 8 * 70_000)

        async def slow(reader: Any, writer: Any) -> None:
            await reader.readexactly(frames.PREFIX.size)
            writer.write(frames.frame(frames.Blocks([len(data)]), len(data)))
            for start in range(0, len(data), 70_000):
                await asyncio.sleep(0.15)
                writer.write(data[start : start + 70_000])
            writer.close()

        server = await asyncio.start_unix_server(slow, str(tmp_path / "slow.sock"))
        async with KvdClient(f"unix:{tmp_path}/slow.sock", stall_s=1.0) as client:
            assert await client.get([key(1)]) == [data]
        server.close()

    run(main())


def test_a_block_longer_than_a_frame_may_be_now_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    disk = {"folder": str(tmp_path / "d"), "limit": "64MiB"}

    async def main() -> None:
        async with served(tmp_path, disk=disk) as (_, client):
            await client.put({key(1): block(1, 3 * MIB), key(2): block(2)})
        async with served(tmp_path, disk=disk, limits={"frame": "1MiB"}) as (daemon, client):
            assert await client.get([key(1), key(2)]) == [None, block(2)]
            assert daemon.faults == 0

    run(main())


def test_an_rdma_address_is_refused_with_its_reason() -> None:
    with pytest.raises(HeadwayError, match="has no built-in RDMA transport"):
        KvdClient("rdma://10.0.0.8:7072")
    with pytest.raises(HeadwayError, match="expected an address such as unix:/run"):
        KvdClient("tcp://10.0.0.8:7072")


def test_another_transport_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(UnixTransport):
        async def listen(self, address: str, *rest: Any) -> Any:
            return await super().listen(address.replace("pipe:", "unix:"), *rest)

        def dialler(self, address: str, tls: Any) -> Any:
            return super().dialler(address.replace("pipe:", "unix:"), tls)

    monkeypatch.setattr("headway.gateway.kvd.transports._REGISTERED", {})
    register("pipe", Renamed)

    async def main() -> None:
        async with (
            daemon(tmp_path, listen=f"pipe:{tmp_path}/p.sock"),
            KvdClient(f"pipe:{tmp_path}/p.sock") as client,
        ):
            await client.ping()

    run(main())
    assert isinstance(transport("pipe:x", "listen"), Renamed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lisen": "unix:a"}, "lisen: there is no such key"),
        ({"listen": []}, "listen: expected an address"),
        ({"listen": "http://x"}, "listen: expected an address such as unix:"),
        ({"listen": "quic://127.0.0.1:0"}, "QUIC needs 'tls'"),
        ({"listen": f"unix:/{'x' * 200}"}, "of at most 107 bytes"),
        ({"listen": "unix:/no/such/folder/kvd.sock"}, "cannot listen on this address"),
        ({"ram": "12"}, "ram: '12' is not a size"),
        ({"ram": "1kB"}, "ram: must be at least 1,048,576 bytes"),
        ({"ram": "2MiB", "held": "3MiB"}, "held: '3MiB' is more than 'ram' ('2MiB')"),
        ({"disk": {"folder": "x"}}, "disk: 'limit' is missing"),
        ({"tls": {"ca": "a", "certificate": "b"}}, "tls: 'key' is missing"),
        ({"limits": {"in_flight": "100MiB"}}, "limits.in_flight: must be at least 4 times 'frame'"),
        ({"limits": {"frame": "8GiB", "in_flight": "64GiB"}}, "limits.frame: must be below 4GiB"),
        ({"limits": {"stall": "0s"}}, "limits.stall: must be greater than zero"),
    ],
)
def test_a_mistake_in_the_settings_is_told_with_its_place(changes: dict[str, Any], message: str) -> None:
    async def main() -> None:
        daemon = Daemon(Settings.load({"listen": "unix:/tmp/never-there.sock", **changes}))
        await daemon.start()
        await daemon.stop()

    with pytest.raises(HeadwayError) as caught:
        run(main())
    assert message in str(caught.value)
