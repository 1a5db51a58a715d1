"""Deployment of policies to a live gateway: check them, compare them with those in force, swap, wait for the result."""

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
from typing import Any, Final

import yaml
from msgspec import Struct

from headway.config.dated_defaults import set_of
from headway.config.documents import beside, parse_yaml, read_text, yaml_text
from headway.errors import HeadwayError
from headway.experiment.check_policy import DOCUMENTS, check_policy
from headway.gateway.config import NOT_A_MAPPING
from headway.gateway.live_policies import STAGES, changed_stages, read_candidate, read_policies, without_canary
from headway.gateway.membership.etcd_client import Etcd
from headway.gateway.membership.etcd_fleet import EtcdFleet, read_policy
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.settings import address
from headway.gateway.shadow.canary import CANARY
from headway.policies.bundle import Bundle
from headway.policies.code import stage_of
from headway.scenario.references import absolute
from headway.types import Json

LOOK_S: Final = 0.2


class GatewayFile:
    """A gateway's file. Changing a top-level key keeps the rest of the file, including comments."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self.text = read_text(self.path, "a YAML file in UTF-8")
        document = parse_yaml(self.text, str(self.path))
        if not isinstance(document, dict):
            raise HeadwayError(NOT_A_MAPPING.format(path=self.path))
        self.document: dict[str, Any] = document

    def with_blocks(self, blocks: Mapping[str, Any]) -> str:
        """Return the file's text with new values of top-level keys. Append new keys. The value None removes a key."""
        text = self.text
        for key, value in blocks.items():
            text = self._with_block(text, key, value)
        removed = [key for key, value in blocks.items() if value is None]
        expected = {key: value for key, value in {**self.document, **blocks}.items() if key not in removed}
        try:
            same = parse_yaml(text, "") == expected
        except HeadwayError:
            same = False
        if not same:
            keys = " and ".join(blocks)
            raise HeadwayError(f"{self.path}: cannot change {keys} without changing other keys. Edit the file by hand.")
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
        """Return the start and end offsets of a key's lines, and the comment after its value; None if absent."""
        root = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode) or root.flow_style:
            raise HeadwayError(
                f"{self.path}: the file is one mapping in braces, which Headway cannot change. "
                "Write each key on a separate line."
            )
        entry = next(((name, value) for name, value in root.value if name.value == key), None)
        if entry is None:
            return None
        start, end = entry[0].start_mark.index, entry[1].end_mark.index
        if text[end - 1 : end] == "\n":  # the value is a block: exclude comments and empty lines before the next key
            lines = text[start:end].splitlines(keepends=True)
            while len(lines) > 1 and (not lines[-1].strip() or lines[-1].startswith("#")):
                end -= len(lines.pop())
            return start, end, ""
        line = text.find("\n", end) + 1 or len(text)
        beside = text[end:line].strip()
        return start, line, f"  {beside}" if beside.startswith("#") else ""

    def write(self, text: str) -> None:
        """Replace the file atomically."""
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


def read_bundle(bundle: Path) -> Json:
    """Return the policies of a bundle or of a file in the policy language. Raise HeadwayError with all errors."""
    report = check_policy(bundle)
    if not report["ok"]:
        raise HeadwayError("\n".join(rejection["text"] for rejection in report["rejections"]))
    if bundle.suffix in DOCUMENTS:
        policies = changed_stages(Bundle.read(bundle))
    else:
        source = read_text(bundle)
        policies = {stage_of(source) or "routing": {"name": "code", "source": source}}
    live = {stage: spec for stage, spec in absolute(policies, bundle.parent).items() if stage in STAGES}
    return read_candidate(live, str(bundle))


class Change(Struct, frozen=True):
    """A change of policies: the text before and after it."""

    where: str
    before: str
    after: str
    policies: Json  # policies in force after the change, including a canary

    @property
    def diff(self) -> str:
        lines = unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.where, self.where
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def with_policies(before: Json, policies: Json, share: float | None) -> Json:
    """Return a gateway's policies with `policies` in force or, if `share` is given, with `policies` as a canary."""
    if share is None:
        return {**without_canary(before), **policies}
    return {**before, CANARY: {**(before.get(CANARY) or {}), "policies": policies, "share": share}}


# --- targets: `carry_out` returns a message, and raises HeadwayError if a gateway rejects the policies ---------------


