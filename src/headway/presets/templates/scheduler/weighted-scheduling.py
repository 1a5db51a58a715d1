"""Weighs waiting time, prompt length, output length and priority; the lowest key enters first.

key = aging x the second of arrival at the instance + prompt_weight x prompt tokens + output_weight x max_tokens (256
if not set) - priority_weight x priority. With the defaults it equals shortest-prefill.
"""

aging = parameter(100, 0, 10000)
prompt_weight = parameter(1, 0, 10)
output_weight = parameter(0, 0, 10)
priority_weight = parameter(0, 0, 10000)


def key(ticket):
    output = 256 if ticket.request.max_tokens is None else ticket.request.max_tokens
    work = prompt_weight * ticket.request.prompt_tokens + output_weight * output
    return work + aging * ticket.enqueued - priority_weight * ticket.priority
