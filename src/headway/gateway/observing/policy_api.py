"""The admin API for policies: those in force, a canary, and shadow candidates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headway.config.documents import yaml_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.deciding.policy_versions import lasting
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

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/policies", self.policies),
            ("PUT", "/policies", self.put_policies),
            ("GET", "/canary", self.canary),
            ("PUT", "/canary", self.put_canary),
            ("DELETE", "/canary", self.delete_canary),
            ("GET", "/shadows", self.shadows),
            ("PUT", "/shadows/{name}", self.put_shadow),
            ("DELETE", "/shadows/{name}", self.delete_shadow),
        ]

    async def policies(self, request: Request) -> StreamResponse:
        return self._json(self._policies())

    def _policies(self) -> Json:
        plane = self.plane
        return {
            "version": plane.version,
            "policies": plane.policies,
            "text": yaml_text(plane.policies),
            "failures": self.failures.status(),
        }

    async def put_policies(self, request: Request) -> StreamResponse:
        """Put a `policies:` block of a scenario, or a bundle, in force. If it is wrong, the old policies stay."""
        given = await read_json(request)
        if not isinstance(given, dict):
            raise Wrong(400, "policies: expected a mapping of stages, or a bundle")
        if "format" in given:
            _no_files(given.get("policies"), "policies")
            given = dict(Bundle.read(given).policies)
        _no_files(given, "policies")
        self.orders.give("swap", given)
        return self._json(self._policies())

    # --- a canary ----------------------------------------------------------------------------------------------------

    async def canary(self, request: Request) -> StreamResponse:
        return self._json({"version": self.plane.version, "canary": self.watch.status()})

    async def put_canary(self, request: Request) -> StreamResponse:
        """Replace the canary; its keys are those of the gateway's file."""
        given = await read_json(request)
        if not isinstance(given, dict):
            raise Wrong(400, "canary: expected a mapping, as in the gateway's file")
        _no_files(given, CANARY)
        self.orders.give("swap", {**lasting(self.plane.policies), CANARY: given})
        return self._json(self._policies())

    async def delete_canary(self, request: Request) -> StreamResponse:
        """End the canary; the policies in force keep their state."""
        if CANARY not in self.plane.policies:
            raise Wrong(404, "there is no canary")
        self.orders.give("halt", "by the admin API")
        return self._json(self._policies())

    # --- candidates beside it ----------------------------------------------------------------------------------------

    async def shadows(self, request: Request) -> StreamResponse:
        return self._json({"shadows": self.candidates.status()})

    async def put_shadow(self, request: Request) -> StreamResponse:
        name, there = request.match_info["name"], self.candidates
        if name in there.sources["file"]:
            raise Wrong(409, f"shadow.{name}: is named by the gateway's file; change it there")
        given = await read_json(request)
        if not isinstance(given, dict):
            raise Wrong(400, f"shadow.{name}: expected a mapping of stages, or a bundle")
        _no_files(given, f"shadow.{name}")
        spec = CandidateSpec.read(given, f"shadow.{name}")
        known = name in there.candidates
        self._offer_shadows({**there.sources["admin"], name: spec})
        return self._json(there.candidates[name].status(), 200 if known else 201)

    async def delete_shadow(self, request: Request) -> StreamResponse:
        name, sources = request.match_info["name"], self.candidates.sources
        if name in sources["file"]:
            raise Wrong(409, f"shadow.{name}: is named by the gateway's file; take it out there")
        if name not in sources["admin"]:
            raise Wrong(404, f"there is no shadow {name!r}")
        self._offer_shadows({one: spec for one, spec in sources["admin"].items() if one != name})
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


def _no_files(value: Any, where: str) -> None:
    """Refuse documents from the network that name a file of this machine."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "path":
                raise HeadwayError(f"{where}.path: no file is read for the admin API; give the source itself.")
            if key == "policies" and isinstance(inner, str):
                raise HeadwayError(f"{where}.policies: no file is read for the admin API; give the bundle itself.")
            _no_files(str(key), where)
            _no_files(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _no_files(inner, f"{where}[{place}]")
    elif isinstance(value, str) and is_file(value):
        raise HeadwayError(f"{where}: {shown(value)} is a file, and none is run for the admin API; name a policy.")
