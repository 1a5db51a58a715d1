# Static peak provisioning against every autoscaler. These engines have room for ten requests and memory for many more, so
# the batch and the requests in flight are what tells how full they are; KV use, the default, would not.
headway compare examples/15_autoscaling.yaml --stage scaling --policies "
  static, {name: target-utilization, signal: batch}, queue-threshold, slo-driven,
  {name: concurrency, scale_down_delay_s: 120}, {name: hpa, metric: concurrency}, predictive, kv-token"
