"""Random small scenarios for the engine: shared prefixes and sessions, tight KV, arrivals that fall on step ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from drawn_speculation import DrawnSpeculation
from drawn_tier import DrawnTier
from headway import hashing
from headway.latency.base import FOREVER, Chunk, LatencyModel, Run
from headway.latency.step_models.fixed import Fixed
from headway.latency.verification import AffineVerifier
from headway.types import Path

MAX_PROMPT = 80
RequestTuple = tuple[int, Path, int, int]


@dataclass(frozen=True)
class Affine:
    """step + a per chunk token + b per attention pair + c per decode + d per context token, in whole picoseconds."""

    step: int = 1
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    k_max: int = FOREVER

    def verify(self, width: int) -> AffineVerifier:
        return AffineVerifier(self, width, self.d)  # a unit costs as much as a token, lest it cost nothing

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        first = self.step + self.c * decodes + self.d * context
        increment = self.d * decodes
        for tokens, past in chunks:
            first += self.a * tokens + self.b * (tokens * past + tokens * (tokens + 1) // 2)
            increment += self.b * tokens * tokens
        return first, increment, self.k_max


@dataclass(frozen=True)
class Scrambled:
    """A time that depends on every detail of the step, so that a wrong argument cannot go unseen; good for one step."""

    modulus: int = 17

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        mixed = decodes * 31 + context * 7
        for tokens, past in chunks:
            mixed = mixed * 5 + tokens * 3 + past
        return 1 + mixed % self.modulus, 0, 1


@dataclass(frozen=True)
class Scenario:
    requests: list[RequestTuple]
    instances: int
    blocks: int
    block_tokens: int
    max_batch_tokens: int
    max_batch_size: int
    latency: LatencyModel
    policy: str | list[int]
    prefix_caching: bool = True
    horizon: int | None = None
    warmup: int = 0
    adapters: tuple[str | None, ...] = ()  # of the requests
    slots: int | None = None
    load: int = 0
    tiers: tuple[DrawnTier, ...] = ()
    offload: str = "lazy"
    offload_level: float = 1.0
    block_bytes: int = 0
    patience: tuple[int | None, ...] = ()  # of the requests' clients, in picoseconds
    limits: tuple[int | None, ...] = ()  # max_tokens of the requests
    ahead: bool = False  # whether the engine schedules asynchronously
    speculation: DrawnSpeculation | None = None
    lockstep: bool = False  # whether the instances are ranks that wait for each other


def latencies() -> SearchStrategy[LatencyModel]:
    small = st.sampled_from([0, 0, 1, 2])
    affine = st.builds(
        Affine,
        step=st.integers(1, 20),
        a=small,
        b=st.sampled_from([0, 0, 1]),
        c=small,
        d=st.sampled_from([0, 0, 0, 1]),
        k_max=st.sampled_from([FOREVER, FOREVER, 1, 2, 5]),
    )
    constant = st.builds(Affine, step=st.integers(1, 20))
    fixed = st.builds(Fixed, prefill_ps=st.integers(1, 3), decode_ps=st.integers(1, 20))
    return st.one_of(constant, affine, fixed, st.builds(Scrambled, modulus=st.integers(1, 20)))


def period(latency: LatencyModel) -> int:
    """The time of a step in which nothing is prefilled, as far as it is one."""
    if isinstance(latency, Affine):
        return latency.step
    return latency.decode_ps if isinstance(latency, Fixed) else 1


def cut(path: Path, tokens: int) -> Path:
    """The first tokens of a path."""
    keys, ends = [], []
    for key, end in zip(path.keys, path.ends, strict=True):
        keys.append(key)
        ends.append(min(end, tokens))
        if end >= tokens:
            break
    return Path(tuple(keys), tuple(ends))


def extend(path: Path, key: int, tokens: int) -> Path:
    return Path((*path.keys, key), (*path.ends, path.tokens + tokens)) if tokens else path


def lengthen(path: Path, tokens: int) -> Path:
    """The same content going on under its last key."""
    return Path(path.keys, (*path.ends[:-1], path.tokens + tokens))


@st.composite
def prompts(draw: DrawFn, earlier: list[tuple[Path, int]]) -> Path:
    """A prompt for row `len(earlier)`: fresh, or grown from an earlier one. A key always continues the same prefix."""
    row = len(earlier)
    own = hashing.key(hashing.PROMPT, row)
    kind = draw(st.sampled_from(["fresh", "same", "branch", "longer", "turn", "turn"])) if earlier else "fresh"
    if kind == "fresh":
        return Path((own,), (draw(st.integers(1, MAX_PROMPT)),))
    previous = draw(st.integers(0, row - 1))
    path, output = earlier[previous]
    if kind == "same":
        return path
    if kind == "branch":
        stem = cut(path, draw(st.integers(1, path.tokens)))
        return cut(extend(stem, own, draw(st.integers(0, 30))), MAX_PROMPT)
    if kind == "longer":
        return cut(lengthen(path, draw(st.integers(1, 30))), MAX_PROMPT)
    said = draw(st.sampled_from([output, output, output // 2]))
    turn = extend(path, hashing.key(hashing.OUTPUT, previous), said)
    return cut(extend(turn, own, draw(st.integers(0, 20))), MAX_PROMPT)


@st.composite
def workloads(draw: DrawFn, grid: int) -> list[RequestTuple]:
    """Requests whose arrivals lie mostly on multiples of `grid`, where steps tend to end."""
    earlier: list[tuple[Path, int]] = []
    requests: list[RequestTuple] = []
    longest = draw(st.sampled_from([30, 30, 12, 3]))
    spread = draw(st.sampled_from([0, 1, 2, 5, 20]))
    at = 0
    few, many = st.integers(1, 6), st.integers(6, 24)
    for _ in range(draw(st.one_of(few, many, many))):
        at += grid * draw(st.integers(0, spread)) + draw(st.sampled_from([0, 0, 0, 1]))
        path = draw(prompts(earlier))
        output = draw(st.integers(1, longest))
        earlier.append((path, output))
        requests.append((at, path, path.tokens, output))
    return requests


@st.composite
def scenarios(draw: DrawFn) -> Scenario:
    latency = draw(latencies())
    grid = period(latency)
    requests = draw(workloads(grid))
    block_tokens = draw(st.sampled_from([1, 4, 16]))
    instances = draw(st.sampled_from([1, 1, 2, 3]))
    # Just enough for one of the larger requests, and a little more: preemption and eviction are the rule.
    needs = sorted(-(-(prompt + output - 1) // block_tokens) for _, _, prompt, output in requests)
    position = draw(st.sampled_from([-1, -1, -1, len(needs) // 2]))
    slack = draw(st.sampled_from([0, 1, 3, 10, 60])) if block_tokens > 1 else draw(st.sampled_from([0, 2, 20, 150]))
    policy: str | list[int] = draw(st.sampled_from(["round-robin", "least-loaded", "given"]))
    if policy == "given":
        policy = [draw(st.integers(0, instances - 1)) for _ in requests]
    return Scenario(
        requests=requests,
        instances=instances,
        blocks=needs[position] + slack,
        block_tokens=block_tokens,
        max_batch_tokens=draw(st.one_of(st.integers(1, 64), st.sampled_from([8, 32, 64]))),
        max_batch_size=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 8])),
        latency=latency,
        policy=policy,
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def coincidences(draw: DrawFn) -> Scenario:
    """Short requests and equal steps, so that arrivals, ends and routing by load fall on the same instants."""
    step = draw(st.integers(1, 5))
    count = draw(st.integers(2, 30))
    arrivals = sorted(step * draw(st.integers(0, 12)) for _ in range(count))
    requests: list[RequestTuple] = []
    for row, at in enumerate(arrivals):
        path = Path((hashing.key(hashing.PROMPT, row),), (draw(st.integers(1, 8)),))
        requests.append((at, path, path.tokens, draw(st.integers(1, 4))))
    return Scenario(
        requests=requests,
        instances=draw(st.integers(2, 3)),
        blocks=draw(st.sampled_from([3, 6, 20])),  # with three, the largest are rejected and count for their instant
        block_tokens=4 if draw(st.booleans()) else 2,
        max_batch_tokens=draw(st.sampled_from([4, 8, 64])),
        max_batch_size=draw(st.sampled_from([1, 2, 8])),
        latency=Affine(step=step),
        policy="least-loaded",
    )


@st.composite
def twins(draw: DrawFn) -> Scenario:
    """Cuts of one or two prompts, many at once in a tight cache: duplicates, evicted and computed again."""
    stems = [Path((hashing.key(hashing.GROUP, number),), (64,)) for number in range(draw(st.integers(1, 2)))]
    latency = draw(latencies())
    grid = period(latency)
    requests: list[RequestTuple] = []
    at = 0
    for row in range(draw(st.integers(3, 24))):
        at += grid * draw(st.sampled_from([0, 0, 1, 2, 6]))
        own = hashing.key(hashing.PROMPT, row)
        if draw(st.sampled_from([True, True, True, False])):
            path = cut(draw(st.sampled_from(stems)), draw(st.integers(2, 40)))
            path = extend(path, own, draw(st.sampled_from([0, 0, 3, 9])))
        else:
            path = Path((own,), (draw(st.integers(9, 30)),))
        requests.append((at, path, path.tokens, draw(st.sampled_from([1, 1, 2, 5, 12, 30]))))
    block_tokens = draw(st.sampled_from([1, 2, 4, 8]))
    largest = max(-(-(prompt + output - 1) // block_tokens) for _, _, prompt, output in requests)
    return Scenario(
        requests=requests,
        instances=1,
        blocks=largest + draw(st.integers(0, largest // 2)),
        block_tokens=block_tokens,
        max_batch_tokens=draw(st.integers(4, 80)),
        max_batch_size=draw(st.sampled_from([2, 3, 4, 8])),
        latency=latency,
        policy="round-robin",
    )


@st.composite
def stopped(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario with a warm-up and a horizon that mostly cuts it short, often at the end of a step."""
    scenario = draw(inner)
    last, grid = scenario.requests[-1][0], period(scenario.latency)
    horizon = draw(st.one_of(st.integers(0, last + 40 * grid), st.integers(0, last // grid + 40).map(grid.__mul__)))
    return replace(scenario, horizon=horizon, warmup=draw(st.sampled_from([0, 0, 2])))


@st.composite
def together(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario whose instances are the ranks of one engine, two or three of them, some mostly idle."""
    scenario = draw(inner)
    ranks = draw(st.integers(2, 3))
    first = draw(st.sampled_from([0, 0, 1]))  # if 1, a rank has no work
    given = [draw(st.integers(first, ranks - 1)) for _ in scenario.requests]
    policy = draw(st.sampled_from(["round-robin", "least-loaded", given]))
    return replace(scenario, instances=ranks, policy=policy, lockstep=True)


@st.composite
def adapted(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario whose requests want adapters, mostly more of them than an instance has slots."""
    scenario = draw(inner)
    names = [None, *"abcde"[: draw(st.integers(1, 5))]]
    return replace(
        scenario,
        adapters=tuple(draw(st.sampled_from(names)) for _ in scenario.requests),
        slots=draw(st.sampled_from([1, 1, 2, 2, 3])),
        load=draw(st.sampled_from([0, 1, 7, period(scenario.latency)])),
    )


@st.composite
def speculating(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario whose decodes verify drafts, of which they accept none, all, or some. Budget and blocks are larger by
    what the drafts need."""
    scenario = draw(inner)
    tokens = draw(st.sampled_from([1, 1, 2, 3, 5, 8]))
    rate = draw(st.one_of(st.integers(64, 64 * (tokens + 1)), st.sampled_from([64, 96, 64 + 64 * tokens])))
    ahead = tokens * draw(st.sampled_from([1, 1, 2]))
    budget = max(scenario.max_batch_tokens, tokens + 1)
    return replace(
        scenario,
        max_batch_tokens=draw(st.sampled_from([budget, budget, budget * (tokens + 1)])),
        blocks=scenario.blocks + draw(st.sampled_from([0, 1, 2])) * -(-ahead // scenario.block_tokens),
        speculation=DrawnSpeculation(tokens, rate, ahead, draw(st.sampled_from([0, 0, 1, 7]))),
    )


@st.composite
def tiered(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario with stores below the GPU, whose transfers take from less than a step to some dozens of them, and
    clients that mostly wait until the end."""
    scenario = draw(inner)
    grid = period(scenario.latency)
    block_bytes = draw(st.sampled_from([1, 8, 1000]))
    names = draw(st.sampled_from([["cpu"], ["cpu"], ["cpu", "storage"], ["cpu", "storage"], ["storage"]]))
    tiers = []
    for name in names:
        alone_ps = draw(st.sampled_from([1, grid, 2 * grid, 7 * grid]))  # of a block
        tiers.append(
            DrawnTier(
                name,
                draw(st.sampled_from([1, 3, 8, 30, 500])),
                max(1, block_bytes * 10**12 // alone_ps),
                draw(st.sampled_from([0, 0, 1, grid, 5 * grid])),
                draw(st.sampled_from([False, False, True])),
            )
        )
    patience: tuple[int | None, ...] = ()
    if draw(st.booleans()):
        waits = st.one_of(st.none(), st.integers(0, 60).map(grid.__mul__), st.integers(1, 50 * grid))
        patience = tuple(draw(waits) for _ in scenario.requests)
    return replace(
        scenario,
        prefix_caching=True,
        tiers=tuple(tiers),
        offload=draw(st.sampled_from(["lazy", "lazy", "eager", "threshold"])),
        offload_level=draw(st.sampled_from([0.1, 0.5, 0.9])),
        block_bytes=block_bytes,
        patience=patience,
    )


@st.composite
def ahead(draw: DrawFn, inner: SearchStrategy[Scenario]) -> Scenario:
    """A scenario whose engines schedule asynchronously. Some clients limit their answers to what these have, and some
    do not wait until the end."""
    scenario = draw(inner)
    grid = period(scenario.latency)
    known = draw(st.sampled_from([0, 1, 2]))  # of two requests
    limits = [output if draw(st.integers(1, 2)) <= known else None for _, _, _, output in scenario.requests]
    patience: tuple[int | None, ...] = ()
    if draw(st.booleans()):
        waits = st.one_of(st.none(), st.integers(0, 60).map(grid.__mul__), st.integers(1, 50 * grid))
        patience = tuple(draw(waits) for _ in scenario.requests)
    return replace(scenario, ahead=True, limits=tuple(limits), patience=patience)
