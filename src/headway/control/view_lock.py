"""Locks the views while a policy is called, so that a policy that writes to a view gets an error.

While a view is locked, its class is a subclass that refuses writes. This costs two assignments per view and call, so a
run locks its views only for its first `DECISIONS` decisions. A lock cannot refuse changes inside a list or dict that a
view contains. Therefore it copies these containers before the call and compares them afterwards.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePath
from traceback import walk_tb
from typing import Any, Final, NoReturn

from headway.errors import HeadwayError
from headway.policies.user_policies import ours, outside
from headway.types import Path, Request
from headway.views.cluster import ClusterView, TenantView
from headway.views.instance import NO_TIERS, InstanceView
from headway.views.pool import PoolView

DECISIONS: Final = 200  # number of decisions of a run during which the views are locked
ADVICE: Final = "A policy must not change views, requests or events. Store values in the policy's own attributes."
VIEWS: Final = "headway.views."
IMMUTABLE: Final = "immutable type: "  # start of Python's error message for a write to a request or event
TIERS: Final = ("tier_blocks", "tier_used")  # the fields of an instance that contain a dict
_set = object.__setattr__
Container = tuple[str, Any, Any]  # (field name, the field's list, dict or path, a copy made before the call)


class WriteRefused(Exception):
    """Raised inside a policy that writes to a locked view. The message is the name of the field."""


class ViewLock:
    """Calls policies while the views are locked. `left` is the number of decisions until the views are no
    longer locked. Calls of the policies in `trusted` do not lock the views."""

    def __init__(
        self, instances: Sequence[InstanceView], cluster: ClusterView | None = None, pools: Sequence[PoolView] = ()
    ) -> None:
        self.instances: Sequence[Any] = instances
        self.pools: Sequence[Any] = pools
        self.cluster: Any = cluster
        self.left = DECISIONS
        self.trusted: dict[int, Any] = {}  # id of a policy -> the policy
        self._tenants: _LockedTenants | None = None

    def trust(self, policies: Sequence[Any]) -> None:
        """Trust Headway's own policies among `policies`, because the suites of `headway.testing` check them."""
        self.trusted.update((id(policy), policy) for policy in policies if ours(policy))

    def call(self, policy: Any, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a policy. If the call writes to a view, a request or an event, raise an error that names the
        policy, the field and the request."""
        if id(policy) in self.trusted:
            return method(*arguments)
        containers = self._containers(arguments[0])
        self._lock()
        try:
            answer = method(*arguments)
        except (WriteRefused, AttributeError) as error:
            field = _refused_field(error)
            if field is None:
                raise
            raise _written(policy, field, arguments[0], error) from error
        finally:
            self._unlock()
        for field, container, before in containers:
            unchanged = container == before  # `Path` does not define `!=`
            if not unchanged:
                _restore(container, before)
                raise _written(policy, field, arguments[0])
        return answer

    def _lock(self) -> None:
        for view in self.instances:
            view.__class__ = _locked(view.__class__)
        for pool in self.pools:
            pool.__class__ = _locked(pool.__class__)
        cluster = self.cluster
        if cluster is not None:
            if cluster._tenants is not None:
                cluster._tenants = self._tenants = _LockedTenants(cluster._tenants)
            if cluster._totals is not None:
                cluster._totals.__class__ = _locked(cluster._totals.__class__)
            cluster.__class__ = _locked(cluster.__class__)

    def _unlock(self) -> None:
        for view in self.instances:
            _set(view, "__class__", view._plain)
        for pool in self.pools:
            _unlock(pool)
        cluster = self.cluster
        if cluster is not None:
            _unlock(cluster)
            if cluster._totals is not None:
                _unlock(cluster._totals)
            if self._tenants is not None:
                cluster._tenants = self._tenants.unlock()
                self._tenants = None

    def _containers(self, subject: Any) -> list[Container]:
        """Return the lists and dicts that a policy can reach through the views and through `subject`, the first
        argument of the call."""
        # All views without stores share NO_TIERS.
        containers: list[Container] = [("InstanceView.tier_used", NO_TIERS, {})]
        for view in [view for view in self.instances if view.tier_blocks]:
            for name in TIERS:
                if name not in view.hidden:
                    blocks = getattr(view, name)
                    containers.append((f"InstanceView.{name} of {view.id}", blocks, dict(blocks)))
        containers += [("PoolView.history", pool.samples, list(pool.samples)) for pool in self.pools]
        if isinstance(subject, Request):
            path = subject.path
            containers.append(("Request.path", path, Path(path.keys, path.ends)))
        if self.cluster is not None and (hints := self.cluster.priority.hints):
            containers.append(("Priority.hints", hints, dict(hints)))
        return containers


def _refuse(view: Any, name: str, value: object = None) -> NoReturn:
    kind = next(cls.__name__ for cls in type(view).__mro__ if cls.__module__.startswith(VIEWS))
    raise WriteRefused(f"{kind}.{name}{f' of {view.id}' if hasattr(view, 'id') else ''}")


def _reduce(view: Any, protocol: Any) -> tuple[Any, ...]:
    """Let a policy copy a locked view: the copy is not locked."""
    make, arguments, *rest = view._plain.__reduce_ex__(view, protocol)
    return make, tuple(view._plain if value is type(view) else value for value in arguments), *rest


@cache
def _locked(cls: type[Any]) -> Any:
    """Return a subclass that refuses writes and has the same layout, so that a view can switch between both classes."""
    body = {"__slots__": (), "__setattr__": _refuse, "__delattr__": _refuse, "__reduce_ex__": _reduce, "_plain": cls}
    return type(cls.__name__, (cls,), {**body, "__module__": cls.__module__})


def _unlock(view: Any) -> None:
    _set(view, "__class__", view._plain)


class _LockedTenants(Mapping[str, TenantView]):
    """The tenants of a router. There may be many tenants, so only the tenants that a policy looks up are locked."""

    def __init__(self, tenants: Mapping[str, TenantView]) -> None:
        self._plain = tenants
        self._looked_up: dict[str, TenantView] = {}

    def __getitem__(self, name: str) -> TenantView:
        tenant = self._looked_up.get(name)
        if tenant is None:
            tenant = self._looked_up[name] = self._plain[name]
            tenant.__class__ = _locked(TenantView)
        return tenant

    def __contains__(self, name: object) -> bool:
        return name in self._plain

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)

    def unlock(self) -> Mapping[str, TenantView]:
        for tenant in self._looked_up.values():
            _unlock(tenant)
        return self._plain


def _restore(container: Any, before: Any) -> None:
    if isinstance(container, Path):
        container.keys, container.ends = before.keys, before.ends
    elif isinstance(container, dict):
        container.clear()
        container.update(before)
    else:
        container[:] = before


def _refused_field(error: Exception) -> str | None:
    """Return the field to which a policy has tried to write. If the error has another cause, return None."""
    if isinstance(error, WriteRefused):
        return str(error)
    if not str(error).startswith(IMMUTABLE):
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    writes = (step for step in dis.get_instructions(trace.tb_frame.f_code) if step.offset == trace.tb_lasti)
    name = next((f".{step.argval}" for step in writes if step.opname == "STORE_ATTR"), "")
    return str(error).removeprefix(IMMUTABLE).strip("'") + name


def _written(policy: Any, field: str, subject: Any, error: Exception | None = None) -> HeadwayError:
    """Return the error that names the policy, the field and the request."""
    frames = [] if error is None else list(walk_tb(error.__traceback__))
    callers = [frame.f_locals.get("self") for frame, _ in frames]
    parts = (*callers, policy, *getattr(policy, "_parts", ()))
    name = next(
        (type(part).__name__ for part in parts if part is not None and outside(type(part))), type(policy).__name__
    )
    place = ""
    if frames:
        frame, line = frames[-2] if isinstance(error, WriteRefused) else frames[-1]
        place = f" in {PurePath(frame.f_code.co_filename).name} line {line}"
    return HeadwayError(f"policies: {name} writes to {field}{place}{_at(subject)}. {ADVICE}")


def _at(subject: Any) -> str:
    if isinstance(subject, PoolView):
        return f", for pool {subject.id} at {subject.now:g} s"
    request = subject if isinstance(subject, Request) else getattr(subject, "request", None)
    return f", at request {request.id}" if isinstance(request, Request) else ""
