"""The public traces: requests, spans, mean lengths and sessions as the notes that come with them say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.workload.traces import detect, read_trace

# format, requests, span in s, mean prompt and output tokens, sessions
FIGURES = {
    "mooncake/conversation_trace.jsonl.gz": ("mooncake", 12_031, 3_537, 12_035.1, 342.6, 0),
    "mooncake/synthetic_trace.jsonl.gz": ("mooncake", 3_993, 1_022, 15_325.5, 149.1, 0),
    "mooncake/arxiv_mooncake_trace_first1000.jsonl": ("mooncake", 1_000, 177, 9_792, 199, 0),
    "azure-llm-2023/AzureLLMInferenceTrace_code.csv": ("azure", 8_819, 3_436, 2_047.8, 27.9, 0),
    "azure-llm-2023/AzureLLMInferenceTrace_conv.csv": ("azure", 19_366, 3_502, 1_154.7, 211.1, 0),
    "agentic-coding-weka/sessions_compact.jsonl.gz": ("weka", 49_334, None, 122_379, 440, 710),
    "dynamo-request-trace/pi_request_trace.jsonl.gz": ("dynamo", 17, None, None, None, None),
    "tracelab-example/round_trace.jsonl": ("tracelab", 19, None, None, None, 2),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_public_trace_is_told_and_read_as_its_notes_say(name: str, traces: Path) -> None:
    format, requests, span, prompt, output, sessions = FIGURES[name]
    path = traces / name
    assert detect(path) == format
    trace = read_trace(path)
    assert len(trace) == requests
    if sessions is not None:
        assert len(trace.sessions) == sessions and trace.info.sessions == (sessions > 0)
    if span is not None:
        assert round(trace.arrival_ps[-1] / 10**12) == span
    for expected, column in ((prompt, trace.prompt_tokens), (output, trace.output_tokens)):
        if expected is not None:
            digits = 1 if isinstance(expected, float) else 0
            assert round(sum(column) / requests, digits) == expected
