# Look at the traffic before anything is simulated, compare policies on it, and read what each tenant got.
headway workload preview examples/07_tenants.yaml
headway compare examples/07_tenants.yaml --policies round-robin,lmetric,sticky,weighted
headway run examples/07_tenants.yaml --routing-policy lmetric
