"""The live gateway: routes OpenAI-compatible traffic to engines by the same policies as in simulation.

    wire (client connection) -> exchange (one request) -> plane (the control plane) -> upstream (engine connection)

It uses `control` and `results`, and does not depend on the simulator.
"""
