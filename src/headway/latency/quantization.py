"""Read how published weights are quantised: the formats, and the modules that each format applies to."""

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, NoReturn

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError

REMEDY: Final = "write a model mapping with its bytes per weight (dtype_bytes) instead"
FULL: Final = Fraction(2)  # bytes of BF16 and FP16
NEGLIGIBLE: Final = Fraction(1, 1000)  # scales below this share of a byte per weight are not counted


class Format(Struct, frozen=True):
    """How weights are stored, and with which numbers their matmuls compute."""

    weight: Fraction  # bytes per weight, with its share of scales and zero points
    activation: Fraction = FULL  # bytes per number


class Modules:
    """Names of modules in the forms that quantisers write: `lm_head`, `mlp.gate`, `model.layers.*.self_attn`,
    `re:.*mlp.gate$`. A name stands for the module and for all modules inside it."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._plain: set[str] = set()
        patterns: list[str] = []
        for entry in entries:
            if entry.startswith("re:"):
                re.compile(entry[3:])
                patterns.append(entry[3:])
            elif "*" in entry:
                patterns.append(rf"(?:.*\.)?{'.*'.join(map(re.escape, entry.split('*')))}(?:\..*)?$")
            else:
                self._plain.add(entry.strip("."))
        self._first = {entry.partition(".")[0] for entry in self._plain}
        self._pattern = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None
        # Whether an entry may stand for single layers.
        self.numbered = any(character.isdigit() for entry in (*self._plain, *patterns) for character in entry)

    def match(self, name: str) -> bool:
        if self._pattern is not None and self._pattern.match(name):
            return True
        parts = name.split(".") if self._plain else []
        for first, part in enumerate(parts):
            if part in self._first:
                for last in range(first, len(parts)):
                    if ".".join(parts[first : last + 1]) in self._plain:
                        return True
        return False


EVERY: Final = Modules(["*"])


class Scheme(Struct, frozen=True):
    """The quantisation of a model. The first rule that names a module decides its format."""

    rules: tuple[tuple[Modules, Format], ...] = ()
    kept: Modules = Modules(())  # modules that keep 16 bits
    kv: Fraction = FULL  # bytes per number in the KV cache
    head: Format | None = None  # format of the matrix to the vocabulary; None: 16 bits

    @property
    def numbered(self) -> bool:
        """Whether the layers of a model may differ."""
        return self.kept.numbered or any(modules.numbered for modules, _ in self.rules)

    def format_of(self, names: Sequence[str]) -> Format | None:
        """Return the format of a module, which has different names in different families of models. If the module
        keeps 16 bits, return None."""
        if any(self.kept.match(name) for name in names):
            return None
        return next((form for modules, form in self.rules if any(modules.match(name) for name in names)), None)


def refuse(place: str, reason: str) -> NoReturn:
    raise HeadwayError(f"{place}: {reason}; {REMEDY}.")


def read_scheme(data: dict[str, Any], place: str) -> Scheme:
    """Return the quantisation that the section `quantization_config` of a config.json describes."""
    method = str(data.get("quant_method") or "").lower().replace("_", "-")
    reader = READERS.get(method.removesuffix("-marlin"))
    if reader is None:
        named = f"the weights are quantised by {shown(method)}" if method else "'quant_method' is missing"
        refuse(place, f"{named}, and Headway reads {', '.join(sorted(READERS))}")
    try:
        return reader(data, place)
    except (AttributeError, KeyError, TypeError, ValueError, re.error):  # the file comes from another program
        refuse(place, f"the values are not in the form that {method} writes")


def grouped(bits: int, group: int | None, zero_points: bool, scale: int = 2) -> Fraction:
    """Return the bytes per weight of integers in groups, with a scale of `scale` bytes and a zero point for each
    group. A group of None is a whole row or more."""
    size = Fraction(bits, 8)
    return size + (scale + (Fraction(bits, 8) if zero_points else 0)) / Fraction(group) if group else size


NVFP4: Final = grouped(4, 16, False, 1)  # scales in FP8
MXFP4: Final = grouped(4, 32, False, 1)  # scales in 8 bits that are shared by 32 weights


def _fp8(data: dict[str, Any], place: str) -> Scheme:
    block = data.get("weight_block_size")
    size = Fraction(1)
    if block is not None:
        if not isinstance(block, list) or not block or not all(isinstance(side, int) and side > 0 for side in block):
            refuse(place, f"weight_block_size: expected two whole numbers, got {shown(block)}")
        weights = 1
        for side in block:
            weights *= side
        scales = Fraction(4, weights)
        size += scales if scales >= NEGLIGIBLE else 0
    kept = _modules(data, place, "modules_to_not_convert", "ignored_layers", "ignore")
    return Scheme(((EVERY, Format(size, Fraction(1))),), kept, _kv(data, place))


def _mxfp4(data: dict[str, Any], place: str) -> Scheme:
    """Only experts are stored in MXFP4, whatever the list of exceptions says. Matmuls compute in 16 bits."""
    kept = _modules(data, place, "modules_to_not_convert")
    return Scheme(((Modules(["experts"]), Format(MXFP4)),), kept, _kv(data, place))


def _awq(data: dict[str, Any], place: str) -> Scheme:
    bits = _bits(data, place, (4, 8), "bits", "w_bit")
    group = _group(data, place, "group_size", "q_group_size")
    form = Format(grouped(bits, group, data.get("zero_point") is not False))
    return Scheme(((EVERY, form),), _modules(data, place, "modules_to_not_convert"), _kv(data, place))


def _gptq(data: dict[str, Any], place: str) -> Scheme:
    bits, group = _bits(data, place, (2, 3, 4, 8), "bits"), _group(data, place, "group_size")
    form = Format(grouped(bits, group, True))  # zero points are stored for symmetric weights too
    names = data.get("modules_in_block_to_quantize")
    inside = (
        EVERY
        if names is None
        else Modules(name for part in names for name in ([part] if isinstance(part, str) else part))
    )
    kept = list(_names(data, place, "modules_to_not_convert"))
    rules: list[tuple[Modules, Format]] = []
    for pattern, change in (data.get("dynamic") or {}).items():
        name = "re:" + pattern.removeprefix("-:").removeprefix("+:")
        if pattern.startswith("-:"):
            kept.append(name)
        else:
            own = {**data, **change}
            size = grouped(_bits(own, place, (2, 3, 4, 8), "bits"), _group(own, place, "group_size"), True)
            rules.append((_compiled([name], place, "dynamic"), Format(size)))
    rules.append((inside, form))
    head = form if data.get("lm_head") is True else None
    return Scheme(tuple(rules), _compiled(kept, place, "dynamic"), _kv(data, place), head)


def _bitsandbytes(data: dict[str, Any], place: str) -> Scheme:
    if data.get("load_in_4bit") or data.get("_load_in_4bit"):
        # A scale of 4 bytes for 64 weights, or with double quantisation a byte, and 4 bytes for 256 scales.
        double = Fraction(1, 64) + Fraction(4, 64 * 256)
        form = Format(Fraction(1, 2) + (double if data.get("bnb_4bit_use_double_quant") else Fraction(4, 64)))
    elif data.get("load_in_8bit") or data.get("_load_in_8bit"):
        form = Format(Fraction(1), Fraction(1))
    else:
        refuse(place, "neither load_in_4bit nor load_in_8bit is true")
    return Scheme(((EVERY, form),), _modules(data, place, "llm_int8_skip_modules"), _kv(data, place))


# Weights and activations of modelopt's algorithms. Several exist with and without AWQ, which changes no size.
ALGORITHMS: Final = {
    "FP8": Format(Fraction(1), Fraction(1)),
    "FP8_PER_CHANNEL_PER_TOKEN": Format(Fraction(1), Fraction(1)),
    "FP8_PB_WO": Format(Fraction(1)),
    "MXFP8": Format(Fraction(33, 32), Fraction(1)),
    "W8A8_SQ_PER_CHANNEL": Format(Fraction(1), Fraction(1)),
    "NVFP4": Format(NVFP4, Fraction(1, 2)),
    "NVFP4_AWQ": Format(NVFP4, Fraction(1, 2)),
    "W4A8_NVFP4_FP8": Format(NVFP4, Fraction(1)),
    "W4A8_MXFP4_FP8": Format(MXFP4, Fraction(1)),
    "W4A16_AWQ": Format(grouped(4, 128, False)),
    "W4A8_AWQ": Format(grouped(4, 128, False), Fraction(1)),
}


def _modelopt(data: dict[str, Any], place: str) -> Scheme:
    inner = data.get("quantization")
    data = inner if isinstance(inner, dict) else data
    kept = _modules(data, place, "exclude_modules", "ignore", "modules_to_not_convert")
    kv, layers = _kv(data, place), data.get("quantized_layers")
    name = data.get("quant_algo")
    if name is None and not layers:
        return Scheme(kv=kv)
    if str(name).upper() == "MIXED_PRECISION" or layers:
        if not isinstance(layers, dict):
            refuse(place, "quant_algo is MIXED_PRECISION without 'quantized_layers'")
        rules = [(Modules([module]), _algorithm(keys, place)) for module, keys in layers.items()]
        return Scheme(tuple(rules), kept, kv)
    return Scheme(((EVERY, _algorithm(data, place)),), kept, kv)


def _algorithm(data: Any, place: str) -> Format:
    name = str(data.get("quant_algo") if isinstance(data, dict) else data).upper()
    if name not in ALGORITHMS:
        refuse(place, f"quant_algo is {shown(name)}, and Headway reads {', '.join(sorted(ALGORITHMS))}")
    form, group = ALGORITHMS[name], data.get("group_size")
    if isinstance(group, int) and group > 0 and Fraction(1, 2) < form.weight < 1:
        return Format(grouped(4, group, False, 2 if "AWQ" in name and "NVFP4" not in name else 1), form.activation)
    return form


STRATEGIES: Final = ("tensor", "channel", "token", "block", "group", "tensor_group")


def _compressed(data: dict[str, Any], place: str) -> Scheme:
    if str((data.get("sparsity_config") or {}).get("format") or "dense") != "dense":
        refuse(place, "sparsity_config: the weights are sparse")
    named: list[tuple[Modules, Format]] = []
    general: list[tuple[Modules, Format]] = []
    head = None
    kept = list(_names(data, place, "ignore"))
    for name, group in (data.get("config_groups") or {}).items():
        if not isinstance(group, dict) or not group.get("weights"):
            continue
        form = _compressed_format(group, data, f"{place}: config_groups.{name}")
        targets = [str(target) for target in group.get("targets") or ()]
        if "Linear" in targets:
            general.append((EVERY, form))
        others = [target for target in targets if target != "Linear"]
        if others:
            named.append((_compiled(others, place, "targets"), form))
            # Engines keep 16 bits for the matrix to the vocabulary, unless a target names it.
            if named[-1][0].match("lm_head") and not _compiled(kept, place, "ignore").match("lm_head"):
                head = form
    return Scheme((*named, *general), _compiled(kept, place, "ignore"), _kv(data, place), head)


def _compressed_format(group: dict[str, Any], data: dict[str, Any], place: str) -> Format:
    weights, inputs = group["weights"], group.get("input_activations") or {}
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    packed = str(group.get("format") or data.get("format") or "")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 4), ("float", 8)) or packed == "dense":
        refuse(place, f"weights of type {shown(kind)} with {shown(bits)} bits in format {shown(packed)} are unknown")
    strategy = strategy or ("group" if weights.get("group_size") else "tensor")
    if strategy not in STRATEGIES:
        refuse(place, f"weights.strategy is {shown(strategy)}, and Headway reads {', '.join(STRATEGIES)}")
    size = weights.get("group_size") if strategy in ("group", "tensor_group") else None
    size = size if isinstance(size, int) and size > 0 else None
    if (kind, bits) == ("float", 4) and size is None:
        refuse(place, "weights.group_size is missing")
    zero_points = weights.get("symmetric") is False
    small = (kind, bits) == ("float", 4) or packed.startswith(("nvfp4", "mxfp"))
    computed = inputs.get("num_bits") or 16
    if computed not in (4, 8, 16):
        refuse(place, f"input_activations.num_bits: expected 4, 8 or 16, got {shown(computed)}")
    return Format(grouped(bits, size, zero_points, 1 if small else 2), Fraction(computed, 8))


READERS: Final[dict[str, Callable[[dict[str, Any], str], Scheme]]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "compressed-tensors": _compressed,
}

KV_ALGORITHMS: Final = {"FP8": Fraction(1), "INT8": Fraction(1), "NVFP4": NVFP4, "NONE": FULL, "BF16": FULL}


def _kv(data: dict[str, Any], place: str) -> Fraction:
    """Return the bytes per number in the KV cache. Without a scheme for the KV cache, these are 2."""
    algorithm, scheme = data.get("kv_cache_quant_algo"), data.get("kv_cache_scheme")
    if algorithm is not None:
        if str(algorithm).upper() not in KV_ALGORITHMS:
            refuse(place, f"kv_cache_quant_algo is {shown(algorithm)}, which Headway does not know")
        return KV_ALGORITHMS[str(algorithm).upper()]
    if isinstance(scheme, dict) and scheme:
        bits = scheme.get("num_bits")
        if bits == 4 and scheme.get("type") == "float":
            return NVFP4
        if bits not in (8, 16):
            refuse(place, f"kv_cache_scheme.num_bits: expected 8 or 16, got {shown(bits)}")
        return Fraction(bits, 8)
    if scheme or data.get("kv_cache_quant_targets"):
        return Fraction(1)  # "static" or "dynamic", in the files of FP8 quantisers
    return FULL


def _bits(data: dict[str, Any], place: str, valid: Sequence[int], *keys: str) -> int:
    value = next((data[key] for key in keys if data.get(key) is not None), None)
    if isinstance(value, bool) or not isinstance(value, int) or value not in valid:
        refuse(place, f"{keys[0]}: expected one of {', '.join(map(str, valid))}, got {shown(value)}")
    return value


def _group(data: dict[str, Any], place: str, *keys: str) -> int | None:
    value = next((data[key] for key in keys if data.get(key) is not None), -1)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        refuse(place, f"{keys[0]}: expected a whole number above 0, or -1 for whole rows, got {shown(value)}")
    return None if value == -1 else value


def _modules(data: dict[str, Any], place: str, *keys: str) -> Modules:
    return _compiled(_names(data, place, *keys), place, keys[0])


def _names(data: dict[str, Any], place: str, *keys: str) -> list[str]:
    found: list[str] = []
    for key in keys:
        names = data.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            refuse(place, f"{key}: expected a list of names, got {shown(names)}")
        found += names
    return found


def _compiled(names: Iterable[str], place: str, key: str) -> Modules:
    try:
        return Modules(names)
    except re.error:
        refuse(place, f"{key}: one of the names is not a regular expression")
