"""A weighted profile as llm-d's `EndpointPickerConfig`, and one of these as a weighted profile.

What only one side has is refused where the decisions hang on it, and told in a sentence where they do not.
"""

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.documents import beside, read_yaml
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import llmd_plugins as plugins
from headway.interop.llmd_plugins import (
    FILTERS,
    HANDLER,
    PICKERS,
    PRODUCER,
    PRODUCER_NAME,
    SCORERS,
    Parameters,
    ours,
    theirs,
)
from headway.interop.translation import Notes, Translation
from headway.policies.bundle import Bundle
from headway.policies.profile import DEFAULT
from headway.policies.registry import DEFAULT_POLICIES
from headway.scenario.scenario import Policies, Scenario
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


# --- ours to theirs ---------------------------------------------------------------------------------------------------


def routing_of(source: str) -> Any:
    """The routing policy of a scenario, a bundle, a gateway's file, policies by stage or a policy alone; or scorers as
    text, such as `prefix-affinity:3,queue-depth:2`."""
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in (".yaml", ".yml") or ":" not in source:
            raise HeadwayError(f"{source}: there is no such file, and it is no text of scorers and weights either.")
        return {"name": "weighted", "scorers": source}
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise HeadwayError(f"{source}: expected a scenario, a bundle or policies, got {shown(data)}.")
    if "workload" in data or "preset" in data:
        return Scenario.load(path).policies.routing
    policies = data.get("policies", data)
    if "format" in data:
        policies = Bundle.read(str(path)).policies
    elif isinstance(policies, str):
        policies = Bundle.read(beside(policies, path)).policies
    if not isinstance(policies, dict):
        raise HeadwayError(f"{source}: policies: expected a mapping of stages, got {shown(policies)}.")
    if "routing" in policies:
        return policies["routing"]
    if "name" in policies or "scorers" in policies:
        return {"name": "weighted", **policies}
    raise HeadwayError(f"{source}: says nothing of policies.routing.")


def export_profile(routing: Any) -> Translation:
    """`routing` as a scenario has it under `policies`."""
    where = "policies.routing"
    profile = Policies(routing=routing).explicit("routing")
    if profile["name"] != "weighted":
        raise HeadwayError(f"{where}: llm-d has weighted profiles alone, and this is {shown(profile['name'])}.")
    notes = Notes()
    config = _Config(notes)
    for item in profile["filters"]:
        known = ours(FILTERS, item["name"]) is not None
        config.add(FILTERS, "filters", item, plugins.filter_parameters(item, f"{where}.filters") if known else {}, None)
    for item in profile["scorers"]:
        parameters = plugins.scorer_parameters(item["name"], item, notes)
        config.add(SCORERS, "scorers", item, parameters, item["weight"])
    picker = profile["picker"]
    if picker.get("seed") is not None:
        notes.add("weighted-random: the seed has no counterpart.")
    config.add(PICKERS, "picker", picker, {}, None)
    return Translation(config.document(), notes.sentences)


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
            known = ", ".join(each.name for each in parts)
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


def import_config(document: Any, where: str, profile: str | None = None) -> Translation:
    """The weighted routing policy of a configuration, under `policies`; of that profile where it has several."""
    keys = read(_Keys, document, where)
    if keys.kind != KIND:
        raise HeadwayError(f"{where}.kind: expected {KIND}, got {shown(keys.kind)}.")
    if keys.apiVersion not in VERSIONS:
        raise HeadwayError(f"{where}.apiVersion: expected one of {', '.join(VERSIONS)}, got {shown(keys.apiVersion)}.")
    notes = Notes()
    for name, why in ELSEWHERE.items():
        if getattr(keys, name) is not None:
            notes.add(f"{name} is left out: {why}.")
    routing = _Reader(keys, where, notes).routing(profile)
    return Translation({"policies": {"routing": routing}}, notes.sentences)


