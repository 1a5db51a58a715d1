"""The definition of the policy language: limits, records and their fields, functions, and the entry functions of each
stage.

The language is a subset of Python. The *kind* of an expression is the set of its possible types, as bits. `kinds.py`
infers the kinds, so that only operators that could do harm need a guard.
"""

from typing import Any, Final

from msgspec import Struct

from headway.views.cluster import EXPECTED
from headway.views.instance import REPORTED, SIGNALS
from headway.views.pool import MEANS
from headway.views.signals import Signal

# --- limits -----------------------------------------------------------------------------------------------------------

MOST_CHARACTERS: Final = 20_000  # maximum length of a source
MOST_NODES: Final = 4_000  # maximum number of nodes in the syntax tree of a source
DEEPEST: Final = 40  # maximum number of levels of the syntax tree of a source
MOST_FUNCTIONS: Final = 50  # maximum number of functions, so that chains of calls stay far below the recursion limit
DEEPEST_LOOPS: Final = 8  # maximum number of nested loops
LONGEST_NAME: Final = 60
MOST_PASSES: Final = 60  # maximum number of passes over a source until all kinds are known
STEPS: Final = 100_000  # maximum number of steps of a decision: iterations, calls, and elements in library functions
NODES_A_STEP: Final = 50  # for each such number of syntax nodes in its body, an iteration or a call costs one more step
MOST_BITS: Final = 256  # maximum number of bits of the integer result of one expression without a guard
LARGEST: Final = 2**63  # limit of integers that could otherwise grow without bound
LONGEST_TEXT: Final = 256
MEMORY_KEYS: Final = 100_000
DEEPEST_VALUE: Final = 4  # maximum depth of nested containers in a comparison

# --- kinds ------------------------------------------------------------------------------------------------------------

FLOAT: Final = 1
INT: Final = 2  # an integer below 2**63, like every integer of a view
MID: Final = 4  # the integer result of one expression of INT values: may be larger, but is bounded
BIG: Final = 8  # an integer that may grow without bound
STR: Final = 16
NONE: Final = 32
LIST: Final = 64
TUPLE: Final = 128
DICT: Final = 256
REQUEST: Final = 512
INSTANCE: Final = 1024
CLUSTER: Final = 2048
INSTANCES: Final = 4096  # the tuple of candidates
TENANT: Final = 8192
TOTALS: Final = 16384
TICKET: Final = 32768
POOL: Final = 65536
SPAN: Final = 131072  # a range

NUMBER: Final = FLOAT | INT
WHOLE: Final = INT | MID | BIG
SEQUENCE: Final = STR | LIST | TUPLE
REPEATED: Final = SEQUENCE | INSTANCES  # kinds of values that + and * can make longer
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
RECORD: Final = sum(RECORDS)


class Field(Struct, frozen=True):
    """A field of a record: its kind, and the signals that a policy reads when it reads the field."""

    kind: int
    exact: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()


# The kind of a signal, by its Python type. A field of type float may contain an int.
KINDS: Final[dict[Any, int]] = {int: INT, str: STR, float: NUMBER}
DERIVED_KINDS: Final[dict[Any, int]] = {int: INT, float: FLOAT, float | None: FLOAT | NONE}


def _kind(signal: Signal) -> int | None:
    """Return the kind of a signal. If the language does not have its type, return None."""
    return (DERIVED_KINDS if signal.derived else KINDS).get(signal.type) if signal.language else None


def _by_freshness(reads: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split signals into exact and reported ones."""
    exact = tuple(name for name in reads if name not in REPORTED)
    return exact, tuple(name for name in reads if name in REPORTED)


FIELDS: Final[dict[int, dict[str, Field]]] = {  # kind of record -> name of the field -> field
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
        "expected_tokens": Field(INT, exact=(EXPECTED,)),
        "expected_error": Field(FLOAT | NONE, exact=(EXPECTED,)),
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
        "expected_tokens": Field(INT, exact=(EXPECTED,)),
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
    """A library function: the minimum and maximum number of its arguments, the stages whose programs may call it, and
    the signals that it reads. If `stages` is empty, programs of all stages may call it."""

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
    "score_term": Function(2, 3, ("routing",)),
    "tenant": Function(1, 1, ("routing", "admission", "priority"), exact=("tenants",)),
    "concurrency": Function(2, 2, ("scaling",)),
    "rate": Function(2, 2, ("scaling",)),
    "output_rate": Function(2, 2, ("scaling",)),
    "attainment": Function(1, 1, ("scaling",)),
}
# The extra steps of fields and functions that cost more than one step.
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
KEYED: Final = ("min", "max", "sorted")  # functions that take key=lambda
GATHERING: Final = ("sum", "min", "max", "any", "all", "sorted")  # functions that take a generator expression
PASSING: Final = ("enumerate", "zip", "items", "keys", "values")  # a program may iterate over the result, not store it
METHODS: Final = {"append": (1, 1), "get": (2, 2), "items": (0, 0), "keys": (0, 0), "values": (0, 0)}
PARAMETER: Final = "parameter"
TERM: Final = "score_term"  # names a term of a score for the scorecard, and returns its value


class Entrance(Struct, frozen=True):
    """A function that a stage calls: its arguments and the meaning of its result."""

    arguments: tuple[tuple[str, int], ...]  # (name in the documentation, kind) of each argument
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
