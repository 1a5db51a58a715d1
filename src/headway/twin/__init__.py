"""A scenario twice: simulated, and with emulated engines behind the live gateway; and how far the two are apart."""
