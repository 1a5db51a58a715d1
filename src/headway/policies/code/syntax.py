"""The allow-list of syntax. Everything else is rejected, including the syntax of later versions of Python."""

import ast
import warnings
from collections.abc import Iterator
from typing import Final

from headway.policies.code import language as lang
from headway.policies.code.rejection import Rejection

PLAIN: Final = (
    *(ast.Module, ast.Return, ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass),
    *(ast.BoolOp, ast.And, ast.Or, ast.IfExp, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
    *(ast.List, ast.Tuple, ast.Load, ast.Store, ast.arguments),
)
WORDS: Final = {  # names of nodes in messages, where they differ from the name of the class
    "ImportFrom": "import",
    "ClassDef": "class",
    "TryStar": "try",
    "GeneratorExp": "generator expression",
    "JoinedStr": "f-string",
    "SetComp": "set comprehension",
    "NamedExpr": ":=",
    "Starred": "*",
    "Pow": "**",
    "MatMult": "@",
    "LShift": "<<",
    "RShift": ">>",
    "BitAnd": "&",
    "BitOr": "|",
    "BitXor": "^",
    "Invert": "~",
    "AsyncFunctionDef": "async",
    "YieldFrom": "yield",
    "Delete": "del",
    "AnnAssign": "annotation without a value",
}
REMEDIES: Final = {
    "import": "imports are not allowed; library functions need none",
    "class": "classes are not allowed; use functions, lists and dicts",
    "try": "errors cannot be caught; check before, as in `if b == 0`, or use ratio(a, b)",
    "lambda": "a lambda may only be the key= of min, max or sorted",
    "generator expression": "may only be the one argument of sum, min, max, any, all or sorted; or use a list [...]",
    "f-string": "strings cannot be formatted",
    "set": "sets are not allowed, since their order is not defined; use a list or a dict",
    "**": "use x * x, sqrt(x) or exp(x)",
    "global": "to keep a value between decisions, use remember(key, value) and recall(key, default)",
}
GATHERERS: Final = (*lang.GATHERING, "list", "enumerate", "zip")
NOT_HERE: Final = "not part of the policy language"


class _Bare(ast.NodeTransformer):
    """Removes annotations, which have no effect."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)


def parse(source: str) -> ast.Module | Rejection:
    """Return the syntax tree of a source, or the reason why the source is rejected."""
    if len(source) > lang.MOST_CHARACTERS:
        wrong = f"{len(source):,} characters; a policy may have at most {lang.MOST_CHARACTERS:,}"
        return Rejection(1, "source", wrong)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return Rejection(error.lineno or 1, "syntax", f"{error.msg}")
    except (ValueError, UnicodeError):  # null byte, incomplete character, or a number with thousands of digits
        return Rejection(1, "syntax", "the source cannot be parsed as Python")
    except (RecursionError, MemoryError, SystemError):
        return Rejection(1, "nesting", "the source is nested too deeply")
    return _check_size(tree) or _Bare().visit(tree)


def _check_size(tree: ast.Module) -> Rejection | None:
    """Reject a tree that is too large or too deep for the recursive passes that follow."""
    count = 0
    level: list[ast.AST] = [tree]
    for _ in range(lang.DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        count += len(level)
        if count > lang.MOST_NODES:
            wrong = f"more than {lang.MOST_NODES:,} syntax nodes"
            return Rejection(getattr(level[0], "lineno", 1), "source", wrong)
        if not level:
            return None
    line = next((node.lineno for node in level if hasattr(node, "lineno")), 1)
    return Rejection(line, "nesting", f"deeper than {lang.DEEPEST} levels of syntax")


def find_misplaced(tree: ast.Module) -> Iterator[Rejection]:
    """Yield rejections for too many nested loops, and for errors that only Python's compiler detects, such as a `break`
    outside a loop."""
    for function in tree.body:
        yield from _loops(function, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(ast.fix_missing_locations(tree), "policy", "exec", dont_inherit=True)
    except SyntaxError as error:
        yield Rejection(error.lineno or 1, "syntax", f"{error.msg}")
    except (ValueError, RecursionError, MemoryError, SystemError):
        yield Rejection(1, "syntax", "the source cannot be compiled")


def _loops(node: ast.AST, depth: int) -> Iterator[Rejection]:
    depth += isinstance(node, ast.For | ast.While)
    if depth > lang.DEEPEST_LOOPS:
        yield _no(node, f"more than {lang.DEEPEST_LOOPS} nested loops", "nesting")
        return
    for child in ast.iter_child_nodes(node):
        yield from _loops(child, depth)


def find_foreign(tree: ast.Module) -> Iterator[Rejection]:
    """Yield the rejections of syntax that is not part of the language. Names are checked later."""
    rejections = list(_forms(tree, inside=False))
    lines = {rejection.line for rejection in rejections}
    yield from rejections
    for statement in tree.body:
        plain = isinstance(statement, ast.FunctionDef | ast.Assign) or _docstring(statement)
        if not plain and statement.lineno not in lines:
            yield _no(statement, "only functions, constants and parameters are allowed at the top level")


def _forms(node: ast.AST, inside: bool) -> Iterator[Rejection]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            if inside:
                yield _no(child, "nested functions are not allowed; define the function at the top level")
            yield from _function(child)
            yield from _forms(child, inside=True)
            continue
        rejections = list(_form(child, node))
        yield from rejections
        if not rejections:
            yield from _forms(child, inside)


def _form(node: ast.AST, parent: ast.AST) -> Iterator[Rejection]:
    """Yield the rejections of one node, without its children."""
    match node:
        case ast.Constant():
            yield from _constant(node)
        case ast.Name(id=name) | ast.arg(arg=name):
            if name.startswith("_") and name != "_":
                yield _no(node, f"names must not begin with an underscore: {name!r}", "name")
            yield from _name(node, name)
        case ast.Attribute(attr=name, ctx=context):
            if name.startswith("_"):
                yield _no(node, f"names must not begin with an underscore: {name!r}", "attribute")
            elif not isinstance(context, ast.Load):
                yield _no(node, "requests and views cannot be changed", "assignment")
        case ast.Assign(targets=targets):
            if len(targets) != 1:
                yield _no(node, "only one target is allowed", "assignment")
            yield from _target(targets[0])
        case ast.AugAssign(target=target):
            yield from _target(target, alone=True)
        case ast.Expr(value=value):
            if not isinstance(value, ast.Call) and not _docstring(node):
                yield _no(node, "the value is not used", "expression")
        case ast.Call():
            yield from _call(node)
            yield from _passing(node, parent)
        case ast.Compare(ops=operators, comparators=others):
            for operator, other in zip(operators, others, strict=True):
                if isinstance(operator, ast.Is | ast.IsNot) and not (
                    isinstance(other, ast.Constant) and (other.value is None or isinstance(other.value, bool))
                ):
                    yield _no(node, "`is` compares with None, True or False only", "is")
        case ast.Dict(keys=keys):
            if None in keys:
                yield _no(node, NOT_HERE, "**")
        case ast.ListComp(generators=clauses) | ast.DictComp(generators=clauses) | ast.GeneratorExp(generators=clauses):
            if isinstance(node, ast.GeneratorExp) and not _gathered(node, parent):
                yield _no(node)
            if len(clauses) > 1:
                yield _no(node, "only one `for` is allowed", "comprehension")
        case ast.comprehension(target=target, is_async=is_async):
            if is_async:
                yield Rejection(getattr(target, "lineno", 1), "async", NOT_HERE)
            yield from _target(target, names=True)
        case ast.For(target=target):
            yield from _target(target, names=True)
        case ast.Lambda(args=arguments):
            yield from _arguments(node, arguments)
            if not isinstance(parent, ast.keyword) or parent.arg != "key":
                yield _no(node)
        case ast.Slice(step=step):
            if step is not None:
                yield _no(node, "a slice must not have a step", "slice")
        case ast.keyword() | ast.Subscript():
            pass
        case _ if not isinstance(node, PLAIN):
            yield _no(node, line=getattr(parent, "lineno", 1))


def _name(node: ast.AST, name: str) -> Iterator[Rejection]:
    if not name.isascii():
        yield _no(node, "names must be ASCII", "name")
    if len(name) > lang.LONGEST_NAME:
        yield _no(node, f"a name may have at most {lang.LONGEST_NAME} characters", "name")


def _passing(node: ast.Call, parent: ast.AST) -> Iterator[Rejection]:
    """Reject the storing of iterators and of views of dicts: iteration exhausts an iterator, and a view changes with
    its dict."""
    word = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if word not in lang.PASSING or isinstance(node.func, ast.Name) != (word in lang.FUNCTIONS):
        return
    match parent:
        case ast.For(iter=over) | ast.comprehension(iter=over) if over is node:
            return
        case ast.Call(func=ast.Name(id=name)) if name in GATHERERS and node in parent.args:
            return
        case ast.Compare(comparators=[_], ops=[ast.In() | ast.NotIn()]) if parent.comparators[0] is node:
            return
    remedy = f"list({word}(...))" if word in lang.FUNCTIONS else f"list(d.{word}())"
    yield _no(node, f"may only follow `in` or be the argument of a library function; to store it, write {remedy}", word)


def _function(node: ast.FunctionDef) -> Iterator[Rejection]:
    yield from _name(node, node.name)
    if node.name.startswith("_"):
        yield _no(node, f"names must not begin with an underscore: {node.name!r}", "def")
    if node.decorator_list:
        yield _no(node, NOT_HERE, "decorator")
    if getattr(node, "type_params", None):
        yield _no(node, NOT_HERE, "type parameters")
    yield from _arguments(node, node.args)


def _arguments(node: ast.AST, arguments: ast.arguments) -> Iterator[Rejection]:
    if any(value for name, value in ast.iter_fields(arguments) if name != "args"):
        yield _no(node, "arguments must be plain names, without defaults or stars", "arguments")


def _constant(node: ast.Constant) -> Iterator[Rejection]:
    value = node.value
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        if not -(2**53) <= value <= 2**53:  # also true for infinities and NaN
            yield _no(node, "a number must be between -2**53 and 2**53", "number")
    elif isinstance(value, str):
        if len(value) > lang.LONGEST_TEXT and not getattr(node, "docstring", False):
            yield _no(node, f"a string may have at most {lang.LONGEST_TEXT} characters", "string")
    else:
        yield _no(node, NOT_HERE, type(value).__name__)


def _call(node: ast.Call) -> Iterator[Rejection]:
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        yield _no(node, NOT_HERE, "*")
    if isinstance(node.func, ast.Attribute):
        if node.func.attr not in lang.METHODS:
            known = ", ".join(lang.METHODS)
            yield _no(
                node, f"the methods of lists and dicts are {known}; views have fields only", f".{node.func.attr}()"
            )
        if node.keywords:
            yield _no(node, "arguments must be positional", "keyword")
        return
    if not isinstance(node.func, ast.Name):
        yield _no(node, "only a function's name can be called", "call")
        return
    function = lang.FUNCTIONS.get(node.func.id)
    keywords = (
        ("default", "low", "high") if node.func.id == lang.PARAMETER else () if function is None else function.keywords
    )
    for keyword in node.keywords:
        if keyword.arg not in keywords:
            yield _no(node, f"{node.func.id}() takes no {keyword.arg or '**'}=", "keyword")


def _target(node: ast.expr, alone: bool = False, names: bool = False) -> Iterator[Rejection]:
    """Reject an assignment's target unless it is a name, an item of a list or dict, or several names."""
    if isinstance(node, ast.Name):
        return
    if isinstance(node, ast.Subscript) and not names:
        if isinstance(node.slice, ast.Slice):
            yield _no(node, "a slice cannot be assigned", "assignment")
        return
    if isinstance(node, ast.Tuple | ast.List) and not alone:
        for element in node.elts:
            if isinstance(element, ast.Tuple | ast.List):
                yield from _target(element, names=True)
            elif not isinstance(element, ast.Name):
                yield _no(element, "several values can only be assigned to names", "assignment")
        return
    yield _no(node, "the target must be a name, or an item of a list or dict that the policy made", "assignment")


def _gathered(node: ast.AST, parent: ast.AST) -> bool:
    match parent:
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return name in lang.GATHERING and argument is node
    return False


def _docstring(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str()) as constant):
            constant.docstring = True  # type: ignore[attr-defined]
            return True
    return False


def _no(node: ast.AST, why: str = "", construct: str = "", line: int = 1) -> Rejection:
    """Return the rejection of a node. If the node has no line, the rejection names `line`."""
    kind = type(node).__name__
    word = construct or WORDS.get(kind, kind.lower())
    return Rejection(getattr(node, "lineno", line), word, why or REMEDIES.get(word, NOT_HERE))
