"""How an engine divides its KV memory between groups of layers. The rules are those of vLLM's hybrid KV cache manager.

All pages have the same size, so all groups have the same number of layers, and one layer's part of a page has the same
size in every kind of layer. If a state needs more memory than a block of tokens, the engine uses longer blocks. The
number of layers in a group is that of the kind with the fewest layers; if no kind has 1.5 times as many, it is that of
the kind with the most layers. The last group of a kind may have fewer layers, and wastes the rest of its pages.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from headway.errors import HeadwayError
from headway.latency.kv_layers import find_layers
from headway.latency.shapes import ModelShape

ALIGNED: Final = 16  # an engine raises the tokens of a block to a multiple of this number, to fit a state
# A group whose states are kept at the ends of blocks is one with a window of two tokens: the next token needs the state
# after the token before it, so a request holds the block of that token, and a hit needs one block.
KEPT_STATE: Final = 2
UNEQUAL: Final = 1.5  # from this ratio of layers on, the kind with fewer layers decides the size of groups


class KvLayout(Struct, frozen=True):
    """The groups of a model, and the size of a page on one GPU in bytes."""

    page_bytes: int
    full: int = 1  # groups that keep every token
    windows: int = 0  # groups with a sliding window
    window: int = 0  # tokens in the window
    states: int = 0  # groups of layers that keep states
    kept: Literal["none", "align", "all"] = "none"  # which states the windows are; none: they are windows of tokens

    @property
    def aligned(self) -> bool:
        """Whether states are kept at the ends of chunks alone."""
        return self.kept == "align"

    def sequence_pages(self, drafts: int) -> int:
        """Return how many pages a running request has for states, besides those of its blocks: for each draft of a
        step one in each group, and without kept states, one for its current state."""
        states = self.states if self.kept == "none" else self.windows
        return states * drafts + self.states

    @property
    def groups(self) -> int:
        return self.full + self.windows + self.states


def kv_layout(
    model: ModelShape,
    tp: int,
    block_tokens: int,
    hybrid: bool = True,
    where: str = "cluster.kv",
    kept: Literal["none", "align", "all"] = "none",
) -> KvLayout:
    """Return the groups of a model. Without `hybrid`, layers with windows keep every token, too. `kept` says which
    states are kept for later requests."""
    heads = max(model.kv_heads / tp, 1.0)
    token = 2 * heads * model.head_dim * float(model.kv_size)  # bytes of a token in one layer
    counts = {kind.kind: kind.layers for kind in model.kv_groups} or {"full": model.layers}
    latent, state = find_layers(model.kv_groups, "latent"), find_layers(model.kv_groups, "state")
    sliding = find_layers(model.kv_groups, "sliding")
    if latent is not None:
        token = latent.latent_numbers() * float(model.kv_size)  # every GPU keeps the whole vector
    if not hybrid and "sliding" in counts:
        counts["full"] = counts.get("full", 0) + counts.pop("sliding")
    if state is not None and len(counts) > 1:
        needed = fitting_block(state.state_bytes / tp, token)
        if block_tokens < needed:
            raise HeadwayError(
                f"{where}.block_tokens: a block of {block_tokens} tokens is smaller than a state of {model.name}; "
                f"engines then use blocks of {needed} tokens: set block_tokens: {needed}."
            )
    layer = round(token * block_tokens) if state is None or len(counts) > 1 else round(state.state_bytes / tp)
    size = min(counts.values())
    if max(counts.values()) < size * UNEQUAL:
        size = max(counts.values())
    groups = {kind: -(-layers // size) for kind, layers in counts.items()}
    if kept != "none" and state is not None:
        full = groups.get("full", 0) + groups.get("latent", 0)
        return KvLayout(layer * size, full, groups["state"], KEPT_STATE, kept=kept)
    return KvLayout(
        layer * size,
        groups.get("full", 0) + groups.get("latent", 0),
        groups.get("sliding", 0),
        sliding.window if sliding is not None and "sliding" in groups else 0,
        groups.get("state", 0),
    )


def fitting_block(state: float, token: float) -> int:
    """Return the tokens of a block that has room for a state. `token` is the size of one token in one layer."""
    return ALIGNED * -(-round(state) // round(ALIGNED * token))
