"""An OpenAI-compatible engine without a GPU: its answers come with the timing of the simulator's own instances.

wire -> replica -> engine_request (what a request asks for) -> room (the simulator's engine, driven by the wall clock)
                                                                |
emulated_request (one request under way) <- tokens, step by step; kv_publisher has the events, emulated_metrics the page
"""
