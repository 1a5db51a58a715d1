"""What a scenario gets that names no policy, by stage in the order of a request's way."""

from __future__ import annotations

from typing import Final

DEFAULT_POLICIES: Final = {
    "admission": "always",
    "priority": "none",
    "flow": "none",
    "routing": "weighted",
    "scheduler": "fcfs",
    "scaling": "static",
}
