# Compare a static pool, sized for the peak, with every autoscaler. These engines have ten slots and memory for many more
# requests. So the batch and the requests in flight show how full they are; KV use, the default signal, does not.
headway compare examples/15_autoscaling.yaml --stage scaling --policies "
  static, {name: target-utilization, signal: batch}, queue-threshold, slo-driven,
  {name: concurrency, scale_down_delay_s: 120}, {name: hpa, metric: concurrency}, predictive, kv-token"
