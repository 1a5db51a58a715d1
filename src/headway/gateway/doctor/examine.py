"""Examines a gateway's file with its engines, or a running gateway."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import astuple, replace

from headway.config.documents import beside, parse_yaml, read_text
from headway.errors import HeadwayError
from headway.gateway.config import Config, find_file_errors, named_files
from headway.gateway.doctor.engine_checks import (
    SKEW_S,
    TIMEOUT_S,
    EngineAnswers,
    Reply,
    ask_engines,
    check_engine,
    check_models,
    get,
)
from headway.gateway.doctor.file_checks import check_file, check_rights, stand_in_keys
from headway.gateway.doctor.policy_checks import check_signals, seeks_prefixes
from headway.gateway.doctor.problems import Report
from headway.gateway.doctor.provider_checks import check_provider
from headway.gateway.doctor.running_checks import check_metrics, check_status, reported_signals
from headway.gateway.engines.member import BackendSpec
from headway.gateway.live_policies import read_policies
from headway.gateway.membership.etcd_client import Etcd, EtcdError
from headway.http.address import Address
from headway.http.client import HttpClient
from headway.http.tls import ServerTls
from headway.types import Json

READY: Final = "Load balancers send it no requests. See the other problems, and the gateway's log."
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # listening on all addresses -> address to connect to


def examine(target: str, key: str | None = None) -> Report:
    """Examine a gateway's file or the admin API at a URL. `key` is the key of the admin API."""
    if target.startswith(("http://", "https://")):
        return asyncio.run(_examine_gateway(target.rstrip("/"), key))
    path = Path(target).expanduser()
    return asyncio.run(_examine_file(path, read_text(path, "a YAML file in UTF-8"), key))


# --- a file ----------------------------------------------------------------------------------------------------------


async def _examine_file(path: Path, text: str, key: str | None) -> Report:
    report = Report(str(path), ["file"])
    errors: list[str] = []
    try:
        document = parse_yaml(text, str(path))
        with stand_in_keys(document, report):
            try:
                config = Config.load(path)
            except HeadwayError:
                errors = find_file_errors(path)
                raise
        policies = read_policies(config.policies, config.defaults)
    except HeadwayError as error:
        for why in errors or [str(error)]:
            report.error(str(path), why, "Correct the file. The gateway does not start with it.")
        return report
    check_file(config, report)
    check_rights([Path(beside(section[key], path)) for section, key in named_files(document)], report)
    answers = await ask_engines(list(config.backends.values()), config.health.path)
    if answers:
        report.checked.append(f"engines: {', '.join(config.backends)}")
    seeks = seeks_prefixes(policies)
    for each in answers:
        check_engine(each, config.tokens.block_tokens, seeks, report)
    if answers and config.etcd is None:
        check_models(_named_models(config), answers, report)
    # Agents report in the heartbeats of engines from etcd, which the doctor does not read.
    if answers and config.etcd is None and any(each.health.status for each in answers):
        polled = answers if config.signals.on else []
        check_signals(policies, {signal for each in polled for signal in each.signals}, report)
    if config.jwt is not None:
        await check_provider(config.jwt, report)
    password = None if config.etcd is None else config.etcd.password_env
    if config.etcd is not None and (password is None or os.environ.get(password)):
        await _check_etcd(config, report)
    await _ask_running(config, key, report)
    return report


def _named_models(config: Config) -> dict[str, str]:
    """Return the models of aliases and fallbacks by their place in the file."""
    named = {f"aliases.{alias}": model for alias, model in config.aliases.items()}
    for name, fallback in config.fallbacks.items():
        models = [config.aliases.get(model, model) for model in fallback.models]
        named |= {f"fallbacks.{name}[{number}]": model for number, model in enumerate(models)}
    return named


async def _check_etcd(config: Config, report: Report) -> None:
    assert config.etcd is not None
    report.checked.append("etcd")
    try:
        async with Etcd(config.etcd) as etcd:
            await etcd.range(f"{config.etcd.prefix}/")
    except EtcdError as error:
        remedy = "Check `etcd.endpoints`, the network, and etcd itself. Without it, no engines or policies arrive."
        report.error("etcd", str(error).removeprefix("etcd: "), remedy)


async def _ask_running(config: Config, key: str | None, report: Report) -> None:
    """Examine the gateway of a file, if it runs."""
    client = HttpClient(TIMEOUT_S, redirects=False)
    running = False
    try:
        key = (None if config.admin is None else config.admin.key()) or key  # without it, operators have keys
        if config.admin is not None and key:
            address = _own_address(config.admin.listen, config.admin.tls)
            running = await _ask_admin(client, address, key, report)
        if config.probes is not None:
            url = _own_address(config.probes.listen, None).url
            ready = await get(client, f"{url}/readyz")
            if ready.status not in (0, 200):
                report.error("probes", f"{url}/readyz has status {ready.status}: {ready.text}", READY)
            elif running and not ready.status:
                report.warn("probes", f"{url}/readyz does not answer ({ready.why}).", "Restart the gateway.")
    finally:
        await client.close()


