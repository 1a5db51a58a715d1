"""Convert named prefix groups to blocks.

Some formats have no blocks. Instead, they name groups of requests that share a prefix, and record the length of the
prefix. Here each piece of content gets its own block ids: the prefix of a group, the context of a session, the rest of
a request. Only full blocks have ids, and a block belongs to the piece that contains its last token.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from headway.workload.traces.blocks import rest
from headway.workload.traces.record import LOCAL, Info, Record
from headway.workload.traces.writing import Losses

BLOCK_TOKENS: Final = 16  # default block size of these formats; the engines that they describe use it too
GROUP: Final = "prefix_group"  # the key of the group's name in Record.extra
NAMED: Final = ("blis", "routesim")  # formats whose blocks this module creates
ROOM: Final = 32  # number of bits for the block ids of one piece of content


class Contents(Struct):
    """Assigns block ids. Memory grows with the number of groups."""

    block_tokens: int
    groups: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def fresh(self) -> int:
        """Return the first id of a new piece of content."""
        self.count += 1
        return self.count << ROOM

    def runs(self, prompt: int, shared: int, group: str | None, own: int) -> tuple[tuple[int, int], ...]:
        """Return the blocks of a prompt, as runs of consecutive ids. The first `shared` tokens of the prompt are the
        prefix of the group. The blocks after the prefix get ids from the range that starts at `own`."""
        full = prompt // self.block_tokens
        common = min(shared // self.block_tokens, full) if group is not None else 0
        runs = []
        if common and group is not None:
            if group not in self.groups:
                self.groups[group] = self.fresh()
            runs.append((self.groups[group], common))
        if full > common:
            runs.append((own + common, full - common))
        return tuple(runs)


def origin(info: Info) -> str:
    """Return the name of the format in which the trace was first written."""
    name = info.extra.get("origin", info.format)
    return name if isinstance(name, str) else info.format


def group_of(record: Record, info: Info) -> str | None:
    """Return the name of a request's prefix group: the recorded name, or else a name made from the last block of the
    prefix. If the request shares no prefix, return None."""
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
    """Collects what a format with named prefixes cannot express. Two things do not count as losses, because the format
    can express them: blocks that a reader created from such names, and the fields of `extra` that `known` lists."""

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
        further = [f"other fields of the source: {', '.join(self._unknown)}"] if self._unknown else []
        return super().phrases() + further
