"""The batch of an instance: the requests that run, and the decoding set, whose requests advance in lockstep."""

from heapq import heapify, heappush

from headway.sim.job import Job


class Batch:
    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.running: dict[Job, Job] = {}  # in order of entry
        self.entered = 0  # how many ever entered, for their order
        self.partial: Job | None = None  # the request in the middle of its prefill
        self.steps = 0  # steps ended so far
        # the decoding set
        self.decodes = 0
        self.counted = 0  # those of them that are in the statistics
        self.context = 0  # their known tokens, summed
        # How many decodes take a block at the steps equal to this modulo the block size; twice, so that a stretch of
        # steps is always one slice.
        self.phases = [0] * (2 * block_tokens)
        self.ending: list[tuple[int, int, Job]] = []  # heap of decodes by (last step, order)

    def enter(self, job: Job) -> None:
        job.order = self.entered = self.entered + 1
        self.running[job] = job

    def start_decoding(self, job: Job) -> None:
        """Put a request whose prefill has ended into the decoding set."""
        size = self.block_tokens
        job.decoding_from = self.steps - job.generated
        job.ends_at_step = job.decoding_from + job.output_tokens
        self.decodes += 1
        self.counted += job.counted
        self.context += job.known + 1
        phase = (self.steps - job.known) % size
        self.phases[phase] += 1
        self.phases[phase + size] += 1

    def stop_decoding(self, job: Job) -> None:
        """Take a request out of the decoding set, with the tokens that it has generated."""
        size = self.block_tokens
        job.generated = self.steps - job.decoding_from
        computed = job.computed = job.request.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        self.decodes -= 1
        self.counted -= job.counted
        self.context -= computed + 1
        phase = (self.steps - computed) % size
        self.phases[phase] -= 1
        self.phases[phase + size] -= 1

    def expect_end(self, job: Job) -> None:
        """A decode will end by itself."""
        heappush(self.ending, (job.ends_at_step, job.order, job))

    def forget_end(self, job: Job) -> None:
        """A decode stops before its end."""
        self.ending = [entry for entry in self.ending if entry[2] is not job]
        heapify(self.ending)

    def decode_blocks(self, begun: int, steps: int) -> int:
        """Blocks that the decodes take in the `steps` steps after so many, earlier runs included."""
        size = self.block_tokens
        phase = begun % size
        return self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])
