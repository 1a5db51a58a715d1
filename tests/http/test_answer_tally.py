"""How many tokens an answer had, as it passed."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.http.answer_tally import AnswerTally

TEXT = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        ([TEXT, TEXT, DONE], 2),
        ([TEXT, TEXT, USAGE % 7, DONE], 7),
        ([TEXT, TEXT, USAGE % 7 + DONE], 7),
        ([TEXT + TEXT + USAGE % 7 + DONE], 7),
        ([USAGE % 1, USAGE % 2, DONE], 2),
    ],
)
def test_the_engines_own_count_of_a_stream_is_found_in_whatever_piece_it_came(pieces, tokens):
    tally = AnswerTally(True)
    for piece in pieces:
        tally.count(piece)
    assert tally.tokens == tokens


def test_the_end_of_an_answer_in_many_pieces_is_read():
    tally = AnswerTally(False)
    body = b'{"choices":[{"message":{"content":"' + b"x" * 9000 + b'"}}],"usage":{"completion_tokens": 12}}'
    for at in range(0, len(body), 100):
        tally.count(body[at : at + 100])
    assert tally.tokens == 12
