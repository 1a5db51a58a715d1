# What stores below the GPU gain: without stores, with two stores, and with a storage so slow that loading takes longer
# than computing again.
headway run examples/12_tiers.yaml --set cluster.kv.tiers=null
headway run examples/12_tiers.yaml
headway run examples/12_tiers.yaml --set cluster.kv.tiers.storage.bandwidth=500MB/s
