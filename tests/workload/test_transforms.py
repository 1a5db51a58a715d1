"""Transforms: what each of them keeps, and that they compose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drawing import draws
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload import replay, trace_spec
from headway.workload.inspect import describe
from headway.workload.traces import mooncake, open_trace, weka
from headway.workload.traces.record import LOCAL, Info, Options, Reader, Record
from headway.workload.traces.table import Trace
from headway.workload.transforms import TRANSFORMS, apply, parse
from headway.workload.transforms.dequantise import find_grid
from headway.workload.transforms.numbering import Counter, Numbering

S = PS_PER_SECOND
US = S // 1_000_000
MIN = 60 * S


def reader(records: Sequence[Record], **info: Any) -> Reader:
    return Reader(Info("made", **info), iter(records))


def run(records: Sequence[Record], *steps: Any, **info: Any) -> list[Record]:
    return list(apply(reader(records, **info), parse(list(steps), "transforms")).records)


def ids(record: Record) -> list[int]:
    return [block for first, count in record.blocks or () for block in range(first, first + count)]


def shape(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Ids numbered by first appearance: equal for equal structures."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(block, len(numbers)) for block in prompt] for prompt in prompts]


def turns(count: int, session: str = "s", gap_s: int = 60) -> list[Record]:
    return [
        Record(100, 10, turn * gap_s * S, session=session, turn=turn, id=f"{session}{turn}", delay_ps=turn * S)
        for turn in range(count)
    ]


@st.composite
def traces(draw: st.DrawFn, sessions: bool = True, size: int = 8) -> list[Record]:
    """Records in order of time with prompts that share prefixes."""
    trunks = draw(st.lists(st.integers(0, 40), min_size=3, max_size=3))
    outcome = []
    at_us = 0
    for number in range(draw(st.integers(1, 30))):
        at_us += draw(st.integers(0, 10**7))
        shared = draw(st.integers(0, 6))
        first = 100 * draw(st.sampled_from(trunks))
        own = draw(st.integers(1 if not shared else 0, 5))
        runs = [(first, shared)] * bool(shared) + [(10_000 + 10 * draw(st.integers(0, 9)), own)] * bool(own)
        blocks = shared + own
        outcome.append(
            Record(
                draw(st.integers((blocks - 1) * size + 1, blocks * size)),
                draw(st.integers(1, 300)),
                at_us * US,
                blocks=runs,
                session=draw(st.sampled_from(["a", "b", "c", None])) if sessions else None,
                turn=draw(st.one_of(st.none(), st.integers(0, 5))) if sessions else None,
                id=f"r{number}",
                delay_ps=draw(st.one_of(st.none(), st.integers(0, 10**7))),
                tenant=draw(st.sampled_from(["x", "y"])),
                model=draw(st.sampled_from(["large", "small"])),
                extra={"secret": number},
            )
        )
    return outcome


def build_capped_trace(records: Sequence[Record], max_turns: int) -> list[Record]:
    """The seed's pseudo-code, a session's missing turns being counted."""
    by_session: dict[str, list[tuple[int, int, int, Record]]] = {}
    capped = []
    for position, record in enumerate(records):
        if record.session is None:
            capped.append((position, record))
            continue
        members = by_session.setdefault(record.session, [])
        turn = len(members) if record.turn is None else record.turn
        members.append((turn, record.at_ps or 0, position, record))
    for members in by_session.values():
        members.sort(key=lambda member: member[:3])
        capped.extend((position, record) for _, _, position, record in members[:max_turns])
    capped.sort(key=lambda each: each[0])
    return [record for _, record in capped]


# --- cap -------------------------------------------------------------------------------------------------------------


@given(traces(), st.integers(1, 6))
def test_cap_is_the_pseudo_code_of_the_capped_control(records: list[Record], most: int) -> None:
    transformed = run(records, {"cap": {"max_turns": most}}, sessions=True)
    expected = build_capped_trace(records, most)
    assert [record.id for record in transformed] == [record.id for record in expected]
    assert [record.at_ps for record in transformed] == sorted(record.at_ps or 0 for record in transformed)


def test_cap_takes_turns_before_times_and_gives_them_back_in_order_of_time() -> None:
    records = [Record(1, 1, at * S, session="s", turn=turn, id=str(turn)) for at, turn in ((0, 2), (1, 0), (2, 1))]
    assert [record.id for record in run(records, {"cap": {"max_turns": 2}}, sessions=True)] == ["0", "1"]


def test_cap_reads_the_turns_of_a_mooncake_trace(tmp_path: Path) -> None:
    rows = [(0, 2), (1, 0), (2, 1)]
    lines = [
        f'{{"timestamp": {at}, "session_id": "s", "turn_id": {turn}, "input_length": 512, "output_length": 1, '
        f'"hash_ids": [{at}]}}\n'
        for at, turn in rows
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(lines))
    reader = apply(mooncake.read(path, Options()), parse([{"cap": {"max_turns": 2}}], "transforms"))
    assert [record.turn for record in reader.records] == [0, 1]


def test_cap_keeps_what_has_no_session_of_its_own() -> None:
    records = [*turns(3), *(Record(1, 1, 200 * S) for _ in range(5))]
    assert len(run(records, {"cap": {"max_turns": 1}}, sessions=True)) == 6


def test_cap_derives_sessions_from_blocks_and_does_not_call_them_recorded() -> None:
    own = [Record(64 * length, 1, S * length, blocks=[(0, length)]) for length in range(1, 6)]
    capped = apply(reader(own, block_tokens=64), parse([{"cap": {"max_turns": 3}}], "transforms"))
    assert list(capped.records) == own[:3]
    assert not capped.info.sessions


def test_cap_says_so_where_there_is_nothing_to_tell_sessions_by() -> None:
    with pytest.raises(HeadwayError, match=r"transforms\[0\]\.cap: .*has neither recorded sessions nor blocks"):
        run([Record(1, 1, 0)], {"cap": {"max_turns": 1}})


@pytest.mark.parametrize(("name", "left"), [("conversation", 11_712), ("synthetic", 3_770)])
def test_capping_derived_sessions_leaves_the_published_number_of_requests(traces: Path, name: str, left: int) -> None:
    source = mooncake.FORMAT.read(traces / "mooncake" / f"{name}_trace.jsonl.gz", Options())
    assert sum(1 for _ in apply(source, parse([{"cap": {"max_turns": 8}}], "")).records) == left


@pytest.mark.full
def test_capping_the_agents_sessions_leaves_the_published_number_of_requests(traces: Path) -> None:
    source = weka.FORMAT.read(traces / "agentic-coding-weka" / "sessions_compact.jsonl.gz", Options())
    capped = apply(source, parse([{"cap": {"max_turns": 8}}], ""))
    trace = Trace.load(capped)  # which finds everything that is waited for
    assert len(trace) == 5_433


# --- scale -----------------------------------------------------------------------------------------------------------


@given(traces())
def test_scaling_by_two_and_back_changes_no_time(records: list[Record]) -> None:
    transformed = run(records, {"scale": {"rate": 2}}, {"scale": {"rate": 0.5}})
    assert [record.at_ps for record in transformed] == [record.at_ps for record in records]
    assert all(
        abs((each.delay_ps or 0) - (other.delay_ps or 0)) <= 1 for each, other in zip(transformed, records, strict=True)
    )


def test_scale_divides_arrivals_and_delays() -> None:
    transformed = run([Record(10, 5, 30 * S, delay_ps=3 * S)], {"scale": {"rate": 3}})
    assert (transformed[0].at_ps, transformed[0].delay_ps) == (10 * S, S)


@pytest.mark.full
@given(traces(), st.sampled_from(["0.1", "0.5", "0.9", "1.3", "2", "7.5"]), st.booleans())
def test_scaled_prompts_have_the_blocks_they_fill_and_share_what_they_shared(
    records: list[Record], by: str, whole: bool
) -> None:
    if whole:
        records = [replace(record, blocks=_full(record)) for record in records]
    transformed = run(records, {"scale": {"prompt_tokens": by}}, block_tokens=8, whole_blocks=whole)
    for old, new in zip(records, transformed, strict=True):
        exact = old.prompt_tokens * Fraction(by)
        assert new.prompt_tokens == max(1, int(exact + Fraction(1, 2)))
        assert len(ids(new)) == (new.prompt_tokens // 8 if whole else -(-new.prompt_tokens // 8))
    for i, j in combinations(range(len(transformed)), 2):
        before, after = _common(records[i], records[j]), _common(transformed[i], transformed[j])
        fits = min(len(ids(transformed[i])), len(ids(transformed[j])))
        full = min(record.prompt_tokens // 8 for record in (records[i], records[j]))
        assert after == min(before, fits) if Fraction(by) < 1 else min(before, full, fits) <= after <= min(before, fits)


def _full(record: Record) -> list[tuple[int, int]]:
    store = ids(record)[: record.prompt_tokens // 8]
    return [(block, 1) for block in store]


def _common(record: Record, other: Record) -> int:
    count = 0
    for left, right in zip(ids(record), ids(other), strict=False):
        if left != right:
            break
        count += 1
    return count


def test_scaled_outputs_take_what_was_declared_along_and_keep_a_token() -> None:
    records = [Record(10, 5, 0, max_tokens=100), Record(10, 1, 0), Record(10, 0, 0)]
    transformed = run(records, {"scale": {"output_tokens": 0.1}})
    assert [(record.output_tokens, record.max_tokens) for record in transformed] == [(1, 10), (1, None), (0, None)]


def test_a_trace_slowed_down_beyond_the_clock_is_an_error() -> None:
    with pytest.raises(HeadwayError, match=r"transforms\[0\]\.scale\.rate: request 2 would arrive after 1000 days"):
        run([Record(1, 1, 0), Record(1, 1, 86400 * S)], {"scale": {"rate": 0.001}})


# --- slice and merge -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Keeps records in a file that `merge` can read."""
    from headway.workload.traces import own

    def keep(records: Sequence[Record], name: str = "other.jsonl", **info: Any) -> str:
        file = tmp_path / name
        own.FORMAT.write(file, Info("made", **info), iter(records))
        return str(file)

    return keep


