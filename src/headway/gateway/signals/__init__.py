"""What the engines tell of themselves: their load, and what they have cached."""