async def _ask_admin(client: HttpClient, address: Address, key: str, report: Report) -> bool:
    """Examine the gateway by its admin API. Return whether it runs."""
    url = address.url
    reply = await get(client, f"{url}/status", key, address)
    if reply.status == 200:
        running = await _check_running(client, address, key, reply, report) is not None
        if running:
            report.checked.append(f"gateway at {url}")
            return True
    if reply.status:
        remedy = "Another server listens there, or the gateway was started with another admin key."
        report.warn("admin", f"{url}/status is not the status of this gateway (status {reply.status}).", remedy)
    else:
        what = f"No gateway answers at {url} ({reply.why})."
        report.note("admin", what, "Start it to let the doctor look at the running gateway, too.")
    return False


def _own_address(listen: tuple[str, int], tls: ServerTls | None) -> Address:
    """Return the address of a listening socket of this machine. Its own certificate is its authority, whatever name it
    has."""
    host = EVERYWHERE.get(listen[0], f"[{listen[0]}]" if ":" in listen[0] else listen[0])
    address = Address(f"{'http' if tls is None else 'https'}://{host}:{listen[1]}", "listen")
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(tls.certificate)
        address.context = context
    return address


# --- a running gateway -----------------------------------------------------------------------------------------------


async def _examine_gateway(url: str, key: str | None) -> Report:
    report, address = Report(url), Address(url, "URL")
    client = HttpClient(TIMEOUT_S, redirects=False)
    try:
        reply = await get(client, f"{url}/status", key)
        if reply.status != 200:
            _refused(url, reply, key, report)
            return report
        found = await _check_running(client, address, key, reply, report)
    finally:
        await client.close()
    if found is None:
        _refused(url, replace(reply, status=0, why="its /status is not that of a gateway"), key, report)
        return report
    report.checked.append("gateway")
    status, policies = found
    serving = {each["name"] for each in status["backends"] if each["serving"]}
    specs = [BackendSpec(each["url"], tuple(each["models"]), name=each["name"]) for each in status["backends"]]
    _check_engines_from_afar(await ask_engines(specs, None), serving, seeks_prefixes(policies), status, report)
    return report


async def _check_running(
    client: HttpClient, address: Address, key: str | None, reply: Reply, report: Report
) -> tuple[Json, Json] | None:
    """Check the gateway's documents. Return its status and its policies; None if this is no gateway."""
    url, found = address.url, Report(report.target)
    try:
        status = json.loads(reply.text)
        check_status(status, found)
        policies: Json = parse_yaml(status["policy"]["text"], f"{url}/policies")
        reported = reported_signals(status)
    except (ValueError, KeyError, TypeError, AttributeError, HeadwayError):
        return None
    for problem in found.problems:
        report.add(*astuple(problem))
    if reply.skew_s is not None and abs(reply.skew_s) > SKEW_S:
        way = "ahead of" if reply.skew_s > 0 else "behind"
        what = f"Its clock is {abs(reply.skew_s):.0f} s {way} this machine's."
        report.warn("gateway", what, "Synchronise the clocks (NTP).")
    page = await get(client, f"{url}/metrics", key, address)
    if page.status == 200:
        check_metrics(page.text, report)
    if status["backends"]:
        check_signals(policies, reported, report)
    return status, policies


def _check_engines_from_afar(
    answers: Sequence[EngineAnswers], serving: set[str], seeks: bool, status: Json, report: Report
) -> None:
    """Check the engines of a gateway, whose keys and settings the doctor does not have. This machine may reach fewer
    of them than the gateway."""
    reached = [each for each in answers if each.health.status]
    if reached:
        report.checked.append(f"engines: {', '.join(each.spec.name for each in reached)}")
    for each in answers:
        if not each.health.status:
            if each.spec.name in serving:
                what = f"This machine cannot reach it at {each.spec.url} ({each.health.why})."
                report.note(f"engine {each.spec.name}", what, "To check it, too, run the doctor beside the gateway.")
            continue
        if each.page is not None and each.page.status != 200:
            each.page = None
        if each.models.status == 200:
            check_engine(each, status.get("block_tokens", 16), seeks, report)


def _refused(url: str, reply: Reply, key: str | None, report: Report) -> None:
    report.reached = False
    if not reply.status:
        what = f"It does not answer as a gateway's admin API ({reply.why})."
        report.error(url, what, "Start the gateway, or correct the URL.")
    elif reply.status == 401:
        what = "The admin key is wrong." if key else "The admin API wants its key."
        report.error(url, what, "Put the key into an environment variable, and name that with --key-env.")
    else:
        what = f"GET /status has status {reply.status}, so this is no admin API of a gateway."
        report.error(url, what, "Pass the address of `admin.listen`, not that of `listen`.")
