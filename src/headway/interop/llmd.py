"""A weighted profile as llm-d's `EndpointPickerConfig`, and one of these as a weighted profile.

What only one side has is refused where the decisions hang on it, and told in a sentence where they do not.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from msgspec import Struct

from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import llmd_plugins as plugins
from headway.interop.llmd_plugins import FILTERS, HANDLER, PICKERS, PRODUCER, PRODUCER_NAME, SCORERS, ours, theirs
from headway.interop.noted import Notes, Reading
from headway.policies.profile import DEFAULT
from headway.policies.registry import DEFAULT_POLICIES
from headway.scenario.scenario import Policies
from headway.types import Json

KIND: Final = "EndpointPickerConfig"
VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"
VERSIONS: Final = (VERSION, "llm-d.ai/v1alpha1", "llm-d.ai/v1")
SCHEDULING: Final = ("-scorer", "-filter", "-picker")  # how the types of plugins end that a profile names
ELSEWHERE: Final = {  # sections that do not say where a request goes
    "featureGates": "feature gates",
    "dataLayer": "where signals come from is `signals` and `events` of a gateway's file",
    "flowControl": "flow control is policies.flow",
    "requestHandler": "how requests are parsed is not configured",
    "parser": "how requests are parsed is not configured",
    "saturationDetector": "what saturation is, is a matter of policies.admission and policies.flow",
}


class Exported(Struct, frozen=True):
    document: Json
    notes: list[str]

    @property
    def text(self) -> str:
        return str(yaml.safe_dump(self.document, sort_keys=False))


# --- ours to theirs ---------------------------------------------------------------------------------------------------


def export_profile(routing: Any) -> Exported:
    """`routing` as a scenario has it under `policies`."""
    where = "policies.routing"
    profile = Policies(routing=routing).explicit("routing")
    if profile["name"] != "weighted":
        raise HeadwayError(f"{where}: llm-d has weighted profiles alone, and this is {shown(profile['name'])}.")
    notes = Notes()
    made = _Config(notes)
    for item in profile["filters"]:
        known = ours(FILTERS, item["name"]) is not None
        made.add(FILTERS, "filters", item, plugins.filter_parameters(item, f"{where}.filters") if known else {}, None)
    for item in profile["scorers"]:
        parameters = plugins.scorer_parameters(item["name"], item, notes)
        made.add(SCORERS, "scorers", item, parameters, item["weight"])
    picker = profile["picker"]
    if picker.get("seed") is not None:
        notes.add("weighted-random: the seed has no counterpart.")
    made.add(PICKERS, "picker", picker, {}, None)
    return Exported(made.document(), notes.sentences)


class _Config:
    """A configuration as it is built up."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.indexes: dict[tuple[int, int], list[Json]] = {}  # plugins that ask a prefix index, by its figures
        self.plugins: list[Json] = []
        self.profile: list[Json] = []

    def add(self, parts: tuple[plugins.Part, ...], stage: str, item: Json, parameters: Json, weight: Any) -> None:
        part = ours(parts, item["name"])
        if part is None:
            known = ", ".join(one.name for one in parts)
            raise HeadwayError(
                f"policies.routing.{stage}: {shown(item['name'])} has no counterpart in llm-d. With one: {known}."
            )
        if any(plugin["type"] == part.type for plugin in self.plugins):
            raise HeadwayError(f"policies.routing.{stage}: {part.name} is given twice; llm-d's plugins have one name.")
        if part.differs:
            self.notes.add(part.differs)
        plugin: Json = {"type": part.type}
        if parameters:
            plugin["parameters"] = parameters
        if part.prefixed:
            self.indexes.setdefault((item["block_tokens"], item["lru_blocks"]), []).append(plugin)
        self.plugins.append(plugin)
        self.profile.append({"pluginRef": part.type} | ({} if weight is None else {"weight": weight}))

    def document(self) -> Json:
        producers = []
        for (block_tokens, lru_blocks), askers in self.indexes.items():
            parameters = plugins.producer_parameters(block_tokens, lru_blocks, self.notes)
            if len(self.indexes) == 1:
                producers.append({"type": PRODUCER, "parameters": parameters})
                continue
            name = f"prefix-{block_tokens}-{lru_blocks}"
            producers.append({"name": name, "type": PRODUCER, "parameters": parameters})
            for plugin in askers:
                plugin["parameters"] = {**plugin.get("parameters", {}), PRODUCER_NAME: name}
        return {
            "apiVersion": VERSION,
            "kind": KIND,
            "plugins": [*producers, *self.plugins, {"type": HANDLER}],
            "schedulingProfiles": [{"name": "default", "plugins": self.profile}],
        }