@given(traces(), st.integers(0, 10**8))
@draws(20)
def test_the_two_halves_of_a_trace_merge_to_the_whole(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], border_us: int
) -> None:
    from headway.workload.traces import own

    border = f"{border_us + 1}us"
    file = tmp_path_factory.mktemp("halves") / "second.jsonl"
    late = [record for record in records if (record.at_ps or 0) >= (border_us + 1) * US]
    if not late or len(late) == len(records):
        return
    info = {"block_tokens": 8, "sessions": True}
    second = run(records, {"slice": {"start": border}}, **info)
    own.FORMAT.write(file, Info("made", **info), iter(second))
    back = {"merge": {"path": str(file), "format": "headway", "offset": border, "apart": False}}
    transformed = run(records, {"slice": {"end": border}}, back, **info)
    # All but the delays of turns whose session was cut before them.
    assert [replace(each, delay_ps=None) for each in transformed] == [replace(each, delay_ps=None) for each in records]


def test_slice_by_time_counts_from_its_start_and_cuts_sessions() -> None:
    transformed = run(turns(5), {"slice": {"start": "1m", "end": "3m"}}, sessions=True)
    assert [(record.turn, record.at_ps) for record in transformed] == [(1, 0), (2, MIN)]
    assert [record.delay_ps for record in transformed] == [None, 2 * S]  # nothing is left for the first to come after


