"""The requests of a run column by column, as numbers: straight from the recorder, or from a table that may have been
read from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from headway.results.table import Coded, Table
from headway.types import OUTCOMES

NUMBERS: Final = (
    "arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "started_ps", "first_token_ps", "finished_ps", "instance",
    "prompt_tokens", "output_tokens", "cached_tokens", "predicted_tokens", "preemptions", "prefill_instance",
    "handed_ps", "transfer_ps", "transferred_ps", "redirects", "priority",
)  # fmt: skip
WORDS: Final = ("tenant", "slo_class")


class Requests(Protocol):
    """The columns that figures and findings are computed from; a recorder has them, too."""

    @property
    def names(self) -> dict[str, dict[str, int]]: ...  # of the columns of words: each word with its number
    @property
    def tenant(self) -> Sequence[int]: ...
    @property
    def slo_class(self) -> Sequence[int]: ...
    @property
    def arrival_ps(self) -> Sequence[int]: ...
    @property
    def admitted_ps(self) -> Sequence[int]: ...
    @property
    def enqueued_ps(self) -> Sequence[int]: ...
    @property
    def started_ps(self) -> Sequence[int]: ...
    @property
    def first_token_ps(self) -> Sequence[int]: ...
    @property
    def finished_ps(self) -> Sequence[int]: ...
    @property
    def instance(self) -> Sequence[int]: ...
    @property
    def outcome(self) -> Sequence[int]: ...
    @property
    def prompt_tokens(self) -> Sequence[int]: ...
    @property
    def output_tokens(self) -> Sequence[int]: ...
    @property
    def cached_tokens(self) -> Sequence[int]: ...
    @property
    def preemptions(self) -> Sequence[int]: ...
    @property
    def prefill_instance(self) -> Sequence[int]: ...
    @property
    def handed_ps(self) -> Sequence[int]: ...
    @property
    def redirects(self) -> Sequence[int]: ...
    @property
    def priority(self) -> Sequence[float]: ...
    def __len__(self) -> int: ...


class Columns:
    """Those of a table, none of them copied unless it is one of words that was kept as words."""

    arrival_ps: Sequence[int]
    admitted_ps: Sequence[int]
    routed_ps: Sequence[int]
    enqueued_ps: Sequence[int]
    started_ps: Sequence[int]
    first_token_ps: Sequence[int]
    finished_ps: Sequence[int]
    instance: Sequence[int]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    cached_tokens: Sequence[int]
    predicted_tokens: Sequence[int]
    preemptions: Sequence[int]
    prefill_instance: Sequence[int]
    handed_ps: Sequence[int]
    transfer_ps: Sequence[int]
    transferred_ps: Sequence[int]
    redirects: Sequence[int]
    priority: Sequence[float]
    tenant: Sequence[int]
    slo_class: Sequence[int]
    outcome: Sequence[int]  # index into OUTCOMES

    def __init__(self, table: Table) -> None:
        for name in NUMBERS:
            setattr(self, name, table.column(name))
        self.names: dict[str, dict[str, int]] = {}
        for name in WORDS:
            codes, self.names[name] = coded(table.column(name))
            setattr(self, name, codes)
        self.outcome, _ = coded(table.column("outcome"), OUTCOMES)

    def __len__(self) -> int:
        return len(self.arrival_ps)


def coded(column: Coded | Sequence[str], words: Sequence[str] = ()) -> tuple[Sequence[int], dict[str, int]]:
    """A column of words as numbers, and the words with theirs; `words` have theirs already, by their places."""
    if isinstance(column, Coded):
        own = column.words[:-1] if list(column.words[-1:]) == [""] else column.words  # that of -1 is no word
        if words and list(own) != list(words):  # of a file, numbered as they came
            places = [words.index(word) for word in own]
            return [places[code] for code in column.codes], {word: code for code, word in enumerate(words)}
        return column.codes, {word: code for code, word in enumerate(own)}
    known: dict[str, int] = {word: code for code, word in enumerate(words)}
    return [known.setdefault(word, len(known)) for word in column], known


def word_of(names: dict[str, int]) -> dict[int, str]:
    """The words of a column by their numbers."""
    return {code: word for word, code in names.items()}


def home(requests: Requests) -> Sequence[int]:
    """The instance at which each request first waited: that which computes its prompt. -1 where it was never routed."""
    apart = requests.prefill_instance
    if not len(apart) or max(apart) < 0:
        return requests.instance
    return [one if one >= 0 else other for one, other in zip(apart, requests.instance, strict=True)]


def left_ps(requests: Requests, ended_ps: int) -> list[int]:
    """When each request stopped waiting for its first step: it began, or the request gave up, or the run ended."""
    pairs: Any = zip(requests.started_ps, requests.finished_ps, strict=True)
    return [began if began >= 0 else (end if end >= 0 else ended_ps) for began, end in pairs]
