"""The store against a model of it that is too simple to be wrong."""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xxhash", reason="the extra `kvd` is not installed")

from kvd_nodes import block, key, run

from drawing import draws
from headway.errors import HeadwayError
from headway.gateway.kvd import block_file
from headway.gateway.kvd.block_store import OVERHEAD, Store
from headway.gateway.kvd.disk import Disk
from headway.gateway.kvd.frames import Overlap

RAM, HELD, DISK = 12_000, 6_000, 5 * 4096
KEYS = [bytes([number]) * (1 + number % 3) for number in range(8)]
SIZES = st.sampled_from([1, 700, 2500, 4000, 5000, 5744, 11_744, 13_000])
OPERATION = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), SIZES, st.sampled_from([None, None, 3, 10])),
    st.tuples(st.just("get"), st.sampled_from(KEYS)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("lookup"), st.lists(st.sampled_from(KEYS), max_size=6)),
    st.tuples(st.just("wait"), st.integers(1, 8)),
)


class Model:
    """Lists, the oldest first. `both` is in memory and on disk when it has been read from there."""

    def __init__(self) -> None:
        self.now = 0
        self.ram: list[bytes] = []
        self.held: dict[bytes, int] = {}  # when it ends
        self.disk: list[bytes] = []
        self.data: dict[bytes, bytes] = {}

    def cost(self, keys: Any) -> int:
        return sum(len(self.data[name]) + OVERHEAD for name in keys)

    def room(self, name: bytes) -> int:
        return -(-(24 + len(name) + len(self.data[name])) // 4096) * 4096

    def expire(self) -> None:
        for end, name in sorted((end, name) for name, end in self.held.items()):
            if end <= self.now:
                del self.held[name]
                self.ram.insert(0, name)

    def spill(self, expected: int) -> None:
        while self.cost(self.ram) + self.cost(self.held) + expected > RAM:
            name = self.ram.pop(0)
            if name in self.disk:
                self.disk.remove(name)
            elif self.room(name) > DISK:
                continue
            while sum(map(self.room, self.disk)) + self.room(name) > DISK:
                self.disk.pop(0)
            self.disk.append(name)

    def put(self, name: bytes, data: bytes, ttl: int | None) -> bool:
        self.expire()
        others = self.cost(other for other in self.held if other != name)
        end = max(self.held.get(name, 0), self.now + ttl if ttl else 0)
        cost = len(data) + OVERHEAD
        if others + cost > (HELD if end else RAM):
            return False
        self.delete(name)
        self.spill(cost)
        self.data[name] = data
        if end:
            self.held[name] = end
        else:
            self.ram.append(name)
        return True

    def get(self, name: bytes) -> bytes | None:
        self.expire()
        if name in self.held or name in self.ram:
            self.held.pop(name, None)
            if name in self.ram:
                self.ram.remove(name)
            self.ram.append(name)
            return self.data[name]
        if name not in self.disk:
            return None
        self.disk.remove(name)
        self.disk.append(name)
        cost = len(self.data[name]) + OVERHEAD
        if self.cost(self.held) + cost <= RAM:
            self.spill(cost)
            self.ram.append(name)
        return self.data[name]

    def delete(self, name: bytes) -> bool:
        there = name in self.ram or name in self.held or name in self.disk
        for place in (self.ram, self.disk):
            if name in place:
                place.remove(name)
        self.held.pop(name, None)
        return there

    def lookup(self, keys: list[bytes]) -> Overlap:
        ram = disk = 0
        for name in keys:
            if name in self.ram or name in self.held:
                ram += 1
            elif name in self.disk:
                disk += 1
            else:
                break
        return Overlap(ram + disk, ram, disk)


async def _followed(operations: list[Any], folder: Path) -> None:
    model = Model()
    disk = Disk(folder, DISK, 10**6)
    store = Store(RAM, HELD, disk, lambda: float(model.now))
    for number, (what, *rest) in enumerate(operations):
        if what == "put":
            data = block(number, rest[1])
            assert store.put(rest[0], data, rest[2]) == model.put(rest[0], data, rest[2])
        elif what == "get":
            assert await store.get(rest[0]) == model.get(rest[0])
        elif what == "delete":
            assert store.delete(rest[0]) == model.delete(rest[0])
        elif what == "lookup":
            assert store.lookup(rest[0]) == model.lookup(rest[0])
        else:
            model.now += rest[0]
        await disk.settle()
        _agree(store, model, folder)
    await disk.close()


def _agree(store: Store, model: Model, folder: Path) -> None:
    figures = store.figures()
    model.expire()
    assert [store.lookup([name]) for name in KEYS] == [model.lookup([name]) for name in KEYS]
    assert figures["ram"]["bytes"] == model.cost(model.ram) + model.cost(model.held) <= RAM
    assert figures["ram"]["held_bytes"] == model.cost(model.held) <= HELD
    assert figures["disk"]["bytes"] == sum(map(model.room, model.disk)) <= DISK
    assert figures["disk"]["unwritten_bytes"] == 0
    files = sorted(file.name.partition("-")[0] for file in folder.glob("*/*"))
    assert files == sorted(name.hex() for name in model.disk)


@draws(60)
@given(st.lists(OPERATION, max_size=40))
def test_the_store_does_what_its_model_does(operations: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(_followed(operations, Path(folder)))


async def _at_once(seed: int, folder: Path) -> None:
    draw = random.Random(seed)
    disk = Disk(folder, DISK, 3 * 4096)
    store = Store(RAM, HELD, disk)
    put: dict[bytes, list[bytes]] = {one: [] for one in KEYS}

    async def worker(name: int) -> None:
        for number in range(60):
            one = draw.choice(KEYS)
            choice = draw.random()
            if choice < 0.45:
                data = block(1000 * name + number, draw.choice([1, 2500, 5000]))
                if store.put(one, data, draw.choice([None, None, 0.001])):
                    put[one].append(data)
            elif choice < 0.9:
                found = await store.get(one)
                assert found is None or bytes(found) in put[one]
            else:
                store.delete(one)
            assert store.ram_used <= RAM and store.held_used <= HELD and disk.used <= DISK
            assert disk.unwritten <= disk.unwritten_limit
            if choice < 0.1:
                await asyncio.sleep(0)

    await asyncio.gather(*(worker(name) for name in range(6)))
    await disk.settle()
    assert disk.unwritten == 0
    files = sorted(file.name.partition("-")[0] for file in folder.glob("*/*"))
    assert files == sorted(one.hex() for one in disk.entries)
    for one in KEYS:
        found = await store.get(one)
        assert found is None or bytes(found) == put[one][-1]
    await disk.close()


@pytest.mark.parametrize("seed", range(8))
def test_many_at_once_get_what_was_put_and_keep_the_limits(seed: int, tmp_path: Path) -> None:
    run(_at_once(seed, tmp_path))


def test_a_held_block_outlives_others_until_it_is_read(tmp_path: Path) -> None:
    now = [0.0]
    store = Store(RAM, HELD, None, lambda: now[0])
    assert store.put(b"handed over", block(1, 5000), ttl_s=10.0)
    for number in range(20):
        assert store.put(key(number), block(number, 5000))
    assert store.lookup([b"handed over"]).leading == 1
    assert store.at_hand(b"handed over") == block(1, 5000)
    for number in range(20):
        store.put(key(number), block(number, 5000))
    assert store.lookup([b"handed over"]).leading == 0


def test_a_hold_ends_with_its_time_and_what_cannot_be_held_is_refused() -> None:
    now = [0.0]
    store = Store(RAM, HELD, None, lambda: now[0])
    assert store.put(b"a", block(1, 5000), ttl_s=10.0)
    assert not store.put(b"b", block(2, 5000), ttl_s=10.0)
    assert store.put(b"a", block(3, 5000)), "a block may be put again"
    now[0] = 9.0
    assert store.figures()["ram"]["held_blocks"] == 1, "and is held as it was"
    now[0] = 10.0
    assert store.put(b"b", block(2, 5000), ttl_s=10.0)
    assert store.figures()["blocks"]["holds_expired"] == 1
    store.put(b"c", block(4, 5000))
    assert store.lookup([b"a"]).leading == 0, "nobody came for it, so it goes first"


def test_a_daemon_that_starts_anew_finds_its_blocks(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(RAM, HELD, disk := Disk(tmp_path, DISK, 10**6))
        for number in range(4):
            store.put(key(number), block(number, 3000))
        await store.flush()
        await disk.close()
        again = Store(RAM, HELD, disk := Disk(tmp_path, DISK, 10**6))
        assert again.lookup([key(number) for number in range(4)]) == Overlap(4, 0, 4)
        assert [await again.get(key(number)) for number in range(4)] == [block(number, 3000) for number in range(4)]
        again.put(key(9), block(9, 3000))
        await again.flush()
        numbers = [int(file.stem.partition("-")[2]) for file in tmp_path.glob("*/*.kv")]
        assert len(numbers) == len(set(numbers)) == 5, "no number is used twice"
        await disk.close()

    run(main())


def test_a_smaller_limit_keeps_the_newest_of_what_was_there(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(10**6, 0, disk := Disk(tmp_path, 10**6, 10**6))
        for number in range(9):
            store.put(key(number), block(number, 3000))
            await store.flush()
        await disk.close()
        for limit, most, left in ((10**6, 5, 5), (3 * 4096, 100, 3)):
            disk = Disk(tmp_path, limit, 10**6, most)
            assert list(disk.entries) == [key(number) for number in range(9 - left, 9)]
            await disk.close()
            assert len(list(tmp_path.glob("*/*.kv"))) == left

    run(main())


def test_what_was_never_finished_is_swept_and_what_others_put_there_stays(tmp_path: Path) -> None:
    shelf = block_file.path(tmp_path, b"\xab", 1).parent
    shelf.mkdir()
    for name in ("ab-1.part", "ab-2.kv", "ab-3.kv", "notes.txt", "ab-3.kv.old"):
        (shelf / name).write_bytes(b"x")  # too short for a block

    async def main() -> None:
        disk = Disk(tmp_path, DISK, 10**6)
        assert not disk.entries
        await disk.close()

    run(main())
    assert sorted(file.name for file in shelf.iterdir()) == ["ab-3.kv.old", "notes.txt"]


@pytest.mark.parametrize("harm", ["flip", "cut", "lengthen", "lose", "swap"])
def test_a_damaged_block_is_a_miss_and_is_dropped(harm: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(10**6, 0, disk := Disk(tmp_path, 10**6, 10**6))
        for number in range(2):
            store.put(key(number), block(number, 3000))
        await store.flush()
        await disk.close()
        file, other = (next(tmp_path.glob(f"*/{key(number).hex()}-*.kv")) for number in range(2))
        data = file.read_bytes()
        if harm == "flip":
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif harm == "swap":  # another block under this name
            file.write_bytes(other.read_bytes())
        elif harm != "lose":
            file.write_bytes(data[:-1] if harm == "cut" else data + b"x")
        store = Store(10**6, 0, disk := Disk(tmp_path, 10**6, 10**6))
        if harm == "lose":
            file.unlink()
        assert store.lookup([key(0)]).leading == 1
        assert await store.get(key(0)) is None
        assert disk.damaged == 1 and store.lookup([key(0)]).leading == 0
        assert await store.get(key(1)) == block(1, 3000)
        await disk.close()
        assert not file.exists()

    run(main())


def test_a_full_disk_drops_blocks_and_serves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = block_file._write_all, [False]

    def write_all(opened: int, data: Any) -> None:
        real(opened, data[: len(data) // 2])
        if full[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        real(opened, data[len(data) // 2 :])

    monkeypatch.setattr(block_file, "_write_all", write_all)

    async def main() -> None:
        store = Store(RAM, 0, disk := Disk(tmp_path, 10**6, 10**6))
        for number in range(8):
            store.put(key(number), block(number, 5000))
        await disk.settle()
        before = len(disk.entries)
        full[0] = True
        for number in range(8, 10):
            store.put(key(number), block(number, 5000))
        await disk.settle()
        assert disk.write_failures == 2 and len(disk.entries) == before - 2, "the oldest make room"
        full[0] = False
        store.put(key(10), block(10, 5000))
        await disk.settle()
        assert len(disk.entries) == before - 1
        assert await store.get(key(10)) == block(10, 5000)
        assert len(list(tmp_path.glob("*/*"))) == len(disk.entries), "half a file is not left"
        await disk.close()

    run(main())


def test_a_disk_that_falls_behind_costs_blocks_and_not_memory(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(RAM, 0, disk := Disk(tmp_path, 10**6, 4 * 8192))
        for number in range(50):  # no thread gets a turn to tell between two of them
            store.put(key(number), block(number, 5000))
            assert disk.unwritten <= 4 * 8192
        assert disk.dropped_busy > 0
        await disk.settle()
        assert disk.written + disk.dropped_busy == 48
        await disk.close()

    run(main())


def test_a_folder_has_one_daemon(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk(tmp_path, DISK, 10**6)
        with pytest.raises(HeadwayError, match="in use by another daemon"):
            Disk(tmp_path, DISK, 10**6)
        await disk.close()
        await Disk(tmp_path, DISK, 10**6).close()
        (tmp_path / "file").write_text("x")
        with pytest.raises(HeadwayError, match=r"disk\.folder: .* cannot be used"):
            Disk(tmp_path / "file" / "folder", DISK, 10**6)

    run(main())
