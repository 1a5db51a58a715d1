"""Prompts from a workload's paths."""

from __future__ import annotations

from headway.load import prompt_texts
from headway.load.prompt_texts import WORDS, prompt_text
from headway.types import Path, Request


def prompt(keys: tuple[int, ...], ends: tuple[int, ...], tokens: int, id: int = 0) -> str:
    return prompt_text(Request(id, 0, tokens, Path(keys, ends)))


def test_a_prompt_has_four_bytes_a_token() -> None:
    for tokens in (1, 255, 256, 257, 1000):
        assert len(prompt((7,), (tokens,), tokens).encode()) == 4 * tokens


def test_equal_beginnings_are_equal_bytes_and_what_differs_differs() -> None:
    first, second = prompt((7, 8), (300, 700), 700), prompt((7, 9), (300, 650), 650)
    assert first[: 4 * 300] == second[: 4 * 300]
    assert first[4 * 300 : 4 * 310] != second[4 * 300 : 4 * 310]


def test_a_shorter_run_of_the_same_key_is_the_beginning_of_the_longer_one() -> None:
    assert prompt((7,), (900,), 900).startswith(prompt((7,), (300,), 300))


def test_what_is_beyond_the_path_is_of_the_request_alone() -> None:
    texts = [prompt((7,), (64,), 100, id) for id in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1] and texts[0][:256] == texts[1][:256]


def test_what_was_made_before_is_made_the_same_again() -> None:
    texts = [prompt((key,), (600,), 600) for key in (1, 2, 1)]
    prompt_texts._stretch.cache_clear()
    assert texts[0] == texts[2] == prompt((1,), (600,), 600)


def test_words_are_many_and_each_is_there_once() -> None:
    assert len(set(WORDS)) == 256
