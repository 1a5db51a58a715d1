"""What people see of a result: tables in the terminal."""
