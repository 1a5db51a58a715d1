# What stores below the GPU are worth: without any, with both, and with a storage so slow that loading takes longer than
# computing again would.
headway run examples/12_tiers.yaml --set cluster.kv.tiers=null
headway run examples/12_tiers.yaml
headway run examples/12_tiers.yaml --set cluster.kv.tiers.storage.bandwidth=500MB/s
