"""The definition of the policy language: limits, records and their fields, functions, and the entry functions of each
stage.

The language is a subset of Python. The *kind* of an expression is the set of its possible types, as bits. `kinds.py`
infers the kinds, so that only operators that could do harm need a guard.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from types import MappingProxyType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from msgspec import Struct

from headway.types import Priority, Request
from headway.views.cluster import EXPECTED, ClusterView, TenantView, Totals
from headway.views.engine import EngineView, Ticket
from headway.views.instance import REPORTED, SIGNALS, InstanceView
from headway.views.pool import LoadSample, PoolView
from headway.views.signals import readable

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
STORE: Final = 8  # steps to store an entry of a dict; this is high because a program may choose keys that collide
MOST_BITS: Final = 256  # maximum number of bits of the integer result of one expression without a guard
LARGEST: Final = 2**63  # limit of integers that could otherwise grow without bound
LONGEST_TEXT: Final = 256
Frozen: Final = MappingProxyType  # type of the mappings of views, as programs see them
MOST_HINTS: Final = 32  # maximum number of hints of a priority, because each waiting request keeps its hints
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
PRIORITY: Final = 1 << 18
SAMPLE: Final = 1 << 19
ENGINE: Final = 1 << 20
SAMPLES: Final = 1 << 21  # the history of a pool, as a tuple
TICKETS: Final = 1 << 22  # a tuple of the tickets at an engine
TABLE: Final = 1 << 23  # a mapping of a view: texts to numbers
TENANTS: Final = 1 << 24  # the mapping of tenants
ANSWER: Final = 1 << 25  # the result of `send` or `reject`

NUMBER: Final = FLOAT | INT
WHOLE: Final = INT | MID | BIG
SEQUENCE: Final = STR | LIST | TUPLE
ROWS: Final = {
    INSTANCES: INSTANCE,
    SAMPLES: SAMPLE,
    TICKETS: TICKET,
}  # kind of a tuple of views -> kind of its elements
ROW_TUPLES: Final = sum(ROWS)
MAPPINGS: Final = {TABLE: FLOAT | BIG, TENANTS: TENANT}  # kind of a mapping of a view -> kind of its values
REPEATED: Final = SEQUENCE | ROW_TUPLES  # kinds of values that + and * can make longer
CONTAINER: Final = LIST | TUPLE | DICT | sum(MAPPINGS)
VIEWS: Final[dict[int, type]] = {  # kind of a record -> its class, whose public fields and properties are its fields
    REQUEST: Request,
    INSTANCE: InstanceView,
    CLUSTER: ClusterView,
    TENANT: TenantView,
    TOTALS: Totals,
    TICKET: Ticket,
    POOL: PoolView,
    PRIORITY: Priority,
    SAMPLE: LoadSample,
    ENGINE: EngineView,
}
NAMES: Final = {TENANT: "tenant", SAMPLE: "sample", ENGINE: "engine"}
RECORDS: Final = {kind: view.__name__.removesuffix("View").lower() for kind, view in VIEWS.items()} | NAMES
RECORD: Final = sum(RECORDS)
UNSEEN: Final = ("id", "reason")  # fields that a program must not depend on: names of instances, requests and pools


class Field(Struct, frozen=True):
    """A field of a record: its kind, and the signals that a policy reads when it reads the field. `held` is the kind of
    the elements of a tuple. `steps` is the number of extra steps to read the field."""

    kind: int
    exact: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    held: int = 0
    steps: int = 0


# The kind of a value, by its Python type. A field of type float may contain an int; a property computes a float.
KINDS: Final[dict[Any, int]] = {int: INT, bool: INT, str: STR, float: NUMBER, type(None): NONE}
KINDS_OF_VIEWS: Final[dict[Any, int]] = {view: kind for kind, view in VIEWS.items()}


def _kind(type_: Any, derived: bool) -> int | None:
    """Return the kind of the values of a Python type. If the language does not have the type, return None."""
    if type_ is float and derived:
        return FLOAT
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, UnionType):
        kinds = [_kind(argument, derived) for argument in arguments]
        return None if None in kinds else reduce(or_, [kind for kind in kinds if kind is not None])
    if origin is tuple or origin is Sequence:
        if arguments[0] is str:
            return TUPLE
        return next((rows for rows, row in ROWS.items() if VIEWS[row] is arguments[0]), None)
    if origin is Mapping and arguments[0] is str:
        return TENANTS if arguments[1] is TenantView else TABLE if arguments[1] in (int, float) else None
    return KINDS.get(type_, KINDS_OF_VIEWS.get(type_))


def _by_freshness(reads: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split signals into exact and reported ones."""
    exact = tuple(name for name in reads if name not in REPORTED)
    return exact, tuple(name for name in reads if name in REPORTED)


