"""From any format to any other: what is written reads back as the same workload, what is lost is said, memory is
bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from alone import alone
from headway.errors import HeadwayError
from headway.workload.traces import FORMATS, open_trace
from headway.workload.traces.record import Info, Options, Record
from headway.workload.transforms.rewrite import Rewritten, rewrite

NAMES = ("headway", "blis", "routesim", "mooncake", "azure")
SUFFIX = {"headway": ".jsonl.gz", "blis": ".csv", "routesim": ".jsonl", "mooncake": ".jsonl", "azure": ".csv"}
MS = 10**9


def writable(name: str) -> str:
    if name not in FORMATS or FORMATS[name].write is None:
        pytest.skip(f"the format {name} is not written yet")
    return name


def readable(name: str) -> str:
    if name not in FORMATS:
        pytest.skip(f"the format {name} is not read yet")
    return name


def sample(count: int = 40) -> tuple[Info, list[Record]]:
    """Requests at whole milliseconds with common blocks, as every format can hold some part of."""
    records = []
    for number in range(count):
        common = number % 3
        blocks = [(100 + 10 * common, 2), (10_000 + 100 * number, 1 + number % 4)]
        prompt = 512 * (3 + number % 4) - number % 500
        records.append(Record(prompt, 1 + number % 7, number * 3 * MS, blocks))
    return Info("mooncake", 512), records


def shape(records: Iterable[Record], blocks: bool) -> list[object]:
    """Times, lengths and which blocks are equal, whatever their ids."""
    numbers: dict[int, int] = {}
    rows: list[object] = []
    for record in records:
        ids = [first + at for first, count in record.blocks or () for at in range(count)]
        same = [numbers.setdefault(row, len(numbers)) for row in ids] if blocks else None
        rows.append((record.at_ps, record.prompt_tokens, record.output_tokens, record.session, same))
    return rows


def convert(
    source: Path,
    target: Path,
    from_format: str | None = None,
    to_format: str | None = None,
    options: Options | None = None,
) -> Rewritten:
    return rewrite(source, target, read_format=from_format, format=to_format, options=options)


@pytest.mark.parametrize("name", NAMES)
def test_every_format_that_is_written_reads_back_to_the_same_workload(tmp_path: Path, name: str) -> None:
    write = FORMATS[writable(name)].write
    assert write is not None
    info, records = sample()
    path = tmp_path / f"t{SUFFIX[name]}"
    lost = write(path, info, iter(records))
    assert len(lost) == len(set(lost))
    again = list(open_trace(path, name, Options()).records)
    keeps_blocks = "the blocks of prompts" not in lost
    assert keeps_blocks == (name in ("headway", "mooncake"))
    assert shape(again, keeps_blocks) == shape(records, keeps_blocks)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_format_reads_it_writes_without_loss(tmp_path: Path, name: str) -> None:
    write = FORMATS[writable(name)].write
    assert write is not None
    info, records = sample()
    first, second = tmp_path / f"a{SUFFIX[name]}", tmp_path / f"b{SUFFIX[name]}"
    write(first, info, iter(records))
    reader = open_trace(first, name, Options())
    assert write(second, reader.info, reader.records) == []
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_by_way_of_headway_s_own_format_nothing_more_is_lost(tmp_path: Path, name: str) -> None:
    write = FORMATS[writable(name)].write
    readable("headway")
    assert write is not None
    info, records = sample()
    source, own, target = (
        tmp_path / f"{record}{SUFFIX[kind]}" for record, kind in (("a", name), ("b", "headway"), ("c", name))
    )
    write(source, info, iter(records))
    assert convert(source, own, name, "headway").lost == []
    report = convert(own, target, "headway", name)
    assert (report.lost, report.written) == ([], 40)
    assert source.read_bytes() == target.read_bytes()


def test_formats_are_told_by_content_on_the_way(tmp_path: Path) -> None:
    write = FORMATS[writable("mooncake")].write
    readable("headway")
    assert write is not None
    write(tmp_path / "a.jsonl", *sample())
    report = convert(tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz")
    assert (report.read_format, report.format, report.written) == ("mooncake", "headway", 40)
    assert convert(tmp_path / "b.jsonl.gz", tmp_path / "c.csv", to_format=writable("azure")).lost == [
        "the blocks of prompts"
    ]


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    readable("headway")
    source, target = tmp_path / "a.jsonl", tmp_path / "out" / "b.jsonl"
    target.parent.mkdir()
    source.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp":')
    with pytest.raises(HeadwayError, match=r"a\.jsonl line 2"):
        convert(source, target)
    assert list(target.parent.iterdir()) == []


def test_what_cannot_be_written_or_told_is_said_with_the_remedy(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(HeadwayError, match=r"does not show the format\. Set the format"):
        convert(source, tmp_path / "b.txt")
    with pytest.raises(HeadwayError, match="no trace format is called 'moon'"):
        convert(source, tmp_path / "b.txt", to_format="moon")
    with pytest.raises(HeadwayError, match=r"does not exist\. Create it"):
        convert(source, tmp_path / "nowhere" / "b.jsonl", to_format=writable("headway"))
    with pytest.raises(HeadwayError, match=r"is read-only\. Choose from"):
        convert(source, tmp_path / "b.txt", to_format=readable("servegen"))


def growth(folder: str, name: str, small: int, large: int) -> int:
    """How many more bytes are held at the highest while `large` requests are written and read than for `small`."""
    write = FORMATS[name].write
    assert write is not None
    info, (record,) = Info("mooncake", 512), sample(1)[1]

    def many(count: int) -> Iterator[Record]:
        for number in range(count):
            yield replace(record, at_ps=number * MS)

    def once(count: int) -> None:
        path = Path(folder) / f"{count}{SUFFIX[name]}"
        write(path, info, many(count))
        for _ in open_trace(path, name, Options()).records:
            pass

    once(10)  # what is imported and cached at the first use is not its own
    peaks = []
    for count in (small, large):
        tracemalloc.start()
        once(count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return peaks[1] - peaks[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "routesim" else pytest.mark.full) for name in NAMES]
)
def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path, name: str) -> None:
    assert alone(growth, str(tmp_path), writable(name), 500, 3000) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_the_real_conversation_survives_the_way_through_each_format(traces: Path, tmp_path: Path, name: str) -> None:
    writable(name)
    source = traces / "mooncake" / "conversation_trace.jsonl.gz"
    path = tmp_path / f"t{SUFFIX[name]}"
    report = convert(source, path, "mooncake", name, Options(limit=1500))
    keeps_blocks = "the blocks of prompts" not in report.lost
    expected = list(open_trace(source, "mooncake", Options(limit=1500)).records)
    assert shape(open_trace(path, name, Options()).records, keeps_blocks) == shape(expected, keeps_blocks)
