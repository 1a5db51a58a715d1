"""What the engines report: their load, and what they have cached."""
