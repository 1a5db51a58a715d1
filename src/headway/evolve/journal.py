"""A search's folder: what the search is, and batch after batch what came of it.

    search.json         which search it is; another one is refused
    batches/0000.json   the candidates of a batch and their evaluations, in the order that they were asked for
    cache/              figures of single runs
    best.yaml           the best bundle, and
    result.json         the conclusion

A searcher does the same under the same seed, so that the files need not hold its state: it is asked again, and given
the written batches. A batch is put into place at once, so that an interruption loses that batch at most.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from headway import __version__
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.evolve.cache import replace_file
from headway.evolve.evaluation import Evaluation
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle
from headway.types import Json

FORMAT: Final = 1
SEARCH: Final = "search.json"


class Judged(NamedTuple):
    """A candidate and what came of it."""

    bundle: Bundle
    evaluation: Evaluation


class Journal:
    """The folder of one search, or nothing where none is named."""

    def __init__(self, folder: Path | None, search: Json) -> None:
        self.folder = folder
        if folder is None:
            return
        mine = {"format": FORMAT, "headway": __version__, **search}
        file = folder / SEARCH
        if file.is_file():
            _check_same(folder, _read(file), mine)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HeadwayError(f"{folder}: is there already and holds no search; name another folder.")
        self._write(SEARCH, mine)

    @property
    def cache(self) -> Path | None:
        return None if self.folder is None else self.folder / "cache"

    def batches(self) -> list[list[Judged]]:
        """The batches written so far."""
        batches: list[list[Judged]] = []
        while self.folder is not None and (file := self.folder / _name(len(batches))).is_file():
            data = _read(file)
            if not isinstance(data, list) or not data:
                raise HeadwayError(f"{file}: is no batch of a search; somebody has been at it.")
            try:
                batches.append(
                    [Judged(Bundle.read(row["bundle"]), msgspec.convert(row["evaluation"], Evaluation)) for row in data]
                )
            except (msgspec.ValidationError, KeyError, TypeError) as error:
                raise HeadwayError(f"{file}: is no batch of a search: {error}.") from None
        return batches

    def keep(self, number: int, batch: Sequence[Judged]) -> None:
        rows = [{"bundle": bundle.document(), "evaluation": evaluation.document()} for bundle, evaluation in batch]
        self._write(_name(number), rows)

    def conclude(self, result: Json, best: Bundle) -> None:
        if self.folder is not None:
            self._write("result.json", result)
            best.write(self.folder / "best.yaml")

    def _write(self, name: str, document: object) -> None:
        if self.folder is None:
            return
        text = msgspec.json.format(msgspec.json.encode(document), indent=1)
        replace_file(self.folder / name, text + b"\n")


def _name(number: int) -> str:
    return f"batches/{number:04}.json"


def _read(file: Path) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise HeadwayError(f"{file}: cannot be read: {error.strerror or error}.") from None
    except msgspec.DecodeError:
        raise HeadwayError(f"{file}: is not JSON; somebody has been at it.") from None


def _check_same(folder: Path, theirs: Any, mine: Json) -> None:
    if not isinstance(theirs, dict):
        raise HeadwayError(f"{folder / SEARCH}: describes no search; somebody has been at it.")
    for key in dict.fromkeys((*mine, *theirs)):
        if theirs.get(key) != mine.get(key):
            other = f"its {key} is {shown(theirs.get(key))}, not {shown(mine.get(key))}"
            raise HeadwayError(f"{folder}: holds another search ({other}); name another folder.")


def digest(suite: Suite) -> str:
    """What stands for the cases and objectives that a search sees."""
    return blake2b(msgspec.json.encode(suite.for_search().document(), order="sorted"), digest_size=8).hexdigest()
