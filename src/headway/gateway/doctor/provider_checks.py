"""Checks that the keys of an OIDC provider can be fetched, which the gateway needs to check clients' tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.gateway.doctor.engine_checks import TIMEOUT_S, Reply, get
from headway.gateway.doctor.problems import Report
from headway.gateway.json_web_tokens import DISCOVERY, TokenClients
from headway.http.client import HttpClient
from headway.http.tls import EngineTls


async def check_provider(jwt: TokenClients, report: Report) -> None:
    """Report if the gateway could not read the keys."""
    report.checked.append("provider of tokens")
    client = HttpClient(TIMEOUT_S, tls=None if jwt.ca is None else EngineTls(ca=jwt.ca).context())
    try:
        why = await _why_no_keys(jwt, client)
    finally:
        await client.close()
    if why:
        where = "jwt.issuer" if jwt.jwks is None else "jwt.jwks"
        report.error(where, why, "Correct the key, or reach the provider from here. Without keys, tokens are refused.")


async def _why_no_keys(jwt: TokenClients, client: HttpClient) -> str:
    place = jwt.jwks
    if place is None:
        found = await get(client, jwt.issuer.rstrip("/") + DISCOVERY)
        place = _field(found, "jwks_uri")
        if not isinstance(place, str) or "://" not in place:
            return f"{jwt.issuer.rstrip('/')}{DISCOVERY} names no keys ({_state(found)})."
    if "://" in place:
        reply = await get(client, place)
    else:
        try:
            reply = Reply(200, Path(place).expanduser().read_text("utf-8", "replace"))
        except OSError as error:
            return f"{place} cannot be read ({error.strerror})."
    keys = _field(reply, "keys")
    return "" if isinstance(keys, list) and keys else f"{place} has no keys ({_state(reply)})."


def _field(reply: Reply, name: str) -> Any:
    try:
        return json.loads(reply.text)[name] if reply.status == 200 else None
    except (ValueError, KeyError, TypeError):
        return None


def _state(reply: Reply) -> str:
    return f"status {reply.status}" if reply.status else reply.why
