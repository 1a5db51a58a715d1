"""The control plane: admission, priority, flow control and routing, without I/O and without a clock."""
