"""Random streams: one a subsystem, derived from a seed and the subsystem's name, so that adding one shifts no other."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def stream(seed: int, name: str) -> Random:
    """The stream of `name` under `seed`: the same in every process and on every machine."""
    digest = blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return Random(int.from_bytes(digest, "little"))
