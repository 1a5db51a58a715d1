"""The file of a gateway with one of its blocks written anew: everything else stays as it is, comments too."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headway.config.documents import parse_yaml, read_text, yaml_text
from headway.errors import HeadwayError


class GatewayFile:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self.text = read_text(self.path, "a YAML file in UTF-8")
        found = parse_yaml(self.text, str(self.path))
        if not isinstance(found, dict):
            raise HeadwayError(f"{self.path}: a gateway's file is a mapping with 'backends'.")
        self.document: dict[str, Any] = found

    def with_blocks(self, blocks: Mapping[str, Any]) -> str:
        """The text with other values under keys of its top level: a new key comes last, one that is None goes."""
        text, left = self.text, dict(self.document)
        for key, value in blocks.items():
            text = self._with_block(text, key, value)
            left[key] = value
            if value is None:
                del left[key]
        try:
            same = parse_yaml(text, "") == left
        except HeadwayError:
            same = False
        if not same:
            what = " and ".join(blocks)
            raise HeadwayError(f"{self.path}: its {what} cannot be written anew without the rest; edit it by hand.")
        return text

    def _with_block(self, text: str, key: str, value: Any) -> str:
        block = "" if value is None else yaml_text({key: value})
        place = self._place(text, key)
        if place is None:
            return text + block if not block or text.endswith("\n") else f"{text}\n{block}"
        start, end, comment = place
        head, newline, rest = block.partition("\n")
        return text[:start] + head + (comment if block else "") + newline + rest + text[end:]

    def _place(self, text: str, key: str) -> tuple[int, int, str] | None:
        """From where to where the lines of a key go, and the comment beside its value."""
        root = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode) or root.flow_style:
            raise HeadwayError(f"{self.path}: is written in braces; write its keys on lines of their own.")
        found = next(((name, value) for name, value in root.value if name.value == key), None)
        if found is None:
            return None
        start, end = found[0].start_mark.index, found[1].end_mark.index
        if text[end - 1 : end] == "\n":  # a block: what stands between it and the next key is not of it
            lines = text[start:end].splitlines(keepends=True)
            while len(lines) > 1 and (not lines[-1].strip() or lines[-1].startswith("#")):
                end -= len(lines.pop())
            return start, end, ""
        line = text.find("\n", end) + 1 or len(text)
        beside = text[end:line].strip()
        return start, line, f"  {beside}" if beside.startswith("#") else ""

    def write(self, text: str) -> None:
        """All at once, so that nobody reads half of it."""
        target = self.path.resolve()
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as out:
                    out.write(text)
                    out.flush()
                    os.fsync(out.fileno())
                shutil.copymode(target, name)
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise HeadwayError(f"{self.path}: cannot be written ({error.strerror or error}).") from None
