"""The request log of a vLLM server: two lines a request, in the forms of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway import HeadwayError, convert_trace, inspect_trace
from headway.workload.traces import detect, open_trace

PARAMS = "params: SamplingParams(n=1, temperature=1.0, max_tokens=64, min_tokens=0)"


def received(second: int, name: str, prompt: list[int]) -> str:
    ids = f"prompt_token_ids: {prompt}, prompt_embeds shape: None, lora_request: None."
    return f"INFO 11-18 02:10:{second:02d} [logger.py:41] Received request {name}: prompt: 'a: b', {PARAMS}, {ids}\n"


def generated(second: int, name: str, output: list[int], kind: str = "") -> str:
    text = f"output: 'x', output_token_ids: {output}, finish_reason: stop\n"
    return f"INFO 11-18 02:10:{second:02d} [logger.py:77] Generated response {name}{kind}: {text}"


def test_requests_have_the_lengths_and_the_content_of_their_token_ids(tmp_path: Path) -> None:
    shared = list(range(40))
    log = [
        "INFO 11-18 02:10:01 [launcher.py:34] Route: /metrics, Methods: GET\n",
        received(3, "cmpl-1", [*shared, 90]),
        received(4, "cmpl-2", [*shared, *range(500, 530)]),
        generated(5, "cmpl-2", [1, 2, 3]),
        generated(6, "cmpl-1", [4] * 7),
        received(7, "cmpl-3", [*range(900, 950)]),  # never answered
    ]
    file = tmp_path / "vllm.log"
    file.write_text("".join(log))
    assert detect(file) == "vllm-log"
    reader = open_trace(file)
    first, second = reader.records
    names = ("id", "at_ps", "prompt_tokens", "output_tokens", "max_tokens")
    assert [getattr(first, name) for name in names] == ["cmpl-1", 0, 41, 7, 64]
    assert [getattr(second, name) for name in names] == ["cmpl-2", 10**12, 70, 3, 64]
    ids = [[run[0] for run in each.blocks or ()] for each in (first, second)]
    assert len(ids[0]) == 2 and len(ids[1]) == 4 and ids[0] == ids[1][:2]
    assert "requests without token ids of prompt and answer are skipped: 1" in reader.info.extra["notes"]


def test_streams_and_debug_lines_are_put_together(tmp_path: Path) -> None:
    log = [
        "INFO 12-31 23:59:59 [logger.py:41] Received request chatcmpl-a: " + PARAMS + ", lora_request: None.\n",
        "DEBUG 12-31 23:59:59 [logger.py:35] Request chatcmpl-a details: prompt: 'x', prompt_token_ids: [1, 2, 3], "
        "prompt_embeds shape: None.\n",
        generated(0, "chatcmpl-a", [5, 6], " (streaming delta)"),
        generated(0, "chatcmpl-a", [7], " (streaming delta)"),
        generated(0, "chatcmpl-a", [], " (streaming complete)"),
        "INFO 01-01 00:00:04 [logger.py:41] Received request chatcmpl-b: prompt: 'y', " + PARAMS + ", "
        "prompt_token_ids: [1, 2], lora_request: None.\n",
        generated(1, "chatcmpl-b", [9]),
    ]
    (tmp_path / "vllm.log").write_text("".join(log))
    document = convert_trace(tmp_path / "vllm.log", tmp_path / "x.jsonl")
    assert document["written"] == 2
    first, second = open_trace(tmp_path / "x.jsonl").records
    assert (first.prompt_tokens, first.output_tokens, second.at_ps) == (3, 3, 5 * 10**12)


def test_details_may_come_before_the_line_of_their_request(tmp_path: Path) -> None:
    log = [
        "DEBUG 12-31 23:59:59 [logger.py:35] Request chatcmpl-a details: prompt: 'x', prompt_token_ids: [1, 2, 3], "
        "prompt_embeds shape: None.\n",
        "INFO 12-31 23:59:59 [logger.py:41] Received request chatcmpl-a: " + PARAMS + ", lora_request: None.\n",
        generated(0, "chatcmpl-a", [5, 6]),
    ]
    (tmp_path / "vllm.log").write_text("".join(log))
    [record] = open_trace(tmp_path / "vllm.log").records
    assert (record.prompt_tokens, record.output_tokens) == (3, 2)


BANNER = "INFO 11-18 02:10:00 [api_server.py:1289] vLLM API server version 0.10.1\n"
NO_IDS = received(1, "a", []).replace("prompt_token_ids: []", "prompt_token_ids: None")


@pytest.mark.parametrize(
    ("log", "missing"),
    [
        (NO_IDS + generated(2, "a", [1]), "of 1, 1 without prompt_token_ids."),
        (received(1, "a", [1]) + received(2, "b", [1]), "of 2, 2 without output_token_ids."),
        (NO_IDS, "of 1, 1 without prompt_token_ids and 1 without output_token_ids."),
        ("", "this log of vLLM has no lines of requests, such as `Received request ID: …`."),
    ],
)
def test_a_log_without_lengths_says_what_is_missing_and_how_to_log_it(log: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(BANNER + log)
    for use in (inspect_trace, lambda file: convert_trace(file, tmp_path / "x.jsonl")):
        with pytest.raises(HeadwayError) as error:
            use(tmp_path / "vllm.log")
        assert missing in str(error.value)
        assert "Run vLLM with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG" in str(
            error.value
        )
