# How many GPUs of which type does this load need, and how much more load could they serve?
headway plan examples/14_plan.yaml --slo "ttft_p99<=250ms, tpot_p95<=40ms" --points 6
