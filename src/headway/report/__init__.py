"""Results for people: tables in the terminal, and pages for a browser."""
