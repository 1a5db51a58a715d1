# The same scenario under several routing policies, best first.
headway compare examples/01_first_run.yaml --policies round-robin,random,least-loaded,prefix-overlap,lmetric,weighted
