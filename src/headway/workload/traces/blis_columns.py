"""The columns of a BLIS trace, and which two files are one."""

from __future__ import annotations

import pathlib
from typing import Final

from headway.errors import HeadwayError

COLUMNS: Final = (
    *("request_id", "client_id", "tenant_id", "slo_class", "vllm_priority", "session_id", "round_index"),
    *("prefix_group", "prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens"),
    *("audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us", "slo_target_us", "server_input_tokens"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status"),
    *("error_message", "finish_reason", "x_request_id", "adapter", "think_time_us", "input_tokens_reset"),
)
OPTIONAL: Final = ("vllm_priority", "slo_target_us", "x_request_id", "adapter", "think_time_us", "input_tokens_reset")
REQUIRED: Final = ("input_tokens", "output_tokens", "arrival_time_us")

# What the fields of a record tell; the other columns are further fields of it, those that hold more than their default.
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
    """The header and the rows of a trace that is there, by either of them, their folder or their common name."""
    header, data = names(path)
    if path.name in (HEADER, DATA) and not (header.is_file() and data.is_file()):
        header, data = path.parent / HEADER, path.parent / DATA
    if not data.is_file() and data.with_name(f"{data.name}.gz").is_file():
        data = data.with_name(f"{data.name}.gz")
    for one in (header, data):
        if not one.is_file():
            raise HeadwayError(
                f"{path}: a BLIS trace is a YAML header and a CSV file of the same name, and {one.name} is not there."
            )
    return header, data


def names(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """What the two files are called."""
    if path.is_dir():
        return path / HEADER, path / DATA
    if path.name.endswith(".csv.gz"):
        return path.with_name(path.name.removesuffix(".csv.gz") + ".yaml"), path
    if path.suffix in (".yaml", ".yml"):
        return path, path.with_suffix(".csv")
    if path.suffix == ".csv":
        return path.with_suffix(".yaml"), path
    return path.with_name(f"{path.name}.yaml"), path.with_name(f"{path.name}.csv")
