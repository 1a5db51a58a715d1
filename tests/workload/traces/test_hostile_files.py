"""Files cut short, shuffled, mistyped or no traces at all: an error that says where, or records, and no more."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from alone import alone
from drawing import draws
from headway.errors import HeadwayError
from headway.workload import replay, trace_spec
from headway.workload.traces import FORMATS, open_trace
from headway.workload.traces.record import Options

MOONCAKE = [
    {"timestamp": 5 * n, "input_length": 600 + n, "output_length": 3, "hash_ids": [0, n + 1], "session_id": n % 3}
    for n in range(8)
]
AGENTIC = [
    {"timestamp": n, "input_length": 9, "output_length": 3, "hash_ids": [n], "request_id": n, "wait_for": [n - 1][:n]}
    for n in range(8)
]
BAILIAN = [
    {"chat_id": n, "parent_chat_id": n - 3 if n > 2 else -1, "timestamp": n, "input_length": 20, "output_length": 3}
    | {"type": "text", "turn": 1 + n // 3, "hash_ids": [n % 3, n + 9]}
    for n in range(8)
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 18:17:0{n}.97,48,10\n" for n in range(8))
BURSTGPT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{n},{n % 3},1.5,ChatGPT,48,{n},58,Conversation log\n" for n in range(8)
)
FILES = {
    "mooncake": "".join(json.dumps(row) + "\n" for row in MOONCAKE),
    "agentic": "".join(json.dumps(row) + "\n" for row in AGENTIC),
    "bailian": "".join(json.dumps(row) + "\n" for row in BAILIAN),
    "azure": AZURE,
    "burstgpt": BURSTGPT,
}
FORMAT = {"agentic": "mooncake"}
TOKENS = [
    "null",
    "-1",
    "1e999",
    "1e-400",
    '"x"',
    "[]",
    "{}",
    "true",
    "NaN",
    "9" * 400,
    "9" * 5000,
    "0",
    '"\\ud800"',
    "\x00",
    "\xe9",
]
quiet = draws(30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempt(path: Path, name: str, detected: bool) -> None:
    """Read and replay; what goes wrong is one sentence with a place."""
    format = FORMAT.get(name, name)
    try:
        list(open_trace(path, None if detected else format).records)
        spec = trace_spec.parse({"path": str(path), "format": format, "starts": {"rate": "1/s"}, "replay": "think"})
        list(replay.traffic(spec, 1, "m", 10**20, None))
    except HeadwayError as error:
        sentence = str(error)
        assert "\n" not in sentence and len(sentence) < 700
        assert sentence.startswith((path.name, "workload.trace"))


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_right_before_they_are_spoilt(tmp_path: Path, name: str) -> None:
    (tmp_path / "t").write_text(FILES[name])
    assert len(list(open_trace(tmp_path / "t").records)) >= 7


@pytest.mark.parametrize("name", FILES)
@quiet
@given(cut=st.integers(0, 700), packed=st.booleans(), detected=st.booleans())
def test_truncated(tmp_path: Path, name: str, cut: int, packed: bool, detected: bool) -> None:
    content = FILES[name].encode()
    (tmp_path / "t").write_bytes(gzip.compress(content, mtime=0)[:cut] if packed else content[:cut])
    attempt(tmp_path / "t", name, detected)


@pytest.mark.parametrize("name", FILES)
@quiet
@given(order=st.permutations(range(9)), twice=st.booleans())
def test_reordered(tmp_path: Path, name: str, order: list[int], twice: bool) -> None:
    lines = FILES[name].splitlines(keepends=True)
    shuffled = "".join(lines[at] for at in order if at < len(lines))
    (tmp_path / "t").write_text(shuffled * (1 + twice))
    attempt(tmp_path / "t", name, detected=False)


@pytest.mark.parametrize("name", FILES)
@quiet
@given(line=st.integers(0, 8), field=st.integers(0, 9), token=st.sampled_from(TOKENS))
def test_mistyped(tmp_path: Path, name: str, line: int, field: int, token: str) -> None:
    lines = FILES[name].splitlines()
    line %= len(lines)
    if lines[line].startswith("{"):
        row = json.loads(lines[line])
        key = list(row)[field % len(row)]
        row[key] = "<here>"
        lines[line] = json.dumps(row).replace('"<here>"', token)
    else:
        cells = lines[line].split(",")
        cells[field % len(cells)] = token
        lines[line] = ",".join(cells)
    (tmp_path / "t").write_text("\n".join(lines), encoding="latin-1")
    attempt(tmp_path / "t", name, detected=False)


@pytest.mark.parametrize("name", sorted(FORMATS))
@quiet
@given(content=st.binary(max_size=300), packed=st.booleans())
def test_binary(tmp_path: Path, name: str, content: bytes, packed: bool) -> None:
    (tmp_path / "t").write_bytes(gzip.compress(content, mtime=0) if packed else content)
    for format in (name, None):
        try:
            list(open_trace(tmp_path / "t", format, Options(limit=100)).records)
        except HeadwayError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", FILES)
@quiet
@given(at=st.integers(0, 900), garbage=st.binary(min_size=1, max_size=20))
def test_bytes_spoilt_in_the_middle(tmp_path: Path, name: str, at: int, garbage: bytes) -> None:
    content = FILES[name].encode()
    (tmp_path / "t").write_bytes(content[:at] + garbage + content[at + len(garbage) :])
    attempt(tmp_path / "t", name, detected=False)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"timestamp": 1, "hash_ids": [' + b"1, " * (1 << 25), 1)
    (tmp_path / "t.gz").write_bytes(packed)
    with pytest.raises(HeadwayError, match=r"^t\.gz line 1: is longer than 64 MiB"):
        list(open_trace(tmp_path / "t.gz", "mooncake").records)


# --- memory ------------------------------------------------------------------------------------------------------


def mooncake_lines(count: int) -> Iterator[str]:
    rng = Random(1)
    for number in range(count):
        ids = [rng.randrange(10**6) for _ in range(6)]
        row = {"timestamp": number, "input_length": 3000, "output_length": 9, "hash_ids": ids}
        yield json.dumps(row | {"session_id": number // 5}) + "\n"


def azure_lines(count: int) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for number in range(count):
        yield f"2024-05-10 {number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}.5+00:00,500,20\n"


def burstgpt_lines(count: int) -> Iterator[str]:
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for number in range(count):
        yield f"{number},ChatGPT,500,20,520,API log\n"


LINES = {"mooncake": mooncake_lines, "azure": azure_lines, "burstgpt": burstgpt_lines}


def growth(small: str, large: str, through_traffic: bool) -> int:
    """By how many bytes the peak of a large file exceeds 1.1 times that of a small one."""
    peaks = []
    for path in (small, small, large):  # at first also for what is imported and cached
        tracemalloc.start()
        if through_traffic:
            for _ in replay.traffic(trace_spec.parse({"path": path}), 1, "m", 10**20, None):
                pass
        else:
            for _ in open_trace(Path(path)).records:
                pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return round(peaks[2] - 1.1 * peaks[1])


@pytest.mark.parametrize(
    ("name", "through_traffic"),
    [
        pytest.param(name, through, marks=() if (name, through) == ("mooncake", False) else pytest.mark.full)
        for name, through in [*((name, False) for name in LINES), ("azure", True), ("burstgpt", True)]
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str, through_traffic: bool) -> None:
    paths = [tmp_path / f"{count}.gz" for count in (2_000, 8_000)]
    for path, count in zip(paths, (2_000, 8_000), strict=True):
        with gzip.open(path, "wt", 1) as file:
            file.writelines(LINES[name](count))
    assert alone(growth, *map(str, paths), through_traffic) < 50_000


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("mooncake", '"input_length": ', '"input_length": -', "input_length"),
        ("mooncake", '"output_length": ', '"output_length": "many" , "x": ', "output_length"),
        ("mooncake", '"timestamp": ', '"timestamp": -1', "timestamp"),
        ("mooncake", '"hash_ids": [', '"hash_ids": ["a", ', "hash_ids"),
        ("bailian", '"input_length": ', '"input_length": -', "input_length"),
        ("bailian", '"chat_id": ', '"chat_id": "c", "x": ', "chat_id"),
        ("azure", ",48,", ",forty,", "ContextTokens"),
        ("azure", "2023-11-16", "2023-13-16", "TIMESTAMP"),
        ("burstgpt", ",48,", ",-48,", "Request tokens"),
        ("burstgpt", "1.5", "soon", "Elapsed time"),
    ],
)
def test_a_wrong_value_is_told_with_file_line_and_field(
    tmp_path: Path, name: str, old: str, new: str, field: str
) -> None:
    lines = FILES[name].splitlines()
    assert old in lines[3]
    lines[3] = lines[3].replace(old, new, 1)
    (tmp_path / "t").write_text("\n".join(lines))
    with pytest.raises(HeadwayError) as wrong:
        list(open_trace(tmp_path / "t", FORMAT.get(name, name)).records)
    assert str(wrong.value).startswith("t line 4: ") and field in str(wrong.value)
