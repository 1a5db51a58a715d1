"""Generates one Python function for a whole decision: what a policy calls for each request, ticket or pool.

The function has the rewritten body of the program's entry function. Steps that are certain are charged once, when it
begins; if no others can be charged and they are within every limit, it has no counter at all. The stage turns each
result into an answer.
"""

import ast
from copy import deepcopy
from typing import Any, Final

from msgspec import Struct

from headway.policies.code.charges import Charges, stop
from headway.policies.code.kinds import Kinds
from headway.policies.code.language import FLOAT, INT, MOST_HINTS, ROUTER
from headway.policies.code.names import Names

DECIDING: Final = "_deciding"  # the function that makes the decision, with what it needs of its policy
DECIDE: Final = "_decide"
LEAST_STEPS: Final = 100  # the lowest limit of steps that a policy can have
# Injected names that charge no steps. Every other name of the library may charge some.
FREE: Final = {
    *("_plain_min", "_plain_max", "_abs", "_len", "_float", "_bool", "_sqrt", "_exp", "_log", "_ratio", "_int"),
    *("_round", "_range", "_field", "_recall", "_remembered", "_remember", "_estimated_ttft", "_tier_utilization"),
    *(
        "_cached_within",
        "_believed_blocks",
        "_last_access",
        "_send",
        "_reject",
        "_attainment",
        "_concurrency",
        "_rate",
        "_add_plain",
    ),
    *("_output_rate", "_rate_over", "_throughput_over", "_score_term", "_filtered_out", "_cached", "_tenants", "_size"),
    *("_base", "_place", "_each_enumerate", "_each_zip"),
}
# How a stage turns a result into its answer, as an expression of `_result` and of the entry function's arguments.
_NUMBER: Final = "(_it := {}).__class__ is _real and -1e15 <= _it <= 1e15"  # it is a float within the bounds
FINISH: Final = {
    "routing": "_answer(_result, {0}, {2}, {cached})",
    "admission": "_admit if (_it := _result) is True else _answer(_it, {0})",
    "priority": f"_priority(_it, _no_hints, _reason) if {_NUMBER.format('_result')} else _answer(_it, {{0}})",
    "estimator": "_answer(_result, {0})",
    "decider": "_it if (_it := _result) is True or _it is False else _answer(_it, {0}, {1}, {2}, {cached})",
    "scheduler": f"_it if {_NUMBER.format('_result')} else _answer(_it, {{0}})",
    "scaling": "_answer(_result, {0})",
}
# The same for results that are certainly True or False.
TRUTH: Final = {"admission": "_admit if _result else _answer(False, {0})", "decider": "_result"}
SHELL: Final = """
def {deciding}(
    _steps, _tokens, _failures, _fail, _answer, _number, _numbers, _real, _whole, _admit,
    _believed, _look, _explained, _sent, _priority, _no_hints, _reason,
):
    nonlocal _size
    _size = _tokens
    def {decide}({asked}):
        nonlocal _left, _cached, _tenants
        {preamble}
        try:
            {charged}
        except _failures as _error:
            raise _fail(_error, {subject}) from _error
    return {decide}
"""


class Decision(Struct, frozen=True):
    """The function that makes a decision. The steps that are certain once it begins are `steps`, and `rows` for each
    candidate. If `counts`, it may also charge others."""

    function: ast.FunctionDef
    counts: bool
    steps: int
    rows: int


def closure(node: ast.FunctionDef, body: list[ast.stmt]) -> ast.FunctionDef:
    """Return a function with the arguments of `node` that shares the counter of steps."""
    made = ast.FunctionDef(node.name, node.args, [ast.Nonlocal(["_left"]), *body], [])
    if hasattr(node, "type_params"):
        made.type_params = []  # type: ignore[attr-defined, unused-ignore]
    return ast.fix_missing_locations(ast.copy_location(made, node))


def decide(names: Names, kinds: Kinds, node: ast.FunctionDef, body: list[ast.stmt], charges: Charges) -> Decision:
    """Return the decision of a program. `body` is the rewritten body of its entry function `node`, which has these
    `charges` when it begins."""
    counts = _counts(body) or (bool(charges.items) and node.name in ("score", "key"))
    rows = sum(steps for _, steps in charges.rows.values())
    build = _scores if node.name == "score" else _single
    return Decision(build(names, kinds, node, body, charges, counts), counts, charges.steps, rows)


