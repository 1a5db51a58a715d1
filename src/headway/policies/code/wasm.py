"""Routing policies compiled to WebAssembly. A module sees only the numbers that Headway writes to its memory.

wasmtime counts the module's fuel exactly and limits its memory. A module that imports anything is rejected.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any, ClassVar, Final

from headway.config.documents import file_name, read_bytes
from headway.config.wording import cut, one_line
from headway.errors import HeadwayError, missing_extra
from headway.policies import registry
from headway.policies.code.rejection import CodeError
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, BlockTokens, Context, LruBlocks
from headway.policies.registry import policy
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import SIGNALS

FUEL: Final = 1_000_000  # maximum fuel of one decision; an instruction uses about one unit
MEMORY: Final = 16 << 20  # maximum memory of a module, in bytes
LARGEST: Final = 4 << 20  # maximum size of a module, in bytes
REQUEST_FIELDS: Final = ("prompt_tokens", "shared_prefix_tokens", "max_tokens", "turn", "now")
RECORD: Final = sorted(
    (signal for signal in SIGNALS.values() if signal.wasm is not None), key=lambda signal: signal.wasm or 0
)
INSTANCE_FIELDS: Final = (*[signal.name for signal in RECORD], "cached_tokens")
COUNTED: Final = tuple(signal.name for signal in RECORD if signal.freshness == "exact")
READ: Final = tuple(signal.name for signal in RECORD if signal.freshness == "reported")
PLACE: Final = "policies.routing: wasm"


def wasmtime() -> Any:
    try:
        return import_module("wasmtime")
    except ImportError:
        raise missing_extra(PLACE, "wasmtime", "wasm") from None


class Module:
    """A compiled module."""

    def __init__(self, code: bytes, name: str) -> None:
        self.wt, self.name = wasmtime(), name
        if len(code) > LARGEST:
            raise CodeError(f"{PLACE}: {name} has {len(code):,} bytes; a module may have at most {LARGEST:,}.")
        config = self.wt.Config()
        config.consume_fuel = True
        config.cranelift_nan_canonicalization = True
        config.parallel_compilation = False  # a confined process has one thread and little memory
        config.memory_init_cow = False
        config.memory_reservation, config.memory_guard_size, config.memory_reservation_for_growth = 1 << 20, 0, 0
        config.wasm_threads = config.wasm_relaxed_simd = config.wasm_memory64 = False
        self.engine = self.wt.Engine(config)
        try:
            self.module = self.wt.Module(self.engine, code)
        except self.wt.WasmtimeError as error:
            raise CodeError(f"{PLACE}: {name} is not a valid WebAssembly module: {_first(error)}.") from None
        imports = [f"{item.module}.{item.name}" for item in self.module.imports]
        if imports:
            raise CodeError(f"{PLACE}: {name} imports {cut(', '.join(imports))}; a policy must not import anything.")
        self._check_export("memory", self.wt.MemoryType)
        i32 = self.wt.ValType.i32()
        for function, count in (("route", 3), *((("buffer", 1),) if "buffer" in self._exports() else ())):
            kind = self._check_export(function, self.wt.FuncType)
            if list(kind.params) != [i32] * count or list(kind.results) != [i32]:
                signature = f"({', '.join(['i32'] * count)}) -> i32"
                raise CodeError(f"{PLACE}: {name} must export {function} as {signature}.")

    def _exports(self) -> dict[str, Any]:
        return {export.name: export.type for export in self.module.exports}

    def _check_export(self, name: str, kind: Any) -> Any:
        export = self._exports().get(name)
        if not isinstance(export, kind):
            what = "a memory" if name == "memory" else "a function"
            raise CodeError(f"{PLACE}: {self.name} must export {what} called {name!r}.")
        return export


class Started:
    """A started module with its own memory, for one simulation or gateway."""

    def __init__(self, module: Module, fuel: int) -> None:
        self.wt, self.name, self.fuel = module.wt, module.name, fuel
        self.store = store = self.wt.Store(module.engine)
        store.set_limits(memory_size=MEMORY, table_elements=10_000, instances=1, tables=4, memories=1)
        exports = self.run(lambda: self.wt.Instance(store, module.module, [])).exports(store)
        self.memory, self.route = exports["memory"], exports["route"]
        self.buffer = exports["buffer"] if "buffer" in module._exports() else None
        self.room, self.at = 0, 0

    def run(self, call: Any) -> Any:
        """Refill the module's fuel, and call a function that runs the module."""
        self.store.set_fuel(self.fuel)
        try:
            return call()
        except (self.wt.Trap, self.wt.WasmtimeError) as error:
            text = _first(error)
            why = f"more than {self.fuel:,} units of fuel in one decision" if "fuel" in text else text
            raise CodeError(f"{PLACE}: {self.name}: {why}.") from None

    def decide(self, values: list[float], count: int) -> int:
        """Return the index of the instance that the module chooses. `values` contains the numbers of the request, then
        the numbers of each instance."""
        data = struct.pack(f"<{len(values)}d", *values)
        if len(data) > self.room:
            self.at = 0 if self.buffer is None else self.run(lambda: self.buffer(self.store, len(data))) & 0xFFFFFFFF
            self.room = len(data)
        if self.at + len(data) > self.memory.data_len(self.store) or self.at % 8:
            what = f"needs {len(data):,} bytes of memory at a multiple of 8, but got address {self.at:,}"
            raise CodeError(f"{PLACE}: {self.name}: the buffer for {count} instances {what}.")
        self.memory.write(self.store, data, self.at)
        after = self.at + 8 * len(REQUEST_FIELDS)
        place: int = self.run(lambda: self.route(self.store, self.at, after, count))
        return place


