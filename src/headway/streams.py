"""Random streams, one per subsystem. Each stream is derived from a seed and the subsystem's name, so that adding
a stream leaves the others unchanged."""

from hashlib import blake2b
from random import Random


def derive(seed: int, name: str) -> int:
    """Derive a seed for `name`. The hash is one-way: a derived seed does not reveal the numbers of other streams."""
    return int.from_bytes(blake2b(f"{seed}:{name}".encode(), digest_size=16).digest(), "little")


def stream(seed: int, name: str) -> Random:
    """Return the random stream of `name`. Its numbers are the same in every process and on every machine."""
    return Random(derive(seed, name))
