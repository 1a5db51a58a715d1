"""Live traffic as the gateway wrote it down: a run folder, or those of one process, one after the other.

Blocks are those that the gateway told prompts apart by. Where it has no tokenizer it counts so many bytes as a token,
and the engine's own counts are the lengths: what lies beyond either is content of the request alone. A request that was
not completed is left out, as nobody knows how long its answer would have been.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, Final

from headway.errors import HeadwayError
from headway.results import store
from headway.results.records import Prompt
from headway.types import PS_PER_SECOND
from headway.workload.traces.blocks import Run, add_run
from headway.workload.traces.record import Format, Info, Options, Reader, Record

NAME: Final = "records"
BLOCK_TOKENS: Final = 16  # of the trace; blocks of the gateway are cut into such
COMPLETED: Final = "completed"
PROMPTS: Final = store.LISTS["prompts"][0]
KINDS: Final = ("completion", "chat")
COLUMNS: Final = (
    *("arrival_ps", "first_token_ps", "finished_ps", "outcome", "prompt_tokens", "output_tokens", "cached_tokens"),
    *("session", "model", "tenant", "slo_class", "kind", "instance"),
)


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return path.is_dir() and bool(folders(path))


def folders(path: pathlib.Path) -> list[pathlib.Path]:
    """The run folders of a stretch of live traffic, in order of their first requests."""
    inside = [path / store.MANIFEST] if (path / store.MANIFEST).is_file() else path.glob(f"*/{store.MANIFEST}")
    return sorted(manifest.parent for manifest in inside if (manifest.parent / PROMPTS).is_file())


def read(path: pathlib.Path, options: Options) -> Reader:
    parts = folders(path)
    if not parts:
        inner = sorted(manifest.parent.parent for manifest in path.glob(f"*/*/{store.MANIFEST}"))
        which = f"name one of them, as in {inner[0]}" if inner else "`records` in a gateway's file writes them"
        wrong = "holds folders of processes" if inner else "has no records of live traffic with prompts"
        raise HeadwayError(f"{path}: {wrong}; {which}.")
    notes = _notes(path, parts)
    size = options.block_tokens or BLOCK_TOKENS
    info = Info(NAME, size, True, sessions=True, extra={"notes": notes} if notes else {})
    return Reader(info, _records(parts, size))


def _notes(path: pathlib.Path, parts: list[pathlib.Path]) -> list[str]:
    """What is not in the trace."""
    unfinished = unknown = 0
    for folder in parts:
        run = store.read(folder)
        known = {prompt.request for prompt in run.lists["prompts"]}
        for place, outcome in enumerate(run.requests.column("outcome")):
            unfinished += outcome != COMPLETED
            unknown += outcome == COMPLETED and place not in known
    notes = [f"{unfinished:,} requests that were not completed are left out"] if unfinished else []
    if unknown:
        notes.append(f"{unknown:,} requests whose prompts were not written are left out")
    entries = [] if path in parts else sorted(path.iterdir())
    lost = [entry.name for entry in entries if entry.is_dir() and entry not in parts]
    if lost:
        which = f"{', '.join(lost[:3])}{' and more' * (len(lost) > 3)}"
        notes.append(f"{len(lost):,} folders that are not whole are left out: {which}")
    return notes


def _records(parts: list[pathlib.Path], size: int) -> Iterator[Record]:
    blocks, ends = Blocks(size), dict[str, int]()
    begun: int | None = None
    number = 0
    for folder in parts:
        run = store.read(folder)
        names = {
            instance.get("index", place): instance["id"] for place, instance in enumerate(run.summary["instances"])
        }
        prompts = {prompt.request: prompt for prompt in run.lists["prompts"]}
        columns = {name: run.requests.column(name) for name in COLUMNS}
        for place in range(len(run.requests)):
            row = {name: column[place] for name, column in columns.items()}
            begun = row["arrival_ps"] if begun is None else begun
            if row["outcome"] != COMPLETED or place not in prompts:
                continue
            at_ps = max(0, row["arrival_ps"] - begun)
            session, delay_ps = _turn(ends, row, at_ps, begun)
            yield Record(
                row["prompt_tokens"],
                row["output_tokens"],
                at_ps,
                blocks.runs(prompts[place], row["prompt_tokens"]),
                session=session,
                id=str(number),
                delay_ps=delay_ps,
                model=row["model"] or None,
                tenant=row["tenant"],
                slo_class=row["slo_class"],
                kind=row["kind"] if row["kind"] in KINDS else None,
                max_tokens=prompts[place].max_tokens,
                extra={
                    "target": names.get(row["instance"], ""),
                    "ttft_s": (row["first_token_ps"] - row["arrival_ps"]) / PS_PER_SECOND,
                    "e2e_s": (row["finished_ps"] - row["arrival_ps"]) / PS_PER_SECOND,
                    "cached_tokens": row["cached_tokens"],
                },
            )
            number += 1


def _turn(ends: dict[str, int], row: dict[str, Any], at_ps: int, begun: int) -> tuple[str | None, int | None]:
    """A session, and how long after its last turn this one came. One that came before the last had ended did not wait
    for it, and is no turn."""
    session = row["session"]
    last = ends.get(session)
    if not session or (last is not None and last > at_ps):
        return None, None
    ends[session] = row["finished_ps"] - begun
    return session, None if last is None else at_ps - last


class Blocks:
    """Ids for blocks of one size: a block of the gateway's has a row of them, the same whenever it comes again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first: dict[int, int] = {}  # by key
        self.count = 0

    def runs(self, prompt: Prompt, tokens: int) -> list[Run]:
        """Of all the whole blocks of a prompt."""
        size, whole = self.size, tokens // self.size
        runs: list[Run] = []
        at = 0
        for key, end in zip(prompt.keys, prompt.ends, strict=True):
            length = end // size - at
            if length <= 0:
                continue
            if key not in self.first:
                self.first[key] = self._new(length)
            count = min(length, whole - at)
            if count <= 0:
                return runs
            add_run(runs, self.first[key], count)
            at += count
        if whole > at:
            add_run(runs, self._new(whole - at), whole - at)
        return runs

    def _new(self, count: int) -> int:
        first = self.count
        self.count += count
        return first


FORMAT: Final = Format(NAME, "Live traffic, as `headway serve` records it: its folder", tell, read)
