"""What the policy language has, as data: its limits, records and their fields, functions, and the entries of a stage.

The language is a part of Python. What an expression may be is a *kind*, a set of bits; `kinds.py` works them out, so
that only operators that could do harm go through a guard.
"""

from typing import Any, Final

from msgspec import Struct

from headway.views.instance import REPORTED, SIGNALS
from headway.views.pool import MEANS
from headway.views.signals import Signal

# --- limits -----------------------------------------------------------------------------------------------------------

MOST_CHARACTERS: Final = 20_000  # of a source
MOST_NODES: Final = 4_000  # of its syntax tree
DEEPEST: Final = 40  # levels of it
MOST_FUNCTIONS: Final = 50  # so that no chain of calls comes near what an interpreter bears
DEEPEST_LOOPS: Final = 8  # loops within loops
LONGEST_NAME: Final = 60
MOST_PASSES: Final = 60  # over a source, until what its expressions may be is known
STEPS: Final = 100_000  # of one decision: an iteration, a call, an element handled by a library function
NODES_A_STEP: Final = 50  # of syntax: a body of more costs further steps each time
MOST_BITS: Final = 256  # of what one expression can make of integers without a guard
LARGEST: Final = 2**63  # what an integer must stay below, wherever it could grow without end
LONGEST_TEXT: Final = 256
MEMORY_KEYS: Final = 100_000
DEEPEST_VALUE: Final = 4  # containers within containers, of what is compared

# --- kinds ------------------------------------------------------------------------------------------------------------

FLOAT: Final = 1
INT: Final = 2  # below 2**63, as every figure of a view is
MID: Final = 4  # what one expression can make of such: large, but bounded
BIG: Final = 8  # what may grow from step to step
STR: Final = 16
NONE: Final = 32
LIST: Final = 64
TUPLE: Final = 128
DICT: Final = 256
REQUEST: Final = 512
INSTANCE: Final = 1024
CLUSTER: Final = 2048
INSTANCES: Final = 4096  # the candidates, in order of index
TENANT: Final = 8192
TOTALS: Final = 16384
TICKET: Final = 32768
POOL: Final = 65536
SPAN: Final = 131072  # what range gives

NUMBER: Final = FLOAT | INT
WHOLE: Final = INT | MID | BIG
SEQUENCE: Final = STR | LIST | TUPLE
REPEATED: Final = SEQUENCE | INSTANCES  # what + and * could make longer and longer
CONTAINER: Final = LIST | TUPLE | DICT
RECORDS: Final = {
    REQUEST: "request",
    INSTANCE: "instance",
    CLUSTER: "cluster",
    TENANT: "tenant",
    TOTALS: "totals",
    TICKET: "ticket",
    POOL: "pool",
}
RECORD: Final = sum(RECORDS)  # their bits


class Field(Struct, frozen=True):
    """A field of a record: what it may be, and the signals that its reader must declare."""

    kind: int
    exact: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()


# What a value of a view may be. A float field may hold a whole number.
KINDS: Final[dict[Any, int]] = {int: INT, str: STR, float: NUMBER}
DERIVED_KINDS: Final[dict[Any, int]] = {int: INT, float: FLOAT, float | None: FLOAT | NONE}


def _kind(signal: Signal) -> int | None:
    """The kind of a signal; None if the language has no such values."""
    return (DERIVED_KINDS if signal.derived else KINDS).get(signal.type) if signal.language else None


