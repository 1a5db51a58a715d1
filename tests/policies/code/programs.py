"""Programs of the policy language, drawn at random: most of their values fit, so that they get somewhere, and some do
not."""

from __future__ import annotations

from random import Random

CONSTANTS = (
    "W = 0.5\nLIMIT = 7\nNAMED = 'busy'\nPAIR = (3, 0.25)\nALPHA = parameter(0.7, 0, 1)\nSTEP = parameter(2, 1, 9)\n"
)
TIER, TEXT = "'cpu'", "text"
HELPERS = ("first", "second", "third")
DICTS = ("d", "e")
VIEWS = ("v", "w", "best")
FIELDS = (
    "inflight",
    "queued",
    "kv_used",
    "capacity",
    "index",
    "pending_prefill_tokens",
    "kv_utilization",
    "free_blocks",
    "usd_per_hour",
    "estimated_wait",
    "adapter_slots",
)
KINDS = ("number", "number", "number", "text", "list", "dict", "view", "flag", "none", "span")


class Maker:
    """One program. Everything is drawn from `rng`, whatever that draws from."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.callable: list[str] = []
        self.loops = 0

    def source(self) -> str:
        self.lines = CONSTANTS.splitlines()
        for name in HELPERS[: self.rng.randint(0, 2)]:
            self.function(name, "x, y", ("x", "y"))
            self.callable.append(name)
        self.function("route", "request, instances, cluster", ())
        return "\n".join(self.lines) + "\n"

    def function(self, name: str, arguments: str, own: tuple[str, ...]) -> None:
        self.entry = name == "route"
        self.own = own
        self.names = {
            "number": ["LIMIT", "W", "ALPHA", "STEP", "a", "b"],
            "text": ["NAMED", "t"],
            "list": ["PAIR", "xs", "ys"],
            "dict": ["d"],
            "view": ["v"] if self.entry else [],
        }
        self.lines.append(f"def {name}({arguments}):")
        start = [
            "a = 1",
            "b = 2.5",
            "t = 'x'",
            "xs = [3, 1, 2]",
            "ys = [0.5]",
            "d = {'x': 1, 2: 0.5}",
            "v = instances[1]",
        ]
        for text in start[: 7 if self.entry else 6]:
            if self.chance(0.97):
                self.put(1, text)
        for number in range(self.rng.randint(1, 4)):
            self.statement(1, fresh=number < 1)
        if self.chance(0.9):
            self.put(1, f"return {self.expression(self.kind(), 2)}")

    def put(self, level: int, text: str) -> None:
        self.lines.append("    " * level + text)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, *options: str) -> str:
        return options[self.rng.randrange(len(options))]

    def kind(self) -> str:
        return self.pick(*KINDS)

    # --- statements --------------------------------------------------------------------------------------------------

    def block(self, level: int) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.statement(level)

    def statement(self, level: int, fresh: bool = False) -> None:
        deep = level > 2
        which = self.rng.randrange(4 if fresh else 8 if deep else 13)
        if which <= 3:
            self.assignment(level)
        elif which == 4:
            target = self.pick(self.name("number"), self.place())
            self.put(level, f"{target} {self.pick('+', '-', '*', '/', '//', '%')}= {self.expression('number', 2)}")
        elif which == 5:
            kind = self.pick("list", "text")
            self.put(level, f"{self.name(kind)} += {self.expression(kind, 1)}")
        elif which == 6:
            self.put(level, f"{self.place()} = {self.expression(self.kind(), 2)}")
        elif which == 7:
            told = f"remember({self.expression(self.pick('text', 'number'), 1)}, {self.expression('number', 2)})"
            self.put(level, self.pick(f"{self.name('list')}.append({self.expression(self.kind(), 2)})", told))
        elif which <= 9:
            self.loop(level)
        elif which == 10:
            self.counted(level)
        else:
            self.put(level, f"if {self.expression('flag', 2)}:")
            self.block(level + 1)
            if self.chance(0.4):
                self.put(level, self.pick("else:", f"elif {self.expression('flag', 1)}:"))
                self.block(level + 1)

    def assignment(self, level: int) -> None:
        kind = self.pick("number", "number", "text", "list", "dict", "view", "any")
        if self.chance(0.12):
            one, other = self.new("number"), self.new(self.pick("number", "text"))
            values = self.pick(
                f"{self.expression('number', 1)}, {self.expression('text', 1)}", self.expression("list", 2)
            )
            self.put(level, self.pick(f"{one}, {other} = {values}", f"[{one}, ({other}, b)] = {values}, {values}"))
            return
        value = self.expression(kind, 2)
        self.put(level, f"{self.new(self.kind() if kind == 'any' else kind)} = {value}")

    def loop(self, level: int) -> None:
        before = {kind: list(names) for kind, names in self.names.items()}
        self.loops += 1
        which = self.rng.randrange(7)
        if which == 0:
            self.put(
                level,
                f"for {self.new('number')} in range({self.pick('3', '2', 'len(instances)' if self.entry else '4')}):",
            )
        elif which == 1 and self.entry:
            self.put(
                level, f"for {self.new('view')} in {self.pick('instances', 'cluster.instances', 'instances[1:]')}:"
            )
        elif which == 2:
            self.put(level, f"for i, {self.new('number')} in enumerate({self.expression('list', 1)}):")
        elif which == 3:
            self.put(level, f"for a, b in zip({self.expression('list', 1)}, {self.expression('list', 1)}):")
        elif which == 4:
            self.put(level, f"for a, b in {self.name('dict')}.items():")
        elif which == 5:
            self.put(level, f"for t in {self.name('dict')}{self.pick('', '.keys()', '.values()')}:")
        else:
            self.put(level, f"for {self.new(self.pick('number', 'text', 'list'))} in {self.expression('list', 1)}:")
        self.block(level + 1)
        if self.chance(0.3):
            self.put(level + 1, f"if {self.expression('flag', 1)}:")
            self.put(level + 2, self.pick("break", "continue"))
        if self.chance(0.15):
            self.put(level, "else:")
            self.block(level + 1)
        if self.chance(0.5):
            self.names = before

    def counted(self, level: int) -> None:
        name = f"n{self.loops}"
        self.loops += 1
        self.put(level, f"{name} = 0")
        self.put(level, f"while {name} < {self.rng.randint(1, 4)} and {self.expression('flag', 1)}:")
        self.put(level + 1, f"{name} += 1")
        self.block(level + 1)

    def place(self) -> str:
        if self.chance(0.5):
            return f"{self.name('dict')}[{self.expression(self.pick('text', 'number'), 1)}]"
        return f"{self.name('list')}[{self.pick('0', '-1', '1', self.expression('number', 1))}]"

    # --- names -------------------------------------------------------------------------------------------------------

    def new(self, kind: str) -> str:
        options = {"number": ("a", "b", "c", "total", "i"), "text": ("t", "u"), "list": ("xs", "ys", "zs")}
        name = self.pick(*{**options, "dict": DICTS, "view": VIEWS}.get(kind, ("a", "t", "xs", "W")))
        if self.chance(0.03):
            name = self.pick("LIMIT", "NAMED", "PAIR", "first", "sqrt")  # which hides what the top level has
        self.names.setdefault(kind, []).append(name)
        return name

    def name(self, kind: str) -> str:
        if self.own and self.chance(0.15):
            return self.pick(*self.own)
        known = self.names.get(kind) or ["a", "t", "xs", "d"]
        if self.chance(0.04):
            known = [one for names in self.names.values() for one in names]
        return self.pick(*known)

    # --- expressions -------------------------------------------------------------------------------------------------

    def expression(self, kind: str, depth: int) -> str:
        if self.chance(0.04):
            kind = self.kind()
        if depth > 0 and self.chance(0.1):
            one, other = self.expression(kind, depth - 1), self.expression(kind, depth - 1)
            flag = self.expression("flag", depth - 1)
            return self.pick(f"({one} if {flag} else {other})", f"({one} or {other})", f"({one} and {other})")
        if depth > 0 and self.callable and self.chance(0.08):
            one, other = self.expression(self.kind(), depth - 1), self.expression(kind, depth - 1)
            return f"{self.pick(*self.callable)}({one}, {other})"
        made = getattr(self, f"a_{kind}", self.a_number)
        return str(made(depth))

    def a_number(self, depth: int) -> str:
        if depth <= 0:
            return self.pick(
                self.name("number"), self.name("number"), str(self.rng.randint(-3, 9)), "0.5", "1e3", "True"
            )

        def more(kind: str = "number") -> str:
            return self.expression(kind, depth - 1)

        which = self.rng.randrange(16)
        if which <= 4:
            return f"({more()} {self.pick('+', '-', '*', '*', '/', '//', '%')} {more()})"
        if which == 5:
            return f"{self.pick('-', '+', 'abs', 'abs')}({more()})"
        if which == 6:
            return f"{self.pick('min', 'max')}({more()}, {more()})"
        if which == 7:
            return f"{self.pick('len', 'sum', 'min', 'max')}({more('list')})"
        if which == 8:
            return f"{self.pick('int', 'round', 'float', 'bool')}({more()})"
        if which == 9:
            return f"{self.pick('ratio', 'ratio', 'round')}({more()}, {more()})"
        if which == 10:
            return f"{self.expression('list', depth - 1)}[{self.pick('0', '1', '-1', more())}]"
        if which == 11:
            return f"recall({more('text')}, {more()})"
        if which == 12:
            return self.gathered(depth)
        if which == 13:
            return f"{self.name('dict')}.get({more(self.pick('text', 'number'))}, {more()})"
        if which == 14 and self.entry:
            return self.pick(
                "request.prompt_tokens",
                "cluster.now",
                "len(instances)",
                f"cached_tokens({self.a_view(0)})",
                "cluster.priority.score",
                f"cluster.priority.hints.get({more('text')}, {more()})",
                f"tier_utilization({self.a_view(0)}, {self.pick(TIER, more('text'))})",
                f"{self.a_view(0)}.tier_used{self.pick('[' + TIER + ']', f'.get({more(TEXT)}, {more()})')}",
                f"cluster.tenants[{self.pick('request.tenant', more('text'))}].{self.pick('active', 'requests')}",
                f"(request.deadline or {more()})",
            )
        return f"{self.a_view(depth - 1)}.{self.pick(*FIELDS)}" if self.entry else self.name("number")

    def gathered(self, depth: int) -> str:
        name = self.pick("a", "k", "LIMIT", "xs", "t")
        over, test = self.expression("list", 0), self.expression("flag", 0)
        if self.entry and self.chance(0.5):
            over, name = self.pick("instances", "cluster.instances"), "v"
        self.names.setdefault("number", []).append(name)
        inner = self.expression("number", depth - 1) if name != "v" else f"v.{self.pick(*FIELDS)}"
        self.names["number"].pop()
        how = self.pick("sum", "min", "max", "any", "all", "len(sorted")
        close = ")" if how.startswith("len") else ""
        return f"{how}({inner} for {name} in {over}{f' if {test}' if self.chance(0.3) else ''}){close}"

    def a_text(self, depth: int) -> str:
        options = [self.name("text"), "'x'", "'busy'", "''"]
        if self.entry:
            options += ["request.tenant", "request.slo_class", "(request.session or 'x')", "instances[2].adapters[0]"]
        if depth > 0:
            one = self.expression("text", depth - 1)
            options += [
                f"({one} + {self.expression('text', depth - 1)})",
                f"{one}[{self.pick('1:', ':1', '0', ':-1')}]",
            ]
            if self.chance(0.1):
                options += [f"({one} * {self.pick('2', '3')})", f"({one} % {self.expression('number', 0)})"]
        return self.pick(*options)

    def a_list(self, depth: int) -> str:
        if depth <= 0:
            return self.pick(self.name("list"), self.name("list"), "[1, 2.5, 3]", "(4, 5)", "[]", "['p', 'q']")

        def more(kind: str) -> str:
            return self.expression(kind, depth - 1)

        which = self.rng.choice((0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 9, 9))
        if which == 0:
            return f"[{more(self.kind())}, {more('number')}]"
        if which == 1:
            return f"({more('number')}, {more('text')})"
        if which == 2:
            return self.pick(f"({more('list')} + [{more('number')}])", f"({more('list')} + {more('list')})")
        if which == 3:
            key = (
                f", key=lambda {self.pick('k', 'a', 'W')}: {self.pick('-', '')}{more('number')}"
                if self.chance(0.4)
                else ""
            )
            return f"sorted({more('list')}{key}{self.pick('', ', reverse=True')})"
        if which == 4:
            return f"{more('list')}[{self.pick('1:', ':2', ':-1', '1:3')}]"
        if which == 5:
            source = self.pick(
                more("list"), "range(4)", f"zip({more('list')}, (1, 2, 3))", f"enumerate({more('list')})"
            )
            name = self.pick("a", "k", "W", "t")
            return f"[{more(self.pick('number', 'text', 'list'))} for {name} in {source}]"
        if which == 6:
            entries = f"{self.name('dict')}.items()"
            return f"list({self.pick(more('list'), 'range(3)', more('text'), entries)})"
        if which == 7:
            return f"list({self.pick('enumerate', 'list', 'sorted')}({more('list')}))"
        if which == 8:
            return f"({more('list')} * {self.pick('2', more('number'))})" if self.chance(0.2) else "[[1], [2]]"
        return self.pick(self.name("list"), *(("instances", "instances[1].adapters") if self.entry else ("PAIR",)))

    def a_dict(self, depth: int) -> str:
        if depth <= 0:
            seen = ("instances[1].tier_used", "cluster.priority.hints", "cluster.tenants") if self.entry else ()
            return self.pick(self.name("dict"), self.name("dict"), "{}", "{'x': 1, 2: 0.5}", *seen)
        keys = self.pick("text", "number")
        made = f"{{{self.expression(keys, depth - 1)}: {self.expression(self.kind(), depth - 1)}, 'z': 1}}"
        return self.pick(
            made, f"{{k: {self.expression('number', depth - 1)} for k in {self.expression('list', depth - 1)}}}"
        )

    def a_view(self, depth: int) -> str:
        if not self.entry:
            return self.pick(*self.own)
        key = f"lambda k: k.{self.pick(*FIELDS)}"
        some = self.pick("instances[0]", "instances[-1]", f"min(instances, key={key})", f"max(instances, key={key})")
        return self.pick(some, self.name("view")) if self.names["view"] else some

    def a_flag(self, depth: int) -> str:
        if depth <= 0:
            return self.pick(
                f"{self.name('number')} > 1", "True", f"{self.name('text')} == 'x'", f"{self.name('list')}"
            )

        def more(kind: str) -> str:
            return self.expression(kind, depth - 1)

        which = self.rng.randrange(8)
        if which <= 2:
            return f"{more('number')} {self.pick('<', '<=', '>', '>=', '==', '!=')} {more('number')}"
        if which == 3:
            return f"not ({more('flag')})"
        if which == 4:
            return f"{more(self.kind())} {self.pick('in', 'not in')} {more(self.pick('list', 'dict', 'text'))}"
        if which == 5:
            kind = self.kind()
            return f"{more(kind)} {self.pick('==', '!=', '<')} {more(kind)}"
        if which == 6:
            return f"{more(self.kind())} {self.pick('is', 'is not')} {self.pick('None', 'True', 'False')}"
        return f"{more('number')} < {more('number')} <= {more('number')}"

    def a_none(self, depth: int) -> str:
        return "None"

    def a_span(self, depth: int) -> str:
        return self.pick("range(3)", "range(1, 9, 3)", f"range({self.expression('number', depth - 1)})")
