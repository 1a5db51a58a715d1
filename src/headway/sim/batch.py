"""The batch of an instance: its running requests, and the decoding set, whose requests generate one token per step."""

from heapq import heapify, heappush

from headway.sim.job import Job


class Batch:
    __slots__ = (
        "block_tokens", "context", "counted", "decodes", "ending", "entered", "partial", "phases", "running", "steps",
    )  # fmt: skip

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.running: dict[Job, Job] = {}  # running requests in order of entry
        self.entered = 0  # number of entries into the batch so far
        self.partial: Job | None = None  # the request whose prefill is unfinished, if there is one
        self.steps = 0  # number of steps that have ended
        # The next fields describe the decoding set. Its requests are called decodes.
        self.decodes = 0  # number of decodes
        self.counted = 0  # number of decodes that count in the statistics
        self.context = 0  # sum of the context lengths of all decodes, in tokens
        # Number of decodes that need a new block at a step, by step modulo the block size.
        # The list has two copies of these numbers, so that consecutive steps are always one slice.
        self.phases = [0] * (2 * block_tokens)
        self.ending: list[tuple[int, int, Job]] = []  # heap: (step of the last token, order of entry, decode)

    def enter(self, job: Job) -> None:
        job.order = self.entered = self.entered + 1
        self.running[job] = job

    def start_decoding(self, job: Job) -> None:
        """Add a request to the decoding set after its prefill. If it has tokens left to generate, note the step of its
        last token in `ending`."""
        size, steps, phases = self.block_tokens, self.steps, self.phases
        job.decoding_from = steps - job.generated
        end = job.ends_at_step = job.decoding_from + job.output_tokens
        self.decodes += 1
        self.counted += job.counted
        self.context += job.known + 1
        phase = (steps - job.known) % size
        phases[phase] += 1
        phases[phase + size] += 1
        if end > steps:
            heappush(self.ending, (end, job.order, job))

    def stop_decoding(self, job: Job) -> None:
        """Remove a request from the decoding set, and update its numbers of generated tokens, computed tokens and
        blocks."""
        size, steps, phases = self.block_tokens, self.steps, self.phases
        job.generated = steps - job.decoding_from
        computed = job.computed = job.request.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        self.decodes -= 1
        self.counted -= job.counted
        self.context -= computed + 1
        phase = (steps - computed) % size
        phases[phase] -= 1
        phases[phase + size] -= 1

    def note_released(self, job: Job) -> None:
        """Update the number of blocks that windows have left behind. Without sliding windows, there are none."""

    def forget_end(self, job: Job) -> None:
        """Remove a request from `ending`, because it stops before its last token."""
        self.ending = [entry for entry in self.ending if entry[2] is not job]
        heapify(self.ending)

    def decode_blocks(self, begun: int, steps: int) -> int:
        """Return how many new blocks the decodes need in `steps` consecutive steps. `begun` is the number of all
        earlier steps of the instance."""
        size = self.block_tokens
        phase = begun % size
        return self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])