def _single(
    names: Names, kinds: Kinds, node: ast.FunctionDef, body: list[ast.stmt], charges: Charges, counts: bool
) -> ast.FunctionDef:
    """Return the decision of an entry function that is called once: its body, with answers instead of results."""
    arguments = [argument.arg for argument in node.args.args]
    # The arguments under names that the body does not bind again.
    safe = [name if name in names.fixed[node.name] else f"_own_{name}" for name in arguments]
    preamble = [f"{copy} = {name}" for copy, name in zip(safe, arguments, strict=True) if copy != name]
    asked = list(arguments)
    if node.name == "route":
        del asked[1]
        preamble = [f"{arguments[1]} = {arguments[2]}.instances", *preamble]
    if names.stage == "routing":
        preamble.insert(0, f"if {arguments[2]}.explain: return _explained({arguments[0]}, {arguments[2]})")
    if names.stage in ROUTER:
        preamble += _believed(names, kinds, arguments[0], arguments[-1])
    answers = _Answers(names.stage, safe, "_cached" if "prefix_index" in kinds.exact else "()")
    body = [answers.visit(statement) for statement in deepcopy(body)]
    if not isinstance(body[-1], ast.Return):
        body.append(answers.visit(ast.Return(ast.Constant(None))))
    # The steps of a scheduler's decisions are charged by the queue, which takes several with one limit.
    queued = names.stage == "scheduler"
    charged = charges.of_items().statements(node) if queued else _charged(charges.total(), counts)
    return _function(node, asked, preamble, [*charged, *body], safe[0])


def _scores(
    names: Names, kinds: Kinds, node: ast.FunctionDef, body: list[ast.stmt], charges: Charges, counts: bool
) -> ast.FunctionDef:
    """Return the decision of `score`, which scores every candidate. The steps of all scores are charged before, unless
    the program calls `score` too. A score that is a single expression needs no call."""
    request, view, cluster = (argument.arg for argument in node.args.args)
    cached = "_cached" if "prefix_index" in kinds.exact else "()"
    preamble = [f"if {cluster}.explain: return _explained({request}, {cluster})"]
    preamble += _believed(names, kinds, request, cluster)
    scores = f"[score({request}, {view}, {cluster}) for {view} in {cluster}.instances]"
    finish: Any = _parsed(f"return _answer({scores}, {request}, {cluster}, {cached})", node)[0]
    count: Any = _parsed(f"_len({cluster}.instances)", node)[0]
    if not names.prepaid:
        charged = _charged(ast.Constant(0), True)
    else:
        once = Charges(charges.steps)
        once.rows = charges.rows
        charged = _charged(ast.BinOp(count.value, ast.Mult(), once.total()), counts or bool(charges.items))
        if isinstance(body[0], ast.Return) and body[0].value is not None and not charges.items:
            finish.value.args[0].elt = deepcopy(body[0].value)
    return _function(node, [request, cluster], preamble, [*charged, finish], request)


def _believed(names: Names, kinds: Kinds, request: str, cluster: str) -> list[str]:
    """Return the lines that make the router's belief and tenants available to the program."""
    lines = [f"_cached = _believed({request}.path)"] if "prefix_index" in kinds.exact else []
    if names.believes:
        lines.append(f"_look({request})")
    return [*lines, f"_tenants = {cluster}.tenants"] if "tenants" in kinds.exact else lines


def _charged(total: ast.expr, counts: bool) -> list[ast.stmt]:
    """Return the statements that charge the steps that are certain. If no others can follow, they only check them. Few
    steps are within every limit."""
    if not counts:
        if isinstance(total, ast.Constant) and isinstance(total.value, int) and total.value <= LEAST_STEPS:
            return []
        return [stop(ast.Compare(total, [ast.Gt()], [ast.Name("_steps", ast.Load())]))]
    left = ast.BinOp(ast.Name("_steps", ast.Load()), ast.Sub(), total)
    test = ast.Compare(ast.Name("_left", ast.Load()), [ast.Lt()], [ast.Constant(0)])
    return [ast.Assign([ast.Name("_left", ast.Store())], left), stop(test)]


