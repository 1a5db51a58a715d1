"""Requests that two engines serve. A prefill engine computes the prompt, and a decode engine generates the answer.

If the prefill fails, the decode engine serves the whole request. If the decode engine fails before the first byte of
the answer, the gateway routes the request again.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import PositiveSeconds
from headway.errors import HeadwayError
from headway.gateway.handover import protocols
from headway.gateway.handover.kv_daemons import KvDaemons
from headway.gateway.handover.leg import Leg
from headway.gateway.kvd.channel import UNREACHABLE, KvdError, TlsFiles
from headway.gateway.request_body import read_fields
from headway.http.upstream import is_framed

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.exchange import Exchange
    from headway.gateway.services import Services
    from headway.http.known_heads import Fields
    from headway.http.upstream import Asker, Upstream

REQUEST_ID: Final = b"x-request-id"
REPLACED: Final = (REQUEST_ID, b"accept-encoding")  # the gateway sets the id itself, and needs uncompressed answers
MARK: Final = b"x-headway-prefill: "
LOST: Final = "kvd lost"  # reason of a fallback: a KV daemon does not answer
log = logging.getLogger("headway.gateway")


class HandoverSettings(Struct, frozen=True):
    """The section `disaggregation:` of a gateway's file."""

    protocol: Annotated[Literal["vllm", "sglang", "kvd"], "protocol of the KV transfer between the engines"]
    timeout_s: Annotated[PositiveSeconds, "time limit of the prefill, from connecting to the end of its answer"] = 60.0
    tls: Annotated[TlsFiles | None, "TLS files for KV daemons over QUIC, relative to this file"] = None
    kvd_timeout_s: Annotated[PositiveSeconds, "time limit of each answer of a KV daemon, including its fetches"] = 5.0
    kvd_check_s: Annotated[PositiveSeconds, "time between two checks of a KV daemon, and time limit of a check"] = 2.0

    def validate(self, where: str) -> HandoverSettings:
        if self.tls is not None and self.protocol != "kvd":
            raise HeadwayError(
                f"{where}.tls: is valid only with protocol kvd, but the protocol is {self.protocol}. Remove it."
            )
        return self

    @property
    def alone(self) -> bool:
        """Whether a prefill or decode engine can serve a whole request alone. SGLang's engines cannot."""
        return self.protocol != "sglang"


class Handover:
    def __init__(self, services: Services, settings: HandoverSettings) -> None:
        self.services, self.settings = services, settings
        self.handed = 0
        self.fallbacks: Counter[str] = Counter()  # number of requests that one engine served alone, by reason
        self.daemons = KvDaemons(
            services.clock,
            lambda: (member.spec.kvd for member in services.fleet.members if member.spec.kvd is not None),
            tls=settings.tls,
            timeout_s=settings.kvd_timeout_s,
            check_s=settings.kvd_check_s,
        )

    async def start(self) -> None:
        if self.settings.protocol == "kvd":
            await self.daemons.start()

    async def stop(self) -> None:
        await self.daemons.stop()

    def split(self, exchange: Exchange) -> None:
        """Begin the handover of an exchange that has two engines."""
        exchange.handing = PROTOCOLS[self.settings.protocol](self, exchange)
        exchange.handing.begin()


