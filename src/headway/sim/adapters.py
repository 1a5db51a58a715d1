"""The adapters (LoRA) that one instance has loaded, in its slots.

A running request's adapter stays; of those that nobody uses the one goes first whose last request entered longest ago.
"""

from headway.errors import InvariantError


class Adapters:
    __slots__ = ("load_ps", "loaded", "loading_ps", "slots", "used", "users")

    def __init__(self, slots: int, load_ps: int) -> None:
        self.slots = slots
        self.load_ps = load_ps  # that one takes to load
        self.users: dict[str, int] = {}  # running requests of each that is loaded, in order of the last one's entry
        self.used = 0  # adapters with any
        self.loaded = 0  # how often one was
        self.loading_ps = 0  # what the next step takes longer

    def has_room(self, name: str | None) -> bool:
        """Whether a request with this adapter, or with none, can enter."""
        return name is None or name in self.users or self.used < self.slots

    def enter(self, name: str | None) -> bool:
        """It enters. True if its adapter had to be loaded."""
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
                del users[self.idle()]
            self.loaded += 1
            self.loading_ps += self.load_ps
        users[name] = 1
        return count < 0

    def idle(self) -> str:
        """Who gives up its slot."""
        for name, count in self.users.items():
            if not count:
                return name
        raise InvariantError("An adapter was to be loaded, and all slots are in use.")

    def leave(self, name: str | None) -> None:
        """It no longer runs."""
        if name is None:
            return
        self.users[name] -= 1
        if not self.users[name]:
            self.used -= 1

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.users))

    def take_loading(self) -> int:
        """How much longer the step lasts that is about to begin."""
        loading_ps, self.loading_ps = self.loading_ps, 0
        return loading_ps

    def check(self, running: list[str]) -> None:
        """Conservation: every running request's adapter is there, and counts those that use it."""
        counts = dict.fromkeys(self.users, 0)
        for name in running:
            counts[name] = counts.get(name, 0) + 1
        if counts != self.users or len(counts) > self.slots:
            raise InvariantError(f"Loaded adapters {self.users} in {self.slots} slots; running requests use {counts}.")
