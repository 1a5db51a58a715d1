"""The files, the columns and the YAML header of a BLIS trace (version 2 or 3)."""

import pathlib
from typing import Any, Final, Literal

import yaml
from msgspec import Struct

from headway.config.section import read
from headway.config.wording import cut, one_line
from headway.errors import HeadwayError
from headway.workload.traces.source import reason

COLUMNS: Final = (
    *("request_id", "client_id", "tenant_id", "slo_class", "vllm_priority", "session_id", "round_index"),
    *("prefix_group", "prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens"),
    *("audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us", "slo_target_us", "server_input_tokens"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status"),
    *("error_message", "finish_reason", "x_request_id", "adapter", "think_time_us", "input_tokens_reset"),
)
OPTIONAL: Final = ("vllm_priority", "slo_target_us", "x_request_id", "adapter", "think_time_us", "input_tokens_reset")
REQUIRED: Final = ("input_tokens", "output_tokens", "arrival_time_us")

# Columns that are fields of a record. Other columns are stored in `extra` if they differ from their default.
TOLD: Final = frozenset(
    (
        *("request_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_length", "input_tokens"),
        *("output_tokens", "model", "arrival_time_us", "think_time_us"),
    )
)
WHOLE: Final = frozenset(
    (
        *("vllm_priority", "text_tokens", "image_tokens", "audio_tokens", "video_tokens", "deadline_us"),
        *("slo_target_us", "server_input_tokens", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
        *("num_chunks", "input_tokens_reset"),
    )
)
DEFAULTS: Final[dict[str, str]] = {
    **{name: "0" for name in COLUMNS if name in WHOLE and name != "input_tokens_reset"},
    "streaming": "false",
    "reason_ratio": "0",
    "status": "ok",
    "round_index": "0",
    "prefix_length": "0",
}
FLAGS: Final[dict[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
HEADER, DATA = "header.yaml", "data.csv"


def files(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the paths of the header file and the data file, and check that both exist. `path` is one of the two files,
    their folder, or their common name."""
    header, data = names(path)
    if path.name in (HEADER, DATA) and not (header.is_file() and data.is_file()):
        header, data = path.parent / HEADER, path.parent / DATA
    if not data.is_file() and data.with_name(f"{data.name}.gz").is_file():
        data = data.with_name(f"{data.name}.gz")
    for file in (header, data):
        if not file.is_file():
            raise HeadwayError(
                f"{path}: a BLIS trace needs a YAML header and a CSV file of the same name, but {file.name} is missing."
            )
    return header, data


def names(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the paths of the header file and of the data file, which need not exist."""
    if path.is_dir():
        return path / HEADER, path / DATA
    if path.name.endswith(".csv.gz"):
        return path.with_name(path.name.removesuffix(".csv.gz") + ".yaml"), path
    if path.suffix in (".yaml", ".yml"):
        return path, path.with_suffix(".csv")
    if path.suffix == ".csv":
        return path.with_suffix(".yaml"), path
    return path.with_name(f"{path.name}.yaml"), path.with_name(f"{path.name}.csv")


UNIT: Final = "microseconds"
ACCUMULATE: Final = "accumulate"
GROWTH: Final = "session_context_growth"
LARGEST: Final = 1 << 20  # maximum size of a header in bytes
TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
UNREADABLE: Final = (
    yaml.YAMLError,
    RecursionError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    ArithmeticError,
)


class Header(Struct):
    trace_version: int
    time_unit: Literal["microseconds"] = UNIT
    created_at: str = ""
    mode: Literal["real", "generated", "replayed"] = "generated"
    warm_up_requests: int = 0
    workload_seed: int | None = None
    workload_spec: str = ""
    session_context_growth: Literal["", "accumulate"] = ""
    max_nodes_spanned: int = 0
    server: Any = None
    network: Any = None
    goodput_slo_targets: dict[str, Any] | None = None
    kv_offload: dict[str, Any] | None = None
    observed_kv_metrics: dict[str, Any] | None = None


class Server(Struct):
    type: str = ""
    model: str = ""
    tensor_parallel: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    gpu_memory_utilization: float = 0.0
    max_model_len: int = 0


class Network(Struct):
    measured_rtt_ms: float = 0.0


class _Loader(yaml.SafeLoader):
    """Loads YAML with dates as strings. Rejects aliases, because they could expand to billions of values."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML requires a class attribute)
        first: [(tag, form) for tag, form in known if tag != TIMESTAMP]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def load(path: pathlib.Path) -> tuple[dict[str, Any], Header, Server]:
    """Return the header as written, and the structs that were read from it and checked."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise HeadwayError(
                f"{path.name}: too large for the header of a BLIS trace (at most 1 MiB). Is this the CSV file?"
            )
        data = yaml.load(raw.decode("utf-8-sig"), _Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise HeadwayError(f"{path.name}{line}: is not valid YAML ({error.problem}).") from None
    except UnicodeDecodeError:
        raise HeadwayError(f"{path.name}: is not text in UTF-8.") from None
    except OSError as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None
    except UNREADABLE as error:
        why = cut(one_line(error, kind=False))
        raise HeadwayError(f"{path.name}: is not valid YAML ({why}).") from None
    return _check(data, path.name)


def _check(data: object, name: str) -> tuple[dict[str, Any], Header, Server]:
    header = read(Header, data, name)
    assert isinstance(data, dict)
    if header.trace_version not in (2, 3):
        raise HeadwayError(f"{name}.trace_version: must be 2 or 3, got {header.trace_version}.")
    server = Server() if header.server is None else read(Server, header.server, f"{name}.server")
    if server.block_size < 0:
        raise HeadwayError(f"{name}.server.block_size: must be at least 0, got {server.block_size}.")
    if header.network is not None:
        read(Network, header.network, f"{name}.network")
    return dict(data), header, server


def text(known: dict[str, Any], accumulate: bool) -> str:
    """Return the YAML text of a header with these keys, in the order of their declaration."""
    data: dict[str, Any] = {"trace_version": 2, "time_unit": UNIT, "mode": "generated", "warm_up_requests": 0, **known}
    data.pop(GROWTH, None)
    if accumulate:
        data[GROWTH] = ACCUMULATE
    ordered = {name: data[name] for name in Header.__struct_fields__ if name in data}
    return str(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True))