def _first(error: Exception) -> str:
    """Return one line of an error's message: the line that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.split(": ", 1)[1] for line in lines if line.startswith(("0: ", "1: ", "2: ")) and ": " in line]
    texts = [line for line in lines if "wasm trap" in line] or causes[-1:] or lines[:1]
    return one_line(texts[0] if texts else type(error).__name__, kind=False)


@policy("routing", "wasm", exact=(*COUNTED, "prefix_index"), reported=READ)
class WasmRouting:
    """Routes by your own WebAssembly module, compiled from any language.

    `path` is its file. The module exports `memory` and `route(request, instances, count)`, which gets two addresses and
    a number and returns the position of the chosen instance. `fuel` is the limit of one decision. `cached_tokens` comes
    from the prefix index with these `block_tokens` and `lru_blocks`. Needs the extra `wasm`.
    """

    blank: ClassVar = True  # the policy needs a module from the user
    path: str = ""
    fuel: int = FUEL
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        if not self.path or self.fuel < 1:
            raise HeadwayError(f"{PLACE}: give the file as 'path', as in {{path: policy.wasm}}, and fuel above 0.")
        self.module = Module(read_bytes(self.path), file_name(self.path))

    def __deepcopy__(self, memo: dict[int, Any]) -> WasmRouting:
        return type(self)(**registry.values_of(self))

    def bind(self, context: Context) -> None:
        self.started = Started(self.module, self.fuel)
        self.matches = context.prefix_index(self.block_tokens, self.lru_blocks).matches

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances, size = cluster.instances, self.block_tokens
        cached = [blocks * size for blocks in self.matches(request.path)]
        most = -1 if request.max_tokens is None else request.max_tokens
        values = [request.prompt_tokens, request.shared_prefix_tokens, most, request.turn, cluster.now]
        for view in instances:
            values += [getattr(view, name) for name in INSTANCE_FIELDS[:-1]]
            values.append(cached[view.index])
        place = self.started.decide(values, len(instances))
        if not 0 <= place < len(instances):
            wrong = f"route must return a position from 0 to {len(instances) - 1}, but returned {place}"
            raise CodeError(f"{PLACE}: {self.module.name}: {wrong}, at request {request.id}.")
        return Route(instances[place].id, f"chosen by {self.module.name}", cached[instances[place].index])
