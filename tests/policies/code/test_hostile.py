"""Programs that mean harm: each is refused, or stopped by its own steps or a sentence, the same each time."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from oracle import situation

from headway.policies import registry
from headway.policies.code import CodeError, Program, check, language
from headway.policies.code.state import Memory
from headway.policies.context import Context
from headway.policies.queues import Ticket
from headway.types import Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

HEAD = "def route(request, instances, cluster):\n"
OVER = r"more than 100,000 steps in one decision"


def body(text: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in text.strip("\n").splitlines())


def decided(source: str) -> str:
    """What a fresh policy says: where it routes to, or its failure in words."""
    policy = registry.build("routing", {"name": "code", "source": source}, "policies.routing")
    request, instances, cluster = situation()
    policy.bind(Context(list(instances), lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
    try:
        return f"routes to {policy.route(request, cluster).target}"
    except CodeError as error:
        return f"{error} ({policy.running.spent()} left)"


RUNNING = {
    "infinite loop": ("while True:\n    pass", rf"line 2: {OVER}"),
    "infinite loop that changes a name": ("n = 0\nwhile n < 1:\n    n -= 1", OVER),
    "nested giant ranges": ("for a in range(1000000):\n    for b in range(1000000):\n        pass", OVER),
    "the length of a range": ("return len(list(range(2000000000)))", OVER),
    "a range beyond all": ("return range(9000000000)[5]", r"range takes whole numbers below 2\*\*31"),
    "a text times a number": ("return len('a' * 10000000000)", "a string and a number cannot be multiplied"),
    "a number times a text": ("n = 10000000000\nreturn len(n * 'a')", "a number and a string cannot be multiplied"),
    "a list times a number": ("xs = [0] * 1000000000\nreturn 0", "a list and a number cannot be multiplied"),
    "the instances times a number": ("return len(instances * 1000000000)", "a tuple and a number cannot be multiplied"),
    "a tuple of the instances that doubles": ("x = instances\nwhile True:\n    x = x + x", OVER),
    "a slice of the instances that doubles": ("x = instances[1:]\nwhile True:\n    x = instances + x + x", OVER),
    "list doubling": ("xs = [1]\nwhile True:\n    xs = xs + xs", OVER),
    "list doubling in place": ("xs = [1]\nwhile True:\n    xs += xs", OVER),
    "text doubling": ("t = 'ab'\nwhile True:\n    t += t", "a string may have at most 256 characters"),
    "text growth through a dict": (
        "d = {'t': 'ab'}\nwhile True:\n    d['t'] = d['t'] + d['t']",
        "a string may have at most 256",
    ),
    "text growth through a list": ("xs = ['ab']\nwhile True:\n    xs[0] += xs[0]", "a string may have at most 256"),
    "integer squaring": ("n = 3\nwhile True:\n    n = n * n", r"an integer grew beyond 2\*\*63"),
    "integer doubling": ("n = 3\nwhile True:\n    n = n + n", r"an integer grew beyond 2\*\*63"),
    "integer doubling by minus": ("n = 3\nwhile True:\n    n = n - -n", r"an integer grew beyond 2\*\*63"),
    "squaring by an augmented assignment": ("n = 7\nwhile True:\n    n *= n", r"grew beyond 2\*\*63"),
    "squaring through max": ("n = 7\nwhile True:\n    n = max(n, 1) * max(1, n)", r"grew beyond 2\*\*63"),
    "squaring through abs": ("n = -7\nwhile True:\n    n = abs(n) * n", r"grew beyond 2\*\*63"),
    "squaring through round": ("n = 7\nwhile True:\n    n = round(n * n)", r"grew beyond 2\*\*63"),
    "squaring through unpacking": ("a, b = 7, 9\nwhile True:\n    a, b = b * a, a * b", r"grew beyond 2\*\*63"),
    "squaring through a comprehension": ("xs = [9]\nwhile True:\n    xs = [x * x for x in xs]", r"grew beyond 2\*\*63"),
    "squaring through a lambda": (
        "xs = [9, 8]\nwhile True:\n    xs = sorted(xs, key=lambda x: x * x * x * x * x)\n    xs[0] = xs[1] * xs[0]",
        r"grew beyond 2\*\*63",
    ),
    "squaring through a dict": ("d = {0: 9}\nwhile True:\n    d[0] = d[0] * d.get(0, 1)", r"grew beyond 2\*\*63"),
    "squaring through a tuple": ("p = (9, 9)\nwhile True:\n    p = (p[0] * p[1], p[1])", r"grew beyond 2\*\*63"),
    "squaring through memory": (
        "remember('n', 9)\nwhile True:\n    remember('n', recall('n', 1) * recall('n', 1))",
        "beyond 2|takes a finite number",
    ),
    "squaring through if": ("n = 9\nwhile True:\n    n = (n if n else 1) * (n or 1)", r"grew beyond 2\*\*63"),
    "a long product": ("n = 9007199254740991\nreturn n * n * n * n * n * n * n * n", r"grew beyond 2\*\*63"),
    "a format bomb": ("return '%1000000000d' % 5", "% takes numbers, not a string"),
    "a format bomb in memory": (
        "remember('f', '%999999999d')\nreturn recall('f', 1) % 5",
        "% takes numbers, not a string",
    ),
    "growing the list that is iterated": ("xs = [1]\nfor x in xs:\n    xs.append(x)", OVER),
    "growing it in place": ("xs = [1]\nfor x in xs:\n    xs += [x]", OVER),
    "growing it under enumerate": ("xs = [1]\nfor i, x in enumerate(xs):\n    xs.append(x)", OVER),
    "growing it under zip": ("xs = [1]\nfor a, b in zip(xs, xs):\n    xs.append(a)", OVER),
    "growing a dict that is iterated": ("d = {0: 1}\nfor k in d:\n    d[k + 1] = 1", "changed size during iteration"),
    "a sort bomb": ("xs = list(range(10000))\nwhile True:\n    xs = sorted(xs, key=lambda x: -x)", OVER),
    "a bomb of lists within lists": ("xs = [1]\nwhile True:\n    xs = [xs, xs]", OVER),
    "deep lists compared": (
        "a = [1]\nb = [1]\nfor i in range(9000):\n    a = [a]\n    b = [b]\nreturn a == b",
        "four levels",
    ),
    "deep lists in min": ("a = [1]\nfor i in range(9000):\n    a = [a]\nreturn min(a, a)[0]", "four levels"),
    "deep lists looked for": ("a = [1]\nfor i in range(9000):\n    a = [a]\nreturn a in [a]", "four levels"),
    "deep lists as sort keys": (
        "a = [1]\nfor i in range(9000):\n    a = [a]\nreturn sorted([1, 2], key=lambda x: a)",
        "four",
    ),
    "deep lists that are sorted": ("a = [1]\nfor i in range(9000):\n    a = [a]\nreturn sorted([a, a])", "four levels"),
    "deep lists compared in a chain": (
        "a = [1]\nfor i in range(90):\n    a = [a]\nreturn 0 < 1 in [1] == a == a",
        "four",
    ),
    "deep tuples hashed": ("t = (1,)\nfor i in range(90000):\n    t = (t,)\nd = {}\nreturn d[t]", "four levels"),
    "deep tuples looked for in a dict": (
        "t = (1,)\nfor i in range(90000):\n    t = (t,)\nreturn t in {}",
        "four levels",
    ),
    "deep tuples as keys": (
        "t = (1,)\nfor i in range(90000):\n    t = (t,)\nreturn {t: 1}",
        "a key must be a string or a whole",
    ),
    "deep lists returned": ("t = [1]\nfor i in range(90000):\n    t = [t]\nreturn t", "must return an instance"),
    "a list that holds itself": ("t = [1]\nt.append(t)\nreturn t == t", "four levels"),
    "a wide list compared within lists": (
        "row = list(range(20000))\nwhile True:\n    row == list(row)".replace("row == list", "n = row == list"),
        OVER,
    ),
    "a wide key": ("row = list(range(30000))\nwhile True:\n    n = min((1, 2), key=lambda x: row)", OVER),
    "colliding keys": ("d = {}\nn = 0\nwhile True:\n    n += 1\n    d[n % 8192 * 1099511627776] = n", OVER),
    "colliding keys in a comprehension": ("while True:\n    d = {n * 1099511627776: 1 for n in range(8000)}", OVER),
    "colliding keys in memory": ("n = 0\nwhile True:\n    n += 1\n    remember(n % 8000 * 1099511627776, n)", OVER),
    "keys without end in memory": ("n = 0\nwhile True:\n    n += 1\n    remember(n, n)", OVER),
    "a list in memory": ("remember('x', [1])", "remember takes a finite number or a short string as its value"),
    "a view in memory": (
        "remember('x', instances[0])",
        "remember takes a finite number or a short string as its value",
    ),
    "no number in memory": (
        "n = 1e15\nfor i in range(30):\n    n = n * 1e15\nremember('x', n - n)",
        "remember takes a finite",
    ),
    "a list as a memory's key": ("remember([1], 1)", "remember takes a short string or a whole number"),
    "a float as a memory's key": ("return recall(0.5, 1)", "recall takes a string or a whole number"),
    "no number": (
        "n = 1e15\nfor i in range(30):\n    n = n * 1e15\nreturn n - n",
        "must return an instance.* but returned nan",
    ),
    "a text": (
        "return 'i0'",
        r"must return an instance, its position in `instances`, send\(.*, but returned 'i0', at request 17",
    ),
    "a position that is not there": ("return 4", "must return an instance.* but returned 4"),
    "a position before the first": ("return -1", "must return an instance.* but returned -1"),
    "True": ("return True", "must return an instance.* but returned True"),
    "nothing": ("n = 1", "must return an instance.* but returned None"),
    "a request": ("return request", "must return an instance"),
    "appending to the instances": ("instances.append(1)\nreturn 0", "append works only on a list that the policy made"),
    "putting into the instances": (
        "instances[0] = 1\nreturn 0",
        "only a list or dict that the policy made can be changed",
    ),
    "adding to the instances": ("cluster.instances[0] += 1\nreturn 0", "unsupported operand|cannot be added"),
    "putting into a request": (
        "request['tenant'] = 1\nreturn 0",
        "only a list or dict that the policy made can be changed",
    ),
    "a method as a value": (
        "x = [1]\nif request.turn > 5:\n    x = instances[0]\nreturn x.index",
        "a list has no fields",
    ),
    "going through a number": ("return sum(x for x in 5)", "line 2: a number is not iterable"),
    "going through a request": ("for x in request:\n    pass", "not iterable"),
    "the length of a request": ("return len(request)", "has no len"),
    "unpacking too much": ("a, b = list(range(50000))", "too many values to unpack"),
    "division by zero": ("return 1 // 0", "line 2: division by zero; ratio"),
    "a name without a value": ("if request.turn > 5:\n    n = 1\nreturn n", "line 4: n has no value yet"),
    "an entry that is not there": ("return {'a': 1}['b']", "there is no entry 'b'"),
    "the root of a negative number": ("return sqrt(0 - 1)", "the function is not defined for this number"),
    "the logarithm of nothing": ("return log(0)", "the function is not defined for this number"),
    "an exponential beyond all": ("return exp(1000)", "the number is too large"),
    "the least of nothing": ("return min([])", "min or max of an empty list"),
    "digits beyond all": ("return round(0.5, 10000000)", "whole number of digits"),
    "an estimate of nothing": (
        "return estimated_ttft(instances[0], 0 - 5)",
        "estimated_ttft takes an instance and a number",
    ),
    "a slice of a range": ("return range(5)[1:]", "a range cannot be sliced"),
    "a list as a key": ("d = {}\nreturn d[[1]]", "a list or dict cannot be a key"),
}


@pytest.mark.parametrize("name", RUNNING)
def test_it_is_stopped_and_says_why(name: str) -> None:
    text, why = RUNNING[name]
    source = body(text)
    assert not check(source, "routing")
    first = decided(source)
    assert first == decided(source)
    assert first.startswith("policies.routing: ")
    assert re.search(why, first), first


REFUSED = {
    "import": (body("import os\nreturn 0"), 2, "import", "imports are not allowed"),
    "from import": ("from os import path\n" + body("return 0"), 1, "import", "imports are not allowed"),
    "open": (body("return open('/etc/passwd')"), 2, "open", "no such function in a routing policy"),
    "exec": (body("exec('1')\nreturn 0"), 2, "exec", "no such function"),
    "getattr": (body("return getattr(request, 'id')"), 2, "getattr", "no such function"),
    "the library itself": (body("return _library"), 2, "name", "underscore"),
    "the counter": (body("_left = 10\nreturn 0"), 2, "name", "underscore"),
    "a dunder": (body("return ().__class__.__bases__"), 2, "attribute", "underscore"),
    "a function in other letters": (body("return 𝐨𝐩𝐞𝐧('x')"), 2, "open", "no such function"),
    "a private field": (body("return instances[0]._estimator"), 2, "attribute", "underscore"),
    "a method of a view": (
        body("return instances[0].estimate(1, 2, 3, 4)"),
        2,
        ".estimate()",
        "views have fields only",
    ),
    "a method of a text": (body("return 'a'.format(1)"), 2, ".format()", "append, get, items, keys, values"),
    "a method as a field": (body("return 'a'.format"), 2, ".format", "only request, instance, .* have fields"),
    "the id": (body("return request.id"), 2, ".id", "a request has no such field; it has prompt_tokens"),
    "the prompt": (body("return request.path"), 2, ".path", "no such field"),
    "an f-string": (body("return f'{request}'"), 2, "f-string", "strings cannot be formatted"),
    "a power": (body("return 9 ** 9 ** 9"), 2, "**", r"use x \* x"),
    "a shift": (body("return 1 << 100000"), 2, "<<", "not part of the policy language"),
    "a class": ("class A:\n    pass\n" + body("return 0"), 1, "class", "classes are not allowed"),
    "try": (body("try:\n    return 1\nexcept Exception:\n    return 0"), 2, "try", "errors cannot be caught"),
    "a set": (body("return {1, 2}"), 2, "set", "order is not defined"),
    "a walrus": (body("return (n := 5)"), 2, ":=", "not part of the policy language"),
    "a star": (body("return max(*instances)"), 2, "*", "not part of the policy language"),
    "two stars": (body("return {**{}}"), 2, "**", "not part of the policy language"),
    "a generator": (body("yield 1"), 2, "expression|yield", "not part of the policy language|not used"),
    "a generator that is kept": (body("g = (x for x in [1])\nreturn 0"), 2, "generator expression", "may only be"),
    "an iterator that is kept": (body("g = zip([1], [2])\nreturn 0"), 2, "zip", r"write list\(zip\(\.\.\.\)\)"),
    "a dict's view that is kept": (body("d = {}\ng = d.items()\nreturn 0"), 3, "items", r"write list\(d.items\(\)\)"),
    "a lambda that is kept": (body("f = lambda x: x\nreturn 0"), 2, "lambda", "key= of min, max or sorted"),
    "global": (body("global W\nreturn 0"), 2, "global", "remember"),
    "del": (body("n = 1\ndel n\nreturn 0"), 3, "del", "not part of the policy language"),
    "a decorator": ("@staticmethod\n" + body("return 0"), 2, "decorator", "not part of the policy language"),
    "a default": (
        "def f(x=1):\n    return x\n" + body("return 0"),
        1,
        "arguments",
        "must be plain names, without defaults",
    ),
    "a function within a function": (
        body("def f():\n    return 1\nreturn f()"),
        2,
        "functiondef",
        "define the function at the top level",
    ),
    "recursion": ("def f(x):\n    return f(x)\n" + body("return f(1)"), 1, "f", "calls itself"),
    "recursion through another": (
        "def f(x):\n    return g(x)\ndef g(x):\n    return f(x)\n" + body("return f(1)"),
        1,
        "f",
        "itself",
    ),
    "recursion through a lambda": (
        "def f(xs):\n    return min(xs, key=lambda x: f(xs))\n" + body("return f([1])"),
        1,
        "f",
        "calls itself",
    ),
    "assignment to a field": (
        body("instances[0].inflight = 0\nreturn 0"),
        2,
        "assignment",
        "cannot be changed|target must be a name",
    ),
    "assignment to a slice": (body("xs = [1]\nxs[0:1] = [2]\nreturn 0"), 3, "assignment", "a slice cannot be assigned"),
    "two targets": (body("x = y = 1\nreturn 0"), 2, "assignment", "only one target is allowed"),
    "break outside a loop": (body("break"), 2, "syntax", "outside loop"),
    "continue outside a loop": (body("continue"), 2, "syntax", "not properly in loop"),
    "an argument twice": ("def f(a, a):\n    return a\n" + body("return 0"), 1, "syntax", "duplicate argument"),
    "a keyword twice": (body("return min([1], default=1, default=2)"), 2, "syntax", "repeated"),
    "a step in a slice": (body("return [1, 2][::2]"), 2, "slice", "must not have a step"),
    "a large number": (body("return 99999999999999999999"), 2, "number", r"must be between -2\*\*53 and 2\*\*53"),
    "infinity": (body("return 1e999"), 2, "number", "between"),
    "a complex number": (body("return 1j"), 2, "complex", "not part of the policy language"),
    "bytes": (body("return b'a'"), 2, "bytes", "not part of the policy language"),
    "a long text": (body(f"return '{'a' * 300}'"), 2, "string", "256 characters"),
    "a long name": (body(f"{'a' * 100} = 1\nreturn 0"), 2, "name", "60 characters"),
    "a name in other letters": (body("é = 1\nreturn 0"), 2, "name", "ASCII"),
    "calling a value": (body("x = 1\nreturn x()"), 3, "x", "is a value here"),
    "calling a result": (body("return min(1, 2)(3)"), 2, "call", "only a function's name"),
    "a function as a value": (body("return min"), 2, "min", "is a function"),
    "a name of the library": ("min = 3\n" + body("return 0"), 1, "min", "is a library function"),
    "too few arguments": (body("return ratio(1)"), 2, "ratio", "takes 2 arguments, not 1"),
    "a foreign function": (body("return rate(request, 1)"), 2, "rate", "no such function in a routing policy"),
    "code at the top level": ("for x in (1, 2):\n    pass\n" + body("return 0"), 1, "for", "top level"),
    "a call at the top level": (
        "X = recall('a', 1)\n" + body("return 0"),
        1,
        "X",
        "a top-level value must be a number",
    ),
    "no entry": ("def f(x):\n    return x\n", 1, "routing", "no entry function; define one of: def score"),
    "two entries": (body("return 0") + "def score(a, b, c):\n    return 1\n", 1, "routing", "several entry functions"),
    "another entry's arguments": (
        "def route(request):\n    return 0\n",
        1,
        "route",
        r"must have the arguments \(request, inst",
    ),
    "an annotation alone": (
        body("n: int\nreturn 0"),
        2,
        "annotation without a value",
        "not part of the policy language",
    ),
    "match": (body("match request:\n    case _:\n        return 0"), 2, "match", "not part of the policy language"),
    "deep nesting": (body(f"return {'[' * 60}{']' * 60}"), 2, "nesting", "deeper than 40 levels"),
    "deep parentheses": (body(f"return {'(' * 300}1{')' * 300}"), 2, "syntax", "too many nested parentheses"),
    "unary minuses": (body(f"return {'-' * 15000}1"), 1, "nesting", "nested too deeply"),
    "chained subscripts": (body(f"return instances{'[0]' * 4000}"), 2, "nesting", "deep"),
    "nested loops": (
        HEAD + "".join(f"{' ' * (n + 1)}for a{n} in range(2):\n" for n in range(21)) + f"{' ' * 23}pass\n",
        10,
        "nesting",
        "more than 8 nested loops",
    ),
    "huge source": (body("x = 1\n" * 10000), 1, "source", "a policy may have at most 20,000"),
    "many nodes": (
        body("\n".join(["x = [1, 2, 3, 4, 5, 6, 7, 8, 9]"] * 500)),
        1,
        "source",
        "more than 4,000 syntax nodes",
    ),
    "many functions": (
        "".join(f"def f{n}(x):\n    return 1\n" for n in range(60)) + body("return 0"),
        101,
        "source",
        "may have at most 50 functions",
    ),
    "a null byte": ("\0" + body("return 0"), 1, "syntax", "null bytes|cannot be parsed"),
    "half a character": (body("return '\ud800'"), 1, "syntax", "cannot be parsed as Python"),
    "thousands of digits": (body(f"return {'9' * 9000}"), 2, "syntax", "digits|cannot be parsed"),
    "tangled names": (
        body("n0 = 1\n" + "\n".join(f"n{i + 1} = n{i}" for i in reversed(range(200))) + "\nreturn 0"),
        1,
        "source",
        "too many names",
    ),
}


UNPLACED = ("chained subscripts", "unary minuses", "many nodes", "half a character")  # which have no line of their own


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_line_and_why(name: str) -> None:
    source, line, construct, why = REFUSED[name]
    found = check(source, "routing")
    assert found and list(found) == sorted(found, key=lambda one: one.line)
    told = f"{found[0].construct}: {found[0].why}"
    assert re.search(rf"^({_words(construct)}): .*({why})", told), told
    assert found[0].line == line or name in UNPLACED
    with pytest.raises(CodeError) as caught:
        Program(source, "routing")
    assert list(caught.value.rejections) == found


def _words(construct: str) -> str:
    return construct if "|" in construct else "".join(f"\\{one}" if one in "*.()<" else one for one in construct)


# --- what does get through -------------------------------------------------------------------------------------------

ALLOWED = {
    "locals called like functions of the library": ("len = 2\nmin = 1\nreturn len - min", 1),
    "locals called like constants": ("LIMIT = 2\nreturn LIMIT", 2),
    "a comprehension's name hides a constant inside alone": (
        "xs = [LIMIT for LIMIT in range(3)]\nreturn LIMIT - xs[2]",
        1,
    ),
    "a lambda's name hides a constant inside alone": ("x = min([2, 1], key=lambda LIMIT: -LIMIT)\nreturn LIMIT - x", 1),
    "a comprehension's name does not leave it": ("x = 3\nys = [x for x in (1, 2)]\nreturn x", 3),
    "its first list is looked for outside": ("LIMIT = 1\nxs = [LIMIT for LIMIT in [LIMIT]]\nreturn xs[0]", 1),
    "a local called like a function": ("helper = 3\nreturn helper", 3),
    "where to put is worked out after what": ("xs = [0, 0]\nxs[grown(xs) - 4] = grown(xs)\nreturn xs[0]", 3),
    "where to add is worked out once": ("xs = [0, 1]\nxs[grown(xs) - 3] += 2\nreturn len(xs) - 1", 2),
    "any stops where it knows": ("return 1 if any(1 // x > 0 for x in (1, 0)) else 0", 1),
    "all stops where it knows": ("return 0 if all(1 // x > 1 for x in (1, 0)) else 1", 1),
    "+= keeps the list": ("xs = [1]\nys = xs\nys += [2]\nreturn len(xs)", 2),
    "a dict is followed as it changes": (
        "d = {0: 0, 1: 0}\nn = 0\nfor k, v in d.items():\n    d[1] = 3\n    n += v\nreturn n",
        3,
    ),
    "enumerate sees what is put later": (
        "xs = [0, 0]\nn = 0\nfor i, x in enumerate(xs):\n    xs[1] = 2\n    n += x\nreturn n",
        2,
    ),
    "a sum from left to right": (
        "return 1 if sum([0.1] + [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]) < 1 else 0",
        1,
    ),
    "an annotated name": ("n: int = 1\nreturn n", 1),
    "a large product of three": ("n = 2000000\nreturn 3 if n * n * n > 1 else 0", 3),
    "a text in a mapping of a chosen view": (
        "return 1 if 'x' in (instances[0] if request.turn > 5 else instances[1]).tier_used else 2",
        2,
    ),
    "a counter": ("n = 0\nfor v in instances:\n    n += v.inflight\nreturn n - 6", 2),
}
AROUND = "LIMIT = 3\ndef helper(x):\n    return x\ndef grown(xs):\n    xs.append(0)\n    return len(xs)\n"


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_harmless_means_what_it_means_in_python(name: str) -> None:
    text, expected = ALLOWED[name]
    source = AROUND + body(text)
    assert decided(source) == f"routes to i{expected}"
    space: dict[str, Any] = {}
    exec(source, space)
    if name != "a sum from left to right":  # which newer Pythons compensate
        assert space["route"](*situation()) == expected


@pytest.mark.full
def test_nothing_that_was_handed_over_is_changed() -> None:
    """By any of the hostile programs: views, requests and the tuple of instances are as before."""

    def seen(request: Request, cluster: ClusterView) -> list[Any]:
        fields = [one for one in InstanceView.__slots__ if one not in ("_recent", "_estimator")]
        return [request, *([getattr(view, one) for one in fields] for view in cluster.instances)]

    before = seen(situation()[0], situation()[2])
    for text, _ in RUNNING.values():
        policy = registry.build("routing", {"name": "code", "source": body(text)}, "policies.routing")
        request, instances, cluster = situation()
        policy.bind(Context(list(instances), lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
        with pytest.raises(CodeError):
            policy.route(request, cluster)
        assert seen(request, cluster) == before
        assert cluster.instances is instances and len(instances) == 4


def test_a_long_body_costs_more_steps_than_a_short_one() -> None:
    """Else a loop of a thousand lines would run a thousand times as long on the same budget."""
    turns = []
    for lines in (1, 200):
        work = "\n".join(["    x = x * 0.5 + n"] * lines)
        said = decided(body(f"n = 0\nx = 1.0\nwhile True:\n    n += 1\n    remember('n', n)\n{work}"))
        assert "more than 100,000 steps" in said
        source = body(f"n = 0\nx = 1.0\nwhile True:\n    n += 1\n    remember('n', n)\n{work}")
        running = Program(source, "routing").start()
        running.begin(language.STEPS, [], None)
        with pytest.raises(Exception, match=r"^$"):
            running.entrance(*situation())
        turns.append(running.memory.values["n"])
    assert turns[0] > 4 * turns[1]


def test_no_chain_of_calls_comes_near_the_interpreter_s_limit() -> None:
    chain = "".join(f"def f{n}(xs):\n    return max(xs, key=lambda x: f{n + 1}(xs))\n" for n in range(48))
    source = f"{chain}def f48(xs):\n    return 1\n" + body("return f0([1])")
    deepest = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_depth() + 320)
        assert decided(source) == "routes to i1"
    finally:
        sys.setrecursionlimit(deepest)


def _depth() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


def test_memory_forgets_what_was_remembered_longest_ago() -> None:
    memory = Memory(3)
    for key in ("a", "b", "c", "a", "d"):
        memory.remember(key, 1)
    assert list(memory.values) == ["c", "a", "d"]
    assert memory.recall("b", 7) == 7


def test_what_only_a_decision_knows_is_not_asked_afterwards() -> None:
    from headway.views.events import Routed

    for call, word in (("cached_tokens(instance)", "cached_tokens"), ("tenant(request).active", "tenant")):
        source = body("return 0") + f"def routed(request, instance):\n    remember('x', {call})\n"
        policy = registry.build("routing", {"name": "code", "source": source}, "policies.routing")
        request, instances, _ = situation()
        policy.bind(Context(list(instances), lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
        with pytest.raises(CodeError, match=f"{word} cannot be called in routed"):
            policy.observe(Routed(0, request, instances[0]))


def test_a_scheduler_s_memory_is_of_one_instance_and_one_run() -> None:
    source = "def key(ticket):\n    remember('n', recall('n', 0) + 1)\n    return recall('n', 0)\n"
    policy = registry.build("scheduler", {"name": "code", "source": source}, "policies.scheduler")
    ticket = Ticket(situation()[0], 0.0, 0, 0)
    queues = [policy.queue(), policy.queue()]
    assert [queues[0].key(ticket), queues[0].key(ticket), queues[1].key(ticket)] == [1, 2, 1]
