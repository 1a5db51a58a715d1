"""Modules of WebAssembly as routing policies: they decide as others do, and hostile ones are stopped."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from oracle import situation

import headway
from headway import HeadwayError
from headway.policies import registry
from headway.policies.code import CodeError
from headway.policies.code.wasm import INSTANCE_FIELDS, MEMORY, REQUEST_FIELDS
from headway.policies.context import Context
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

wasmtime = pytest.importorskip("wasmtime", reason="the extra `wasm` is not installed")

SIZE = 8 * len(INSTANCE_FIELDS)
GIVEN = "(param $request i32) (param $at i32) (param $count i32)"
HEAD = f'(memory (export "memory") 1) (func (export "route") {GIVEN} (result i32)'


def offset(name: str) -> int:
    return 8 * INSTANCE_FIELDS.index(name)


def lowest(load: str) -> str:
    """Goes through the instances and keeps the first of the lowest `load`, which reads at local $at."""
    return f"""(module {HEAD}
        (local $n i32) (local $best i32) (local $low f64) (local $now f64)
        (local.set $low (f64.const inf))
        (loop $next
            (local.set $now {load})
            (if (f64.lt (local.get $now) (local.get $low))
                (then (local.set $low (local.get $now)) (local.set $best (local.get $n))))
            (local.set $at (i32.add (local.get $at) (i32.const {SIZE})))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $n) (local.get $count))))
        (local.get $best)))"""


def field(name: str) -> str:
    return f"(f64.load offset={offset(name)} (local.get $at))"


LEAST = lowest(field("inflight"))
LMETRIC = lowest(
    f"""(f64.mul (f64.add {field("pending_prefill_tokens")}
        (f64.sub (f64.load (local.get $request)) {field("cached_tokens")})) {field("inflight")})"""
)
TURNS = f"""(module (global $turn (mut i32) (i32.const -1)) {HEAD}
    (global.set $turn (i32.rem_u (i32.add (global.get $turn) (i32.const 1)) (local.get $count)))
    (global.get $turn)))"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    def make(text: str, **given: Any) -> Any:
        file = tmp_path / "policy.wasm"
        file.write_bytes(wasmtime.wat2wasm(text))
        return registry.build("routing", {"name": "wasm", "path": str(file), **given}, "policies.routing")

    return make