def _fields(view: type) -> dict[str, Field]:
    """Return the fields of a record: all that a policy in Python may read of the view, in the types of the language.
    Times in picoseconds are left out, because each has a twin in seconds."""
    fields = {}
    for name, signal in readable(view).items():
        kind = _kind(signal.type, signal.derived)
        if kind is not None and signal.language and name not in UNSEEN and not name.endswith("_ps"):
            held = STR if kind == TUPLE else 0
            fields[name] = Field(kind, *_by_freshness(signal.reads), held, signal.steps)
    return fields


FIELDS: Final[dict[int, dict[str, Field]]] = {kind: _fields(view) for kind, view in VIEWS.items()}


class Function(Struct, frozen=True):
    """A library function: the minimum and maximum number of its arguments, the stages whose programs may call it, the
    signals that it reads, and the kind of its result (0: it depends on the arguments). If `stages` is empty, programs
    of all stages may call it. `keywords` names further arguments. `steps` is the number of extra steps of a call."""

    least: int
    most: int
    stages: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    gives: int = 0
    keywords: tuple[str, ...] = ()
    steps: int = 0


ROUTER: Final = ("admission", "priority", "routing", "decider", "estimator")  # stages that decide on a request
KEY, ORDER = ("key", "default"), ("key", "reverse")
BELIEVED: Final = ("prefix_index",)
ACCESS: Final = "last_access"
# Functions of the prefix index itself.
FURTHER_BELIEFS: Final = ("cached_within", "believed_blocks", "eviction_order", ACCESS)
NOTES: Final = ("score_term", "filtered_out")  # only add to the scorecard, and return their second argument
TERM, LEFT_OUT = NOTES
FUNCTIONS: Final = {
    **{name: Function(1, 1, gives=INT) for name in ("len", "int", "bool", "any", "all")},
    **{name: Function(1, 1, gives=FLOAT) for name in ("sqrt", "float")},
    **{name: Function(1, 1, gives=FLOAT, steps=1) for name in ("exp", "log")},
    **{name: Function(1, 1, gives=LIST) for name in ("list", "enumerate")},
    "sorted": Function(1, 1, gives=LIST, keywords=ORDER),
    "abs": Function(1, 1),
    "sum": Function(1, 1, gives=NUMBER),
    **{name: Function(1, 8, keywords=KEY) for name in ("min", "max")},
    "range": Function(1, 3, gives=SPAN),
    "round": Function(1, 2, gives=NUMBER),
    "zip": Function(2, 2, gives=LIST),
    "ratio": Function(2, 2, gives=FLOAT),
    "recall": Function(2, 2, steps=1),
    "remember": Function(2, 2, gives=NONE, steps=3),
    "cached_tokens": Function(1, 1, ROUTER, BELIEVED, gives=INT),
    "cached_within": Function(2, 2, ROUTER, BELIEVED, gives=INT, steps=8),
    "believed_blocks": Function(1, 1, ROUTER, BELIEVED, gives=INT),
    "eviction_order": Function(2, 2, ROUTER, BELIEVED, gives=LIST, steps=8),
    ACCESS: Function(1, 1, ROUTER, BELIEVED, gives=FLOAT | NONE, steps=8),
    "estimated_ttft": Function(2, 2, ROUTER, *_by_freshness(SIGNALS["estimated_wait"].reads), gives=FLOAT, steps=3),
    "tier_utilization": Function(2, 2, ROUTER, *_by_freshness(SIGNALS["tier_used"].reads), gives=FLOAT, steps=1),
    "tenant": Function(1, 1, ROUTER, exact=("tenants",), gives=TENANT),
    "rate_over": Function(2, 2, ROUTER, exact=("windows",), gives=FLOAT, steps=3),
    "throughput_over": Function(2, 2, ROUTER, exact=("windows",), gives=FLOAT, steps=3),
    TERM: Function(2, 3, ("routing",)),
    LEFT_OUT: Function(2, 2, ("routing",)),
    "send": Function(1, 1, ("routing",), gives=ANSWER, keywords=("prefill", "priority", "reason")),
    "reject": Function(1, 1, ("routing", "admission"), gives=ANSWER),
    **{name: Function(2, 2, ("scaling",), gives=NUMBER, steps=3) for name in ("concurrency", "rate", "output_rate")},
    "attainment": Function(1, 1, ("scaling",), gives=NUMBER | NONE, steps=3),
}
# The extra steps of fields and functions that cost more than one step.
DEAR: Final = {
    **{name: field.steps for fields in FIELDS.values() for name, field in fields.items() if field.steps},
    **{name: function.steps for name, function in FUNCTIONS.items() if function.steps},
}
GATHERING: Final = ("sum", "min", "max", "any", "all", "sorted")  # functions that take a generator expression
PASSING: Final = ("enumerate", "zip", "items", "keys", "values")  # a program may iterate over the result, not store it
METHODS: Final = {"append": (1, 1), "get": (2, 2), "items": (0, 0), "keys": (0, 0), "values": (0, 0)}
PARAMETER: Final = "parameter"


