"""The admin API for policies: the policies in force, the canary, and the shadow candidates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from headway.config.documents import yaml_text
from headway.gateway.live_policies import refuse_files, without_canary
from headway.gateway.observing.openapi import endpoint, name_parameter
from headway.gateway.shadow.canary import CANARY
from headway.gateway.shadow.candidate import CandidateSpec
from headway.policies.bundle import Bundle
from headway.types import Json

if TYPE_CHECKING:
    from aiohttp.web import Request, Response, StreamResponse

    from headway.gateway.orders import Failures, Orders
    from headway.gateway.plane import Plane
    from headway.gateway.shadow.canary_watch import CanaryWatch
    from headway.gateway.shadow.shadows import Shadows

Handler = Callable[["Request"], Awaitable["StreamResponse"]]
SWAP: Final = "Replace the policies. If the new ones are invalid, the policies in force stay."
TRY: Final = "Start a canary: a candidate that decides on a share of the requests."
ASK: Final = "Add or change a shadow candidate, which is asked about live decisions and decides on none."
IN_FORCE: Final = {200: "The policies in force."}
ASKED: Final = {200: "The candidate was changed.", 201: "The candidate was added."}
GONE: Final = {200: "It was removed."}
POLICIES: Final = {"type": "object", "description": "The `policies` of a scenario, or a bundle."}
TRIAL: Final = {
    "type": "object",
    "description": "The section `canary` of the gateway's file.",
    "required": ["policies"],
}
SHADOW: Final = {"type": "object", "description": "Policies, a bundle, or `policies` with `sample` and `budget`."}
NAME: Final = name_parameter("name of the candidate", 100)


class Wrong(Exception):
    """Raised by a handler to refuse the request with this HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class PolicyApi:
    def __init__(
        self,
        plane: Plane,
        failures: Failures,
        canary: CanaryWatch,
        shadows: Shadows,
        orders: Orders,
        reply: Callable[..., Response],
    ) -> None:
        """`reply` returns the HTTP response for a document and an optional status."""
        self.plane, self.failures, self.orders, self._json = plane, failures, orders, reply
        self.watch, self.candidates = canary, shadows

    @endpoint("GET", "/policies", "The policies in force.")
    async def policies(self, request: Request) -> StreamResponse:
        return self._reply_policies()

    def _reply_policies(self) -> StreamResponse:
        policies = self.plane.policies
        document = {"version": self.plane.version, "policies": policies, "text": yaml_text(policies)}
        return self._json({**document, "failures": asdict(self.failures)})

    @endpoint("PUT", "/policies", SWAP, 400, 413, replies=IN_FORCE, body=POLICIES)
    async def put_policies(self, request: Request) -> StreamResponse:
        document = await _read_mapping(request, "policies", "a mapping of stages, or a bundle")
        if "format" in document:
            document = dict(Bundle.read(document).policies)
        self.orders.give("swap", document)
        return self._reply_policies()

    # --- a canary ----------------------------------------------------------------------------------------------------

    @endpoint("GET", "/canary", "The state of the canary, and its results beside those of the other requests.")
    async def canary(self, request: Request) -> StreamResponse:
        return self._json({"version": self.plane.version, "canary": self.watch.status()})

    @endpoint("PUT", "/canary", TRY, 400, 413, replies=IN_FORCE, body=TRIAL)
    async def put_canary(self, request: Request) -> StreamResponse:
        document = await _read_mapping(request, CANARY, "a mapping, as in the gateway's file")
        self.orders.give("swap", {**without_canary(self.plane.policies), CANARY: document})
        return self._reply_policies()

    @endpoint("DELETE", "/canary", "End the canary. The policies in force keep their state.", 404, replies=GONE)
    async def delete_canary(self, request: Request) -> StreamResponse:
        if CANARY not in self.plane.policies:
            raise Wrong(404, "there is no canary")
        self.orders.give("halt", "by the admin API")
        return self._reply_policies()

    # --- shadow candidates -------------------------------------------------------------------------------------------

    @endpoint("GET", "/shadows", "The shadow candidates and their results.")
    async def shadows(self, request: Request) -> StreamResponse:
        return self._json({"shadows": self.candidates.status()})

    @endpoint("PUT", "/shadows/{name}", ASK, 400, 404, 409, 413, replies=ASKED, parameters=(NAME,), body=SHADOW)
    async def put_shadow(self, request: Request) -> StreamResponse:
        name, shadows = request.match_info["name"], self.candidates
        if name in shadows.sources["file"]:
            raise Wrong(409, f"shadow.{name}: is defined in the gateway's file; change it there")
        document = await _read_mapping(request, f"shadow.{name}", "a mapping of stages, or a bundle")
        spec = CandidateSpec.read(document, f"shadow.{name}")
        known = name in shadows.candidates
        self._offer_shadows({**shadows.sources["admin"], name: spec})
        return self._json(shadows.candidates[name].status(), 200 if known else 201)

    @endpoint("DELETE", "/shadows/{name}", "Remove a candidate.", 404, 409, replies=GONE, parameters=(NAME,))
    async def delete_shadow(self, request: Request) -> StreamResponse:
        name, sources = request.match_info["name"], self.candidates.sources
        if name in sources["file"]:
            raise Wrong(409, f"shadow.{name}: is defined in the gateway's file; remove it there")
        if name not in sources["admin"]:
            raise Wrong(404, f"there is no shadow {name!r}")
        self._offer_shadows({other: spec for other, spec in sources["admin"].items() if other != name})
        return self._json({"name": name})

    def _offer_shadows(self, candidates: dict[str, CandidateSpec]) -> None:
        self.orders.give("shadows", {name: spec.plain for name, spec in candidates.items()})


async def read_json(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Wrong(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise Wrong(400, "the body is nested too deeply") from None


async def _read_mapping(request: Request, where: str, expected: str) -> Json:
    """Return the policies, or the section with policies, in a request's body. Raise if they name a file."""
    document = await read_json(request)
    if not isinstance(document, dict):
        raise Wrong(400, f"{where}: expected {expected}")
    refuse_files(document.get("policies") if "format" in document else document, where, "the admin API")
    return document
