"""Policies on their way to a live gateway: checked, compared with what is in force, swapped, and awaited."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, Protocol

import yaml
from msgspec import Struct

from headway.config.documents import beside, parse_yaml, read_text, yaml_text
from headway.errors import HeadwayError
from headway.experiment.check_policy import DOCUMENTS, check_policy
from headway.gateway.live_policies import STAGES, named, read_candidate, read_policies
from headway.gateway.membership.etcd_client import Etcd
from headway.gateway.membership.etcd_fleet import EtcdFleet, read_policy
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.settings import address
from headway.gateway.shadow.canary import CANARY, read_canary
from headway.policies.bundle import Bundle
from headway.policies.code import stage_of
from headway.scenario.references import absolute
from headway.types import Json

# The file of a gateway with one of its blocks written anew: everything else stays as it is, comments too.


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


LOOK_S: Final = 0.2


def checked(bundle: Path) -> Json:
    """What a bundle, or a source in the policy language, would have a gateway decide; all that is wrong is told."""
    found = check_policy(bundle)
    if not found["ok"]:
        raise HeadwayError("\n".join(one["text"] for one in found["rejections"]))
    if bundle.suffix in DOCUMENTS:
        given = named(Bundle.read(bundle))
    else:
        source = read_text(bundle)
        given = {stage_of(source) or "routing": {"name": "code", "source": source}}
    live = {stage: spec for stage, spec in absolute(given, bundle.parent).items() if stage in STAGES}
    return read_candidate(live, str(bundle))


class Change(Struct, frozen=True):
    """What is to happen: the texts before and after, and what a gateway has in force then."""

    where: str
    before: str
    after: str
    wanted: Json  # policies, with a canary beside them where one is wanted

    @property
    def diff(self) -> str:
        lines = unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.where, self.where
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class Target(Protocol):
    """Where policies go to."""

    def change(self, policies: Json, share: float | None) -> Change: ...

    def carry_out(self, change: Change, wait_s: float) -> str:
        """In words, what has come of it. Raises where the gateway does not take it."""


def changed(before: Json, policies: Json, share: float | None) -> Json:
    """A gateway's policies with others in their place, or beside them as a canary; how that is stopped stays."""
    if share is None:
        return {**{stage: spec for stage, spec in before.items() if stage != CANARY}, **policies}
    return {**before, CANARY: {**(before.get(CANARY) or {}), "policies": policies, "share": share}}


# --- the admin API ---------------------------------------------------------------------------------------------------


class AdminApi:
    def __init__(self, url: str, key_env: str) -> None:
        self.url, self.key_env = url.rstrip("/"), key_env
        if not self.url.startswith(("http://", "https://")):
            raise HeadwayError(f"--admin: expected a URL such as http://127.0.0.1:8001, got {url!r}.")
        if not os.environ.get(key_env, "").strip():
            raise HeadwayError(f"--key-env: the environment variable {key_env} is not set; it holds the admin key.")

    @classmethod
    def of(cls, document: Json) -> AdminApi | None:
        """That of a gateway's file, where this shell has its key."""
        section = document.get("admin")
        if not isinstance(section, dict) or not os.environ.get(str(section.get("key_env")), "").strip():
            return None
        host, port = address(str(section.get("listen", "127.0.0.1:8001")), "admin.listen")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return cls(f"http://{host}:{port}", str(section["key_env"]))

    def ask(self, path: str, method: str = "GET", body: object = None) -> Json:
        asked = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {os.environ[self.key_env].strip()}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                found: Json = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise HeadwayError(f"{self.url}{path}: {_said(error)}") from None
        except (OSError, ValueError) as error:
            raise HeadwayError(f"{self.url}{path}: cannot be asked ({getattr(error, 'reason', error)}).") from None

    def change(self, policies: Json, share: float | None) -> Change:
        now = self.ask("/policies")["policies"]
        wanted = read_policies(changed(now, policies, share))
        return Change(f"{self.url}/policies", yaml_text(now), yaml_text(wanted), wanted)

    def carry_out(self, change: Change, wait_s: float) -> str:
        self.ask("/policies", "PUT", change.wanted)
        return self.wait(change.wanted, wait_s)

    def wait(self, wanted: Json, wait_s: float) -> str:
        """Until those are in force."""
        until = time.monotonic() + wait_s
        while True:
            found = self.ask("/policies")
            if found["policies"] == json.loads(json.dumps(wanted)):
                return f"version {found['version']} is in force at {self.url}"
            if time.monotonic() > until:
                raise HeadwayError(
                    f"{self.url}: version {found['version']} is in force and is another; its log tells why."
                )
            time.sleep(LOOK_S)


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"