class Handing:
    """The handover of one request between two engines. `drop` can end the handover at any time."""

    def __init__(self, handover: Handover, exchange: Exchange) -> None:
        self.handover, self.services, self.exchange = handover, handover.services, exchange
        assert exchange.flight is not None and exchange.flight.prefill is not None and exchange.backend is not None
        prefill = self.services.fleet.backends[exchange.flight.prefill.index]
        assert prefill is not None
        self.prefill: Backend = prefill
        self.decode: Backend = exchange.backend
        self.body, self.incoming = exchange.body, exchange.incoming  # original values, which `drop` restores
        self.fields = read_fields(self.body)
        self.mark = MARK + self.prefill.name.encode()
        self.leg: Leg | None = None
        self.over = False
        fields = [field for field in self.incoming.fields if field[0] not in REPLACED]
        fields.append((REQUEST_ID, f"headway-{secrets.token_hex(16)}".encode()))
        exchange.incoming = replace(self.incoming, fields=fields)

    def begin(self) -> None:
        why = self.obstacle()
        if why:
            self.leave_prefill()
            self.whole(why)
        else:
            self.start()

    def obstacle(self) -> str:
        """Return the reason why one engine must serve the whole request; an empty string if two engines can serve
        it."""
        api = self.exchange.api
        if not api.generates:
            return "nothing to generate"
        return "" if api.plain else f"the API of {api.kind} has no handover"

    def start(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """Cancel the prefill, and restore the request as the client sent it."""
        self.over = True
        if self.leg is not None and not self.leg.over:
            self.leg.cancel()
        exchange = self.exchange
        exchange.handing = None
        exchange.body, exchange.incoming = self.body, self.incoming
        if self.mark in exchange.marks:
            exchange.marks.remove(self.mark)

    @property
    def asker(self) -> Asker:
        """The receiver of the decode engine's answer."""
        return self.exchange

    def send_prompt(self, body: bytes) -> None:
        """Send the request to the prefill engine."""
        data = [self.exchange.head(self.prefill, body), body]
        self.leg = Leg(self.services.clock, self.prefill, data, self._on_leg_end, self.services.timeouts.connect_s)
        self.leg.start(self.handover.settings.timeout_s)

    def _on_leg_end(self, leg: Leg) -> None:
        if leg.complete:
            self.services.health.record_status(self.prefill, leg.status)
        elif leg.error is None or not self.services.health.open_files.are_short(leg.error):
            self.services.health.record_failure(self.prefill, leg.why)
        if not self.over:
            self.on_prompt(leg)

    def on_prompt(self, leg: Leg) -> None:
        """Continue after the prefill, whether it succeeded or not."""
        raise NotImplementedError

    def leave_prefill(self) -> None:
        services, flight = self.services, self.exchange.flight
        if flight is not None and flight.prefill is not None:
            services.plane.handed(services.clock.now_ps(), self.exchange.request.id)
            services.waiting.nudge()

    def go_on(self, body: bytes) -> None:
        """Send the request to the decode engine."""
        self.handover.handed += 1
        self.exchange.body = body
        self.exchange.marks.append(self.mark)
        self.exchange.send_to(self.decode)

    def whole(self, why: str) -> None:
        """Let the decode engine serve the whole request."""
        self.handover.fallbacks[why] += 1
        self.exchange.body = self.body
        self.exchange.send_to(self.decode)


class VllmHanding(Handing):
    """Runs the prefill first, and then the decode. The prefill engine's answer says where the KV blocks are. The
    gateway copies this location into the request for the decode engine."""

    def start(self) -> None:
        self.send_prompt(self.prompt_body())

    def prompt_body(self) -> bytes:
        return protocols.vllm_prefill(self.fields)

    def on_prompt(self, leg: Leg) -> None:
        self.leave_prefill()
        body = protocols.vllm_decode(self.fields, leg.answer) if leg.ok else None
        if body is not None:
            self.go_on(body)
        else:
            self.whole("prefill failed" if leg.why else "no kv_transfer_params")


class KvdHanding(VllmHanding):
    """Runs the prefill first, and then the decode. The prefill engine stores the KV blocks in a daemon, and the decode
    engine loads them from there. If the daemon does not answer, the decode engine computes the prompt itself."""

    keys: list[bytes]

    def obstacle(self) -> str:
        if self.prefill.spec.kvd is None:
            return "no kvd"
        if self.handover.daemons.answers(self.prefill.spec.kvd) is False:
            return LOST
        return super().obstacle()

    def start(self) -> None:
        assert self.prefill.spec.kvd is not None
        if self.handover.daemons.answers(self.prefill.spec.kvd) is None:
            self.services.clock.spawn(self._start_after_check(self.prefill.spec.kvd))
        else:
            super().start()

    async def _start_after_check(self, address: str) -> None:
        answers = await self.handover.daemons.check(address)
        if self.over:
            return
        if answers:
            super().start()
        else:
            self.leave_prefill()
            self.whole(LOST)

    def send_prompt(self, body: bytes) -> None:
        assert self.prefill.spec.kvd is not None
        self.handover.daemons.add_user(self, self.prefill.spec.kvd, self._on_lost)
        super().send_prompt(body)

    def _on_lost(self) -> None:
        """Stop waiting for an engine that cannot store its blocks. The engine is not to blame."""
        assert self.leg is not None
        self.handover.daemons.remove_user(self)
        self.leg.cancel()
        self.leave_prefill()
        self.whole(LOST)

    def drop(self) -> None:
        self.handover.daemons.remove_user(self)
        super().drop()

    def prompt_body(self) -> bytes:
        assert self.prefill.spec.kvd is not None
        self.keys = protocols.kv_keys(self.exchange.request, self.prefill.spec.pool, self.body)
        return protocols.kvd_prefill(self.fields, self.prefill.spec.kvd, self.keys)

    def on_prompt(self, leg: Leg) -> None:
        self.handover.daemons.remove_user(self)
        self.leave_prefill()
        if leg.ok:
            self.services.clock.spawn(self._check(protocols.kvd_put(leg.answer, self.keys)))
        else:
            self.whole("prefill failed")

    async def _check(self, keys: list[bytes]) -> None:
        """Send the request to the decode engine. If the daemon lacks a block, the decode engine computes the prompt
        again."""
        try:
            addresses = await self._places(keys)
            why = "" if addresses else "blocks missing"
        except Exception as error:  # catch every exception: otherwise the client would get no answer
            log.warning("disaggregation: %s", error)
            addresses, why = [], LOST
        if self.over:
            return
        if why:
            self.whole(why)
        else:
            self.go_on(protocols.kvd_decode(self.fields, addresses, keys))

    async def _places(self, keys: list[bytes]) -> list[str]:
        """Return the addresses of the daemons that answer and have all blocks, nearest first; an empty list if none has
        them."""
        far, near = self.prefill.spec.kvd, self.decode.spec.kvd
        assert far is not None
        if not keys or await self._lookup(far, keys) < len(keys):
            return []
        if near is None or near == far:
            return [far]
        if await self._fetch(near, keys, far) == len(keys):
            return [near, far]
        # The fetch may have failed because the prefill engine's daemon no longer answers.
        return [far] if await self._lookup(far, keys) == len(keys) else []

    async def _lookup(self, address: str, keys: list[bytes]) -> int:
        """Return how many of the blocks the daemon has. If it does not answer, raise KvdError."""
        daemons = self.handover.daemons
        if daemons.answers(address) is False:
            raise KvdError(UNREACHABLE, f"{address}: the daemon does not answer.")
        try:
            return await daemons.client(address).lookup(keys)
        except KvdError as error:
            daemons.record(address, False, str(error))
            raise

    async def _fetch(self, address: str, keys: list[bytes], source: str) -> int:
        """Make a daemon fetch the blocks. Return how many of them it then has; 0 if it fails."""
        daemons = self.handover.daemons
        if daemons.answers(address) is False:
            return 0
        if daemons.answers(address) is None and not await daemons.check(address):
            return 0
        try:
            return await daemons.client(address).fetch(keys, source)
        except HeadwayError as error:
            log.warning("disaggregation: %s", error)
            return 0


class SglangHanding(Handing):
    """Sends the request to the prefill engine and to the decode engine at the same time. Both requests contain the same
    random number, the *room*, by which the two engines find each other. The client receives the decode engine's answer.
    If one engine fails, the gateway cancels the request at the other engine, which would otherwise wait."""

    def __init__(self, handover: Handover, exchange: Exchange) -> None:
        super().__init__(handover, exchange)
        # Head of the decode engine's answer, as arguments of `on_head`. None before the head and after the body begins.
        self.held: tuple[Upstream, int, Fields] | None = None
        self.until_close = self.complete = False

    @property
    def asker(self) -> Asker:
        return self

    def start(self) -> None:
        body = protocols.sglang(self.fields, self.prefill)
        self.send_prompt(body)
        self.go_on(body)

    def drop(self) -> None:
        if self.complete:  # the client has its answer; do not cancel the prefill, which ends without help
            self.leg = None
        super().drop()

    def on_prompt(self, leg: Leg) -> None:
        if leg.ok:
            self.leave_prefill()
            return
        self.handover.fallbacks["prefill failed"] += 1
        self.exchange.prompt_lost(f"{self.prefill.name}: {leg.why}")

    # --- the decode engine's answer: the head is held until the body begins, because the prefill may still fail ------

    def on_head(self, upstream: Upstream, status: int, fields: Fields) -> None:
        self.until_close = not is_framed(fields)
        if status == 200:
            self.held = (upstream, status, fields)
        else:
            self.exchange.on_head(upstream, status, fields)

    def on_data(self, data: bytes) -> None:
        self._release()
        self.exchange.on_data(data)

    def on_complete(self) -> None:
        self._release()
        self.complete = self.exchange.status < 400
        self.exchange.on_complete()

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        self.exchange.on_broken(upstream, why)

    def _release(self) -> None:
        if self.held is not None:
            held, self.held = self.held, None
            self.exchange.on_head(*held)


PROTOCOLS: Final[dict[str, type[Handing]]] = {"vllm": VllmHanding, "kvd": KvdHanding, "sglang": SglangHanding}
