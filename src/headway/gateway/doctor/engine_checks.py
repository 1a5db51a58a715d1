"""Checks that ask engines: health, model list, metrics page, KV events, clock."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from headway.config.wording import one_line
from headway.gateway.doctor.problems import Report
from headway.gateway.signals.reading import LOAD, Reading
from headway.gateway.signals.scrape import parse
from headway.http.address import Address
from headway.http.client import HttpClient, NoAnswer, TooLong
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.engines.member import BackendSpec

TIMEOUT_S: Final = 5.0
SKEW_S: Final = 5.0  # difference of clocks that is a warning; the header Date has whole seconds
MODELS: Final = "/v1/models"
AT_ONCE: Final = 64  # number of engines that are asked at the same time
NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
)  # OpenSSL's errors about answers without TLS
PAGE_BYTES: Final = 4 * 1024 * 1024
CACHING_OFF: Final = re.compile(r'^\S*cache_config_info\{[^}]*enable_prefix_caching="(?:False|false|0)"', re.MULTILINE)
SERVER_INFO: Final = ("/server_info", "/get_server_info")  # of SGLang, newer and older
ENDPOINT: Final = re.compile(r"tcp://(\[[^\]]+\]|[^:/]+):([0-9]+)")


class Reply(Struct, frozen=True):
    """The answer to a GET. Without an answer, `status` is 0, and `why` has the reason."""

    status: int = 0
    text: str = ""
    skew_s: float | None = None  # how far the server's clock is ahead of this machine's
    why: str = ""


class EngineAnswers(Struct):
    """What an engine says of itself."""

    spec: BackendSpec
    health: Reply
    models: Reply
    page: Reply | None = None  # its metrics page; None: it has none
    info: Reply | None = None  # the settings of an SGLang server
    deaf: dict[str, str] = {}  # key of the file -> why nothing listens there

    @property
    def model_names(self) -> list[str] | None:
        """Return the models in the engine's list; None without a valid list."""
        try:
            return [str(entry["id"]) for entry in json.loads(self.models.text)["data"]]
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def signals(self) -> dict[str, Any]:
        """Return the signals on the metrics page, as the gateway reads them."""
        if self.page is None or self.page.status != 200:
            return {}
        return Reading().signals_of(self.figures, InstanceView(0, self.spec.name), 16, 0)

    @property
    def figures(self) -> dict[str, Any]:
        return {} if self.page is None else parse(self.page.text, self.spec.engine)

    @property
    def caches_prefixes(self) -> bool:
        """Return False if the engine says that its prefix cache is off."""
        if self.page is not None and CACHING_OFF.search(self.page.text):
            return False
        if self.info is None or self.info.status != 200:
            return True
        try:
            return json.loads(self.info.text).get("disable_radix_cache") is not True
        except (ValueError, AttributeError):
            return True


# --- asking ----------------------------------------------------------------------------------------------------------


async def get(client: HttpClient, url: str, key: str | bytes | None = None, address: Address | None = None) -> Reply:
    text = key.decode("latin-1") if isinstance(key, bytes) else key
    headers = {"authorization": f"Bearer {text}"} if text else None
    try:
        async with client.stream("GET", url, headers=headers, address=address) as stream:
            body = await stream.read(PAGE_BYTES)
            return Reply(stream.status, body.decode("utf-8", "replace"), _skew(stream.fields.get("date")))
    except NoAnswer as error:
        return Reply(why=_reason(error))
    except TooLong:
        return Reply(why=f"its answer has more than {PAGE_BYTES:,} bytes")


