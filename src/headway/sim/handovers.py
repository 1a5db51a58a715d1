"""Carries out handovers between prefill and decode instances."""

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
        self.incoming: dict[int, Incoming] = {}  # number and limit of handovers to each decode instance, by its index
        self.bound: list[dict[int, Job]] | None = None  # per instance: request id -> job; set if instances can stop

    def split(self, job: Job, prefill: int, decode: int) -> tuple[Job, Instance]:
        """Create the job that computes a request's prompt. Return that job and the prefill instance."""
        cluster = self.cluster
        instance = cluster.instances[prefill]
        transfer = instance.transfer
        assert transfer is not None
        source = Job(job.request, 1, job.output_key, cluster.block_tokens, job.counted)
        source.started, source.prefilled, source.expected = job.started, job.prefilled, job.expected
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

    def pass_on(self, now: int, handover: Handover, priority: float, hints: Hints) -> None:
        """Queue a request at its decode instance, after its prompt or the prompt's first chunk has been computed."""
        instance = self.cluster.instances[handover.decode]
        handover.begun = True
        handover.incoming.count += 1
        before = instance.run.end
        self.clock.note_change(handover.decode, before, instance.enqueue(handover.target, now, priority, hints))

    def on_loaded(self, now: int, load: Load) -> None:
        """Deliver the blocks of a load, unless the client of its request has given up."""
        cluster, handover = self.cluster, load.job.awaits
        instance = cluster.instances[load.instance]
        if load.job not in instance.loader.loading:
            return
        before = instance.run.end
        self.clock.note_change(load.instance, before, instance.on_loaded(load.job, now))
        if handover is not None:
            cluster.recorder.transfer_ps[load.job.row] = handover.begun_ps
            cluster.recorder.transferred_ps[load.job.row] = now
            if handover.move is not None:
                handover.move.end_ps = now
            if instance.loader.received is not None:
                instance.loader.received.report(now, load.job.request, handover.prefill)
            self.let_go(now, handover)
            self.on_received(now, handover.incoming)
            handover.end()

    def let_go(self, now: int, handover: Handover) -> None:
        """Free the blocks of a prompt at the prefill instance."""
        instance = self.cluster.instances[handover.prefill]
        before = instance.run.end
        self.clock.note_change(handover.prefill, before, instance.let_go(handover.source, now))
        if self.bound is not None:
            self.bound[handover.prefill].pop(handover.source.row, None)

    def on_received(self, now: int, incoming: Incoming) -> None:
        """Count a handover that has ended, and wake the prefill instances that waited because of the limit."""
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
        """Free the blocks of a request in handover after its client gave up. `job` is the request's job at one of the
        two instances; free the blocks at the other one."""
        if job.awaits is not None:
            self.let_go(now, job.awaits)
            self.on_received(now, job.awaits.incoming)
        elif job.handover is not None and job.handover.begun:  # pipelined, so both instances have the request
            handover = job.handover
            instance = self.cluster.instances[handover.decode]
            before = instance.run.end
            instance.withdraw(handover.target, now)
            self.clock.note_change(handover.decode, before, instance.nudge(now))
            self.on_received(now, handover.incoming)
