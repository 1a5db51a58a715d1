"""Random streams: one a subsystem, derived from a seed and the subsystem's name, so that adding one shifts no other."""

from hashlib import blake2b
from random import Random


def derive(seed: int, name: str) -> int:
    """A seed for `name` from another seed, with no way back: who holds it cannot foretell what others draw."""
    return int.from_bytes(blake2b(f"{seed}:{name}".encode(), digest_size=16).digest(), "little")


def stream(seed: int, name: str) -> Random:
    """The stream of `name` under `seed`: the same in every process and on every machine."""
    return Random(derive(seed, name))
