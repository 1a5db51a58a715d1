"""The workloads that come with the package: dated, and never changed. Without its date a name means the newest."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import yaml

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.types import Json

# What is given stands in place of these keys of a preset, too.
INSTEAD = {
    "kind": ("kinds", "models"),
    "kinds": ("kind", "models"),
    "rate": ("closed_loop",),
    "closed_loop": ("rate", "arrival", "profile", "behaviour"),
    "duration": ("requests",),
}


def names() -> list[str]:
    """The dated names, such as chat-2026-11."""
    folder = resources.files("headway") / "presets" / "workloads"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load(name: object, where: str) -> Json:
    """The keys of a preset, by its dated name or without the date."""
    known = names()
    dated = [one for one in known if one == name or re.sub(r"-[0-9]{4}-[0-9]{2}$", "", one) == name]
    if not dated:
        short = dict.fromkeys(re.sub(r"-[0-9]{4}-[0-9]{2}$", "", one) for one in known)
        raise HeadwayError(f"{where}: no workload is called {shown(name)}.{suggest(str(name), short)}")
    file = resources.files("headway") / "presets" / "workloads" / f"{dated[-1]}.yaml"
    found: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def filled(given: dict[str, Any], preset: Json) -> dict[str, Any]:
    """A workload's keys with those of its preset where nothing else is said."""
    dropped = [other for key in given for other in INSTEAD.get(key, ())]
    return {key: value for key, value in preset.items() if key not in dropped} | given
