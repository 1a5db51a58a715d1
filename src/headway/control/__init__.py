"""The control plane: admission, priority, flow and routing, without I/O and without a clock."""
