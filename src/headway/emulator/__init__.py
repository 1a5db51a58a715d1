"""An OpenAI-compatible engine without a GPU: its answers come with the timing of the simulator's own instances.

wire -> replica -> asked (what a request wants) -> room (the simulator's engine, driven by the wall clock)
                                                    |
flight (one request under way) <- tokens, step by step; kv_publisher tells what is cached, figures what was done
"""
