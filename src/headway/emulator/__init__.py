"""An OpenAI-compatible engine without a GPU: its answers have the timing of the simulator's instances.

wire -> replica -> engine_request (parses a request) -> room (the simulator's engine, driven by the wall clock)
                                                         |
   emulated_request (one request in flight) <- tokens, step by step
   kv_publisher (KV events), emulated_metrics (the /metrics page)
"""
