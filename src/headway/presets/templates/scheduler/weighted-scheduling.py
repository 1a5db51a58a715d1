"""Serves first who is short, important or long there, in proportions of one's choosing.

key = aging x the second of its arrival at the instance + prompt_weight x prompt tokens + output_weight x the tokens
that its client allows (256 where it does not say) - priority_weight x priority; the lowest enters first. With the
defaults it is shortest-prefill.
"""

aging = parameter(100, 0, 10000)
prompt_weight = parameter(1, 0, 10)
output_weight = parameter(0, 0, 10)
priority_weight = parameter(0, 0, 10000)


def key(ticket):
    output = 256 if ticket.request.max_tokens is None else ticket.request.max_tokens
    work = prompt_weight * ticket.request.prompt_tokens + output_weight * output
    return work + aging * ticket.enqueued - priority_weight * ticket.priority