class Entrance(Struct, frozen=True):
    """A function that a stage calls: its arguments and the meaning of its result. A program may leave out the last
    arguments, but must have the first `least`."""

    arguments: tuple[tuple[str, int], ...]  # (name in the documentation, kind) of each argument
    gives: str
    least: int


def _entrance(gives: str, *, least: int | None = None, **arguments: int) -> Entrance:
    return Entrance(tuple(arguments.items()), gives, len(arguments) if least is None else least)


ENTRANCES: Final[dict[str, dict[str, Entrance]]] = {
    "routing": {
        "score": _entrance("a number, and the highest wins", request=REQUEST, instance=INSTANCE, cluster=CLUSTER),
        "route": _entrance(
            "an instance, its position in `instances`, send(...) or reject(reason)",
            request=REQUEST,
            instances=INSTANCES,
            cluster=CLUSTER,
        ),
    },
    "admission": {
        "admit": _entrance(
            "True, False, reject(reason), or seconds after which to ask again", request=REQUEST, cluster=CLUSTER
        )
    },
    "priority": {
        "prioritise": _entrance(
            "a number, higher matters more, or (number, {hint: number})", request=REQUEST, cluster=CLUSTER
        )
    },
    "estimator": {
        "estimate": _entrance(
            "the number of output tokens, or (number, stated error)", request=REQUEST, cluster=CLUSTER
        )
    },
    "decider": {
        "apart": _entrance(
            "True to split the request, False, or an instance that serves it whole",
            request=REQUEST,
            instance=INSTANCE,
            cluster=CLUSTER,
        )
    },
    "scheduler": {
        "key": _entrance("a number, and the lowest enters first", least=1, ticket=TICKET, engine=ENGINE),
    },
    "scaling": {"scale": _entrance("the number of replicas wanted", pool=POOL)},
}
_HEARD: Final = {
    "routed": _entrance("nothing", request=REQUEST, instance=INSTANCE),
    "first_token": _entrance("nothing", request=REQUEST, instance=INSTANCE),
    "finished": _entrance("nothing", request=REQUEST, instance=INSTANCE, tokens=INT, outcome=STR),
}
# Functions that a program may define in addition, for events or for further decisions.
HOOKS: Final[dict[str, dict[str, Entrance]]] = {
    **dict.fromkeys(ROUTER, _HEARD),
    "scheduler": {
        "chunk": _entrance("a whole number of tokens, at least 1, or None", least=1, ticket=TICKET, engine=ENGINE),
        "victim": _entrance("a number, and the highest is preempted first", least=1, ticket=TICKET, engine=ENGINE),
        "yields": _entrance("True or False", least=2, waiting=TICKET, running=TICKET, engine=ENGINE),
        "ended": _entrance("nothing", ticket=TICKET, tokens=INT, completed=INT),
    },
}
# Signals that the programs of a stage cannot read, with the reason.
BARRED: Final = {("estimator", EXPECTED): "is what the estimator decides"}