def decide(policy: Any) -> int:
    request, instances, cluster = situation()
    policy.bind(Context(list(instances), lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
    return [view.id for view in instances].index(policy.route(request, cluster).target)


RUN = {
    "seed": 4,
    "workload": {
        "requests": 300,
        "rate": "30/s",
        "prompt_tokens": {"dist": "lognormal", "mean": 900, "std": 900, "min": 1},
        "output_tokens": {"dist": "exponential", "mean": 60},
        "prefix": {"groups": 5, "tokens": 512},
    },
    "cluster": {"instances": 5},
}


@pytest.mark.parametrize(("text", "other"), [(LEAST, "least-outstanding"), (TURNS, "round-robin")])
def test_a_module_decides_as_the_policy_it_was_written_after(made: Any, text: str, other: str) -> None:
    decisions = [
        headway.simulate({**RUN, "policies": {"routing": one}}).requests["instance"]
        for one in (spec(made, text), other)
    ]
    assert decisions[0] == decisions[1]
    assert len(set(decisions[0])) == 5


def spec(made: Any, text: str) -> dict[str, str]:
    return {"name": "wasm", "path": made(text).path}


def test_a_module_sees_what_the_language_sees(made: Any) -> None:
    """Prompt, cached tokens and pending work, by the cost that both come to."""
    code = (
        "def score(request, instance, cluster):\n"
        "    fresh = request.prompt_tokens - cached_tokens(instance)\n"
        "    return -((instance.pending_prefill_tokens + fresh) * instance.inflight)\n"
    )
    runs = (spec(made, LMETRIC), {"name": "code", "source": code})
    decisions = [headway.simulate({**RUN, "policies": {"routing": one}}).requests["instance"] for one in runs]
    assert decisions[0] == decisions[1]
    assert len(set(decisions[0])) == 5


@pytest.mark.parametrize("name", [*INSTANCE_FIELDS[:-1], *REQUEST_FIELDS[:-1]])
def test_every_field_is_where_the_documentation_has_it(made: Any, name: str) -> None:
    """A module that chooses by one field alone, against the views themselves."""
    request, instances, _ = situation()
    if name in REQUEST_FIELDS:
        value = getattr(request, name)
        at = f"(f64.load offset={8 * REQUEST_FIELDS.index(name)} (local.get $request))"
        found = decide(made(f"(module {HEAD} (f64.eq {at} (f64.const {-1 if value is None else value}))))"))
        assert found == 1
        return
    values = [getattr(view, name) for view in instances]
    assert decide(made(lowest(field(name)))) == values.index(min(values))


def test_a_run_starts_with_a_memory_of_its_own(made: Any) -> None:
    policy = made(TURNS)
    assert [decide(policy), decide(policy), decide(deepcopy(policy))] == [0, 0, 0]


def test_the_buffer_is_where_the_module_wants_it(made: Any) -> None:
    text = LEAST.replace("(module ", '(module (func (export "buffer") (param i32) (result i32) (i32.const 4096)) ')
    request = situation()[0]
    policy = made(text)
    assert decide(policy) == 1
    assert policy.started.at == 4096
    many = [InstanceView(index, f"i{index}") for index in range(300)]  # 53 kB; then more than the page has
    policy.bind(Context(many, lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
    assert policy.route(request, ClusterView(many)).target == "i0"
    more = [InstanceView(index, f"i{index}") for index in range(500)]
    policy.bind(Context(more, lambda name: pytest.fail("drew"), None, 16))  # type: ignore[arg-type]
    with pytest.raises(CodeError, match="the buffer for 500 instances needs"):
        policy.route(request, ClusterView(more))


HOSTILE = {
    "an infinite loop": (f"(module {HEAD} (loop $on (br $on)) (i32.const 0)))", "more than 1,000,000 units of fuel"),
    "an infinite start": (
        f"(module (func $s (loop $on (br $on))) (start $s) {HEAD} (i32.const 0)))",
        "more than 1,000,000 units of fuel",
    ),
    "a trap": (f"(module {HEAD} unreachable))", "unreachable"),
    "a division by zero": (f"(module {HEAD} (i32.div_s (i32.const 1) (i32.const 0))))", "divide by zero"),
    "reading beyond its memory": (f"(module {HEAD} (i32.load (i32.const 99999999))))", "out of bounds memory access"),
    "recursion": (f"(module (func $f (call $f)) {HEAD} (call $f) (i32.const 0)))", "stack exhausted|units of fuel"),
    "a position that is not there": (
        f"(module {HEAD} (i32.const 4)))",
        "a position from 0 to 3, but returned 4, at request 17",
    ),
    "a position before the first": (f"(module {HEAD} (i32.const -1)))", "but returned -1"),
    "much memory": (f"(module {HEAD} (i32.const 0)))".replace(" 1)", " 300)", 1), "memory|limit"),
    "a buffer at an odd place": (
        f'(module (func (export "buffer") (param i32) (result i32) (i32.const 3)) {HEAD} (i32.const 0)))',
        "at a multiple of 8",
    ),
    "a buffer outside": (
        f'(module (func (export "buffer") (param i32) (result i32) (i32.const -8)) {HEAD} (i32.const 0)))',
        "needs 7.* bytes",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_module_is_stopped_and_says_why(made: Any, name: str) -> None:
    text, why = HOSTILE[name]
    said = []
    for _ in range(2):
        with pytest.raises(CodeError, match=rf"^policies.routing: wasm: policy.wasm: .*({why})") as caught:
            decide(made(text))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "\n" not in said[0]


def test_memory_does_not_grow_beyond_its_bound(made: Any) -> None:
    pages = MEMORY >> 16
    assert (
        decide(made(f"(module {HEAD} (i32.add (i32.const 2) (memory.grow (i32.const {pages})))))")) == 1
    )  # -1: refused
    assert decide(made(f"(module {HEAD} (memory.grow (i32.const {pages - 1}))))")) == 1  # the size that it had


def test_no_number_is_the_same_everywhere(made: Any) -> None:
    """0/0 in the one form that counts, whatever the machine makes of it."""
    bits = "(i64.reinterpret_f64 (f64.div (f64.const 0) (f64.const 0)))"
    assert decide(made(f"(module {HEAD} (i64.eq {bits} (i64.const 0x7ff8000000000000))))")) == 1


REFUSED = {
    "imports": (
        f'(module (import "env" "clock" (func)) {HEAD} (i32.const 0)))',
        "imports env.clock; a policy must not import anything",
    ),
    "no memory": (
        '(module (func (export "route") (param i32 i32 i32) (result i32) (i32.const 0)))',
        "a memory called 'memory'",
    ),
    "no function": ('(module (memory (export "memory") 1))', "must export a function called 'route'"),
    "another form": (
        '(module (memory (export "memory") 1) (func (export "route") (result f64) (f64.const 0)))',
        r"must export route as \(i32, i32, i32\) -> i32",
    ),
    "threads": ('(module (memory (export "memory") 1 1 shared))', "not a valid WebAssembly module"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_is_no_policy_is_refused(made: Any, name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(HeadwayError, match=why):
        made(text)


def test_a_file_that_is_no_module_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.wasm"
    for content, why in (
        (b"\0asm\1\0", "not a valid WebAssembly"),
        (b"hello", "not a valid WebAssembly"),
        (b"\0" * (5 << 20), "may have at most 4,194,304"),
    ):
        file.write_bytes(content)
        with pytest.raises(HeadwayError, match=why):
            registry.build("routing", {"name": "wasm", "path": str(file)}, "policies.routing")
    for given, why in (
        ({"path": str(tmp_path / "none.wasm")}, "cannot be read"),
        ({}, "give the file as 'path'"),
    ):
        with pytest.raises(HeadwayError, match=why):
            registry.build("routing", {"name": "wasm", **given}, "policies.routing")


def test_without_wasmtime_the_extra_is_named(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(LEAST).path
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(HeadwayError, match=r"wasmtime is not installed\. Run: pip install 'headway\[wasm\]'"):
        registry.build("routing", {"name": "wasm", "path": path}, "policies.routing")


def test_the_documentation_lists_the_fields_in_their_order(root: Path) -> None:
    text = (root / "docs" / "policy-language.md").read_text(encoding="utf-8")
    assert f"| {', '.join(INSTANCE_FIELDS)} |" in text
    assert f"| {', '.join(REQUEST_FIELDS).replace('max_tokens', 'max_tokens (-1 if there is no limit)')} |" in text