def test_slice_by_number_counts_from_the_first_request() -> None:
    transformed = run(turns(5), {"slice": {"requests": [2, 4]}}, sessions=True)
    assert [(record.turn, record.at_ps) for record in transformed] == [(2, 0), (3, MIN)]


def test_slice_can_keep_the_sessions_that_begin_inside_with_all_their_turns() -> None:
    late = [replace(record, at_ps=(record.at_ps or 0) + 90 * S) for record in turns(3, "late")]
    records = sorted([*turns(5), *late], key=lambda record: record.at_ps or 0)
    transformed = run(records, {"slice": {"start": "1m", "end": "2m", "whole_sessions": True}}, sessions=True)
    assert [record.id for record in transformed] == ["late0", "late1", "late2"]
    assert transformed[0].at_ps == 30 * S


def test_slice_takes_sessions_by_number_also_where_they_share_no_clock() -> None:
    records = [record for name in "abcd" for record in turns(3, name)]
    transformed = run(records, {"slice": {"sessions": [1, 3]}}, sessions=True, clock="session")
    assert [record.id for record in transformed] == ["b0", "b1", "b2", "c0", "c1", "c2"]
    assert transformed[3].at_ps == 0
    with pytest.raises(HeadwayError, match=r"transforms\[0\]\.slice: the sessions of this trace have no common clock"):
        run(records, {"slice": {"end": "1m"}}, sessions=True, clock="session")


