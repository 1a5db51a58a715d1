# Set the weights of scorers on the command line, and compare several profiles.
headway run examples/01_first_run.yaml --routing-scorers "prefix-affinity:3,queue-depth:2" --set workload.requests=300
headway compare examples/01_first_run.yaml --policies "
  {name: weighted, scorers: {queue-depth: 1}},
  {name: weighted, scorers: {prefix-affinity: 1, queue-depth: 1}},
  {name: weighted, scorers: {prefix-affinity: 9, queue-depth: 1}}"
