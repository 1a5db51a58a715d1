"""The admin API for policies: those in force, a canary, and shadow candidates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from headway.config.documents import yaml_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.live_policies import without_canary
from headway.gateway.observing.openapi import endpoint, name_parameter
from headway.gateway.shadow.canary import CANARY
from headway.gateway.shadow.candidate import CandidateSpec
from headway.policies.bundle import Bundle
from headway.policies.registry import is_file
from headway.types import Json

if TYPE_CHECKING:
    from aiohttp.web import Request, Response, StreamResponse

    from headway.gateway.orders import Failures, Orders
    from headway.gateway.plane import Plane
    from headway.gateway.shadow.canary_watch import CanaryWatch
    from headway.gateway.shadow.shadows import Shadows

Handler = Callable[["Request"], Awaitable["StreamResponse"]]
SWAP: Final = "Other policies from now on; where they are wrong, those in force stay."
TRY: Final = "A candidate decides on a share of the requests from now on."
ASK: Final = "A candidate is asked about live decisions from now on."
IN_FORCE: Final = {200: "The policies in force."}
ASKED: Final = {200: "It was known, and is so now.", 201: "It is asked."}
GONE: Final = {200: "It is gone."}
POLICIES: Final = {"type": "object", "description": "The `policies` of a scenario, or a bundle."}
TRIAL: Final = {"type": "object", "description": "As `canary` in the gateway's file.", "required": ["policies"]}
SHADOW: Final = {"type": "object", "description": "Policies, a bundle, or `policies` with `sample` and `budget`."}
NAME: Final = name_parameter("a candidate's", 100)


class Wrong(Exception):
    """A refusal, with its HTTP status."""

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
        """`reply` makes a response of a document and an optional status."""
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
        """Put a `policies:` block of a scenario, or a bundle, in force. If it is wrong, the old policies stay."""
        document = await _read_mapping(request, "policies: expected a mapping of stages, or a bundle")
        if "format" in document:
            _refuse_files(document.get("policies"), "policies")
            document = dict(Bundle.read(document).policies)
        _refuse_files(document, "policies")
        self.orders.give("swap", document)
        return self._reply_policies()

    # --- a canary ----------------------------------------------------------------------------------------------------

    @endpoint("GET", "/canary", "How the canary and the others fare.")
    async def canary(self, request: Request) -> StreamResponse:
        return self._json({"version": self.plane.version, "canary": self.watch.status()})

    @endpoint("PUT", "/canary", TRY, 400, 413, replies=IN_FORCE, body=TRIAL)
    async def put_canary(self, request: Request) -> StreamResponse:
        """Replace the canary; its keys are those of the gateway's file."""
        document = await _read_mapping(request, "canary: expected a mapping, as in the gateway's file")
        _refuse_files(document, CANARY)
        self.orders.give("swap", {**without_canary(self.plane.policies), CANARY: document})
        return self._reply_policies()

    @endpoint("DELETE", "/canary", "The canary ends; the policies in force go on.", 404, replies=GONE)
    async def delete_canary(self, request: Request) -> StreamResponse:
        """End the canary; the policies in force keep their state."""
        if CANARY not in self.plane.policies:
            raise Wrong(404, "there is no canary")
        self.orders.give("halt", "by the admin API")
        return self._reply_policies()

    # --- shadow candidates -------------------------------------------------------------------------------------------

    @endpoint("GET", "/shadows", "The candidates that are asked.")
    async def shadows(self, request: Request) -> StreamResponse:
        return self._json({"shadows": self.candidates.status()})

    @endpoint("PUT", "/shadows/{name}", ASK, 400, 404, 409, 413, replies=ASKED, parameters=(NAME,), body=SHADOW)
    async def put_shadow(self, request: Request) -> StreamResponse:
        name, shadows = request.match_info["name"], self.candidates
        if name in shadows.sources["file"]:
            raise Wrong(409, f"shadow.{name}: is named by the gateway's file; change it there")
        document = await _read_mapping(request, f"shadow.{name}: expected a mapping of stages, or a bundle")
        _refuse_files(document, f"shadow.{name}")
        spec = CandidateSpec.read(document, f"shadow.{name}")
        known = name in shadows.candidates
        self._offer_shadows({**shadows.sources["admin"], name: spec})
        return self._json(shadows.candidates[name].status(), 200 if known else 201)

    @endpoint("DELETE", "/shadows/{name}", "It is asked no more.", 404, 409, replies=GONE, parameters=(NAME,))
    async def delete_shadow(self, request: Request) -> StreamResponse:
        name, sources = request.match_info["name"], self.candidates.sources
        if name in sources["file"]:
            raise Wrong(409, f"shadow.{name}: is named by the gateway's file; take it out there")
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
        raise Wrong(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Wrong(400, "the body is too deep") from None


async def _read_mapping(request: Request, problem: str) -> Json:
    document = await read_json(request)
    if not isinstance(document, dict):
        raise Wrong(400, problem)
    return document


def _refuse_files(value: Any, where: str) -> None:
    """Refuse documents from the network that name a file of this machine."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "path":
                raise HeadwayError(f"{where}.path: no file is read for the admin API; give the source itself.")
            if key == "policies" and isinstance(inner, str):
                raise HeadwayError(f"{where}.policies: no file is read for the admin API; give the bundle itself.")
            _refuse_files(str(key), where)
            _refuse_files(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _refuse_files(inner, f"{where}[{place}]")
    elif isinstance(value, str) and is_file(value):
        raise HeadwayError(f"{where}: {shown(value)} is a file, and none is run for the admin API; name a policy.")
