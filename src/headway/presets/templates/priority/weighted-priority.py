"""Weighs a request's class, its age, the length of its prompt and its turn in the session.

score = class_weight x class (realtime 2, standard 1, batch 0, best-effort -1, others 0) - age_weight x arrival in
seconds - prompt_weight x prompt tokens / 1,000 + turn_weight x turn; higher matters more. Of two equal requests the
older one has the higher score. It reads no signal.
"""

class_weight = parameter(1, 0, 10)
age_weight = parameter(0.1, 0, 10)
prompt_weight = parameter(0.1, 0, 10)
turn_weight = parameter(0, 0, 10)


def prioritise(request, cluster):
    rank = 0
    if request.slo_class == "realtime":
        rank = 2
    elif request.slo_class == "standard":
        rank = 1
    elif request.slo_class == "best-effort":
        rank = -1
    score = class_weight * rank - age_weight * request.arrival
    return score - prompt_weight * request.prompt_tokens / 1000 + turn_weight * request.turn