def test_who_waited_for_a_request_that_is_gone_waits_for_what_that_one_waited_for() -> None:
    chain = [replace(record, turn=None) for record in turns(4)]
    chain[3] = replace(chain[3], after=("s2",))
    transformed = run([replace(each, output_tokens=9 if n in (1, 2) else 10) for n, each in enumerate(chain)],
                {"filter": {"min_output_tokens": 10}}, sessions=True)  # fmt: skip
    assert [(record.id, record.after) for record in transformed] == [("s0", ()), ("s3", ("s0",))]


def test_merge_goes_by_time_and_keeps_sessions_ids_and_blocks_apart(store: Any) -> None:
    mine = [Record(16, 1, at * S, blocks=[(5, 2)], session="s", id=f"{at}", after=after) for at, after in
            ((0, ()), (4, ("0",)))]  # fmt: skip
    path = store(mine, block_tokens=8, sessions=True)
    transformed = run(mine, {"merge": {"path": path, "offset": "1s"}}, {"merge": {"path": path, "offset": "1s"}},
                block_tokens=8, sessions=True)  # fmt: skip
    assert [record.at_ps for record in transformed] == [0, S, S, 4 * S, 5 * S, 5 * S]
    assert [record.session for record in transformed] == ["s", "a:b:s", "b:s", "s", "a:b:s", "b:s"]
    assert [record.after for record in transformed[3:]] == [("0",), ("a:b:0",), ("b:0",)]
    assert shape([ids(record) for record in transformed]) == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]


def test_merged_blocks_of_two_sizes_are_told_in_parts_of_both(store: Any) -> None:
    path = store([Record(20, 1, 0, blocks=[(1, 5)], session="s")], block_tokens=4, sessions=True, scope=LOCAL)
    merged = apply(reader([Record(20, 1, 0, blocks=[(0, 2)])], block_tokens=16), parse([{"merge": {"path": path}}], ""))
    assert merged.info.block_tokens == 4
    assert [len(ids(record)) for record in merged.records] == [5, 5]


@pytest.mark.parametrize("scope", [LOCAL, "trace"])
def test_what_is_behind_the_last_full_block_has_content_of_its_own_in_finer_blocks(store: Any, scope: str) -> None:
    info = {"whole_blocks": True, "sessions": True, "scope": scope}
    path = store([Record(16, 1, 0, blocks=[(0, 4)], session="s")], block_tokens=4, **info)
    mine = [Record(30, 1, 0, blocks=[(0, 1)], session="m"), Record(40, 1, S, blocks=[(0, 2)], session="m")]
    merged = apply(reader(mine, block_tokens=16, **info), parse([{"merge": {"path": path}}], ""))
    records = list(merged.records)
    assert [len(ids(record)) for record in records] == [7, 4, 10]  # so many full blocks of 4
    assert ids(records[0])[:4] == ids(records[2])[:4]
    assert not set(ids(records[0])[4:]) & set(ids(records[2]))
    written = Path(store(records, "merged.jsonl", block_tokens=merged.info.block_tokens, **info))
    assert [record.blocks for record in open_trace(written).records] == [record.blocks for record in records]