class AdminApi:
    def __init__(self, url: str, key_env: str) -> None:
        self.url, self.key_env = url.rstrip("/"), key_env
        if not self.url.startswith(("http://", "https://")):
            raise HeadwayError(f"--admin: expected a URL such as http://127.0.0.1:8001, got {url!r}.")
        if not os.environ.get(key_env, "").strip():
            raise HeadwayError(f"--key-env: the environment variable {key_env} is not set. Set it to the admin key.")

    @classmethod
    def of(cls, document: Json) -> AdminApi | None:
        """Return the admin API that a gateway's file configures. If the file configures no admin API, or if the API's
        key is not in the environment, return None."""
        section = document.get("admin")
        if not isinstance(section, dict) or not os.environ.get(str(section.get("key_env")), "").strip():
            return None
        host, port = address(str(section.get("listen", "127.0.0.1:8001")), "admin.listen")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return cls(f"http://{host}:{port}", str(section["key_env"]))

    def ask(self, path: str, method: str = "GET", body: object = None) -> Json:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {os.environ[self.key_env].strip()}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                document: Json = json.load(answer)
                return document
        except urllib.error.HTTPError as error:
            raise HeadwayError(f"{self.url}{path}: {_error_message(error)}") from None
        except (OSError, ValueError) as error:
            raise HeadwayError(f"{self.url}{path}: no answer ({getattr(error, 'reason', error)}).") from None

    def change(self, policies: Json, share: float | None) -> Change:
        now = self.ask("/policies")["policies"]
        target = read_policies(with_policies(now, policies, share))
        return Change(f"{self.url}/policies", yaml_text(now), yaml_text(target), target)

    def carry_out(self, change: Change, wait_s: float) -> str:
        self.ask("/policies", "PUT", change.policies)
        return self.wait(change.policies, wait_s)

    def wait(self, target: Json, wait_s: float) -> str:
        """Wait until these policies are in force."""
        until = time.monotonic() + wait_s
        while True:
            status = self.ask("/policies")
            if status["policies"] == json.loads(json.dumps(target)):
                return f"version {status['version']} is in force at {self.url}"
            if time.monotonic() > until:
                raise HeadwayError(
                    f"{self.url}: the new policies are not in force after {wait_s:g} s; "
                    f"version {status['version']} still decides. See the gateway's log."
                )
            time.sleep(LOOK_S)


def _error_message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"


class FileTarget:
    def __init__(self, path: Path, admin: AdminApi | None) -> None:
        self.file = GatewayFile(path)
        if not any(key in self.file.document for key in ("backends", "etcd", "admin")):  # perhaps a bundle
            raise HeadwayError(f"--to: {path} is not a gateway's file: it has no `backends`, `etcd` or `admin`.")
        self.admin = admin or AdminApi.of(self.file.document)

    def change(self, policies: Json, share: float | None) -> Change:
        file = self.file
        block = with_policies({**self._before(), CANARY: file.document.get(CANARY)}, policies, share)
        # New policies in force end the canary, so remove the canary's key from the file.
        keys = {"policies": block, CANARY: None} if share is None else {CANARY: block[CANARY]}
        target = read_policies(block, set_of(file.document))
        return Change(str(file.path), file.text, file.with_blocks(keys), target)

    def _before(self) -> Json:
        """Return the policies in the file. If the file names a bundle, return the policies of that bundle."""
        block = self.file.document.get("policies")
        if isinstance(block, str):
            return changed_stages(Bundle.read(beside(block, self.file.path)))
        return dict(absolute(block or {}, self.file.path.parent))

    def carry_out(self, change: Change, wait_s: float) -> str:
        if self.admin is not None:
            try:
                # If this raises, write nothing, because the admin API could not confirm the change.
                self.admin.ask("/policies")
            except HeadwayError as error:
                raise HeadwayError(f"{str(error).rstrip('.')}; {self.file.path} is unchanged.") from None
        self.file.write(change.after)
        written = f"{self.file.path} is written"
        if self.admin is None:
            return f"{written}; without an admin API, nothing verifies that a gateway has loaded it"
        try:
            return f"{written}, and {self.admin.wait(change.policies, wait_s)}"
        except HeadwayError as error:
            raise HeadwayError(f"{written}, but {error}") from None


class EtcdTarget:
    """All gateways that read an etcd prefix."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings

    def _do(self, act: Callable[[EtcdFleet], Any]) -> Any:
        async def run() -> Any:
            async with Etcd(self.settings) as etcd:
                return await act(EtcdFleet(etcd))

        return asyncio.run(run())

    def change(self, policies: Json, share: float | None) -> Change:
        now: Json = self._do(lambda fleet: fleet.policy())["policies"] or {}
        block = with_policies(now, policies, share)
        read_policy(json.dumps(block).encode(), "policies")
        read_policies(block)
        return Change(f"{self.settings.prefix}/routing/policy", yaml_text(now) if now else "", yaml_text(block), block)

    def carry_out(self, change: Change, wait_s: float) -> str:
        report = self._do(lambda fleet: fleet.push(change.policies, wait_s))
        refused = {name: reply.get("error") for name, reply in report["gateways"].items() if not reply.get("accepted")}
        if refused:
            raise HeadwayError("; ".join(f"{name}: {why}" for name, why in refused.items()))
        late = [name for name, reply in report["gateways"].items() if reply.get("revision", 0) < report["revision"]]
        if late or not report["gateways"]:
            names = ", ".join(late) or "any gateway"
            raise HeadwayError(f"etcd: revision {report['revision']} is written, but {names} has not confirmed it yet.")
        return f"revision {report['revision']} is in force at {', '.join(report['gateways'])}"


Target = AdminApi | FileTarget | EtcdTarget