# --- theirs to ours ---------------------------------------------------------------------------------------------------


class _Keys(Struct):
    apiVersion: str
    kind: str
    plugins: list[dict[str, Any]] | None = None
    schedulingProfiles: list[dict[str, Any]] | None = None
    featureGates: Any = None
    dataLayer: Any = None
    flowControl: Any = None
    requestHandler: Any = None
    parser: Any = None
    saturationDetector: Any = None


class _Plugin(Struct):
    type: str
    name: str | None = None
    parameters: Any = None


class _Profile(Struct):
    name: str
    plugins: list[dict[str, Any]] = []


class _Ref(Struct):
    pluginRef: str
    weight: float | int | None = None


class Imported(Struct, frozen=True):
    routing: Json
    notes: list[str]

    @property
    def text(self) -> str:
        return str(yaml.safe_dump({"policies": {"routing": self.routing}}, sort_keys=False))


def import_config(document: Any, where: str, profile: str | None = None) -> Imported:
    """The weighted routing policy of a configuration, of the profile of that name where it has several."""
    keys = read(_Keys, document, where)
    if keys.kind != KIND:
        raise HeadwayError(f"{where}.kind: expected {KIND}, got {shown(keys.kind)}.")
    if keys.apiVersion not in VERSIONS:
        raise HeadwayError(f"{where}.apiVersion: expected one of {', '.join(VERSIONS)}, got {shown(keys.apiVersion)}.")
    notes = Notes()
    for name, told in ELSEWHERE.items():
        if getattr(keys, name) is not None:
            notes.add(f"{name} is left out: {told}.")
    reader = _Reader(keys, where, notes)
    return Imported(reader.routing(profile), notes.sentences)


