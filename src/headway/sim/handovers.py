"""What the instances that compute prompts and those that generate have to tell each other."""

from headway.sim.clock import Clock
from headway.sim.handover import Handover, Incoming
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.link import Load
from headway.sim.simulated_cluster import SimulatedCluster
from headway.types import Hints


class Handovers:
    def __init__(self, cluster: SimulatedCluster, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.incoming: dict[int, Incoming] = {}  # by instance, what it is to get from others
        self.bound: list[dict[int, Job]] | None = None  # requests at each instance, where those come and go

    def split(self, job: Job, prefill: int, decode: int) -> tuple[Job, Instance]:
        """A request whose prompt one instance computes for another: what it is at the first of them."""
        cluster = self.cluster
        instance = cluster.instances[prefill]
        transfer = instance.transfer
        assert transfer is not None
        source = Job(job.request, 1, job.output_key, cluster.block_tokens, job.counted)
        source.started, source.prefilled = job.started, job.prefilled
        if job.output_tokens > 1 or not transfer.first_token:
            if decode not in self.incoming:
                self.incoming[decode] = Incoming(transfer.spec.max_incoming)
            link, incoming = cluster.outgoing[prefill], self.incoming[decode]
            source.handover = job.awaits = Handover(source, job, prefill, decode, link, transfer, incoming)
            source.pipelined = transfer.spec.pipelined
            job.started = True
            job.prefilled = job.request.prompt_tokens
        cluster.instances[decode].stats.requests += 1
        return source, instance

    def on_prompt_computed(self, now: int, handover: Handover) -> None:
        """A prompt has been computed."""
        target = handover.target
        self.cluster.recorder.handed_ps[target.row] = now
        target.generated = int(handover.transfer.first_token)
        target.last_token_ps = now

    def pass_on(self, now: int, handover: Handover, priority: float, hints: Hints) -> None:
        """A prompt has been computed, or its first chunk: the instance that generates hears of it."""
        instance = self.cluster.instances[handover.decode]
        handover.begun = True
        handover.incoming.count += 1
        before = instance.run.end
        self.clock.note_change(handover.decode, before, instance.enqueue(handover.target, now, priority, hints))

    def on_loaded(self, now: int, load: Load) -> None:
        """The blocks that a request waited for have come, unless it has given up."""
        cluster, handover = self.cluster, load.job.awaits
        instance = cluster.instances[load.instance]
        if load.job not in instance.loader.loading:
            return
        before = instance.run.end
        self.clock.note_change(load.instance, before, instance.on_loaded(load.job, now))
        if handover is not None:
            cluster.recorder.transfer_ps[load.job.row] = handover.begun_ps
            cluster.recorder.transferred_ps[load.job.row] = now
            self.let_go(now, handover)
            self.on_received(now, handover.incoming)
            handover.end()

    def let_go(self, now: int, handover: Handover) -> None:
        """The instance that has computed a prompt for another need not keep it."""
        instance = self.cluster.instances[handover.prefill]
        before = instance.run.end
        self.clock.note_change(handover.prefill, before, instance.let_go(handover.source, now))
        if self.bound is not None:
            self.bound[handover.prefill].pop(handover.source.row, None)

    def on_received(self, now: int, incoming: Incoming) -> None:
        """An instance has got a request from another, or will not; those that wait for that may go on."""
        incoming.count -= 1
        if incoming.blocked and not incoming.full():
            blocked = sorted(incoming.blocked)
            incoming.blocked.clear()
            for index in blocked:
                instance = self.cluster.instances[index]
                instance.queue.refused = None
                before = instance.run.end
                self.clock.note_change(index, before, instance.nudge(now))

    def on_given_up(self, now: int, job: Job) -> None:
        """The client of a request has gone; `job` is what it was at the instance where it was last."""
        if job.awaits is not None:
            self.let_go(now, job.awaits)
            self.on_received(now, job.awaits.incoming)
        elif job.handover is not None and job.handover.begun:  # it was going on in chunks
            handover = job.handover
            instance = self.cluster.instances[handover.decode]
            before = instance.run.end
            instance.withdraw(handover.target, now)
            self.clock.note_change(handover.decode, before, instance.nudge(now))
            self.on_received(now, handover.incoming)