class _Reader:
    def __init__(self, keys: _Keys, where: str, notes: Notes) -> None:
        self.where, self.notes = where, notes
        self.plugins: dict[str, tuple[_Plugin, str]] = {}
        for at, plugin_keys in enumerate(keys.plugins or []):
            place = f"{where}.plugins[{at}]"
            plugin = read(_Plugin, plugin_keys, place)
            name = plugin.name or plugin.type
            if name in self.plugins:
                raise HeadwayError(f"{place}: there are two plugins called {shown(name)}; give one another name.")
            self.plugins[name] = (plugin, place)
        self.profiles = [
            read(_Profile, profile, f"{where}.schedulingProfiles[{at}]")
            for at, profile in enumerate(keys.schedulingProfiles or [])
        ]

    def routing(self, profile: str | None) -> Json:
        refs, place = self._refs(profile)
        self._note_rest([ref.pluginRef for ref in refs])
        if not refs:
            self.notes.add("no scorers are named; these are the scorers that llm-d takes then.")
            return {"name": "weighted", "scorers": DEFAULT, "picker": "max-score"}
        scorers: Json = {}
        filters: list[Json] = []
        picker: str | None = None
        for at, ref in enumerate(refs):
            plugin, where = self._plugin(ref.pluginRef, f"{place}.plugins[{at}].pluginRef")
            if part := theirs(SCORERS, plugin.type):
                self._scorer(scorers, part, plugin, where, ref)
            elif part := theirs(FILTERS, plugin.type):
                parameters = plugins.read_filter(Parameters(plugin.parameters, where), self.notes)
                filters.append({"name": self._name(part), **parameters})
            elif part := theirs(PICKERS, plugin.type):
                plugins.read_picker(Parameters(plugin.parameters, where), self.notes)
                picker = self._name(part)
            else:
                self._other(plugin, where)
        if not scorers:
            raise HeadwayError(f"{place}: has no scorer; the routing policy {DEFAULT_POLICIES['routing']} needs none.")
        routing: Json = {"name": "weighted", "scorers": scorers}
        if filters:
            routing["filters"] = filters
        routing["picker"] = picker or self._name(PICKERS[0])
        Policies(routing=routing).explicit("routing")  # reports what is wrong with it
        return routing

    def _refs(self, name: str | None) -> tuple[list[_Ref], str]:
        if not self.profiles:  # llm-d makes one of all plugins then
            types = {name: plugin.type for name, (plugin, _) in self.plugins.items()}
            return [_Ref(name) for name, type_ in types.items() if type_.endswith(SCHEDULING)], self.where
        names = ", ".join(profile.name for profile in self.profiles)
        several, place = len(self.profiles) > 1, f"{self.where}.schedulingProfiles"
        if name is None and several:
            raise HeadwayError(f"{place}: there are several; say --profile, one of {names}.")
        profile = next((profile for profile in self.profiles if name in (None, profile.name)), None)
        if profile is None:
            raise HeadwayError(f"{place}: none is called {shown(name)}. Known: {names}.")
        if several:
            self.notes.add(f"only the profile {profile.name} is read, of {names}.")
        place = f"{place}[{self.profiles.index(profile)}]"
        return [read(_Ref, ref, f"{place}.plugins[{at}]") for at, ref in enumerate(profile.plugins)], place

    def _note_rest(self, names: list[str]) -> None:
        """Plugins that have no part in the profile, but for those that the profile's scorers ask."""
        known = (PRODUCER, plugins.PRECISE, HANDLER)
        rest = [name for name, (plugin, _) in self.plugins.items() if name not in names and plugin.type not in known]
        if rest:
            self.notes.add(f"left out, as the profile does not name them: {', '.join(rest)}.")

    def _plugin(self, name: str, place: str) -> tuple[_Plugin, str]:
        if name not in self.plugins:
            raise HeadwayError(f"{place}: no plugin is called {shown(name)}. Known: {', '.join(self.plugins)}.")
        return self.plugins[name]

    def _name(self, part: plugins.Part) -> str:
        """Our name of a part; how llm-d's differs is noted."""
        if part.differs:
            self.notes.add(part.differs)
        return part.name

    def _scorer(self, scorers: Json, part: plugins.Part, plugin: _Plugin, where: str, ref: _Ref) -> None:
        weight = 1 if ref.weight is None else ref.weight
        if weight == 0:
            self.notes.add(f"{ref.pluginRef} has the weight 0 and is left out.")
            return
        if part.name in scorers:
            raise HeadwayError(f"{where}: {part.name} would be there twice; it can have one weight and one index.")
        parameters = Parameters(plugin.parameters, where)
        index = self._index(parameters) if part.prefixed else {}
        plugins.check_scorer(plugin.type, parameters, self.notes)
        plain = int(weight) if isinstance(weight, float) and weight.is_integer() else weight
        scorers[self._name(part)] = {"weight": plain, **index} if index else plain

    def _index(self, parameters: Parameters) -> Json:
        name = parameters.text(PRODUCER_NAME)
        if name is not None:
            plugin, where = self._plugin(name, parameters.place(PRODUCER_NAME))
        else:
            makers = [maker for maker in self.plugins.values() if maker[0].type in (PRODUCER, plugins.PRECISE)]
            plugin, where = makers[0] if makers else (_Plugin(PRODUCER), self.where)
        if plugin.type == plugins.PRECISE:
            self.notes.add(f"{plugins.PRECISE} follows the engines' KV events, as `events` of a gateway's file does.")
            return {}
        return plugins.prefix_index(Parameters(plugin.parameters, where), self.notes)

    def _other(self, plugin: _Plugin, where: str) -> None:
        if plugin.type in plugins.ROLE_FILTERS:
            self.notes.add(f"{plugin.type} is left out: here the roles of instances say which of them serve.")
            return
        known = ", ".join(part.type for part in (*SCORERS, *FILTERS, *PICKERS))
        raise HeadwayError(f"{where}.type: {shown(plugin.type)} has no counterpart here. With one: {known}.")
