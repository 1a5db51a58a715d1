"""Live traffic that the gateway recorded: a run folder, or a folder with all run folders of one gateway process.

The gateway splits each prompt into blocks to compare it with other prompts. The reader derives the blocks of the trace
from these blocks. Without a tokenizer, the gateway estimates the blocks' tokens from bytes, but the prompt lengths are
the engine's counts. If a prompt is longer than its blocks, the tokens beyond them count as unique content. Requests
that did not complete are skipped, because their output length is unknown.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field

from headway.errors import HeadwayError
from headway.results import store
from headway.results.records import Prompt
from headway.types import PS_PER_SECOND
from headway.workload.traces.blocks import Run, add_run
from headway.workload.traces.record import Format, Info, Options, Reader, Record

NAME: Final = "records"
BLOCK_TOKENS: Final = 16  # block size of the trace; the gateway's blocks are split into blocks of this size
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
    """Return the run folders in a folder, in order of their first requests. If the path itself is a run folder, return
    only this path."""
    inside = [path / store.MANIFEST] if (path / store.MANIFEST).is_file() else path.glob(f"*/{store.MANIFEST}")
    return sorted(manifest.parent for manifest in inside if (manifest.parent / PROMPTS).is_file())


def read(path: pathlib.Path, options: Options) -> Reader:
    parts = folders(path)
    if not parts:
        inner = sorted(manifest.parent.parent for manifest in path.glob(f"*/*/{store.MANIFEST}"))
        if inner:
            raise HeadwayError(f"{path}: contains one folder per process. Name one of them, such as {inner[0]}.")
        raise HeadwayError(
            f"{path}: contains no recorded live traffic with prompts. Set `records` in the gateway's file to record it."
        )
    notes = _notes(path, parts)
    size = options.block_tokens or BLOCK_TOKENS
    info = Info(NAME, size, True, sessions=True, extra={"notes": notes} if notes else {})
    return Reader(info, _records(parts, size))


def _notes(path: pathlib.Path, parts: list[pathlib.Path]) -> list[str]:
    """Return one phrase for each type of request or folder that is skipped."""
    unfinished = unknown = 0
    for folder in parts:
        run = store.read(folder)
        known = {prompt.request for prompt in run.lists["prompts"]}
        for place, outcome in enumerate(run.requests.column("outcome")):
            unfinished += outcome != COMPLETED
            unknown += outcome == COMPLETED and place not in known
    notes = [f"{unfinished:,} requests that did not complete are skipped"] if unfinished else []
    if unknown:
        notes.append(f"{unknown:,} requests without a recorded prompt are skipped")
    entries = [] if path in parts else sorted(path.iterdir())
    lost = [entry.name for entry in entries if entry.is_dir() and entry not in parts]
    if lost:
        which = f"{', '.join(lost[:3])}{' and more' * (len(lost) > 3)}"
        notes.append(f"{len(lost):,} incomplete folders are skipped: {which}")
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
    """Return the session of a request, and its delay after the end of the session's previous turn.

    If a request arrived before the previous turn ended, it did not wait for that turn, and does not count as a turn of
    the session.
    """
    session = row["session"]
    last = ends.get(session)
    if not session or (last is not None and last > at_ps):
        return None, None
    ends[session] = row["finished_ps"] - begun
    return session, None if last is None else at_ps - last


class Blocks(Struct):
    """Assigns ids to the blocks of the trace, which have `size` tokens each. A block of the gateway may have another
    size. If a block of the gateway occurs again, it gets the same run of ids again."""

    size: int
    first: dict[int, int] = field(default_factory=dict)  # key of a gateway block -> first id of its run
    count: int = 0

    def runs(self, prompt: Prompt, tokens: int) -> list[Run]:
        """Return the ids of all full blocks of a prompt."""
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
