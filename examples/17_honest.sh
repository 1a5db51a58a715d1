# The same scenario under ten seeds: which differences are more than luck, and which are not?
headway compare examples/01_first_run.yaml --policies round-robin,random,prefix-overlap,lmetric,weighted --seeds 10
echo
# And over a grid: how far does each policy carry?
headway sweep examples/01_first_run.yaml --vary workload.rate=8..20:4 --vary policies.routing=round-robin,lmetric,prefix-overlap
