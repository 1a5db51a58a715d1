# A pull request lowers the weight of the prefix cache from 3 to 2. Does that make latencies worse?
headway check examples/22_check.yaml --candidate-set policies.routing.scorers.prefix-affinity=2 \
    --fail-if "ttft.p99>+5%" --fail-if "e2e.mean>+2%" --seeds 64 || echo "exit status $?"
echo
# The next version raises it to 4.
headway check examples/22_check.yaml --candidate-set policies.routing.scorers.prefix-affinity=4 \
    --fail-if "ttft.p99>+5%" --fail-if "e2e.mean>+2%" --seeds 64 || echo "exit status $?"
echo
# Sixteen seeds are too few for a bound on the p99 alone.
headway check examples/22_check.yaml --candidate-set policies.routing.scorers.prefix-affinity=4 \
    --fail-if "ttft.p99>+5%" --seeds 16 || echo "exit status $?"