class _Reader:
    def __init__(self, keys: _Keys, where: str, notes: Notes) -> None:
        self.where, self.notes = where, notes
        self.plugins: dict[str, tuple[_Plugin, str]] = {}
        for at, given in enumerate(keys.plugins or []):
            place = f"{where}.plugins[{at}]"
            plugin = read(_Plugin, given, place)
            name = plugin.name or plugin.type
            if name in self.plugins:
                raise HeadwayError(f"{place}: there are two plugins called {shown(name)}; give one another name.")
            self.plugins[name] = (plugin, place)
        self.profiles = [
            read(_Profile, given, f"{where}.schedulingProfiles[{at}]")
            for at, given in enumerate(keys.schedulingProfiles or [])
        ]

    def routing(self, wanted: str | None) -> Json:
        refs, place = self._refs(wanted)
        self._tell_rest([ref.pluginRef for ref in refs])
        if not refs:
            self.notes.add("no scorers are named; these are the scorers that llm-d takes then.")
            return {"name": "weighted", "scorers": DEFAULT, "picker": "max-score"}
        scorers: Json = {}
        filters: list[Json] = []
        picker: str | None = None
        for at, ref in enumerate(refs):
            plugin, where = self._plugin(ref.pluginRef, f"{place}.plugins[{at}].pluginRef")
            if theirs(SCORERS, plugin.type):
                self._scorer(scorers, plugin, where, ref)
            elif theirs(FILTERS, plugin.type):
                filters.append(self._filter(plugin, where))
            elif part := theirs(PICKERS, plugin.type):
                plugins.read_picker(plugins.parameters_of({"parameters": plugin.parameters}, where), self.notes)
                picker = self._said(part)
            else:
                self._other(plugin, where)
        if not scorers:
            raise HeadwayError(f"{place}: has no scorer; the routing policy {DEFAULT_POLICIES['routing']} needs none.")
        found: Json = {"name": "weighted", "scorers": scorers}
        if filters:
            found["filters"] = filters
        found["picker"] = picker or self._said(PICKERS[0])
        Policies(routing=found).explicit("routing")  # what is wrong with it is told here
        return found

    def _refs(self, wanted: str | None) -> tuple[list[_Ref], str]:
        if not self.profiles:  # llm-d makes one of all plugins then
            return [_Ref(name) for name, (one, _) in self.plugins.items() if one.type.endswith(SCHEDULING)], self.where
        names = ", ".join(profile.name for profile in self.profiles)
        several, place = len(self.profiles) > 1, f"{self.where}.schedulingProfiles"
        if wanted is None and several:
            raise HeadwayError(f"{place}: there are several; say --profile, one of {names}.")
        found = next((profile for profile in self.profiles if wanted in (None, profile.name)), None)
        if found is None:
            raise HeadwayError(f"{place}: none is called {shown(wanted)}. Known: {names}.")
        if several:
            self.notes.add(f"only the profile {found.name} is read, of {names}.")
        place = f"{place}[{self.profiles.index(found)}]"
        return [read(_Ref, one, f"{place}.plugins[{at}]") for at, one in enumerate(found.plugins)], place

    def _tell_rest(self, taken: list[str]) -> None:
        """Plugins that have no part in the profile, but for those that the profile's scorers ask."""
        known = (PRODUCER, plugins.PRECISE, HANDLER)
        rest = [name for name, (one, _) in self.plugins.items() if name not in taken and one.type not in known]
        if rest:
            self.notes.add(f"left out, as the profile does not name them: {', '.join(rest)}.")

    def _plugin(self, name: str, place: str) -> tuple[_Plugin, str]:
        if name not in self.plugins:
            raise HeadwayError(f"{place}: no plugin is called {shown(name)}. Known: {', '.join(self.plugins)}.")
        return self.plugins[name]

    def _said(self, part: plugins.Part) -> str:
        if part.differs:
            self.notes.add(part.differs)
        return part.name

    def _scorer(self, scorers: Json, plugin: _Plugin, where: str, ref: _Ref) -> None:
        part = theirs(SCORERS, plugin.type)
        assert part is not None
        weight = 1 if ref.weight is None else ref.weight
        if weight == 0:
            self.notes.add(f"{ref.pluginRef} has the weight 0 and is left out.")
            return
        if part.name in scorers:
            raise HeadwayError(f"{where}: {part.name} would be there twice; it can have one weight and one index.")
        given = plugins.parameters_of({"parameters": plugin.parameters}, where)
        found = self._index(given) if part.prefixed else {}
        found |= plugins.read_scorer(plugin.type, given, self.notes)
        plain = int(weight) if isinstance(weight, float) and weight.is_integer() else weight
        scorers[self._said(part)] = {"weight": plain, **found} if found else plain

    def _index(self, given: Reading) -> Json:
        named = given.text(PRODUCER_NAME)
        if named is not None:
            plugin, where = self._plugin(named, given.place(PRODUCER_NAME))
        else:
            makers = [one for one in self.plugins.values() if one[0].type in (PRODUCER, plugins.PRECISE)]
            plugin, where = makers[0] if makers else (_Plugin(PRODUCER), self.where)
        if plugin.type == plugins.PRECISE:
            self.notes.add(f"{plugins.PRECISE} follows the engines' KV events, as `events` of a gateway's file does.")
            return {}
        parameters = plugins.parameters_of({"parameters": plugin.parameters}, where)
        return plugins.prefix_index(parameters.left, parameters.where, self.notes)

    def _filter(self, plugin: _Plugin, where: str) -> Json:
        part = theirs(FILTERS, plugin.type)
        assert part is not None
        given = plugins.parameters_of({"parameters": plugin.parameters}, where)
        return {"name": self._said(part), **plugins.read_filter(given, self.notes)}

    def _other(self, plugin: _Plugin, where: str) -> None:
        if plugin.type in plugins.ROLE_FILTERS:
            self.notes.add(f"{plugin.type} is left out: here the roles of instances say which of them serve.")
            return
        known = ", ".join(part.type for part in (*SCORERS, *FILTERS, *PICKERS))
        raise HeadwayError(f"{where}.type: {shown(plugin.type)} has no counterpart here. With one: {known}.")