def _reason(error: NoAnswer) -> str:
    """Return why there is no answer, without the address, which the reader knows."""
    cause = getattr(error.error, "os_error", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return (
            "it does not speak TLS, so its URL begins with http" if cause.reason in NO_TLS else one_line(cause.reason)
        )
    code = getattr(cause, "errno", None)
    return error.why if not code or code < 0 else os.strerror(code).lower()


def _skew(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None


async def ask_engines(specs: Sequence[BackendSpec], health_path: str | None) -> list[EngineAnswers]:
    """Ask all engines, a limited number at once. Ranks of one engine are asked once each, as the gateway does."""
    turn = asyncio.Semaphore(AT_ONCE)
    client = HttpClient(TIMEOUT_S, redirects=False)

    async def ask(spec: BackendSpec) -> EngineAnswers:
        async with turn:
            return await ask_engine(client, spec, health_path)

    try:
        return list(await asyncio.gather(*map(ask, specs)))
    finally:
        await client.close()


async def ask_engine(client: HttpClient, spec: BackendSpec, health_path: str | None) -> EngineAnswers:
    address = spec.address()

    async def ask(path: str) -> Reply:
        return await get(client, f"{address.url}/{path.lstrip('/')}", spec.key, address)

    health = await ask(health_path or MODELS)
    if not health.status:
        return EngineAnswers(spec, health, health)
    answers = EngineAnswers(spec, health, await ask(MODELS))
    if spec.metrics is not None:
        answers.page = await ask(spec.metrics)
        if answers.page.text.find("sglang") >= 0 or spec.engine == "sglang":
            for path in SERVER_INFO:
                answers.info = await ask(path)
                if answers.info.status == 200:
                    break
    endpoints = {"events": spec.events, "events_replay": spec.events_replay}
    answers.deaf = {
        key: why for key, endpoint in endpoints.items() if endpoint is not None and (why := await _deaf(endpoint))
    }
    return answers


async def _deaf(endpoint: str) -> str:
    """Return why nothing listens at a ZMQ endpoint; "" if something does."""
    if endpoint.startswith("ipc://"):
        return "" if Path(endpoint.removeprefix("ipc://")).exists() else "the file does not exist"
    match = ENDPOINT.fullmatch(endpoint)
    if match is None:
        return "" if "*" in endpoint else "expected an endpoint such as tcp://10.0.0.7:5557"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(match[1].strip("[]"), int(match[2]))
    except TimeoutError:
        return "no answer in time"
    except (OSError, ValueError, OverflowError) as error:
        code = getattr(error, "errno", None)
        return os.strerror(code).lower() if code and code > 0 else str(error)
    writer.close()
    return ""


# --- judging ---------------------------------------------------------------------------------------------------------


def check_engine(answers: EngineAnswers, block_tokens: int, seeks_prefixes: bool, report: Report) -> None:
    spec, health = answers.spec, answers.health
    where = f"backends.{spec.name}"
    if not health.status:
        report.error(where, f"{spec.url} does not answer ({health.why}).", "Start the engine, or correct `url`.")
        return
    if health.status >= 500:
        what = f"{spec.url} answers, but its health check has status {health.status}."
        report.error(where, what, "See the engine's log. Until the check passes, the engine gets no requests.")
    if health.skew_s is not None and abs(health.skew_s) > SKEW_S:
        way = "ahead of" if health.skew_s > 0 else "behind"
        what = f"Its clock is {abs(health.skew_s):.0f} s {way} this machine's."
        report.warn(where, what, "Synchronise the clocks (NTP): agents, tokens and records carry times.")
    _check_models(answers, where, report)
    _check_page(answers, block_tokens, seeks_prefixes, where, report)
    for key, why in answers.deaf.items():
        endpoint = getattr(spec, key)
        remedy = "Start the engine with KV events at this address, or remove the key."
        report.error(f"{where}.{key}", f"Nothing listens at {endpoint} ({why}).", remedy)


def _check_models(answers: EngineAnswers, where: str, report: Report) -> None:
    status, spec = answers.models.status, answers.spec
    if status in (401, 403):
        what = f"{spec.url}/v1/models has status {status}: the engine wants a key."
        if spec.key:
            report.error(f"{where}.key_env", what, f"{spec.key_env} has another key. Set it to the engine's.")
        else:
            remedy = "Set `key_env`, unless clients send the engine's key themselves."
            report.warn(f"{where}.key_env", what, remedy)
        return
    names = answers.model_names
    if status != 200 or names is None:
        remedy = "Check that `url` is the base URL of an engine with OpenAI's API, without /v1."
        report.warn(f"{where}.url", f"{spec.url}/v1/models is no list of models (status {status}).", remedy)
        return
    missing = [model for model in spec.models if model not in names]
    if missing:
        what = f"{spec.url} does not serve {', '.join(missing)}. It serves {', '.join(names[:8]) or 'no model'}."
        report.error(f"{where}.models", what, "Correct `models`, or start the engine with this model.")


def _check_page(answers: EngineAnswers, block_tokens: int, seeks_prefixes: bool, where: str, report: Report) -> None:
    page, spec = answers.page, answers.spec
    if page is None:
        return
    if page.status != 200:
        what = f"{spec.url}/{(spec.metrics or '').lstrip('/')} has status {page.status}." if page.status else page.why
        remedy = "Correct `metrics`, or set it to null. Without the page, the gateway uses its own counts."
        report.warn(f"{where}.metrics", what, remedy)
        return
    if not any(signal in answers.signals for signal in LOAD):
        remedy = "Correct `metrics` or `engine`. Until then the gateway uses its own counts."
        report.warn(f"{where}.metrics", "The page has no numbers of queued or running requests.", remedy)
    if not answers.caches_prefixes:
        what, remedy = "The engine's prefix cache is off.", "Start the engine with prefix caching"
        if seeks_prefixes:
            report.warn(where, f"{what} The policies route by prefixes that no engine keeps.", f"{remedy}.")
        else:
            report.note(where, what, f"{remedy} if prompts begin alike.")
    size = answers.figures.get("block_tokens")
    if size and size != block_tokens and seeks_prefixes:
        what = f"Its KV blocks have {size} tokens, and those of the gateway {block_tokens}."
        remedy = f"Set `tokens: {{block_tokens: {size}}}`, so that the gateway counts cached tokens as the engine does."
        report.warn("tokens.block_tokens", f"{spec.name}: {what}", remedy)


def check_models(named: Mapping[str, str], answers: Sequence[EngineAnswers], report: Report) -> None:
    """Report models that the file names for clients and that no engine serves. `named` has them by their place."""
    served: dict[str, None] = {}
    for each in answers:
        served |= dict.fromkeys(each.spec.models or each.model_names or ())
    unknown = [each.spec.name for each in answers if not each.spec.models and each.model_names is None]
    for where, model in named.items():
        if model in served:
            continue
        remedy = "Correct the name, or add an engine with this model."
        if unknown:
            what = f"No engine that answers serves {model}; the models of {', '.join(unknown)} are unknown."
            report.warn(where, what, remedy)
        else:
            listed = ", ".join(list(served)[:8]) or "no model"
            report.error(where, f"No engine serves {model}. The engines serve {listed}.", remedy)
