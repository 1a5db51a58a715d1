# Inspect a trace, see how much of it a cache could reuse, and compare policies on it.
headway trace inspect examples/05_trace.jsonl --capacity 20,inf --instances 1,2
headway compare examples/05_trace.yaml --policies round-robin,prefix-affinity,weighted