def _function(
    node: ast.FunctionDef, asked: list[str], preamble: list[str], body: list[ast.stmt], subject: str
) -> ast.FunctionDef:
    """Return the function that makes the decision. `asked` are the decision's arguments, and errors name `subject`."""
    lines = "\n        ".join(preamble) or "pass"
    text = SHELL.format(
        deciding=DECIDING, decide=DECIDE, asked=", ".join(asked), preamble=lines, charged="pass", subject=subject
    )
    outer: Any = _parsed(text, node)[0]
    outer.body[-2].body[-1].body = body
    return ast.fix_missing_locations(outer)  # type: ignore[no-any-return]


def _counts(body: list[ast.stmt]) -> bool:
    """Return whether rewritten statements may charge steps: an own function does, and much of the library."""
    nodes = [child for statement in body for child in ast.walk(statement)]
    called = {child.func.id for child in nodes if isinstance(child, ast.Call) and isinstance(child.func, ast.Name)}
    return not called <= FREE or any(isinstance(child, ast.Name) and child.id == "_left" for child in nodes)


class _Answers(ast.NodeTransformer):
    """Replaces each result by the answer that the stage makes of it."""

    def __init__(self, stage: str, arguments: list[str], cached: str) -> None:
        self.stage, self.arguments = stage, arguments
        self.finish = FINISH[stage].format(*arguments, cached=cached)
        self.truth = TRUTH.get(stage, self.finish).format(*arguments)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = node.value or ast.Constant(None)
        text = self.truth if _is_truth(value) else self.finish
        if (
            self.stage == "priority"
            and (made := _with_hints(value, self.arguments[0], getattr(node, "kinds", []))) is not None
        ):
            value, text = made, "_result"
        (answer,) = _parsed(f"return {text}", node)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "_send":
            answer.value.func.id, answer.value.keywords = "_sent", value.keywords
            value = value.args[0]
        return _Put(value).visit(answer)  # type: ignore[no-any-return]


def _with_hints(value: ast.expr, request: str, kinds: list[int]) -> ast.expr | None:
    """Return the answer of a priority with hints whose names are certain. If `value` is something else, return None."""
    match value:
        case ast.Tuple(elts=[score, ast.Dict(keys=keys, values=hints)]) if len(keys) <= MOST_HINTS:
            if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
                return None
            numbers = [_number(*each, request) for each in zip((score, *hints), kinds, strict=True)]
            arguments: list[ast.expr] = [numbers[0], ast.Dict(keys, numbers[1:]), ast.Name("_reason", ast.Load())]
            made = ast.Call(ast.Name("_priority", ast.Load()), arguments, [])
            return ast.fix_missing_locations(ast.copy_location(made, value))
    return None


def _number(value: ast.expr, kind: int, request: str) -> ast.expr:
    """Return the expression of a float within the bounds. Its check depends on the kind of the value."""
    number, bound, test = "_it * 1.0", "1e15", "_it.__class__ in _numbers"
    if kind == FLOAT:
        number, test = "_it", ""
    elif kind == INT:  # or a truth value, which is no number here
        bound, test = "1000000000000000", "_it.__class__ is _whole"
    within = f"-{bound} <= (_it := _result) <= {bound}"
    if test:
        within = f"{test.replace('_it', '(_it := _result)')} and -{bound} <= _it <= {bound}"
    text = f"{number} if {within} else _number(_it, {request})"
    return _Put(value).visit(_parsed(text, value)[0].value)  # type: ignore[no-any-return]


class _Put(ast.NodeTransformer):
    def __init__(self, value: ast.expr) -> None:
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == "_result" else node


def _is_truth(node: ast.expr) -> bool:
    """Return whether the value of an expression is certainly True or False."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_truth, values))
        case ast.IfExp(body=body, orelse=orelse):
            return _is_truth(body) and _is_truth(orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _parsed(text: str, node: ast.AST) -> list[Any]:
    """Return the statements of a text, at the place of `node`."""
    tree = ast.parse(text)
    for child in ast.walk(tree):
        if isinstance(child, ast.expr | ast.stmt | ast.ExceptHandler | ast.arg):
            ast.copy_location(child, node)
            child.end_lineno, child.end_col_offset = child.lineno, child.col_offset
    return list(tree.body)
