# Preview the traffic before you simulate it, compare policies on it, and read the figures of each tenant.
headway workload preview examples/07_tenants.yaml
headway compare examples/07_tenants.yaml --policies round-robin,lmetric,sticky,weighted
headway run examples/07_tenants.yaml --routing-policy lmetric