def test_sessions_without_a_common_clock_merge_only_once_they_have_starts(store: Any) -> None:
    path = store([*turns(2, "a"), *turns(2, "b")], sessions=True, clock="session")
    with pytest.raises(HeadwayError, match=r"the sessions of .*other\.jsonl have no common clock.*starts: \{rate"):
        run([Record(1, 1, 0)], {"merge": {"path": path}})
    transformed = run([Record(1, 1, 0)], {"merge": {"path": path, "transforms": [{"starts": {"rate": "1/min"}}]}})
    assert len(transformed) == 5
    assert [record.at_ps for record in transformed] == sorted(record.at_ps or 0 for record in transformed)


# --- filter ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@given(traces())
def test_filter_keeps_exactly_what_holds(records: list[Record]) -> None:
    expected = [
        each for each in records if each.tenant == "x" and each.prompt_tokens >= 20 and each.session in ("a", "b")
    ]
    step = {"filter": {"tenant": "x", "session": ["a", "b"], "min_prompt_tokens": 20}}
    if expected:
        assert [record.id for record in run(records, step, sessions=True)] == [record.id for record in expected]
    else:
        with pytest.raises(HeadwayError, match=r"transforms\[0\]\.filter: this transform removes every request"):
            run(records, step, sessions=True)


def test_filter_by_turn() -> None:
    assert [record.turn for record in run(turns(6), {"filter": {"turn": [0, 5]}}, sessions=True)] == [0, 5]
    assert [record.turn for record in run(turns(6), {"filter": {"min_turn": 2, "max_turn": 3}}, sessions=True)] == [
        2,
        3,
    ]


# --- dequantise ------------------------------------------------------------------------------------------------------


