"""The live gateway: routes OpenAI-compatible traffic to engines with the same policies as the simulation.

    wire (client connection) -> exchange (one request) -> plane (the control plane) -> upstream (engine connection)

This package uses `control` and `results`, and does not depend on the simulator.
"""
