"""What becomes of requests when the instance goes that has them.

Where it is emptied in good order they are routed again and go on, after everything known so far has been computed again
elsewhere. Where it is lost they are sent again from the beginning, as often as that is allowed, or have failed.
"""

from __future__ import annotations

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

MOST_REDIRECTS: Final = 1000  # of one request; who is moved more often would never be done
APART = ("prefill_instance", "handed_ps", "transfer_ps", "transferred_ps")
AFRESH = (
    "routed_ps",
    "started_ps",
    "first_token_ps",
    "enqueued_ps",
    *APART,
)


class Losses:
    def __init__(self, dispatcher: Dispatcher, retries: int) -> None:
        self.dispatcher = dispatcher
        self.retries = retries
        # Requests by instance, as they are there; one whose prompt is computed apart may be at two of them.
        self.bound: list[dict[int, Job]] = [{} for _ in dispatcher.instances]
        dispatcher.handovers.bound = self.bound
        self.moving: dict[int, Job] = {}  # requests that have left an instance and wait for another

    # --- who is where ------------------------------------------------------------------------------------------

    def on_sent(self, now: int, job: Job, flight: Flight) -> None:
        """A request goes to an instance. What goes on there has its prompt computed there, too."""
        if flight.prefill is not None and job.generated:
            self.dispatcher.control.on_handed(now, job.row)
        self.bound[flight.view.index][job.row] = job

    def split(self, source: Job) -> None:
        """Its prompt is computed on another instance; if that delivers its only token, it never comes to the first."""
        row, recorder = source.row, self.dispatcher.recorder
        if source.handover is None:
            self.bound[recorder.instance[row]].pop(row)
        self.bound[recorder.prefill_instance[row]][row] = source

    def on_ended(self, job: Job) -> bool:
        """A request has ended. False if that is only what was left of it on one instance, and it goes on elsewhere."""
        if job.withdrawn:
            return False
        row, recorder = job.row, self.dispatcher.recorder
        self.bound[recorder.instance[row]].pop(row, None)
        self.bound[recorder.prefill_instance[row]].pop(row, None)
        if recorder.outcome[row] == REJECTED:  # by the last instance that it came to, which has generated nothing of it
            recorder.output_tokens[row] = job.generated
            self.dispatcher.instances[recorder.instance[row]].stats.output_tokens += job.generated
            take_back(job)
        return True

    def idle(self, index: int) -> bool:
        """Nobody is at an instance, nor is it in the step that rids it of what has gone on elsewhere."""
        return not self.bound[index] and not self.dispatcher.instances[index].batch.running

    def stop(self) -> None:
        """The horizon: requests in flight leave no gaps behind, nor do those that wait for another instance."""
        for row, job in self.moving.items():
            take_back(job)
            self.dispatcher.recorder.output_tokens[row] = job.generated

    # --- an instance goes --------------------------------------------------------------------------------------

    def empty(self, now: int, index: int, redirect: bool, why: str) -> None:
        """Everything leaves an instance, by request."""
        dispatcher = self.dispatcher
        instance = dispatcher.instances[index]
        vacate(instance, now)
        bound, self.bound[index] = self.bound[index], {}
        for row in sorted(bound):
            job = bound[row]
            # Its client has gone, and it has ended with the step under way, or will where its prompt is computed.
            if job.expired or (job.awaits is not None and job.awaits.source.expired):
                continue
            where = index
            handover = job.handover or job.awaits
            if handover is not None:  # the request as it would have gone on, with what is done of its prompt
                self.leave_other(now, index, job, handover)
                source, job, where = handover.source, handover.target, handover.decode
                job.started, job.prefilled = source.started, source.prefilled
                handover.end()
            if redirect:
                self.redirect(now, where, job)
            else:
                self.lose(now, where, job, why)

    def leave_other(self, now: int, index: int, job: Job, handover: Handover) -> None:
        """What is left of a request on the other of its two instances."""
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
        """It goes on elsewhere."""
        dispatcher, row = self.dispatcher, job.row
        flight = dispatcher.control.flight(row)
        dispatcher.control.on_finished(now, row, REDIRECTED, 0)
        dispatcher.recorder.redirects[row] += 1
        if dispatcher.recorder.redirects[row] > MOST_REDIRECTS:
            wrong = f"request {row} had to leave {MOST_REDIRECTS:,} instances, and none of them got it done"
            right = "let the autoscaler change its mind less often, or let requests end, with 'drain: {mode: wait}'"
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
        """It is sent again from the beginning, or has failed."""
        dispatcher, row, recorder = self.dispatcher, job.row, self.dispatcher.recorder
        dispatcher.instances[index].stats.output_tokens += job.generated
        take_back(job)
        if recorder.retries[row] == self.retries:
            job.lost = True
            recorder.reasons[row] = why
            recorder.lost += 1
            dispatcher.cluster.ended.append(job)
            return
        flight = dispatcher.control.flight(row)
        dispatcher.control.on_finished(now, row, RETRIED, job.generated)
        recorder.retries[row] += 1
        recorder.lost_tokens += job.generated
        for column in AFRESH:
            getattr(recorder, column)[row] = -1
        recorder.loaded_tokens[row] = recorder.cached_tokens[row] = 0
        fresh = Job(job.request, job.output_tokens, job.output_key, dispatcher.block_tokens, job.counted)
        self.again(now, fresh, Priority(flight.priority, flight.hints))

    def again(self, now: int, job: Job, priority: Priority) -> None:
        """It is routed once more, or waits for an instance to come up."""
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
        if job.generated:  # elsewhere, and that is among what it has generated at its end
            self.dispatcher.instances[flight.view.index].stats.output_tokens -= job.generated
        self.dispatcher.put(now, job, flight)

    def drop(self, row: int) -> None:
        """The client of a request that waits for another instance gives up, or it is turned away."""
        job = self.moving.pop(row, None)
        if job is not None:
            take_back(job)
            self.dispatcher.recorder.output_tokens[row] = job.generated
