"""The live gateway: OpenAI traffic in front of any engines, decided by the same policies as in simulation.

    wire (a client's connection) -> exchange (one request) -> plane (the control plane) -> upstream (an engine's)

It stands on `control` and `results` and knows nothing of the simulator.
"""