# --- the gateway's file ----------------------------------------------------------------------------------------------


class FileTarget:
    def __init__(self, path: Path, admin: AdminApi | None) -> None:
        self.file = GatewayFile(path)
        if not any(key in self.file.document for key in ("backends", "etcd", "admin")):  # a bundle, say
            raise HeadwayError(f"--to: {path} is no gateway's file; it has neither backends, nor etcd, nor admin.")
        self.admin = admin or AdminApi.of(self.file.document)

    def change(self, policies: Json, share: float | None) -> Change:
        file, before = self.file, self._before()
        if share is None:  # whoever was tried is in force, or is tried against other policies than before
            block = changed(before, policies, None)
            return Change(
                str(file.path),
                file.text,
                file.with_blocks({"policies": block, CANARY: None}),
                read_policies(block),
            )
        canary = {**(file.document.get(CANARY) or {}), "policies": policies, "share": share}
        after = file.with_blocks({CANARY: canary})
        wanted = {**read_policies(before), CANARY: read_canary(canary, read_candidate)}
        return Change(str(file.path), file.text, after, wanted)

    def _before(self) -> Json:
        """The block as it stands, or what the bundle that it names is about."""
        found = self.file.document.get("policies")
        if isinstance(found, str):
            return named(Bundle.read(beside(found, self.file.path)))
        return dict(absolute(found or {}, self.file.path.parent))

    def carry_out(self, change: Change, wait_s: float) -> str:
        if self.admin is not None:
            try:
                self.admin.ask("/policies")  # who cannot be asked afterwards is not changed
            except HeadwayError as error:
                raise HeadwayError(f"{str(error).rstrip('.')}; {self.file.path} stays as it is.") from None
        self.file.write(change.after)
        wrote = f"{self.file.path} is written"
        if self.admin is None:
            return f"{wrote}; a gateway that watches it takes it over, which was not looked at (no admin API)"
        try:
            return f"{wrote}, and {self.admin.wait(change.wanted, wait_s)}"
        except HeadwayError as error:
            raise HeadwayError(f"{wrote}, but {error}") from None


# --- etcd ------------------------------------------------------------------------------------------------------------


class EtcdTarget:
    """For every gateway that reads from there."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings

    def _do(self, act: Callable[[EtcdFleet], Any]) -> Any:
        async def run() -> Any:
            async with Etcd(self.settings) as etcd:
                return await act(EtcdFleet(etcd))

        return asyncio.run(run())

    def change(self, policies: Json, share: float | None) -> Change:
        now: Json = self._do(lambda fleet: fleet.policy())["policies"] or {}
        block = changed(now, policies, share)
        read_policy(json.dumps(block).encode(), "policies")
        read_policies(block)
        return Change(f"{self.settings.prefix}/routing/policy", yaml_text(now) if now else "", yaml_text(block), block)

    def carry_out(self, change: Change, wait_s: float) -> str:
        found = self._do(lambda fleet: fleet.push(change.wanted, wait_s))
        refused = {name: one.get("error") for name, one in found["gateways"].items() if not one.get("accepted")}
        if refused:
            raise HeadwayError("; ".join(f"{name}: {why}" for name, why in refused.items()))
        late = [name for name, one in found["gateways"].items() if one.get("revision", 0) < found["revision"]]
        if late or not found["gateways"]:
            who = ", ".join(late) or "any gateway"
            raise HeadwayError(f"etcd: revision {found['revision']} is written, and {who} has not answered yet.")
        return f"revision {found['revision']} is in force at {', '.join(found['gateways'])}"