def _by_freshness(reads: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The signals that a reader declares as exact, and as reported."""
    exact = tuple(name for name in reads if name not in REPORTED)
    return exact, tuple(name for name in reads if name in REPORTED)


FIELDS: Final[dict[int, dict[str, Field]]] = {  # by record
    REQUEST: {
        **{name: Field(INT) for name in ("prompt_tokens", "shared_prefix_tokens", "turn")},
        **{name: Field(STR) for name in ("model", "tenant", "slo_class", "kind")},
        **{name: Field(STR | NONE) for name in ("session", "adapter")},
        "max_tokens": Field(INT | NONE),
        "arrival": Field(FLOAT),
    },
    INSTANCE: {
        name: Field(kind, *_by_freshness(signal.reads))
        for name, signal in SIGNALS.items()
        if (kind := _kind(signal)) is not None
    },
    CLUSTER: {
        "now": Field(FLOAT),
        "group": Field(INT),
        "instances": Field(INSTANCES),
        "totals": Field(TOTALS, exact=("totals",)),
    },
    TENANT: {
        "requests": Field(INT),
        "active": Field(INT),
        "rate": Field(NUMBER),
        "slo_class": Field(STR),
        "burst": Field(INT),
    },
    TOTALS: {"inflight": Field(INT), "queued": Field(INT), "rate": Field(NUMBER), "throughput": Field(NUMBER)},
    TICKET: {
        "request": Field(REQUEST),
        "priority": Field(NUMBER),
        "enqueued": Field(FLOAT),
        "number": Field(INT),
        "generated": Field(INT),
        "preemptions": Field(INT),
    },
    POOL: {
        **{
            name: Field(INT) for name in ("minimum", "maximum", "slots", "kv_tokens", "replicas", "serving", "starting")
        },
        **{name: Field(STR) for name in ("model", "role")},
        "now": Field(FLOAT),
        "since_scaled": Field(FLOAT | NONE),
        **{name: Field(INT, exact=(name,)) for name in ("pending", "inflight", "inflight_tokens")},
        **{name: Field(NUMBER | NONE) for name in ("mean_ttft", "p99_ttft", "mean_latency", "p99_latency")},
        **{name: Field(NUMBER, reported=SIGNALS[name].reads) for name in MEANS},
    },
}


class Function(Struct, frozen=True):
    """A function of the library: how many arguments it takes, and in which stages it is there (all if empty)."""

    least: int
    most: int
    stages: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()


FUNCTIONS: Final = {
    **{
        name: Function(1, 1)
        for name in ("abs", "len", "sqrt", "exp", "log", "int", "float", "bool", "list", "enumerate")
    },
    **{name: Function(1, 1) for name in ("sum", "any", "all", "sorted")},
    **{name: Function(1, 8) for name in ("min", "max")},
    "range": Function(1, 3),
    "round": Function(1, 2),
    "zip": Function(2, 2),
    "ratio": Function(2, 2),
    "recall": Function(2, 2),
    "remember": Function(2, 2),
    "cached_tokens": Function(1, 1, ("routing",), exact=("prefix_index",)),
    "estimated_ttft": Function(2, 2, ("routing", "admission"), *_by_freshness(SIGNALS["estimated_wait"].reads)),
    "tenant": Function(1, 1, ("routing", "admission", "priority"), exact=("tenants",)),
    "concurrency": Function(2, 2, ("scaling",)),
    "rate": Function(2, 2, ("scaling",)),
    "output_rate": Function(2, 2, ("scaling",)),
    "attainment": Function(1, 1, ("scaling",)),
}
# What takes longer than a step, by the steps it costs more: fields that are worked out, and functions.
DEAR: Final = {
    **dict.fromkeys(("p99_ttft", "p99_latency"), 200),
    **{name: signal.steps for name, signal in SIGNALS.items() if signal.steps},
    **dict.fromkeys(("attainment", "concurrency", "rate", "output_rate", "estimated_ttft"), 3),
    **dict.fromkeys(("throughput", "burst"), 2),
    **dict.fromkeys(("replicas", "serving", "starting", "mean_ttft", "mean_latency"), 3),
    "remember": 3,
    "recall": 1,
    "exp": 1,
    "log": 1,
}
KEYED: Final = ("min", "max", "sorted")  # that take key=lambda, and sorted also reverse=
GATHERING: Final = ("sum", "min", "max", "any", "all", "sorted")  # that take a generator expression
PASSING: Final = ("enumerate", "zip", "items", "keys", "values")  # that are gone through where they stand, and not kept
METHODS: Final = {"append": (1, 1), "get": (2, 2), "items": (0, 0), "keys": (0, 0), "values": (0, 0)}
PARAMETER: Final = "parameter"


class Entrance(Struct, frozen=True):
    """A function that a stage calls: what it is handed, and what it must give."""

    arguments: tuple[tuple[str, int], ...]  # how they are called in the docs, and their kinds
    gives: str


ENTRANCES: Final[dict[str, dict[str, Entrance]]] = {
    "routing": {
        "score": Entrance(
            (("request", REQUEST), ("instance", INSTANCE), ("cluster", CLUSTER)), "a number, and the highest wins"
        ),
        "route": Entrance(
            (("request", REQUEST), ("instances", INSTANCES), ("cluster", CLUSTER)),
            "an instance, or its position in `instances`",
        ),
    },
    "admission": {
        "admit": Entrance(
            (("request", REQUEST), ("cluster", CLUSTER)), "True, False, or seconds after which to ask again"
        )
    },
    "priority": {"prioritise": Entrance((("request", REQUEST), ("cluster", CLUSTER)), "a number, higher matters more")},
    "scheduler": {"key": Entrance((("ticket", TICKET),), "a number, and the lowest enters first")},
    "scaling": {"scale": Entrance((("pool", POOL),), "the number of replicas wanted")},
}
HOOKS: Final[dict[str, dict[str, Entrance]]] = {
    "routing": {"routed": Entrance((("request", REQUEST), ("instance", INSTANCE)), "nothing")}
}
