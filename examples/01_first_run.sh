# Simulate a scenario and read the table.
headway run examples/01_first_run.yaml