def cv(records: Iterator[Record]) -> float:
    times = [(record.at_ps or 0) / S for record in records]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = fsum(gaps) / len(gaps)
    return sqrt(fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


@pytest.mark.parametrize(
    ("file", "raw", "spread"),
    [("conversation_trace.jsonl.gz", 3.03, 1.01), ("arxiv_mooncake_trace_first1000.jsonl", 4.03, 1.00)],
)
def test_dequantise_takes_the_grid_out_of_real_traces(traces: Path, file: str, raw: float, spread: float) -> None:
    path = traces / "mooncake" / file
    before = mooncake.FORMAT.read(path, Options())
    assert cv(before.records) == pytest.approx(raw, abs=0.01)
    for seed in range(2):
        after = apply(mooncake.FORMAT.read(path, Options()), parse([{"dequantise": {"seed": seed}}], ""))
        tolerance = 0.03 if raw < 4 else 0.1  # of a CV of 1,000 gaps the standard error is about 0.03
        assert cv(after.records) == pytest.approx(spread, abs=tolerance)


@given(traces(sessions=False), st.integers(1, 5), st.integers(0, 3))
def test_dequantise_stays_within_the_tick_and_keeps_the_order(records: list[Record], tick: int, seed: int) -> None:
    grid = tick * S
    records = [replace(record, at_ps=(record.at_ps or 0) // grid * grid) for record in records]
    transformed = run(records, {"dequantise": {"grid": f"{tick}s", "seed": seed}})
    assert [record.id for record in transformed] == [record.id for record in records]
    assert [(record.at_ps or 0) // grid * grid for record in transformed] == [record.at_ps for record in records]
    assert [record.at_ps for record in transformed] == sorted(record.at_ps or 0 for record in transformed)


def test_dequantise_refuses_a_trace_without_a_grid(traces: Path) -> None:
    path = traces / "mooncake" / "synthetic_trace.jsonl.gz"
    with pytest.raises(HeadwayError, match=r"dequantise\.grid: the time stamps of this trace lie on no grid"):
        list(apply(mooncake.FORMAT.read(path, Options()), parse(["dequantise"], "transforms")).records)


def test_bursts_at_any_instant_are_no_grid_and_whole_seconds_with_gaps_are_one() -> None:
    bursts = sorted(at * at % 9973 * 1_000_003 * US for at in range(300) for _ in range(3))
    assert find_grid(bursts) is None
    seconds = sorted(at * at % 101 * S for at in range(400))
    assert find_grid(seconds) == S


# --- assign ----------------------------------------------------------------------------------------------------------


def test_assigned_tenants_have_their_shares_and_their_classes() -> None:
    records = [Record(100, 10, number * S, tenant="old", slo_class="standard") for number in range(4000)]
    tenants = {"search": 3, "crawler": {"weight": 1, "slo_class": "batch"}}
    transformed = run(records, {"assign": {"tenants": tenants}})
    assert {(record.tenant, record.slo_class) for record in transformed} == {
        ("search", "standard"),
        ("crawler", "batch"),
    }
    assert 900 < sum(record.tenant == "crawler" for record in transformed) < 1100
    assert [record.at_ps for record in transformed] == [record.at_ps for record in records]
    assert run(records, {"assign": {"tenants": tenants}}) == transformed
    assert run(records, {"assign": {"tenants": tenants, "seed": 1}}) != transformed


def test_the_requests_of_a_session_go_to_one_tenant() -> None:
    records = [record for session in "abcdefgh" for record in turns(5, session)]
    transformed = run(records, {"assign": {"tenants": {"x": 1, "y": 1}}}, sessions=True)
    owners = {(record.session, record.tenant) for record in transformed}
    assert len(owners) == 8 and {tenant for _, tenant in owners} == {"x", "y"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"assign\.tenants: is empty"),
        ({"a": 0}, r"assign\.tenants\.a\.weight: 0 is not a factor"),
        ({"a": {"weigth": 1}}, r"assign\.tenants\.a"),
        ({"a": [1]}, r"assign\.tenants\.a: expected a weight"),
    ],
)
def test_tenants_that_cannot_be_assigned_are_told(entry: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        parse([{"assign": {"tenants": entry}}], "transforms")


# --- anonymise -------------------------------------------------------------------------------------------------------


@given(traces(), st.sampled_from([None, 3, "secret"]))
def test_an_anonymous_trace_has_the_same_figures_and_structure_and_no_name_left(
    records: list[Record], seed: int | str | None
) -> None:
    transformed = run(records, {"anonymise": {"seed": seed}}, sessions=True, block_tokens=8)
    assert [record.prompt_tokens for record in transformed] == [record.prompt_tokens for record in records]
    assert [record.at_ps for record in transformed] == [record.at_ps for record in records]
    assert shape([ids(record) for record in transformed]) == shape([ids(record) for record in records])
    for field in ("session", "tenant", "model", "id"):
        before, after = ([getattr(record, field) for record in side] for side in (records, transformed))
        assert [before.index(value) for value in before] == [after.index(value) for value in after]
        assert not [value for value in after if value is not None and value in before]
    assert all(not record.extra for record in transformed)


def test_an_anonymous_trace_looks_the_same_to_inspect(traces: Path) -> None:
    path = traces / "mooncake" / "arxiv_mooncake_trace_first1000.jsonl"
    plain = describe(Trace.load(open_trace(path)), (1000, None), (1, 8))
    hidden = describe(Trace.load(apply(open_trace(path), parse(["anonymise"], ""))), (1000, None), (1, 8))
    assert hidden == plain


def test_pseudonyms_are_the_same_in_every_file_of_a_seed_and_other_with_another() -> None:
    names = [run([Record(1, 1, 0, tenant="acme")], {"anonymise": {"seed": seed}})[0].tenant for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 5000)), max_size=12))
def test_renumbering_runs_is_renumbering_blocks(runs: list[tuple[int, int]]) -> None:
    numbering = Numbering(Counter())
    requests = [
        block for run in runs for first, count in numbering.runs([run]) for block in range(first, first + count)
    ]
    known: dict[int, int] = {}
    expected = [known.setdefault(block, len(known)) for first, count in runs for block in range(first, first + count)]
    assert requests == expected


# --- all of them -----------------------------------------------------------------------------------------------------


