"""What a run gives back: its columns, its summary, the checks that guard both, and the folder they are kept in."""
