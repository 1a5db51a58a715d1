"""Handles the requests of an instance that stops.

If the instance redirects its requests, the router routes them again and they continue on another instance, which
computes all their known tokens again. If the instance loses its requests, they are retried from the beginning; beyond
the limit on retries, they fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headway.control.flights import Flight
from headway.errors import HeadwayError
from headway.results.recorder import REJECTED
from headway.sim.engine_logs import take_back
from headway.sim.handover import Handover
from headway.sim.instance_end import vacate
from headway.sim.job import Job
from headway.types import REDIRECTED, RETRIED, Priority, Reject
from headway.workload.traffic import Planned

if TYPE_CHECKING:
    from headway.sim.dispatcher import Dispatcher

MOST_REDIRECTS: Final = 1000  # maximum number of redirects per request; with more, the request would never end
APART = ("prefill_instance", "handed_ps", "transfer_ps", "transferred_ps", "joined_ps")
# Columns that a retry resets: to -1, and to 0.
AFRESH = ("routed_ps", "started_ps", "first_token_ps", "enqueued_ps", "loaded_from", *APART)
EMPTIED = ("loaded_tokens", "cached_tokens", "preempted_ps", "loading_ps", "ready_ps", "interrupted_ps")


class Losses:
    def __init__(self, dispatcher: Dispatcher, retries: int) -> None:
        self.dispatcher = dispatcher
        self.retries = retries
        # For each instance: request id -> job. A request in handover is at two instances.
        self.bound: list[dict[int, Job]] = [{} for _ in dispatcher.instances]
        dispatcher.handovers.bound = self.bound
        self.moving: dict[int, Job] = {}  # request id -> job, for requests that left an instance and wait for another

    def on_sent(self, now: int, job: Job, flight: Flight, index: int) -> None:
        """Note the instance of a request, which has the index `index`. A redirected request that has already generated
        tokens uses no prefill instance: its decode instance computes the prefill. Report its handover at once."""
        if flight.prefill is not None and job.generated:
            self.dispatcher.control.on_handed(now, job.row)
        self.bound[index][job.row] = job

    def split(self, source: Job) -> None:
        """Note the prefill instance of a request. If the prefill instance generates the only token of the request, no
        handover follows, so forget the decode instance."""
        row, recorder = source.row, self.dispatcher.recorder
        if source.handover is None:
            self.bound[recorder.instance[row]].pop(row)
        self.bound[recorder.prefill_instance[row]][row] = source

    def on_ended(self, job: Job) -> bool:
        """Forget a request that has ended. Return False if only this job has ended and the request continues."""
        if job.withdrawn:
            return False
        row, recorder = job.row, self.dispatcher.recorder
        self.bound[recorder.instance[row]].pop(row, None)
        self.bound[recorder.prefill_instance[row]].pop(row, None)
        if recorder.outcome[row] == REJECTED:  # the last instance rejected the request before it generated a token
            recorder.output_tokens[row] = job.generated
            self.dispatcher.instances[recorder.instance[row]].stats.output_tokens += job.generated
            take_back(job)
        return True

    def idle(self, index: int) -> bool:
        """Whether an instance has no requests. A request that was withdrawn counts until the current step ends."""
        return not self.bound[index] and not self.dispatcher.instances[index].batch.running

    def count(self, instances: Iterable[int]) -> int:
        """Return the number of requests of these instances."""
        return sum(len(self.bound[index]) for index in instances)

    def stop(self) -> None:
        """Stop at the horizon: remove the gaps of requests that wait for another instance."""
        for row in [*self.moving]:
            self.drop(row)

    def empty(self, now: int, index: int, redirect: bool, why: str) -> None:
        """Remove all requests from an instance, in order of their ids. If `redirect` is set, redirect them; otherwise
        they are lost."""
        dispatcher = self.dispatcher
        instance = dispatcher.instances[index]
        vacate(instance, now)
        bound, self.bound[index] = self.bound[index], {}
        for row in sorted(bound):
            job = bound[row]
            # The client has given up, so the request ends with the current step of this or its prefill instance.
            if job.expired or (job.awaits is not None and job.awaits.source.expired):
                continue
            where = index
            handover = job.handover or job.awaits
            if handover is not None:  # only the decode job continues, with the progress of the prefill job
                self.leave_other(now, index, job, handover)
                source, job, where = handover.source, handover.target, handover.decode
                job.started, job.prefilled = source.started, source.prefilled
                handover.end()
            if redirect:
                self.redirect(now, where, job)
            else:
                self.lose(now, where, job, why)

    def leave_other(self, now: int, index: int, job: Job, handover: Handover) -> None:
        """Remove a request in handover from its other instance, after it has left the instance `index`."""
        dispatcher = self.dispatcher
        if index == handover.prefill or handover.computed:
            dispatcher.handovers.on_given_up(now, job)
        else:  # the prompt is still being computed
            source = handover.source
            instance = dispatcher.instances[handover.prefill]
            instance.count_ended(source, now)
            source.withdrawn = True
            before = instance.run.end
            dispatcher.clock.note_change(handover.prefill, before, instance.expire(source, now))
            if handover.begun:
                dispatcher.handovers.on_received(now, handover.incoming)
        self.bound[handover.prefill].pop(job.row, None)
        self.bound[handover.decode].pop(job.row, None)

    def redirect(self, now: int, index: int, job: Job) -> None:
        dispatcher, row = self.dispatcher, job.row
        flight = dispatcher.control.flight(row)
        dispatcher.end_flight(now, row, REDIRECTED, 0)
        dispatcher.recorder.redirects[row] += 1
        if dispatcher.recorder.redirects[row] > MOST_REDIRECTS:
            wrong = f"request {row} was redirected more than {MOST_REDIRECTS:,} times without completing"
            right = "scale less often, or let requests finish with 'drain: {mode: wait}'"
            raise HeadwayError(f"scaling: {wrong}; {right}.")
        if not job.generated:
            for column in APART:
                getattr(dispatcher.recorder, column)[row] = -1
        else:
            dispatcher.instances[index].stats.output_tokens += job.generated
        job.rewind(dispatcher.block_tokens)
        job.swapped = 0
        self.again(now, job, Priority(flight.priority, flight.hints))

    def lose(self, now: int, index: int, job: Job, why: str) -> None:
        """Retry a lost request from the beginning. If the request has reached the limit on retries, let it fail."""
        dispatcher, row, recorder = self.dispatcher, job.row, self.dispatcher.recorder
        dispatcher.instances[index].stats.output_tokens += job.generated
        take_back(job)
        if recorder.retries[row] == self.retries:
            job.lost = job.between_steps = True
            recorder.reasons[row] = why
            recorder.lost += 1
            dispatcher.cluster.ended.append(job)
            return
        flight = dispatcher.control.flight(row)
        dispatcher.end_flight(now, row, RETRIED, job.generated)
        recorder.retries[row] += 1
        recorder.lost_tokens += job.generated
        for column in AFRESH:
            getattr(recorder, column)[row] = -1
        for column in EMPTIED:
            getattr(recorder, column)[row] = 0
        fresh = Job(job.request, job.output_tokens, job.output_key, dispatcher.block_tokens, job.counted)
        self.again(now, fresh, Priority(flight.priority, flight.hints))

    def again(self, now: int, job: Job, priority: Priority) -> None:
        """Route a request again. If no instance is available, the request waits."""
        dispatcher, request = self.dispatcher, job.request
        dispatcher.deadlines.jobs.pop(job.row, None)
        if dispatcher.signals.vary:
            dispatcher.signals.refresh(now)
        answer = dispatcher.control.resend(now, request, priority)
        if answer is None:
            self.moving[job.row] = job
            dispatcher.held[job.row] = Planned(request, job.output_tokens, job.output_key)
        elif isinstance(answer, Reject):
            self.moving[job.row] = job
            self.drop(job.row)
            dispatcher.turn_away(now, request, REJECTED, answer.reason)
        else:
            self.go_on(now, job, answer)

    def go_on(self, now: int, job: Job, flight: Flight) -> None:
        tokens = job.generated
        self.dispatcher.put(now, job, flight)
        if tokens:  # earlier instances counted these tokens; the last instance will count all tokens again
            self.dispatcher.instances[self.dispatcher.recorder.instance[job.row]].stats.output_tokens -= tokens

    def drop(self, row: int) -> None:
        """Forget a request that waited for another instance, after its rejection or after its client gave up."""
        job = self.moving.pop(row, None)
        if job is not None:
            take_back(job)
            self.dispatcher.recorder.output_tokens[row] = job.generated
