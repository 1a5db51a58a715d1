"""`anonymise`: replace all names in a trace, so that it can be shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Annotated, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import Doc
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import Transform, with_records
from headway.workload.transforms.numbering import Numbers

LENGTHS: Final = ("tool_tokens", "system_tokens")  # the fields of `extra` that a replay needs

Name = Callable[[str, str], str]  # (type of name, name) -> new name


class Spec(Struct, frozen=True):
    seed: Annotated[int | str | None, Doc("makes names the same in every file; keep it secret", default="numbers")] = (
        None
    )
    keep_models: Annotated[bool, "whether models keep their names"] = False


def transform(spec: Spec, where: str) -> Transform:
    """Rename sessions, requests, tenants, models and adapters, renumber blocks, and drop all fields of `extra` except
    the adapter, `tool_tokens` and `system_tokens`.

    New names are numbers in order of appearance. With a `seed`, new names are pseudonyms that are the same in every
    file anonymised with that seed. Keep the seed secret: with it, anyone can test whether a guessed name is in the
    file. Memory grows with the number of runs of block ids and, without a seed, with the number of names.
    """

    def anonymise(reader: Reader) -> Reader:
        name = _number_names() if spec.seed is None else _hash_names(spec.seed)
        return with_records(reader, _anonymise(reader, name, spec.keep_models), extra={})

    return anonymise


def _anonymise(reader: Reader, name: Name, keep_models: bool) -> Iterator[Record]:
    numbers = Numbers(reader.info.scope)
    for record in reader.records:
        model, adapter = record.model, record.adapter
        lengths = {key: record.extra[key] for key in LENGTHS if isinstance(record.extra.get(key), int)}
        yield replace(
            record,
            blocks=None if record.blocks is None else numbers.of(record).runs(record.blocks),
            session=None if record.session is None else name("session", record.session),
            id=None if record.id is None else name("request", record.id),
            after=tuple(name("request", id) for id in record.after),
            tenant=None if record.tenant is None else name("tenant", record.tenant),
            model=model if keep_models or model is None else name("model", model),
            extra=lengths | ({} if adapter is None else {"adapter": name("adapter", adapter)}),
        )


def _number_names() -> Name:
    known: dict[str, dict[str, str]] = {}

    def name(kind: str, text: str) -> str:
        names = known.setdefault(kind, {})
        return names.setdefault(text, f"{kind}-{len(names) + 1}")

    return name


def _hash_names(seed: int | str) -> Name:
    key = blake2b(str(seed).encode(), digest_size=32).digest()

    def name(kind: str, text: str) -> str:
        return f"{kind}-{blake2b(f'{kind}:{text}'.encode(), digest_size=8, key=key).hexdigest()}"

    return name
