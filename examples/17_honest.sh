# Run the same scenario under ten seeds. Which differences are larger than random variation?
headway compare examples/01_first_run.yaml --policies round-robin,random,prefix-overlap,lmetric,weighted --seeds 10
echo
# Run a grid of rates. Up to which rate does each policy keep the SLO?
headway sweep examples/01_first_run.yaml --vary workload.rate=8..20:4 --vary policies.routing=round-robin,lmetric,prefix-overlap
