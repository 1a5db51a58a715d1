"""The `speculation:` section: how an engine drafts tokens, and how many of its drafts it accepts."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway import latency
from headway.config.keys import DURATION, Doc, Form, Positive
from headway.config.section import read
from headway.config.units import duration_ps
from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.latency import ModelShape, ModelSpec
from headway.latency.exact_numbers import positive, share
from headway.latency.kv_layers import KvLayers, find_layers
from headway.latency.verification import UNITS, Verification
from headway.types import Json

MOST_TOKENS: Final = 64
DEFAULT_CLASS: Final = "default"  # the entry for requests of all classes without an entry
RATE: Final = {"type": ["number", "string"], "minimum": 0, "maximum": 1}
RATES: Final = {"anyOf": [RATE, {"type": "array", "items": RATE, "minItems": 1, "maxItems": MOST_TOKENS}]}
LENGTH: Final = {"type": ["number", "string"], "minimum": 1, "maximum": MOST_TOKENS + 1}


def _by_class(schema: Json) -> Form:
    classes = {
        "type": "object",
        "properties": {DEFAULT_CLASS: schema},
        "required": [DEFAULT_CLASS],
        "additionalProperties": schema,
    }
    return Form.of({"anyOf": [schema, classes]})


def _probability(value: object, where: str) -> Fraction:
    if value == 0 and not isinstance(value, bool):
        return Fraction(0)
    try:
        return share(value, where)
    except HeadwayError as error:
        raise HeadwayError(f"{where}: must lie between 0 and 1, got {shown(value)}.") from error


class Draft(Struct, frozen=True):
    """What computes the drafts on the engine's GPUs: layers of the target's kind (an MTP or EAGLE head), or a model."""

    layers: Annotated[Positive | None, Doc("layers of the draft head, each like one of the model", default="–")] = None
    model: Annotated[ModelSpec, Doc("a draft model with its own layers", default="–", type="name or mapping")] = None

    def validate(self, where: str) -> Draft:
        if (self.layers is None) == (self.model is None):
            raise HeadwayError(f"{where}: set either 'layers', such as 1 for an MTP or EAGLE head, or 'model'.")
        if self.model is not None:
            latency.read_model(self.model, f"{where}.model")
        return self

    def shape(self, target: ModelShape, where: str) -> ModelShape:
        """Return the shape of the model that drafts. The weights of a head are its share of the target's layers. Its
        layers keep every token, or a latent vector of it if the target has such layers."""
        if self.layers is None:
            return latency.read_model(self.model, f"{where}.model")
        part = Fraction(self.layers, target.layers)
        latent = find_layers(target.kv_groups, "latent")
        return replace(
            target,
            layers=self.layers,
            kv_groups=() if latent is None else (replace(latent, layers=self.layers),),
            dense_layers=0,
            weight_bytes=round(target.weight_bytes * part),
            kv_bytes_per_token=max(1, round(target.kv_bytes_per_token * part)),
        )


class Speculation(Struct, frozen=True):
    """Speculative decoding: each decode verifies drafts of its next tokens in every step."""

    tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS), "drafts of a decode per step; 0: no speculation"]
    acceptance: Annotated[
        Any,
        _by_class(RATES),
        Doc(
            "probability that a draft is accepted if all before it are: for all positions, or a list by position. A "
            "mapping gives it by SLO class, with an entry `default`",
            default="–",
            type="number, list or mapping",
        ),
    ] = None
    length: Annotated[
        Any,
        _by_class(LENGTH),
        Doc(
            "instead of `acceptance`: mean tokens of a decode per step (vLLM: mean acceptance length), or a mapping by "
            "SLO class",
            default="–",
            type="number or mapping",
        ),
    ] = None
    draft: Annotated[
        Any,
        Form.of(Literal["ngram"], DURATION, Draft),
        Doc(
            "what drafts: ngram (takes no GPU time), `{layers: 1}` (an MTP or EAGLE head), `{model: NAME}`, or the "
            "duration that drafting adds to a step with decodes",
            type="text or mapping",
        ),
    ] = "ngram"

    def validate(self, where: str) -> Speculation:
        if self.drafter(where) is None:
            self._draft_ps(where)
        if self.tokens:
            self.rates(where)
        return self

    def rates(self, where: str) -> dict[str, int]:
        """Return the tokens that a decode gains per step by SLO class, in units of 1/64 token. They are rounded to
        whole units."""
        if (self.acceptance is None) == (self.length is None):
            raise HeadwayError(f"{where}: set either 'acceptance', such as 0.7, or 'length', such as 2.4.")
        name = "acceptance" if self.length is None else "length"
        value = getattr(self, name)
        parse = self._gained if self.length is None else self._mean
        if not isinstance(value, dict):
            return {DEFAULT_CLASS: round(parse(value, f"{where}.{name}") * UNITS)}
        if DEFAULT_CLASS not in value:
            raise HeadwayError(f"{where}.{name}: {DEFAULT_CLASS!r} is missing, for requests of all other SLO classes.")
        return {
            str(each): round(parse(rate, f"{where}.{name}.{cut(str(each))}") * UNITS) for each, rate in value.items()
        }

    def _gained(self, value: object, where: str) -> Fraction:
        """Return 1 + p1 + p1·p2 + ..., where p1, p2, ... are the probabilities by position."""
        rates = value if isinstance(value, list) else [value] * self.tokens
        if len(rates) != self.tokens:
            raise HeadwayError(f"{where}: has {len(rates)} positions, but 'tokens' is {self.tokens}; make them equal.")
        gained = reached = Fraction(1)
        for position, rate in enumerate(rates):
            place = f"{where}[{position}]" if isinstance(value, list) else where
            reached *= _probability(rate, place)
            gained += reached
        return gained

    def _mean(self, value: object, where: str) -> Fraction:
        length = positive(value, where)
        if not 1 <= length <= self.tokens + 1:
            raise HeadwayError(f"{where}: must lie between 1 and {self.tokens + 1}, got {shown(value)}.")
        return length

    def _draft_ps(self, where: str) -> int:
        """Return the time that drafting adds to a step, which the key `draft` gives."""
        if self.draft == "ngram":
            return 0
        try:
            return duration_ps(self.draft, f"{where}.draft")
        except HeadwayError as error:
            forms = "ngram, {layers: 1}, {model: NAME} or a duration, such as 1ms"
            raise HeadwayError(f"{where}.draft: expected {forms}, got {shown(self.draft)}.") from error

    def drafter(self, where: str) -> Draft | None:
        """Return what drafts on the GPU. If the cost of drafting is zero or a duration, return None."""
        return read(Draft, self.draft, f"{where}.draft") if isinstance(self.draft, dict) else None

    def loaded(self, target: ModelShape, where: str) -> ModelShape:
        """Return the target with the memory that the draft needs as well: its weights, and its KV cache per token."""
        drafter = self.drafter(where)
        if drafter is None:
            return target
        draft = drafter.shape(target, f"{where}.draft")
        return replace(
            target,
            kv_groups=self._grouped(drafter, target),
            weight_bytes=target.weight_bytes + draft.weight_bytes,
            kv_bytes_per_token=target.kv_bytes_per_token + draft.kv_bytes_per_token,
        )

    def _grouped(self, drafter: Draft, target: ModelShape) -> tuple[KvLayers, ...]:
        """Return the groups of layers of the target, with the layers of a draft head among those of their kind."""
        kinds = target.kv_groups
        if not kinds:
            return kinds
        if drafter.layers is None:
            return kinds
        name = "latent" if find_layers(kinds, "latent") else "full"
        if find_layers(kinds, name) is None:
            return (KvLayers("full", drafter.layers), *kinds)
        return tuple(
            replace(kind, layers=kind.layers + drafter.layers) if kind.kind == name else kind for kind in kinds
        )

    def ahead(self, where: str) -> int:
        """Return for how many tokens beyond its next one a decode needs blocks. Drafts that the GPU computes for the
        next step have keys and values, too."""
        return self.tokens * (1 if self.drafter(where) is None else 2)

    def verification(
        self,
        model: latency.LatencyModel,
        section: Json,
        target: ModelShape,
        card: latency.Gpu,
        tp: int,
        where: str,
        dp: int = 1,
        ep: bool = False,
    ) -> Verification:
        """Return the step times. `section` describes the latency model `model` of the target, on an engine with `dp`
        ranks; with `ep`, GPUs have whole experts."""
        drafter = self.drafter(where)
        if drafter is None:
            return Verification(model, self.tokens, None, self._draft_ps(where))
        if section.get("model", latency.DEFAULT) != latency.DEFAULT:
            wrong = f"only the latency model {latency.DEFAULT!r} knows the time of a draft's layers"
            raise HeadwayError(f"{where}.draft: {wrong}; give a duration, such as 1ms.")
        shape = drafter.shape(target, f"{where}.draft")
        own = {**section, "host": "0s", "host_sequence": "0s"}
        return Verification(model, self.tokens, latency.build(own, shape, card, tp, f"{where}.draft", dp, ep))
