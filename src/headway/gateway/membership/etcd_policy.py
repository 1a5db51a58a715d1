"""Policies as they stand in etcd: what a gateway takes from there, and what it does not."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headway.config.documents import parse_yaml
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.bundle import Bundle, is_bundle

LARGEST: Final = 256 * 1024


def read_policy(value: bytes, where: str) -> dict[str, Any]:
    """A `policies:` block or a bundle, in JSON or YAML. Files of policies are not run: who may write to etcd may not
    for that choose what runs on a gateway's machine."""
    if len(value) > LARGEST:
        raise HeadwayError(f"{where}: has {len(value):,} bytes; {LARGEST:,} are the most.")
    try:
        found = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = parse_yaml(value.decode(errors="replace"), where)
    if not isinstance(found, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages to policies, or a bundle, got {shown(found)}.")
    _refuse_files(found, where)
    return dict(Bundle.read(found).policies) if is_bundle(found) else found


def _refuse_files(document: Any, where: str) -> None:
    waiting = [(document, "", where)]
    while waiting:
        value, key, place = waiting.pop()
        if isinstance(value, dict):
            waiting += [(item, str(name), f"{place}.{name}") for name, item in value.items()]
            waiting += [(name, "", place) for name in value]
        elif isinstance(value, list):
            waiting += [(item, "", place) for item in value]
        elif _names_file(value, key):
            raise HeadwayError(
                f"{place}: names a file ({shown(value)}), and none is read for etcd; write the policy's text under "
                "`source`, or name one that the gateway has."
            )


def _names_file(value: Any, key: str) -> bool:
    if not isinstance(value, str) or key == "source":  # which is a policy's text
        return False
    return key in ("path", "file", "policies") or registry.is_file(value) or value.endswith(".py")
