"""The adapters (LoRA) that an instance has loaded into its slots.

An adapter of a running request stays loaded. If a slot is needed, the instance evicts the unused adapter
whose last request entered the batch earliest.
"""

from headway.errors import InvariantError


class Adapters:
    __slots__ = ("load_ps", "loaded", "loading_ps", "slots", "used", "users")

    def __init__(self, slots: int, load_ps: int) -> None:
        self.slots = slots
        self.load_ps = load_ps  # time to load one adapter
        # Loaded adapter -> number of its running requests. The most recently used adapter is last.
        self.users: dict[str, int] = {}
        self.used = 0  # number of adapters with running requests
        self.loaded = 0  # number of adapter loads so far
        self.loading_ps = 0  # time that adapter loads add to the next step

    def has_room(self, name: str | None) -> bool:
        """Whether a request with this adapter can enter the batch. `name` is None if the request uses no adapter."""
        return name is None or name in self.users or self.used < self.slots

    def enter(self, name: str | None) -> bool:
        """Count a request with this adapter that enters the batch. Return whether the adapter had to be loaded."""
        if name is None:
            return False
        users = self.users
        count = users.pop(name, -1)
        if count > 0:
            users[name] = count + 1
            return False
        self.used += 1
        if count < 0:
            if len(users) == self.slots:
                idle = next((adapter for adapter, running in users.items() if not running), None)
                if idle is None:
                    raise InvariantError("An adapter must be loaded, but running requests use all slots.")
                del users[idle]
            self.loaded += 1
            self.loading_ps += self.load_ps
        users[name] = 1
        return count < 0

    def leave(self, name: str | None) -> None:
        """Count a request with this adapter that leaves the batch."""
        if name is None:
            return
        self.users[name] -= 1
        if not self.users[name]:
            self.used -= 1

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.users))

    def take_loading(self) -> int:
        """Return the time that adapter loads add to the next step, and reset it to 0."""
        loading_ps, self.loading_ps = self.loading_ps, 0
        return loading_ps

    def check(self, running: list[str]) -> None:
        """Check that every adapter of a running request is loaded, and that the counts are right."""
        counts = dict.fromkeys(self.users, 0)
        for name in running:
            counts[name] = counts.get(name, 0) + 1
        if counts != self.users or len(counts) > self.slots:
            raise InvariantError(f"{self.slots} slots hold the adapters {self.users}, but requests use {counts}.")