def nest(depth: int) -> list[Any]:
    steps: list[Any] = []
    for _ in range(depth):
        steps = [{"merge": {"path": "x", "transforms": steps}}]
    return steps


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"cap": {}}, r"w\.transforms: expected a list"),
        ([{"cat": {}}], r"w\.transforms\[0\]: no transform is called 'cat'\. Did you mean 'cap'\?"),
        (["cap"], r"w\.transforms\[0\]\.cap: 'max_turns' is missing"),
        ([{"cap": {"max_turns": 0}}], r"w\.transforms\[0\]\.cap\.max_turns: expected a whole number of at least 1"),
        ([{"cap": {"max_turn": 1}}], r"cap\.max_turn: there is no such key\. Did you mean 'max_turns'\?"),
        ([{"cap": {"max_turns": 1}, "scale": {"rate": 2}}], r"w\.transforms\[0\]: expected one transform"),
        ([{"scale": {"rate": 0}}], r"w\.transforms\[0\]\.scale\.rate: 0 is not a factor"),
        (["scale"], r"w\.transforms\[0\]\.scale: has nothing to scale"),
        ([{"slice": {"start": "1m", "requests": [0, 1]}}], r"slice: set either start and end, or requests"),
        ([{"slice": {"start": "2m", "end": "1m"}}], r"slice\.end: must be later than start, got '1m'"),
        ([{"slice": {"requests": [3, 3]}}], r"slice\.requests: expected two whole numbers"),
        (["filter"], r"filter: has no key to filter by"),
        ([{"dequantise": {"grid": "three"}}], r"dequantise\.grid: 'three' is not a duration"),
        (
            [{"merge": {"path": "x", "transforms": ["cut"]}}],
            r"\[0\]\.merge\.transforms\[0\]: no transform",
        ),
        ([{"starts": {"rate": 3}}], r"starts\.rate: 3 is not a rate"),
        (["dequantise"] * 31, r"^w\.transforms: too many transforms\. The limit is 30 in a list and 4 nested merges"),
        (
            nest(6),
            r"^w\.transforms\[0\]\.merge\.transforms.*: too many transforms\. The limit is 30 in a list and 4 nested",
        ),
        (
            nest(5000),
            r"^w\.transforms\[0\]\.merge\.transforms.*: too many transforms\. The limit is 30 in a list and 4 nested",
        ),
    ],
)
def test_a_wrong_transform_is_told_at_its_place(steps: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        parse(steps, "w.transforms")


def test_transforms_compose_in_their_order() -> None:
    steps = [{"cap": {"max_turns": 3}}, {"scale": {"rate": 2}}, {"slice": {"start": "30s"}}, "anonymise"]
    transformed = run(turns(9), *steps, sessions=True)
    assert [(record.session, record.turn, record.at_ps) for record in transformed] == [
        ("session-1", 1, 0),
        ("session-1", 2, 30 * S),
    ]


def test_every_transform_reads_as_it_is_asked_and_not_before() -> None:
    def endless() -> Iterator[Record]:
        number = 0
        while True:
            yield Record(10, 1, number * S, tenant="x")
            number += 1

    steps = [{"scale": {"rate": 2, "prompt_tokens": 3}}, {"filter": {"tenant": "x"}}, {"dequantise": {"grid": "1s"}},
             {"slice": {"requests": [5, 10]}}, "anonymise"]  # fmt: skip
    assert len(list(apply(Reader(Info("made"), endless()), parse(steps, "")).records)) == 5
    known = {"cap", "scale", "slice", "merge", "filter", "dequantise", "anonymise", "starts", "assign"}
    assert set(TRANSFORMS) == known


def test_a_scenario_transforms_the_trace_that_it_replays(store: Any) -> None:
    steps = [{"cap": {"max_turns": 3}}, {"scale": {"rate": 2}}]
    spec = trace_spec.parse({"path": store(turns(9), sessions=True), "transforms": steps, "replay": "timestamps"})
    requests = replay.traffic(spec, 1, "m", 10**20, None)
    assert [planned.request.arrival_ps for planned in requests] == [0, 30 * S, 60 * S]
    with pytest.raises(HeadwayError, match=r"workload\.trace\.transforms\[0\]: no transform is called 'cat'"):
        trace_spec.parse({"path": "x", "transforms": [{"cat": {}}]})
