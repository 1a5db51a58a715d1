"""Shared prefixes by name, as blocks all the same.

Some formats name the group of requests that begin alike, and how many tokens they share, but no blocks. Here every
stretch of content (a group's prefix, a session's context, a request's own words) gets ids of its own. Only full blocks
have ids, and a block belongs to the stretch of its last token.
"""

from collections.abc import Iterable
from typing import Final

from headway.workload.traces.blocks import rest
from headway.workload.traces.record import LOCAL, Info, Record
from headway.workload.traces.writing import Losses

BLOCK_TOKENS: Final = 16  # where neither file nor user says: what engines of such traces use
GROUP: Final = "prefix_group"  # in Record.extra: the name
NAMED: Final = ("blis", "routesim")  # formats whose blocks are made here, out of names that are kept
ROOM: Final = 32  # bits for the blocks of one stretch


class Contents:
    """Hands out ids of blocks. Memory goes with the number of groups."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._groups: dict[str, int] = {}
        self._count = 0

    def fresh(self) -> int:
        """The first id of content that nobody else has."""
        self._count += 1
        return self._count << ROOM

    def runs(self, prompt: int, shared: int, group: str | None, own: int) -> tuple[tuple[int, int], ...]:
        """The blocks of a prompt: `shared` tokens of the group's prefix, then the content that begins at `own`."""
        size = self._size
        full = prompt // size
        common = min(shared // size, full) if group is not None else 0
        runs = []
        if common and group is not None:
            first = self._groups.get(group)
            if first is None:
                first = self._groups[group] = self.fresh()
            runs.append((first, common))
        if full > common:
            runs.append((own + common, full - common))
        return tuple(runs)


def origin(info: Info) -> str:
    """The format that a trace was first written in."""
    name = info.extra.get("origin", info.format)
    return name if isinstance(name, str) else info.format


def group_of(record: Record, info: Info) -> str | None:
    """The name of the prefix that a request declares as shared: the one it was given, else that of its last block."""
    if not record.shared_prefix_tokens:
        return None
    name = record.extra.get(GROUP)
    if isinstance(name, str) and name:
        return name
    count = record.shared_prefix_tokens // info.block_tokens if info.block_tokens else 0
    left = rest(record.blocks or (), count - 1) if count else []
    if not left:
        return None
    last = left[0][0]
    return f"block-{last}" if info.scope != LOCAL or record.session is None else f"{record.session}-block-{last}"


class NamedLosses(Losses):
    """What a format that names prefixes loses: blocks that were made out of names are not lost with them, nor are the
    further fields that it knows."""

    def __init__(self, info: Info, known: Iterable[str], *keeps: str) -> None:
        super().__init__(*keeps, "shared_prefix_tokens", "extra", *(("blocks",) if origin(info) in NAMED else ()))
        self._known = frozenset(known)
        self._unknown: dict[str, None] = {}

    def see(self, record: Record) -> None:
        super().see(record)
        for name in record.extra:
            if name not in self._known:
                self._unknown[name] = None

    def phrases(self) -> list[str]:
        further = [f"further fields of the source: {', '.join(self._unknown)}"] if self._unknown else []
        return super().phrases() + further
