"""WEKA sessions: the published set, its two layouts, sub-agents, and files that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces import open_trace
from headway.workload.traces.record import Options, Record
from headway.workload.traces.source import head
from headway.workload.traces.weka import FORMAT

COMPACT = "agentic-coding-weka/sessions_compact.jsonl.gz"
RAW = "agentic-coding-weka/raw-sample"


def request(t: float, tokens: int = 130, first: int = 1, **more: Any) -> dict[str, Any]:
    ids = list(range(first, first + tokens // 64))
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 5, "hash_ids": ids, **more}


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "s",
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 100,
        "system_tokens": 30,
        "requests": list(requests),
        **more,
    }


def agent(t: float, *requests: dict[str, Any], duration_ms: float | None, name: str = "a") -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": name, "duration_ms": duration_ms, "requests": list(requests)}


def read(path: Path, **options: Any) -> list[Record]:
    return list(open_trace(path, FORMAT.name, Options(**options)).records)


def write_file(folder: Path, *sessions: Any) -> Path:
    path = folder / "sessions.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in sessions))
    return path


def refusal(folder: Path, *sessions: Any) -> str:
    with pytest.raises(HeadwayError) as error:
        read(write_file(folder, *sessions))
    return str(error.value)


def seconds(record: Record) -> float:
    assert record.delay_ps is not None
    return record.delay_ps / PS_PER_SECOND


# --- the published set ------------------------------------------------------------------------------------------


def test_the_published_set_has_the_counts_and_means_of_its_description(traces: Path) -> None:
    reader = FORMAT.read(traces / COMPACT, Options())
    assert (reader.info.block_tokens, reader.info.whole_blocks) == (64, True)
    assert (reader.info.scope, reader.info.clock, reader.info.sessions) == ("session", "session", True)
    turns: dict[str, int] = {}
    prompt = output = branched = blocks = 0
    thinks, agents = [], set()
    for record in reader.records:
        assert record.session is not None and record.blocks is not None
        assert record.turn == turns.get(record.session, 0)
        turns[record.session] = record.turn + 1
        prompt += record.prompt_tokens
        output += record.output_tokens
        blocks += sum(count for _, count in record.blocks)
        if "agent" in record.extra:
            branched += 1
            agents.add((record.session, record.extra["agent"]))
        thinks.append(record.extra.get("think_time", seconds(record)))
    rows = sum(turns.values())
    assert (rows, len(turns), branched, len(agents), max(turns.values())) == (49_334, 710, 676, 63, 561)
    assert (round(prompt / rows), round(output / rows), blocks) == (122_379, 440, 94_310_647)
    thinks.sort()
    quantiles = [thinks[int(share * (len(thinks) - 1))] for share in (0.5, 0.9, 0.99, 1)]
    assert quantiles == pytest.approx([10, 162, 3_014, 77_589], rel=0.01)
    assert sum(min(8, count) for count in turns.values()) == 5_433


def test_the_compact_form_and_the_published_files_say_the_same(traces: Path) -> None:
    published = read(traces / RAW)
    compact = [
        record for record in read(traces / COMPACT, limit=2000) if record.session in {r.session for r in published}
    ]
    assert len(published) > 200
    for record, other in zip(published, compact, strict=True):
        assert (record.blocks, record.delay_ps, record.after, record.extra) == (
            [tuple(run) for run in other.blocks or ()],
            other.delay_ps,
            other.after,
            other.extra,
        )


@pytest.mark.full
def test_in_the_published_set_a_sub_agent_starts_right_after_the_answer_that_asked_for_it(traces: Path) -> None:
    gaps, visited = [], set()
    for record in read(traces / COMPACT):
        name = (record.session, record.extra.get("agent"))
        if name[1] is not None and name not in visited:
            visited.add(name)
            gaps.append(seconds(record))
    gaps.sort()
    assert len(gaps) == 63
    assert gaps[-3] < 1.2  # the request that spawned the last two is not in the set


def test_the_format_is_told_of_files_and_folders(traces: Path, tmp_path: Path) -> None:
    for name in (COMPACT, f"{RAW}/trace_0003.json.gz"):
        assert FORMAT.tell(traces / name, head(traces / name))
    assert FORMAT.tell(traces / RAW, [])
    assert not FORMAT.tell(tmp_path, [])
    assert not FORMAT.tell(tmp_path / "x", [b'{"timestamp": 1, "hash_ids": [1]}'])


# --- one session ------------------------------------------------------------------------------------------------


def test_a_request_comes_its_think_time_after_the_one_before(tmp_path: Path) -> None:
    first = request(0, api_time=2.5, ttft=0.5, stop="tool_use", think_time=0)
    path = write_file(tmp_path, session(first, request(10, think_time=7.25), request(30)))
    record, two, three = read(path)
    assert (record.at_ps, seconds(record), record.turn, record.id, record.after) == (0, 0, 0, None, ())
    assert record.extra == {"api_time": 2.5, "ttft": 0.5, "stop": "tool_use", "tool_tokens": 100, "system_tokens": 30}
    assert (record.session, record.model, record.kind, record.blocks) == ("s", "m", "agentic", [(1, 2)])
    assert (seconds(two), two.at_ps, two.after) == (7.25, 10 * PS_PER_SECOND, ())
    assert seconds(three) == 20  # neither think time nor the previous api_time is known


def test_a_missing_think_time_is_the_gap_to_the_previous_end(tmp_path: Path) -> None:
    path = write_file(tmp_path, session(request(0, api_time=4), request(10), request(10.5, api_time=1)))
    assert [seconds(record) for record in read(path)] == [0, 6, 0.5]


def test_ids_that_jump_become_runs_and_prompts_below_a_block_have_none(tmp_path: Path) -> None:
    jumping = request(0, tokens=300, hash_ids=[1, 2, 9, 10])
    path = write_file(tmp_path, session(jumping, request(1, tokens=63), {**request(2), "type": "s"}))
    assert [record.blocks for record in read(path)] == [[(1, 2), (9, 2)], [], [(1, 2)]]


def test_an_answer_of_no_tokens_is_kept(tmp_path: Path) -> None:
    assert [record.output_tokens for record in read(write_file(tmp_path, session(request(0, out=0))))] == [0]


# --- sub-agents -------------------------------------------------------------------------------------------------


def test_a_parent_waits_for_the_sub_agents_that_ended_before_it(tmp_path: Path) -> None:
    inner = (request(0, first=50, api_time=2), request(5, first=50, api_time=3, think_time=3))
    path = write_file(
        tmp_path,
        session(
            request(0, api_time=4),
            agent(20, *inner, duration_ms=15_000),  # its t is its end: spawned at 5
            request(30, think_time=26, api_time=1),
            request(40, think_time=9),
        ),
    )
    parent, record, two, joined, last = read(path)
    assert [r.at_ps for r in (record, two, joined)] == [at * PS_PER_SECOND for at in (5, 10, 30)]
    assert (seconds(record), record.after, record.extra["agent"]) == (1, (), "a")
    assert (seconds(two), two.after) == (3, ())
    assert joined.after == (parent.id, two.id)
    assert seconds(joined) == 17  # from the sub-agent's last end at 13
    assert joined.extra["think_time"] == 26
    assert (seconds(last), last.after) == (9, ())
    assert len({r.session for r in (parent, record, joined)}) == 1


def test_sub_agents_of_one_spawn_branch_off_the_same_request(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        session(
            request(0, api_time=4),
            agent(9, request(0, api_time=1), duration_ms=4_000, name="a"),
            agent(12, request(0, api_time=6), duration_ms=7_000, name="b"),
            request(20, think_time=16),
        ),
    )
    parent, record, two, joined = read(path)
    assert (record.after, two.after) == ((), (parent.id,))
    assert joined.after == (parent.id, record.id, two.id)
    assert seconds(joined) == 9


def test_a_sub_agent_without_a_duration_runs_beside_its_parent(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        session(
            request(0, api_time=1),
            agent(2, request(0, api_time=1), request(30, api_time=5, think_time=29), duration_ms=None),
            request(10, think_time=9, api_time=1),
            request(50, think_time=39),
        ),
    )
    by_time = read(path)
    assert [record.extra.get("agent") for record in by_time] == [None, "a", None, "a", None]
    parent, record, beside, two, joined = by_time
    assert (beside.after, seconds(beside)) == ((parent.id,), 9)
    assert two.after == (record.id,)
    assert (joined.after, seconds(joined)) == ((beside.id, two.id), 13)


def test_what_a_request_waits_for_always_comes_before_it(traces: Path) -> None:
    visited: set[str] = set()
    for record in read(traces / COMPACT):
        assert set(record.after) <= visited
        if record.id is not None:
            visited.add(record.id)


def test_a_sub_agent_says_how_long_its_own_system_prompt_is(tmp_path: Path) -> None:
    own = {**agent(5, request(0), duration_ms=None), "tool_tokens": 7, "system_tokens": 8}
    extra = read(write_file(tmp_path, session(request(0), own)))[1].extra
    assert (extra["tool_tokens"], extra["system_tokens"]) == (7, 8)


# --- layouts ----------------------------------------------------------------------------------------------------


def test_a_session_may_be_a_file_of_many_lines_packed_or_not(tmp_path: Path) -> None:
    text = json.dumps(session(request(0), request(9, think_time=9)), indent=2).encode()
    (tmp_path / "plain.json").write_bytes(text)
    (tmp_path / "packed.json").write_bytes(gzip.compress(text))
    assert read(tmp_path / "plain.json") == read(tmp_path / "packed.json") != []


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps(session(request(0), id=name)))
    (tmp_path / "README.md").write_text("not a session")
    assert [record.session for record in read(tmp_path)] == ["a", "b"]
    assert FORMAT.tell(tmp_path, [])


def test_a_limit_stops_in_the_middle_of_a_session(tmp_path: Path) -> None:
    assert len(read(write_file(tmp_path, session(request(0), request(1), request(2))), limit=2)) == 2


def test_global_ids_mean_the_same_in_every_session(tmp_path: Path) -> None:
    path = write_file(tmp_path, session(request(0), hash_id_scope="global"))
    assert FORMAT.read(path, Options()).info.scope == "trace"


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (session({**request(0), "in": "x"}), "line 1: Expected `int`, got `str` - at `$.requests[0].in`"),
        (session(request(0), request(1, tokens=0)), "line 1 requests[1]: in must lie between 1"),
        (session(request(0, out=-1)), "line 1 requests[0]: out must lie between 0"),
        (session(request(0, hash_ids=[1])), "hash_ids has 1 ids, but 130 tokens are 2 full blocks of 64"),
        (session(request(0, hash_ids=[1, -2])), "hash_ids has the run [-2, 1]"),
        (session(request(0, hash_runs=[[1, 2]])), "needs either hash_ids or, in the compact form, hash_runs"),
        (session(request(0, hash_ids=None)), "needs either hash_ids or, in the compact form, hash_runs"),
        (session(request(0, hash_ids=None, hash_runs=[[1, 0], [1, 2]])), "hash_runs has the run [1, 0]"),
        (session(request(5), request(4)), "requests[1]: t 4 is earlier than that of a previous request"),
        (session(request(-1)), "t must be a time in seconds between 0 and 100 days, got -1"),
        (session(request(0, api_time=1e12)), "api_time must be a time"),
        (session(request(0), request(1, think_time=-3)), "requests[1]: think_time must be a time"),
        (session(request(0), agent(1, request(0, tokens=-5), duration_ms=0)), "requests[1].requests[0]: in must"),
        (session(request(0), agent(9e6, request(0), duration_ms=0)), "requests[1]: t must be a time"),
        (session(request(0), agent(8.6e6, request(8e4), duration_ms=None)), "requests[0]: t 80000.0 is too late"),
        (session(request(0, type="x")), "Invalid value 'x' - at `$.requests[0].type`"),
        (session(request(0), block_size=0), "block_size must lie between 1"),
        (session(request(0), hash_id_scope="moon"), "hash_id_scope must be local or global, got 'moon'"),
        ({"id": "s"}, "Object missing required field `block_size`; a session is"),
        ([1, 2], "line 1: Expected `object`, got `array`"),
    ],
)
def test_a_wrong_session_is_refused_where_it_is_wrong(tmp_path: Path, wrong: Any, problem: str) -> None:
    message = refusal(tmp_path, wrong)
    assert message.startswith("sessions.jsonl line 1") and problem in message


def test_sessions_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    record = session(request(0))
    assert "line 2: the session id 's' is already used at sessions.jsonl line 1" in refusal(tmp_path, record, record)
    other = session(request(0, tokens=32, hash_ids=[1]), id="t", block_size=32)
    assert "line 2: block_size is 32, but 64 in the first session" in refusal(tmp_path, record, other)
    shared = session(request(0), id="t", hash_id_scope="global")
    assert "line 2: hash_id_scope is 'global', but 'local'" in refusal(tmp_path, record, shared)


def test_another_block_size_than_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"block_size is 64, not 16\. Remove block_tokens"):
        read(write_file(tmp_path, session(request(0))), block_tokens=16)


def test_an_empty_folder_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="the folder has no sessions"):
        read(tmp_path)
    (tmp_path / "empty.json").write_text("\n")
    with pytest.raises(HeadwayError, match=r"empty\.json: the file is empty"):
        read(tmp_path / "empty.json")


def test_a_file_cut_short_is_refused_at_its_line(tmp_path: Path) -> None:
    text = json.dumps(session(request(0)), indent=1)
    (tmp_path / "cut.json").write_text(text[:-20])
    with pytest.raises(HeadwayError, match=r"cut\.json line \d+: Input data was truncated"):
        read(tmp_path / "cut.json")
    (tmp_path / "cut.json").write_text(text.replace('"s"', "'s'"))
    with pytest.raises(HeadwayError, match=r"cut\.json line 2: JSON is malformed"):
        read(tmp_path / "cut.json")


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
GOOD = session(request(0, api_time=1), agent(9, request(0), duration_ms=100), request(20, think_time=3))
KEYS = ("t", "type", "in", "out", "hash_ids", "api_time", "think_time", "agent_id", "duration_ms", "requests", "model")


@draws(60)
@given(at=st.integers(0, 2), key=st.sampled_from(KEYS), value=JSON)
def test_any_value_anywhere_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, at: int, key: str, value: Any
) -> None:
    changed = json.loads(json.dumps(GOOD))
    changed["requests"][at][key] = value
    path = write_file(tmp_path_factory.getbasetemp(), changed)
    try:
        read(path)
    except HeadwayError as error:
        assert "sessions.jsonl" in str(error)


@draws(60)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=20), packed=st.booleans())
def test_any_bytes_are_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, packed: bool
) -> None:
    text = json.dumps(GOOD).encode()
    text = text[:cut] + junk + text[cut + len(junk) :]
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(gzip.compress(text)[:-7] if packed else text)
    try:
        FORMAT.tell(path, head(path))
        read(path)
    except HeadwayError as error:
        assert "bytes.json" in str(error)


def test_think_times_after_an_answer_that_was_not_timed_do_not_overlap(tmp_path: Path) -> None:
    turns = (request(0, api_time=2), request(10, think_time=8), request(20, think_time=18), request(25, think_time=23))
    records = list(read(write_file(tmp_path, session(*turns))))
    assert [seconds(record) for record in records[1:]] == [8, 10, 5]
    assert [record.extra.get("think_time") for record in records[1:]] == [None, 18, 23]
