# How many of which GPU does this load need, and how much more would they hold?
headway plan examples/14_plan.yaml --slo "ttft_p99<=250ms, tpot_p95<=40ms" --points 6
