"""The cache of one engine, computed from its KV events, in blocks of the gateway's size ("own blocks").

An engine names blocks by its own hashes, with its own block size and seed. The ledger uses these names only to look
blocks up. It computes keys from the tokens, with the same chain and block size as for prompts. An own block belongs to
the engine's block in which it ends. Tokens that do not fill an own block are carried over to the next engine block:

    engine's blocks of 24   |0 ................. 24|24 ............... 48|
    own blocks of 16        |0 ....... 16|16 ....... 32|32 ....... 48|      the first has one own block, the second two

An engine may keep a block without its parents. No prompt can match such a block, so it is *detached* until the parents
are stored again. The ledger reports only attached blocks to its sink. It reports a block as stored after the block's
parent, and as removed before the block's parent. If two requests compute a block at the same time, an engine stores the
block twice and removes it twice.

An engine may also store blocks in slower tiers. Such an event may list the hashes alone, so that only blocks with known
tokens count. A prompt can use a block only together with the blocks before it. Therefore the *level* of a block is the
slowest tier that is necessary to load the prompt up to this block: the maximum of its own fastest tier and of its
parent's level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headway.gateway.signals.kv_batches import Cleared, Counts, Event, Hash, Removed, Stored

if TYPE_CHECKING:
    from headway.gateway.prompt_tokens import Hasher

# An own block (a block of the gateway's size): key of its parent (or the root), its key, index of its first token,
# index after its last token.
Run = tuple[int, int, int, int]
# Words in the names of kinds of layers that do not keep all tokens of a prompt.
PARTS: Final = ("sliding", "chunked_local", "mamba", "encoder", "cross")
GUESSED, PARTIAL, EXACT = "guessed", "partial", "exact"  # how well an engine's cache is known


# Names of media in events -> the tier's index in `policies.prefix_index.TIERS`. vLLM: GPU, CPU, STORAGE; SGLang: GPU,
# CPU_PINNED, DISK, EXTERNAL. Older versions name no medium.
MEDIA: Final = {"GPU": 0, "CPU": 1, "CPU_PINNED": 1, "STORAGE": 2, "DISK": 2, "EXTERNAL": 2}


class Sink(Protocol):
    def stored(self, runs: list[Run]) -> None:
        """Blocks are stored on the GPU."""

    def moved(self, keys: list[int], level: int) -> None:
        """Stored blocks now have this level."""

    def removed(self, keys: list[int]) -> None: ...

    def cleared(self, trust: str) -> None:
        """Forget all blocks. `trust` says how well the cache is known from now on."""


@dataclass(slots=True, eq=False)
class Block:
    """A block of the engine, and the *own* blocks that end in it: those of the gateway's prefix index. There are many
    blocks, so the children of a block form a linked list, to save memory."""

    name: Hash
    parent: Block | None
    base: int  # key of the last own block before `keys`; the root if there is none
    start: int  # index of the first token of this block's first own block
    keys: tuple[int, ...] = ()  # keys of the own blocks that end in this block
    rest: Sequence[int] = ()  # tokens after the last own block, too few for another own block
    refs: int = 0  # number of copies of this block that the engine has stored, in all tiers
    slow: tuple[int, int] = (0, 0)  # how many of these copies are in CPU memory, and how many in storage
    level: int = 0  # while the block is attached
    attached: bool = False
    child: Block | None = None  # last child of this block
    before: Block | None = None  # previous sibling of this block; `after` is the next sibling
    after: Block | None = None

    @property
    def tip(self) -> int:
        return self.keys[-1] if self.keys else self.base

    def copy(self, tier: int, change: int) -> None:
        """Add a copy in a tier, or remove one."""
        self.refs += change
        if tier:
            cpu, storage = self.slow
            self.slow = (cpu + change, storage) if tier == 1 else (cpu, storage + change)

    def copies(self, tier: int) -> int:
        return self.slow[tier - 1] if tier else self.refs - self.slow[0] - self.slow[1]

    def find_level(self) -> int:
        fastest = 0 if self.refs > self.slow[0] + self.slow[1] else 1 if self.slow[0] else 2
        return fastest if self.parent is None or self.parent.level < fastest else self.parent.level

    def adopt(self, child: Block) -> None:
        child.before = self.child
        if self.child is not None:
            self.child.after = child
        self.child = child

    def disown(self, child: Block) -> None:
        if child.before is not None:
            child.before.after = child.after
        if child.after is not None:
            child.after.before = child.before
        else:
            self.child = child.before


class Ledger:
    def __init__(
        self, sink: Sink, hasher: Hasher, model: str, most: int = 65_536, counts: Counts | None = None
    ) -> None:
        self.sink, self.model, self.most = sink, model, most
        self.chain, self.root, self.block_tokens = hasher.chain, hasher.root, hasher.block_tokens
        self.counts = Counts() if counts is None else counts
        self.blocks: dict[Hash, Block] = {}
        self.claims: dict[int, int] = {}  # key of an own block -> number of attached engine blocks whose `keys` has it
        self.group: int | None = None  # the group of layers that the ledger follows; None: no group seen yet
        self.grouped = False

    def apply(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            self._remove(event)
        elif isinstance(event, Cleared):
            self.clear(EXACT)

    def clear(self, trust: str) -> None:
        self.blocks.clear()
        self.claims.clear()
        self.grouped = False
        self.sink.cleared(trust)

    # --- stored ------------------------------------------------------------------------------------------------------

    def _store(self, event: Stored) -> None:
        tier = self._tier(event.medium)
        if tier and not event.tokens:
            self._store_known(event, tier)
            return
        if tier is None or not self._follows(event):
            return
        counts, size = self.counts, event.size
        adapter = event.lora_name
        if adapter is None and event.lora_id is not None:
            counts.adapters += len(event.hashes)
            return
        above = None if event.parent is None else self.blocks.get(event.parent)
        if (event.parent is not None and above is None) or not event.tokens:
            counts.orphans += len(event.hashes)
            return
        root = self.root(adapter or self.model) if above is None else 0
        plain = ([], [adapter]) if adapter else ([],)
        runs: list[Run] = []
        moves: dict[int, int] = {}
        for number, name in enumerate(event.hashes):
            if not _is_plain(event.extra_keys, number, plain):
                counts.salted += len(event.hashes) - number
                break
            block = self.blocks.get(name)
            if block is None:
                if len(self.blocks) >= self.most:
                    counts.overflow += len(event.hashes) - number
                    break
                block = self._add_block(name, above, root, event.tokens[number * size : (number + 1) * size])
            elif block.parent is not above:
                counts.conflicts += len(event.hashes) - number
                break
            block.copy(tier, 1)
            if block.attached:
                self._relevel(block, moves)
            elif above is None or above.attached:
                self._attach(block, runs, moves)
            above = block
        if runs:
            self.sink.stored(runs)
        self._report_moves(moves)

    def _store_known(self, event: Stored, tier: int) -> None:
        """Store blocks in a slower tier. The event has their names but not their tokens, so they must be known."""
        if self._is_of_other_group(event.group):
            return
        moves: dict[int, int] = {}
        for name in event.hashes:
            block = self.blocks.get(name)
            if block is None:
                self.counts.orphans += 1
                continue
            block.copy(tier, 1)
            if block.attached:
                self._relevel(block, moves)
        self._report_moves(moves)

    def _tier(self, medium: str | None) -> int | None:
        """Return the index of the tier that an event concerns. If the medium is unknown, return None."""
        tier = MEDIA.get((medium or "GPU").upper())
        if tier is None:
            self.counts.elsewhere += 1
        return tier

    def _is_of_other_group(self, group: int | None) -> bool:
        other = group is not None and self.grouped and group != self.group
        self.counts.groups += other
        return other

    def _follows(self, event: Stored) -> bool:
        """Return whether the ledger follows the event's group of layers. It follows one group: the first whose layers
        keep the KV of whole prompts, not only of a sliding window."""
        if event.group is not None:
            windowed = event.window is not None or any(word in (event.kind or "") for word in PARTS)
            if not windowed and not self.grouped:
                self.group, self.grouped = event.group, True
            if windowed or event.group != self.group:
                self.counts.groups += 1
                return False
        return True

    def _add_block(self, name: Hash, above: Block | None, root: int, tokens: list[int]) -> Block:
        size = self.block_tokens
        if above is None:
            block = Block(name, None, root, 0)
        else:
            block = Block(name, above, above.tip, above.start + len(above.keys) * size)
            if above.rest:
                tokens = [*above.rest, *tokens]
            above.adopt(block)
        keys, key, full = [], block.base, len(tokens) // size * size
        for at in range(0, full, size):
            key = self.chain(key, tokens[at : at + size])
            keys.append(key)
        block.keys = tuple(keys)
        block.rest = tuple(tokens[full:])
        self.blocks[name] = block
        return block

    def _attach(self, block: Block, runs: list[Run], moves: dict[int, int]) -> None:
        claims, size = self.claims, self.block_tokens
        stack = [block]
        while stack:
            block = stack.pop()
            if not block.refs:
                continue
            block.attached, block.level = True, block.find_level()
            parent, start = block.base, block.start
            for key in block.keys:
                claimed, end = claims.get(key, 0), start + size
                claims[key] = claimed + 1
                if not claimed:
                    runs.append((parent, key, start, end))
                if block.level:
                    moves[key] = block.level
                parent, start = key, end
            stack.extend(_children(block))

    def _relevel(self, block: Block, moves: dict[int, int]) -> None:
        """Compute the levels of a block and of the blocks after it again. Add the changed ones to `moves`."""
        stack = [block]
        while stack:
            block = stack.pop()
            level = block.find_level()
            if block.attached and level != block.level:
                block.level = level
                moves.update(dict.fromkeys(block.keys, level))
                stack.extend(_children(block))

    def _report_moves(self, moves: dict[int, int]) -> None:
        for level in sorted(set(moves.values())):
            self.sink.moved([key for key, now in moves.items() if now == level], level)

    # --- removed -----------------------------------------------------------------------------------------------------

    def _remove(self, event: Removed) -> None:
        tier = self._tier(event.medium)
        if tier is None or self._is_of_other_group(event.group):
            return
        removed: list[int] = []
        moves: dict[int, int] = {}
        for name in event.hashes:
            block = self.blocks.get(name)
            if block is None or not block.copies(tier):
                self.counts.strangers += 1
                continue
            block.copy(tier, -1)
            if block.refs:
                if block.attached:
                    self._relevel(block, moves)
                continue
            if block.attached:
                self._detach(block, removed)
            self._forget(block)
        if removed:
            self.sink.removed(removed)
        self._report_moves({key: level for key, level in moves.items() if key in self.claims})

    def _detach(self, block: Block, removed: list[int]) -> None:
        detached, stack = [], [block]
        while stack:
            block = stack.pop()
            if block.attached:
                block.attached = False
                detached.append(block)
                stack.extend(_children(block))
        claims = self.claims
        for block in reversed(detached):
            for key in reversed(block.keys):
                if claims[key] == 1:
                    del claims[key]
                    removed.append(key)
                else:
                    claims[key] -= 1

    def _forget(self, block: Block | None) -> None:
        """Delete a block if the engine no longer stores it and if it has no children. Then do the same for its
        parent."""
        while block is not None and not block.refs and block.child is None:
            del self.blocks[block.name]
            if block.parent is not None:
                block.parent.disown(block)
            block = block.parent


def _children(block: Block) -> Iterator[Block]:
    child = block.child
    while child is not None:
        yield child
        child = child.before


def _is_plain(extra_keys: list[Any] | None, number: int, plain: tuple[Any, ...]) -> bool:
    """Return whether a block's content depends only on its tokens and adapter, not on images or a client's salt."""
    if extra_keys is None or number >= len(extra_keys) or extra_keys[number] is None:
        return True
    return extra_keys[number] in plain
